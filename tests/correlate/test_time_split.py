"""Where the time of a transfer went whose ACK is in the capture, and did not reach the requester.

rping's WRITE of a run with two captures was sent again after 2.3 s, as its ACK was lost between them; the
story said "wire 3 ms (2.3 s of it for 1 go-back), completion 2.3 s after the last ACK".
"""

from __future__ import annotations

from pathlib import Path

from story import Story

from rocekit.correlate import timing
from rocekit.explanation.transfer import explain

KNOWN = """
    A created
    A modified state=RTR dest_qpn=0x12 path_mtu=1024 dest_ip=10.0.0.2 local_ip=10.0.0.1
    A modified state=RTS sq_psn=5
    A wr 1 SEND 64
"""
LOST_ACK = """
    +5us
    a RC_SEND_ONLY 5 64 ackreq=1
    +3ms
    b ACK 5
    +2s
    a RC_SEND_ONLY 5 64 ackreq=1
"""


def split(text: str) -> tuple[str, list[str]]:
    """The verdict and the last words of each step."""
    tracked, _ = Story(KNOWN + text).correlated()
    explained = explain(tracked[0])
    return explained.verdict, [f"{s.what}: {s.detail}" for s in explained.steps]


def test_a_lost_ack_is_no_completion_that_came_late() -> None:
    tracked, correlation = Story(KNOWN + LOST_ACK + "+40us\nA wc 1 SUCCESS opcode=SEND").correlated()
    time = timing(tracked[0], correlation.clocks)
    assert time.wire_ns >= time.recovery_ns > 2_000_000_000
    assert time.acknowledging_ns is None
    assert time.completion_ns is not None
    assert 40_000 <= time.completion_ns < 50_000
    _, steps = split(LOST_ACK + "+40us\nA wc 1 SUCCESS opcode=SEND")
    assert steps[-1] == "WC 1 SUCCESS: 41 µs after the last packet"
    assert "WR 1 posted" in steps[0]


def test_a_lost_response_of_a_read_is_none_either() -> None:
    text = KNOWN.replace("SEND 64", "RDMA_READ 64") + (
        """
        +5us
        a RC_RDMA_READ_REQUEST 5 rkey=0x1A2B dma_length=64
        b RC_RDMA_READ_RESPONSE_ONLY 5 64 syndrome=0x1F
        +2s
        a RC_RDMA_READ_REQUEST 5 rkey=0x1A2B dma_length=64
        +30us
        b RC_RDMA_READ_RESPONSE_ONLY 5 64 syndrome=0x1F
        +40us
        A wc 1 SUCCESS opcode=RDMA_READ
        """
    )
    tracked, correlation = Story(text).correlated()
    time = timing(tracked[0], correlation.clocks)
    assert time.wire_ns >= time.recovery_ns > 2_000_000_000
    assert time.completion_ns is not None
    assert 40_000 <= time.completion_ns < 50_000
    assert explain(tracked[0]).steps[-1].detail.endswith("after the last response")


def test_an_ack_that_crossed_the_repeat_ends_the_way() -> None:
    crossing = LOST_ACK.replace("+3ms\n    b ACK 5\n    +2s", "+2s\n    b ACK 5\n    +50us")
    tracked, correlation = Story(KNOWN + crossing + "+40us\nA wc 1 SUCCESS opcode=SEND").correlated()
    time = timing(tracked[0], correlation.clocks)
    acked_ns = tracked[0].acked_ns
    assert acked_ns is not None
    assert time.wire_ns == acked_ns - tracked[0].first_ns


def test_a_completion_before_the_repeat_shows_that_the_ack_had_arrived() -> None:
    early = LOST_ACK.replace("+2s", "+40us\n    A wc 1 SUCCESS opcode=SEND\n    +2s")
    _, steps = split(early)
    assert any(step.endswith("after the last ACK") for step in steps)


def test_the_table_of_transfers_splits_the_time_alike(tmp_path: Path) -> None:
    analysis = Story(KNOWN + LOST_ACK + "+40us\nA wc 1 SUCCESS opcode=SEND").analyze(tmp_path)
    transfers = analysis.transfers
    row = transfers.to_polars().to_dicts()[0]
    time = explain(transfers[0], analysis).timing
    assert (row["wire_ns"], row["completion_ns"]) == (time.wire_ns, time.completion_ns)
