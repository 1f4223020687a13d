"""What the InfiniBand Architecture says of RoCE packets, each fact in one place.

Sections are those of the IBA Specification, Volume 1 (release 1.5 where annex A19 is cited). RoCE v1 is annex
A16, RoCE v2 annex A17, XRC annex A14, the memory placement extensions (FLUSH, ATOMIC WRITE) annex A19.
Everything else in the project derives lengths, offsets, names and columns from here. The tables are in
:mod:`.headers`, :mod:`.opcodes`, :mod:`.syndromes`, :mod:`.limits` and :mod:`.verbs_names`, whose names are
names of this package too; MADs and CM messages are in :mod:`.cm`, Ethernet, IP and UDP in :mod:`.network`.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # loaded when it is used: who records a program needs few of the tables
if TYPE_CHECKING:
    from typing import Any, Final

    from rocekit.wire.headers import (
        AETH,
        ATOMICACKETH,
        ATOMICETH,
        BTH,
        DETH,
        FETH,
        GRH,
        HEADERS,
        IETH,
        IMMDT,
        PLACEMENT_TYPES,
        RDETH,
        RETH,
        SELECTIVITY,
        XRCETH,
        Field,
        Header,
    )
    from rocekit.wire.limits import (
        ATOMIC_BYTES,
        LOCAL_ACK_TIMEOUT_SPREAD,
        MAX_MESSAGE_BYTES,
        PATH_MTU_BYTES,
        PATH_MTU_CODES,
        RETRY_INFINITE,
        RNR_TIMER_US,
        local_ack_timeout_ns,
        psns_of,
        time_code_ns,
    )
    from rocekit.wire.opcodes import (
        ATOMICS,
        CNP_OPCODE,
        ENDS,
        FIRST,
        LAST,
        MIDDLE,
        ONLY,
        OPCODE_NAMES,
        OPCODES,
        OPERATION,
        OWN_RESPONSE,
        READ_DEPTH,
        STARTS,
        TRANSPORTS,
        VENDOR,
        Opcode,
    )
    from rocekit.wire.syndromes import (
        ACK,
        CREDITS,
        NAK,
        NAK_CODES,
        NAK_INVALID_RD,
        NAK_INVALID_REQUEST,
        NAK_REMOTE_ACCESS,
        NAK_REMOTE_OPERATIONAL,
        NAK_SEQUENCE_ERROR,
        NO_CREDITS,
        RNR_NAK,
        SYNDROME_KIND,
        SYNDROME_KINDS,
        SYNDROME_VALUE,
        make_syndrome,
        rnr_wait_ns,
        syndrome_kind,
        syndrome_name,
        syndrome_value,
    )
    from rocekit.wire.verbs_names import (
        CM_EVENTS,
        WC_STATUSES,
    )

ROCE_UDP_PORT: Final = 4791  # A17.3.2.2, assigned by IANA
ROCE_V1_ETHERTYPE: Final = 0x8915  # A16.3
GRH_NEXT_BTH: Final = 0x1B  # 8.3, A16.3: the GRH's next header where a BTH follows
ICRC_BYTES: Final = 4
CNP_RESERVED_BYTES: Final = 16  # A17.9.3: a CNP carries sixteen zero bytes after its BTH
PSN_BITS: Final = 24  # 9.2
QPN_BITS: Final = 24  # 9.2
DEFAULT_PKEY: Final = 0xFFFF  # 10.9.1: the default partition, full member
GSI_QPN: Final = 1  # 13.1: general services, where CM messages come from and go to
MAD_QPNS: Final = (0, GSI_QPN)  # 13.1: QP0 has subnet management

__all__ = [
    "AETH",
    "ATOMICACKETH",
    "ATOMICETH",
    "BTH",
    "DETH",
    "FETH",
    "GRH",
    "HEADERS",
    "IETH",
    "IMMDT",
    "PLACEMENT_TYPES",
    "RDETH",
    "RETH",
    "SELECTIVITY",
    "XRCETH",
    "Field",
    "Header",
    "ATOMIC_BYTES",
    "LOCAL_ACK_TIMEOUT_SPREAD",
    "MAX_MESSAGE_BYTES",
    "PATH_MTU_BYTES",
    "PATH_MTU_CODES",
    "RETRY_INFINITE",
    "RNR_TIMER_US",
    "local_ack_timeout_ns",
    "psns_of",
    "time_code_ns",
    "ATOMICS",
    "CNP_OPCODE",
    "ENDS",
    "FIRST",
    "LAST",
    "MIDDLE",
    "ONLY",
    "OPCODE_NAMES",
    "OPCODES",
    "OPERATION",
    "OWN_RESPONSE",
    "READ_DEPTH",
    "STARTS",
    "VENDOR",
    "TRANSPORTS",
    "Opcode",
    "ACK",
    "CREDITS",
    "NAK",
    "NAK_CODES",
    "NAK_INVALID_RD",
    "NAK_INVALID_REQUEST",
    "NAK_REMOTE_ACCESS",
    "NAK_REMOTE_OPERATIONAL",
    "NAK_SEQUENCE_ERROR",
    "NO_CREDITS",
    "RNR_NAK",
    "SYNDROME_KIND",
    "SYNDROME_KINDS",
    "SYNDROME_VALUE",
    "make_syndrome",
    "rnr_wait_ns",
    "syndrome_kind",
    "syndrome_name",
    "syndrome_value",
    "CM_EVENTS",
    "WC_STATUSES",
    "CNP_RESERVED_BYTES",
    "DEFAULT_PKEY",
    "GRH_NEXT_BTH",
    "GSI_QPN",
    "ICRC_BYTES",
    "MAD_QPNS",
    "PSN_BITS",
    "QPN_BITS",
    "ROCE_UDP_PORT",
    "ROCE_V1_ETHERTYPE",
]

_PARTS: Final = ("verbs_names", "limits", "headers", "opcodes", "syndromes")


def __getattr__(name: str) -> Any:
    if name in __all__:
        for part in _PARTS:
            module = importlib.import_module(f"rocekit.wire.{part}")
            if hasattr(module, name):
                return globals().setdefault(name, getattr(module, name))
    raise AttributeError(f"module 'rocekit.wire' has no attribute {name!r}")
