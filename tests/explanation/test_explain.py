"""A transfer's story: every step of it at its time, in order, and where the time went."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from story import Story

from rocekit.explanation.transfer import Explanation, explain

JOURNAL = """
    A created
    A modified dest_qpn=0x12 path_mtu=1024 sq_psn=5 dest_ip=10.0.0.2 local_ip=10.0.0.1
"""
LOSS = (
    JOURNAL
    + """
    A wr 7 RDMA_WRITE 4096 rkey=0x1A2B remote_va=0x7f0000001000
    +6us
    a RC_RDMA_WRITE_FIRST  5 1024 of=4096
    a RC_RDMA_WRITE_MIDDLE 6 1024
    a RC_RDMA_WRITE_LAST   8 1024
    +10us
    b NAK 7
    +100us
    a RC_RDMA_WRITE_MIDDLE 7 1024
    a RC_RDMA_WRITE_LAST   8 1024
    +20us
    b ACK 8
    +9us
    A wc 7 SUCCESS opcode=RDMA_WRITE
    """
)


def tell(story: Story, number: int = 0, *, folder: Path | None = None) -> Explanation:
    if folder is not None:
        return story.analyze(folder).explain(number)
    return explain(story.track()[number])


def steps(explanation: Explanation) -> list[str]:
    """``+6.0 PSN 5 first packet``, in µs from the story's beginning."""
    return [f"+{(s.time_ns - explanation.origin_ns) / 1000:.1f} {s.what}" for s in explanation.steps]


def detail(explanation: Explanation, what: str) -> str:
    (found,) = {s.detail for s in explanation.steps if s.what == what}
    return found


def test_a_story_goes_from_the_request_posted_to_the_completion_polled(tmp_path: Path) -> None:
    told = tell(Story(LOSS), folder=tmp_path)
    assert steps(told) == [
        "+0.0 WR 7 posted",
        "+6.0 PSN 5 first packet",
        "+8.0 PSN 7",  # the hole
        "+19.0 PSN 7",  # the NAK
        "+120.0 PSN 7–8 again",
        "+142.0 ACK to PSN 8",
        "+152.0 WC 7 SUCCESS",
    ]
    assert [s.trouble for s in told.steps] == [False, False, True, True, True, False, False]
    assert detail(told, "WR 7 posted") == "RDMA_WRITE, rkey 0x1a2b, remote 0x7f0000001000"
    assert detail(told, "PSN 5 first packet") == "frame 1, 4 packets"
    again = detail(told, "PSN 7–8 again")
    assert "2 packets, 2,048 bytes" in again
    assert "frames 5–6" in again
    assert "frame 7" in detail(told, "ACK to PSN 8")
    assert detail(told, "WC 7 SUCCESS") == "10 µs after the last ACK"


def test_the_title_says_what_went_where_and_how_it_ended(tmp_path: Path) -> None:
    told = tell(Story(LOSS), folder=tmp_path)
    assert told.title == (
        "Transfer 0 · RDMA WRITE 4,096 bytes · 10.0.0.1 QP 0x11 → 10.0.0.2 QP 0x12 · completed in 152 µs"
    )


def test_the_last_line_splits_the_time(tmp_path: Path) -> None:
    told = tell(Story(LOSS), folder=tmp_path)
    assert told.verdict == "software 6 µs · wire 136 µs (102 µs of it for 1 go-back) · completion 10 µs"


def test_the_text_is_title_verdict_findings_steps_and_notes(tmp_path: Path) -> None:
    told = tell(Story(LOSS), folder=tmp_path)
    lines = str(told).splitlines()
    assert lines[0] == told.title
    assert lines[1].strip() == told.verdict
    assert lines[2].startswith("  warning loss: ")
    first = next(n for n, line in enumerate(lines) if line.strip().startswith("+"))
    assert lines[first - 1].strip().startswith("→")
    steps = lines[first : first + 7]
    assert [line.split()[0] for line in steps] == ["+0", "+6", "+8", "+19", "+120", "+142", "+152"]
    assert len({line.index(s.what) for line, s in zip(steps, told.steps, strict=True)}) == 1  # aligned
    assert [line.strip() for line in lines[first + 7 :]] == list(told.notes)


