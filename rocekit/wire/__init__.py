"""The transport facts of the InfiniBand Architecture that travel in RoCE packets, each typed once.

Sections are those of the IBA Specification, Volume 1 (release 1.5 where annex A19 is cited). RoCE v1 is annex
A16, RoCE v2 annex A17, XRC annex A14, the memory placement extensions (FLUSH, ATOMIC WRITE) annex A19.
Everything else in the project derives lengths, offsets, names and columns from here; MADs and CM messages are
in ``wire_cm``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Final

ROCE_UDP_PORT: Final = 4791  # A17.3.1, assigned by IANA
ROCE_V1_ETHERTYPE: Final = 0x8915  # A16.3
ICRC_BYTES: Final = 4
CNP_OPCODE: Final = 0x81  # A17.9.3
CNP_RESERVED_BYTES: Final = 16  # A17.9.3: a CNP carries sixteen zero bytes after its BTH
PSN_BITS: Final = 24  # 9.2.8
MAD_QPNS: Final = (0, 1)  # QP0 carries subnet management, QP1 general services (13.1)


@dataclass(frozen=True, slots=True)
class Field:
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
        total = self.length * 8
        values: dict[str, int | bytes] = {}
        for f in self.fields:
            if f.reserved:
                continue
            number = (whole >> (total - f.offset - f.bits)) & ((1 << f.bits) - 1)
            values[f.name] = number.to_bytes(f.bits // 8, "big") if f.is_bytes else number
        return values

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

TRANSPORTS: Final = MappingProxyType({0: "RC", 1: "UC", 2: "RD", 3: "UD", 4: "CNP", 5: "XRC"})

#: Payload kinds. "payload" may be empty; what stands with "none" carries no payload at all.
FIRST, MIDDLE, LAST, ONLY = "FIRST", "MIDDLE", "LAST", "ONLY"


@dataclass(frozen=True, slots=True)
class Opcode:
    """One value of the BTH's opcode field (9.2.1).

    Attributes:
        value: the byte on the wire.
        name: Scapy's name, such as ``RC_SEND_ONLY``.
        transport: ``RC``, ``UC``, ``RD``, ``UD``, ``XRC`` or ``CNP``.
        operation: what the message does: ``SEND``, ``WRITE``, ``READ``, ``FETCH_ADD``, ``CMP_SWAP``,
            ``FLUSH``, ``ATOMIC_WRITE`` for requests; ``READ_RESPONSE``, ``ACK``, ``ATOMIC_ACK`` for what
            comes back; ``RESYNC``, ``CNP``.
        position: ``FIRST``, ``MIDDLE``, ``LAST`` or ``ONLY``: the packet's place in its message.
        headers: what follows the BTH, in order.
        payload: whether payload may follow.
        response: whether the responder sends it.
    """

    value: int
    name: str
    transport: str
    operation: str
    position: str
    headers: tuple[Header, ...]
    payload: bool
    response: bool = False

    @property
    def starts(self) -> bool:
        """Whether the packet begins a message."""
        return self.position in (FIRST, ONLY)

    @property
    def ends(self) -> bool:
        """Whether the packet ends a message."""
        return self.position in (LAST, ONLY)

    @property
    def headers_length(self) -> int:
        """Bytes of the BTH and what follows it, before the payload."""
        return BTH.length + sum(h.length for h in self.headers)


@dataclass(frozen=True, slots=True)
class _Row:
    """One operation code (the low five bits) before its transport is known."""

    name: str
    operation: str
    position: str
    headers: tuple[Header, ...] = ()
    payload: bool = True
    response: bool = False
    transports: frozenset[str] = field(default_factory=lambda: frozenset({"RC", "RD", "XRC"}))


_ALL = frozenset({"RC", "UC", "RD", "XRC"})
_EVERY = _ALL | {"UD"}
_INVALIDATE = frozenset({"RC", "XRC"})

#: The low five bits of the opcode (9.2.1, table "OpCode field"; FLUSH and ATOMIC WRITE A19.4).
_OPERATIONS: Final = {
    0x00: _Row("SEND_FIRST", "SEND", FIRST, transports=_ALL),
    0x01: _Row("SEND_MIDDLE", "SEND", MIDDLE, transports=_ALL),
    0x02: _Row("SEND_LAST", "SEND", LAST, transports=_ALL),
    0x03: _Row("SEND_LAST_WITH_IMMEDIATE", "SEND", LAST, (IMMDT,), transports=_ALL),
    0x04: _Row("SEND_ONLY", "SEND", ONLY, transports=_EVERY),
    0x05: _Row("SEND_ONLY_WITH_IMMEDIATE", "SEND", ONLY, (IMMDT,), transports=_EVERY),
    0x06: _Row("RDMA_WRITE_FIRST", "WRITE", FIRST, (RETH,), transports=_ALL),
    0x07: _Row("RDMA_WRITE_MIDDLE", "WRITE", MIDDLE, transports=_ALL),
    0x08: _Row("RDMA_WRITE_LAST", "WRITE", LAST, transports=_ALL),
    0x09: _Row("RDMA_WRITE_LAST_WITH_IMMEDIATE", "WRITE", LAST, (IMMDT,), transports=_ALL),
    0x0A: _Row("RDMA_WRITE_ONLY", "WRITE", ONLY, (RETH,), transports=_ALL),
    0x0B: _Row("RDMA_WRITE_ONLY_WITH_IMMEDIATE", "WRITE", ONLY, (RETH, IMMDT), transports=_ALL),
    0x0C: _Row("RDMA_READ_REQUEST", "READ", ONLY, (RETH,), payload=False),
    0x0D: _Row("RDMA_READ_RESPONSE_FIRST", "READ_RESPONSE", FIRST, (AETH,), response=True),
    0x0E: _Row("RDMA_READ_RESPONSE_MIDDLE", "READ_RESPONSE", MIDDLE, response=True),
    0x0F: _Row("RDMA_READ_RESPONSE_LAST", "READ_RESPONSE", LAST, (AETH,), response=True),
    0x10: _Row("RDMA_READ_RESPONSE_ONLY", "READ_RESPONSE", ONLY, (AETH,), response=True),
    0x11: _Row("ACKNOWLEDGE", "ACK", ONLY, (AETH,), payload=False, response=True),
    0x12: _Row("ATOMIC_ACKNOWLEDGE", "ATOMIC_ACK", ONLY, (AETH, ATOMICACKETH), payload=False, response=True),
    0x13: _Row("COMPARE_SWAP", "CMP_SWAP", ONLY, (ATOMICETH,), payload=False),
    0x14: _Row("FETCH_ADD", "FETCH_ADD", ONLY, (ATOMICETH,), payload=False),
    0x15: _Row("RESYNC", "RESYNC", ONLY, payload=False, transports=frozenset({"RD"})),
    0x16: _Row("SEND_LAST_WITH_INVALIDATE", "SEND", LAST, (IETH,), transports=_INVALIDATE),
    0x17: _Row("SEND_ONLY_WITH_INVALIDATE", "SEND", ONLY, (IETH,), transports=_INVALIDATE),
    0x1C: _Row("FLUSH", "FLUSH", ONLY, (FETH, RETH), payload=False),
    0x1D: _Row("ATOMIC_WRITE", "ATOMIC_WRITE", ONLY, (RETH,)),
}


def _chain(transport: str, row: _Row) -> tuple[Header, ...]:
    """The extended headers in wire order: what the transport puts first, then the operation's own (9.3)."""
    if transport == "RD":
        return ((RDETH,) if row.response else (RDETH, DETH)) + row.headers
    if transport == "UD":
        return (DETH, *row.headers)
    if transport == "XRC" and not row.response:
        return (XRCETH, *row.headers)
    return row.headers


