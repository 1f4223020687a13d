"""Numbers the packets that hosts send over IPv6, and takes the numbers out of captures (the truth bench).

IPv6 has no identification, so two transmissions of one packet are equal. The number stands in the lower 16
bits of the flow label, which the ICRC does not cover: rxe takes such packets as they were. tc puts it there
with a BPF program, before a packet comes to what may drop or double it.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence
from pathlib import Path

from rocekit.lab.net import LabError, tool

_FOLDER = Path("/sys/fs/bpf")
_SYSCALL = 321
"""bpf(2) of x86-64."""
_MAP_CREATE, _PROG_LOAD, _OBJ_PIN = 0, 5, 6
_ARRAY, _SCHED_CLS = 2, 3
_ETHERNET, _LABEL_AT, _IPV6 = 14, 16, b"\x86\xdd"
_RECORD = struct.Struct("<4I")


def _bpf(command: int, attributes: bytes) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    given = ctypes.create_string_buffer(attributes, len(attributes))
    result = int(libc.syscall(_SYSCALL, command, given, len(attributes)))
    if result < 0:
        raise LabError(f"bpf(2), command {command}: {os.strerror(ctypes.get_errno())}")
    return result


def _instruction(code: int, registers: int = 0, offset: int = 0, immediate: int = 0) -> bytes:
    """``registers``: the source in the upper four bits, the destination in the lower ones."""
    return struct.pack("<BBhi", code, registers, offset, immediate)


def _program(counter: int) -> bytes:
    """Count, and put the count's lower 16 bits into the flow label; then the next filter decides."""
    call, move_to, exit_ = 0x85, 0xB7, 0x95
    return b"".join(
        (
            _instruction(0xBF, 0x16),  # r6 = r1, the packet
            _instruction(0x62, 0x0A, -4, 0),  # the key, 0, on the stack
            _instruction(0xBF, 0xA2),  # r2 = r10
            _instruction(0x07, 0x02, 0, -4),  # r2 += -4
            _instruction(0x18, 0x11, 0, counter),  # r1 = the map, in two instructions
            _instruction(0),
            _instruction(call, immediate=1),  # r0 = bpf_map_lookup_elem
            _instruction(0x15, 0x00, 11, 0),  # if r0 == 0, end
            _instruction(move_to, 0x01, 0, 1),  # r1 = 1
            _instruction(0xDB, 0x10, 0, 1),  # r1 = *r0, *r0 += r1 (atomic, with the value before)
            _instruction(0xDC, 0x01, 0, 16),  # r1 = its lower 16 bits, in network order
            _instruction(0x6B, 0x1A, -8),  # on the stack
            _instruction(0xBF, 0x61),  # r1 = r6
            _instruction(move_to, 0x02, 0, _LABEL_AT),
            _instruction(0xBF, 0xA3),  # r3 = r10
            _instruction(0x07, 0x03, 0, -8),
            _instruction(move_to, 0x04, 0, 2),
            _instruction(move_to, 0x05, 0, 0),
            _instruction(call, immediate=9),  # bpf_skb_store_bytes
            _instruction(move_to, 0x00, 0, -1),  # TC_ACT_UNSPEC
            _instruction(exit_),
        )
    )


def _pinned() -> Path:
    """The program, loaded once: all interfaces count together."""
    path = _FOLDER / "rocekit-number"
    if path.exists():
        return path
    if not os.path.ismount(_FOLDER):
        tool("mount", "-t", "bpf", "bpf", str(_FOLDER))
    counter = _bpf(_MAP_CREATE, struct.pack("<5I", _ARRAY, 4, 8, 1, 0))
    code = ctypes.create_string_buffer(_program(counter))
    count = len(code.raw) // 8
    licence, log = ctypes.create_string_buffer(b"GPL"), ctypes.create_string_buffer(1 << 16)
    program = _bpf(
        _PROG_LOAD,
        struct.pack(
            "<2I2Q2IQ2I",
            _SCHED_CLS,
            count,
            ctypes.addressof(code),
            ctypes.addressof(licence),
            1,
            len(log),
            ctypes.addressof(log),
            0,
            0,
        ),
    )
    name = ctypes.create_string_buffer(os.fsencode(path))
    _bpf(_OBJ_PIN, struct.pack("<Q2I", ctypes.addressof(name), program, 0))
    return path


def number(interfaces: Sequence[str]) -> None:
    """Number all IPv6 packets that interfaces send; they have a ``clsact``."""
    path = str(_pinned())
    for interface in interfaces:
        where = ("dev", interface, "egress", "protocol", "ipv6", "prio", "1")
        tool("tc", "filter", "add", *where, "bpf", "direct-action", "object-pinned", path)


def take(capture: Path) -> list[int]:
    """Take the numbers out of a capture; they are, by frame, what is given back. 0: no IPv6 packet."""
    data, at, found = bytearray(capture.read_bytes()), 24, []
    while at + _RECORD.size <= len(data):
        stored = _RECORD.unpack_from(data, at)[2]
        at += _RECORD.size
        is_ipv6 = data[at + 12 : at + 14] == _IPV6
        found.append(int.from_bytes(data[at + _LABEL_AT : at + _LABEL_AT + 2]) if is_ipv6 else 0)
        if is_ipv6:
            data[at + _LABEL_AT : at + _LABEL_AT + 2] = bytes(2)
        at += stored
    capture.write_bytes(data)
    return found
