"""perftest says its QPs before a run and again behind it; what came before is of no run that follows."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from capture_bytes import Frame, pcap
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether
from talk import US, A, B, Talk

import rocekit
from rocekit.capture import open_capture

#: Messages of a run.
RUN = 20


def say(talk: Talk, psn: int, port: int) -> None:
    """Both ends say their QPs and the PSNs that they start with."""
    for number, (here, there, qpn) in enumerate([(A, B, 0x11), (B, A, 0x12)]):
        gid = (bytes(10) + b"\xff\xff" + socket.inet_aton(here)).hex(":") + ":"
        text = f"0000:0001:{qpn:06x}:{psn + 1000 * number:06x}:00001a2b:00007f0000001000:{gid}00000000:"
        ports = (port, 18515) if here == A else (18515, port)
        ends = IP(src=here, dst=there) / TCP(sport=ports[0], dport=ports[1], flags="PA", seq=1)
        talk.wait(50 * US)
        talk.raw(bytes(Ether() / ends / text.encode()))


def run(talk: Talk, psn: int) -> None:
    for n in range(RUN):
        talk.wait(10 * US)
        talk.write(psn + n)
        talk.ack(psn + n, msn=n + 1)


def analyzed(folder: Path, frames: list[Frame], *, runs_back: bool = False) -> rocekit.Analysis:
    """``runs_back``: the first two stand the other way round in the file, and are put in order by time."""
    if runs_back:
        frames = [frames[1], frames[0], *frames[2:]]
    (folder / "x.pcap").write_bytes(pcap(frames, unit="ns"))
    return rocekit.analyze(folder / "x.pcap")


@pytest.mark.parametrize("runs_back", [False, True])
def test_a_capture_that_was_begun_during_a_run_has_one_connection(tmp_path: Path, *, runs_back: bool) -> None:
    """The second exchange, the first one of the capture, names no QPs that begin."""
    talk = Talk()
    run(talk, 700)
    say(talk, 500, 40000)
    found = analyzed(tmp_path, talk.frames, runs_back=runs_back)
    assert [(c.packets, c.qpns, c.paired_by) for c in found.connections] == [(2 * RUN, [0x11, 0x12], "psn")]
    assert [t.status for t in found.transfers] == ["acked"] * RUN
    assert not found.findings


@pytest.mark.parametrize("runs_back", [False, True])
def test_each_run_of_the_same_qp_numbers_has_its_own_packets(tmp_path: Path, *, runs_back: bool) -> None:
    talk = Talk()
    run(talk, 700)
    say(talk, 90_000, 40000)
    run(talk, 90_000)
    say(talk, 90_000, 40000)  # behind the run: the same once more
    say(talk, 7_000, 40001)
    run(talk, 7_000)
    found = analyzed(tmp_path, talk.frames, runs_back=runs_back)
    assert [(c.packets, c.paired_by) for c in found.connections] == [
        (2 * RUN, "psn"),
        (2 * RUN, "handshake"),
        (2 * RUN, "handshake"),
    ]
    assert [t.connection.id for t in found.transfers] == [n // RUN for n in range(3 * RUN)]
    assert not found.findings


@pytest.mark.parametrize("name", ["rdma_write_bw", "rdma_read_bw", "rdma_atomic_bw"])
@pytest.mark.parametrize("share", [0.3, 0.4, 0.5, 0.6])
def test_captures_of_others_without_their_beginning_have_one_connection(
    others: Path, tmp_path: Path, name: str, share: float
) -> None:
    with open_capture(others / f"{name}.pcap") as reader:
        frames = [(batch.frame(i), int(batch.time_ns[i])) for batch in reader for i in range(len(batch))]
    cut = [Frame(data, time_ns) for data, time_ns in frames[int(share * len(frames)) :]]
    found = analyzed(tmp_path, cut)
    assert [c.packets for c in found.connections] == [found.capture.counts.roce_packets]
