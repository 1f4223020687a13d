"""Addresses of functions in a library that a process has loaded, from its memory (elf(5))."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rocekit.record.attach.target import RunningProgram

_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_STRTAB, _DT_SYMTAB, _DT_GNU_HASH = 5, 6, 0x6FFFFEF5
_HEADER: Final = struct.Struct("<IIQQQQQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")


def _dynamic(target: RunningProgram, base: int) -> tuple[int, dict[int, int]]:
    """What is to be added to addresses in the file, and the entries of the dynamic section."""
    head = target.read(base, 64)
    if len(head) < 64 or head[:4] != b"\x7fELF":
        return 0, {}
    offset, size, count = struct.unpack_from("<Q", head, 32)[0], *struct.unpack_from("<HH", head, 54)
    parts = [_HEADER.unpack(target.read(base + offset + k * size, _HEADER.size)) for k in range(count)]
    load = base - min((part[3] & ~0xFFF for part in parts if part[0] == _PT_LOAD), default=0)
    found: dict[int, int] = {}
    for part in parts:
        if part[0] == _PT_DYNAMIC:
            raw = target.read(load + part[3], part[6])
            found = dict(struct.iter_unpack("<QQ", raw[: len(raw) & ~15]))
    return load, found


def function(target: RunningProgram, base: int, name: str) -> int:
    """The address of a function of the library that begins at ``base``; 0 if it has none of this name."""
    load, dynamic = _dynamic(target, base)
    if not {_DT_STRTAB, _DT_SYMTAB, _DT_GNU_HASH} <= dynamic.keys():
        return 0
    strings, symbols, table = (
        value if (value := dynamic[tag]) >= load else value + load
        for tag in (_DT_STRTAB, _DT_SYMTAB, _DT_GNU_HASH)
    )
    buckets, first, blooms = struct.unpack("<III", target.read(table, 12))
    hashed = 5381
    for c in name.encode():
        hashed = (hashed * 33 + c) & 0xFFFFFFFF
    at = table + 16 + 8 * blooms
    chain = at + 4 * buckets
    index = int.from_bytes(target.read(at + 4 * (hashed % buckets), 4), "little") if buckets else 0
    while index >= first:
        of = int.from_bytes(target.read(chain + 4 * (index - first), 4), "little")
        if of | 1 == hashed | 1:
            text, _info, _other, section, value, _size = _SYMBOL.unpack(
                target.read(symbols + _SYMBOL.size * index, _SYMBOL.size)
            )
            if section and target.text(strings + text) == name:
                return int(load + value)
        if of & 1:
            break
        index += 1
    return 0
