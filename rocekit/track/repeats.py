# cython: boundscheck=False
"""Requests that come again: a go-back with a cause, a packet that was sent once, or one out of order.

Most sides never have any, nor a hole or a NAK, so all that judges them is made at the first (``Troubles``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocekit.track.causes import Causes
from rocekit.track.events import Event, happened
from rocekit.track.passes import Passes
from rocekit.track.recent import NEVER_NS, RING
from rocekit.wire import OPERATION, OWN_RESPONSE

if TYPE_CHECKING:
    from rocekit.packets.rows import Rows
    from rocekit.track.gaps.read_steps import ReadSteps
    from rocekit.track.ledger import Ledger
    from rocekit.track.progress import Progress
    from rocekit.track.recent import Recent
    from rocekit.track.transfers import Transfer

_ID_BITS: Final = 16
#: Without IPv4 identifications, the same PSN again this soon, and unprovoked, was duplicated by the network.
DUPLICATE_NS: Final = 50_000
#: No requester goes back twice to one PSN so fast.
AT_ONCE_NS: Final = 1_000
#: No network and no mirror holds a copy back for so long: the QP's number and PSNs are used again.
NO_COPY_NS: Final = 1_000_000_000
#: Without IPv4 identifications, a packet this late was sent again: networks deliver or drop it sooner.
LATE_NS: Final = 10_000_000
#: Copies of packets that were sent again since are told by so many identifications, the last ones.
_COPIES_KNOWN: Final = 512
#: After so many packets that filled a gap unprovoked, a direction is known to reorder.
REORDERS: Final = 3


class Repeats:
    """Tells repeats from copies and from late packets, and notes them in the ledger.

    Attributes:
        run: the go-back under way; unanswered: its opening event until a response comes.
        tentative: a late packet that may turn out to be the first of a go-back.
        runs: how many go-backs there were.
        copy: the last duplicate whose IPv4 identification does not prove that it is one; copy_high: what
        ``progress.high`` was then.
        filled: how many packets filled a gap unprovoked; before_id: the newest IPv4 identification before
        the go-back under way.
    """

    def __init__(
        self, ledger: Ledger, progress: Progress, recent: Recent, causes: Causes, passes: Passes
    ) -> None:
        self.passes = passes
        self.ledger = ledger
        self.progress = progress
        self.recent = recent
        self.causes = causes
        self.run: Event | None = None
        self.tentative: Event | None = None
        self.unanswered: Event | None = None
        self.runs = 0
        self.copy: Event | None = None
        self.copy_high = 0
        self.filled = 0
        self.before_id = 0
        # The PSN above the IPv4 identification, of packets that were sent again since.
        self._sent_before: set[int] = set()

    def clear(self) -> None:
        """The PSNs begin anew: nothing before comes again."""
        self.run = self.tentative = self.unanswered = None
        self._sent_before.clear()

    def over(self, p: int) -> None:
        """The new packet ``p`` came: what was sent again is over."""
        run, high = self.run, self.progress.high
        if run is not None:
            after = self.repeat_ends()
            if after < high:
                self.passes.skip(after, high - 1)
            if self.unanswered is not None:
                self.unanswered.reached_psn = run.last_psn
            self.run = None
        self.tentative = None
        if self.causes.refusals:
            self.causes.came(p)
        if p > high and self.ledger.open_read is None:  # else it may be the PSNs of a READ's responses
            self.passes.skip(high, p - 1)

    def repeat_ends(self) -> int:
        """The go-back under way ends: note how far it came, and give the PSN behind it."""
        run, high, current = self.run, self.progress.high, self.passes.current
        if run is None:
            return high
        after = self.after(run.last_psn)
        if after >= high:
            self.passes.went_back += run.last_psn > current.first
        elif run.cause == "nak" and run.doubt is None and not self.ledger.connection.missed:
            current.jump = after, high - 1
        return after

    def after(self, p: int) -> int:
        """The PSN of the next request behind the one at ``p``, which may be a READ of several PSNs."""
        transfer = self.ledger.find(p)
        return transfer.last_psn + 1 if transfer is not None and transfer.is_read else p + 1

    def reached(self) -> int:
        """The highest PSN sent in the pass under way."""
        return self.progress.high - 1 if self.run is None else self.run.last_psn

    def note(self, kind: str, r: Rows, i: int, p: int) -> Event:
        """Something happened to the packet at row ``i`` with PSN ``p``."""
        time_ns, frame = r.time_ns[i], r.frame[i]
        event = happened(kind, time_ns, frame, p, p, 1)
        event.bytes, event.last_ns = r.payload_length[i], time_ns
        if kind == "duplicate":
            event.sent_psn = self.progress.high - 1
            event.copied = int(self._is_copied(r, i, p))
        elif not self.recent.is_shared_id(r.ip_id[i], p):
            event.ip_id = r.ip_id[i]
        return self.ledger.attribute(event)

    def _is_copied(self, r: Rows, i: int, p: int) -> bool:
        """Whether the IPv4 identification proves that the packet at row ``i`` is a copy."""
        ip_id, recent = r.ip_id[i], self.recent
        if ip_id == 0 or recent.sent_psn(p) != p:
            return False
        same = recent.sent_id(p) == ip_id or self._came_before(ip_id, p)
        return same and not recent.is_shared_id(ip_id, p)

    def _came_before(self, ip_id: int, p: int) -> bool:
        """Whether a packet with this identification came before the last one that was sent for ``p``."""
        return len(self._sent_before) > 0 and p << _ID_BITS | ip_id in self._sent_before

    def _remember(self, p: int) -> None:
        """The packet last sent for ``p`` is sent again: copies of it may come later."""
        ip_id = self.recent.sent_id(p) if self.recent.sent_psn(p) == p else 0
        if ip_id:
            if len(self._sent_before) >= _COPIES_KNOWN:
                self._sent_before.clear()
            self._sent_before.add(p << _ID_BITS | ip_id)

    def _is_resent(self, r: Rows, i: int, p: int) -> bool:
        """Whether the IPv4 identification proves that the packet at row ``i`` is no copy."""
        ip_id, recent = r.ip_id[i], self.recent
        if ip_id == 0 or recent.sent_psn(p) != p:
            return ip_id != 0 and recent.is_newest(ip_id)
        return recent.sent_id(p) not in (0, ip_id)

    def copied(self, r: Rows, i: int, p: int) -> None:
        """The packet at row ``i`` came twice, sent once, or a go-back that nothing else shows starts."""
        event = self.note("duplicate", r, i, p)
        proven = not self.progress.reliable or event.copied > 0
        self.copy, self.copy_high = (None if proven else event), self.progress.high

    def is_duplicate(self, r: Rows, i: int, p: int) -> bool:
        """Whether the network, and not the sender, made this copy."""
        ip_id, is_known = r.ip_id[i], self.recent.sent_psn(p) == p
        late_ns = r.time_ns[i] - (self.recent.sent_ns(p) if is_known else self.recent.last_tx_ns)
        if not self.progress.reliable:  # nobody sends again: it is a copy, or the QP was used again
            is_other = is_known and ip_id != 0 and self.recent.sent_id(p) not in (0, ip_id)
            return not is_other and late_ns < NO_COPY_NS
        if not is_known or late_ns >= NO_COPY_NS:
            return False
        if ip_id and ip_id != self.recent.sent_id(p):
            return self._came_before(ip_id, p) and not self.recent.is_shared_id(ip_id, p)
        if ip_id and not self.recent.is_shared_id(ip_id, p):
            return True
        if not ip_id and self._is_at_once(p, r.time_ns[i]):
            return True
        if self.causes.refusals or self.run is not None:
            return False
        lately_ns = r.time_ns[i] - DUPLICATE_NS
        if self.recent.sent_ns(p) <= lately_ns or self._was_answered(p) or self._follows_copy(p):
            return False
        # A READ or atomic before ``p`` may have been skipped since the last go-back, and answered then.
        return self.causes.skipped_ns(p, lately_ns) <= self.recent.back_ns

    def _is_at_once(self, p: int, time_ns: int) -> bool:
        """Whether ``p`` came right behind itself in a go-back, sooner than a requester goes back again."""
        run, recent = self.run, self.recent
        if run is None or run.last_psn != p or recent.sent_ns(p) != recent.last_tx_ns:
            return False
        transfer = self.ledger.find(p)
        if transfer is None or transfer.operation in OWN_RESPONSE:
            return False
        if time_ns - recent.last_tx_ns >= AT_ONCE_NS or self.causes.standing(p) is not None:
            return False
        return not self.causes.obeys_now(p, time_ns)

    def _follows_copy(self, p: int) -> bool:
        """Whether the packet before ``p`` just came again too: copies are of single packets."""
        copy = self.copy
        return copy is not None and self.copy_high == self.progress.high and self.after(copy.psn) == p

    def _was_answered(self, p: int) -> bool:
        """Whether ``p`` is a READ or atomic that got its response: then its copy is no accident."""
        transfer = self.ledger.find(p)
        if transfer is None or transfer.operation not in OWN_RESPONSE:
            return False
        return self.recent.latest_response_ns(p - 1, NEVER_NS) > transfer.request_end_ns

    def take(self, r: Rows, i: int, p: int, seen: bool, transfer: Transfer | None) -> None:
        """An RC request below ``high``: the requester went back, or the network delayed it."""
        time_ns = r.time_ns[i]
        run = self.run
        standing = self.causes.standing(p)
        asks_part = transfer is not None and p > transfer.first_psn and OPERATION[r.opcode[i]] == "READ"
        if run is not None and not asks_part and self._goes_on(run, r, i, p):
            # The go-back under way when a NAK came continues until the requester obeys the NAK.
            if (
                self.causes.refusals
                and run.cause != "rnr"
                and run.doubt is None
                and self._obeys(p, time_ns, 0)
            ):
                run = self._in_doubt(run, "rnr")
        elif (
            seen
            or (standing is not None and not self._may_be_late(standing, r, i, p))
            or self.recent.seems_newest(r.ip_id[i])
            or (r.ip_id[i] == 0 and self._is_long_missing(p, time_ns))
            or not self.recent.last_tx_ns  # the first request: no other one of the capture overtook it
        ):
            run = self._new_run(r, i, p)
            late = self.tentative
            if late is not None and self._is_next(late, p) and (standing is None or standing.psn < p):
                self._reclassify(late, run)
            elif self.copy is not None and self._follows_copy(p):
                copy, self.copy = self.copy, None
                if copy.waits < 0:
                    self.ledger.take_back_duplicate(copy)
                if late is not None and late.psn == copy.psn - 1:
                    self._reclassify(late, run)
                    run.opens = True
                self._reclassify(copy, run)
                copy.first_sight = 0
                copy.opens = not run.opens
        else:
            self.passes.fill(p)
            self.filled += 1
            self.tentative = self.note("late", r, i, p)
            return
        self.tentative = None
        self.run = run
        self._add_repeat(run, r, i, p, seen, transfer)

    def _is_next(self, late: Event, p: int) -> bool:
        """Whether ``p`` follows a request that filled a hole: a READ's takes the PSNs of its responses."""
        if late.psn == p - 1:
            return True
        transfer = self.ledger.find(late.psn)
        return (
            transfer is not None
            and transfer.is_read
            and transfer.first_psn == late.psn
            and transfer.last_psn == p - 1
        )

    def is_of_run(self, ip_id: int) -> bool:
        """Whether a packet was sent in the go-back under way, by its identification in a sender's count."""
        return self.run is not None and self.recent.comes_after(ip_id, self.before_id)

    def _may_be_late(self, nak: Event, r: Rows, i: int, p: int) -> bool:
        """Whether ``p``, which comes for the first time, is late rather than what a NAK made its sender send.

        A go-back starts with the NAK's own PSN, and then sends what was seen between the two. Where packets
        come out of order, some of the go-back itself may come first, but of those too most were seen.
        """
        if p == nak.psn or nak.kind != "nak" or r.ip_id[i]:
            return False
        return self.filled >= REORDERS

    def _is_long_missing(self, p: int, time_ns: int) -> bool:
        """Whether the packets behind ``p`` came so long ago that it was sent again, and is not only late."""
        since_ns = NEVER_NS
        for q in range(p + 1, p + RING + 1):
            if self.recent.sent_psn(q) == q:
                since_ns = self.recent.sent_ns(q)
                break
            if self.recent.sent_psn(q) >= 0:  # so long ago at least: all of them came behind p
                since_ns = min(since_ns, self.recent.sent_ns(q))
        return time_ns - since_ns > LATE_NS

    def _goes_on(self, run: Event, r: Rows, i: int, p: int) -> bool:
        """Whether the go-back under way continues with this packet, even out of order."""
        if p > run.last_psn:
            # Where its reaction time is not known, a new go-back looks like one that continues.
            return not (
                self.causes.refusals and self._obeys(p, r.time_ns[i], self.causes.reaction_ns or NEVER_NS)
            )
        soon = r.time_ns[i] - self.recent.last_tx_ns < DUPLICATE_NS
        if soon and r.ip_id[i] == 0 and self._is_due(p):
            return True  # this pass skipped it, and now it comes
        return self.recent.was_overtaken(r, i)

    def _is_due(self, p: int) -> bool:
        """Whether the pass under way skipped ``p`` so far."""
        current, recent = self.passes.current, self.recent
        if current.lacks(p):
            return True
        # An ACK may have closed the gap meanwhile.
        is_known = recent.sent_psn(p) == p
        return (
            self.filled >= REORDERS
            and is_known
            and current.first <= p
            and recent.sent_ns(p) < current.began_ns
        )

    def _obeys(self, p: int, time_ns: int, reaction_ns: int) -> bool:
        """Whether ``p`` comes again after an RNR wait, which ended the go-back under way.

        The wait is for ``p``, or for a PSN before it that arrived after all; then a response ended the wait,
        at least ``reaction_ns`` ago.
        """
        for e in self.causes.refusals:
            if e.kind != "rnr_nak" or not (e.psn == p or e.psn < self.progress.acked):
                continue
            due_ns = e.time_ns + self.causes.wait_ns(e)
            if (
                self.recent.last_tx_ns
                < due_ns
                <= time_ns - (reaction_ns if e.psn < self.progress.acked else 0)
            ):
                return True
        return False

    def _in_doubt(self, run: Event, doubt: str) -> Event:
        """The rest of a go-back that may have another cause from here on."""
        self.runs += 1
        rest = happened("repeat", 0, 0, 0, run.last_psn, 0)
        rest.cause, rest.waited_ns, rest.run, rest.doubt = run.cause, run.waited_ns, self.runs, doubt
        return rest

    def _new_run(self, r: Rows, i: int, p: int) -> Event:
        before = self.run
        transfer = self.ledger.find(p)
        seen = -1 if transfer is None or not transfer.is_read else int(_has_response(transfer, p))
        self.repeat_ends()
        self.before_id = self.recent.newest_id()
        acked = self.progress.acked if self.progress.acked_frame else -1  # no response: not known
        ended = self.passes.begin(p, r.time_ns[i], self.reached(), self.recent.last_tx_ns, acked)
        cause, since_ns, doubt, doubt_waited_ns = self.causes.cause(r, i, p)
        if before is not None and p > before.last_psn and doubt is None:
            doubt = before.cause  # that go-back may just continue
        self.runs += 1
        run = happened("repeat", 0, 0, 0, -1, 0)
        run.cause, run.run = cause, self.runs
        # What it sent before the capture began is not known, nor when.
        run.waited_ns = r.time_ns[i] - since_ns if since_ns else 0
        run.doubt, run.doubt_waited_ns = doubt, doubt_waited_ns
        run.of_pass, run.response_seen = ended, seen
        return run

    def _reclassify(self, late: Event, run: Event) -> None:
        """What looked like a packet out of order was the first of a go-back."""
        late.kind, late.cause, late.run, late.first_sight = "repeat", run.cause, run.run, 1
        late.waited_ns = run.waited_ns
        late.opens = True
        late.of_pass = run.of_pass
        self.passes.current.first = late.psn
        late.sent_psn = self.progress.high - 1
        self.unanswered = late
        if late.waits < 0:
            transfer = self.ledger.find(late.psn)
            if transfer is not None:
                transfer.retransmitted_packets += 1
                transfer.timeouts += run.cause == "timeout"
                self.ledger.connection.retransmitted_packets += 1
        run.last_psn = late.psn

    def _add_repeat(self, run: Event, r: Rows, i: int, p: int, seen: bool, transfer: Transfer | None) -> None:
        time_ns, frame = r.time_ns[i], r.frame[i]
        if transfer is None:
            transfer = self.ledger.find(p)
        if seen:
            self._remember(p)
        begun = run.last_psn >= 0
        if begun:
            after = self.after(run.last_psn) if p > run.last_psn + 1 else run.last_psn + 1
            if p > after:
                self.passes.skip(after, p - 1)
            elif p < run.last_psn:
                self.passes.fill(p)
        event: Event | None = None
        if begun and transfer is not None:
            event = self.ledger.go_on(
                transfer, run.run, p, time_ns, frame, r.payload_length[i], 0 if seen else 1
            )
        if event is not None:
            event.resent += self._is_resent(r, i, p)
        else:
            event = self._repeat(run, r, i, p, seen)
            event = self.ledger.attribute(event) if transfer is None else self.ledger.give(transfer, event)
        run.last_psn = max(p, run.last_psn)
        event.doubt, event.doubt_waited_ns = run.doubt, run.doubt_waited_ns
        if transfer is not None and transfer.is_read:
            event.response_next = transfer.response_next
        if not begun:
            event.sent_psn = self.progress.high - 1
            event.of_pass, event.response_seen = run.of_pass, run.response_seen
            event.mid_message = (
                self.ledger.building is not None and self.ledger.building.first_psn <= self.progress.acked
            )
            self.unanswered = event

    def _repeat(self, run: Event, r: Rows, i: int, p: int, seen: bool) -> Event:
        """The event that packet ``p`` of a go-back is, where none before it goes on."""
        time_ns, frame = r.time_ns[i], r.frame[i]
        event = happened("repeat", time_ns, frame, p, p, 1)
        event.bytes, event.last_ns = r.payload_length[i], time_ns
        event.cause, event.waited_ns, event.run = run.cause, run.waited_ns, run.run
        event.first_sight, event.after_ack = 0 if seen else 1, p < self.progress.acked
        event.opens = run.last_psn < 0
        event.resent = int(self._is_resent(r, i, p))
        event.ip_id = 0 if self.recent.is_shared_id(r.ip_id[i], p) else r.ip_id[i]
        return event

    def answer(self, opening: Event, p: int, frame: int) -> None:
        """The first response to a go-back says what the responder already had (9.7.5.1.2)."""
        opening.answer_psn, opening.answer_frame = p, frame
        # A run that is over, as new packets came, has noted how far it came; its opener may be a part of it.
        last_psn = max(opening.last_psn, opening.reached_psn)
        opening.reached_psn = last_psn if self.run is None else self.run.last_psn
        self.unanswered = None


