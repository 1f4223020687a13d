"""What really happened to a PSN, by both captures and the faults that were made (the truth bench).

A NAK for p says: all below p arrived, something above p arrived in this pass, and p's copy of *this pass*
did not (a pass is what a requester sends between two times it goes back). So of the copies of p the one
counts that was sent in the pass which drew the NAK; after a silence the last one before the repeat. The two
captures show whether that copy was lost between them. Before the first capture and behind the second one
nothing is captured: there the fault that was made, and counted, decides. Where several fit, the truth stays
open.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from truth_bench.experiments import BEFORE, BEHIND, BETWEEN, OPCODES
from truth_bench.once import once
from truth_bench.packets import (
    ACK,
    ATOMIC_ACK,
    CMP_SWAP,
    FETCH_ADD,
    READ_REQUEST,
    READ_RESPONSES,
    RESPONSES,
    Packet,
    after,
)
from truth_bench.sets import Side, Transmission, Wire

_EVER: Final = 1 << 62
_ATOMICS: Final = (CMP_SWAP, FETCH_ADD)
_REQUESTS: Final = frozenset(range(0x15)) - frozenset(RESPONSES)


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
    BEHIND_LATE = "it arrived, before one below it that was overtaken"
    SLOW = "it arrived, and the answer was not sent before the repeat came"
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


@dataclass(frozen=True)
class Drops:
    """What a fault dropped.

    Attributes:
        src: the sender of the packets.
        of: which packets, a name in ``experiments.OPCODES``.
        since_ns, until_ns: when it was there.
    """

    where: str
    src: str
    count: int
    of: str = "all"
    since_ns: int = 0
    until_ns: int = _EVER

    def may_hit(self, opcodes: Iterable[int], since_ns: int, until_ns: int) -> bool:
        """Whether it may have dropped a packet of some opcodes in a time."""
        masks = OPCODES[self.of]
        fits = not masks or any(opcode & mask == value for opcode in opcodes for value, mask in masks)
        return bool(self.count) and fits and since_ns <= self.until_ns and self.since_ns <= until_ns


class Judge:
    """Says what happened, for an experiment.

    What passed one capture first is told by the order of its file, not by its times: a packet that arrives is
    stamped when it is queued, and captured when the host takes it from the queue.

    Args:
        wire: both captures.
        drops: what the faults dropped, by their own counters.
    """

    def __init__(self, wire: Wire, drops: Sequence[Drops]) -> None:
        self.wire = wire
        self.drops = drops

    def lost_in_all(self, src: str | None = None) -> int:
        """How many packets of a sender (or of both) were dropped anywhere, or spoilt."""
        between = sum(p.missing + p.spoilt for p in self.wire.paths.values() if src in (None, p.src))
        return between + sum(d.count for d in self.drops if d.where != BETWEEN and src in (None, d.src))

    def _happens(
        self, where: str, src: str, opcodes: Collection[int], since_ns: int = 0, until_ns: int = _EVER
    ) -> bool:
        return any(
            d.where == where and d.src == src and d.may_hit(opcodes, since_ns, until_ns) for d in self.drops
        )

    # ------------------------------------------------------------------ requests

    @once
    def after_nak(self, side: Side, nak: Transmission) -> Fate:
        """Why a NAK "PSN sequence error" came."""
        if nak.sent is None:
            return OPEN
        psn, frame = nak.psn, nak.sent.frame
        if self._refused(side, psn, frame):
            return Fate(What.REFUSED)
        fates = {self._in_pass(side, psn, p, trigger, frame) for p, trigger in self._drew(side, psn, frame)}
        return fates.pop() if len(fates) == 1 else OPEN

    @once
    def in_hole(self, side: Side, psn: int, behind: Transmission) -> Fate:
        """Why a PSN is missing in front of a packet that arrived."""
        if not behind.arrived:
            return OPEN
        return self._in_pass(side, psn, behind.arrived[0], behind, behind.arrived[0].frame)

    @staticmethod
    def _drew(side: Side, psn: int, nak_frame: int) -> list[tuple[Packet, Transmission]]:
        """What may have drawn a NAK: what arrived above its PSN since the last packet that was not above.

        A packet that was lost behind the capture drew nothing, so any of them may be it; those of one pass
        give one answer.
        """
        first_of_pass: dict[int, tuple[Packet, Transmission]] = {}
        for packet, trigger in reversed(side.arrivals):
            if trigger.spoilt or packet.frame >= nak_frame:
                continue
            if after(trigger.psn, psn) <= 0:
                if side.has(trigger, psn) and not first_of_pass:
                    continue  # it came when the NAK was already being made
                break
            first_of_pass[trigger.passed] = (packet, trigger)
        return list(first_of_pass.values())

    @staticmethod
    def _refused(side: Side, psn: int, nak_frame: int) -> bool:
        """Whether the last answer before a NAK was an RNR NAK, whose PSN has not come again since."""
        for t in reversed(side.responses):
            if t.sent is not None and t.sent.frame < nak_frame and t.packet.syndrome >= 0:
                if t.packet.is_rnr:
                    again = any(
                        side.has(r, t.psn) and t.sent.frame < p.frame < nak_frame for p, r in side.arrivals
                    )
                    return after(psn, t.psn) >= 0 and not again
                if after(t.psn, psn) >= -1:
                    return False
        return False

    def _in_pass(self, side: Side, psn: int, packet: Packet, trigger: Transmission, nak_frame: int) -> Fate:
        """The fate of a PSN's copy in the pass of a packet above it, which arrived."""
        copies = [t for t in side.copies(psn) if t.passed == trigger.passed and not t.doubled]
        if not copies:
            lost = self._happens(BEFORE, side.src, _REQUESTS, until_ns=trigger.time_ns)
            return Fate(What.REQUEST, BEFORE, side.src) if lost else OPEN
        copy = copies[-1]
        if copy.spoilt:
            return Fate(What.SPOILT, BETWEEN, side.src)
        if not copy.arrived:
            return Fate(What.REQUEST, BETWEEN, side.src)
        came = copy.arrived[0]
        if came.frame > packet.frame:
            return Fate(What.LATE)
        if any(came.frame < p.frame < nak_frame and after(t.psn, psn) < 0 for p, t in side.arrivals):
            return Fate(What.BEHIND_LATE)
        if self._happens(BEHIND, side.src, (copy.packet.opcode,), came.time_ns, came.time_ns):
            return Fate(What.REQUEST, BEHIND, side.src)
        return OPEN

    # ------------------------------------------------------------------ repeats without a NAK

    @once
    def after_silence(self, side: Side, psn: int, repeat: Transmission | None) -> Fate:
        """Why a PSN was sent again (or would have been, at the end) without a NAK."""
        start = None if repeat is None else side.pass_start(repeat)
        start_ns = _EVER if start is None else start.time_ns
        earlier = [t for t in side.copies(psn) if t.number < _number(start) and not t.doubled]
        if not earlier:
            lost = self._happens(BEFORE, side.src, _REQUESTS, until_ns=start_ns)
            return Fate(What.REQUEST, BEFORE, side.src) if lost else Fate(What.NEVER_SENT)
        if start is not None and self._is_skipped(side, psn, start.passed - 1):
            lost = self._happens(BEFORE, side.src, _REQUESTS, until_ns=start_ns)
            return Fate(What.REQUEST, BEFORE, side.src) if lost else OPEN
        copy, repeat_frame = earlier[-1], self._repeat_came(side, start)
        answers = self._answers(side, psn, earlier[0], start, repeat_frame)
        thrown_away = answers is not None and answers.what is What.ANSWERED
        if not copy.arrived or (thrown_away and copy.packet.opcode in _ATOMICS):
            # The last copy counts: answers to those before it were lost, or the requester threw them away, as
            # it does with all behind a READ's or atomic's that it misses.
            answers = self._answers(side, psn, copy, start, repeat_frame)
        if answers is not None and answers.what is What.RESPONSE_LATE and not copy.arrived:
            return OPEN  # it was lost, and an answer to a copy before it came too late: both are the cause
        if answers is not None and answers.what is What.RESPONSE and len(earlier) > 1 and copy.arrived:
            last = self._answers(side, psn, copy, start, repeat_frame)
            if last is not None and last.what is What.RESPONSE and last.where != answers.where:
                return OPEN  # answers to two copies were lost, at two places
        if answers is not None:
            return answers
        if copy.spoilt:
            return Fate(What.SPOILT, BETWEEN, side.src)
        if not copy.arrived:
            return Fate(What.REQUEST, BETWEEN, side.src)
        came = copy.arrived[0]
        if came.frame > repeat_frame:
            return Fate(What.LATE)
        if any(
            t.packet.is_rnr
            and t.sent is not None
            and came.frame < t.sent.frame < repeat_frame
            and after(psn, t.psn) >= 0
            for t in side.responses
        ):
            return Fate(What.REFUSED)
        behind = self._happens(BEHIND, side.src, (copy.packet.opcode,), came.time_ns, came.time_ns)
        if self._gap(side, psn, came, repeat_frame):  # it was thrown away, and another PSN is the cause
            return OPEN if behind else Fate(What.BEHIND_GAP)
        before = self._happens(BEFORE, side.dst, _answer_opcodes(copy.packet.opcode), came.time_ns, start_ns)
        before = before and self._asks(side, psn, copy)
        return self._either(side, BEHIND if behind else None, response_before=before)

    @staticmethod
    def _asks(side: Side, psn: int, copy: Transmission) -> bool:
        """Whether a copy of a PSN, or what arrived behind it in its pass, asked for a response.

        rxe answers no other packet that arrives in its turn.
        """
        if copy.packet.opcode in (READ_REQUEST, *_ATOMICS):
            return True
        return any(
            t.packet.asks and t.passed == copy.passed and t.got_through and after(t.psn, psn) >= 0
            for t in side.requests
        )

    @staticmethod
    def _is_skipped(side: Side, psn: int, passed: int) -> bool:
        """Whether a pass lacks a PSN, but has packets on both sides of it, or from right behind it."""
        of_pass = [t for t in side.requests if t.passed == passed]
        below = any(side.has(t, psn - 1) or after(t.psn, psn) < 0 for t in of_pass)
        first = min((after(t.psn, psn) for t in of_pass), default=0)
        above = any(after(t.psn, psn) > 0 for t in of_pass)
        return above and (below or first == 1) and not any(side.has(t, psn) for t in of_pass)

    @staticmethod
    def _either(side: Side, request: str | None, *, response_before: bool) -> Fate:
        """A request lost somewhere, or its response before the first capture; open if both may be."""
        if request and response_before:
            return OPEN
        if request:
            return Fate(What.REQUEST, request, side.src)
        return Fate(What.RESPONSE, BEFORE, side.dst) if response_before else Fate(What.SLOW)

    def _answers(
        self, side: Side, psn: int, copy: Transmission, start: Transmission | None, repeat_frame: int
    ) -> Fate | None:
        """What became of the answers to a PSN before its repeat arrived; None if none was captured."""
        asked = copy.arrived[0].frame if copy.arrived else 0
        answers = [
            t
            for t in side.responses
            if t.sent is not None
            and asked <= t.sent.frame < repeat_frame
            and t.time_ns >= copy.time_ns
            and not t.doubled
            and self._answers_psn(t, psn, copy.packet.opcode)
        ]
        if not answers:
            return None
        came = [t.arrived[0] for t in answers if t.got_through]
        if not came:
            what = What.SPOILT if any(t.spoilt for t in answers) else What.RESPONSE
            return Fate(what, BETWEEN, side.dst)
        when = self._when(came, start)
        if all(self._happens(BEHIND, side.dst, (p.opcode,), p.time_ns, p.time_ns) for p in came):
            if when.what is not What.RESPONSE_LATE:
                return Fate(What.RESPONSE, BEHIND, side.dst)
            if start is not None and min(p.time_ns for p in came) < start.time_ns:
                return OPEN  # its time says that it came before, its place in the file that it came after
        return when

    @staticmethod
    def _when(came: Sequence[Packet], start: Transmission | None) -> Fate:
        """Whether answers came before a repeat was sent."""
        sent = _EVER if start is None or start.sent is None else start.sent.frame
        return Fate(What.ANSWERED if min(p.frame for p in came) < sent else What.RESPONSE_LATE)

    @staticmethod
    def _repeat_came(side: Side, start: Transmission | None) -> int:
        """The frame that arrived first of those that were sent after the requester had gone back."""
        if start is None:
            return _EVER
        return min((p.frame for p, t in side.arrivals if t.passed >= start.passed), default=_EVER)

    @staticmethod
    def _answers_psn(response: Transmission, psn: int, opcode: int) -> bool:
        """Whether a response says that a PSN arrived (of READs and atomics it must be the very one)."""
        packet = response.packet
        if opcode in _ATOMICS:
            return packet.opcode == ATOMIC_ACK and packet.psn == psn
        if opcode == READ_REQUEST:
            return packet.is_read_response and packet.psn == psn
        if packet.is_read_response or packet.opcode == ATOMIC_ACK:
            return packet.psn == psn
        if packet.is_sequence_nak:
            return after(packet.psn, psn) > 0
        return packet.is_ack and after(packet.psn, psn) >= 0

    @staticmethod
    def _gap(side: Side, psn: int, came: Packet, until: int) -> bool:
        """Whether something below a PSN was missing when its copy arrived, and until its repeat arrived."""
        for t in reversed([t for t in side.responses if t.sent is not None and t.sent.frame < until]):
            assert t.sent is not None
            if t.packet.is_sequence_nak:
                closed = any(
                    t.sent.frame < p.frame < came.frame and side.has(r, t.psn) for p, r in side.arrivals
                )
                return after(t.psn, psn) < 0 and not closed
            if t.packet.is_ack and t.sent.frame > came.frame and after(t.psn, psn) >= 0:
                return False
        return False

    # ------------------------------------------------------------------ responses

    @once
    def of_response(self, side: Side, psn: int, repeat: Transmission | None) -> Fate:
        """Why a READ's response, or an atomic's, was requested again."""
        start = None if repeat is None else side.pass_start(repeat)
        repeat_frame = self._repeat_came(side, start)
        sent = [t for t in side.data_responses() if t.sent is not None and t.sent.frame < repeat_frame]
        # Of the times that the responder began anew, the last one counts that reached as low as this PSN.
        passes = [t.passed for t in sent if after(t.psn, psn) <= 0]
        copies = [t for t in sent if t.psn == psn and t.passed == max(passes)] if passes else []
        if not copies:
            return self._no_response(side, psn, start)
        copy = copies[-1]
        if copy.spoilt:
            return Fate(What.SPOILT, BETWEEN, side.dst)
        if not copy.arrived:
            return Fate(What.RESPONSE, BETWEEN, side.dst)
        came = copy.arrived[0]
        if self._overtaken(side, copy, came):
            return Fate(What.RESPONSE_LATE)
        if any(t.passed == copy.passed and after(t.psn, psn) < 0 and _came_behind(t, came) for t in sent):
            return Fate(What.BEHIND_LATE)
        behind = self._happens(BEHIND, side.dst, (came.opcode,), came.time_ns, came.time_ns)
        when = self._when([came], start)
        if when.what is What.RESPONSE_LATE and behind and start is not None and came.time_ns < start.time_ns:
            return OPEN  # its time says that it came before, its place in the file that it came after
        if when.what is What.RESPONSE_LATE and start is not None:
            return self._skipped_response(side, psn, start, sent) or when
        return Fate(What.RESPONSE, BEHIND, side.dst) if behind else when

    @staticmethod
    def _skipped_response(
        side: Side, psn: int, start: Transmission, sent: Sequence[Transmission]
    ) -> Fate | None:
        """A PSN's response that was lost, and one behind it in its pass came before the repeat was sent.

        Then a later pass, whose response came behind the repeat, is not why the requester asked again.
        """
        own = start.sent.frame if start.sent is not None else 0
        back = min(
            (t.sent.frame for t in side.requests if t.sent and t.passed == start.passed - 1), default=0
        )
        passes = [
            t.passed
            for t in sent
            if after(t.psn, psn) > 0 and t.got_through and back < t.arrived[0].frame < own
        ]
        copies = [t for t in sent if t.psn == psn and passes and t.passed == max(passes)]
        if copies and not any(t.arrived for t in copies):
            return Fate(What.RESPONSE, BETWEEN, side.dst)
        return None

    @staticmethod
    def _overtaken(side: Side, copy: Transmission, came: Packet) -> bool:
        return any(
            t.arrived and t.arrived[0].frame < came.frame and t.time_ns > copy.time_ns for t in side.responses
        )

    def _no_response(self, side: Side, psn: int, start: Transmission | None) -> Fate:
        """No response was captured: the request was lost, or its response before the first capture."""
        start_ns = _EVER if start is None else start.time_ns
        requests = [t for t in side.copies(psn) if t.number < _number(start) and not t.doubled]
        if not requests:
            lost = self._happens(BEFORE, side.src, _REQUESTS, until_ns=start_ns)
            return Fate(What.REQUEST, BEFORE, side.src) if lost else Fate(What.NEVER_SENT)
        copy = requests[-1]
        if copy.spoilt:
            return Fate(What.SPOILT, BETWEEN, side.src)
        if not copy.arrived:
            return Fate(What.REQUEST, BETWEEN, side.src)
        came_ns = copy.arrived[0].time_ns
        opcode = copy.packet.opcode
        behind = self._happens(BEHIND, side.src, (opcode,), came_ns, came_ns)
        before = self._happens(BEFORE, side.dst, _answer_opcodes(opcode), came_ns, start_ns)
        return self._either(side, BEHIND if behind else None, response_before=before)

    # ------------------------------------------------------------------ what is no loss

    def other_loss(self, side: Side, psn: int, repeat: Transmission) -> Fate | None:
        """A loss behind a PSN in the pass before a repeat, of which the repeat may be the effect too."""
        since = side.pass_start(repeat).passed - 1
        for t in side.requests:
            if t.passed == since and after(t.psn, psn) > 0 and not t.got_through:
                return Fate(What.REQUEST, BETWEEN, side.src)
        for where in (BEFORE, BEHIND):
            if self._happens(where, side.src, _REQUESTS, until_ns=repeat.time_ns):
                return OPEN
        return None

    def was_doubled(self, psn: int) -> bool:
        """Whether any packet with a PSN came twice."""
        return any(
            t.psn == psn and (t.doubled or len(t.arrived) > 1)
            for path in self.wire.paths.values()
            for t in path.sent
        )

    def was_spoilt(self, psn: int) -> bool:
        """Whether any packet with a PSN was corrupted, or came with this PSN by corruption."""
        return any(
            t.spoilt and psn in (t.psn, *(p.psn for p in t.arrived))
            for path in self.wire.paths.values()
            for t in path.sent
        )

    @staticmethod
    def overtaken(side: Side) -> set[int]:
        """The PSNs of which a copy arrived after a request, or a response, that was sent later."""
        found = set()
        for kind in (side.requests, side.responses):
            latest_ns = 0
            for t in sorted((t for t in kind if t.arrived), key=lambda t: t.arrived[0].frame):
                if t.time_ns < latest_ns:
                    found.add(t.psn)
                latest_ns = max(latest_ns, t.time_ns)
        return found

    def rnr_naks(self, sides: Iterable[Side], point: str) -> int:
        """How many RNR NAKs a capture has (``va``, ``vb``), or both together (``both``)."""
        ts = [t for side in sides for t in side.responses if t.packet.is_rnr]
        if point == "both":
            return len(ts)
        here = self.wire.hosts[["va", "vb"].index(point)]
        return sum((t.sent is not None) if t.packet.src == here else bool(t.arrived) for t in ts)


def _came_behind(t: Transmission, came: Packet) -> bool:
    return bool(t.arrived) and t.arrived[0].frame > came.frame


def _number(start: Transmission | None) -> int:
    return _EVER if start is None else start.number


def _answer_opcodes(opcode: int) -> Collection[int]:
    """How a request is answered."""
    if opcode == READ_REQUEST:
        return READ_RESPONSES
    return (ATOMIC_ACK,) if opcode in _ATOMICS else (ACK,)


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
