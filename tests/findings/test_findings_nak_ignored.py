"""``nak-ignored``: NAKs that came while the requester was repeating, and that it did not obey."""

from __future__ import annotations

from pathlib import Path

import pytest
from capture_bytes import Frame, pcap
from talk import MS, TIMEOUT, A, Talk, agreed, settled

import rocekit
from rocekit.findings import Finding

RULE = "nak-ignored"
US = 1_000


def _talk(**fields: object) -> Talk:
    t = Talk()
    t.common = dict(fields)
    return settled(t, 98)


def _ignore_one(t: Talk) -> dict[str, int]:
    """PSN 100 is lost twice: the first NAK is obeyed, the second, in the repeat, is not."""
    t.send(99)
    t.ack(99)
    t.write(100, 4, lost={100})
    t.nak(100)
    t.wait(100 * US)
    t.write(100, 4, lost={101})
    marks = {"nak": t.nak(101)}
    t.wait(4 * TIMEOUT)
    marks["repeat"] = t.write(100, 4, only=(101, 102, 103))[101]
    t.ack(103)
    return marks


def _only(findings: list[Finding]) -> Finding:
    [found] = [f for f in findings if f.rule == RULE]
    return found


def _none(t: Talk, **rest: object) -> None:
    assert RULE not in [f.rule for f in t.findings(**rest)]


def test_the_wait_for_the_timer_and_the_requester_are_named() -> None:
    t = _talk()
    marks = _ignore_one(t)
    found = _only(t.findings())
    assert found.severity == "warning"
    assert found.title.startswith(f"{A} QP 0x11 probably ignored a NAK while it was repeating")
    assert found.frames == (marks["nak"], marks["repeat"])
    assert found.evidence["count"] == found.evidence["waits"] == 1
    assert found.evidence["psns"] == [101]
    assert found.evidence["waited_ns"] == 4 * TIMEOUT + US
    assert found.evidence["obeyed_naks"] == 1
    assert found.evidence["obeyed_median_ns"] == 101 * US
    assert found.evidence["waited_beyond_pace_ns"] == 4 * TIMEOUT - 100 * US
    assert found.evidence["cases"][0]["nak_frame"] == marks["nak"]
    assert "added_ns" not in found.evidence  # the loss has it
    assert "Open: a NAK that was lost or delayed" in found.advice


def test_identification_0_changes_nothing() -> None:
    t = _talk(identification=0)
    _ignore_one(t)
    assert _only(t.findings()).evidence["waited_ns"] == 4 * TIMEOUT + US


def test_the_agreed_timeout_is_compared() -> None:
    t = Talk()
    t.connect()
    settled(t, 98)
    _ignore_one(t)
    assert _only(t.findings(pairs=agreed())).evidence["configured_timeout_us"] == pytest.approx(67108.864)


def test_a_nak_that_is_obeyed_while_repeating_is_none() -> None:
    t = _talk()
    t.send(99)
    t.ack(99)
    t.write(100, 4, lost={100})
    t.nak(100)
    t.wait(100 * US)
    t.write(100, 4, lost={101})
    t.nak(101)
    t.wait(100 * US)
    t.write(100, 4, only=(101, 102, 103))
    t.ack(103)
    _none(t)


def test_a_nak_of_the_first_pass_may_just_be_lost() -> None:
    t = _talk()
    t.write(99, 5, lost={100})
    t.nak(100)
    t.wait(4 * TIMEOUT)
    t.write(99, 5, only=(100, 101, 102, 103))
    t.ack(103)
    _none(t)


def test_without_the_nak_there_is_only_the_loss() -> None:
    t = _talk()
    marks = _ignore_one(t)
    del t.frames[marks["nak"] - 1]
    _none(t)


def test_one_direction_shows_nothing() -> None:
    t = _talk()
    _ignore_one(t)
    requests = [f for f in t.frames if f.data[26:30] == bytes((10, 9, 0, 1))]
    t.frames = requests
    _none(t)


