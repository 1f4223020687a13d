"""Which of several reasons made a requester go back: the one whose time fits, and when another may be it too.

A local ACK timeout of code 14 is 67,108.864 µs, one of code 8 is 1,048.576 µs (IBA Vol. 1, 9.7.6.1.3).
"""

from __future__ import annotations

import pytest
from story import START_NS, STEP_NS, Story

from rocekit.track.events import Event

TIMEOUT_US = 67_108


def goes_back(*, after_us: int, refused_us: int, refusal: str = "NAK 5", timeout: int = 14) -> Event:
    """PSN 5 comes again ``after_us`` after it was sent, and ``refused_us`` after it was refused."""
    told = (
        Story()
        .connect(5, 900, primary_local_ack_timeout=timeout)
        .lines(
            f"""
            a RC_SEND_ONLY 5 64
            +{after_us - refused_us - STEP_NS // 1000}us
            b {refusal}
            +{refused_us - STEP_NS // 1000}us
            a RC_SEND_ONLY 5 64
            b ACK 5
            """
        )
        .track()
    )
    (event,) = [e for e in told[0].events if e.kind == "repeat"]
    return event


@pytest.mark.parametrize(
    ("nak_us", "cause"), [(12, "nak"), (20, "nak"), (30, "nak"), (75, "timeout"), (1_000, "timeout")]
)
def test_a_captured_nak_explains_a_go_back_unless_the_timer_fits_far_better(nak_us: int, cause: str) -> None:
    """The timer's time is 12 µs away. As a rule, what the capture shows reached the requester."""
    assert goes_back(after_us=TIMEOUT_US + 13, refused_us=nak_us).cause == cause


@pytest.mark.parametrize(("nak_us", "cause"), [(19, "nak"), (22, "nak"), (35, "timeout"), (45, "timeout")])
def test_once_the_requester_s_reaction_is_known_a_worse_fit_of_the_nak_counts_sooner(
    nak_us: int, cause: str
) -> None:
    """It obeyed the first NAK after 1 µs; the timer's time is 12 µs away from the second go-back."""
    told = (
        Story()
        .connect(5, 900)
        .lines(
            f"""
            a RC_SEND_ONLY 5 64
            b NAK 5
            a RC_SEND_ONLY 5 64
            b ACK 5
            a RC_SEND_ONLY 6 64
            +{TIMEOUT_US + 13 - nak_us - 1}us
            b NAK 6
            +{nak_us - 1}us
            a RC_SEND_ONLY 6 64
            b ACK 6
            """
        )
        .track()
    )
    (event,) = [e for e in told[1].events if e.kind == "repeat"]
    assert event.cause == cause


@pytest.mark.parametrize(
    ("late_us", "doubt"), [(30, "timeout"), (60, "timeout"), (120, None), (250, None), (4_000, None)]
)
def test_a_second_reason_is_a_doubt_unless_it_is_clearly_farther_off(late_us: int, doubt: str | None) -> None:
    """The NAK came 20 µs before the go-back; the timer should have run out ``late_us`` before it."""
    event = goes_back(after_us=TIMEOUT_US + late_us, refused_us=20)
    assert (event.cause, event.doubt) == ("nak", doubt)


@pytest.mark.parametrize(
    ("after_us", "cause"), [(50_000, "nak"), (57_000, "nak"), (60_000, "timeout"), (66_000, "timeout")]
)
def test_a_long_timer_may_run_out_an_eighth_early(after_us: int, cause: str) -> None:
    """Kernels count in ticks and round down. The NAK came at once: a requester that obeys it goes back at
    once."""
    assert goes_back(after_us=after_us, refused_us=after_us - 1).cause == cause


@pytest.mark.parametrize(("after_us", "cause"), [(940, "nak"), (1_020, "nak"), (1_060, "timeout")])
def test_a_timer_shorter_than_a_tick_never_runs_out_early(after_us: int, cause: str) -> None:
    assert goes_back(after_us=after_us, refused_us=after_us - 1, timeout=8).cause == cause


@pytest.mark.parametrize(
    ("timer", "timeout", "after_us", "cause"),
    [
        (22, 12, 20_500, "rnr"),  # the wait is 20,480 µs, the timeout 16,777 µs
        (22, 12, 19_000, "rnr"),
        (22, 12, 17_000, "timeout"),
        (12, 7, 650, "rnr"),  # 640 µs and 524 µs
        (12, 7, 600, "timeout"),
    ],
)
def test_a_wait_for_the_receiver_ends_early_only_where_ticks_measure_it(
    timer: int, timeout: int, after_us: int, cause: str
) -> None:
    """A requester that goes back sooner did so for another reason: its timer, which an RNR NAK that was lost
    did not stop.
    """
    refusal = f"RNR 5 timer={timer}"
    event = goes_back(after_us=after_us + 1, refused_us=after_us, refusal=refusal, timeout=timeout)
    assert event.cause == cause


#: A go-back that obeyed the NAK for 8 is under way when a NAK for 9 comes; the capture has an ACK for both.
#: The requester obeyed the NAK before, for 6, after 1000 ns.
TWO_NAKS = """
    0 a RC_SEND_ONLY 5 64
    1000 a RC_SEND_ONLY 6 64
    2000 a RC_SEND_ONLY 7 64
    3000 b NAK 6
    4000 a RC_SEND_ONLY 6 64
    4200 a RC_SEND_ONLY 7 64
    5000 a RC_SEND_ONLY 8 64
    5200 a RC_SEND_ONLY 9 64
    5400 a RC_SEND_ONLY 10 64
    6000 b NAK 8
    {nak} b {second}
    7000 a RC_SEND_ONLY 8 64
    {ack} b ACK 10
    7400 a RC_SEND_ONLY 9 64
    7700 a RC_SEND_ONLY 9 64
    8000 a RC_SEND_ONLY 10 64
    8900 b ACK 10
"""


@pytest.mark.parametrize(
    ("nak", "second", "ack", "duplicates"),
    [
        (6600, "NAK 9", 7200, 0),  # the requester has the NAK since 7600, and not yet the ACK
        (6600, "NAK 9", 6650, 1),  # it had the ACK before
        (6900, "NAK 9", 7200, 1),  # it has not got the NAK
        (6600, "NAK 10", 7200, 1),  # that would not make it go back to 9
    ],
)
def test_a_nak_that_an_ack_followed_is_obeyed_by_a_requester_that_has_only_the_nak_so_far(
    nak: int, second: str, ack: int, duplicates: int
) -> None:
    """Without identifications, what comes right behind itself is sent again only where its time says so."""
    story = Story(ip_ids=False).connect(5, 900)
    for line in sorted(TWO_NAKS.format(nak=nak, second=second, ack=ack).split("\n")[1:-1], key=_at_ns):
        story.now = START_NS + STEP_NS * STEP_NS + _at_ns(line)
        story.lines(line.split(maxsplit=1)[1])
    nine = story.track()[4]
    assert (nine.retransmitted_packets, nine.duplicates) == (2 - duplicates, duplicates)
    causes = [e.cause for e in nine.events if e.kind == "repeat" for _ in range(e.count)]
    assert causes == ["nak"] * (2 - duplicates)


def _at_ns(line: str) -> int:
    return int(line.split()[0])
