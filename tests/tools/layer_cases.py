"""Networks to send RoCE over, and field values, that several tests of the Scapy layers share."""

from __future__ import annotations

from typing import Any

from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import NoPayload

from rocekit import wire
from rocekit.layers import BTH, GRH

MACS = {"src": "02:00:00:00:00:01", "dst": "02:00:00:00:00:02"}
NETWORKS = {
    "IPv4": lambda: Ether(**MACS) / IP(src="10.0.0.1", dst="10.0.0.2", tos=0x89, ttl=9) / UDP(sport=50001),
    "IPv6": lambda: Ether(**MACS) / IPv6(src="fd00::1", dst="fd00::2", tc=2, fl=0x12345) / UDP(sport=50001),
    "RoCE v1": lambda: Ether(**MACS) / GRH(sgid="fe80::1", dgid="10.0.0.2", tclass=9, flow_label=0x54321),
}
OPCODES = [o.name for o in wire.OPCODES.values()]


def chain(packet: Any) -> list[str]:
    """Names of the layers from the BTH up."""
    layer, names = packet[BTH], []
    while not isinstance(layer, NoPayload):
        names.append(type(layer).__name__)
        layer = layer.payload
    return names


def values_for(opcode: wire.Opcode) -> dict[str, Any]:
    """Different bits for every field of an opcode's headers."""
    values: dict[str, Any] = {}
    for header in (wire.BTH, *opcode.headers):
        for i, f in enumerate(header.fields):
            if f.name not in ("opcode", "padcount", "version") and not f.reserved:
                values[f.name] = (0xA5C3_96E1_7B2D_48F5 * (i + 3)) >> 7 & (1 << f.bits) - 1
    return values