def test_how_the_request_was_matched_is_said(tmp_path: Path) -> None:
    assert "work request matched by PSN arithmetic" in tell(Story(LOSS), folder=tmp_path).notes
    (tmp_path / "x").mkdir()
    by_order = Story(LOSS.replace("sq_psn=5", "").replace("dest_qpn=0x12", ""))
    assert "work request matched by order and length" in tell(by_order, folder=tmp_path / "x").notes


def test_the_findings_of_a_transfer_stand_with_it(tmp_path: Path) -> None:
    told = tell(Story(LOSS), folder=tmp_path)
    assert [f.rule for f in told.findings] == ["loss"]
    assert "loss" in str(told)


def test_the_json_has_the_transfers_keys_and_the_storys(tmp_path: Path) -> None:
    told = tell(Story(LOSS), folder=tmp_path)
    document = json.loads(json.dumps(told.to_dict()))
    assert document.keys() - told.transfer.to_dict().keys() == {
        "timing",
        "steps",
        "verdict",
        "notes",
        "findings",
    }
    assert document["timing"]["recovery_ns"] == 102_000
    assert document["steps"][0]["what"] == "WR 7 posted"
    assert document["steps"][0]["time_ns"] == document["wr"]["posted_ns"]


def test_without_a_journal_the_story_begins_with_the_first_packet() -> None:
    told = tell(Story("a RC_SEND_FIRST 5 1024\n a RC_SEND_LAST 6 1024\n +9us\n b ACK 6"))
    assert steps(told) == ["+0.0 PSN 5 first packet", "+1.0 PSN 6 last packet", "+11.0 ACK to PSN 6"]
    assert told.verdict == "wire 11 µs"
    assert told.notes == ()


def test_a_read_tells_of_its_request_and_its_responses() -> None:
    told = tell(
        Story(
            """
            a RC_RDMA_READ_REQUEST 5 2048
            +9us
            b RC_RDMA_READ_RESPONSE_FIRST 5 1024
            b RC_RDMA_READ_RESPONSE_LAST  6 1024
            """
        )
    )
    assert steps(told) == ["+0.0 PSN 5 READ request", "+11.0 PSN 6 last response"]
    assert "2 response packets" in detail(told, "PSN 5 READ request")
    assert "2,048 bytes" in detail(told, "PSN 6 last response")


def test_a_read_asked_again_in_part_says_from_where_and_why() -> None:
    told = tell(
        Story(
            """
            a RC_RDMA_READ_REQUEST 5 3072
            b RC_RDMA_READ_RESPONSE_FIRST  5 1024
            b RC_RDMA_READ_RESPONSE_LAST   7 1024
            a RC_RDMA_READ_REQUEST 6 2048
            b RC_RDMA_READ_RESPONSE_FIRST  6 1024
            b RC_RDMA_READ_RESPONSE_LAST   7 1024
            """
        )
    )
    assert "READ request sent again, after a missing response," in detail(told, "PSN 6 again")


def test_a_wait_for_a_receive_says_how_long_was_asked_and_how_long_it_took() -> None:
    told = tell(Story("a RC_SEND_ONLY 5 64\n b RNR 5 timer=14\n +2ms\n a RC_SEND_ONLY 5 64\n b ACK 5"))
    assert "wait 1.280 ms" in detail(told, "PSN 5")
    assert "2.001 ms after the RNR NAK" in detail(told, "PSN 5 again")
    assert told.verdict.endswith("of it for 1 RNR wait)")


