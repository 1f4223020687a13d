"""What a capture that misses packets says of the journal's clocks and work requests: nothing false.

Captures and journals of one machine, recorded with faults that chance drew, have one clock. Where the
captures missed packets, or began later, its clock was said to be up to 0.36 s wrong, and the work request of
one READ was another one.
"""

from __future__ import annotations

from story import STEP_NS, Story

from rocekit.correlate import timing
from rocekit.correlate.clocks import Clock, bound_clocks
from rocekit.explanation.transfer import explain

KNOWN = """
    A created
    A modified state=RTR dest_qpn=0x12 path_mtu=1024 dest_ip=10.0.0.2 local_ip=10.0.0.1
    A modified state=RTS sq_psn=5
"""
UNANSWERED = """
    A wr 1 SEND 64
    +2us
    a RC_SEND_ONLY 5 64
    +20us
    A wc 1 SUCCESS opcode=SEND
    +5ms
"""
ROUND = """
    A wr 1 SEND 64
    +2us
    a RC_SEND_ONLY 5 64
    b ACK 5
    A wc 1 SUCCESS opcode=SEND
"""


def clock(text: str) -> Clock:
    return Story(KNOWN + text).correlated()[1].clocks["host-a"]


def test_an_ack_of_two_messages_may_be_later_than_the_first_one_s_completion() -> None:
    """The capture missed the ACK of PSN 5."""
    found = clock(
        UNANSWERED
        + """
        A wr 2 SEND 64
        +2us
        a RC_SEND_ONLY 6 64
        b ACK 6
        +3us
        A wc 2 SUCCESS opcode=SEND
        """
    )
    assert (found.offset_ns, found.crossed_ns) == (0, 0)
    assert (found.low_ns, found.high_ns) == (-2_000, 3_000 + STEP_NS)


def test_an_ack_behind_the_completion_is_not_what_completed_a_message() -> None:
    """So the time until the ACK is unknown, and none of the times is negative."""
    tracked, correlation = Story(
        KNOWN
        + UNANSWERED
        + """
        A wr 2 SEND 64
        +2us
        a RC_SEND_ONLY 6 64
        b ACK 6
        """
    ).correlated()
    split = timing(tracked[0], correlation.clocks)
    assert split.acknowledging_ns is None
    assert split.wire_ns == 0
    assert split.completion_ns == 20_000 + STEP_NS
    steps = [(step.what, step.detail) for step in explain(tracked[0]).steps]
    assert ("WC 1 SUCCESS", "21 µs after the last packet") in steps
    assert split.total_ns == 22_000 + STEP_NS


def test_before_a_capture_began_a_message_may_have_been_acknowledged() -> None:
    """It has PSN 6 sent again, for which the first ACK had come; and not PSN 5."""
    later = "".join(
        f"""
        A wr {n} SEND 64
        +2us
        a RC_SEND_ONLY {n + 4} 64
        b ACK {n + 4}
        +{n}us
        A wc {n} SUCCESS opcode=SEND
        """
        for n in range(3, 8)
    )
    found = clock(
        f"""
        A wr 1 SEND 64
        A wr 2 SEND 64
        +20us
        A wc 1 SUCCESS opcode=SEND
        A wc 2 SUCCESS opcode=SEND
        +5ms
        a RC_SEND_ONLY 6 64
        b ACK 6
        {later}
        """
    )
    assert (found.offset_ns, found.crossed_ns) == (0, 0)
    assert found.high_ns is not None
    assert found.high_ns > 0


def test_the_rest_of_a_message_is_of_the_work_request_with_its_psns() -> None:
    """The capture began in the middle of the second of three equal messages."""
    tracked, correlation = Story(
        KNOWN
        + """
        A wr 1 SEND 3000
        A wr 2 SEND 3000
        A wr 3 SEND 3000
        a RC_SEND_LAST 10 952
        b ACK 10
        """
    ).correlated()
    assert tracked[0].wr is not None
    assert (tracked[0].wr.wr_id, tracked[0].wr.matched_by) == (2, "psn")
    assert [wr.wr_id for wr in correlation.unmatched] == [1, 3]


def test_a_message_that_no_work_request_begins_is_of_none_of_several() -> None:
    """Its PSNs are not those of a whole message: the path MTU of the journal is not the packets' one."""
    tracked, _ = Story(
        KNOWN
        + """
        A wr 1 SEND 3000
        A wr 2 SEND 3000
        A wr 3 SEND 3000
        a RC_SEND_FIRST 9 1024
        a RC_SEND_MIDDLE 10 1024
        a RC_SEND_LAST 11 952
        b ACK 11
        """
    ).correlated()
    assert tracked[0].wr is None


def test_a_capture_s_clock_that_nothing_bounds_bounds_no_other_one() -> None:
    """Of two captures of one direction, how far their clocks are apart is not known."""
    tracked, correlation = Story(KNOWN + ROUND).correlated()
    assert tracked[0].wr is not None
    matches = [(tracked[0].wr, tracked[0])]
    assert bound_clocks(matches, [], unaligned={0})["host-a"] == Clock("host-a", 0, None, None)
    assert bound_clocks(matches, [])["host-a"].low_ns == -2_000
    assert correlation.clocks["host-a"].low_ns == -2_000


def test_a_completion_before_the_last_packet_is_shown_without_a_time_between() -> None:
    """No ACK is in the capture, and the message was sent once more though it was completed."""
    tracked, correlation = Story(
        KNOWN
        + UNANSWERED
        + """
        a RC_SEND_ONLY 5 64
        """
    ).correlated()
    assert timing(tracked[0], correlation.clocks).completion_ns is None
    steps = [(step.what, step.detail) for step in explain(tracked[0]).steps]
    assert ("WC 1 SUCCESS", "before the last packet") in steps
