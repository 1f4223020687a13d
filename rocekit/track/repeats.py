"""Requests that come again: as one go-back with a reason, as the network's doing, or out of order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocekit.track.causes import ID_MASK, NEAR_IDS, NEVER_NS, RING, Reasons
from rocekit.track.ledger import NEEDS_ANSWER
from rocekit.track.transfers import Event, Transfer
from rocekit.wire import OPERATION

if TYPE_CHECKING:
    from rocekit.packets.rows import Rows
    from rocekit.track.connections import Connection
    from rocekit.track.ledger import Sink

_SLOT: Final = RING - 1
#: Without IP identification, the same PSN again this soon, and unprovoked, was doubled by the network.
DUPLICATE_NS: Final = 50_000
#: So many IP identifications must have followed one another before a sender is taken to count them. Of random
#: ones 1 in 64 does: three of the first six do so by accident once in ten thousand flows, later ever less.
FOLLOWED: Final = 3


class GoBack(Reasons):
    """A ledger that tells repeats from copies.

    Attributes:
        run: the go-back under way; unanswered: its opening event until an answer comes.
        tentative: a late packet that may turn out to be the first of a go-back.
    """

    def _set_up(self, connection: Connection, side: int, sink: Sink, reliable: bool) -> None:
        Reasons._set_up(self, connection, side, sink, reliable)
        self.run: Event | None = None
        self.tentative: Event | None = None
        self.unanswered: Event | None = None
        self.runs = 0

    def _is_duplicate(self, r: Rows, i: int, p: int) -> bool:
        """Whether the network, and not the sender, doubled this datagram."""
        if not self.reliable:
            return True
        slot = p & _SLOT
        if self._sent_psn(slot) != p:
            return False
        ip_id = r.ip_id[i]
        if ip_id and ip_id != self._sent_id(slot):
            return False
        if ip_id and not self._is_shared_id(ip_id, p):
            return True
        if self.refusals or self.run is not None:
            return False
        lately_ns = r.time_ns[i] - DUPLICATE_NS
        if self._sent_ns(slot) <= lately_ns or self._was_answered(p):
            return False
        # A READ or atomic before ``p`` may have been passed over since the last go-back, and answered then.
        return self._passed_over_ns(p, lately_ns) <= self.run_ns

    def _was_overtaken(self, r: Rows, i: int) -> bool:
        """Whether a packet that was sent after this one came before it, as its IP identification tells.

        Many senders count the packets of an address, or of a host; of others the identifications tell
        nothing.
        """
        ip_id = r.ip_id[i]
        if ip_id and self._counts_ids():
            for slot in range(RING):
                lead = (self._sent_id(slot) - ip_id) & ID_MASK
                if 0 < lead < NEAR_IDS and self._sent_psn(slot) >= 0:
                    return True
        return False

    def _counts_ids(self) -> bool:
        """Whether the IP identifications of the sender's packets are a count, as they have come so far."""
        return self.ids_followed >= FOLLOWED and self.ids_followed >= self.ids_broke

    def _is_late(self, r: Rows, i: int, p: int, seen: bool) -> bool:
        """Whether the network held this packet up, and it is no repeat of one that came before."""
        if not self._was_overtaken(r, i):
            return False
        slot = p & _SLOT
        if not seen or self._sent_psn(slot) != p:
            return not seen
        return (r.ip_id[i] - self._sent_id(slot)) & ID_MASK > ID_MASK >> 1

    def _was_answered(self, p: int) -> bool:
        """Whether ``p`` is a READ or atomic that was answered: then its copy is no accident."""
        transfer = self._find(p)
        if transfer is None or transfer.operation not in NEEDS_ANSWER:
            return False
        return self._latest_answer_ns(p - 1, NEVER_NS) > transfer.request_end_ns

    def _repeated(self, r: Rows, i: int, p: int, seen: bool, transfer: Transfer | None) -> None:
        """An RC request below ``high``: the requester went back, or the network was late."""
        time_ns, frame = r.time_ns[i], r.frame[i]
        run = self.run
        asks_part = transfer is not None and p > transfer.first_psn and OPERATION[r.opcode[i]] == "READ"
        if run is not None and not asks_part and self._goes_on(run, r, i, p):
            # What was under way when a refusal came goes on until the requester obeys it.
            if self.refusals and run.cause != "rnr" and run.doubt is None and self._obeys(p, time_ns, 0):
                run = self._in_doubt(run, "rnr")
        elif seen or self._refusal_of(p) is not None:
            run = self._new_run(r, i, p)
            late = self.tentative
            if late is not None and late.psn == p - 1:
                self._reclassify(late, run)
        else:
            self.tentative = self._attribute(
                Event(
                    "late", time_ns, frame, p, p, last_ns=time_ns, last_frame=frame, bytes=r.payload_length[i]
                )
            )
            return
        self.tentative = None
        self.run = run
        self._add_repeat(run, r, i, p, seen)

    def _goes_on(self, run: Event, r: Rows, i: int, p: int) -> bool:
        """Whether a repeat under way goes on with this packet, be it out of order."""
        if p > run.last_psn:
            # Where it is not known how quick it is, nothing parts what goes on from what an answer set going.
            return not (self.refusals and self._obeys(p, r.time_ns[i], self.reaction_ns or NEVER_NS))
        return self._was_overtaken(r, i)

    def _obeys(self, p: int, time_ns: int, reaction_ns: int) -> bool:
        """Whether ``p`` comes again after a wait for the receiver, which ended what was under way.

        The wait is for ``p``, or for a PSN before it that was taken after all; then it was an answer
        that ended it, ``reaction_ns`` ago or longer.
        """
        for e in self.refusals:
            if e.kind != "rnr_nak" or not (e.psn == p or e.psn < self.acked):
                continue
            due_ns = e.time_ns + self._wait_ns(e)
            if self.last_tx_ns < due_ns <= time_ns - (reaction_ns if e.psn < self.acked else 0):
                return True
        return False

    def _in_doubt(self, run: Event, doubt: str) -> Event:
        """What goes on with a run, which from here on may have another reason."""
        self.runs += 1
        return Event(
            "repeat", 0, 0, 0, run.last_psn, 0, cause=run.cause, waited_ns=run.waited_ns, run=self.runs,
            doubt=doubt,
        )  # fmt: skip

    def _new_run(self, r: Rows, i: int, p: int) -> Event:
        before = self.run
        cause, since_ns, doubt, doubt_waited_ns = self._cause(r, i, p)
        if before is not None and p > before.last_psn and doubt is None:
            doubt = before.cause  # which may just have gone on
        self.runs += 1
        waited_ns = r.time_ns[i] - since_ns
        run = Event("repeat", 0, 0, 0, -1, 0, cause=cause, waited_ns=waited_ns, run=self.runs, doubt=doubt)
        run.doubt_waited_ns = doubt_waited_ns
        return run

    def _reclassify(self, late: Event, run: Event) -> None:
        """What looked like a packet out of order was the first of a repeat."""
        late.kind, late.cause, late.run, late.first_sight = "repeat", run.cause, run.run, 1
        late.waited_ns = run.waited_ns
        late.opens = True
        late.sent_psn = self.high - 1
        self.unanswered = late
        if late not in self.pending:
            transfer = self._find(late.psn)
            if transfer is not None:
                transfer.retransmitted_packets += 1
                transfer.timeouts += run.cause == "timeout"
                self.connection.retransmitted_packets += 1
        run.last_psn = late.psn

    def _add_repeat(self, run: Event, r: Rows, i: int, p: int, seen: bool) -> None:
        time_ns, frame = r.time_ns[i], r.frame[i]
        begun = run.last_psn >= 0
        run.last_psn = max(p, run.last_psn)
        event = self._attribute(
            Event(
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
                p < self.acked,
                run.run,
                not begun,
            )
        )
        event.doubt, event.doubt_waited_ns = run.doubt, run.doubt_waited_ns
        if not begun:
            event.sent_psn = self.high - 1
            event.mid_message = self.building is not None and self.building.first_psn <= self.acked
            self.unanswered = event

    def _answer(self, opening: Event, p: int, frame: int) -> None:
        """The first answer to a go-back tells what the responder already had (9.7.5.1.2)."""
        opening.answer_psn, opening.answer_frame = p, frame
        opening.reached_psn = opening.last_psn if self.run is None else self.run.last_psn
        self.unanswered = None
