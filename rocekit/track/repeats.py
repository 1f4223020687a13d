"""Requests that come again: a go-back with a cause, a copy that the network made, or packets out of order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocekit.track.events import Event
from rocekit.track.recent import NEVER_NS
from rocekit.wire import OPERATION, OWN_RESPONSE

if TYPE_CHECKING:
    from rocekit.packets.rows import Rows
    from rocekit.track.causes import Causes
    from rocekit.track.ledger import Ledger
    from rocekit.track.progress import Progress
    from rocekit.track.recent import Recent
    from rocekit.track.transfers import Transfer

#: Without IPv4 identifications, the same PSN again this soon, and unprovoked, was duplicated by the network.
DUPLICATE_NS: Final = 50_000


class Repeats:
    """Tells repeats from copies and from late packets, and notes them in the ledger.

    Attributes:
        run: the go-back under way; unanswered: its opening event until a response comes.
        tentative: a late packet that may turn out to be the first of a go-back.
        runs: how many go-backs there were.
    """

    def __init__(self, ledger: Ledger, progress: Progress, recent: Recent, causes: Causes) -> None:
        self.ledger = ledger
        self.progress = progress
        self.recent = recent
        self.causes = causes
        self.run: Event | None = None
        self.tentative: Event | None = None
        self.unanswered: Event | None = None
        self.runs = 0

    def over(self) -> None:
        """A new packet came: what was sent again is over."""
        self.run = self.tentative = None

    def note(self, kind: str, r: Rows, i: int, p: int) -> None:
        """Something happened to the packet at row ``i`` with PSN ``p``."""
        time_ns, frame = r.time_ns[i], r.frame[i]
        event = Event(kind, time_ns, frame, p, p, 1, r.payload_length[i], last_ns=time_ns, last_frame=frame)
        if kind == "duplicate":
            event.sent_psn = self.progress.high - 1
            event.copied = int(self._is_copied(r, i, p))
        self.ledger.attribute(event)

    def _is_copied(self, r: Rows, i: int, p: int) -> bool:
        """Whether the IPv4 identification proves that the packet at row ``i`` is a copy."""
        ip_id, recent = r.ip_id[i], self.recent
        same = ip_id != 0 and recent.sent_psn(p) == p and recent.sent_id(p) == ip_id
        return same and not recent.is_shared_id(ip_id, p)

    def _is_resent(self, r: Rows, i: int, p: int) -> bool:
        """Whether the IPv4 identification proves that the packet at row ``i`` is no copy."""
        ip_id, recent = r.ip_id[i], self.recent
        if ip_id == 0 or recent.sent_psn(p) != p:
            return ip_id != 0 and recent.is_newest(ip_id)
        return recent.sent_id(p) not in (0, ip_id)

    def is_duplicate(self, r: Rows, i: int, p: int) -> bool:
        """Whether the network, and not the sender, made this copy."""
        if not self.progress.reliable:
            return True
        if self.recent.sent_psn(p) != p:
            return False
        ip_id = r.ip_id[i]
        if ip_id and ip_id != self.recent.sent_id(p):
            return False
        if ip_id and not self.recent.is_shared_id(ip_id, p):
            return True
        if self.causes.refusals or self.run is not None:
            return False
        lately_ns = r.time_ns[i] - DUPLICATE_NS
        if self.recent.sent_ns(p) <= lately_ns or self._was_answered(p):
            return False
        # A READ or atomic before ``p`` may have been skipped since the last go-back, and answered then.
        return self.causes.skipped_ns(p, lately_ns) <= self.recent.back_ns

    def _was_answered(self, p: int) -> bool:
        """Whether ``p`` is a READ or atomic that got its response: then its copy is no accident."""
        transfer = self.ledger.find(p)
        if transfer is None or transfer.operation not in OWN_RESPONSE:
            return False
        return self.recent.latest_response_ns(p - 1, NEVER_NS) > transfer.request_end_ns

    def take(self, r: Rows, i: int, p: int, seen: bool, transfer: Transfer | None) -> None:
        """An RC request below ``high``: the requester went back, or the network delayed it."""
        time_ns, frame = r.time_ns[i], r.frame[i]
        run = self.run
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
        elif seen or self.causes.standing(p) is not None or self.recent.is_newest(r.ip_id[i]):
            run = self._new_run(r, i, p)
            late = self.tentative
            if late is not None and late.psn == p - 1:
                self._reclassify(late, run)
        else:
            self.tentative = self.ledger.attribute(
                Event(
                    "late", time_ns, frame, p, p, last_ns=time_ns, last_frame=frame, bytes=r.payload_length[i]
                )
            )
            return
        self.tentative = None
        self.run = run
        self._add_repeat(run, r, i, p, seen)

    def _goes_on(self, run: Event, r: Rows, i: int, p: int) -> bool:
        """Whether the go-back under way continues with this packet, even out of order."""
        if p > run.last_psn:
            # Where its reaction time is not known, a new go-back looks like one that continues.
            return not (
                self.causes.refusals and self._obeys(p, r.time_ns[i], self.causes.reaction_ns or NEVER_NS)
            )
        return self.recent.was_overtaken(r, i)

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
        return Event(
            "repeat", 0, 0, 0, run.last_psn, 0, cause=run.cause, waited_ns=run.waited_ns, run=self.runs,
            doubt=doubt,
        )  # fmt: skip

    def _new_run(self, r: Rows, i: int, p: int) -> Event:
        before = self.run
        cause, since_ns, doubt, doubt_waited_ns = self.causes.cause(r, i, p)
        if before is not None and p > before.last_psn and doubt is None:
            doubt = before.cause  # that go-back may just continue
        self.runs += 1
        waited_ns = r.time_ns[i] - since_ns
        run = Event("repeat", 0, 0, 0, -1, 0, cause=cause, waited_ns=waited_ns, run=self.runs, doubt=doubt)
        run.doubt_waited_ns = doubt_waited_ns
        return run

    def _reclassify(self, late: Event, run: Event) -> None:
        """What looked like a packet out of order was the first of a go-back."""
        late.kind, late.cause, late.run, late.first_sight = "repeat", run.cause, run.run, 1
        late.waited_ns = run.waited_ns
        late.opens = True
        late.sent_psn = self.progress.high - 1
        self.unanswered = late
        if late not in self.ledger.pending:
            transfer = self.ledger.find(late.psn)
            if transfer is not None:
                transfer.retransmitted_packets += 1
                transfer.timeouts += run.cause == "timeout"
                self.ledger.connection.retransmitted_packets += 1
        run.last_psn = late.psn

    def _add_repeat(self, run: Event, r: Rows, i: int, p: int, seen: bool) -> None:
        time_ns, frame = r.time_ns[i], r.frame[i]
        begun = run.last_psn >= 0
        run.last_psn = max(p, run.last_psn)
        event = Event(
            "repeat",
            time_ns,
            frame,
            p,
            p,
            1,
            r.payload_length[i],
            time_ns,
            frame,
            run.cause,
            None,
            run.waited_ns,
            0 if seen else 1,
            p < self.progress.acked,
            run.run,
            not begun,
        )
        event.resent = int(self._is_resent(r, i, p))
        event.ip_id = 0 if self.recent.is_shared_id(r.ip_id[i], p) else r.ip_id[i]
        event = self.ledger.attribute(event)
        event.doubt, event.doubt_waited_ns = run.doubt, run.doubt_waited_ns
        if not begun:
            event.sent_psn = self.progress.high - 1
            event.mid_message = (
                self.ledger.building is not None and self.ledger.building.first_psn <= self.progress.acked
            )
            self.unanswered = event

    def answer(self, opening: Event, p: int, frame: int) -> None:
        """The first response to a go-back says what the responder already had (9.7.5.1.2)."""
        opening.answer_psn, opening.answer_frame = p, frame
        opening.reached_psn = opening.last_psn if self.run is None else self.run.last_psn
        self.unanswered = None
