"""A repeat sooner than the requester's timer says nothing of that timer.

Between two rxe devices with a timeout of 268 ms and packets overtaken between the captures,
``timeout-too-short`` said that responses "came too late for the timer, which went back after 1.014 ms or
more": the requester had obeyed NAKs, which had been held up for 11 to 14 ms between the captures.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from capture_bytes import Frame
from talk import MS, US, Talk, named, only, settled
from two_points import findings_of_two


def settled_talk() -> Talk:
    t = Talk()
    for psn in range(60):
        settled(t, psn)
        t.wait(200 * US)
    return t


def later(t: Talk, moved: dict[int, int]) -> list[Frame]:
    """The frames, some of them (by number) so much later."""
    return [Frame(f.data, f.time_ns + moved.get(n, 0), f.wirelen) for n, f in enumerate(t.frames, 1)]


@pytest.mark.parametrize(("timeout_ms", "rule"), [(2, "timeout-too-short"), (268, "needless-repeat")])
def test_a_response_is_late_for_a_timer_only_after_a_whole_timeout(
    tmp_path: Path, timeout_ms: int, rule: str
) -> None:
    """A lost packet shows how long this requester's timer is; it may take up to four times (9.7.6.1.3)."""
    t = settled_talk()
    lost = t.send(60)[60]
    t.wait(timeout_ms * MS)
    settled(t, 60)
    t.wait(MS)
    t.send(61)
    ack = t.ack(61)
    t.wait(2 * MS)
    t.send(61)
    t.wait(2 * MS)
    t.ack(61)
    at_b = [f for n, f in enumerate(t.frames, 1) if n != lost]
    findings = findings_of_two(tmp_path, later(t, {ack: 3 * MS}), at_b)
    assert sorted(f.rule for f in findings) == sorted(["tail-loss", rule]), [str(f) for f in findings]


def test_a_nak_that_was_held_up_between_the_captures_is_obeyed_when_it_comes(tmp_path: Path) -> None:
    """61 is overtaken by 62 and 63 and comes in time, 62 is missing then: two NAKs, and one go-back."""
    t = settled_talk()
    first = t.send(60, 9)
    naks = t.nak(61), t.nak(62)
    t.wait(14 * MS)
    t.send(60, 9, only=range(61, 69))
    t.wait(100 * US)
    t.ack(68)
    at_a, at_b = later(t, dict.fromkeys(naks, 13 * MS)), later(t, {first[61]: 3 * US})
    findings = findings_of_two(tmp_path, at_a, at_b)
    assert named(findings) == ["reordering"], [str(f) for f in findings]
    assert only(findings, "reordering").evidence["repeated_packets"] == 8


def test_a_timer_that_runs_out_within_a_message_shows_no_packets_that_the_capture_lacks() -> None:
    """rxe's sender stood still, and its timer ran out 1.6 ms after it went on: no packet is missing."""
    t = settled_talk()
    t.write(60, 16, only=range(60, 71))
    t.ack(70)
    t.write(60, 16, only=[71, 72, 73])
    t.wait(11 * MS)
    t.write(60, 16, only=[74])
    t.wait(1600 * US)
    for psn in (71, 72, 73, 74):
        t.write(60, 16, only=[psn])
        t.wait(100 * US)
        t.ack(74)
    t.write(60, 16, only=[75])
    t.ack(75)
    (found,) = t.findings()
    assert found.rule == "needless-repeat"
    assert found.title.endswith("but nothing shows a loss")
    assert "or_not_in_capture" not in found.evidence


#: Atomics (r), answers (a) and NAKs (n) by PSN, with their times in µs at the requester and the responder: a
#: part of ib_atomic_bw between two rxe devices, where netem let packets overtake others.
HELD_UP: tuple[tuple[str, int, int, int], ...] = (
    *(("r", 24, 0, 60), ("a", 24, 170, 150), ("r", 25, 430, 4120), ("r", 26, 670, 770)),
    *(("n", 25, 1680, 1640), ("r", 25, 1970, 8800), ("r", 26, 1990, 8801), ("r", 27, 2880, 2940)),
    *(("r", 28, 3240, 8802), ("r", 29, 3330, 4110), ("a", 25, 4350, 4280), ("r", 30, 5220, 8790)),
    *(("n", 26, 12000, 9100), ("a", 25, 12010, 9260), ("a", 26, 12011, 11890), ("n", 27, 12012, 11970)),
    *(("r", 26, 12410, 16210), ("r", 27, 12440, 13030), ("r", 28, 12460, 13040), ("r", 29, 12461, 13050)),
    *(("r", 30, 12490, 13051), ("a", 27, 13330, 13180), ("a", 28, 13340, 13240), ("a", 29, 13341, 13280)),
    *(("a", 30, 13342, 13320), ("r", 31, 14090, 14150), ("a", 31, 14270, 14240), ("a", 26, 16340, 16320)),
)


def test_an_atomic_that_comes_again_after_a_nak_that_was_held_up_lost_no_answer(tmp_path: Path) -> None:
    t = settled_talk()
    for psn in range(60, 84):
        settled(t, psn)
        t.wait(200 * US)
    begin, before = t.now + MS, len(t.frames)
    for kind, psn, _, _ in HELD_UP:
        {"r": t.atomic, "a": t.atomic_answer, "n": t.nak}[kind](60 + psn)
    ends = []
    at_ends = [at_a for _, _, at_a, _ in HELD_UP], [at_b for _, _, _, at_b in HELD_UP]
    for times_us in at_ends:
        times = [begin + at * US for at in times_us]
        moved = [Frame(f.data, at, None) for f, at in zip(t.frames[before:], times, strict=True)]
        ends.append([*t.frames[:before], *moved])
    findings = findings_of_two(tmp_path, *ends)
    assert named(findings) == ["reordering"], [str(f) for f in findings]


def test_a_repeat_in_mid_message_behind_its_ack_leaves_open_what_it_is_for() -> None:
    """The ACK may be lost behind the capture, or a NAK be missing in it (``recorded-725``)."""
    t = Talk()
    t.connect()
    for psn in range(20):
        settled(t, psn)
        t.wait(200 * US)
    t.send(20, 20, only=range(20, 30))
    t.wait(100 * US)
    t.ack(29)
    t.wait(20 * MS)
    t.send(20, 20, only=range(27, 40))
    t.wait(100 * US)
    t.ack(39)
    found = next(f for f in t.findings() if f.rule == "needless-repeat")
    assert "nothing in the capture shows a loss" in found.title
    assert "Open:" in found.advice
