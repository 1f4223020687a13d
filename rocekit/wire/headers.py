"""Layouts of the transport headers: the BTH and what may follow it (IBA Vol. 1, chapters 8 and 9).

RoCE v1's GRH is here too; XRC's header is annex A14, FLUSH's annex A19.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from struct import Struct
from types import MappingProxyType
from typing import Final, NamedTuple


class Field(NamedTuple):
    """A field of a header: its name, width in bits and bit offset from the header's first bit."""

    name: str
    bits: int
    offset: int

    @property
    def is_bytes(self) -> bool:
        """Whether the field is a run of bytes (a GID, private data) and not a number."""
        return self.bits > 64

    @property
    def reserved(self) -> bool:
        return self.name.startswith("resv")

    def number_in(self, header: bytes) -> int:
        """The field's number in a header that has it."""
        end = self.offset + self.bits
        last = (end + 7) // 8
        return int.from_bytes(header[self.offset // 8 : last], "big") >> last * 8 - end & (1 << self.bits) - 1


NumberPlace = tuple[int, int, int, int]
"""Where a number is: its first byte, the one behind its last, the bits behind it in the last, and a mask."""

#: What ``struct`` calls numbers, by their bits.
_CODES: Final = MappingProxyType({8: "B", 16: "H", 32: "I", 64: "Q"})
_LARGEST: Final = max(_CODES)
#: The field that it is, or the name, shift and mask of each field in it.
_Stretch = tuple[str | None, tuple[tuple[str, int, int], ...]]


def _parse_fields(spec: str) -> tuple[Field, ...]:
    fields, offset = [], 0
    for word in spec.split():
        name, bits = word.split(":")
        fields.append(Field(name, int(bits), offset))
        offset += int(bits)
    return tuple(fields)


@dataclass(frozen=True, eq=False)
class Header:
    """A header's layout.

    Attributes:
        name: the IBA's abbreviation.
        fields: in wire order; all bits accounted for, reserved ones as ``resvN``.
        section: where the specification lays it out.
    """

    name: str
    fields: tuple[Field, ...]
    section: str

    @classmethod
    def of(cls, name: str, section: str, spec: str) -> Header:
        """A header from ``"name:bits name:bits …"``."""
        return cls(name, _parse_fields(spec), section)

    @cached_property
    def length(self) -> int:
        """Length in bytes."""
        return sum(f.bits for f in self.fields) // 8

    @cached_property
    def by_name(self) -> MappingProxyType[str, Field]:
        return MappingProxyType({f.name: f for f in self.fields})

    @cached_property
    def numbers(self) -> dict[str, NumberPlace]:
        """Where its numbers are, by name; without reserved fields and runs of bytes."""
        found = {}
        for f in self.fields:
            end, last = f.offset + f.bits, (f.offset + f.bits + 7) // 8
            if not f.reserved and not f.is_bytes:
                found[f.name] = f.offset // 8, last, last * 8 - end, (1 << f.bits) - 1
        return found

    @cached_property
    def runs(self) -> dict[str, tuple[int, int]]:
        """Where its runs of bytes are, by name: the first, and the end."""
        return {f.name: (f.offset // 8, (f.offset + f.bits) // 8) for f in self.fields if f.is_bytes}

    def unpack(self, data: bytes | memoryview) -> dict[str, int | bytes]:
        """The fields of the header at the start of ``data``, reserved ones left out.

        Raises:
            ValueError: ``data`` is shorter than the header.
        """
        if len(data) < self.length:
            raise ValueError(f"{self.name} takes {self.length} bytes, got {len(data)}")
        layout, stretches = self._stretches
        values: dict[str, int | bytes] = {}
        for value, (only, parts) in zip(layout.unpack_from(data), stretches, strict=True):
            if only is not None:
                values[only] = value
                continue
            whole = int.from_bytes(value, "big") if isinstance(value, bytes) else value
            for name, shift, mask in parts:
                values[name] = whole >> shift & mask
        return values

    @cached_property
    def _stretches(self) -> tuple[Struct, tuple[_Stretch, ...]]:
        """The header as numbers and runs of bytes that ``struct`` reads, and what is in each of them."""
        layout, together, bits = ">", list[Field](), 0
        stretches: list[_Stretch] = []
        for at, f in enumerate(self.fields):
            together.append(f)
            bits += f.bits
            is_last = at + 1 == len(self.fields) or self.fields[at + 1].bits + bits > _LARGEST
            if bits % 8 or not (bits in _CODES or is_last):
                continue
            own = [g for g in together if not g.reserved]
            size, end = bits // 8, f.offset + f.bits
            layout += f"{size}x" if not own else _CODES.get(bits, f"{size}s")
            if own == together == [f] and (bits in _CODES or f.is_bytes):
                stretches.append((f.name, ()))
            elif own:
                parts = [(g.name, end - g.offset - g.bits, (1 << g.bits) - 1) for g in own]
                stretches.append((None, tuple(parts)))
            together, bits = [], 0
        return Struct(layout), tuple(stretches)

    def pack(self, **values: int | bytes) -> bytes:
        """The header's bytes; fields not named are zero, byte fields are padded with zeros.

        Raises:
            ValueError: a name that is not a field, or a value too large for its field.
        """
        unknown = values.keys() - self.by_name.keys()
        if unknown:
            raise ValueError(f"{self.name} has no field {', '.join(sorted(unknown))}")
        whole = 0
        for f in self.fields:
            value = values.get(f.name, 0)
            if isinstance(value, bytes | bytearray):
                if len(value) * 8 > f.bits:
                    raise ValueError(f"{self.name}.{f.name} takes {f.bits // 8} bytes, got {len(value)}")
                number = int.from_bytes(bytes(value).ljust(f.bits // 8, b"\0"), "big")
            else:
                number = value
            if not 0 <= number < 1 << f.bits:
                raise ValueError(f"{self.name}.{f.name} takes {f.bits} bits, got {number:#x}")
            whole = whole << f.bits | number
        return whole.to_bytes(self.length, "big")


BTH = Header.of(
    "BTH",
    "9.2; FECN and BECN A10",
    "opcode:8 solicited:1 migreq:1 padcount:2 version:4 pkey:16 "
    "fecn:1 becn:1 resv6:6 dest_qpn:24 ackreq:1 resv7:7 psn:24",
)
GRH = Header.of(
    "GRH",
    "8.3",
    "ipver:4 tclass:8 flow_label:20 pay_len:16 next_hdr:8 hop_limit:8 sgid:128 dgid:128",
)
RDETH = Header.of("RDETH", "9.3.1", "resv8:8 ee_context:24")
DETH = Header.of("DETH", "9.3.2", "qkey:32 resv8:8 src_qpn:24")
XRCETH = Header.of("XRCETH", "A14", "resv8:8 xrc_srqn:24")
RETH = Header.of("RETH", "9.3.3", "remote_va:64 rkey:32 dma_length:32")
ATOMICETH = Header.of("AtomicETH", "9.3.4", "remote_va:64 rkey:32 swap_add:64 compare:64")
AETH = Header.of("AETH", "9.3.5", "syndrome:8 msn:24")
ATOMICACKETH = Header.of("AtomicAckETH", "9.3.5", "original:64")
IMMDT = Header.of("ImmDt", "9.3.6", "immediate:32")
IETH = Header.of("IETH", "9.3.7", "invalidate_rkey:32")
FETH = Header.of("FETH", "A19.4", "resv26:26 selectivity:2 placement_type:4")

HEADERS: Final = MappingProxyType(
    {
        h.name: h
        for h in (BTH, GRH, RDETH, DETH, XRCETH, RETH, ATOMICETH, AETH, ATOMICACKETH, IMMDT, IETH, FETH)
    }
)

#: FETH placement types (A19.4): bit 0 global visibility, bit 1 persistence.
PLACEMENT_TYPES: Final = MappingProxyType({1: "global visibility", 2: "persistence", 3: "both"})
#: FETH selectivity levels (A19.4).
SELECTIVITY: Final = MappingProxyType({0: "range", 1: "memory region"})
