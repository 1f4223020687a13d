"""Joins the events of one direction of a connection to stories, in order of time, where they have one cause.

A capture with losses has many of them, so this is compiled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocekit import wire
from rocekit.findings.stories import DUPLICATE, REORDERING, is_sequence_nak
from rocekit.findings.stories.story import Story, gone_back
from rocekit.track.passes import SELECTIVE
from rocekit.track.transfers import ACKED

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.findings.stories.story import GoBack
    from rocekit.track.connections import Connection
    from rocekit.track.events import Event
    from rocekit.track.transfers import Transfer

#: A requester that sends again after less than this share of the advertised RNR timer did not wait.
_WAITED: Final = 0.9
#: No requester, however wrong its timer, sends again after so small a share of it.
_AT_ONCE: Final = 0.05
#: A packet that comes again so soon was duplicated by the network.
_AT_ONCE_NS: Final = 50_000
#: How many of the latest holes are searched for a PSN.
_RECENT_HOLES: Final = 256
#: How many of the latest stories are searched for the one that an event belongs to.
_RECENT: Final = 64

#: An event, and the transfer that it lies on.
_Mark = tuple["Event", "Transfer | None"]


def marks_of(evidence: Evidence) -> dict[tuple[int, int], list[_Mark]]:
    """The events by (connection id, requester's side), in order of time."""
    found: dict[tuple[int, int], list[_Mark]] = {}
    for transfer in evidence.transfers:
        if transfer.events:
            key = transfer.connection.id, transfer.side
            marks = found.get(key)
            if marks is None:
                marks = found[key] = []
            for event in transfer.events:
                marks.append((event, transfer))
    for connection in evidence.connections:
        for event in connection.stray_events:
            marks = found.setdefault((connection.id, event.side), [])
            marks.append((event, None))
    for marks in found.values():
        if not _are_in_order(marks):
            marks.sort(key=_when)
    return found


def _are_in_order(marks: list[_Mark]) -> bool:
    """Whether events are in order of time already, as those of one transfer are, and those of a flood."""
    time_ns = frame = -1
    for event, _ in marks:
        if event.time_ns < time_ns or (event.time_ns == time_ns and event.frame < frame):
            return False
        time_ns, frame = event.time_ns, event.frame
    return True


def _when(mark: _Mark) -> tuple[int, int]:
    event, _ = mark
    return event.time_ns, event.frame


def _is_next_after_hole(story: Story, psn: int) -> bool:
    """Whether a PSN follows the story's hole, and its packet came before the late one and drew the NAK."""
    return bool(story.naks) and story.hole is not None and psn == story.hole.last_psn + 1


def _is_copy_in_wait(story: Story, run: GoBack, before: list[Story]) -> bool:
    """Whether a single packet, sent while its requester waits after an RNR NAK, is a copy of an earlier one.

    For the PSN of the RNR NAK itself this holds only if the packet came at once, or if its first
    transmission is not in the capture: then this is the first one, late.
    """
    if not story.rnrs or run.packets != 1 or run.resent or run.cause == "nak":
        return False
    waited_ns = run.time_ns - story.rnrs[-1].time_ns
    unseen = False
    for other in before[-2:-1]:
        for earlier in other.go_backs:
            unseen = unseen or (earlier.first_sight > 0 and other.psn == story.psn)
    share = _AT_ONCE if run.first_psn == story.psn and not unseen else _WAITED
    timer_ns = wire.rnr_wait_ns(story.rnrs[-1].syndrome or 0)
    return waited_ns < share * timer_ns


class StoryBuilder:
    """Puts the events of one direction of a connection together as stories."""

    def __init__(self, connection: Connection, side: int, marks: list[_Mark]) -> None:
        self.connection = connection
        self.side = side
        self.marks = marks
        self.stories: list[Story] = []
        self.holes: list[Event] = []
        self.response_holes: list[Event] = []
        self.late_responses: list[Story] = []
        # How many of the latest stories have neither NAKs nor go-backs, at least: of a flood of late packets
        # all have none.
        self.quiet = 0
        self.going_back = self._runs()

    def _runs(self) -> dict[int, GoBack]:
        runs: dict[int, GoBack] = {}
        for event, transfer in self.marks:
            if event.kind != "repeat":
                continue
            run = runs.get(event.run)
            if run is None:
                run = runs[event.run] = gone_back(event)
            run.add(event, transfer)
        return runs

    def build(self) -> list[Story]:
        for event, transfer in self.marks:
            kind = event.kind
            if kind == "repeat":
                run = self.going_back.pop(event.run, None)
                if run is not None:
                    self._add_repeat(run)
            elif kind == "hole":
                self.holes.append(event)
            elif kind == "late":
                self._add_late(event, transfer)
            elif kind == "response_hole":
                self.response_holes.append(event)
            elif kind == "response_late":
                self._add_late_response(event, transfer)
            elif kind == "rnr_nak" or (kind == "nak" and is_sequence_nak(event)):
                self._add_nak(event, transfer)
        self._find_passed()
        return self.stories + self.late_responses

    def _find_passed(self) -> None:
        """A requester goes back to its oldest packet without acknowledgement: those before it have theirs."""
        latest = -1
        for story in reversed(self.stories):
            story.passed = story.psn < latest
            for run in story.runs():
                if run.first_psn > latest:
                    latest = run.first_psn

    def _hole(self, psn: int) -> Event | None:
        """The latest hole that contains a PSN."""
        at = len(self.holes)
        last = max(0, at - _RECENT_HOLES)
        while at > last:
            at -= 1
            hole = self.holes[at]
            if hole.psn <= psn <= hole.last_psn:
                return hole
        return None

    def _new(self, psn: int) -> Story:
        story = Story(self.connection, self.side, psn)
        story.hole = self._hole(psn)
        self.stories.append(story)
        self.quiet += 1
        return story

    def _last(self) -> Story | None:
        return self.stories[-1] if self.stories else None

    def _add_late(self, event: Event, transfer: Transfer | None) -> None:
        at, end = len(self.stories), self._first_recent()
        if self.quiet >= _RECENT:
            at = end
        while at > end:
            at -= 1
            story = self.stories[at]
            if story.psn == event.psn and (story.naks or story.go_backs):
                story.add_late(event)  # the missing packet, perhaps sent again already
                return
        story = self._new(event.psn)
        story.add_late(event)
        story.add_transfer(transfer)

    def _add_late_response(self, event: Event, transfer: Transfer | None) -> None:
        """Responses that were overtaken: a story for themselves, because most draw no go-back."""
        holes = self.response_holes[-_RECENT_HOLES:]
        hole = next((h for h in reversed(holes) if h.psn <= event.psn <= h.last_psn), None)
        story = Story(self.connection, self.side, event.psn, REORDERING)
        story.hole, story.late, story.of_response = hole, [event], True
        story.add_transfer(transfer)
        self.late_responses.append(story)

    def _add_nak(self, event: Event, transfer: Transfer | None) -> None:
        self._put_nak(event, transfer)
        self.quiet = 0

    def _put_nak(self, event: Event, transfer: Transfer | None) -> None:
        story = self._last()
        same = story is not None and story.psn == event.psn and not self._is_acked(story, event.time_ns)
        if event.kind == "rnr_nak":
            if story is None or not same or (story.naks and not story.rnrs):
                story = self._new(event.psn)
            story.add_rnr(event)
        elif (
            story is not None and story.late and not story.go_backs and _is_next_after_hole(story, event.psn)
        ):
            story.add_nak(event)  # the packet that came too early was dropped, and is missing next
        else:
            late = self._was_only_late(event.psn)
            if late is not None:
                story = late
                story.go_backs[0].be_late()
                story.certain = False  # or what the go-back sent behind it was lost again
            else:
                late_before = story is not None and story.psn == event.psn and story.late and not story.naks
                if story is None or not (same or late_before):
                    story = self._new(event.psn)
            story.add_nak(event)
        story.add_transfer(transfer)

    def _add_repeat(self, run: GoBack) -> None:
        self._put_repeat(run)
        self.quiet = 0

    def _put_repeat(self, run: GoBack) -> None:
        story = self._last()
        if story is not None and _is_copy_in_wait(story, run, self.stories):
            copy = Story(self.connection, self.side, run.first_psn, DUPLICATE)
            copy.add_go_back(run)
            copy.add_transfers_of(run)
            self.stories.insert(-1, copy)  # the requester still waits: its story stays the last one
            return
        story = self._resume_nak(run) or story
        if story is None or not self._belongs(story, run):
            story = self._resume_rnr_wait(run) or self._new(run.first_psn)
        story.add_go_back(run)
        story.add_transfers_of(run)

    def _resume_nak(self, run: GoBack) -> Story | None:
        """The story whose NAK a run obeys, made the last story again; only late packets came in between."""
        if run.cause != "nak":
            return None
        at, end, found = len(self.stories), self._first_recent(), -1
        while at > end:
            at -= 1
            story = self.stories[at]
            if story.naks and story.psn <= run.last_psn and not story.runs():
                # Packets of the go-back itself may be out of order, so that another PSN comes first. Of
                # several NAKs that are under way at once, a requester obeys each in its turn.
                if story.psn == run.first_psn:
                    return self._made_last(at)
                found = at if found < 0 else found
            elif story.naks or story.rnrs or story.go_backs:
                break
        return None if found < 0 else self._made_last(found)

    def _resume_rnr_wait(self, run: GoBack) -> Story | None:
        """The story whose RNR wait a run ends, made the last story again; another one came in between."""
        if run.cause != "rnr":
            return None
        at, end = len(self.stories), self._first_recent()
        while at > end:
            at -= 1
            story = self.stories[at]
            waits = story.rnrs and story.psn == run.first_psn and not self._is_acked(story, run.time_ns)
            if not waits:
                continue
            asked, resumed = story.rnrs[-1], False
            for earlier in story.go_backs:
                resumed = resumed or earlier.time_ns > asked.time_ns
            if not resumed:
                return self._made_last(at)
        return None

    def _first_recent(self) -> int:
        """The place of the first of the latest stories."""
        return max(0, len(self.stories) - _RECENT)

    def _made_last(self, at: int) -> Story:
        story = self.stories[at]
        if at < len(self.stories) - 1:
            del self.stories[at]
            self.stories.append(story)
        return story

    def _is_acked(self, story: Story, time_ns: int) -> bool:
        """Whether the story's PSN was acknowledged by then."""
        transfer = story.held_by()
        if transfer is None or transfer.acked_ns is None or not transfer.first_psn <= story.psn:
            return False
        return transfer.status == ACKED and transfer.acked_ns <= time_ns and transfer.last_psn >= story.psn

    def _belongs(self, story: Story, run: GoBack) -> bool:
        """Whether a run belongs to the last story."""
        if story.naks and run.first_psn == story.psn and not story.runs():
            return True  # the NAK's go-back, even if the PSN came late and was acknowledged before it
        if story.naks and run.cause == "nak" and run.first_psn > story.psn and not story.runs():
            return True  # the NAK's go-back, of which the capture lacks the first packets
        last = story.go_backs[-1] if story.go_backs else None
        if (
            last is not None
            and run.first_psn == last.last_psn + 1
            and run.cause == last.cause in ("nak", "rnr")
        ):
            return True  # one go-back, cut in two by a response
        if (
            story.naks
            and last is not None
            and run.first_psn == story.psn
            and self._only_fills_hole(story, last)
        ):
            # So soon, and without identifications, the network may have made a copy of what was sent again.
            at_once = run.time_ns - last.time_ns < _AT_ONCE_NS and not last.opener.ip_id
            cut = _is_cut_go_back(last, run)
            if not cut:
                last.be_late()
            if at_once or (cut and not last.resent):
                story.certain = False  # without an identification it may have been late all the same
            return True
        if run.after_ack or self._is_acked(story, run.time_ns):
            return False
        return run.first_psn <= story.psn <= run.last_psn

    def _was_only_late(self, psn: int) -> Story | None:
        """The story of a NAK whose packet came alone, if a NAK for the packet behind it follows.

        A responder that keeps what comes out of order would have that one. So the responder dropped it, and
        its requester, had it gone back, would have sent it again too: what came alone was late.
        """
        if self.connection.recoveries[self.side] == SELECTIVE:
            return None
        at, end = len(self.stories), self._first_recent()
        while at > end:
            at -= 1
            story = self.stories[at]
            if story.naks and len(story.go_backs) == 1 and _is_next_after_hole(story, psn):
                run = story.go_backs[0]  # an identification may prove that it was sent again
                return story if self._only_fills_hole(story, run) and not run.resent else None
            if story.naks or story.rnrs or story.go_backs:
                return None
        return None

    def _only_fills_hole(self, story: Story, run: GoBack) -> bool:
        """Whether a run only filled the hole. A go-back would also send again the packets behind the hole."""
        hole = story.hole
        return hole is not None and run.first_sight == run.packets and run.last_psn <= hole.last_psn


def _is_cut_go_back(last: GoBack, run: GoBack) -> bool:
    """Whether only the first packets of a go-back came, the rest was lost, and the timer ran out.

    Nothing new was sent in between, as it is behind a packet that was only late.
    """
    return run.cause == "timeout" and run.opener.sent_psn <= last.opener.sent_psn
