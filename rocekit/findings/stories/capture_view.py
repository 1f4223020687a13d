"""The packets of one direction as several captures have them, in the order in which requests pass these."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

from rocekit.files.frame_names import FRAME_MASK
from rocekit.findings.stories.doubts import GAPPY
from rocekit.findings.stories.loss_place import BEFORE, BETWEEN, BEYOND, LossPlace
from rocekit.track.repeats import REORDERS
from rocekit.wire import NAK, OPCODE_NAMES, RNR_NAK, syndrome_kind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rocekit.findings.evidence import Evidence
    from rocekit.findings.stories.story import Story
    from rocekit.points.sightings import Transmission
    from rocekit.track.events import Event

_ACK: Final = OPCODE_NAMES["RC_ACKNOWLEDGE"]
#: Why a packet counts as lost nowhere: a later one arrived first, or it arrived behind a gap.
OVERTAKEN, THROWN_AWAY = "overtaken", "thrown away"
#: How many PSNs before and behind a packet are searched for one that it overtook, or that overtook it.
NEAR: Final = 128
#: How many of the PSNs that an answer acknowledges are searched for packets that are sent again behind it.
_BEFORE: Final = 64


class CaptureView:
    """The packets of one story's direction, at every capture point."""

    def __init__(self, evidence: Evidence, story: Story, bad: frozenset[int]) -> None:
        assert evidence.sightings is not None
        self.sightings = evidence.sightings
        self.connection, self.side = story.connection, story.side
        ips = story.connection.ips
        self.requester, self.responder = hosts = ips[story.side], ips[1 - story.side]
        #: Corrupted packets: a receiver drops them, so such a packet did not reach its capture point.
        self._bad = bad
        # A view is made for each story: only the paths between its hosts are looked at.
        paths, back = (
            [] if evidence.paths is None else evidence.paths.of(src or "", dst or "")
            for src, dst in (hosts, hosts[::-1])
        )
        self._one_direction = {path.second for path in (*paths, *back) if path.unrecorded}
        shares = {} if evidence.paths is None else evidence.paths.missed_shares
        #: The captures that lack so many packets that one which they have not need not be lost.
        self.gappy = {file for file in self.points if shares.get(file, 0) > GAPPY}
        #: Whether no offset fits the clocks, so that times do not tell the order among the captures.
        self.unaligned = any((p.src, p.dst) in self.sightings.unaligned for p in (*paths, *back))
        #: Whether that order is not known, for this or because so many came twice, or were overtaken.
        changed = sum(path.doubled + path.overtaken for path in paths)
        self.disordered = self.unaligned or changed >= REORDERS
        #: Whether any was overtaken; and of the responses.
        self.overtakes = any(path.overtaken for path in paths)
        self.overtakes_responses = any(path.overtaken for path in back)
        #: Whether requests came twice between the captures, more often than once or twice.
        self.doubles = sum(path.doubled for path in paths) >= REORDERS
        #: Whether the story's requester had a NAK for what it sent again, and no ACK of it.
        self.refused = False
        self._passed_ns: dict[int, list[int]] = {}
        self._covered = {(p.src, p.first, p.second): p.covered for p in (*paths, *back)}
        #: Those that lack any.
        self.lacking = {file for file in self.points if shares.get(file, 0) > 0}

    @cached_property
    def points(self) -> tuple[int, ...]:
        """The captures of both directions, in the order in which requests pass them; empty if unknown."""
        if self.requester is None or self.responder is None:
            return ()
        points = self.sightings.points(self.requester, self.responder)
        both = tuple(file for file in points if file not in self._one_direction)
        return both if len(both) > 1 or both == points else ()

    def is_sent(self, frame: int) -> bool:
        """Whether the requester's own capture has a packet."""
        row = self.sightings.row_of(frame)
        return row < 0 or self.points[0] in self.sightings.times_of(row)

    def is_skipped(self, psn: int, until_ns: int, *, or_later: bool = False) -> bool:
        """Whether the last packets around a PSN came to the first capture one after the other, without it.

        Args:
            or_later: nor did it come behind them.
        """
        before, own, behind = (
            [t.time_ns for t in self.sent(p, request=True) if t.time_ns < until_ns]
            for p in (psn - 1, psn, psn + 1)
        )
        last_ns = max(behind, default=0)
        since_ns = max((ns for ns in before if ns < last_ns), default=last_ns)
        end_ns = until_ns if or_later else last_ns
        return since_ns < last_ns and not any(since_ns < ns < end_ns for ns in own)

    def is_sure(self, place: LossPlace, story: Story) -> bool:
        """Whether the capture that shows a loss by what it has not ran when the packet was sent.

        A packet in no capture was lost before the first one, or missed there as others were.
        """
        if place.where == BEYOND:
            return True
        if place.where == BEFORE and place.files[-1] in self.lacking:
            return False
        first_ns, last_ns = self.sightings.spans[place.files[-1]]
        if not self.was_running(place):
            return False
        if place.seen:
            times = [int(self.sightings.time_ns[self.sightings.row_of(frame)]) for frame in place.seen]
        else:
            times = _times_of(story)
        return first_ns <= min(times) and max(times) <= last_ns

    def covers(self, story: Story) -> bool:
        """Whether all captures were running when a story happened, from the pass on that it tells of."""
        times = _times_of(story)
        since_ns, until_ns = min(times), max(times)
        return all(begun <= since_ns and until_ns <= end for begun, end in self._covered.values())

    def was_running(self, place: LossPlace) -> bool:
        """Whether the second of two captures was still running, or already, when the packet would pass it."""
        if place.where != BETWEEN:
            return True
        row = self.sightings.row_of(place.seen[0])
        first, second = place.files
        at_ns = self.sightings.times_of(row).get(first)
        covered = self._covered.get((place.sender, first, second))
        return at_ns is None or covered is None or covered[0] <= at_ns <= covered[1]

    def has_estimated_order(self, story: Story) -> bool:
        """Whether no capture has a late packet of a story behind a packet that overtook it.

        Of a packet that only one capture has and another that only another one has, the times that were
        estimated for the merged order may tell the wrong one. A repeat or a response that all of them have
        is in its place.
        """
        openers = [run.opener for run in story.go_backs if run.is_late]
        if story.of_response and not story.late:
            events = (e for run in story.runs() for t in run.transfers for e in t.events)
            psns = {run.first_psn for run in story.runs()}
            openers += [e for e in events if e.kind == "response_late" and e.psn in psns]
        again = [row for row in map(self.sightings.row_of, (e.frame for e in openers)) if row >= 0]
        if any(len(self.sightings.times_of(row)) == len(self.sightings.names) for row in again):
            return False
        rows = (self.sightings.row_of(event.frame) for event in reversed(story.late))
        found = [*(row for row in rows if row >= 0), *again]
        return bool(found) and not any(self.sightings.is_overtaken(row, NEAR) for row in found)

    def is_answered_between(self, story: Story) -> bool:
        """Whether a capture has an answer to a story's PSN, or to one behind it, before its first repeat.

        That the merged order has one there says little, where the capture with the answer lacks the repeat.
        """
        row = self.sightings.row_of(story.runs()[0].frame)
        if row < 0:
            return True
        repeat_ns = self.sightings.times_of(row)
        return any(
            ns < repeat_ns.get(file, 0)
            for psn in range(story.psn, story.psn + NEAR)
            for t in self.sent(psn, request=False)
            if psn > story.psn or not self._is_refusal(t)
            for file, ns in t.times_ns.items()
        )

    def _is_refusal(self, answer: Transmission) -> bool:
        """Whether an answer is a NAK or RNR NAK, which does not say that its own PSN came."""
        row = self.sightings.row_of(next(iter(answer.frames.values())))
        is_nak = row >= 0 and syndrome_kind(int(self.sightings.syndrome[row])) in (NAK, RNR_NAK)
        return is_nak and self.is_acknowledge(answer)

    def is_acknowledge(self, answer: Transmission) -> bool:
        """Whether an answer is an ACK or a NAK (alike where cut), and no response to a READ or atomic."""
        row = self.sightings.row_of(next(iter(answer.frames.values())))
        return row >= 0 and int(self.sightings.opcode[row]) == _ACK

    def sent(self, psn: int, *, request: bool) -> list[Transmission]:
        side = self.side if request else 1 - self.side
        found = self.sightings.transmissions(self.connection, side, psn, request=request)
        return [t for t in found if self._bad.isdisjoint(t.frames.values())]

    def may_be_another(self, place: LossPlace) -> bool:
        """Whether a request that was lost may be one like it that arrived, and that one was lost instead.

        A packet may take as long as others with its PSN did, and longer.
        """
        first, last = self.points[0], self.points[-1]
        sent = self.sent(place.psn, request=True)
        arrived = [(t.times_ns[first], t.times_ns[last]) for t in sent if {first, last} <= t.times_ns.keys()]
        longest_ns = max((came - went for went, came in arrived), default=0)
        return place.where == BETWEEN and any(
            0 < came - t.times_ns[first] <= 2 * longest_ns
            for t in sent
            if first in t.times_ns and last not in t.times_ns and t.frames[first] in place.seen
            for _, came in arrived
        )

    def last_sent(
        self, psn: int, since_ns: int, until_ns: int, *, request: bool = True
    ) -> Transmission | None:
        """The last packet with a PSN that was sent in a time."""
        found = [t for t in self.sent(psn, request=request) if since_ns <= t.time_ns < until_ns]
        return found[-1] if found else None

    def misses_repeat(self, psn: int, since_ns: int) -> bool:
        """Whether the first point lacks a request's repeat, which the last has.

        Of two alike each point has another one then, and the last may have missed the request, too.
        """
        repeats = [t for t in self.sent(psn, request=True) if t.time_ns >= since_ns]
        return bool(repeats) and not any(self.points[0] in t.times_ns for t in repeats)

    def is_sent_at(self, psn: int, time_ns: int) -> bool:
        """Whether a packet with a PSN has just this time."""
        return any(t.time_ns == time_ns for t in self.sent(psn, request=True))

    def is_behind(self, sent: Transmission, naks: Iterable[Event]) -> bool:
        """Whether the last point has a packet behind all of a story's NAKs, by its times or by its file."""
        last = self.points[-1]
        for row in (self.sightings.row_of(nak.frame) for nak in naks):
            number = 0 if row < 0 else int(self.sightings.frames[last][row])
            before = sent.frames[last] & FRAME_MASK < number
            if not number or (before and sent.times_ns[last] < int(self.sightings.seen_ns[last][row])):
                return False
        return True

    def may_be_repeat(self, sent: Transmission, naks: Iterable[Event]) -> bool:
        """Whether the last point may have a repeat, which the first misses, and not the packet taken for it.

        Without identifications nothing tells them apart, once NAKs have asked for it.
        """
        row = self.sightings.row_of(sent.frames[self.points[-1]])
        unidentified = row >= 0 and not int(self.sightings.ip_id[row])
        return unidentified and self.points[0] in self.lacking and self.is_behind(sent, naks)

    def missed_copy(self, sent: Transmission | None, psn: int, naks: Iterable[Event]) -> Transmission | None:
        """Of a copy of a PSN and those before it the last one that NAKs can have missed.

        One that came behind them was missed only where something above it, sent after it, came before them.
        """
        while sent is not None and self.points[-1] in sent.times_ns and self.is_behind(sent, naks):
            if self._may_have_drawn(psn, sent, naks):
                break
            sent = self.last_sent(psn, 0, sent.time_ns)
        return sent

    def _may_have_drawn(self, psn: int, sent: Transmission, naks: Iterable[Event]) -> bool:
        """Whether the last point's file has what was sent behind a packet, above its PSN, before a NAK.

        Of what the first point lacks, nobody knows when it was sent.
        """
        first, last = self.points[0], self.points[-1]
        rows = [self.sightings.row_of(nak.frame) for nak in naks]
        latest = max((int(self.sightings.frames[last][row]) for row in rows if row >= 0), default=0)
        return any(
            t.times_ns.get(first, 0) > sent.sent_ns
            and last in t.frames
            and t.frames[last] & FRAME_MASK < latest
            for q in range(psn + 1, psn + NEAR)
            for t in self.sent(q, request=True)
        )

    def place(self, psn: int, sent: Transmission | None, *, request: bool = True) -> LossPlace:
        """Where a packet was lost that arrived nowhere behind the last point that has it."""
        points = self.points if request else self.points[::-1]
        sender = (self.requester if request else self.responder) or "?"
        reached = (
            -1 if sent is None else max((points.index(f) for f in sent.frames if f in points), default=-1)
        )
        seen = () if sent is None else tuple(sent.frames.values())
        if reached < 0:
            return LossPlace(psn, BEFORE, points[:1], sender, seen)
        if reached == len(points) - 1:
            return LossPlace(psn, BEYOND, points[-1:], sender, seen)
        return LossPlace(psn, BETWEEN, points[reached : reached + 2], sender, seen)

    def order(self, psn: int, sent: Transmission, since_ns: int, *, request: bool = True) -> str:
        """Whether a packet that reached the last point was overtaken there, or arrived behind a gap.

        Of what the first point lacks, nobody knows when it was sent.
        """
        first, last = self.points[0], self.points[-1]
        if not request:
            first, last = last, first
        if first not in sent.times_ns:
            return ""
        arrived_ns = sent.times_ns[last]

        def others(q: int) -> list[Transmission]:
            return [
                t
                for t in self.sent(q, request=request)
                if first in t.times_ns and last in t.times_ns and t.time_ns >= since_ns
            ]

        for q in range(psn + 1, psn + NEAR):
            if any(t.sent_ns > sent.sent_ns and t.times_ns[last] < arrived_ns for t in others(q)):
                return OVERTAKEN
        for q in range(psn - 1, max(psn - NEAR, 0), -1):
            if any(t.sent_ns < sent.sent_ns and t.times_ns[last] > arrived_ns for t in others(q)):
                return THROWN_AWAY
        return ""

    def may_be_thrown_away(self, psn: int, answer: Transmission, until_ns: int) -> bool:
        """Whether a requester may have thrown an answer away that came to it: it takes them in order.

        The answer to a later PSN came before, since the requester last sent this one. Or one to an earlier
        PSN came behind it, before ``until_ns``, when the requester went back to this one. By their times, or
        by the file: the requester may have taken them in that order.
        """
        first = self.points[0]
        came_ns = answer.times_ns.get(first)
        if came_ns is None:
            return False
        asked_ns = max((ns for ns in self._sent_ns(psn) if ns < came_ns), default=0)
        number = answer.frames[first]

        def answers(psns: Iterable[int]) -> list[Transmission]:
            return [t for q in psns for t in self.sent(q, request=False) if first in t.times_ns]

        return any(
            asked_ns < t.times_ns[first] and (t.times_ns[first] < came_ns or t.frames[first] < number)
            for t in answers(range(psn + 1, psn + NEAR))
        ) or any(
            t.times_ns[first] < until_ns and (came_ns < t.times_ns[first] or number < t.frames[first])
            for t in answers(range(max(psn - NEAR, 0), psn))
        )

    def is_answer_skipped(self, psn: int, until_ns: int) -> bool:
        """Whether answers to later PSNs came, and none to this one, since the requester last sent its PSN."""
        first = self.points[0]
        asked_ns = max((ns for ns in self._sent_ns(psn) if ns < until_ns), default=0)
        own, *later = (
            any(asked_ns < t.times_ns.get(first, 0) < until_ns for t in self.sent(q, request=False))
            for q in range(psn, psn + NEAR)
        )
        return any(later) and not own

    def is_early_in_file(self, psn: int, sent: Transmission, since_ns: int) -> bool:
        """Whether the last point's file has a packet before lower ones of its pass, though its time is later.

        The file's order may be the one in which the responder took them: then it threw this one away.
        """
        last = self.points[-1]
        number = sent.frames.get(last)
        return number is not None and any(
            t.sent_ns < sent.sent_ns and t.time_ns >= since_ns and t.frames.get(last, 0) > number
            for q in range(psn - 1, max(psn - NEAR, 0), -1)
            for t in self.sent(q, request=True)
        )

    def is_behind_in_file(self, answer: Transmission, frame: int) -> bool:
        """Whether the first capture's file has an answer behind a frame of it, whatever their times say."""
        first = self.points[0]
        row, own = self.sightings.row_of(frame), answer.frames.get(first)
        number = 0 if row < 0 else int(self.sightings.frames[first][row])
        return own is not None and 0 < number < own & FRAME_MASK

    def is_taken(self, psn: int, answer: Transmission, until_ns: int) -> bool:
        """Whether a requester took an answer that came to it, as far as its capture shows.

        rxe takes no ACK of a message of which it has still to send packets again (Linux ``rxe_comp.c``). So
        where packets that the answer acknowledges were sent again behind it, before ``until_ns``, it need not
        have been lost.
        """
        came_ns = answer.times_ns.get(self.points[0])
        if came_ns is None:
            return True
        return not any(
            sent and sent[0] < came_ns and any(came_ns < ns < until_ns for ns in sent)
            for sent in map(self._sent_ns, range(max(psn - _BEFORE, 0) + 1, psn + 1))
        )

    def _sent_ns(self, psn: int) -> list[int]:
        """When a PSN passed the first capture, in order; many answers ask for the same."""
        known = self._passed_ns.get(psn)
        if known is None:
            first = self.points[0]
            times = (t.times_ns.get(first) for t in self.sent(psn, request=True))
            known = self._passed_ns[psn] = sorted(ns for ns in times if ns is not None)
        return known


def _times_of(story: Story) -> list[int]:
    """When a story happened: its events, the silence before its repeat, and when the passes began."""
    openers = [*story.naks, *(run.opener for run in story.go_backs)]
    times = [story.first_ns(), *(event.time_ns for event in openers)]
    if story.go_backs and not story.naks:  # what was missed was sent before the silence
        times.append(story.go_backs[0].time_ns - story.go_backs[0].opener.waited_ns)
    return times + [e.of_pass.began_ns for e in openers if e.of_pass is not None and e.of_pass.began_ns]
