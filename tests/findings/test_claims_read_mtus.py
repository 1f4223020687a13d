"""READs whose requester counts PSNs with another path MTU than its responder: none need be lost."""

from __future__ import annotations

import pytest
from talk import MS, Talk, only

from rocekit.findings import Finding
from rocekit.wire import make_syndrome

LENGTH = 4096


def read(t: Talk, psn: int, length: int = LENGTH, va: int = 0x1000) -> int:
    return t.packet("RC_RDMA_READ_REQUEST", psn, rkey=1, remote_va=va, dma_length=length, ackreq=1)


def smaller_at_the_requester(times: int) -> Talk:
    """As of rdma_rxe: 1,024 there, 2,048 at the responder, so that each READ draws a NAK and comes again."""
    t = Talk()
    t.mtu = 2048
    read(t, 100)
    t.responses(100, 2)
    ahead = 104
    for psn in range(102, 102 + 2 * times, 2):
        read(t, ahead)
        t.nak(psn)
        read(t, psn)
        t.responses(psn, 2)
        ahead = psn + 4
    return t


def larger_at_the_requester(times: int) -> Talk:
    """1,024 at the requester, and 512 at the responder, which takes every second READ for a repeat."""
    t = Talk()
    t.mtu = 512
    for psn in range(100, 100 + 8 * times, 8):
        read(t, psn)
        t.responses(psn, 8)
        read(t, psn + 4)
        for p in range(psn + 4, psn + 8):
            last = {"syndrome": make_syndrome(0)} if p == psn + 7 else {}
            t.packet(f"RC_RDMA_READ_RESPONSE_{'LAST' if last else 'MIDDLE'}", p, bytes(512), by="b", **last)
    return t


def told(findings: list[Finding]) -> list[str]:
    return [f.rule for f in findings if f.rule != "capture-truncated"]


def test_a_smaller_one_at_the_requester() -> None:
    findings = smaller_at_the_requester(8).findings()
    found = only(findings, "mtu-mismatch")
    assert told(findings) == ["mtu-mismatch"]
    assert (found.evidence["requester_path_mtu"], found.evidence["responder_path_mtu"]) == (1024, 2048)
    assert "probably counts the PSNs of its READs with a path MTU of 1,024" in found.title
    assert not found.evidence["proven"]


def test_a_larger_one_at_the_requester() -> None:
    findings = larger_at_the_requester(6).findings()
    found = only(findings, "mtu-mismatch")
    assert told(findings) == ["mtu-mismatch"]
    assert (found.evidence["requester_path_mtu"], found.evidence["responder_path_mtu"]) == (1024, 512)
    assert found.evidence["proven"]
    assert "probably" not in found.title


def test_two_lost_requests_do_not_show_a_path_mtu() -> None:
    """Of READs one behind the other two were lost; after the NAK all come again where they were."""
    t = Talk()
    t.mtu = 2048
    for psn in (100, 110):
        for p in (0, 4, 6, 8):
            read(t, psn + p)
        t.responses(psn, 2)
        t.nak(psn + 2)
        for p in (2, 4, 6, 8):
            read(t, psn + p)
        for p in (2, 4, 6, 8):
            t.responses(psn + p, 2)
    assert told(t.findings()) == ["loss"]


def test_many_lost_requests_are_losses_where_others_were_not() -> None:
    t = Talk()
    t.mtu = 2048
    for psn in range(100, 200, 8):
        for p in (0, 4):
            read(t, psn + p)
        t.responses(psn, 2)
        t.nak(psn + 2)
        for p in (2, 4, 6):
            read(t, psn + p)
        for p in (2, 4, 6):
            t.responses(psn + p, 2)
    assert told(t.findings()) == ["loss"]


@pytest.mark.parametrize("skip", [1, 2, 5])
def test_the_rest_of_a_read_is_not_the_next_one(skip: int) -> None:
    """A requester that misses responses asks for the rest at the PSN of the first that it misses (9.4.4)."""
    t = Talk()
    t.mtu = 512
    for psn in range(100, 140, 8):
        t.read(psn, 8)
        t.responses(psn, 8, lost=range(psn + skip, psn + 8))
        t.wait(5 * MS)
        t.read(psn, 8, skip=skip)
        t.responses(psn, 8, skip=skip)
    assert "mtu-mismatch" not in told(t.findings())


def test_a_capture_of_every_second_packet_shows_none() -> None:
    t = Talk()
    t.mtu = 2048
    for psn in range(100, 160, 4):
        read(t, psn)
        t.responses(psn, 2)
    assert "mtu-mismatch" not in told(t.findings())
