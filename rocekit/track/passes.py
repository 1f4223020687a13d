"""The passes of a requester: what it sends between two times it goes back, as the capture shows it.

A go-back-N responder takes only the PSN that it expects (IBA Vol. 1, 9.7.5.1.1) and drops everything behind
a gap. So of several copies of a PSN only one counts: the last one sent before the NAK, in the pass that drew
it. If the capture contains that copy, it was lost behind the capture point; if not, before it. Copies of
earlier passes say nothing: they were behind an earlier gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rocekit.track.events import Event
    from rocekit.track.progress import Progress

#: Where the copy that counts was lost. ``NOT_LOST``: the NAK came before this pass's copy can have arrived,
#: so a late packet of an earlier pass drew it.
#: ``OPEN``: it came so soon after this pass's copy that either may be; the copy may also have arrived late.
BEFORE, BEHIND, NOT_LOST, OPEN, UNKNOWN = "before", "behind", "not lost", "open", ""
#: ``OVERTAKEN``: it arrived after all, since a NAK for a later PSN followed that the same pass drew.
#: ``THROWN_AWAY``: it arrived behind a gap that an overtaken packet left.
OVERTAKEN, THROWN_AWAY = "overtaken", "thrown away"
#: ``ANSWERED``: as ``BEHIND``, but then an ACK named just that packet, or another one of its direction, in
#: mid message, or an answer came once more. A responder sends one for a duplicate (IBA Vol. 1, 9.7.5.1.3):
#: the packet may have come late.
ANSWERED = "answered"
#: ``MISSED``: the capture lacks it, and misses packets; so it was lost before the capture, or came late.
MISSED = "missed"
#: ``SECOND``: as ``BEHIND``, of the packet behind the first of a go-back. If that first one came late, the
#: responder threw away what came before it, and asks for the second: both look alike.
SECOND = "second"
#: How lost packets come again: with all packets behind them, or alone, because the responder kept the others.
GO_BACK_N, SELECTIVE = "go-back-n", "selective"
#: Gaps of one pass that are remembered, the last ones.
_GAPS: Final = 256
_PSN: Final = attrgetter("psn")
#: NAKs of one pass that are remembered, the last ones.
_NAKS: Final = 256
#: A packet so close behind an overtaken one probably came before it too. One farther behind had to overtake
#: all those between, which the responder took: rather it was lost, or overtaken itself.
_THROWN: Final = 3
#: A NAK that comes so many times the shortest turnaround after a pass is not that pass's.
_LONG: Final = 8
#: A NAK answers nothing that was sent so many parts of the shortest turnaround before it. The shortest one
#: seen may be longer than the shortest possible, so what was sent between these two is not decided.
_SOONER: Final = 2
#: The shortest of fewer times may be many times the shortest possible.
_TIMED: Final = 16


class Pass:
    """What a requester sent between two times it went back.

    Args:
        number: how many passes there were before it.
        first: its first PSN.
        began_ns: when it began; 0: before the capture, or with the connection.

    Attributes:
        last: its highest PSN so far, which is final when it ends.
        ended_ns: when its last packet was sent.
        gaps: PSNs that were skipped in it, as (first, last).
        jump: the PSNs that its repeat, which obeyed a NAK, did not reach.
        naks: the NAKs that it drew.
    """

    def __init__(self, number: int, first: int, began_ns: int) -> None:
        self.number = number
        self.first = first
        self.began_ns = began_ns
        self.last = -1
        self.ended_ns = 0
        self.gaps: Sequence[tuple[int, int]] = ()  # most passes have neither: a list costs memory
        self.jump: tuple[int, int] | None = None
        self.naks: Sequence[Event] = ()

    def __repr__(self) -> str:
        span = f"PSN {self.first}–{self.last} at {self.began_ns}–{self.ended_ns} ns"
        naks = [nak.psn for nak in self.naks]
        return f"<Pass {self.number}: {span}, gaps {self.gaps}, jump {self.jump}, NAKs {naks}>"

    def lacks(self, p: int) -> bool:
        """Whether ``p`` was skipped in this pass."""
        for first, last in self.gaps:  # noqa: SIM110 - asked for each NAK: a generator takes longer
            if first <= p <= last:
                return True
        return False

    def missing(self, first: int, last: int) -> list[int]:
        """The PSNs from ``first`` to ``last`` that were skipped in it."""
        return [p for a, b in self.gaps for p in range(max(a, first), min(b, last) + 1)]


def _pass_of(number: int, first: int, began_ns: int) -> Pass:
    """``Pass(…)`` without the time that its arguments take."""
    made: Pass = Pass.__new__(Pass)
    made.number, made.first, made.began_ns = number, first, began_ns
    made.last, made.ended_ns, made.gaps, made.jump, made.naks = -1, 0, (), None, ()
    return made


class Passes:
    """The passes of one side's requester: the one under way, and the one before.

    Args:
        progress: the requester's; it says whether the pass under way has gaps.

    Attributes:
        went_back, selective: how many repeats sent all that was outstanding again (go-back-N), and how many
        sent only what was missing, because the responder had kept what came out of order.
    """

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.current = Pass(0, 0, 0)
        self.before: Pass | None = None
        self.went_back = 0
        self.selective = 0
        self.missed = 0

    def clear(self) -> None:
        """The PSNs begin anew."""
        self.current = Pass(self.current.number + 1, 0, 0)
        self.before = None
        self.progress.gapped = False

    def begin(self, p: int, time_ns: int, last: int, last_ns: int, acked: int) -> Pass:
        """The requester goes back to ``p``, after it sent ``last`` at ``last_ns``; gives the ended pass."""
        ended = self.current
        ended.last, ended.ended_ns = last, last_ns
        self.vote(acked)
        self.before, self.current = ended, _pass_of(ended.number + 1, p, time_ns)
        self.progress.gapped = False
        if (
            ended.first <= acked < p
        ):  # it goes back to what is not acknowledged, whether the capture has it or not
            self.current.first = acked
            self.skip(acked, p - 1)
        return ended

    def vote(self, acked: int) -> None:
        """Learn how the pass under way recovered, if an acknowledgement decides it.

        The requester obeyed a NAK, and sent less than all that was outstanding. If what it did not send again
        is acknowledged, the responder had kept it.
        """
        jump = self.current.jump
        if jump is not None and acked > jump[1]:
            self.selective += 1
            self.current.jump = None

    def skip(self, first: int, last: int) -> None:
        """The PSNs from ``first`` to ``last`` were not seen in this pass, and what is behind them was."""
        current = self.current
        self.progress.gapped = True
        if not isinstance(current.gaps, list):
            current.gaps = [(first, last)]
            return
        current.gaps.append((first, last))
        if len(current.gaps) > _GAPS:
            del current.gaps[0]

    def acknowledged(self, upto: int) -> None:
        """Everything below ``upto`` is acknowledged: what the pass skipped there was sent all the same."""
        kept = []
        for first, last in self.current.gaps:
            if last < upto:
                # What it did not go back to may be acknowledged by a NAK that the capture lacks.
                self.missed += last - first + 1 if first != self.current.first else 0
            else:
                kept.append((first, last))
        self.current.gaps = kept
        self.progress.gapped = bool(kept)

    def fill(self, p: int) -> None:
        """A packet came that seemed to be skipped in this pass."""
        for at, (first, last) in enumerate(self.current.gaps):
            if first <= p <= last:
                rest = [gap for gap in ((first, p - 1), (p + 1, last)) if gap[0] <= gap[1]]
                self.current.gaps = [*self.current.gaps[:at], *rest, *self.current.gaps[at + 1 :]]
                return

    @property
    def recovery(self) -> str | None:
        """How lost packets come again, by the repeats so far; None: no repeat decides it."""
        if self.is_selective():
            return SELECTIVE
        return GO_BACK_N if self.went_back else None

    def is_selective(self) -> bool:
        """Whether the responder keeps packets that come out of order, by the repeats so far."""
        return self.selective > self.went_back

    def note(self, nak: Event) -> None:
        """A NAK was judged. A responder that sends one for a later PSN has got the packet before."""
        of_pass = nak.of_pass
        if of_pass is None or nak.copy not in (BEFORE, BEHIND):
            return
        earlier = [e for e in of_pass.naks if e.psn < nak.psn]
        for event in earlier:
            event.copy = OVERTAKEN
        if earlier and nak.copy == BEHIND and nak.psn - max(earlier, key=_PSN).psn <= _THROWN:
            nak.copy = THROWN_AWAY
        # Of those that are marked, the lowest is enough to show that there are earlier ones.
        lowest = [min(earlier, key=_PSN)] if earlier else []
        of_pass.naks = [*lowest, *[e for e in of_pass.naks[-_NAKS:] if e.psn >= nak.psn], nak]

    def judge(
        self, p: int, time_ns: int, reached: int, sent_ns: int, turnaround_ns: int, timed: int
    ) -> tuple[str, Pass]:
        """Where the copy was lost that a NAK for ``p`` at ``time_ns`` misses, and the pass that drew the NAK.

        Args:
            reached: the highest PSN sent in this pass.
            sent_ns: when ``p`` was last sent; 0: too long ago to be remembered.
            turnaround_ns: the shortest time from a request to its response, of so many as ``timed``; 0:
            unknown.
        """
        current, before = self.current, self.before
        # Only a packet behind p draws a NAK for it.
        late = before is not None and before.first <= p < before.last
        begun = current.began_ns <= time_ns  # not so where times run back: then it is not this pass's
        if before is not None and begun and time_ns - before.ended_ns > _LONG * turnaround_ns > 0:
            late = False  # that pass ended too long ago for its packets to be still on their way
        # What this pass sent so shortly before the NAK had not arrived when the NAK was sent; what it sent
        # before ``fresh_ns`` may have.
        surely_ns = time_ns - (turnaround_ns // _SOONER if timed >= _TIMED else 0)
        fresh_ns = time_ns - turnaround_ns
        stale = late and (current.began_ns > surely_ns or p < current.first)
        if self.is_selective():
            # The responder keeps each copy that arrives, so every copy sent before the NAK was lost.
            if sent_ns and (sent_ns < fresh_ns or not turnaround_ns):
                return BEHIND, current
            if before is not None and before.first <= p <= before.last:
                return (BEFORE if before.lacks(p) else BEHIND), before
        if p <= reached and current.lacks(p) and (not stale or (before is not None and not before.lacks(p))):
            return BEFORE, current
        if not stale and p <= reached and (not late or sent_ns < fresh_ns or not turnaround_ns):
            return BEHIND, current
        if before is None or not late:
            return UNKNOWN, current
        if not stale and (sent_ns < surely_ns or current.began_ns > fresh_ns):
            return OPEN, current
        if stale or p == current.first:
            return (BEFORE if before.lacks(p) else BEHIND), before
        return NOT_LOST, current
