"""A program that ends and starts again may get a QP with the same number: nothing sent before is lost."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from capture_bytes import Frame, pcap
from doubled_capture import frames_of
from places import PCAPS
from talk import MS, TIMEOUT, US, Talk, named

import rocekit
from rocekit.findings.stories import used_again
from rocekit.track.transfers import Transfer
from rocekit.wire.icrc import icrc_bytes
from rocekit.wire.packet_kinds import KINDS, REQUEST

#: Of frames without VLAN tags and IPv4 options: where the headers and fields are.
_IP, _BTH, _PSN = 14, 42, 51
CLEAN: Final = (
    *("blast-sr-clean.pcap", "blast-read-clean.pcap", "blast-write-clean.pcap", "ping-read-clean.pcap"),
    *("atomic-clean.pcap", "ib_write_bw-clean.pcap", "ibv_rc_pingpong-clean.pcap", "rping-clean.pcap"),
    *("mesh-clean.pcap", "srq-clean.pcap", "immediate-clean.pcap"),
)
LOSSY: Final = (
    *("blast-sr-loss.pcap", "blast-sr-rnr.pcap", "ping-read-response-loss.pcap", "atomic-loss.pcap"),
    *("ping-write-loss-behind.pcap", "ib_write_bw-4qp-loss.pcap", "blast-sr-reordering.pcap"),
)


def _frames(name: str) -> list[Frame]:
    """The packets of QPs other than QP 1: what says of no starting PSN."""
    return [f for f in frames_of(PCAPS / name) if f.data[36:38] == b"\x12\xb7" and f.data[47:50] > b"\0\0\1"]


def _changed(frame: Frame, psn: int, identification: int) -> Frame:
    """The frame with other PSN, and an identification that is larger; its ICRC stays right."""
    data = bytearray(frame.data[:-4])
    data[_PSN : _PSN + 3] = ((int.from_bytes(data[_PSN : _PSN + 3], "big") + psn) & 0xFFFFFF).to_bytes(
        3, "big"
    )
    own = int.from_bytes(data[18:20], "big")
    if own:
        data[18:20] = ((own + identification) & 0xFFFF or 1).to_bytes(2, "big")
    data[24:26] = bytes(2)
    total = sum(struct.unpack(">10H", data[_IP : _IP + 20]))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    data[24:26] = struct.pack(">H", ~total & 0xFFFF)
    return replace(frame, data=bytes(data) + icrc_bytes(bytes(data[_IP:]), 20))


def _analyzed(frames: list[Frame], folder: Path) -> rocekit.Analysis:
    path = folder / "x.pcap"
    path.write_bytes(pcap(frames, unit="ns"))
    return rocekit.analyze(path, journals=())


@pytest.mark.parametrize("psn", [0, -1_000, -100_000, 1 << 23])
@pytest.mark.parametrize("name", CLEAN)
def test_a_second_run_from_the_same_psn_or_a_lower_one_accuses_nobody(
    name: str, psn: int, tmp_path: Path
) -> None:
    first = _frames(name)
    later_ns = first[-1].time_ns - first[0].time_ns + 10_000 * MS
    second = [_changed(f, psn, 20_000) for f in first]
    second = [replace(f, time_ns=f.time_ns + later_ns) for f in second]
    analysis = _analyzed([*first, *second], tmp_path)
    assert not named(analysis.findings)
    if not psn:
        assert any(f.rule == "qpn-used-again" for f in analysis.findings)
        assert not any(flow.times.get("ack_timeout") for flow in analysis.statistics().flows)


def test_a_requester_that_got_one_ack_only_may_have_lost_it() -> None:
    t = Talk()
    t.connect()
    t.send(0, 4)
    t.ack(3)
    t.wait(TIMEOUT)
    t.send(0, 4)
    t.ack(3)
    assert named(t.findings()) == ["ack-loss"]


def test_a_requester_goes_back_behind_its_first_psn() -> None:
    t = Talk()
    t.connect()
    for psn in range(4):
        t.send(psn)
        t.ack(psn)
    t.wait(TIMEOUT)
    t.send(3)
    t.ack(3)
    assert named(t.findings()) == ["ack-loss"]


@pytest.mark.parametrize("name", LOSSY)
def test_the_story_is_the_same_wherever_the_psns_begin(name: str, tmp_path: Path) -> None:
    """Each requester's PSNs, and those of the responses to it, wrap in the middle of its first messages."""
    frames = _frames(name)
    starts: dict[bytes, int] = {}
    asked = {}
    for f in frames:
        if KINDS[f.data[_BTH]] == REQUEST:
            starts.setdefault(f.data[26:30], int.from_bytes(f.data[_PSN : _PSN + 3], "big"))
    for sender, start in starts.items():
        asked[sender] = (1 << 24) - 3 - start
    shifted = []
    for f in frames:
        requester = f.data[26:30] if KINDS[f.data[_BTH]] == REQUEST else f.data[30:34]
        shifted.append(_changed(f, asked.get(requester, 0), 0))
    before, after = _analyzed(frames, tmp_path), _analyzed(shifted, tmp_path)

    def story(analysis: rocekit.Analysis) -> object:
        return [
            (f.rule, f.severity, f.frames, {k: v for k, v in f.evidence.items() if isinstance(v, int)})
            for f in analysis.findings
        ], [(t.bytes, t.packets, t.status, t.naks, t.retransmitted_packets) for t in analysis.transfers]

    assert story(after) == story(before)
    assert any(t.to_dict()["last_psn"] < t.to_dict()["first_psn"] for t in after.transfers) or all(
        t.packets < 4 for t in after.transfers
    )


