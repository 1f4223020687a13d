"""What the capture alone lost, cut off or spoiled is no trouble of the network: clean traffic stays clean.

Each capture here was made without a fault. Whatever a mirror, a slow disk or a snaplen makes of it, the rules
that accuse hosts or the network have no ground; what the capture lacks may be said.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from capture_bytes import Frame, pcap
from doubled_capture import frames_of
from talk import Talk, named, only

import rocekit
from rocekit.track.connections import Negotiated
from rocekit.track.pairs.known_pairs import Pair

PCAPS: Final = Path(__file__).parents[2] / "pcaps"
#: What may be said of a capture that lacks packets or valid ICRCs.
OF_THE_CAPTURE: Final = frozenset({"capture-gap", "capture-truncated", "icrc-bad"})

Frames = Sequence[Frame]


def _without(lost: Callable[[int, Frame, random.Random], bool]) -> Callable[[Frames], Frames]:
    def change(frames: Frames) -> Frames:
        dice = random.Random(7)
        return [frame for n, frame in enumerate(frames) if not lost(n, frame, dice)]

    return change


def _bursts(frames: Frames) -> Frames:
    dice = random.Random(3)
    kept, skip = [], 0
    for frame in frames:
        if skip:
            skip -= 1
        elif dice.random() < 0.02:
            skip = dice.randrange(3, 25)
        else:
            kept.append(frame)
    return kept


def _of_sender(which: int) -> Callable[[Frames], Frames]:
    """One direction only, by the source MAC address."""

    def change(frames: Frames) -> Frames:
        senders = list(dict.fromkeys(f.data[6:12] for f in frames))
        return [f for f in frames if len(senders) > which and f.data[6:12] == senders[which]]

    return change


def _with_wrong_icrcs(frames: Frames) -> Frames:
    return [replace(f, data=f.data[:-1] + bytes([f.data[-1] ^ 0xFF])) for f in frames]


def _cut(length: int) -> Callable[[Frames], Frames]:
    return lambda frames: [replace(f, data=f.data[:length], wirelen=f.on_wire) for f in frames]


def _by_clock(unit_ns: int) -> Callable[[Frames], Frames]:
    return lambda frames: [replace(f, time_ns=f.time_ns // unit_ns * unit_ns) for f in frames]


def _stepped(by_ns: int) -> Callable[[Frames], Frames]:
    """A clock that is set in the middle of the capture."""
    return lambda frames: [
        replace(f, time_ns=f.time_ns + by_ns * (2 * n > len(frames))) for n, f in enumerate(frames)
    ]


SPOILED: Final[dict[str, Callable[[Frames], Frames]]] = {
    "without its head": lambda frames: frames[len(frames) // 10 :],
    "second half": lambda frames: frames[len(frames) // 2 :],
    "first half": lambda frames: frames[: len(frames) // 2],
    "middle": lambda frames: frames[len(frames) // 3 : 2 * len(frames) // 3],
    "hole": lambda frames: [*frames[: 2 * len(frames) // 5], *frames[3 * len(frames) // 5 :]],
    "1 % lost": _without(lambda n, frame, dice: dice.random() < 0.01),
    "5 % lost": _without(lambda n, frame, dice: dice.random() < 0.05),
    "20 % lost": _without(lambda n, frame, dice: dice.random() < 0.2),
    "every second": _without(lambda n, frame, dice: bool(n % 2)),
    "every third lost": _without(lambda n, frame, dice: n % 3 == 1),
    "large ones lost": _without(lambda n, frame, dice: len(frame.data) > 500 and dice.random() < 0.1),
    "small ones lost": _without(lambda n, frame, dice: len(frame.data) <= 100 and dice.random() < 0.3),
    "bursts lost": _bursts,
    "first sender": _of_sender(0),
    "second sender": _of_sender(1),
    "wrong ICRCs": _with_wrong_icrcs,
    "snaplen 64": _cut(64),
    "snaplen 96": _cut(96),
    "microseconds": _by_clock(1_000),
    "milliseconds": _by_clock(1_000_000),
    "seconds": _by_clock(1_000_000_000),
    "clock set forward": _stepped(3_000_000_000),
    "clock set back": _stepped(-3_000_000_000),
}
CLEAN: Final = sorted(path for path in PCAPS.glob("*-clean.pcap*") if not path.name.startswith("."))


clean_frames: Final = functools.cache(frames_of)


@functools.cache
def _of_the_clean(path: Path) -> set[str]:
    """What a clean capture says as it is."""
    return _accusations(path)


def _accusations(path: Path) -> set[str]:
    """Rules of the findings that say something of hosts or the network.

    Missing UC packets may be told: nobody acknowledges them, and the finding leaves open who lost them.
    """
    return {
        f.rule
        for f in rocekit.analyze(path, journals=()).findings
        if f.rule not in OF_THE_CAPTURE and not (f.rule == "loss" and "missed by the capture" in f.advice)
    }


@pytest.mark.parametrize("how", SPOILED)
def test_a_spoiled_capture_of_clean_traffic_accuses_nobody(how: str, tmp_path: Path) -> None:
    found = {}
    for path in CLEAN:
        spoiled = tmp_path / path.name
        spoiled.write_bytes(pcap(SPOILED[how](clean_frames(path)), unit="ns"))
        more = _accusations(spoiled) - _of_the_clean(path)
        if more:
            found[path.name] = more
    assert not found


def test_of_uc_messages_that_are_missing_whole_none_is_told_as_incomplete() -> None:
    t = Talk(transport="UC")
    for psn in (0, 1, 2, 6, 7):
        t.packet("UC_SEND_ONLY", psn, bytes(64))
    assert only(t.findings(), "loss").title.endswith("UC sends nothing again")


class TestWrongStart:
    def test_higher_first_psn_without_a_nak_may_be_a_capture_that_missed_the_packets_before(self) -> None:
        t = Talk()
        t.connect(retry_count=3)
        t.send(3)
        assert "dead-qp" not in named(t.findings())

    def test_uc_responder_accepts_any_first_packet_of_a_message(self) -> None:
        t = Talk(transport="UC")
        told = (Negotiated(starting_psn=0), Negotiated(starting_psn=0))
        for psn in range(7, 12):
            t.packet("UC_SEND_ONLY", psn, bytes(64))
        pairs = [Pair("UC", (t.hosts["a"][0], t.hosts["b"][0]), (0x11, 0x12), told, "cm")]
        assert "dead-qp" not in named(t.findings(pairs=pairs))


class TestReadDepth:
    @staticmethod
    def talk() -> Talk:
        t = Talk()
        t.connect(initiator_depth=1, responder_resources=1)
        return t

    def test_a_response_that_only_the_capture_missed(self) -> None:
        t = self.talk()
        t.read(0, 1)
        t.wait(10_000)
        for psn in (1, 2):
            t.read(psn, 1)
            t.responses(psn, 1)
        assert "read-depth" not in named(t.findings())

    def test_two_that_were_answered_later(self) -> None:
        t = self.talk()
        t.read(0, 1)
        t.read(1, 1)
        t.responses(0, 1)
        t.responses(1, 1)
        assert only(t.findings(), "read-depth").evidence["outstanding"] == 2
