"""What a capture that misses packets says of the journal's clocks and work requests: nothing false.

Captures and journals of one machine, recorded with faults that chance drew, have one clock. Where the
captures missed packets, or began later, its clock was said to be up to 0.36 s wrong, and the work request of
one READ was another one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from capture_bytes import Frame, pcap
from story import STEP_NS, Story

import rocekit
from rocekit import wire
from rocekit.correlate import timing
from rocekit.correlate.clocks import Clock
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


#: Requests before the journal began.
BEFORE = 15


def both_ways(folder: Path, delay_ns: int, *, late_ns: int = 0, acks: bool = True) -> dict[str, Any]:
    """The clock of a, which posts SENDs and acknowledges those of b; b's capture alone has a's requests.

    Args:
        delay_ns: how long packets take; late_ns: how much longer the ACKs.
        acks: whether there are ACKs, else both captures have the requests of a alone, and the one at b stands
        first. The first packets, of which the journal has nothing, come the soonest, and a few are held up.
    """
    story = Story(KNOWN if acks else KNOWN.replace("sq_psn=5", f"sq_psn={5 + BEFORE}"))
    for n in range(60):
        if n >= BEFORE or acks:
            story.lines(f"A wr {n} SEND 64")
        story.lines("+2us")
        story.lines(f"a RC_SEND_ONLY {n + 5} 64")
        story.lines("+100us")
        if acks:
            story.lines(f"b RC_SEND_ONLY {n} 64")
            story.lines("+100us")
            story.lines(f"a ACK {n}")
        story.lines("+1ms")
    at_a, at_b = [], []
    for n, shot in enumerate(story.shots):
        packet = shot.data
        of_a, is_ack = packet[29] == 1, packet[42] == wire.OPCODE_NAMES["RC_ACKNOWLEDGE"]
        held_up_ns = late_ns * is_ack if acks else late_ns * (n >= BEFORE) * (1 if n % 8 else 9)
        took_ns = (delay_ns + held_up_ns) * (1 if of_a else -1)
        at_b.append(Frame(packet, shot.time_ns + took_ns))
        if not (acks and of_a and not is_ack):
            at_a.append(Frame(packet, shot.time_ns))
    files = [folder / "a.pcap", folder / "b.pcap"]
    for file, frames in zip(files, (at_a, at_b), strict=True):
        file.write_bytes(pcap(sorted(frames, key=lambda f: f.time_ns), unit="ns"))
    journal = story.write_journal(folder / "story.journal.jsonl")
    found = rocekit.analyze(*(files if acks else files[::-1]), journals=[journal]).document()
    return next(clock for clock in found["journal"]["clocks"] if clock["host"] == "host-a")


def test_a_capture_s_clock_that_nothing_bounds_bounds_no_other_one(tmp_path: Path) -> None:
    """Of two captures of one direction, how far their clocks are apart is not known."""
    found = both_ways(tmp_path, 3_000_000, late_ns=100_000, acks=False)
    assert (found["offset_ns"], found["low_ns"], found["high_ns"]) == (0, None, None)


def test_the_estimated_time_of_a_packet_bounds_no_clock(tmp_path: Path) -> None:
    """The capture at a lacks its requests; its ACKs were held up, so that these seem to have left early."""
    assert both_ways(tmp_path, 20_000)["offset_ns"] == 0
    found = both_ways(tmp_path, 20_000, late_ns=10_000_000)
    assert found["offset_ns"] == 0
    assert found["low_ns"] is None or found["low_ns"] <= 0


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
