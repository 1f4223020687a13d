"""What losses make a connection send again: ``resent_per_loss``, ``go-back-n-cost``, and ``recovery``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from capture_bytes import Frame, pcap
from talk import MS, A, B, Talk, settled

import rocekit
from rocekit.findings import Finding
from rocekit.report.text import connection_lines
from rocekit.track.connections import Connection

RULE = "go-back-n-cost"
A_SENDS = bytes((10, 9, 0, 1))


def _losses(count: int, behind: int, *, captured: bool = True, **fields: object) -> Talk:
    """``count`` messages, each of which loses its first packet with so many packets behind it."""
    t = Talk(mtu=256)
    t.common = dict(fields)
    settled(t, 99)
    for n in range(count):
        first = 100 + n * (behind + 1)
        t.write(first, behind + 1, lost=() if captured else {first})
        t.nak(first)
        t.wait(MS // 10)
        t.write(first, behind + 1)
        t.ack(first + behind)
    return t


def _found(t: Talk) -> tuple[Finding | None, Connection]:
    findings = t.findings()
    connection = next(f.connection for f in findings if f.connection is not None)
    return next((f for f in findings if f.rule == RULE), None), connection


@pytest.mark.parametrize("fields", [{}, {"identification": 0}])
def test_what_each_loss_costs(fields: dict[str, Any]) -> None:
    found, connection = _found(_losses(20, 59, **fields))
    assert found is not None
    assert found.severity == "info"
    assert connection.resent_per_loss == 60
    assert found.evidence["lost_packets"] == 20
    assert found.evidence["resent_packets"] == 1200
    assert found.evidence["recovery"] == "go-back-n"
    assert f"{A} QP 0x11 ⇄ {B} QP 0x12: 60 packets sent again for each packet" in found.title
    assert connection.to_dict()["resent_per_loss"] == 60


def test_few_packets_behind_each_loss_are_only_a_figure() -> None:
    found, connection = _found(_losses(60, 19))
    assert found is None
    assert connection.resent_per_loss == 20
    assert "60 NAK" in connection_lines([connection])[0]
    assert "1,200 sent again, 20.0 for each packet lost" in connection_lines([connection])[0]


def test_few_losses_are_only_a_figure() -> None:
    found, connection = _found(_losses(2, 59))
    assert found is None
    assert connection.resent_per_loss == 60


def test_without_the_naks_nothing_is_known_to_be_lost() -> None:
    t = _losses(3, 9)
    t.frames = [f for f in t.frames if not (len(f.data) < 80 and f.data[54] == 0x60)]
    found, connection = _found(t)
    assert found is None
    assert connection.resent_per_loss is None


def test_nothing_lost() -> None:
    t = settled(Talk(), 99)
    t.write(100, 8)
    t.ack(107)
    [connection] = t.evidence().connections
    assert connection.resent_per_loss is None
    assert connection.recovery is None
    assert "for each packet lost" not in connection_lines([connection])[0]


# ---------------------------------------------------------------------- recovery


def _selective(count: int = 1, *, new: bool = True, **fields: object) -> Talk:
    """A responder that keeps what comes behind a gap: only the lost packet comes again."""
    t = Talk()
    t.common = dict(fields)
    settled(t, 99)
    for n in range(count):
        first = 100 + 20 * n
        t.write(first, 8, lost={first + 2})
        t.nak(first + 2)
        t.wait(MS // 10)
        t.write(first, 8, only=(first + 2,))
        if new:
            t.write(first + 8, 12)
            t.ack(first + 19)
        else:
            t.ack(first + 7)
            t.write(first + 8, 12)
            t.ack(first + 19)
    return t


def _recovery(t: Talk) -> str | None:
    [connection] = t.evidence().connections
    assert connection.to_dict()["recovery"] == connection.recovery
    return connection.recovery


@pytest.mark.parametrize("fields", [{}, {"identification": 0}])
@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize("count", [1, 3])
def test_only_what_was_lost_comes_again(fields: dict[str, object], new: bool, count: int) -> None:
    assert _recovery(_selective(count, new=new, **fields)) == "selective"


@pytest.mark.parametrize("captured", [True, False])
def test_all_behind_the_loss_comes_again(captured: bool) -> None:
    assert _recovery(_losses(1, 7, captured=captured)) == "go-back-n"


def test_a_repeat_of_the_only_packet_outstanding_decides_nothing() -> None:
    t = settled(Talk(), 99)
    t.write(100, 4)
    t.ack(102)
    t.nak(103)
    t.write(100, 4, only=(103,))
    t.ack(103)
    assert _recovery(t) is None


def test_without_the_nak_or_one_direction_only_it_is_never_selective() -> None:
    t = _selective(3)
    t.frames = [f for f in t.frames if not (len(f.data) < 80 and f.data[54] == 0x60)]
    assert _recovery(t) is None
    t = _selective(3)
    t.frames = [f for f in t.frames if f.data[26:30] == A_SENDS]
    assert _recovery(t) is None


def test_the_rest_of_the_repeat_is_lost_before_the_capture() -> None:
    """The responder sends NAKs for it, so the requester had sent it again, or it will."""
    t = settled(Talk(), 99)
    t.write(100, 8, lost={102})
    t.nak(102)
    t.wait(MS // 10)
    t.write(100, 8, only=(102, 103))
    t.write(108, 8)
    t.nak(104)
    t.wait(MS // 10)
    t.write(100, 8, only=(104, 105, 106, 107))
    t.write(108, 8)
    t.ack(115)
    assert _recovery(t) == "go-back-n"


def test_an_ack_that_ends_a_repeat_after_the_timer_is_not_selective() -> None:
    """The ACK was late; the requester leaves out what it acknowledges."""
    t = settled(Talk(), 99)
    t.write(100, 8)
    t.wait(80 * MS)
    t.write(100, 8, only=(100, 101))
    t.ack(107)
    t.write(108, 8)
    t.ack(115)
    assert _recovery(t) != "selective"


def test_a_capture_that_misses_packets_is_not_called_selective() -> None:
    t = _selective(2)
    t.write(140, 4, lost={141})  # acknowledged all the same, so only the capture misses it
    t.ack(143)
    assert _recovery(t) is None


def test_two_captures_of_a_selective_responder(tmp_path: Path) -> None:
    t = _selective(3)
    signs = [1 if f.data[26:30] == A_SENDS else -1 for f in t.frames]
    at_b = [Frame(f.data, f.time_ns + s * 300, f.wirelen) for f, s in zip(t.frames, signs, strict=True)]
    names = tmp_path / "a.pcap", tmp_path / "b.pcap"
    for name, frames in zip(names, (t.frames, at_b), strict=True):
        name.write_bytes(pcap(frames, unit="ns"))
    assert rocekit.analyze(*names).connections[0].recovery == "selective"


# ---------------------------------------------------------------------- the copy that counts


def _second_nak(t: Talk) -> Finding:
    """Behind two selective repeats: PSN 203 was seen in the first pass, and is requested in the second."""
    t.write(200, 8, lost={202})
    t.nak(202)
    t.wait(MS // 10)
    t.write(200, 8, only=(202,))
    t.write(208, 4)
    t.wait(MS // 10)
    t.nak(203)
    t.wait(MS // 10)
    t.write(200, 8, only=(203,))
    t.ack(211)
    return next(f for f in t.findings() if f.rule == "loss")


def test_a_selective_responder_lacks_every_copy_sent_before() -> None:
    t = _selective(3)
    for n in range(160, 200):
        t.send(n)
    t.ack(199)
    found = _second_nak(t)
    # 4 NAKs for what the capture lacks too; PSN 203 passed it, and was lost behind it.
    assert found.evidence["lost_before_capture_point"] == 4
    assert found.evidence["lost_behind_capture_point"] == 1
