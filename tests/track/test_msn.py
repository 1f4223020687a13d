"""Messages that the capture shows without an end and a beginning, told apart by the responder's MSN."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest
from story import Shot, Story, track

from rocekit.capture import open_capture
from rocekit.explanation.transfer import explain
from rocekit.soft.testbed import run
from rocekit.soft.testbed.program import random_program

HOLE = """
    a RC_SEND_ONLY   4 64
    b ACK 4 msn=11
    a RC_SEND_FIRST  5 1024
    a RC_SEND_MIDDLE 6 1024
    {}                           # 7 and 8
    a RC_SEND_MIDDLE 9 1024
    a RC_SEND_LAST   10 100
    b ACK 10 msn={}
"""
IN_PARTS = [
    "a SEND 5..6 2048 bytes in 2 packets: incomplete",
    "a SEND 9..10 1124 bytes in 2 packets: incomplete",
]


def test_two_sends_whose_end_and_beginning_are_missing_are_two() -> None:
    told = track(HOLE.format("", 13))
    assert told.transfers[1:] == IN_PARTS
    assert told.missed == ["7..8"]
    assert not any(t.maybe_several for t in told.tracker.transfers)


def test_one_send_that_misses_its_middle_is_one() -> None:
    told = track(HOLE.format("", 12))
    assert told.transfers[1:] == ["a SEND 5..10 5220 bytes in 6 packets: acked"]
    assert not told[1].maybe_several


def test_a_responder_that_does_not_count_leaves_it_open() -> None:
    told = track(HOLE.format("", 11))
    assert told.transfers[1:] == ["a SEND 5..10 5220 bytes in 6 packets: acked"]
    assert told[1].maybe_several


def test_more_messages_than_the_hole_can_hold_are_no_count() -> None:
    assert track(HOLE.format("", 14))[1].maybe_several


def test_the_count_runs_over_24_bits() -> None:
    text = HOLE.format("", 1).replace("msn=11", "msn=0xffffff")
    assert track(text).transfers[1:] == IN_PARTS


def test_without_a_count_in_front_of_the_hole_it_stays_open() -> None:
    text = HOLE.format("", 13).replace("b ACK 4 msn=11", "")
    told = track(text)
    assert told.transfers[1:] == ["a SEND 5..10 5220 bytes in 6 packets: acked"]
    assert told[1].maybe_several


def test_from_the_beginning_of_the_connection_the_count_is_known() -> None:
    text = HOLE.format("", 3).replace("b ACK 4 msn=11", "")
    told = Story().connect(4, 900).lines(text).track()
    assert told.transfers[1:] == IN_PARTS


def test_an_acknowledgement_in_the_hole_shows_the_end_at_once() -> None:
    told = track(
        """
        a RC_SEND_ONLY   4 64
        b ACK 4 msn=11
        a RC_SEND_FIRST  5 1024
        a RC_SEND_MIDDLE 6 1024
        b ACK 7 msn=12
        a RC_SEND_MIDDLE 9 1024
        a RC_SEND_LAST   10 100
        b ACK 10 msn=13
        """
    )
    assert told.transfers[1:] == IN_PARTS


def test_a_refusal_counts_as_well() -> None:
    told = track(HOLE.format("", 13).replace("b ACK 10", "a RC_SEND_ONLY 11 64\nb RNR 11"))
    assert told.transfers[1:3] == IN_PARTS


def test_one_missing_packet_cannot_be_an_end_and_a_beginning() -> None:
    told = track(HOLE.format("a RC_SEND_MIDDLE 7 1024", 11))
    assert told.transfers[1:] == ["a SEND 5..10 5220 bytes in 6 packets: acked"]
    assert not told[1].maybe_several


def test_whole_messages_in_the_hole_are_counted_with_it() -> None:
    told = track(
        """
        a RC_SEND_ONLY   4 64
        b ACK 4 msn=11
        a RC_SEND_FIRST  5 1024
        a RC_SEND_LAST   10 100   # an end, two messages, a beginning and something more
        a RC_SEND_ONLY   11 64
        b ACK 11 msn=16
        """
    )
    assert told.transfers[1:] == [
        "a SEND 5 1024 bytes: incomplete",
        "a SEND 10 100 bytes: incomplete",
        "a SEND 11 64 bytes: acked",
    ]


BEHIND_A_READ = """
    a RC_SEND_ONLY         4 64
    b ACK 4 msn=11
    a RC_RDMA_READ_REQUEST 5 2048
    {}                            # 6
    a RC_SEND_ONLY         7 64
    b ACK 7 msn={}
