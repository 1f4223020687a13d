"""What hardware does: sprayed packets with a real loss, READ responses out of order, and timers shorter than
negotiated.

Captures at the requester, between, and at the responder, with identifications that count and with none.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Any

import pytest
from alike import analyzed
from fabric import AT_REQUESTER, AT_RESPONDER, BETWEEN, PLACES, Fabric
from talk import MS, Talk, named, of_rule, only

SPREADS = ((0, 400, 900, 1_700), (0, 1_000, 3_000), (0, 200))
#: One path in many is longer.
RARELY = (*(0,) * 60, 1_500)
ADAPTIVE: dict[str, Any] = {"primary_local_ack_timeout": 20}  # 4.295 s
BOTH = pytest.mark.parametrize("ids", [True, False], ids=["counted", "zero"])
EVERYWHERE = pytest.mark.parametrize("place", PLACES)


# ---------------------------------------------------------------------- sprayed WRITEs


@BOTH
@EVERYWHERE
@pytest.mark.parametrize("goes_back", [True, False], ids=["go-back-n", "selective"])
@pytest.mark.parametrize("seed", range(9))
def test_a_loss_among_sprayed_packets_is_one_loss(seed: int, goes_back: bool, place: str, ids: bool) -> None:
    """The receiver takes packets out of order, and sends a NAK when one stays away."""
    psn = 74 + random.Random(seed).randrange(3, 60)
    spread = SPREADS[seed % len(SPREADS)]
    fabric = Fabric(
        place=place, ids=ids, goes_back=goes_back, seed=seed, drops={(psn, 0)}, paths_ns=spread
    ).writes(10, 64, 3)
    talk = fabric.capture()
    assert fabric.truth.lost == [psn]
    findings = talk.findings()
    found = only(findings, "loss")
    assert found.title.startswith(f"PSN {psn} was ")
    assert found.evidence["lost_packets"] == 1
    before = found.evidence["lost_before_capture_point"]
    assert before == (place == AT_RESPONDER)
    assert found.evidence["lost_behind_capture_point"] == 1 - before
    assert named(findings) == ["loss"]  # the order is info
    assert not of_rule(findings, "duplicate")


@BOTH
def test_a_loss_behind_a_capture_of_sprayed_packets_is_probable(ids: bool) -> None:
    """The packet is in the capture: it was lost behind it, or came later than the receiver waits."""
    talk = Fabric(place=BETWEEN, ids=ids, drops={(104, 0)}).writes(10, 64, 3).capture()
    found = only(talk.findings(), "loss")
    assert found.title.startswith("PSN 104 was probably lost")
    assert "took other packets out of order without a NAK" in found.advice
    assert "the capture has no NAK" not in found.advice
    assert found.evidence["or_overtaken"] == 1


@EVERYWHERE
@pytest.mark.parametrize("seed", range(8))
def test_a_go_back_because_of_order_loses_nothing(seed: int, place: str) -> None:
    """The receiver takes packets in order only; now and then one comes late."""
    fabric = Fabric(place=place, ids=True, keeps=False, goes_back=True, seed=seed, paths_ns=RARELY)
    talk = fabric.writes(10, 64, 3).capture()
    stated = [f for f in of_rule(talk.findings(), "loss") if "probably" not in f.title]
    if place == AT_RESPONDER:
        assert not stated


@pytest.mark.parametrize("seed", range(8))
def test_a_late_packet_behind_its_nak_is_not_lost_though_identifications_are_zero(seed: int) -> None:
    """A NAK for the next packet follows: the responder dropped that one, and so went back for no loss."""
    fabric = Fabric(place=AT_RESPONDER, keeps=False, goes_back=True, seed=seed, paths_ns=RARELY)
    talk = fabric.writes(10, 64, 3).capture()
    assert not of_rule(talk.findings(), "loss")


def test_a_go_back_whose_nak_is_not_in_the_capture_starts_at_what_was_lost() -> None:
    fabric = Fabric(
        place=AT_RESPONDER, keeps=False, goes_back=True, paths_ns=(0,), drops={(35, 0)}, naks=False
    )
    findings = fabric.writes(10, 16, 4).capture().findings()
    found = only(findings, "loss")
    assert found.title.startswith("PSN 35 was probably lost")
    assert found.evidence["repeated_packets"] == 7
    assert not of_rule(findings, "reordering")


# ---------------------------------------------------------------------- READ responses


@BOTH
@pytest.mark.parametrize("place", [AT_REQUESTER, BETWEEN])
@pytest.mark.parametrize("seed", range(4))
def test_read_responses_out_of_order_that_the_requester_takes_are_info(
    seed: int, place: str, ids: bool
) -> None:
    findings = Fabric(place=place, ids=ids, seed=seed).reads(10, 16, 3).capture().findings()
    (found,) = findings
    assert (found.rule, found.severity) == ("reordering", "info")
    assert "READ responses arrived out of order" in found.title
    assert "on 10.9.0.2 QP 0x12 → 10.9.0.1 QP 0x11" in found.title
    assert found.title.endswith("nothing requested again because of it, all READs complete")
    assert found.advice.startswith("Nothing to do: the requester takes READ responses out of order")
    assert found.evidence["of_responses"] is True


@BOTH
def test_at_the_responder_read_responses_are_in_order(ids: bool) -> None:
    assert Fabric(place=AT_RESPONDER, ids=ids).reads(10, 16, 3).capture().findings() == []


@BOTH
@EVERYWHERE
@pytest.mark.parametrize("seed", range(4))
def test_a_lost_read_response_is_lost(seed: int, place: str, ids: bool) -> None:
    """The requester takes the others out of order, and requests the rest again from the lost one on."""
    talk = Fabric(place=place, ids=ids, seed=seed, drops={(34, 0)}).reads(10, 16, 3).capture()
    found = only(talk.findings(), "implied-nak")
    likely = "" if place == AT_REQUESTER else "probably "
    assert found.title.startswith(f"The response with PSN 34 was {likely}lost on")
    assert found.evidence["lost_before_capture_point"] == (place == AT_REQUESTER)


@BOTH
@EVERYWHERE
@pytest.mark.parametrize("seed", range(4))
def test_reads_requested_again_because_of_order_are_not_called_lost(seed: int, place: str, ids: bool) -> None:
    fabric = Fabric(place=place, ids=ids, keeps=False, seed=seed).reads(10, 16, 3)
    findings = fabric.capture().findings()
    assert fabric.truth.went_back
    assert not fabric.truth.lost
    for found in of_rule(findings, "implied-nak"):
        assert "responses were lost or overtaken on" in found.title
        assert found.evidence["lost_before_capture_point"] == 0
        assert found.evidence["lost_behind_capture_point"] == 0
        assert "a requester that does not take them" in found.advice
    for found in of_rule(findings, "reordering"):
        assert "on 10.9.0.2 QP 0x12 → 10.9.0.1 QP 0x11" in found.title
    assert not of_rule(findings, "loss")


# ---------------------------------------------------------------------- timers


def timed(drops: Collection[tuple[Any, int]], place: str, *, doubles: bool = True) -> Talk:
    """Four WRITEs by a requester whose first wait is 8 ms, where 4.3 s were negotiated."""
    fabric = Fabric(
        place=place,
        keeps=False,
        goes_back=True,
        paths_ns=(0,),
        connect=ADAPTIVE,
        timer_ns=lambda n: 8 * MS << n if doubles else 8 * MS,
        drops=drops,
    )
    return fabric.writes(10, 16, 4).capture()


@pytest.mark.parametrize("place", [AT_REQUESTER, AT_RESPONDER])
@pytest.mark.parametrize(
    ("drops", "doubles"),
    [
        ({(25, 0), (41, 0), (57, 0)}, True),
        ({(41, 0), (41, 1), (41, 2)}, True),
        ({(41, 0), (41, 1), (41, 2)}, False),
    ],
    ids=["three alike", "doubling", "equal"],
)
def test_waits_that_agree_are_the_requesters_timer(
    drops: set[tuple[int, int]], doubles: bool, place: str
) -> None:
    talk = timed(drops, place, doubles=doubles)
    found = only(talk.findings(), "tail-loss")
    assert found.evidence["probable_timer_us"] == pytest.approx(8_000, rel=0.01)
    assert "timer is probably about 8.00" in found.advice
    assert "shorter than the negotiated 4.295 s (adaptive retransmission)" in found.advice
    for case in found.evidence["cases"]:
        assert case["repeat_cause"].startswith("probably after a timeout (8.00")
        assert case["repeat_cause"].endswith("(adaptive, shorter than the negotiated 4.295 s)")
    analysis = analyzed(talk)
    (hurt, *_) = [t for t in analysis.transfers if t.retransmitted_packets]
    assert "this requester's timer is about 8.00" in str(analysis.explain(hurt.id))


def test_an_ack_that_was_lost_is_an_ack_loss_where_the_timer_is_known_by_its_waits() -> None:
    fabric = Fabric(
        place=AT_RESPONDER,
        keeps=False,
        goes_back=True,
        paths_ns=(0,),
        connect=ADAPTIVE,
        timer_ns=lambda n: 8 * MS << n,
        drops={(25, 0), (57, 0), (57, 1)},
        lost_acks={41},
    )
    findings = fabric.writes(10, 16, 4).capture().findings()
    assert sorted(named(findings)) == ["ack-loss", "tail-loss"]
    (found,) = of_rule(findings, "ack-loss")
    assert found.title.startswith("The ACK of PSN 41 was probably lost")


def test_one_short_wait_leaves_open_what_it_was() -> None:
    found = only(timed({(41, 0)}, AT_REQUESTER).findings(), "tail-loss")
    assert found.title.startswith("PSN 41 or its response was probably lost")
    (case,) = found.evidence["cases"]
    assert case["repeat_cause"].endswith(
        "a NAK that is not in the capture, or a timer that started before or is shorter than negotiated"
    )
    assert "Open: a NAK that is not in the capture, or a timer shorter than negotiated" in found.advice
    assert "probable_timer_us" not in found.evidence


def test_waits_that_do_not_agree_are_no_timer() -> None:
    talk = Talk()
    talk.connect(primary_local_ack_timeout=20)
    for psn, wait in ((0, 3 * MS), (1, 11 * MS), (2, 7 * MS)):
        talk.send(psn)
        talk.wait(wait)
        talk.send(psn)
        talk.ack(psn)
    for found in talk.findings():
        assert "probable_timer_us" not in found.evidence
        assert "adaptive, shorter" not in str(found.evidence)