def _opcodes() -> dict[int, Opcode]:
    table = {}
    for code, transport in TRANSPORTS.items():
        for low, row in _OPERATIONS.items():
            if transport in row.transports:
                value = code << 5 | low
                table[value] = Opcode(
                    value,
                    f"{transport}_{row.name}",
                    transport,
                    row.operation,
                    row.position,
                    _chain(transport, row),
                    row.payload,
                    row.response,
                )
    table[CNP_OPCODE] = Opcode(CNP_OPCODE, "CNP", "CNP", "CNP", ONLY, (), payload=True, response=True)
    return table


OPCODES: Final = MappingProxyType(_opcodes())
OPCODE_NAMES: Final = MappingProxyType({o.name: o.value for o in OPCODES.values()})

#: By opcode byte, for loops: the operation ("" for an unknown opcode), whether a message starts or ends here.
OPERATION: Final = tuple(OPCODES[v].operation if v in OPCODES else "" for v in range(256))
STARTS: Final = tuple(v in OPCODES and OPCODES[v].starts for v in range(256))
ENDS: Final = tuple(v in OPCODES and OPCODES[v].ends for v in range(256))

# AETH syndrome (9.7.5, table "AETH Syndrome Field"): bits 6-5 say the kind, bits 4-0 its value.
SYNDROME_KINDS: Final = MappingProxyType({0: "ACK", 1: "RNR_NAK", 2: "RESERVED", 3: "NAK"})
ACK, RNR_NAK, NAK = 0, 1, 3

#: NAK codes (9.7.5, table "NAK Codes") and the name a transfer's status carries.
NAK_CODES: Final = MappingProxyType(
    {
        0: "psn_sequence_error",
        1: "invalid_request",
        2: "remote_access_error",
        3: "remote_operational_error",
        4: "invalid_rd_request",
    }
)
NAK_SEQUENCE_ERROR, NAK_INVALID_REQUEST, NAK_REMOTE_ACCESS, NAK_REMOTE_OPERATIONAL, NAK_INVALID_RD = range(5)