def test_a_timeout_says_how_long_nothing_came() -> None:
    told = tell(
        Story("a RC_SEND_ONLY 4 4\n b ACK 4\n a RC_SEND_ONLY 5 64\n +70ms\n a RC_SEND_ONLY 5 64\n b ACK 5"), 1
    )
    assert "probably after a timeout (70.00 ms after its last request)" in detail(told, "PSN 5 again")
    assert told.verdict.endswith("of it for 1 go-back)")


def test_what_is_not_needed_is_not_told() -> None:
    told = tell(Story("a RC_SEND_ONLY 5 64\n b ACK 5"))
    assert steps(told) == ["+0.0 PSN 5 only packet", "+1.0 ACK to PSN 5"]


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("a RC_SEND_ONLY_WITH_IMMEDIATE 5 64 immediate=0xAB\n b ACK 5", "SEND with immediate 0xab 64 bytes"),
        ("a RC_SEND_ONLY_WITH_INVALIDATE 5 1 invalidate_rkey=9\n b ACK 5", "SEND with invalidate 0x9 1 byte"),
        ("a RC_RDMA_READ_REQUEST 5 64", "RDMA READ 64 bytes"),
        ("a RC_FETCH_ADD 5", "FETCH ADD 8 bytes"),
        ("a RC_RDMA_WRITE_ONLY 5 64\n b NAK 5 remote_access_error", "failed: NAK remote access error"),
        ("a RC_SEND_FIRST 5 1024\n a RC_SEND_MIDDLE 6 1024", "seen in part"),
        ("a RC_SEND_ONLY 5 64", "unacknowledged"),
        ("a UC_SEND_ONLY 5 64", "sent"),
    ],
)
def test_titles(text: str, title: str) -> None:
    assert title in tell(Story(text)).title


def test_an_atomic_says_the_value_before() -> None:
    told = tell(Story("a RC_FETCH_ADD 5 swap_add=1\n b RC_ATOMIC_ACKNOWLEDGE 5 original=41"))
    assert steps(told) == ["+0.0 PSN 5 only packet", "+1.0 PSN 5 response"]
    assert "0x29" in detail(told, "PSN 5 response")


def test_an_error_completion_is_the_outcome(tmp_path: Path) -> None:
    story = Story(
        JOURNAL
        + """
        A wr 1 RDMA_WRITE 64
        a RC_RDMA_WRITE_ONLY 5 64
        b NAK 5 remote_access_error
        +10us
        A wc 1 REM_ACCESS_ERR vendor_err=0x88
        """
    )
    told = tell(story, folder=tmp_path)
    assert "failed with REM_ACCESS_ERR" in told.title
    assert "0x88" in detail(told, "WC 1 REM_ACCESS_ERR")
    assert [s.trouble for s in told.steps if s.what.startswith("WC")] == [True]


def test_an_unsignaled_request_says_whose_completion_implies_it(tmp_path: Path) -> None:
    story = Story(
        JOURNAL
        + """
        A wr 1 SEND 64 unsignaled
        A wr 2 SEND 64
        a RC_SEND_ONLY 5 64
        a RC_SEND_ONLY 6 64
        b ACK 6
        A wc 2 SUCCESS opcode=SEND
        """
    )
    told = tell(story, folder=tmp_path)
    assert "unsignaled" in detail(told, "WR 1 posted")
    assert any("WC 2 implies" in note for note in told.notes)


def test_psns_are_told_as_they_stand_on_the_wire() -> None:
    told = tell(Story("a RC_SEND_FIRST 0xFFFFFF 1024\n a RC_SEND_LAST 0 1024\n b ACK 0"))
    assert steps(told) == ["+0.0 PSN 16777215 first packet", "+1.0 PSN 0 last packet", "+2.0 ACK to PSN 0"]


def test_a_transfer_that_is_not_there_is_the_callers_mistake(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no transfer 1: there are 1, counted from 0"):
        Story("a RC_SEND_ONLY 5 64").analyze(tmp_path).explain(1)
