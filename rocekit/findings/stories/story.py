"""The record of a story: one cause that made a requester send again.

Captures with losses have many of them, and each is asked often, so they are compiled. Loops that are compiled
too call the methods; the properties give the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rocekit.findings.stories.loss_place import LossPlace, LostCopy
    from rocekit.track.connections import Connection
    from rocekit.track.events import Event
    from rocekit.track.transfers import Transfer

_NEVER_NS: Final = 1 << 62
#: What most stories have none of: one empty list for all, because a flood has many stories.
_NONE: Final[list[Any]] = []


class GoBack:
    """One time gone back: a run of repeated packets, whose events lie on one or more transfers.

    Attributes:
        opener: its first event, which says why; more: those behind it; time_ns, frame, first_psn: where it
        starts.
        first_transfer: the transfer on which the first of them lies; more_transfers: those of the others.
        last_psn: the highest PSN of it.
        is_late: whether it is no go-back, but packets that the network delayed; its cause is ``late`` then.
        packets, bytes: how much was sent again; first_sight: packets that the capture had not shown before;
        resent: those that are no copies, by their IPv4 identifications.
    """

    def __init__(self, opener: Event) -> None:
        self.begin(opener)

    def begin(self, opener: Event) -> None:
        self.cause: str = opener.cause or "timeout"
        self.opener = opener
        self.more: list[Event] = _NONE
        self.first_transfer: Transfer | None = None
        self.more_transfers: list[Transfer] = _NONE
        self.time_ns, self.frame = opener.time_ns, opener.frame
        self.first_psn, self.last_psn = opener.psn, opener.last_psn
        self.packets = self.bytes = self.first_sight = self.resent = 0
        self.is_late = False

    def be_late(self) -> None:
        """It is no go-back: the network delayed its packets."""
        self.cause, self.is_late = "late", True

    def add(self, event: Event, transfer: Transfer | None) -> None:
        """One more of its events, the opener first, and the transfer that it lies on."""
        if event is not self.opener:
            if self.more:
                self.more.append(event)
            else:
                self.more = [event]
        if event.last_psn > self.last_psn:
            self.last_psn = event.last_psn
        self.packets += event.count
        self.bytes += event.bytes
        self.first_sight += event.first_sight
        self.resent += event.resent
        if transfer is None or transfer is self.first_transfer:
            return
        if self.first_transfer is None:
            self.first_transfer = transfer
        elif not self.more_transfers:
            self.more_transfers = [transfer]
        elif transfer not in self.more_transfers:
            self.more_transfers.append(transfer)

    @property
    def events(self) -> list[Event]:
        return [self.opener, *self.more]

    @property
    def last_event(self) -> Event:
        return self.more[-1] if self.more else self.opener

    @property
    def transfers(self) -> list[Transfer]:
        """Those on which its events lie, in the order in which they came."""
        return [] if self.first_transfer is None else [self.first_transfer, *self.more_transfers]

    @property
    def waited_ns(self) -> int:
        return self.opener.waited_ns

    @property
    def after_ack(self) -> bool:
        return self.opener.after_ack


def gone_back(opener: Event) -> GoBack:
    """``GoBack(…)`` without the time that its arguments take."""
    run: GoBack = GoBack.__new__(GoBack)
    run.begin(opener)
    return run


class Story:
    """What one cause did to one direction of a connection.

    Attributes:
        side: the requester's side.
        psn: the PSN (unwrapped) that was lost, got a NAK or was repeated first.
        naks, rnrs: the NAKs "PSN sequence error", and the RNR NAKs.
        hole: the gap in the PSNs that contains ``psn``.
        late: packets that came out of order.
        rule: the name of its rule.
        certain: False if the packets allow another explanation.
        naks_lacking: whether it is not certain because the capture lacks NAKs (``doubts``).
        gappy: whether the capture lacks so many packets that a gap proves no loss (``doubts``).
        begun: whether its packets were first sent before the capture began (``begun``).
        early: whether it is not certain because the wait is much shorter than the timeout (``doubts``).
        or_overtaken: whether the packet may also have been overtaken, though the receiver takes others out of
        order.
        by_file: whether it may have been overtaken because the file says so, against the times.
        lost: how many packets were lost according to the capture, at least 1 for the losses.
        bad_frames: corrupted packets that are the cause.
        gave_up: whether the requester stopped trying.
        passed: whether the requester went back later to a PSN behind this one, which was acknowledged then.
        received: whether the message was received before the repeat, by the responder's journal; None if
            unknown.
        paused: when the whole traffic class of its requests was silent, if that is the cause.
        places: where its packets were lost, by several captures; None if they do not decide.
        copies: the packets that it lost, once they are known (``copies.lost_copies``).
        of_response: whether responses were reordered, or late, and not requests.
        added_ns: how long the delay was; cost_ns: the part of it that no earlier story caused (``stalls``).
        unseen: the wait before a transfer whose first transmission is not in the capture.
    """

    def __init__(self, connection: Connection, side: int, psn: int, rule: str = "") -> None:
        self.connection = connection
        self.side = side
        self.psn = psn
        self.naks: list[Event] = _NONE
        self.rnrs: list[Event] = _NONE
        self.go_backs: list[GoBack] = _NONE
        self.hole: Event | None = None
        self.late: list[Event] = _NONE
        self.transfers: list[Transfer] = _NONE
        self.rule = rule
        self.certain = True
        self.naks_lacking = self.gappy = self.begun = self.early = self.or_overtaken = False
        self.by_file = False
        self.lost = 1
        self.bad_frames: list[int] = _NONE
        self.gave_up = self.passed = False
        self.unseen: Event | None = None
        self.received: bool | None = None
        self.paused: tuple[int, int] | None = None
        self.added_ns = self.cost_ns = 0
        self.places: list[LossPlace] | None = None
        self.of_response = False
        self.copies: list[LostCopy] | None = None

    @property
    def time_ns(self) -> int:
        return self.first_ns()

    def first_ns(self) -> int:
        """The time of its first event."""
        first_ns = _NEVER_NS
        for event in self.naks:
            if event.time_ns < first_ns:
                first_ns = event.time_ns
        for event in self.rnrs:
            if event.time_ns < first_ns:
                first_ns = event.time_ns
        for event in self.late:
            if event.time_ns < first_ns:
                first_ns = event.time_ns
        for run in self.go_backs:
            if run.time_ns < first_ns:
                first_ns = run.time_ns
        if self.hole is not None and self.hole.time_ns < first_ns:
            first_ns = self.hole.time_ns
        if self.unseen is not None and self.unseen.time_ns < first_ns:
            first_ns = self.unseen.time_ns
        return first_ns

    def first_frames(self, most: int) -> list[int]:
        """Its first frames, corrupted ones first: of the hole, NAKs, late packets, repeats and their answers.

        A repeat's are its first packet and the response to it. What else there is is in order of time.
        """
        marks = []
        for seen in (self.hole, self.unseen):
            if seen is not None:
                marks.append((seen.time_ns, seen.frame))
        for events in (self.naks, self.rnrs, self.late):
            for event in _first_events(events, most):
                marks.append((event.time_ns, event.frame))
        for run in _first_runs(self.go_backs, most):
            marks.append((run.time_ns, run.frame))
            if run.opener.answer_frame:
                marks.append((run.time_ns, run.opener.answer_frame))
        marks.sort()
        return [*self.bad_frames, *dict.fromkeys([frame for _, frame in marks])][:most]

    @property
    def repeats(self) -> list[GoBack]:
        return self.runs()

    def runs(self) -> list[GoBack]:
        """The go-backs without late packets."""
        for run in self.go_backs:
            if run.is_late:
                return [g for g in self.go_backs if not g.is_late]
        return self.go_backs

    @property
    def repeated_packets(self) -> int:
        return self.packets_again()

    def packets_again(self) -> int:
        """How many packets were sent again."""
        total = 0
        for run in self.go_backs:
            if not run.is_late:
                total += run.packets
        return total

    @property
    def repeated_bytes(self) -> int:
        return self.bytes_again()

    def bytes_again(self) -> int:
        """How many bytes were sent again."""
        total = 0
        for run in self.go_backs:
            if not run.is_late:
                total += run.bytes
        return total

    @property
    def transmissions(self) -> int:
        return self.times_sent()

    def times_sent(self) -> int:
        """How often the PSN was sent, the first time included."""
        sent = 1
        for run in self.go_backs:
            if not run.is_late and run.first_psn <= self.psn <= run.last_psn:
                sent += 1
        return sent

    @property
    def stall(self) -> tuple[int, int]:
        return self.stalled()

    def stalled(self) -> tuple[int, int]:
        """The delay: from the first sign (hole, else silence, else NAK) to the start of the last repeat."""
        if self.unseen is not None:
            return self.unseen.time_ns - self.unseen.waited_ns, self.unseen.time_ns
        start, repeats = self.first_ns(), self.runs()
        if not repeats:
            return start, start
        first, last = repeats[0], repeats[-1]
        if not self.naks and not self.rnrs:
            start = min(start, first.time_ns - first.opener.waited_ns)
        return start, max(start, last.time_ns)

    def add_nak(self, event: Event) -> None:
        if self.naks:
            self.naks.append(event)
        else:
            self.naks = [event]

    def add_rnr(self, event: Event) -> None:
        if self.rnrs:
            self.rnrs.append(event)
        else:
            self.rnrs = [event]

    def add_late(self, event: Event) -> None:
        if self.late:
            self.late.append(event)
        else:
            self.late = [event]

    def add_go_back(self, run: GoBack) -> None:
        if self.go_backs:
            self.go_backs.append(run)
        else:
            self.go_backs = [run]

    def add_transfer(self, transfer: Transfer | None) -> None:
        if transfer is not None and transfer not in self.transfers:
            if self.transfers:
                self.transfers.append(transfer)
            else:
                self.transfers = [transfer]

    def add_transfers(self, transfers: Iterable[Transfer | None]) -> None:
        for transfer in transfers:
            self.add_transfer(transfer)

    def add_transfers_of(self, run: GoBack) -> None:
        self.add_transfer(run.first_transfer)
        if run.more_transfers:
            self.add_transfers(run.more_transfers)

    @property
    def transfer(self) -> Transfer | None:
        return self.held_by()

    def held_by(self) -> Transfer | None:
        """The transfer that holds the PSN, else the first one affected."""
        for transfer in self.transfers:
            if transfer.first_psn <= self.psn <= transfer.last_psn:
                return transfer
        return self.transfers[0] if self.transfers else None


def _first_events(events: list[Event], most: int) -> list[Event]:
    """Those among which the first ones are: all, unless they stand in order of time."""
    if len(events) <= most:
        return events
    time_ns = -_NEVER_NS
    for event in events:
        if event.time_ns < time_ns:
            return events
        time_ns = event.time_ns
    return events[:most]


def _first_runs(runs: list[GoBack], most: int) -> list[GoBack]:
    """The same of go-backs."""
    if len(runs) <= most:
        return runs
    time_ns = -_NEVER_NS
    for run in runs:
        if run.time_ns < time_ns:
            return runs
        time_ns = run.time_ns
    return runs[:most]


def intervals_of(runs: list[GoBack]) -> list[int]:
    """The times between the starts of go-backs."""
    found = []
    before: GoBack | None = None
    for run in runs:
        if before is not None:
            found.append(run.time_ns - before.time_ns)
        before = run
    return found


def longest_wait_ns(runs: list[GoBack]) -> int:
    """The longest time before a go-back: the first one's wait, or from one to the next."""
    before = runs[0]
    longest_ns = before.opener.waited_ns
    for run in runs:
        if run.time_ns - before.time_ns > longest_ns:
            longest_ns = run.time_ns - before.time_ns
        before = run
    return longest_ns


