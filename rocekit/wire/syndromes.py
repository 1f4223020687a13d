"""The AETH's syndrome: ACK, RNR NAK or NAK, and what each says (IBA Vol. 1, 9.7.5, "AETH Syndrome Field")."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from rocekit.wire.limits import RNR_TIMER_US

#: Kinds of syndromes, which bits 6 and 5 tell apart; bits 4 to 0 have the value.
SYNDROME_KINDS: Final = MappingProxyType({0: "ACK", 1: "RNR_NAK", 2: "RESERVED", 3: "NAK"})
ACK, RNR_NAK, NAK = 0, 1, 3
#: How long an RNR NAK asks the requester to wait, by its timer code (9.7.5.2.8).
RNR_WAITS_NS: Final = tuple(us * 1000 for us in RNR_TIMER_US)

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

#: End-to-end credit codes (9.7.7.2, table "End-to-End Flow Control Credit Encoding"); 31 says there is no
#: credit count.
CREDITS: Final = (
    *(0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768),
    *(1_024, 1_536, 2_048, 3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768),
)
NO_CREDITS: Final = 31

#: By syndrome byte, for loops: ``ACK``, ``RNR_NAK``, ``NAK`` or 2.
SYNDROME_KIND: Final = tuple(v >> 5 & 3 for v in range(256))
#: By syndrome byte, for loops: the credit code, RNR timer code or NAK code.
SYNDROME_VALUE: Final = tuple(v & 0x1F for v in range(256))


def syndrome_kind(syndrome: int) -> int:
    """``ACK``, ``RNR_NAK`` or ``NAK`` (2 is reserved)."""
    return syndrome >> 5 & 3


def syndrome_value(syndrome: int) -> int:
    """The credit code, RNR timer code or NAK code."""
    return syndrome & 0x1F


def rnr_wait_ns(syndrome: int) -> int:
    """How long an RNR NAK with this syndrome asks the requester to wait (9.7.5.2.8)."""
    return RNR_WAITS_NS[syndrome & 0x1F]


def make_syndrome(kind: int, value: int = NO_CREDITS) -> int:
    """The AETH syndrome byte of a kind and its five-bit value."""
    return (kind & 3) << 5 | (value & 0x1F)


def syndrome_name(syndrome: int) -> str:
    """The syndrome in words: ``ACK``, ``RNR NAK 0.64 ms``, ``NAK psn_sequence_error``."""
    kind, value = syndrome_kind(syndrome), syndrome_value(syndrome)
    if kind == ACK:
        return "ACK" if value == NO_CREDITS else f"ACK, {CREDITS[value]} credits"
    if kind == RNR_NAK:
        return f"RNR NAK {rnr_wait_ns(syndrome) / 1_000_000:g} ms"
    if kind == NAK:
        return f"NAK {NAK_CODES.get(value, f'reserved {value}')}"
    return f"reserved syndrome {syndrome:#04x}"
