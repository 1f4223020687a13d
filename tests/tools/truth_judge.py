"""What really happened to a PSN, by both captures and the faults that were made (the truth bench).

A NAK for p says: all below p arrived, something above p arrived in this pass, and p's copy of *this pass*
did not (a pass is what a requester sends between two times it goes back). So of the copies of p the one
counts that was sent in the pass which drew the NAK; after a silence the last one before the repeat. The two
captures show whether that copy was lost between them. Before the first capture and behind the second one
nothing is captured: there the fault that was made, and counted, decides. Where several fit, the truth stays
open.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from truth_experiments import BEFORE, BEHIND, BETWEEN
from truth_packets import ATOMIC_ACK, Packet, after
from truth_sets import Side, Transmission, Wire

_EVER: Final = 1 << 62


class What(StrEnum):
    """What was missing, or why nothing was."""

    REQUEST = "the request was lost"
    RESPONSE = "its response was lost"
    SPOILT = "it was corrupted"
    LATE = "the request was overtaken"
    RESPONSE_LATE = "its response came after the repeat, or was overtaken"
    ANSWERED = "the answer had arrived before the repeat"
    REFUSED = "an RNR NAK came first"
    NEVER_SENT = "it had not been sent"
    BEHIND_GAP = "it arrived, behind a gap"
    OPEN = "open"


@dataclass(frozen=True)
class Fate:
    """What happened to a PSN. ``where``: before, between or behind, if something was lost; its sender."""

    what: What
    where: str | None = None
    sender: str | None = None

    def __str__(self) -> str:
        return self.what + (f" {self.where}" if self.where else "")


OPEN: Final = Fate(What.OPEN)


class Judge:
    """Says what happened, for an experiment.

    Args:
        wire: both captures.
        dropped: what was lost: (where, sender's address) to how many, by the faults' own counters.
    """

    def __init__(self, wire: Wire, dropped: dict[tuple[str, str], int]) -> None:
        self.wire = wire
        self.dropped = {key: n for key, n in dropped.items() if n}

    def lost_in_all(self, src: str | None = None) -> int:
        """How many packets of a sender (or of both) were dropped anywhere, or spoilt."""
        spoilt = sum(p.spoilt for p in self.wire.paths.values() if src in (None, p.src))
        return spoilt + sum(n for (_, sender), n in self.dropped.items() if src in (None, sender))

    def _happens(self, where: str, src: str) -> bool:
        return (where, src) in self.dropped

    # ------------------------------------------------------------------ requests

    def after_nak(self, side: Side, nak: Transmission) -> Fate:
        """Why a NAK "PSN sequence error" came."""
        psn = nak.psn
        drawn = self._drew(side, nak.time_ns, psn)
        if self._refused(side, psn, nak.time_ns):
            return Fate(What.REFUSED)
        fates = {self._in_pass(side, psn, packet, trigger, nak.time_ns) for packet, trigger in drawn}
        return fates.pop() if len(fates) == 1 else OPEN

    @staticmethod
    def _drew(side: Side, nak_ns: int, psn: int) -> list[tuple[Packet, Transmission]]:
        """What may have drawn a NAK: what arrived above its PSN since the last packet that was not above.

        A packet that was lost behind the capture drew nothing, so any of them may be it; those of one pass
        give one answer.
        """
        drawn: list[tuple[Packet, Transmission]] = []
        for packet, trigger in reversed(side.arrived_before(nak_ns)):
            if trigger.spoilt:
                continue
            if after(trigger.psn, psn) <= 0:
                if side.has(trigger, psn) and not drawn:
                    continue  # it came when the NAK was already being made
                break
            drawn.append((packet, trigger))
        first_of_pass: dict[int, tuple[Packet, Transmission]] = {}
        for packet, trigger in drawn:
            first_of_pass[trigger.passed] = (packet, trigger)
        return list(first_of_pass.values())

    def _refused(self, side: Side, psn: int, time_ns: int) -> bool:
        """Whether the last answer to a PSN before was an RNR NAK."""
        for t in reversed(side.responses):
            if t.time_ns < time_ns and t.packet.syndrome >= 0:
                if t.packet.is_rnr:
                    return after(psn, t.psn) >= 0
                if after(t.psn, psn) >= -1:
                    return False
        return False

    def _in_pass(self, side: Side, psn: int, packet: Packet, trigger: Transmission, nak_ns: int) -> Fate:
        """The fate of a PSN's copy in the pass of a packet above it, which arrived."""
        copies = [t for t in side.copies(psn) if t.passed == trigger.passed and not t.doubled]
        if not copies:
            return Fate(What.REQUEST, BEFORE, side.src) if self._happens(BEFORE, side.src) else OPEN
        copy = copies[-1]
        if copy.spoilt:
            return Fate(What.SPOILT, BETWEEN, side.src)
        if not copy.arrived:
            return Fate(What.REQUEST, BETWEEN, side.src)
        if copy.arrived[0].time_ns > packet.time_ns:
            return Fate(What.LATE)
        came_ns = copy.arrived[0].time_ns
        if any(came_ns < p.time_ns < nak_ns and after(t.psn, psn) < 0 for p, t in side.arrivals):
            return Fate(What.BEHIND_GAP)  # which a packet closed that was overtaken
        if self._happens(BEHIND, side.src):
            return Fate(What.REQUEST, BEHIND, side.src)
        return OPEN

    def in_hole(self, side: Side, psn: int, behind: Transmission) -> Fate:
        """Why a PSN is missing in front of a packet that arrived."""
        return self._in_pass(side, psn, behind.packet, behind, behind.time_ns)

    # ------------------------------------------------------------------ repeats without a NAK

    def after_silence(self, side: Side, psn: int, repeat: Transmission | None) -> Fate:
        """Why a PSN was sent again (or would have been, at the end) without a NAK."""
        start = None if repeat is None else side.pass_start(repeat)
        start_ns = _EVER if start is None else start.time_ns
        earlier = [t for t in side.copies(psn) if t.time_ns < start_ns and not t.doubled]
        if not earlier:
            return (
                Fate(What.REQUEST, BEFORE, side.src)
                if self._happens(BEFORE, side.src)
                else Fate(What.NEVER_SENT)
            )
        copy = earlier[-1]
        answers = self._answers(side, psn, earlier[0], start, start_ns)
        if answers is not None:
            return answers
        if copy.spoilt:
            return Fate(What.SPOILT, BETWEEN, side.src)
        if not copy.arrived:
            return Fate(What.REQUEST, BETWEEN, side.src)
        if start is not None and start.arrived and copy.arrived[0].time_ns > start.arrived[0].time_ns:
            return Fate(What.LATE)
        if self._gap(
            side, psn, copy, self._repeat_came_ns(side, start)
        ):  # it was thrown away, and another PSN is the cause
            return OPEN if self._happens(BEHIND, side.src) else Fate(What.BEHIND_GAP)
        fits = [
            Fate(what, where, sender)
            for what, where, sender in (
                (What.REQUEST, BEHIND, side.src),
                (What.RESPONSE, BEFORE, side.dst),
            )
            if self._happens(where, sender)
        ]
        return fits[0] if len(fits) == 1 else OPEN

    def _answers(
        self, side: Side, psn: int, copy: Transmission, start: Transmission | None, start_ns: int
    ) -> Fate | None:
        """What became of the answers to a PSN before its repeat arrived; None if none was captured."""
        repeated_ns = self._repeat_came_ns(side, start)
        sent_ns = min((p.time_ns for p in copy.arrived), default=copy.time_ns)
        answers = [
            t
            for t in side.responses
            if sent_ns <= t.time_ns < repeated_ns and not t.doubled and self._answers_psn(t, psn)
        ]
        if not answers:
            return None
        came = [t.arrived[0].time_ns for t in answers if t.got_through]
        if not came:
            what = What.SPOILT if any(t.spoilt for t in answers) else What.RESPONSE
            return Fate(what, BETWEEN, side.dst)
        if self._happens(BEHIND, side.dst):
            return Fate(What.RESPONSE, BEHIND, side.dst)
        return Fate(What.ANSWERED if min(came) < start_ns else What.RESPONSE_LATE)

    @staticmethod
    def _repeat_came_ns(side: Side, start: Transmission | None) -> int:
        """When the first packet arrived that was sent after the requester had gone back."""
        if start is None:
            return _EVER
        return min((p.time_ns for p, t in side.arrivals if t.passed >= start.passed), default=_EVER)

    @staticmethod
    def _answers_psn(response: Transmission, psn: int) -> bool:
        """Whether a response says that a PSN arrived (of READs and atomics it must be the very one)."""
        packet = response.packet
        if packet.is_read_response or packet.opcode == ATOMIC_ACK:
            return packet.psn == psn
        if packet.is_sequence_nak:
            return after(packet.psn, psn) > 0
        return packet.is_ack and after(packet.psn, psn) >= 0

    @staticmethod
    def _gap(side: Side, psn: int, copy: Transmission, until_ns: int) -> bool:
        """Whether something below a PSN was missing when its copy arrived, and until its repeat arrived."""
        for t in reversed([t for t in side.responses if t.time_ns < until_ns]):
            if t.packet.is_sequence_nak:
                came_ns = copy.arrived[0].time_ns
                closed = any(t.time_ns < p.time_ns < came_ns and side.has(r, t.psn) for p, r in side.arrivals)
                return after(t.psn, psn) < 0 and not closed
            if t.packet.is_ack and t.time_ns > copy.time_ns and after(t.psn, psn) >= 0:
                return False
        return False

    # ------------------------------------------------------------------ responses

    def of_response(self, side: Side, psn: int, repeat: Transmission | None) -> Fate:
        """Why a READ's response, or an atomic's, was requested again."""
        start = None if repeat is None else side.pass_start(repeat)
        start_ns = _EVER if start is None else start.time_ns
        repeated_ns = self._repeat_came_ns(side, start)
        sent = [t for t in side.response_copies(psn) if t.time_ns < repeated_ns and not t.doubled]
        if not sent:
            return self._no_response(side, psn, start_ns)
        copy = sent[-1]
        if copy.spoilt:
            return Fate(What.SPOILT, BETWEEN, side.dst)
        if not copy.arrived:
            return Fate(What.RESPONSE, BETWEEN, side.dst)
        came_ns = copy.arrived[0].time_ns
        if came_ns > start_ns or self._overtaken(side, copy):
            return Fate(What.RESPONSE_LATE)
        if self._happens(BEHIND, side.dst):
            return Fate(What.RESPONSE, BEHIND, side.dst)
        return Fate(What.ANSWERED)

    @staticmethod
    def _overtaken(side: Side, copy: Transmission) -> bool:
        return any(
            t.arrived and t.arrived[0].time_ns < copy.arrived[0].time_ns and t.time_ns > copy.time_ns
            for t in side.responses
        )

    def _no_response(self, side: Side, psn: int, start_ns: int) -> Fate:
        """No response was captured: the request was lost, or its response before the first capture."""
        requests = [t for t in side.copies(psn) if t.time_ns < start_ns and not t.doubled]
        if requests and not requests[-1].arrived:
            return Fate(What.REQUEST, BETWEEN, side.src)
        if requests and requests[-1].spoilt:
            return Fate(What.SPOILT, BETWEEN, side.src)
        fits = [
            Fate(what, where, sender)
            for what, where, sender in (
                (What.REQUEST, BEHIND if requests else BEFORE, side.src),
                (What.RESPONSE, BEFORE, side.dst),
            )
            if self._happens(where, sender)
        ]
        return fits[0] if len(fits) == 1 else OPEN

    # ------------------------------------------------------------------ what is no loss

    def was_doubled(self, psn: int) -> bool:
        """Whether any packet with a PSN came twice."""
        return any(
            t.psn == psn and (t.doubled or len(t.arrived) > 1)
            for path in self.wire.paths.values()
            for t in path.sent
        )

    @staticmethod
    def was_overtaken(side: Side, psn: int) -> bool:
        """Whether a copy of a PSN arrived after a request, or a response, that was sent later."""
        for kind in (side.requests, side.responses):
            latest_ns = 0
            for t in sorted((t for t in kind if t.arrived), key=lambda t: t.arrived[0].time_ns):
                if t.psn == psn and t.time_ns < latest_ns:
                    return True
                latest_ns = max(latest_ns, t.time_ns)
        return False

    def rnr_naks(self, sides: Iterable[Side], point: str) -> int:
        """How many RNR NAKs a capture has (``va``, ``vb``), or both together (``both``)."""
        ts = [t for side in sides for t in side.responses if t.packet.is_rnr]
        if point == "both":
            return len(ts)
        here = self.wire.hosts[["va", "vb"].index(point)]
        return sum((t.sent is not None) if t.packet.src == here else bool(t.arrived) for t in ts)

    def answered_in_the_end(self, side: Side, psn: int, time_ns: int) -> bool:
        """Whether the requester got an answer for a PSN after a time."""
        return any(
            t.got_through and t.arrived[0].time_ns > time_ns and self._answers_psn(t, psn)
            for t in side.responses
        ) and not self._happens(BEHIND, side.dst)


def seen_from(fate: Fate, points: Sequence[str], hosts: tuple[str, str]) -> str | None:
    """Where a loss lies for a capture at ``va`` or ``vb``, or for both; None if nothing was lost."""
    if fate.where is None or fate.sender is None:
        return None
    if len(points) == 2:
        return fate.where
    at_sender = (points[0] == "va") == (fate.sender == hosts[0])
    if at_sender:
        return BEFORE if fate.where == BEFORE else BEHIND
    return BEHIND if fate.where == BEHIND else BEFORE