class Costs(NamedTuple):
    """What several stories cost.

    Attributes:
        packets, bytes: how much was sent again; times: how often a requester went back; added_ns: the delay.
        worst: the first of those with the longest delay.
    """

    packets: int
    bytes: int
    times: int
    added_ns: int
    worst: Story


def costs_of(stories: Sequence[Story]) -> Costs:
    """What stories cost, in one pass: a flood has many."""
    packets = size = times = added_ns = 0
    worst = stories[0]
    for story in stories:
        for run in story.go_backs:
            if not run.is_late:
                packets += run.packets
                size += run.bytes
                times += 1
        added_ns += story.cost_ns
        if story.added_ns > worst.added_ns:
            worst = story
    return Costs(packets, size, times, added_ns, worst)


def by_rule(stories: Iterable[Story]) -> dict[str, dict[tuple[int, int], list[Story]]]:
    """Stories by rule, then by (connection id, requester's side)."""
    found: dict[str, dict[tuple[int, int], list[Story]]] = {}
    before: Story | None = None
    own: list[Story] = []
    for story in stories:
        if (
            before is None
            or story.rule != before.rule
            or story.connection is not before.connection
            or story.side != before.side
        ):
            of_rule = found.setdefault(story.rule, {})
            own = of_rule.setdefault((story.connection.id, story.side), [])
            before = story
        own.append(story)
    return found