#: RNR NAK timer codes (9.7.5.2.8, table "Encoding for RNR NAK Timer Field") in microseconds.
RNR_TIMER_US: Final = (
    *(655_360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1_280, 1_920),
    *(2_560, 3_840, 5_120, 7_680, 10_240, 15_360, 20_480, 30_720, 40_960, 61_440),
    *(81_920, 122_880, 163_840, 245_760, 327_680, 491_520),
)

#: End-to-end credit codes (9.7.7.2, table "End-to-End Flow Control Credit Encoding"); 31 says there is no
#: credit count.
CREDITS: Final = (
    *(0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768),
    *(1_024, 1_536, 2_048, 3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768),
)
NO_CREDITS: Final = 31


#: By syndrome byte, for loops: ``ACK``, ``RNR_NAK``, ``NAK`` or 2.
SYNDROME_KIND: Final = tuple(v >> 5 & 3 for v in range(256))


def syndrome_kind(syndrome: int) -> int:
    """``ACK``, ``RNR_NAK`` or ``NAK`` (2 is reserved)."""
    return syndrome >> 5 & 3


def syndrome_value(syndrome: int) -> int:
    """The credit code, RNR timer code or NAK code."""
    return syndrome & 0x1F


def make_syndrome(kind: int, value: int = NO_CREDITS) -> int:
    """The AETH syndrome byte of a kind and its five-bit value."""
    return (kind & 3) << 5 | (value & 0x1F)


def syndrome_name(syndrome: int) -> str:
    """The syndrome in words: ``ACK``, ``RNR NAK 0.64 ms``, ``NAK psn_sequence_error``."""
    kind, value = syndrome_kind(syndrome), syndrome_value(syndrome)
    if kind == ACK:
        return "ACK" if value == NO_CREDITS else f"ACK, {CREDITS[value]} credits"
    if kind == RNR_NAK:
        return f"RNR NAK {RNR_TIMER_US[value] / 1000:g} ms"
    if kind == NAK:
        return f"NAK {NAK_CODES.get(value, f'reserved {value}')}"
    return f"reserved syndrome {syndrome:#04x}"


def local_ack_timeout_us(code: int) -> float | None:
    """The local ACK timeout: 4.096 µs × 2^code; code 0 never times out (9.7.6.1.3).

    The specification lets a channel adapter take up to four times as long.
    """
    return None if code == 0 else 4.096 * 2**code


#: Path MTU codes (as in the PathRecord, 15.2.5.16) to bytes of payload.
PATH_MTU_BYTES: Final = MappingProxyType({1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096})
PATH_MTU_CODES: Final = MappingProxyType({v: k for k, v in PATH_MTU_BYTES.items()})
ATOMIC_BYTES: Final = 8  # 9.4.5
MAX_MESSAGE_BYTES: Final = 1 << 31  # 9.7.7
RETRY_INFINITE: Final = 7  # 9.7.5.2.8: RNR retry count 7 never counts down


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


#: Work completion statuses (11.6.2), with the numbers and names of libibverbs' ``enum ibv_wc_status``.
WC_STATUSES: Final = MappingProxyType(
    dict(
        enumerate(
            _words(
                "SUCCESS LOC_LEN_ERR LOC_QP_OP_ERR LOC_EEC_OP_ERR LOC_PROT_ERR WR_FLUSH_ERR MW_BIND_ERR "
                "BAD_RESP_ERR LOC_ACCESS_ERR REM_INV_REQ_ERR REM_ACCESS_ERR REM_OP_ERR RETRY_EXC_ERR "
                "RNR_RETRY_EXC_ERR LOC_RDD_VIOL_ERR REM_INV_RD_REQ_ERR REM_ABORT_ERR INV_EECN_ERR "
                "INV_EEC_STATE_ERR FATAL_ERR RESP_TIMEOUT_ERR GENERAL_ERR TM_ERR TM_RNDV_INCOMPLETE"
            )
        )
    )
)

#: librdmacm's ``enum rdma_cm_event_type``.
CM_EVENTS: Final = _words(
    "ADDR_RESOLVED ADDR_ERROR ROUTE_RESOLVED ROUTE_ERROR CONNECT_REQUEST CONNECT_RESPONSE CONNECT_ERROR "
    "UNREACHABLE REJECTED ESTABLISHED DISCONNECTED DEVICE_REMOVAL MULTICAST_JOIN MULTICAST_ERROR ADDR_CHANGE "
    "TIMEWAIT_EXIT"
)


def psns_of(length: int, path_mtu: int) -> int:
    """How many PSNs a message of ``length`` bytes takes: an empty message still takes one (9.7.2)."""
    return max(1, -(-length // path_mtu))
