"""What else than RoCE is in a capture: each kind of frame is counted as what Scapy made of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("scapy")

from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import (
    ICMPv6EchoRequest,
    ICMPv6ND_NS,
    IPv6,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment,
    IPv6ExtHdrHopByHop,
)
from scapy.layers.l2 import ARP, GRE, LLC, CookedLinux, Dot1Q, Dot3, Ether
from scapy.layers.vxlan import VXLAN
from scapy.packet import Packet, Raw
from scapy.utils import wrpcap

from rocekit.capture import open_capture
from rocekit.packets.decoder import Counts, Decoder
from rocekit.packets.other_frames import NOT_READ

MACS = {"src": "02:00:00:00:00:01", "dst": "02:00:00:00:00:02"}
E4 = Ether(**MACS) / IP(src="10.9.0.1", dst="10.9.0.2")
E6 = Ether(**MACS) / IPv6(src="fd00::1", dst="fd00::2")
ROCE = UDP(sport=50000, dport=4791) / Raw(bytes.fromhex("0400ffff00000011800000016162636431323334"))
INNER4 = IP(src="1.1.1.1", dst="2.2.2.2") / ROCE
INNER6 = IPv6(src="fd00::3", dst="fd00::4") / ROCE


def typed(ethertype: int, content: bytes = bytes(60)) -> Packet:
    return Ether(type=ethertype, **MACS) / Raw(content)


def protocol(number: int, content: bytes = bytes(60)) -> Packet:
    return Ether(**MACS) / IP(src="10.9.0.1", dst="10.9.0.2", proto=number) / Raw(content)


def udp(port: int, content: Packet | None = None, source: int = 50000) -> Packet:
    return E4 / UDP(sport=source, dport=port) / (Raw(bytes(60)) if content is None else content)


#: The header of a G-PDU (3GPP TS 29.281, 5.1).
GTP = Raw(bytes.fromhex("30ff003000000001"))
KINDS: dict[str, list[Packet]] = {
    "ARP": [Ether(**MACS) / ARP(), Ether(**MACS) / Dot1Q(vlan=5) / ARP()],
    "LLDP": [typed(0x88CC)],
    "MACsec": [typed(0x88E5)],
    "FCoE": [typed(0x8906)],
    "PPPoE": [typed(0x8864)],
    "MPLS": [typed(0x8847)],
    "PAUSE or PFC": [typed(0x8808, b"\x00\x01\xff\xff" + bytes(56))],
    "RoCE v1 without a BTH": [typed(0x8915, bytes(IPv6(nh=6) / Raw(bytes(40))))],
    "EtherType 0x1234": [typed(0x1234)],
    "LLC (spanning tree and others)": [Dot3(**MACS) / LLC() / Raw(bytes(40))],
    "TCP": [E4 / TCP(dport=80) / Raw(bytes(90)), E6 / TCP(), E6 / IPv6ExtHdrHopByHop() / TCP()],
    "ICMP": [E4 / ICMP()],
    "ICMPv6": [E6 / ICMPv6EchoRequest()],
    "IPv6 neighbour discovery": [E6 / ICMPv6ND_NS()],
    "SCTP": [protocol(132)],
    "OSPF": [protocol(89)],
    "IPsec ESP": [protocol(50, os.urandom(60))],
    "other IP protocols": [protocol(200)],
    "GRE": [E4 / GRE() / IP() / TCP()],
    "VXLAN": [udp(4789, VXLAN(vni=5) / E4 / TCP())],
    # Tunnels that are not decoded.
    "GTP-U with UDP 4791 inside": [udp(2152, GTP / INNER4), udp(2152, GTP / INNER6)],
    "GRE in UDP with UDP 4791 inside": [udp(4754, Raw(bytes.fromhex("00000800")) / INNER4)],
    "UDP 4793 (Ultra Ethernet)": [udp(4793)],
    "IPsec behind NAT": [udp(4500)],
    "sFlow": [udp(6343)],
    "DNS": [udp(53), udp(50000, source=53)],
    "UDP to other ports": [udp(12345), E6 / IPv6ExtHdrDestOpt() / UDP(sport=1, dport=2)],
    "UDP from port 4791, not to it": [udp(12345, source=4791)],
    "later fragments of UDP datagrams": [
        Ether(**MACS) / IP(proto=17, frag=100) / Raw(bytes(60)),
        E6 / IPv6ExtHdrFragment(offset=100, nh=17) / Raw(bytes(60)),
    ],
    "IP with a damaged header": [typed(0x0800, b"\x41" + bytes(59)), typed(0x86DD)],
}


def counts_of(path: Path) -> Counts:
    decoder = Decoder()
    with open_capture(path) as capture:
        for batch in capture:
            decoder.decode(batch)
    return decoder.counts


def counted(tmp_path: Path, *packets: Packet, linktype: int | None = None) -> dict[str, int]:
    path = tmp_path / "x.pcap"
    wrpcap(str(path), list(packets), linktype=linktype)
    counts = counts_of(path)
    assert sum(counts.others.values()) == len(packets) - counts.roce_packets
    return counts.others


@pytest.mark.parametrize("kind", KINDS)
def test_a_frame_is_counted_as_what_it_is(tmp_path: Path, kind: str) -> None:
    assert counted(tmp_path, *KINDS[kind]) == {kind: len(KINDS[kind])}


def test_kinds_are_counted_together_and_roce_beside_them(tmp_path: Path) -> None:
    every = [packet for packets in KINDS.values() for packet in packets]
    found = counted(tmp_path, *every, E4 / ROCE, *every)
    assert found == {kind: 2 * len(packets) for kind, packets in KINDS.items()}


def test_cooked_and_raw_captures_are_counted_too(tmp_path: Path) -> None:
    assert counted(tmp_path, CookedLinux(proto=0x0800) / IP() / TCP(), linktype=113) == {"TCP": 1}
    assert counted(tmp_path, IP() / TCP(), linktype=101) == {"TCP": 1}
    assert counted(tmp_path, IPv6() / TCP(), linktype=101) == {"TCP": 1}
    assert counted(tmp_path, Raw(b"\x99" * 40), linktype=101) == {"IP with a damaged header": 1}


@pytest.mark.parametrize(
    ("packet", "keep", "kind"),
    [
        (E4 / ROCE, 10, "cut before the end of their headers"),
        (E4 / ROCE, 30, "cut before the end of their headers"),
        (E4 / ROCE, 36, "cut before the end of their headers"),
        (E6 / ROCE, 50, "cut before the end of their headers"),
        (udp(2152, GTP / INNER4), 64, "GTP-U, cut before what is inside"),
    ],
)
def test_frames_cut_before_what_tells_are_said_to_be_cut(
    tmp_path: Path, packet: Packet, keep: int, kind: str
) -> None:
    whole = bytes(packet)
    cut = Ether(whole[:keep]) if keep >= 14 else Raw(whole[:keep])
    cut.wirelen = len(whole)
    path = tmp_path / "x.pcap"
    wrpcap(str(path), [cut], linktype=1)
    assert counts_of(path).others == {kind: 1}
    assert kind in NOT_READ


def test_every_cut_of_every_kind_is_counted_once(tmp_path: Path) -> None:
    """Whatever a frame is and wherever it ends: it is counted, and nothing is read behind its end."""
    cuts = []
    for packet in (packets[0] for packets in KINDS.values()):
        whole = bytes(packet)
        for keep in range(1, len(whole), 3):
            cut = Raw(whole[:keep])
            cut.wirelen = len(whole)
            cuts.append(cut)
    counted(tmp_path, *cuts, linktype=1)


def test_tshark_names_the_same_protocols(tmp_path: Path, tshark: str) -> None:
    names = {
        "ARP": "arp",
        "LLDP": "lldp",
        "MACsec": "macsec",
        "TCP": "tcp",
        "ICMP": "icmp",
        "SCTP": "sctp",
        "OSPF": "ospf",
        "IPsec ESP": "esp",
        "FCoE": "fcoe",
        "VXLAN": "vxlan",
    }
    together = tmp_path / "all.pcap"
    wrpcap(str(together), [packet for kind in names for packet in KINDS[kind]])
    command = [tshark, "-r", str(together), "-T", "fields", "-e", "frame.protocols"]
    said = iter(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    for kind, layer in names.items():
        of_kind = [next(said).split(":") for _ in KINDS[kind]]
        assert all(layer in protocols for protocols in of_kind), (kind, of_kind)
        path = tmp_path / f"{layer}.pcap"
        wrpcap(str(path), KINDS[kind])
        assert counts_of(path).others == {kind: len(KINDS[kind])}
    assert list(said) == []