class Told(NamedTuple):
    """What several stories say, counted in one pass: a flood has many.

    Attributes:
        guessed: those that are not certain; of_nak: those with NAKs; or_overtaken: whose packet may have been
        overtaken; alone: whether one is not certain for no other reason than that nothing proves it.
        most_sent: how often a PSN was sent at most.
    """

    guessed: int
    of_nak: int
    or_overtaken: int
    alone: bool
    most_sent: int


def told_by(stories: Iterable[Story]) -> Told:
    """What stories say."""
    guessed = of_nak = overtaken = most_sent = 0
    alone = False
    for story in stories:
        if story.naks:
            of_nak += 1
        if story.or_overtaken:
            overtaken += 1
        if not story.certain:
            guessed += 1
            alone = alone or not (story.gappy or story.or_overtaken)
        sent = story.times_sent()
        if sent > most_sent:
            most_sent = sent
    return Told(guessed, of_nak, overtaken, alone, most_sent)


def first_repeated(stories: Iterable[Story]) -> int:
    """The lowest PSN with which one of the stories' repeats started."""
    lowest = _NEVER_NS
    for story in stories:
        for run in story.go_backs:
            if not run.is_late and run.first_psn < lowest:
                lowest = run.first_psn
    return lowest


def affected(stories: Sequence[Story]) -> list[Transfer]:
    """The transfers that the stories affected, once each."""
    found: dict[Transfer, None] = {}
    for story in stories:
        for transfer in story.transfers:
            found[transfer] = None
    return list(found)


def late_of(stories: Sequence[Story]) -> tuple[int, int]:
    """How many packets of the stories came late, and how long at most after the packet behind them.

    The time is 0 where the late ones are not in the capture.
    """
    count = most_ns = 0
    first = True
    for story in stories:
        came, came_ns, late_ns = False, 0, 0
        for event in story.late:
            count += event.count
            if not came or event.time_ns > came_ns:
                came, came_ns = True, event.time_ns
        for run in story.go_backs:
            if run.is_late:
                count += run.packets
                if not came or run.time_ns > came_ns:
                    came, came_ns = True, run.time_ns
        if came and story.hole is not None:
            late_ns = came_ns - story.hole.time_ns
        if first or late_ns > most_ns:
            first, most_ns = False, late_ns
    return count, most_ns
