"""Why a requester sends again: a refusal it obeys, an answer that passes one over, or a timer that runs out.

A capture shows that a PSN comes again, not why. Each reason would have made the requester go back at a
certain
time: a NAK and an implied NAK at once (IBA Vol. 1, 9.7.5.1.1, 9.7.5.1.2), an RNR NAK after the wait that it
asks for (9.7.5.2.8), the timer a local ACK timeout after it was last restarted (9.7.6.1.3). The reason is the
one whose time is nearest. Any of them may be none: what the capture shows may have been lost behind it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from rocekit import wire
from rocekit.packets.rows import REMEMBERED
from rocekit.track.ledger import NEEDS_ANSWER, Ledger
from rocekit.track.transfers import Event

if TYPE_CHECKING:
    from rocekit.packets.rows import Rows
    from rocekit.track.connections import Connection
    from rocekit.track.ledger import Sink

#: Packets remembered of each direction: when they came, and with which IP identification.
RING: Final = 64
_SLOT: Final = RING - 1
# Of each PSN, side by side so that they are fetched at once: what was sent (the PSN above the IP
# identification) and when; what an answer told (one past the PSNs that it is of, above the MSN and one) and
# when it came.
_SENT, _SENT_NS, _TOLD, _TOLD_NS, _COLUMNS = range(5)
_ID_BITS: Final = 16
_MSN_BITS: Final = 25
_MSN_MASK: Final = (1 << _MSN_BITS) - 1
_NOTHING_SENT: Final = -1 << _ID_BITS
_BLANK: Final = array("q", [_NOTHING_SENT, 0, -1 << _MSN_BITS, 0]) * RING
#: The same of READ responses, for the answers' side: the PSN above the IP identification.
_NO_ANSWERS: Final = array("q", [_NOTHING_SENT]) * RING
NEVER_NS: Final = 1 << 62
#: How far apart the IP identifications may be of packets that a host sent shortly after each other, if it
#: counts them; other packets of the host may be counted in between.
NEAR_IDS: Final = 1024
ID_MASK: Final = 0xFFFF
_NEAR_IDS: Final = NEAR_IDS
_ID_MASK: Final = ID_MASK
#: A requester that was told to asks again sooner than this, where its timeout is not known.
IMPLIED_NS: Final = 1_000_000
#: Waits from here on may end an eighth early: a kernel counts them in ticks of up to 10 ms, and rounds down.
#: Shorter ones, which no tick measures, are kept.
TICKS_NS: Final = 2_000_000
#: A sender whose packets follow each other this closely has no time for one that is due.
BUSY_NS: Final = 5_000
#: How many packets of a capture are looked back at to see it.
BUSY_PACKETS: Final = REMEMBERED
#: What the capture shows reached the requester as a rule, so that its timer did not run out: for the timer to
#: be the reason, its time must fit this much better.
LIKELIER: Final = 2
#: Another reason that is not this much farther off, give or take what a sender may be busy, is a doubt.
CLEARLY: Final = 4
#: What a queue on the way may hold an answer up: a refusal that was due longer ago was lost.
HELD_UP_NS: Final = 50_000
#: Refusals remembered that were not obeyed: they may still be on their way.
REFUSALS: Final = 8
_NO_REFUSAL: Final = NEVER_NS, NEVER_NS
_REFUSED_AS: Final = {"nak": "nak", "rnr_nak": "rnr"}


def _early_ns(wait_ns: int) -> int:
    """How much too early a wait may end."""
    return wait_ns >> 3 if wait_ns >= TICKS_NS else 0


def _busy_since_ns(r: Rows, i: int) -> int:
    """Since when the sender of packet ``i`` has been sending without a pause, as far as a look back shows."""
    src, since_ns = r.src[i], r.time_ns[i]
    before = len(r.before_ns)
    place = r.place_of(i)
    k, first = place - 1, max(-before, place - BUSY_PACKETS)
    while k >= first:
        time_ns = r.around_ns[k] if k >= 0 else r.before_ns[k + before]
        if since_ns - time_ns > BUSY_NS:
            break
        if (r.around_src[k] if k >= 0 else r.before_src[k + before]) == src:
            since_ns = time_ns
        k -= 1
    return since_ns


def is_shared(words: Any, step: int, ip_id: int, p: int) -> bool:
    """Whether a PSN other than ``p`` stands with this IP identification in every ``step``-th word."""
    shared = False
    for slot in range(_SLOT + 1):
        word = words[slot * step]
        if word & _ID_MASK == ip_id and word >= 0 and word >> _ID_BITS != p:
            shared = True
            break
    return shared


class Reasons(Ledger):
    """A ledger that knows what a requester was told, and when.

    Attributes:
        refusals: NAKs and RNR NAKs that the requester has not obeyed; obeyed: the last that it seems to have.
        reaction_ns: the shortest time between such a refusal and the go-back that it asked for; 0 before the
        first.
        run_ns: when it last went back; run_psn: to where; run_cause: why; run_due_ns: when it had the reason
        to, at the earliest; run_high: what was ``high`` then.
        last_rx_ns: the last answer's time; last_tx_ns: the last request's.
        shortest_timeout_ns: the shortest wait seen that only a timer explains; 0 before the first.
        ids_followed, ids_broke: how many of its packets had an IP identification shortly above that of the
        one before, and how many another.
    """

    def _set_up(self, connection: Connection, side: int, sink: Sink, reliable: bool) -> None:
        Ledger._set_up(self, connection, side, sink, reliable)
        self.last_tx_ns = 0
        self.last_rx_ns = 0
        self.ack_ns = 0
        self.reaction_ns = 0
        self.run_ns = 0
        self.run_psn = -1
        self.run_cause = ""
        self.run_due_ns = 0
        self.run_high = 0
        self.shortest_timeout_ns = 0
        self.ids_followed = 0
        self.ids_broke = 0
        self._last_id = -1
        self.refusals: list[Event] = []
        self.obeyed: list[Event] = []
        self._told_first: dict[int, tuple[int, int]] = {}  # by slot: the PSN, and when that was first said
        self._ring: Any = _BLANK[:]
        self._answers: Any = None

    def _sent_psn(self, slot: int) -> int:
        """The PSN last sent in this slot of the ring; −1: none."""
        sent: int = self._ring[slot * _COLUMNS + _SENT]
        return sent >> _ID_BITS

    def _sent_id(self, slot: int) -> int:
        sent: int = self._ring[slot * _COLUMNS + _SENT]
        return sent & _ID_MASK

    def _sent_ns(self, slot: int) -> int:
        time_ns: int = self._ring[slot * _COLUMNS + _SENT_NS]
        return time_ns

    def _told_upto(self, slot: int) -> int:
        """One past the PSNs that an answer in this slot told of; −1: none."""
        told: int = self._ring[slot * _COLUMNS + _TOLD]
        return told >> _MSN_BITS

    def _told_msn(self, slot: int) -> int:
        """How many requests the responder had completed by its own account; −1: not told."""
        told: int = self._ring[slot * _COLUMNS + _TOLD]
        return (told & _MSN_MASK) - 1

    def _told_ns(self, slot: int) -> int:
        time_ns: int = self._ring[slot * _COLUMNS + _TOLD_NS]
        return time_ns

    def _is_shared_id(self, ip_id: int, p: int) -> bool:
        """Whether other PSNs were sent with this IP identification too: then it tells none from another."""
        return is_shared(self._ring, _COLUMNS, ip_id, p)

    def _answer_came(self, p: int, ip_id: int) -> None:
        """A READ response with PSN ``p`` came."""
        if self._answers is None:
            self._answers = _NO_ANSWERS[:]
        self._answers[p & _SLOT] = p << _ID_BITS | ip_id

    def _is_the_answer(self, p: int, ip_id: int) -> bool:
        """Whether the last READ response in its slot had this PSN and IP identification, and it alone."""
        if self._answers is None or self._answers[p & _SLOT] != p << _ID_BITS | ip_id:
            return False
        return not is_shared(self._answers, 1, ip_id, p)

    def _remember(self, r: Rows, i: int, p: int) -> None:
        ip_id = r.ip_id[i]
        if self._last_id >= 0:
            step = (ip_id - self._last_id) & _ID_MASK
            if step >= _NEAR_IDS:
                self.ids_broke += 1
            elif step > 0:  # a copy tells nothing
                self.ids_followed += 1
        self._last_id = ip_id
        at = (p & _SLOT) * _COLUMNS
        self._ring[at + _SENT] = p << _ID_BITS | ip_id
        self._ring[at + _SENT_NS] = self.last_tx_ns = r.time_ns[i]

    def _told(self, upto: int, time_ns: int, msn: int) -> None:
        """An answer came that passes over every READ and atomic below ``upto`` that has none.

        ``msn``: how many requests the responder had completed, which are those below ``upto``; −1: not told.
        """
        slot = upto & _SLOT
        if self._told_upto(slot) == upto:
            self._told_again(slot)
        at = slot * _COLUMNS
        self._ring[at + _TOLD] = upto << _MSN_BITS | msn + 1
        self._ring[at + _TOLD_NS] = self.last_rx_ns = time_ns

    def _told_again(self, slot: int) -> None:
        """An answer says what one before said: remember when the first did since the last go-back."""
        upto, first_ns = self._told_first.get(slot, (-1, 0))
        if upto != self._told_upto(slot) or first_ns <= self.run_ns:
            self._told_first[slot] = self._told_upto(slot), self._told_ns(slot)

    def _passed_over_ns(self, p: int, lately_ns: int) -> int:
        """When an answer last passed over the READ or atomic at ``p`` after it was asked; 0: never.

        Or after ``lately_ns`` over one before, whose own answer came before the requester got round to asking
        again: then it begins behind what was answered meanwhile.
        """
        transfer = self._find(p)
        if transfer is not None and transfer.operation in NEEDS_ANSWER:
            latest_ns = self._latest_answer_ns(p, NEVER_NS)
            if latest_ns > transfer.first_ns:
                return latest_ns
        if p > self.acked:
            return 0
        lately_ns = max(lately_ns, self.run_ns)
        for q in range(p - 1, p - RING, -1):
            slot = q & _SLOT
            answered_ns = self._told_ns(slot)
            # What it has just asked for again, it does not ask for once more.
            if q == self.run_psn or self._told_upto(slot) != q or answered_ns <= lately_ns:
                continue
            transfer = self._find(q)
            if transfer is not None and transfer.operation in NEEDS_ANSWER:
                latest_ns = self._latest_answer_ns(q, answered_ns)
                if latest_ns > transfer.first_ns and latest_ns > lately_ns:
                    return latest_ns
        return 0

    def _was_just_answered(self, p: int) -> bool:
        """Whether the READ or atomic at ``p``, or in front of it, was answered since the last go-back."""
        for q in (p, p - 1):
            transfer = self._find(q)
            if transfer is not None and transfer.operation in NEEDS_ANSWER:
                return transfer.acked_ns is not None and transfer.acked_ns > self.run_ns
        return False

    def _latest_answer_ns(self, p: int, until_ns: int) -> int:
        """When the last answer before ``until_ns`` came that says something of more than PSN ``p``."""
        latest_ns = 0
        for slot in range(_SLOT + 1):
            if self._told_upto(slot) <= p:
                continue
            told_ns = self._told_ns(slot)
            if told_ns >= until_ns and slot in self._told_first:
                upto, first_ns = self._told_first[slot]
                told_ns = first_ns if upto == self._told_upto(slot) else told_ns
            if latest_ns < told_ns < until_ns:
                latest_ns = told_ns
        return latest_ns

    def _refuse(self, refusal: Event) -> None:
        """The responder wants something again."""
        if len(self.refusals) >= REFUSALS:
            del self.refusals[0]
        self.refusals.append(refusal)

    def _refusal_of(self, p: int) -> Event | None:
        """A refusal that stands and makes the requester go back to ``p`` or further."""
        return next((e for e in self.refusals if self.acked <= e.psn <= p), None)

    def _cause(self, r: Rows, i: int, p: int) -> tuple[str, int, str | None, int]:
        """Why the requester goes back to PSN ``p`` with packet ``i``, when its wait for that began, what else
        it may have been, and what the wait for that was (0: not known).
        """
        time_ns = r.time_ns[i]
        code_known = self.connection.negotiated[self.side].ack_timeout is not None
        busy_ns = max(_busy_since_ns(r, i), self.last_tx_ns) if code_known else time_ns
        quick = code_known or time_ns - max(self.last_tx_ns, self.last_rx_ns) <= IMPLIED_NS
        nearest = self._nearest_refusals(p, quick, busy_ns, time_ns)
        refusal_off_ns, _, obeyed = nearest[0] if nearest else (NEVER_NS, 0, None)
        told = "" if obeyed is None else _REFUSED_AS[obeyed.kind]
        passed_ns = self._passed_over_ns(p, busy_ns - self.reaction_ns - BUSY_NS) if quick else 0
        passed_off_ns = self._off_ns(passed_ns, busy_ns, time_ns) if passed_ns else NEVER_NS
        timer_off_ns = self._timer_off_ns(p, busy_ns, time_ns)
        if p == self.run_psn and timer_off_ns < NEVER_NS:
            passed_off_ns = NEVER_NS  # what it has just asked for again, it does not ask for once more
        cause, off_ns = told, refusal_off_ns
        # What ends a wait for the receiver may be the very answer that passes something over.
        ended = cause == "rnr" and obeyed is not None and obeyed.psn < self.acked
        if passed_off_ns < off_ns or (ended and passed_off_ns == off_ns):
            cause, off_ns = "implied_nak", passed_off_ns
        likelier = LIKELIER if self.reaction_ns else 2 * LIKELIER
        if timer_off_ns < NEVER_NS and (not cause or timer_off_ns * likelier < off_ns):
            cause, off_ns = "timeout", timer_off_ns
        quiet_ns = time_ns - self._last_sent_ns(p)
        if not cause and code_known and self.run_cause and quiet_ns < self._timeout_ns() >> 1:
            # Nothing asks for it, and no timer has run out: what was under way goes on, held up somewhere.
            cause, off_ns = self.run_cause, NEVER_NS
        elif not cause and code_known and self._was_just_answered(p) and quiet_ns < self._timeout_ns() >> 1:
            cause = "implied_nak"  # by answers that came in another order than they were sent
        elif not cause and not 0 < self.shortest_timeout_ns <= quiet_ns:
            self.shortest_timeout_ns = quiet_ns
        since_ns = obeyed.time_ns if obeyed is not None and cause == told else self.last_tx_ns
        self.run_cause = cause or "timeout"
        doubt, doubt_waited_ns = None, 0
        if code_known:
            each = [
                (passed_off_ns, "implied_nak", time_ns - passed_ns),
                (timer_off_ns, "timeout", quiet_ns),
            ]
            each += [(ns, _REFUSED_AS[e.kind], time_ns - e.time_ns) for ns, _, e in nearest]
            known = {kind for _, kind, _ in each}
            each += [(NEVER_NS, kind, 0) for kind in self._refused_as(p) if kind not in known]
            doubt, doubt_waited_ns = self._doubt(off_ns, each)
        obeyed = obeyed if cause == told else None
        if code_known and doubt is None:
            doubt, doubt_waited_ns = self._held_up(p, time_ns, nearest, obeyed)
        self._goes_back(p, cause, obeyed, busy_ns, time_ns, learn=doubt is None)
        if not code_known:
            self.refusals.clear()
        elif doubt == "timeout":  # which starts the timer anew when it runs out
            self.run_due_ns = min(self.run_due_ns, busy_ns)
        return self.run_cause, since_ns, doubt, doubt_waited_ns

    def _doubt(self, off_ns: int, each: list[tuple[int, str, int]]) -> tuple[str | None, int]:
        """What else than ``run_cause``, which is ``off_ns`` from its time, may have been the reason, and the
        wait for it.

        ``each``: how far a reason is from its time, its name, and the wait. What the capture does not show is
        none of them.
        """
        others = [reason for reason in each if reason[1] != self.run_cause]
        next_ns, other, waited_ns = min(others, key=itemgetter(0))
        if next_ns == NEVER_NS:
            told = [kind for _, kind, _ in others if kind in ("nak", "rnr")]
            if not told:
                return None, 0
            other, waited_ns = told[0], 0
        # A timer that is late may be none, but a refusal that was held up; and a refusal obeyed late may
        # have been lost, and the requester have been told by an answer that no longer shows.
        is_timer = self.run_cause == "timeout"
        late = off_ns > (BUSY_NS if is_timer else 8 * (BUSY_NS + self.reaction_ns))
        late = late and (not is_timer or next_ns < NEVER_NS)
        return (other, waited_ns) if late or next_ns <= off_ns * CLEARLY + BUSY_NS else (None, 0)

    def _held_up(
        self, p: int, time_ns: int, nearest: list[tuple[int, int, Event]], obeyed: Event | None
    ) -> tuple[str | None, int]:
        """What else than ``run_cause`` may have been the reason if answers came later than the capture shows,
        or in another order; and the wait for it.
        """
        if obeyed is not None:
            # What it was told of was taken after all: a READ before it may have been passed over by that.
            if obeyed.psn < self.acked and self._asked_for_answer(p - RING, p):
                return "implied_nak", time_ns - obeyed.time_ns
            return None, 0
        for off_ns, _, refusal in nearest:
            if self.run_cause == "timeout":
                held_up = off_ns <= HELD_UP_NS
            else:
                held_up = refusal.psn == p and off_ns < NEVER_NS
            if held_up:
                return _REFUSED_AS[refusal.kind], time_ns - refusal.time_ns
        # Without a refusal of its own it goes on as before, or answers have overtaken one another.
        goes_on = self.run_cause in ("nak", "rnr")
        return ("implied_nak" if goes_on and self._was_just_answered(p) else None), 0

    def _asked_for_answer(self, first: int, end: int) -> bool:
        """Whether there is a READ or atomic among PSNs from ``first`` to before ``end``."""
        at = bisect_right(self.firsts, end - 1) - 1
        while at >= 0 and self.window[at].last_psn >= first:
            if self.window[at].operation in NEEDS_ANSWER:
                return True
            at -= 1
        return False

    def _refused_as(self, p: int) -> list[str]:
        """How the capture shows PSN ``p``, or one before it, to have been refused lately."""
        kinds = [_REFUSED_AS[e.kind] for e in (*self.refusals, *self.obeyed) if e.psn <= p]
        return list(dict.fromkeys(kinds))

    def _nearest_refusals(
        self, p: int, quick: bool, busy_ns: int, time_ns: int
    ) -> list[tuple[int, int, Event]]:
        """The refusals to obey which the requester may go back to ``p``, one of a kind, the likelier first.

        With each, how far it is off, and by how much it leaves less time to react than was needed before.
        """
        nearest: dict[str, tuple[int, int, Event]] = {}
        for refusal in self.refusals:
            if refusal.psn > p or not (quick or refusal.psn >= self.acked):
                continue
            wait_ns = self._wait_ns(refusal)
            due_ns = refusal.time_ns + wait_ns
            is_due = time_ns >= due_ns - _early_ns(wait_ns)
            off_ns = self._off_ns(due_ns, busy_ns, time_ns) if is_due else NEVER_NS
            too_soon_ns = max(due_ns + self.reaction_ns - time_ns, 0)
            if (off_ns, too_soon_ns) <= nearest.get(refusal.kind, _NO_REFUSAL)[:2]:
                nearest.pop(refusal.kind, None)
                nearest[refusal.kind] = off_ns, too_soon_ns, refusal
        latest_first = list(nearest.values())[::-1]
        return sorted(latest_first, key=itemgetter(0, 1))

    def _goes_back(
        self, p: int, cause: str, obeyed: Event | None, busy_ns: int, time_ns: int, *, learn: bool
    ) -> None:
        """Note when the timer started anew, and how quick the requester is, if that can be learned."""
        self.run_ns, self.run_psn, self.run_high = time_ns, p, self.high
        self.run_due_ns = time_ns if cause == "rnr" else busy_ns
        if obeyed is None:
            return
        due_ns = obeyed.time_ns + self._wait_ns(obeyed)
        if cause == "nak":
            self.run_due_ns = max(busy_ns, due_ns)
        if learn and time_ns > due_ns and (not self.reaction_ns or time_ns - due_ns < self.reaction_ns):
            self.reaction_ns = time_ns - due_ns
        self.refusals.remove(obeyed)
        self.obeyed = [*self.obeyed[1 - REFUSALS :], obeyed]

    def _off_ns(self, told_ns: int, busy_ns: int, time_ns: int) -> int:
        """How far what the requester was told lies from the time at which it went back.

        That was when the packet was sent, or before, since when the sender has been busy; and it was told
        some time before it could react.
        """
        return max(busy_ns - told_ns - self.reaction_ns, told_ns - time_ns, 0)

    def _wait_ns(self, refusal: Event) -> int:
        """How long the requester waits after a refusal before it obeys."""
        if refusal.kind == "nak":
            return 0
        if refusal.psn < self.acked:  # it was taken after all: there is nothing to wait for
            return min(self._asked_ns(refusal), max(0, self.ack_ns - refusal.time_ns))
        return self._asked_ns(refusal)

    @staticmethod
    def _asked_ns(refusal: Event) -> int:
        return wire.RNR_TIMER_US[wire.syndrome_value(refusal.syndrome or 0)] * 1000

    def _last_sent_ns(self, p: int) -> int:
        """When PSN ``p`` was last sent, as far back as is remembered."""
        slot = p & _SLOT
        return self._sent_ns(slot) if self._sent_psn(slot) == p else self.last_tx_ns

    def _timeout_ns(self) -> int:
        """The requester's local ACK timeout: negotiated, else the shortest one seen; 0 when not known."""
        code = self.connection.negotiated[self.side].ack_timeout
        if code is None:
            return self.shortest_timeout_ns
        timeout_us = wire.local_ack_timeout_us(code)
        return NEVER_NS if timeout_us is None else int(timeout_us * 1000)

    def _timer_off_ns(self, p: int, busy_ns: int, time_ns: int) -> int:
        """How far from the go-back the timer may have run out; ``NEVER_NS``: it cannot have.

        It starts when the requester goes back, when everything before ``p`` is answered, and when ``p`` is
        sent and nothing else is on its way. Whether an answer reached it is not known: one that leaves no
        time for the timer to run out did not.
        """
        timeout_ns = self._timeout_ns()
        if not timeout_ns:
            return NEVER_NS
        transfer = self._find(p)
        sent_ns = self._last_sent_ns(p if transfer is None or not transfer.is_read else transfer.first_psn)
        again = p < self.run_high  # else the go-back before has nothing to do with it
        earliest_ns = self.run_due_ns if again else sent_ns
        latest_ns = time_ns - timeout_ns + _early_ns(timeout_ns)
        off_ns = NEVER_NS
        if again and earliest_ns <= latest_ns:
            due_ns = self.run_ns + timeout_ns
            off_ns = max(busy_ns - due_ns, due_ns - time_ns, 0)
        told = [self._told_ns(q & _SLOT) for q in (p, p - 1) if self._told_upto(q & _SLOT) == q]
        for start_ns in (sent_ns, *told):
            if earliest_ns <= start_ns <= latest_ns:
                due_ns = start_ns + timeout_ns
                off_ns = min(off_ns, max(busy_ns - due_ns, due_ns - time_ns, 0))
        return off_ns
