"""Layouts of the transport headers: the BTH and what may follow it (IBA Vol. 1, chapters 8 and 9).

RoCE v1's GRH is here too; XRC's header is annex A14, FLUSH's annex A19.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
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


def _parse_fields(spec: str) -> tuple[Field, ...]:
    fields, offset = [], 0
    for word in spec.split():
        name, bits = word.split(":")
        fields.append(Field(name, int(bits), offset))
        offset += int(bits)
    return tuple(fields)


@dataclass(frozen=True)
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

    def unpack(self, data: bytes | memoryview) -> dict[str, int | bytes]:
        """The fields of the header at the start of ``data``, reserved ones left out.

        Raises:
            ValueError: ``data`` is shorter than the header.
        """
        if len(data) < self.length:
            raise ValueError(f"{self.name} takes {self.length} bytes, got {len(data)}")
        whole = int.from_bytes(data[: self.length], "big")
        values: dict[str, int | bytes] = {}
        for name, shift, mask, size in self._shifts:
            number = whole >> shift & mask
            values[name] = number.to_bytes(size, "big") if size else number
        return values

    @cached_property
    def _shifts(self) -> tuple[tuple[str, int, int, int], ...]:
        """Of each field that is not reserved: name, shift, mask, and its length if it is bytes, or 0."""
        total = self.length * 8
        return tuple(
            (f.name, total - f.offset - f.bits, (1 << f.bits) - 1, f.bits // 8 if f.is_bytes else 0)
            for f in self.fields
            if not f.reserved
        )

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
    "9.2; FECN and BECN A17.9",
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
