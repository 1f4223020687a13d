"""What captures of IPv6 leave open: no identification tells a packet from the one that it repeats.

Of real traffic between two rxe devices over IPv6, with faults of a known place, these were stated and false.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from capture_bytes import Frame
from talk import MS, US, Talk, of_rule, settled
from two_points import FLIGHT, analysis_of_two

from rocekit.findings.stories.capture_view import CaptureView
from rocekit.findings.stories.loss_place import BETWEEN, LossPlace
from rocekit.points.sightings import Transmission

A, B = "fd00:9::1", "fd00:9::2"


def talk() -> Talk:
    t = Talk(a=A, b=B)
    t.connect()
    for psn in range(8):
        settled(t, psn)
        t.wait(100 * US)
    return t


@pytest.mark.parametrize("goes_back", [False, True])
def test_what_fills_a_gap_may_be_all_that_is_left_of_a_go_back(goes_back: bool) -> None:
    """The capture has no NAKs. Of the second go-back, the rest was lost before the capture."""
    t = talk()
    if goes_back:
        t.send(8, 4, only=[8, 10, 11])
        t.wait(300 * US)
        t.send(8, 4, only=[9, 10, 11])
        t.ack(11)
        t.wait(MS)
    t.send(12, 4, only=[12, 14])
    t.wait(450 * US)
    t.send(12, 4, only=[13, 15])
    t.ack(15)
    (found,) = of_rule(t.findings(), "reordering")
    assert ("probably" in found.title) == goes_back


def test_an_answer_that_is_stamped_before_its_request_is_no_copy() -> None:
    """The host gathers interrupts, so the request that came again is stamped later than its answer."""
    t = Talk(a=A, b=B)
    for psn in range(12):
        t.atomic(psn)
        t.atomic_answer(psn)
        t.wait(50 * US)
    t.atomic(12)
    t.atomic_answer(12)
    t.wait(40 * MS)
    t.atomic_answer(12)
    t.wait(20 * US)
    t.atomic(12)
    t.atomic(13)
    t.atomic_answer(13)
    assert not of_rule(t.findings(), "duplicate")


def test_the_last_request_of_a_capture_may_be_the_first_of_a_go_back() -> None:
    t = Talk(a=A, b=B)
    for psn in range(8):
        t.atomic(psn)
        t.atomic_answer(psn)
        t.wait(50 * US)
    t.atomic(8)
    t.wait(100 * US)
    t.atomic(9)
    t.wait(100 * US)
    t.atomic_answer(9)
    t.wait(50 * US)
    t.atomic(8)
    assert all("or_sent_again" in found.evidence for found in of_rule(t.findings(), "duplicate"))


def test_a_sender_that_took_long_for_a_message_may_stall_in_it_for_longer() -> None:
    """Each packet of the message came milliseconds after the one before; then its timer ran out."""
    t = talk()
    for psn in range(8, 19):
        t.send(8, 64, only=[psn])
        t.wait(7 * MS)
    t.wait(104 * MS)
    t.send(8, 64, only=range(8, 72))
    t.ack(71)
    assert not any(f.rule == "tail-loss" and "was lost" in f.title for f in t.findings())


def test_a_capture_that_lacks_requests_of_answered_reads_does_not_show_where_one_was_lost() -> None:
    t = Talk(a=A, b=B)
    for psn in range(0, 32, 4):
        if psn != 16:  # a mirror drops small packets
            t.read(psn, 4)
        t.responses(psn, 4)
        t.wait(50 * US)
    t.read(36, 4)
    t.wait(50 * US)
    t.nak(32)
    t.wait(100 * US)
    t.read(32, 4)
    t.read(36, 4)
    t.responses(32, 4)
    t.responses(36, 4)
    (found,) = of_rule(t.findings(), "loss")
    assert found.evidence["lost_before_capture_point"] == 0


def test_a_read_that_fills_a_gap_and_the_one_behind_it_again_are_a_go_back() -> None:
    """The NAK is not in the capture. A READ takes the PSNs of all its responses."""
    t = Talk(a=A, b=B)
    for psn in range(0, 32, 4):
        t.read(psn, 4)
        t.responses(psn, 4)
        t.wait(50 * US)
    t.read(36, 4)
    t.wait(600 * US)
    t.read(32, 4)
    t.wait(100 * US)
    t.read(36, 4)
    t.responses(32, 4)
    t.responses(36, 4)
    assert not of_rule(t.findings(), "reordering")


def test_a_response_may_be_to_a_read_that_the_capture_lacks() -> None:
    """It came long behind later ones: no network keeps a packet for so long."""
    t = Talk(a=A, b=B)
    for psn in range(0, 32, 4):
        t.read(psn, 4)
        t.responses(psn, 4)
        t.wait(50 * US)
    t.read(32, 4)
    t.responses(32, 4, lost=[33])
    t.wait(280 * MS)
    t.responses(32, 4, lost=[32, 34, 35])
    assert not any("probably" not in f.title for f in of_rule(t.findings(), "reordering"))


def test_a_repeat_that_the_network_doubled_does_not_make_the_first_copy_late() -> None:
    """What came again at once is a copy: a requester that goes back needs longer."""
    t = talk()
    t.send(8, 6, only=[8, 9, 11, 12, 13])
    t.nak(10)
    t.wait(8 * MS)
    (again,) = t.send(8, 6, only=[10]).values()
    t.wait(20 * US)
    t.again(again)
    t.send(8, 6, only=[11, 12, 13])
    t.ack(13)
    assert not any("probably" not in f.title for f in of_rule(t.findings(), "reordering"))


def test_a_capture_that_lacks_answers_does_not_show_that_one_never_came() -> None:
    t = Talk(a=A, b=B)
    for psn in range(40):
        if psn % 3:
            t.atomic(psn)
        t.atomic_answer(psn)
        t.wait(50 * US)
    for _ in range(5):
        t.atomic(40)
        t.wait(70 * MS)
    assert not of_rule(t.findings(), "retry-exceeded")


def test_of_doubled_packets_that_are_alike_the_captures_count_only_the_least(tmp_path: Path) -> None:
    """One of two equal packets may have been lost, and the other one have come twice."""
    t = talk()
    first = t.send(8, 2)
    t.send(8, 2)
    t.ack(9)
    doubled = t.frames[first[8] - 1]
    found = analysis_of_two(tmp_path, t.frames, [*t.frames, Frame(doubled.data, t.now + FLIGHT)])
    assert found.evidence is not None
    assert found.evidence.paths is not None
    (path,) = (path for path in found.evidence.paths.every if path.src == A)
    assert path.doubled == 1
    assert path.at_least
    assert "at least 1 came twice" in replace(path, by="delays").words(["a.pcap", "b.pcap"])


@pytest.mark.parametrize(("under_way_us", "open_"), [(30_000, True), (100, False)])
def test_of_requests_that_are_alike_it_is_open_which_was_lost(under_way_us: int, open_: bool) -> None:
    """Sent so soon after each other, either may be the one that arrived, where packets take that long."""
    lost = Transmission(0, {0: 7}, {0: 0}, 0)
    went = 500 * US
    came = Transmission(went, {0: 8, 1: 9}, {0: went, 1: went + under_way_us * US}, went)
    view = SimpleNamespace(points=(0, 1), sent=lambda psn, request: [lost, came])
    place = LossPlace(28, BETWEEN, (0, 1), A, (7,))
    assert CaptureView.may_be_another(cast(CaptureView, view), place) == open_
