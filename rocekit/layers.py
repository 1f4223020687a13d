"""Scapy layers for RoCE: BTH, GRH, every header that may follow, and the MADs of connection management.

    from scapy.layers.inet import IP, UDP
    from scapy.layers.l2 import Ether
    from rocekit.layers import BTH, RETH, roce

    to_peer = Ether() / IP(dst="10.0.0.2") / UDP(sport=50000)
    to_peer / BTH(opcode="RC_RDMA_WRITE_ONLY", dest_qpn=17, psn=5) / RETH(dma_length=3) / b"abc"
    to_peer / roce("RC_ACKNOWLEDGE", dest_qpn=17, psn=5, msn=1)

Importing this module binds UDP port 4791 and EtherType 0x8915. How headers, pad and ICRC are filled in is
described in :mod:`rocekit.wire.scapy_layers` and :mod:`rocekit.wire.scapy_cm`.
"""

from __future__ import annotations

from rocekit.wire.scapy_cm import (
    CM_APR,
    CM_DREP,
    CM_DREQ,
    CM_LAP,
    CM_LAYERS,
    CM_MRA,
    CM_REJ,
    CM_REP,
    CM_REQ,
    CM_RTU,
    CM_SIDR_REP,
    CM_SIDR_REQ,
    IP_CM,
    MAD,
)
from rocekit.wire.scapy_layers import (
    AETH,
    BTH,
    DETH,
    FETH,
    GRH,
    ICRC_INVALID,
    ICRC_UNCHECKED,
    ICRC_VALID,
    IETH,
    LAYERS,
    RDETH,
    RETH,
    XRCETH,
    AtomicAckETH,
    AtomicETH,
    CNPPadding,
    ImmDt,
    roce,
)

__all__ = [
    "BTH",
    "GRH",
    "RDETH",
    "DETH",
    "XRCETH",
    "RETH",
    "AtomicETH",
    "AETH",
    "AtomicAckETH",
    "ImmDt",
    "IETH",
    "FETH",
    "CNPPadding",
    "LAYERS",
    "roce",
    "ICRC_VALID",
    "ICRC_INVALID",
    "ICRC_UNCHECKED",
    "MAD",
    "IP_CM",
    "CM_LAYERS",
    "CM_REQ",
    "CM_MRA",
    "CM_REJ",
    "CM_REP",
    "CM_RTU",
    "CM_DREQ",
    "CM_DREP",
    "CM_SIDR_REQ",
    "CM_SIDR_REP",
    "CM_LAP",
    "CM_APR",
]