"""


def test_a_read_does_not_take_what_the_capture_missed_behind_it() -> None:
    """Two PSNs fit 2,048 bytes at a path MTU of 1,024, but three messages were counted."""
    told = track(BEHIND_A_READ.format("", 14))
    assert [told[1].last_psn - told[1].first_psn, told[1].maybe_several] == [0, False]
    assert told.missed == ["6"]


def test_a_read_takes_what_the_count_leaves_to_it() -> None:
    told = track(BEHIND_A_READ.format("", 13))
    assert [told[1].packets, told[1].maybe_several] == [2, False]
    assert told.tracker.connections[0].path_mtu == 1024


def test_without_a_count_a_read_may_be_shorter() -> None:
    told = track(BEHIND_A_READ.format("", 11))
    assert [told[1].packets, told[1].maybe_several] == [2, True]
    assert told.tracker.connections[0].path_mtu is None


@pytest.mark.parametrize(
    ("msn", "packets"),
    [
        (
            4,
            1,
        ),  # with one message behind it the READ takes 4 PSNs, which leave 1, or 2, which leave 3: unknown
        (5, 2),  # two messages do not fit behind 4 PSNs
        (6, 2),
        (3, 1),  # none behind it, but it cannot take 5
    ],
)
def test_a_read_leaves_a_psn_to_each_message_behind_it(msn: int, packets: int) -> None:
    """The path MTU is above 256, for a packet has 300 bytes, and at most 1,024, as the CM agreed."""
    told = (
        Story()
        .connect(4, 900)
        .lines(
            f"""
            a RC_SEND_ONLY          4 300
            b ACK 4 msn=1
            a RC_RDMA_READ_REQUEST  5 2048
            # 6 to 9 missed by the capture
            a RC_SEND_ONLY         10 64
            b ACK 10 msn={msn}
            """
        )
        .track()
    )
    assert told[1].packets == packets


def test_a_packet_that_no_smaller_path_mtu_carries_tells_a_reads_size() -> None:
    text = BEHIND_A_READ.format("", 11).replace("a RC_SEND_ONLY         4 64", "a RC_SEND_ONLY 4 1500")
    told = track(text)
    assert [told[1].packets, told[1].maybe_several] == [1, False]


def test_a_response_to_a_request_that_the_capture_missed_tells_no_other_reads_size() -> None:
    """The fourth PSN from the READ fits a path MTU of 512, where a message of 2,048 bytes ends with 512."""
    text = """
        a RC_RDMA_READ_REQUEST         5 2048
        b RC_RDMA_READ_RESPONSE_LAST   8 100
        a RC_RDMA_READ_REQUEST         9 64
        b RC_RDMA_READ_RESPONSE_ONLY   9 64
    """
    told = track(text)
    assert told.tracker.connections[0].path_mtu is None
    assert told[0].packets == 1


def test_an_explanation_says_that_it_may_be_several(tmp_path: Path) -> None:
    analysis = Story(HOLE.format("", 11)).analyze(tmp_path)
    told = explain(analysis.transfers[1], analysis)
    assert any("more than one message" in note for note in told.notes)
    assert told.to_dict()["maybe_several"] is True


def thinned(seed: int, folder: Path, share: float) -> tuple[Counter[str], list[str]]:
    """A run without faults, of which the capture misses some packets: what became of messages that it may
    have run together.
    """
    path = folder / f"{seed}.pcapng"
    result = run(random_program(seed), (), seed, capture=path)
    random, story = Random(seed), Story()
    with open_capture(path) as reader:
        for batch in reader:
            kept = [i for i in range(len(batch)) if random.random() >= share]
            story.shots += [Shot(batch.frame(i), int(batch.time_ns[i])) for i in kept]
    seen, wrong, parts = Counter[str](), [], Counter[tuple[int, int]]()
    messages = [truth.request for truth in result.transfers()]
    for t in story.track().tracker.transfers:
        if t.operation not in ("SEND", "WRITE", "READ"):
            continue
        own = [
            m
            for m in messages
            if m.responder == tuple(t.responder.values())
            and m.first_psn <= t.last_psn
            and m.last_psn >= t.first_psn
        ]
        if not t.is_read:  # a READ without an answer is as long as its request
            parts.update((m.responder.qpn, m.first_psn) for m in own)
        seen["said to be several"] += t.maybe_several
        seen["holes"] += len(t.missing) > 1
        if len(own) > 1 and not t.maybe_several:
            wrong.append(f"seed {seed}: {t} PSN {t.first_psn}–{t.last_psn} is {len(own)} messages")
        seen["in parts"] += not t.started
    wrong += [
        f"seed {seed}: the message at PSN {psn} is {n} transfers" for (_, psn), n in parts.items() if n > 1
    ]
    return seen, wrong


@pytest.mark.parametrize("share", [0.1, 0.4])
def test_no_transfer_holds_two_messages_unless_it_says_so_nor_half_a_one(
    share: float, tmp_path: Path
) -> None:
    seen, wrong = Counter[str](), []
    for seed in range(120):
        found, errors = thinned(seed, tmp_path, share)
        seen += found
        wrong += errors
    assert not wrong, "\n".join(wrong)
    print(seen)
    assert seen["in parts"] > 20
    assert seen["holes"] > seen["said to be several"]
