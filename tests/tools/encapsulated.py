"""Encapsulations put together by hand from the RFCs and vendors' layouts, one function each.

A ``Step`` takes an IP packet or an Ethernet frame and puts something around it. Steps can be stacked.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable
from dataclasses import dataclass

from handmade import MACS, checksum

A, B = "192.0.2.1", "192.0.2.2"
A6, B6 = "2001:db8::1", "2001:db8::2"
IP, ETHERNET = "ip", "ethernet"


@dataclass(frozen=True)
class Step:
    """One encapsulation.

    Attributes:
        takes, gives: ``IP`` or ``ETHERNET``.
        layers: its text; protocol: tshark's name in ``frame.protocols``.
    """

    name: str
    takes: str
    gives: str
    put: Callable[[bytes], bytes]
    layers: tuple[str, ...] = ()
    protocol: str = ""


def ipv4(protocol: int, body: bytes, src: str = A, dst: str = B, *, options: bytes = b"") -> bytes:
    length = 20 + len(options)
    head = struct.pack(">BBHHHBB", 0x40 | length // 4, 0, length + len(body), 9, 0, 64, protocol)
    addresses = ipaddress.ip_address(src).packed + ipaddress.ip_address(dst).packed
    total = checksum(head + bytes(2) + addresses + options)
    return head + total.to_bytes(2, "big") + addresses + options + body


def ipv6(protocol: int, body: bytes, src: str = A6, dst: str = B6) -> bytes:
    head = struct.pack(">IHBB", 6 << 28, len(body), protocol, 64)
    return head + ipaddress.ip_address(src).packed + ipaddress.ip_address(dst).packed + body


def udp(port: int, body: bytes) -> bytes:
    return struct.pack(">HHHH", 51000, port, 8 + len(body), 0) + body


def summed(ip: bytes) -> bytes:
    """An IPv4 packet with the checksum of its UDP header."""
    pseudo = ip[12:20] + struct.pack(">HH", 17, len(ip) - 20)
    total = checksum(pseudo + ip[20:] + bytes(len(ip) % 2)) or 0xFFFF
    return ip[:26] + total.to_bytes(2, "big") + ip[28:]


def ethertype_of(packet: bytes) -> int:
    return 0x0800 if packet[0] >> 4 == 4 else 0x86DD


def ethernet(body: bytes, kind: int | None = None) -> bytes:
    return MACS + struct.pack(">H", ethertype_of(body) if kind is None else kind) + body


def tag(frame: bytes, *words: int) -> bytes:
    """16-bit words between the addresses and the EtherType."""
    return frame[:12] + struct.pack(f">{len(words)}H", *words) + frame[12:]


def gre(
    kind: int, body: bytes, *, key: int | None = None, seq: int | None = None, check: bool = False
) -> bytes:
    flags = 0x2000 * (key is not None) | 0x1000 * (seq is not None) | 0x8000 * check
    rest = b"" if key is None else key.to_bytes(4, "big")
    rest += b"" if seq is None else seq.to_bytes(4, "big")
    if not check:
        return struct.pack(">HH", flags, kind) + rest + body
    whole = struct.pack(">HHHH", flags, kind, 0, 0) + rest + body
    total = checksum(whole + bytes(len(whole) % 2))
    return whole[:4] + total.to_bytes(2, "big") + whole[6:]


def vxlan(vni: int, body: bytes) -> bytes:
    return struct.pack(">II", 8 << 24, vni << 8) + body


def gpe(vni: int, following: int, body: bytes) -> bytes:
    return struct.pack(">II", 0x0C << 24 | following, vni << 8) + body


def geneve(vni: int, kind: int, body: bytes, options: bytes = b"") -> bytes:
    return struct.pack(">BBHI", len(options) // 4, 0, kind, vni << 8) + options + body


def erspan2(body: bytes, session: int = 7, vlan: int = 5) -> bytes:
    return struct.pack(">HHI", 0x1000 | vlan, session, 3) + body


def erspan3(body: bytes, *, session: int = 8, sub: bytes = b"", kind: int = 0) -> bytes:
    head = struct.pack(">HHIHH", 0x2005, session, 123456, 0, kind << 10 | 0x40 | (1 if sub else 0))
    return head + sub + body


def label(number: int, bottom: bool = True) -> bytes:
    return (number << 12 | bottom << 8 | 64).to_bytes(4, "big")


def segments(packet: bytes) -> bytes:
    """A segment routing header (RFC 8754) of two segments before an IPv4 or IPv6 packet."""
    following = 4 if packet[0] >> 4 == 4 else 41
    lists = ipaddress.ip_address("5f00:0:2::1").packed + ipaddress.ip_address("5f00:0:3::1").packed
    return struct.pack(">BBBBBBH", following, 4, 4, 1, 1, 0, 0) + lists + packet


def ppp(packet: bytes) -> int:
    return 0x0021 if packet[0] >> 4 == 4 else 0x0057


def inner(packet: bytes) -> int:
    return 4 if packet[0] >> 4 == 4 else 41


OUTER = f"IPv4 {A} → {B}"
OUTER6 = f"IPv6 {A6} → {B6}"
TIMESTAMP = struct.pack(">II", 0x5 << 26 | 99, 12345)

STEPS = (
    Step("vlan", ETHERNET, ETHERNET, lambda f: tag(f, 0x8100, 3 << 13 | 100), ("VLAN 100",), "vlan"),
    Step("qinq", ETHERNET, ETHERNET,
         lambda f: tag(f, 0x88A8, 20, 0x8100, 30), ("VLAN 20", "VLAN 30"), "vlan"),
    Step("vn-tag", ETHERNET, ETHERNET, lambda f: tag(f, 0x8926, 0x0001, 0x0002), ("VN-Tag",), "vntag"),
    Step("e-tag", ETHERNET, ETHERNET, lambda f: tag(f, 0x893F, 0, 0x1001, 0), ("E-Tag",), "etag"),
    Step("pbb", ETHERNET, ETHERNET, lambda f: ethernet(struct.pack(">I", 77) + f, 0x88E7), ("PBB I-SID 77",)),
    Step("mpls", IP, ETHERNET, lambda p: ethernet(label(16, False) + label(17) + p, 0x8847),
         ("MPLS 16", "MPLS 17"), "mpls"),
    Step("mpls-ethernet", ETHERNET, ETHERNET,
         lambda f: ethernet(label(18) + f, 0x8847), ("MPLS 18",), "mpls"),
    Step("mpls-control-word", ETHERNET, ETHERNET, lambda f: ethernet(label(19) + bytes(4) + f, 0x8847),
         ("MPLS 19", "control word"), "mpls"),
    Step("pppoe", IP, ETHERNET,
         lambda p: ethernet(struct.pack(">BBHHH", 0x11, 0, 9, len(p) + 2, ppp(p)) + p, 0x8864),
         ("PPPoE session 9",), "pppoes"),
    Step("ethernet", IP, ETHERNET, ethernet),
    Step("ip-in-ip", IP, IP, lambda p: ipv4(inner(p), p), (OUTER, "IP-in-IP"), "ip"),
    Step("ip-options", IP, IP,
         lambda p: ipv4(inner(p), p, options=b"\x01\x01\x01\x00"), (OUTER, "IP-in-IP"), "ip"),
    Step("ip-in-ipv6", IP, IP, lambda p: ipv6(inner(p), p), (OUTER6, "IP-in-IP"), "ipv6"),
    Step("srv6", IP, IP, lambda p: ipv6(43, segments(p), dst="5f00:0:3::1"),
         (f"IPv6 {A6} → 5f00:0:3::1", "SRv6"), "ipv6.routing"),
    Step("destination-options", IP, IP, lambda p: ipv6(60, bytes([inner(p), 0, 1, 4]) + bytes(4) + p),
         (OUTER6,), "ipv6.dstopts"),
    Step("gre", IP, IP, lambda p: ipv4(47, gre(ethertype_of(p), p)), (OUTER, "GRE"), "gre"),
    Step("gre-key", IP, IP, lambda p: ipv4(47, gre(ethertype_of(p), p, key=5, seq=1, check=True)),
         (OUTER, "GRE key 5"), "gre"),
    Step("gre-ethernet", ETHERNET, IP, lambda f: ipv6(47, gre(0x6558, f)), (OUTER6, "GRE"), "gre"),
    Step("gre-mpls", IP, IP,
         lambda p: ipv4(47, gre(0x8847, label(33) + p)), (OUTER, "GRE", "MPLS 33"), "mpls"),
    Step("nvgre", ETHERNET, IP, lambda f: ipv4(47, gre(0x6558, f, key=0x123456 << 8 | 0xAB)),
         (OUTER, f"NVGRE VSID {0x123456}"), "gre"),
    Step("erspan-1", ETHERNET, IP, lambda f: ipv4(47, gre(0x88BE, f)), (OUTER, "GRE", "ERSPAN I"), "gre"),
    Step("erspan-2", ETHERNET, IP, lambda f: ipv4(47, gre(0x88BE, erspan2(f), seq=1)),
         (OUTER, "GRE", "ERSPAN II session 7"), "erspan"),
    Step("erspan-3", ETHERNET, IP, lambda f: ipv4(47, gre(0x22EB, erspan3(f), seq=1)),
         (OUTER, "GRE", "ERSPAN III session 8"), "erspan"),
    Step("erspan-3-time", ETHERNET, IP, lambda f: ipv4(47, gre(0x22EB, erspan3(f, sub=TIMESTAMP), seq=1)),
         (OUTER, "GRE", "ERSPAN III session 8"), "erspan"),
    Step("erspan-3-ip", IP, IP,
         lambda p: ipv4(47, gre(0x22EB, erspan3(p)[:10] + bytes([2 << 2, 0]) + p, seq=1)),
         (OUTER, "GRE", "ERSPAN III session 8")),
    Step("vxlan", ETHERNET, IP, lambda f: ipv4(17, udp(4789, vxlan(7, f))), (OUTER, "VXLAN VNI 7"), "vxlan"),
    Step("vxlan-linux", ETHERNET, IP, lambda f: ipv6(17, udp(8472, vxlan(8, f))), (OUTER6, "VXLAN VNI 8")),
    Step("vxlan-gpe", ETHERNET, IP,
         lambda f: ipv4(17, udp(4790, gpe(9, 3, f))), (OUTER, "VXLAN-GPE VNI 9"), "udp"),
    Step("vxlan-gpe-ip", IP, IP, lambda p: ipv4(17, udp(4790, gpe(9, 1 if inner(p) == 4 else 2, p))),
         (OUTER, "VXLAN-GPE VNI 9"), "udp"),
    Step("nsh", ETHERNET, IP,
         lambda f: ipv4(17, udp(4790, gpe(9, 4, struct.pack(">HBBI", 6, 1, 3, 1 << 8) + bytes(16) + f))),
         (OUTER, "VXLAN-GPE VNI 9", "NSH"), "nsh"),
    Step("geneve", ETHERNET, IP,
         lambda f: ipv4(17, udp(6081, geneve(11, 0x6558, f))), (OUTER, "Geneve VNI 11"),
         "geneve"),
    Step("geneve-options", ETHERNET, IP,
         lambda f: ipv4(17, udp(6081, geneve(12, 0x6558, f, struct.pack(">HBBI", 0x102, 0x80, 1, 99)))),
         (OUTER, "Geneve VNI 12"), "geneve"),
    Step(
        "geneve-checksum",
        ETHERNET,
        IP,
        lambda f: summed(ipv4(17, udp(6081, geneve(14, 0x6558, f)))),
        (OUTER, "Geneve VNI 14"),
        "geneve",
    ),
    Step("geneve-ip", IP, IP, lambda p: ipv4(17, udp(6081, geneve(13, ethertype_of(p), p))),
         (OUTER, "Geneve VNI 13"), "geneve"),
    Step("mpls-udp", IP, IP, lambda p: ipv4(17, udp(6635, label(40) + p)), (OUTER, "MPLS 40"), "mpls"),
    Step("etherip", ETHERNET, IP, lambda f: ipv4(97, b"\x30\0" + f), (OUTER, "EtherIP"), "etherip"),
    Step("ethernet-in-ipv6", ETHERNET, IP, lambda f: ipv6(143, f), (OUTER6,), "ipv6"),
)  # fmt: skip
BY_NAME = {step.name: step for step in STEPS}


def around(packet: bytes, *steps: Step) -> bytes:
    """An Ethernet frame: the packet with the steps around it, the innermost first."""
    kind, whole = IP, packet
    for step in steps:
        if step.takes != kind:
            whole, kind = (ethernet(whole), ETHERNET) if step.takes == ETHERNET else (whole, kind)
        assert step.takes == kind
        whole, kind = step.put(whole), step.gives
    return ethernet(whole) if kind == IP else whole


def layers(*steps: Step) -> list[str]:
    """The text of what ``around`` puts around a packet."""
    return [text for step in reversed(steps) for text in step.layers]


def fits(below: Step, above: Step) -> bool:
    """Whether the upper step can go around what the lower one gives."""
    return not (above.takes == IP and below.gives == ETHERNET)
