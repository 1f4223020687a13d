"""UDP port 4791 without RoCE makes no connection and no corruption; real corruption stays what it is."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("scapy")

from scapy.layers.dns import DNS, DNSQR, DNSRR
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw
from scapy.utils import rdpcap, wrpcap

import rocekit
from rocekit.capture import open_capture
from rocekit.packets.decoder import COUNTED, LEFT_OUT, Decoder

NOT_ROCE = "UDP port 4791, not RoCE"
MACS = {"src": "02:00:00:00:00:01", "dst": "02:00:00:00:00:02"}
#: The hosts of pcaps/ping-write-clean.pcap.
A, B = "10.9.0.1", "10.9.0.2"


def junk(n: int, make: Callable[[random.Random], bytes], src: str = "10.7.0.1", dst: str = A) -> list[Packet]:
    rng = random.Random(n)
    ports = [rng.randrange(2000, 60000) for _ in range(3)]
    return [
        Ether(**MACS) / IP(src=src, dst=dst) / UDP(sport=rng.choice(ports), dport=4791) / Raw(make(rng))
        for _ in range(n)
    ]


def noise(rng: random.Random) -> bytes:
    return rng.randbytes(rng.randrange(1, 400))


def answers(n: int, src: str = "10.7.0.53", dst: str = A) -> list[Packet]:
    """DNS answers to a client that happens to ask from port 4791."""
    rng = random.Random(n)
    name = "storage.example.com"
    return [
        Ether(**MACS)
        / IP(src=src, dst=dst)
        / UDP(sport=53, dport=4791)
        / DNS(
            id=rng.randrange(1 << 16),
            qr=1,
            ra=1,
            qd=DNSQR(qname=name),
            an=DNSRR(rrname=name, rdata="10.7.0.9"),
        )
        for _ in range(n)
    ]


OTHERS: dict[str, Callable[[int], list[Packet]]] = {
    "noise": lambda n: junk(n, noise),
    "zeros": lambda n: junk(n, lambda rng: bytes(64)),
    "text": lambda n: junk(n, lambda rng: b"GET /index.html HTTP/3\r\n" * 3),
    "numbered": lambda n: junk(n, lambda rng: b"\x04\x00\x00\x00" + rng.randbytes(60)),
    "too short": lambda n: junk(n, lambda rng: b"ping"),
    "nothing": lambda n: junk(n, lambda rng: b""),
    "DNS": answers,
    "IPv6": lambda n: [
        Ether(**MACS) / IPv6(src="fd00::9", dst="fd00::1") / UDP(sport=4000, dport=4791) / Raw(p[Raw].load)
        for p in junk(n, noise)
    ],
}


def write(path: Path, packets: Iterable[Packet]) -> Path:
    wrpcap(str(path), list(packets), linktype=1)
    return path


@functools.cache
def clean(pcaps: Path) -> tuple[Packet, ...]:
    return tuple(rdpcap(str(pcaps / "ping-write-clean.pcap")))


@pytest.mark.parametrize("n", [1, 5, 100])
@pytest.mark.parametrize("kind", OTHERS)
def test_a_capture_of_it_alone_has_nothing_to_judge(tmp_path: Path, kind: str, n: int) -> None:
    analysis = rocekit.analyze(write(tmp_path / "x.pcap", OTHERS[kind](n)))
    assert analysis.capture.counts.others == {NOT_ROCE: n}
    assert analysis.capture.counts.roce_packets == analysis.capture.counts.bad_icrc == 0
    assert not analysis.connections
    assert not analysis.findings
    assert str(analysis).splitlines()[0].endswith("No RoCE v2 packets: nothing to judge.")
    assert f"{n} {NOT_ROCE}." in str(analysis)


@pytest.fixture(scope="module")
def alone(pcaps: Path, tmp_path_factory: pytest.TempPathFactory) -> rocekit.Analysis:
    """Of real traffic with nothing beside it."""
    return rocekit.analyze(write(tmp_path_factory.mktemp("alone") / "own.pcap", clean(pcaps)))


@pytest.mark.parametrize("kind", OTHERS)
def test_beside_real_traffic_it_changes_nothing(
    pcaps: Path, alone: rocekit.Analysis, tmp_path: Path, kind: str
) -> None:
    """The hosts of the DNS answers and of the junk include one that speaks RoCE."""
    own, others = clean(pcaps), OTHERS[kind](50)
    places = np.linspace(0, len(own), len(others)).astype(int).tolist()
    mixed = list(own)
    for place, packet in reversed(list(zip(places, others, strict=True))):
        packet.time = own[min(place, len(own) - 1)].time
        mixed.insert(place, packet)
    both = rocekit.analyze(write(tmp_path / "x.pcap", mixed))
    assert both.capture.counts.others == alone.capture.counts.others | {NOT_ROCE: 50}
    assert both.capture.counts.roce_packets == alone.capture.counts.roce_packets
    assert [f.rule for f in both.findings] == [f.rule for f in alone.findings]
    for one, other in zip(alone.connections, both.connections, strict=True):
        assert one.to_dict() == other.to_dict()
    assert len(both.packets) == len(alone.packets)
    assert f"not judged: 50 frames: {NOT_ROCE}, probably another program's" in str(both)


def damaged(packet: Packet, byte: int, mask: int) -> Packet:
    """The packet with bits of its BTH changed."""
    whole = bytearray(bytes(packet))
    whole[14 + 20 + 8 + byte] ^= mask
    made = Ether(bytes(whole))
    made.time = packet.time
    return made


@pytest.mark.parametrize("at", [0, 30, -1])
@pytest.mark.parametrize(("byte", "mask"), [(0, 0x80), (1, 0x0F), (3, 0x01), (9, 0x40)])
def test_a_corrupted_roce_packet_stays_one_wherever_it_is(
    pcaps: Path, tmp_path: Path, at: int, byte: int, mask: int
) -> None:
    """Its BTH may have become impossible; its hosts exchange valid packets."""
    packets = list(clean(pcaps))
    packets[at] = damaged(packets[at], byte, mask)
    analysis = rocekit.analyze(write(tmp_path / "x.pcap", packets))
    counts = analysis.capture.counts
    assert (counts.roce_packets, counts.bad_icrc) == (len(packets), 1)
    assert NOT_ROCE not in counts.others
    assert "icrc-bad" in {f.rule for f in analysis.findings}


def test_a_dns_server_that_speaks_roce_too_is_told_apart(pcaps: Path, tmp_path: Path) -> None:
    packets = [*clean(pcaps), *answers(20, src=B)]
    counts = rocekit.analyze(write(tmp_path / "x.pcap", packets)).capture.counts
    assert counts.others == {NOT_ROCE: 20}
    assert counts.bad_icrc == 0


def test_a_capture_without_valid_icrcs_is_still_roce(pcaps: Path, tmp_path: Path) -> None:
    """A capture point before the NIC fills in the ICRC: every BTH is possible."""
    packets = []
    for packet in clean(pcaps):
        whole = bytearray(bytes(packet))
        whole[-4:] = bytes(4)
        made = Ether(bytes(whole))
        made.time = packet.time
        packets.append(made)
    analysis = rocekit.analyze(write(tmp_path / "x.pcap", packets))
    assert analysis.capture.counts.roce_packets == len(packets)
    assert analysis.connections


@pytest.mark.parametrize("size", [1, 3, 7])
def test_the_batches_do_not_matter(pcaps: Path, tmp_path: Path, size: int) -> None:
    """A corrupted packet before its hosts are known is held back, and given at the end."""
    own = clean(pcaps)
    path = write(tmp_path / "x.pcap", [damaged(own[0], 1, 0x0F), *junk(9, noise), *own[1:20]])
    for kind, given in ((LEFT_OUT, 20), (COUNTED, 29)):
        decoder = Decoder(foreign=kind)
        packets = 0
        with open_capture(path, batch_frames=size) as capture:
            for batch in capture:
                packets += len(decoder.decode(batch))
        rest = decoder.rest()
        assert rest is not None
        assert rest.frame.tolist() == [1]
        assert packets + (len(rest) if kind == LEFT_OUT else 0) == given
        counts = decoder.counts
        assert (counts.roce_packets, counts.bad_icrc, counts.others) == (20, 1, {NOT_ROCE: 9})


def test_cut_junk_is_told_apart_by_what_is_left(pcaps: Path, tmp_path: Path) -> None:
    """Without their ends, packets have no ICRC to check."""
    packets = []
    for packet in [*clean(pcaps), *junk(100, lambda rng: rng.randbytes(300))]:
        whole = bytes(packet)
        made = Ether(whole[:80])
        made.time, made.wirelen = packet.time, len(whole)
        packets.append(made)
    analysis = rocekit.analyze(write(tmp_path / "x.pcap", packets))
    assert analysis.capture.counts.others == {NOT_ROCE: 100}
    assert {frozenset(c.ips) for c in analysis.connections} == {frozenset((A, B))}


def test_decode_prints_every_packet_and_says_which_are_no_roce(pcaps: Path, tmp_path: Path) -> None:
    from click.testing import CliRunner

    from rocekit.cli import rocekit as command

    both = write(tmp_path / "both.pcap", [*clean(pcaps), *junk(7, noise)])
    said = CliRunner().invoke(command, ["decode", str(both)])
    assert said.stderr == f"7 frames of these: {NOT_ROCE}, probably another program's\n"
    alone = write(tmp_path / "alone.pcap", junk(7, noise))
    said = CliRunner().invoke(command, ["decode", str(alone)])
    assert said.exit_code == 0
    assert len(said.stdout.splitlines()) == 8
    assert said.stderr.startswith(f"No RoCE v2 packets: nothing to judge. 7 frames: 7 {NOT_ROCE}.")


def test_several_captures_keep_a_corrupted_packet_that_comes_first(pcaps: Path, tmp_path: Path) -> None:
    own = clean(pcaps)
    first = write(tmp_path / "a.pcap", [damaged(own[0], 1, 0x0F), *own[1:]])
    second = write(tmp_path / "b.pcap", [*own[:40], *junk(5, noise)])
    counts = rocekit.analyze(first, second).capture.counts
    assert (counts.roce_packets, counts.bad_icrc) == (len(own) + 40, 1)
    assert counts.others == {NOT_ROCE: 5}
