"""The BTH's opcodes: which there are, which headers follow each, and what each does (IBA Vol. 1, 9.2.1)."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, NamedTuple

from rocekit.wire.headers import (
    AETH,
    ATOMICACKETH,
    ATOMICETH,
    BTH,
    DETH,
    FETH,
    IETH,
    IMMDT,
    RDETH,
    RETH,
    XRCETH,
    Header,
)

TRANSPORTS: Final = MappingProxyType({0: "RC", 1: "UC", 2: "RD", 3: "UD", 4: "CNP", 5: "XRC"})

CNP_OPCODE: Final = 0x81  # A17.9.3

#: Where a packet stands in its message.
FIRST, MIDDLE, LAST, ONLY = "FIRST", "MIDDLE", "LAST", "ONLY"


class Opcode(NamedTuple):
    """One value of the BTH's opcode field (9.2.1).

    Attributes:
        value: the byte on the wire.
        name: Scapy's name, such as ``RC_SEND_ONLY``.
        transport: ``RC``, ``UC``, ``RD``, ``UD``, ``XRC`` or ``CNP``.
        operation: what the message does: ``SEND``, ``WRITE``, ``READ``, ``FETCH_ADD``, ``CMP_SWAP``,
            ``FLUSH``, ``ATOMIC_WRITE`` of requests; ``READ_RESPONSE``, ``ACK``, ``ATOMIC_ACK`` of
            responses; ``RESYNC``, ``CNP``.
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
        """Whether the packet is the first of its message."""
        return self.position in (FIRST, ONLY)

    @property
    def ends(self) -> bool:
        """Whether the packet is the last of its message."""
        return self.position in (LAST, ONLY)

    @property
    def headers_length(self) -> int:
        """Bytes of the BTH and the headers behind it, before the payload."""
        return BTH.length + sum(h.length for h in self.headers)


class _Row(NamedTuple):
    """One operation code (the low five bits) before its transport is known."""

    name: str
    operation: str
    position: str
    headers: tuple[Header, ...] = ()
    payload: bool = True
    response: bool = False
    transports: frozenset[str] = frozenset({"RC", "RD", "XRC"})


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
    """The headers behind the BTH in wire order: the transport's, then the operation's own (9.3)."""
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

#: By opcode byte: whether the specification defines no meaning for it, and leaves 0xC0 to 0xFF to vendors, or
#: 0x80 to 0x9F to congestion notification (9.2.1, table "OpCode field").
VENDOR: Final = tuple(v not in OPCODES and (v >= 0xC0 or v >> 5 == CNP_OPCODE >> 5) for v in range(256))

#: Operations with an AtomicETH, which read and change eight bytes at once (9.4.5).
ATOMICS: Final = frozenset(o.operation for o in OPCODES.values() if ATOMICETH in o.headers)

#: Requests that need a response of their own, and the operation of that response: READ and the atomics
#: (9.4.4, 9.4.5); FLUSH and ATOMIC WRITE, whose response is an empty READ response (A19.4). An ACK of a later
#: PSN does not complete them: it is an implied NAK (9.7.5.1.2).
OWN_RESPONSE: Final = MappingProxyType(
    dict.fromkeys(sorted(ATOMICS), "ATOMIC_ACK")
    | dict.fromkeys(("READ", "FLUSH", "ATOMIC_WRITE"), "READ_RESPONSE")
)

#: Requests that occupy one of the responder's resources until they have their response: initiator depth and
#: responder resources limit how many are outstanding (9.4.4, 9.4.5, 12.7.29; FLUSH and ATOMIC WRITE: A19.4).
READ_DEPTH: Final = frozenset(OWN_RESPONSE)


def opcode_words(value: int) -> str:
    """The name of an opcode; of one that the specification does not have, ``opcode 0xc1``."""
    known = OPCODES.get(value)
    return f"opcode {value:#04x}" if known is None else known.name
