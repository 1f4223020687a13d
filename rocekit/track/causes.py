"""Why a requester sends again: a NAK or RNR NAK, a response that skips one, or its timer.

A capture shows that a PSN comes again, not why. Each cause makes the requester go back at a certain time: a
NAK and an implied NAK at once (IBA Vol. 1, 9.7.5.1.1, 9.7.5.1.2), an RNR NAK after the wait that it names
(9.7.5.2.8), the timer one local ACK timeout after it was last restarted (9.7.6.1.3). The cause is the one
whose time is nearest. It may also be none of them: what the capture shows may have been lost behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from rocekit import wire
from rocekit.packets.rows import REMEMBERED
from rocekit.track.events import Event
from rocekit.track.recent import NEVER_NS, RING
from rocekit.wire import OWN_RESPONSE
from rocekit.wire.syndromes import RNR_WAITS_NS

if TYPE_CHECKING:
    from rocekit.packets.rows import Rows
    from rocekit.track.ledger import Ledger
    from rocekit.track.passes import Passes
    from rocekit.track.progress import Progress
    from rocekit.track.recent import Recent

#: The cause of a go-back too soon for a timer, before which the capture has no NAK, or one that is cut.
NAK_MISSED: Final = "nak_missed"
#: A requester obeys a NAK sooner than this, where its timeout is not known.
IMPLIED_NS: Final = 1_000_000
#: Waits from here on may end an eighth early: a kernel counts them in ticks of up to 10 ms, and rounds down.
#: Shorter waits are not counted in ticks and last as long as they should.
TICKS_NS: Final = 2_000_000
#: A sender whose packets are this close has no time for one that is due.
BUSY_NS: Final = 5_000
#: How many packets back that is looked for.
BUSY_PACKETS: Final = REMEMBERED
#: What is in the capture reached the requester as a rule, so that its timer did not run out: the timer is the
#: cause only if its time fits this much better.
LIKELIER: Final = 2
#: Another cause is a doubt unless it is this much farther off, beside the time that a sender may be busy.
CLEARLY: Final = 4
#: How long a queue on the way may delay a response: a NAK that was due longer ago was lost.
HELD_UP_NS: Final = 50_000
#: A requester that takes so long, and so many times as long as for other NAKs, does not obey this one.
OBEYED_NS: Final = 10_000_000
MANY: Final = 16
#: Longer times, of clocks that leap, count as this long, so that multiples of them fit 63 bits.
_LONGEST_NS: Final = NEVER_NS // MANY
#: NAKs and RNR NAKs remembered that were not obeyed: they may still be on their way.
REFUSALS: Final = 8
#: Short waits of one side that are remembered (see ``short_timers``).
SHORT_WAITS: Final = 64
_NO_REFUSAL: Final = NEVER_NS, NEVER_NS
#: What most go-backs have none of: no new list for each.
_NO_EVENTS: Final[list[Event]] = []
_NO_NEAREST: Final[list[tuple[int, int, Event]]] = []
_REFUSED_AS: Final = {"nak": "nak", "rnr_nak": "rnr"}


def _early_ns(wait_ns: int) -> int:
    """How much too early a wait may end."""
    return wait_ns >> 3 if wait_ns >= TICKS_NS else 0


def busy_since_ns(r: Rows, i: int) -> int:
    """Since when the sender of packet ``i`` has been sending without a pause, as far as is remembered."""
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


class Causes:
    """Judges why one side's requester goes back, from what it was sent and when.

    Args:
        ledger: which request holds a PSN; progress, recent: what was sent and acknowledged, and when.

    Attributes:
        refusals: NAKs and RNR NAKs that the requester has not obeyed; obeyed: the last that it seems to have.
        reaction_ns: the shortest time between such a NAK and the go-back that it caused; 0 before the first.
        slowest_ns: the longest such time.
        run_psn: where it last went back to; run_cause: why; run_due_ns: when it had the cause to, at the
        earliest; run_high: what ``progress.high`` was then.
        shortest_timeout_ns: the shortest wait seen that only a timer explains; 0 before the first.
    """

    def __init__(self, ledger: Ledger, progress: Progress, recent: Recent, passes: Passes) -> None:
        self.passes = passes
        self.ledger = ledger
        self.progress = progress
        self.recent = recent
        self.reaction_ns = 0
        self.slowest_ns = 0
        self.run_psn = -1
        self.run_cause = ""
        self.run_due_ns = 0
        self.run_high = 0
        self.shortest_timeout_ns = 0
        self.refusals: Sequence[Event] = ()  # most connections never have any: a list costs memory
        self.obeyed: Sequence[Event] = ()

    def clear(self) -> None:
        """The PSNs begin anew: no NAK before counts."""
        self.refusals = self.obeyed = ()

    def skipped_ns(self, p: int, lately_ns: int) -> int:
        """When a response last skipped the READ or atomic at ``p`` after its request; 0: never.

        Or when, after ``lately_ns``, one skipped an earlier READ or atomic whose own response came before the
        requester sent it again: then the requester goes back to what is behind it.
        """
        if not self.ledger.asks:
            return 0
        transfer = self.ledger.find(p)
        if transfer is not None and transfer.operation in OWN_RESPONSE:
            latest_ns = self.recent.latest_response_ns(p, NEVER_NS)
            if latest_ns > transfer.first_ns:
                return latest_ns
        if p > self.progress.acked:
            return 0
        lately_ns = max(lately_ns, self.recent.back_ns)
        q, least = p, p - RING + 1
        while True:
            q = self.recent.covered_before(q, least)
            if q < least:
                break
            # It does not send again what it has just sent again.
            if q == self.run_psn:
                continue
            answered_ns = self.recent.covered_ns(q)
            if answered_ns <= lately_ns:
                continue
            transfer = self.ledger.find(q)
            if transfer is not None and transfer.operation in OWN_RESPONSE:
                latest_ns = self.recent.latest_response_ns(q, answered_ns)
                if latest_ns > transfer.first_ns and latest_ns > lately_ns:
                    return latest_ns
        return 0

    def _was_just_answered(self, p: int) -> bool:
        """Whether the READ or atomic at ``p``, or in front of it, got its response since the last go-back."""
        if not self.ledger.asks:
            return False
        for q in (p, p - 1):
            transfer = self.ledger.find(q)
            if transfer is not None and transfer.operation in OWN_RESPONSE:
                return transfer.acked_ns is not None and transfer.ack_ns > self.recent.back_ns
        return False

    def refuse(self, refusal: Event) -> None:
        """A NAK or RNR NAK came."""
        self.refusals = [*self.refusals[1 - REFUSALS :], refusal]

    def _withdraw(self, refusal: Event) -> None:
        """A NAK or RNR NAK does not hold any more."""
        self.refusals = [e for e in self.refusals if e is not refusal]

    def came(self, p: int) -> None:
        """The packet ``p`` came for the first time: a NAK for it is obeyed, and what drew it was missed."""
        for refusal in self.refusals:
            if refusal.kind == "nak" and refusal.psn == p:
                self._withdraw(refusal)

    def standing(self, p: int) -> Event | None:
        """A NAK or RNR NAK that holds and makes the requester go back to ``p`` or further."""
        for refusal in self.refusals:  # asked for each packet sent again: a generator takes longer
            if self.progress.acked <= refusal.psn <= p:
                return refusal
        return None

    def obeys_now(self, p: int, time_ns: int) -> bool:
        """Whether at its pace the requester obeys a NAK for ``p`` now, and has no response to ``p`` yet.

        The capture may have that response already.
        """
        for nak in self.refusals:
            if nak.kind == "nak" and nak.psn == p and 0 < self.reaction_ns <= time_ns - nak.time_ns:
                return self.recent.latest_response_ns(p, time_ns - self.reaction_ns) <= nak.time_ns
        return False

    def cause(self, r: Rows, i: int, p: int) -> tuple[str, int, str | None, int]:
        """Why the requester goes back to PSN ``p`` with packet ``i``.

        Returns:
            The cause; when its wait began; another cause that fits, or None; and the wait for that one, 0
            where it is not known.
        """
        time_ns = r.time_ns[i]
        code_known = self.ledger.connection.negotiated[self.ledger.side].ack_timeout is not None
        busy_ns = max(busy_since_ns(r, i), self.recent.last_tx_ns) if code_known else time_ns
        quick = code_known or time_ns - max(self.recent.last_tx_ns, self.recent.last_rx_ns) <= IMPLIED_NS
        if self.progress.cut_psn == p:  # it may be the NAK or RNR NAK
            self._goes_back(p, NAK_MISSED, None, busy_ns, time_ns, False)
            self.run_cause = NAK_MISSED
            quick = self._is_quick(time_ns - self.recent.last_tx_ns)
            return NAK_MISSED, self.recent.last_tx_ns, None if quick else "timeout", 0
        ignored = self._ignored(p, i, r)
        nearest = self._nearest_refusals(p, quick, busy_ns, time_ns)
        if ignored:
            nearest = [n for n in nearest if n[2] not in ignored]
        refusal_off_ns, _, obeyed = nearest[0] if nearest else (NEVER_NS, 0, None)
        told = "" if obeyed is None else _REFUSED_AS[obeyed.kind]
        passed_ns = self.skipped_ns(p, busy_ns - self.reaction_ns - BUSY_NS) if quick else 0
        passed_off_ns = self._off_ns(passed_ns, busy_ns, time_ns) if passed_ns else NEVER_NS
        timer_off_ns = self._timer_off_ns(p, busy_ns, time_ns)
        if p == self.run_psn and timer_off_ns < NEVER_NS:
            passed_off_ns = NEVER_NS  # it has just sent that again
        cause, off_ns = told, refusal_off_ns
        # The response that ends an RNR wait may be the one that skips something.
        ended = cause == "rnr" and obeyed is not None and obeyed.psn < self.progress.acked
        if passed_off_ns < off_ns or (ended and passed_off_ns == off_ns):
            cause, off_ns = "implied_nak", passed_off_ns
        likelier = LIKELIER if self.reaction_ns else 2 * LIKELIER
        if ignored and not cause:
            cause, off_ns = "timeout", min(timer_off_ns, 0)
        if timer_off_ns < NEVER_NS and (not cause or min(timer_off_ns, _LONGEST_NS) * likelier < off_ns):
            cause, off_ns = "timeout", timer_off_ns
        quiet_ns = time_ns - self.recent.last_sent_ns(p)
        early = not cause and code_known and quiet_ns < self._timeout_ns() >> 1
        # What was sent only after a NAK was obeyed does not come again for it.
        sent_since = p >= self.run_high and self.run_cause in ("nak", "rnr")
        if early and self.run_cause and not sent_since:
            # No NAK, and no timer has run out: the go-back before continues, delayed somewhere.
            cause, off_ns = self.run_cause, NEVER_NS
        elif early and self._was_just_answered(p):
            cause = "implied_nak"  # by responses that were reordered
        elif not cause and not (early and sent_since) and self._is_quick(time_ns - self._sent_ns(p)):
            cause = NAK_MISSED
        elif not cause and not 0 < self.shortest_timeout_ns <= quiet_ns:
            self.shortest_timeout_ns = quiet_ns
        since_ns = obeyed.time_ns if obeyed is not None and cause == told else self.recent.last_tx_ns
        self.run_cause = cause or "timeout"
        doubt, doubt_waited_ns = None, 0
        if code_known:
            each = [
                (passed_off_ns, "implied_nak", time_ns - passed_ns),
                (timer_off_ns, "timeout", quiet_ns),
            ]
            each += [(ns, _REFUSED_AS[e.kind], time_ns - e.time_ns) for ns, _, e in nearest]
            known = {kind for _, kind, _ in each}
            if not ignored:
                each += [(NEVER_NS, kind, 0) for kind in self._refused_as(p) if kind not in known]
            doubt, doubt_waited_ns = self._doubt(off_ns, each)
        obeyed = obeyed if cause == told else None
        if cause == "timeout":
            for refusal in ignored:
                refusal.ignored = True
                self._withdraw(refusal)
        if code_known and doubt is None:
            doubt, doubt_waited_ns = self._held_up(p, time_ns, nearest, obeyed)
        if code_known and self.run_cause == "timeout" and doubt is None and not self.refusals:
            self._note_short_wait(p, time_ns - self.recent.last_tx_ns)
        self._goes_back(p, cause, obeyed, busy_ns, time_ns, doubt is None)
        if not code_known:
            self.refusals = ()
        elif doubt == "timeout":  # the timer restarts when it runs out
            self.run_due_ns = min(self.run_due_ns, busy_ns)
        return self.run_cause, since_ns, doubt, doubt_waited_ns

    def _note_short_wait(self, p: int, waited_ns: int) -> None:
        """Note a wait that no timer of the negotiated length explains, and no NAK in the capture."""
        side, waits = self.ledger.side, self.ledger.connection.short_waits
        if not IMPLIED_NS <= waited_ns < self._timeout_ns() >> 1:
            return
        if len([s for s, _, _ in waits if s == side]) < SHORT_WAITS:
            self.ledger.connection.short_waits = [*waits, (side, p, waited_ns)]

    def _ignored(self, p: int, i: int, r: Rows) -> list[Event]:
        """The NAKs not obeyed: the requester waited many times as long as obeying one takes.

        The timeout of the CM exchange need not be the QP's, so a shorter wait may be its timer's too.
        """
        if not self.refusals:
            return _NO_EVENTS
        time_ns = r.time_ns[i]
        pace_ns = max(OBEYED_NS, MANY * min(self.slowest_ns, _LONGEST_NS))
        if not self.slowest_ns:  # what this requester needs to obey a NAK is not known
            timeout_ns = self._timeout_ns()
            pace_ns = max(pace_ns, timeout_ns - _early_ns(timeout_ns))
        return [
            e
            for e in self.refusals
            if e.kind == "nak"
            and self.progress.acked <= e.psn
            and p <= e.psn
            and time_ns - e.time_ns > pace_ns
            and time_ns - self.recent.last_tx_ns > pace_ns
        ]

    def _sent_ns(self, p: int) -> int:
        """When ``p`` was sent in the pass that ends now, though the capture may lack it."""
        for q in (p, p + 1):
            if self.recent.sent_psn(q) == q:
                return self.recent.sent_ns(q)
        ended = self.passes.before
        return 0 if ended is None else ended.began_ns

    def _is_quick(self, quiet_ns: int) -> bool:
        """Whether a go-back after this silence is too soon for a timer: the capture lacks a NAK."""
        timeout_ns = self._timeout_ns()
        return quiet_ns < (timeout_ns >> 1 if 0 < timeout_ns < 2 * IMPLIED_NS else IMPLIED_NS)

    def _doubt(self, off_ns: int, each: list[tuple[int, str, int]]) -> tuple[str | None, int]:
        """Another cause than ``run_cause``, which is ``off_ns`` from its time, and the wait for it.

        ``each``: of the causes in the capture, how far each is from its time, its name, and the wait.
        """
        others = [reason for reason in each if reason[1] != self.run_cause]
        next_ns, other, waited_ns = min(others, key=itemgetter(0))
        if next_ns == NEVER_NS:
            told = [kind for _, kind, _ in others if kind in ("nak", "rnr")]
            if not told:
                return None, 0
            other, waited_ns = told[0], 0
        # A late timer may be none, but a NAK that was delayed. A NAK that was obeyed late may have been lost,
        # and a response that the capture misses may have been the cause.
        is_timer = self.run_cause == "timeout"
        late = off_ns > (BUSY_NS if is_timer else 8 * (BUSY_NS + min(self.reaction_ns, _LONGEST_NS)))
        late = late and (not is_timer or next_ns < NEVER_NS)
        fits_as_well = off_ns > _LONGEST_NS or next_ns <= off_ns * CLEARLY + BUSY_NS
        return (other, waited_ns) if late or fits_as_well else (None, 0)

    def _held_up(
        self, p: int, time_ns: int, nearest: list[tuple[int, int, Event]], obeyed: Event | None
    ) -> tuple[str | None, int]:
        """Another cause than ``run_cause`` if responses were delayed or reordered behind the capture, and
        the wait for it.
        """
        if obeyed is not None:
            # The packet that the NAK is for arrived after all: its ACK may have skipped a READ before it.
            if obeyed.psn < self.progress.acked and self.ledger.has_answered_between(p - RING, p):
                return "implied_nak", time_ns - obeyed.time_ns
            return None, 0
        for off_ns, _, refusal in nearest:
            if self.run_cause == "timeout":
                held_up = off_ns <= HELD_UP_NS
            else:
                held_up = refusal.psn == p and off_ns < NEVER_NS
            if held_up:
                return _REFUSED_AS[refusal.kind], time_ns - refusal.time_ns
        # No NAK is pending: the go-back continues, or responses were reordered.
        goes_on = self.run_cause in ("nak", "rnr")
        return ("implied_nak" if goes_on and self._was_just_answered(p) else None), 0

    def _refused_as(self, p: int) -> list[str]:
        """The kinds of NAK that came lately for PSN ``p``, or for one before it.

        What was sent only after a NAK was obeyed does not come again for it.
        """
        obeyed = self.obeyed if p < self.run_high else ()
        kinds = [_REFUSED_AS[e.kind] for e in (*self.refusals, *obeyed) if e.psn <= p]
        return list(dict.fromkeys(kinds))

    def _nearest_refusals(
        self, p: int, quick: bool, busy_ns: int, time_ns: int
    ) -> list[tuple[int, int, Event]]:
        """The NAKs that may make the requester go back to ``p``, one of each kind, the likelier first.

        With each: how far it is off, and how much less time it leaves to react than was needed before.
        """
        if not self.refusals:
            return _NO_NEAREST
        if len(self.refusals) == 1:  # as a rule: what follows takes long for one
            only = self._distance(self.refusals[0], p, quick, busy_ns, time_ns)
            return _NO_NEAREST if only is None else [only]
        nearest: dict[str, tuple[int, int, Event]] = {}
        for refusal in self.refusals:
            found = self._distance(refusal, p, quick, busy_ns, time_ns)
            if found is not None and found[:2] <= nearest.get(refusal.kind, _NO_REFUSAL)[:2]:
                nearest.pop(refusal.kind, None)
                nearest[refusal.kind] = found
        latest_first = list(nearest.values())[::-1]
        return sorted(latest_first, key=itemgetter(0, 1))

    def _distance(
        self, refusal: Event, p: int, quick: bool, busy_ns: int, time_ns: int
    ) -> tuple[int, int, Event] | None:
        """What ``_nearest_refusals`` gives of one NAK; None if it cannot make the requester go back."""
        if refusal.psn > p or not (quick or refusal.psn >= self.progress.acked):
            return None
        wait_ns = self.wait_ns(refusal)
        due_ns = refusal.time_ns + wait_ns
        is_due = time_ns >= due_ns - _early_ns(wait_ns)
        off_ns = self._off_ns(due_ns, busy_ns, time_ns) if is_due else NEVER_NS
        return off_ns, max(due_ns + self.reaction_ns - time_ns, 0), refusal

    def _goes_back(
        self, p: int, cause: str, obeyed: Event | None, busy_ns: int, time_ns: int, learn: bool
    ) -> None:
        """Note when the timer restarted, and how fast the requester reacts, if that can be learned."""
        self.recent.back_ns, self.run_psn, self.run_high = time_ns, p, self.progress.high
        self.recent.once_from = self.progress.high
        self.run_due_ns = time_ns if cause == "rnr" else busy_ns
        if obeyed is None:
            return
        due_ns = obeyed.time_ns + self.wait_ns(obeyed)
        if cause == "nak":
            self.run_due_ns = max(busy_ns, due_ns)
        if learn and cause == "nak" and time_ns - due_ns > self.slowest_ns:
            self.slowest_ns = time_ns - due_ns
        if learn and time_ns > due_ns and (not self.reaction_ns or time_ns - due_ns < self.reaction_ns):
            self.reaction_ns = time_ns - due_ns
        self._withdraw(obeyed)
        self.obeyed = [*self.obeyed[1 - REFUSALS :], obeyed]

    def _off_ns(self, told_ns: int, busy_ns: int, time_ns: int) -> int:
        """How far the time of a cause is from the time at which the requester went back.

        That is when the packet was sent, or earlier, as long as the sender has been busy; and the cause came
        some time before the requester could react.
        """
        return max(busy_ns - told_ns - self.reaction_ns, told_ns - time_ns, 0)

    def wait_ns(self, refusal: Event) -> int:
        """How long the requester waits after a NAK (not at all) or RNR NAK before it obeys."""
        if refusal.kind == "nak":
            return 0
        if refusal.psn < self.progress.acked:  # the packet arrived after all: there is nothing to wait for
            return min(self._asked_ns(refusal), max(0, self.progress.acked_ns - refusal.time_ns))
        return self._asked_ns(refusal)

    def _asked_ns(self, refusal: Event) -> int:
        asked_ns: int = RNR_WAITS_NS[(refusal.syndrome or 0) & 0x1F]
        return asked_ns

    def _timeout_ns(self) -> int:
        """The requester's local ACK timeout: negotiated, else the shortest one seen; 0: not known."""
        code = self.ledger.connection.negotiated[self.ledger.side].ack_timeout
        if code is None:
            return self.shortest_timeout_ns
        timeout_ns = wire.local_ack_timeout_ns(code)
        return NEVER_NS if timeout_ns is None else timeout_ns

    def _timer_off_ns(self, p: int, busy_ns: int, time_ns: int) -> int:
        """How far from the go-back the timer may have run out; ``NEVER_NS``: it cannot have.

        The timer starts when the requester goes back, when everything before ``p`` is acknowledged, and when
        ``p`` is sent and nothing else is outstanding. Whether a response reached the requester is not known:
        one that leaves no time for the timer to run out did not.
        """
        timeout_ns = self._timeout_ns()
        if not timeout_ns:
            return NEVER_NS
        transfer = self.ledger.find(p)
        sent_ns = self.recent.last_sent_ns(
            p if transfer is None or not transfer.is_read else transfer.first_psn
        )
        again = p < self.run_high  # else the go-back before does not matter
        earliest_ns = self.run_due_ns if again else sent_ns
        latest_ns = time_ns - timeout_ns + _early_ns(timeout_ns)
        off_ns = NEVER_NS
        if again and earliest_ns <= latest_ns:
            due_ns = self.recent.back_ns + timeout_ns
            off_ns = max(busy_ns - due_ns, due_ns - time_ns, 0)
        if earliest_ns <= sent_ns <= latest_ns:
            due_ns = sent_ns + timeout_ns
            off_ns = min(off_ns, max(busy_ns - due_ns, due_ns - time_ns, 0))
        for q in range(p - 1, p + 1):
            if self.recent.covered_upto(q) != q:
                continue
            told_ns = self.recent.covered_ns(q)
            if earliest_ns <= told_ns <= latest_ns:
                due_ns = told_ns + timeout_ns
                off_ns = min(off_ns, max(busy_ns - due_ns, due_ns - time_ns, 0))
        return off_ns
