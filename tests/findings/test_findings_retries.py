"""``retries-nearly-exhausted``: how often a PSN was sent again, against the retry count."""

from __future__ import annotations

from pathlib import Path

import pytest
from capture_bytes import pcap
from talk import MS, TIMEOUT, A, Talk, agreed, settled

import rocekit
from rocekit.findings import Finding
from rocekit.track.connections import Negotiated

RULE = "retries-nearly-exhausted"


def _tried(times: int, *, naks: bool = False, answered: bool = True, **fields: object) -> Talk:
    """A message whose first packet is sent again so many times."""
    t = Talk()
    t.common = dict(fields)
    settled(t, 99)
    t.write(100, 2)
    for _ in range(times):
        if naks:
            t.nak(100)
            t.wait(MS // 10)
        else:
            t.wait(TIMEOUT)
        t.write(100, 2)
    if answered:
        t.ack(101)
        settled(t, 102)
    return t


def _limit(count: int | None) -> dict[str, object]:
    return {"pairs": agreed(Negotiated(retry_count=count, ack_timeout=14), Negotiated())}


def _found(findings: list[Finding]) -> Finding | None:
    return next((f for f in findings if f.rule == RULE), None)


@pytest.mark.parametrize("naks", [False, True])
def test_all_retries_were_used(naks: bool) -> None:
    found = _found(_tried(5, naks=naks).findings(**_limit(5)))
    assert found is not None
    assert found.severity == "warning"
    assert found.title.startswith(f"{A} QP 0x11 used 5 of its 5 retries for PSN 100, in ")
    assert found.evidence["most_transmissions"] == 6
    assert found.evidence["retries_left"] == 0
    assert "With one retry less" in found.advice
    assert "which is 5 here" in found.advice
    assert len(found.frames) == 5


def test_one_retry_was_left() -> None:
    found = _found(_tried(4).findings(**_limit(5)))
    assert found is not None
    assert found.evidence["retries_left"] == 1


@pytest.mark.parametrize(("times", "limit"), [(3, 5), (1, 2), (5, None), (5, 0)])
def test_enough_left_or_unknown_is_nothing(times: int, limit: int | None) -> None:
    assert _found(_tried(times).findings(**_limit(limit))) is None


def test_identification_0_changes_nothing() -> None:
    assert _found(_tried(5, identification=0).findings(**_limit(5))) is not None


def test_the_retries_ran_out() -> None:
    t = _tried(5, answered=False)
    t.wait(20 * TIMEOUT)
    t.send(5, by="b")
    t.ack(5, by="a")
    findings = t.findings(**_limit(5))
    assert _found(findings) is None
    assert "retry-exceeded" in [f.rule for f in findings]


def test_one_direction_does_not_show_how_it_ended() -> None:
    t = _tried(5)
    t.frames = [f for f in t.frames if f.data[26:30] == bytes((10, 9, 0, 1))]
    assert _found(t.findings(**_limit(5))) is None


def test_progress_between_restores_the_count() -> None:
    t = settled(Talk(), 99)
    t.write(100, 8)
    for psn in range(100, 106):
        t.nak(psn)
        t.wait(MS // 10)
        t.write(100, 8, only=range(psn, 108))
    t.ack(107)
    assert _found(t.findings(**_limit(5))) is None


def test_rnr_naks_use_another_count() -> None:
    t = settled(Talk(), 99)
    t.send(100)
    for _ in range(5):
        t.rnr(100)
        t.wait(MS)
        t.send(100)
    t.ack(100)
    assert _found(t.findings(**_limit(5))) is None


def test_seven_is_no_infinite() -> None:
    found = _found(_tried(7).findings(**_limit(7)))
    assert found is not None
    assert found.severity == "warning"
    assert "not “no limit”, as it does for rnr_retry" in found.advice
    assert "raise retry_cnt" not in found.advice


def test_a_device_that_does_not_count_is_info() -> None:
    found = _found(_tried(12).findings(**_limit(7)))
    assert found is not None
    assert found.severity == "info"
    assert "sent PSN 100 again 12 times, though its retry count is 7" in found.title
    assert "does not count" in found.advice


def test_the_retry_count_of_the_cm_exchange() -> None:
    t = Talk()
    t.connect()
    settled(t, 99)
    t.write(100, 2)
    for _ in range(5):
        t.wait(TIMEOUT)
        t.write(100, 2)
    t.ack(101)
    found = _found(t.findings())
    assert found is not None
    assert found.evidence["retry_count"] == 5
    assert found.evidence["retry_count_from"] == "cm"


def test_two_captures_count_each_packet_once(tmp_path: Path) -> None:
    t = Talk()
    t.connect()
    settled(t, 99)
    t.write(100, 2)
    for _ in range(3):
        t.wait(TIMEOUT)
        t.write(100, 2)
    t.ack(101)
    for name in ("a.pcap", "b.pcap"):
        (tmp_path / name).write_bytes(pcap(t.frames, unit="ns"))
    assert _found(list(rocekit.analyze(tmp_path / "a.pcap", tmp_path / "b.pcap").findings)) is None
