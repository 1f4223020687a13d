"""Equal addresses and QPNs in two VLANs, virtual networks or tunnels are two connections."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from encapsulated import BY_NAME, around, erspan2, ethernet, geneve, gre, ipv4, tag, udp, vxlan
from places import ROOT

import rocekit
from rocekit.analysis import Analysis
from rocekit.files.pcapng_write import PcapngWriter
from rocekit.files.reader import open_capture
from rocekit.report.text import connection_lines
from rocekit.track.pairs.waiting import way_key

Around = Callable[[bytes, bool], bytes]
"""Puts something around an IP packet; whether its sender is the first one of the capture."""
#: RC with and without the CM, two QPs to one host, UD.
CAPTURES = (
    *("ping-write-clean.pcap", "ping-sr-loss.pcap", "ib_write_bw-clean.pcap", "ib_write_bw-4qp-loss.pcap"),
    *("ping-read-clean.pcap", "ib_send_bw-ud-clean.pcap", "ud-clean.pcap"),
)


def vlan(number: int) -> Around:
    return lambda packet, _: tag(ethernet(packet), 0x8100, number)


def plain(packet: bytes, first: bool) -> bytes:
    return ethernet(packet)


def in_vxlan(vni: int, a: str = "192.0.2.1", b: str = "192.0.2.2") -> Around:
    def put(packet: bytes, first: bool) -> bytes:
        ends = (a, b) if first else (b, a)
        return ethernet(ipv4(17, udp(4789, vxlan(vni, ethernet(packet))), *ends))

    return put


def in_geneve(there: int, back: int) -> Around:
    return lambda packet, first: ethernet(
        ipv4(17, udp(6081, geneve(there if first else back, 0x6558, ethernet(packet))))
    )


def in_gre(key: int) -> Around:
    return lambda packet, _: ethernet(ipv4(47, gre(0x0800, packet, key=key)))


def mirrored(there: int, back: int) -> Around:
    def put(packet: bytes, first: bool) -> bytes:
        session, switch = (there, "192.0.2.1") if first else (back, "192.0.2.9")
        return ethernet(ipv4(47, gre(0x88BE, erspan2(ethernet(packet), session=session), seq=1), src=switch))

    return put


def labelled(there: int, back: int) -> Around:
    def put(packet: bytes, first: bool) -> bytes:
        word = (there if first else back) << 12 | 1 << 8 | 64
        return ethernet(word.to_bytes(4, "big") + packet, 0x8847)

    return put


def one_way_tagged(packet: bytes, first: bool) -> bytes:
    return tag(ethernet(packet), 0x8100, 7) if first else ethernet(packet)


def answers_tagged(packet: bytes, first: bool) -> bytes:
    return ethernet(packet) if first else tag(ethernet(packet), 0x8100, 7)


def write(name: str, out: Path, *around: Around, shift_ns: int = 1_000) -> Path:
    """A capture of ``pcaps`` in each of the encapsulations, one copy a little after the other."""
    frames: list[tuple[int, int, bytes]] = []
    with open_capture(str(ROOT / "pcaps" / name)) as reader:
        source = None
        for batch in reader:
            for i, frame in enumerate(batch.frames()):
                packet = frame[14:]
                if frame[12:14] != b"\x08\0" or packet[9] != 17:
                    continue
                source = source or packet[12:16]
                for n, put in enumerate(around):
                    time_ns = int(batch.time_ns[i]) + n * shift_ns
                    frames.append((time_ns, n, put(packet, packet[12:16] == source)))
    frames.sort(key=lambda one: one[:2])
    with PcapngWriter(out) as writer:
        for time_ns, _, frame in frames:
            writer.write(frame, time_ns)
    return out


def told(analysis: Analysis) -> list[list[object]]:
    """What is known of the transfers of each connection, without what differs with the capture."""
    found = []
    for connection in analysis.connections:
        mine = [t for t in analysis.transfers if t.connection is connection]
        what = [(t.operation, t.side, t.bytes, t.packets, t.first_psn, t.status) for t in mine]
        head = (
            connection.transport,
            connection.ips,
            connection.qpns,
            connection.paired_by,
            connection.packets,
        )
        found.append([head, connection.retransmitted_packets, connection.naks, *what])
    return found


@pytest.mark.parametrize("name", CAPTURES)
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (vlan(10), vlan(20)),
        (vlan(10), plain),
        (in_vxlan(1), in_vxlan(2)),
        (in_vxlan(1), in_vxlan(1, b="192.0.2.3")),
        (in_gre(1), in_gre(2)),
        (in_geneve(5, 5), mirrored(1, 2)),
    ],
    ids=["VLANs", "VLAN and none", "VNIs", "outer addresses", "GRE keys", "tunnel and mirror"],
)
def test_two_are_two_connections(name: str, one: Around, other: Around, tmp_path: Path) -> None:
    alone = told(rocekit.analyze(write(name, tmp_path / "one.pcapng", plain)))
    # Not taken for one conversation at two capture points, which copies equal to the byte are.
    both = rocekit.analyze(write(name, tmp_path / "two.pcapng", one, other), split=False)
    found = told(both)
    assert sorted(map(str, found)) == sorted(map(str, alone * 2))
    around = [str(c.to_dict()["encapsulation"]) for c in both.connections]
    assert len(set(around)) == 2
    # Each packet's story is that of the connection in its own VLAN or tunnel.
    stories = rocekit.packet_stories(both)
    for connection in both.connections:
        rows = np.flatnonzero(stories.connection == connection.id)
        assert {*stories.packets.scope[rows].tolist()} == {*connection.scopes}


@pytest.mark.parametrize("name", CAPTURES)
@pytest.mark.parametrize(
    "put",
    [
        *(one_way_tagged, answers_tagged, mirrored(1, 2), mirrored(3, 3), labelled(16, 17)),
        *(in_geneve(5, 6), in_vxlan(7), vlan(0)),
    ],
    ids=[
        *("tagged one way", "answers tagged", "two sessions", "one session", "labels"),
        *("two VNIs", "VXLAN", "VLAN 0"),
    ],
)
def test_two_directions_are_one_connection(name: str, put: Around, tmp_path: Path) -> None:
    alone = told(rocekit.analyze(write(name, tmp_path / "one.pcapng", plain)))
    found = rocekit.analyze(write(name, tmp_path / "two.pcapng", put))
    assert told(found) == alone
    assert [f.rule for f in found.findings if f.severity == "error"] == [
        f.rule for f in rocekit.analyze(tmp_path / "one.pcapng").findings if f.severity == "error"
    ]


def test_the_json_names_vlan_and_tunnel(tmp_path: Path) -> None:
    path = write("ping-write-clean.pcap", tmp_path / "x.pcapng", vlan(10), in_vxlan(7))
    first, second = (c.to_dict() for c in rocekit.analyze(path, split=False).connections)
    assert (first["vlan"], first["encapsulation"]) == ([10], ["VLAN 10"])
    assert (second["vlan"], second["encapsulation"]) == (
        None,
        ["IPv4 192.0.2.1 → 192.0.2.2", "VXLAN VNI 7"],
    )


def test_the_text_names_vlan_and_tunnel(tmp_path: Path) -> None:
    path = write("ping-write-clean.pcap", tmp_path / "x.pcapng", vlan(10), in_vxlan(7))
    first, second = connection_lines(rocekit.analyze(path, split=False).connections)
    assert first.endswith("VLAN 10")
    assert second.endswith("VXLAN VNI 7")


@pytest.mark.parametrize("name", ["ping-write-clean.pcap", "ib_write_bw-4qp-loss.pcap"])
def test_a_host_s_capture_and_a_switch_s_show_one_connection(name: str, tmp_path: Path) -> None:
    """The host shows packets without the tunnel that the switch shows; each captured some alone."""
    inside = write(name, tmp_path / "host.pcapng", plain)
    outside = write(name, tmp_path / "switch.pcapng", in_vxlan(7))
    alone, both = rocekit.analyze(inside), rocekit.analyze(inside, outside)
    assert told(both) == told(alone)
    assert both.capture.copies > 0


def test_a_tunnel_inside_a_vlan_keeps_both(tmp_path: Path) -> None:
    nested = lambda packet, first: around(packet, BY_NAME["qinq"], BY_NAME["vxlan"])  # noqa: E731
    (connection,) = rocekit.analyze(write("ping-write-clean.pcap", tmp_path / "x.pcapng", nested)).connections
    assert connection.to_dict()["vlan"] == [20, 30]


def test_networks_and_qpns_cannot_be_chosen_whose_keys_have_one_hash() -> None:
    """With 64 bits below a network's number they could: 20,000 packets took as long as millions."""
    for step in (8, 16, 2**21):
        keys = {way_key(1, 2, 0xF00000 - step * n & 0xFFFFFF, n) for n in range(1, 4_000)}
        assert len({hash(key) for key in keys}) > 3_900
    keys = {
        way_key(a, b, qpn, scope)
        for a in (0, 9)
        for b in (0, 9)
        for qpn in (0, 2**24 - 1)
        for scope in range(9)
    }
    assert len(keys) == 2 * 2 * 2 * 9
