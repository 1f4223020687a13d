"""ICMP errors, ARP and ND frames for tests, built by Scapy."""

from __future__ import annotations

from scapy.layers.inet import ICMP, IP
from scapy.layers.inet6 import (
    ICMPv6DestUnreach,
    ICMPv6ND_NA,
    ICMPv6ND_NS,
    ICMPv6PacketTooBig,
    ICMPv6TimeExceeded,
    IPv6,
)
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Raw

_IP_AT = 14
#: Where an error goes to. Without it Scapy would ask this machine's network for it, and wait.
_ROUTER_TO = "02:00:00:00:00:01"
_ICMPV6 = {1: ICMPv6DestUnreach, 2: ICMPv6PacketTooBig, 3: ICMPv6TimeExceeded}


def icmp(
    about: bytes, kind: int, code: int, *, source: str, mtu: int = 0, quoted: int | None = None, to: str = ""
) -> bytes:
    """An ICMP error about a frame: the frame's IP packet, or its first ``quoted`` bytes, is quoted."""
    quote = about[_IP_AT:][:quoted]
    if about[_IP_AT] >> 4 == 4:
        outer = IP(src=source, dst=to or IP(about[_IP_AT:]).src)
        error = ICMP(type=kind, code=code) if not mtu else ICMP(type=kind, code=code, nexthopmtu=mtu)
        return bytes(Ether(dst=_ROUTER_TO, type=0x0800) / outer / error / Raw(quote))
    outer6 = IPv6(src=source, dst=to or IPv6(about[_IP_AT:]).src)
    error6 = _ICMPV6[kind](mtu=mtu) if kind == 2 else _ICMPV6[kind](code=code)
    return bytes(Ether(dst=_ROUTER_TO, type=0x86DD) / outer6 / error6 / Raw(quote))


def arp(sender: str, target: str, *, reply: bool = False) -> bytes:
    """``sender`` asks for ``target``, or replies to it."""
    to = "02:00:00:00:00:01" if reply else "ff:ff:ff:ff:ff:ff"
    return bytes(Ether(dst=to) / ARP(op=2 if reply else 1, psrc=sender, pdst=target) / Raw(bytes(18)))


def solicit(sender: str, target: str) -> bytes:
    """``sender`` asks for ``target`` by ND."""
    return bytes(
        Ether(dst="33:33:ff:00:00:02") / IPv6(src=sender, dst="ff02::1:ff00:2") / ICMPv6ND_NS(tgt=target)
    )


def advertise(target: str, to: str) -> bytes:
    """``target`` replies to a solicitation."""
    return bytes(Ether(dst="02:00:00:00:00:01") / IPv6(src=target, dst=to) / ICMPv6ND_NA(tgt=target))