def _analyze(folder: Path, *captures: list[Frame]) -> list[Finding]:
    names = []
    for number, frames in enumerate(captures):
        names.append(folder / f"{number}.pcap")
        names[-1].write_bytes(pcap(sorted(frames, key=lambda f: f.time_ns), unit="ns"))
    return list(rocekit.analyze(*names).findings)


def _at_b(t: Talk) -> list[Frame]:
    """The same traffic at B, 300 ns away: requests come later, responses were sent earlier."""
    signs = [1 if f.data[26:30] == bytes((10, 9, 0, 1)) else -1 for f in t.frames]
    return [Frame(f.data, f.time_ns + s * 300, f.wirelen) for f, s in zip(t.frames, signs, strict=True)]


def test_two_captures_prove_it(tmp_path: Path) -> None:
    t = _talk()
    _ignore_one(t)
    found = _only(_analyze(tmp_path, t.frames, _at_b(t)))
    assert "probably" not in found.title
    assert "Open:" not in found.advice
    assert found.evidence["waited_ns"] == 4 * TIMEOUT + US


def test_the_capture_at_the_requester_must_have_what_it_sends(tmp_path: Path) -> None:
    """It has what comes only: a repeat that was lost on its way is in neither capture."""
    t = _talk()
    _ignore_one(t)
    comes = [frame for frame in t.frames if frame.data[29] == 2]
    found = _only(_analyze(tmp_path, comes, _at_b(t)))
    assert "probably ignored" in found.title
    assert "so do repeats that were lost" in found.advice


def test_two_captures_show_a_nak_that_was_lost_between_them(tmp_path: Path) -> None:
    t = _talk()
    marks = _ignore_one(t)
    lost = marks["nak"] - 1
    at_b = _at_b(t)
    assert RULE not in [f.rule for f in _analyze(tmp_path, t.frames[:lost] + t.frames[lost + 1 :], at_b)]


def test_two_captures_show_a_nak_that_came_late_and_was_obeyed(tmp_path: Path) -> None:
    t = _talk()
    marks = _ignore_one(t)
    late = t.frames[marks["repeat"] - 1].time_ns - 100 * US
    nak = t.frames[marks["nak"] - 1]
    at_b = _at_b(t)
    t.frames[marks["nak"] - 1] = Frame(nak.data, late, nak.wirelen)
    assert RULE not in [f.rule for f in _analyze(tmp_path, t.frames, at_b)]


def test_two_naks_before_one_repeat_share_the_wait() -> None:
    t = _talk()
    t.write(99, 6, lost={100})
    t.nak(100)
    t.wait(100 * US)
    t.write(99, 6, only=(100, 102, 104))
    t.nak(101)
    t.wait(20 * MS)
    t.nak(101)
    t.wait(4 * TIMEOUT)
    t.write(99, 6, only=(101, 102, 103, 104))
    t.ack(104)
    found = _only(t.findings())
    assert found.evidence["count"] == 2
    assert found.evidence["waits"] == 1
    assert found.evidence["waited_ns"] == found.evidence["waited_max_ns"]


@pytest.mark.parametrize("sent", [False, True])
def test_a_go_back_that_goes_on_with_the_packet_of_the_nak_ignored_nothing(sent: bool) -> None:
    """That packet was lost too, behind the capture, so that the timer ran out."""
    t = _talk()
    t.send(99)
    t.ack(99)
    for psn in (101, 102, 103):
        t.send(psn)
    t.nak(100)
    t.wait(100 * US)
    t.send(100)
    if not sent:
        t.send(101)
    t.nak(101)
    for psn in (101, 102, 103)[not sent :]:
        t.send(psn)
    t.wait(4 * TIMEOUT)
    for psn in (101, 102, 103):
        t.send(psn)
    t.ack(103)
    assert (RULE in [f.rule for f in t.findings()]) == (not sent)