def test_messages_before_many_repeats_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One ACK for all messages leaves each repeat open: 20,000 of both would take the square."""
    made = []
    whole = used_again._Answers

    def counted(transfers: Sequence[Transfer]) -> used_again._Answers:
        made.append(len(transfers))
        return whole(transfers)

    monkeypatch.setattr(used_again, "_Answers", counted)
    t = Talk()
    for psn in range(10):
        t.send(psn)
    t.ack(9)
    for _ in range(8):
        t.wait(TIMEOUT)
        t.send(0)
        t.ack(9)
        t.wait(TIMEOUT)
        t.send(5)
        t.ack(9)
    t.findings()
    assert len(made) == 1


@pytest.mark.parametrize("sign", ["acknowledges more", "acknowledges it again and again", "came too soon"])
def test_a_repeat_that_only_the_same_qp_can_send_or_answer_is_no_other_qp(sign: str) -> None:
    """rxe whose timer was shorter than the way to it: all was sent again after each 1.8 ms."""
    t = Talk()
    for psn in range(6):
        t.send(psn)
        t.ack(psn)
    t.wait(500 * US if sign == "came too soon" else 20 * MS)
    t.send(0)
    if sign == "acknowledges more":
        t.ack(5)  # a duplicate, with the last PSN that the responder has (9.7.5.1.2)
    elif sign == "acknowledges it again and again":
        for psn in range(1, 6):
            t.send(psn)
        for _ in range(6):
            t.ack(5)
    else:
        t.ack(0)
    rules = [f.rule for f in t.findings()]
    assert "qpn-used-again" not in rules
    assert rules


def test_a_repeat_that_is_answered_by_its_own_psn_leaves_both_open() -> None:
    t = Talk()
    for psn in range(6):
        t.send(psn)
        t.ack(psn)
    t.wait(20 * MS)
    t.send(0)
    t.ack(0)
    assert [f.rule for f in t.findings()] == ["qpn-used-again"]


def test_who_goes_back_to_its_latest_message_does_not_begin_again_though_another_qp_did_later() -> None:
    """Two requesters, one after the other, sent to one QP number; the first was alive when it went back."""
    t = Talk()
    for psn in range(0, 12, 2):
        t.send(psn, 2)
        t.ack(psn + 1)
    t.wait(20 * MS)
    t.send(10, 2)
    t.ack(11)
    t.send(12, 2)
    t.ack(13)
    t.wait(1_000 * MS)
    for psn in range(6_000_000, 6_000_004):
        t.send(psn)
        t.ack(psn)
    rules = [f.rule for f in t.findings()]
    assert "qpn-used-again" not in rules