def _has_response(transfer: Transfer, p: int) -> bool:
    """Whether the response with PSN ``p`` came since the READ was last requested from ``p`` or before."""
    for event in reversed(transfer.events):
        if event.kind == "response_repeat" and event.psn <= p <= event.last_psn:
            return True
        if event.kind == "repeat" and event.psn <= p:
            return event.response_next <= p < transfer.response_next and p not in transfer.responses_missing
    return p < transfer.response_next and p not in transfer.responses_missing


class Troubles:
    """The parts of one side that judge troubles.

    Attributes:
        passes: what was sent since the requester last went back; causes: why it goes back; repeats: what
        comes again; read_steps: how far apart the PSNs of READ requests are, None before the first one.
    """

    def __init__(self, ledger: Ledger, progress: Progress, recent: Recent) -> None:
        self.passes = Passes(progress)
        self.causes = Causes(ledger, progress, recent, self.passes)
        self.repeats = Repeats(ledger, progress, recent, self.causes, self.passes)
        self.read_steps: ReadSteps | None = None

    def are_over(self) -> bool:
        """Whether no go-back is under way."""
        return self.repeats.run is None and self.repeats.tentative is None

    def begin_anew(self) -> None:
        """The PSNs begin anew: nothing before counts."""
        self.causes.clear()
        self.repeats.clear()
        self.passes.clear()


def troubles_of(ledger: Ledger, progress: Progress, recent: Recent) -> Troubles:
    """The troubles of a side, which begin now unless there are some."""
    troubles: Troubles | None = ledger.troubles
    if troubles is None:
        troubles = Troubles(ledger, progress, recent)
        ledger.troubles = troubles
    return troubles
