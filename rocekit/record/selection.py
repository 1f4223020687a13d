"""Which work requests become lines of the journal: by QP, opcode, every n-th, and those around failures.

A completion is kept with the work request that it ends, and only with it: else a reader would give it to
another work request with the same wr_id. So what a queue has open is followed here, and a kept work request
and the completion that ends it have the same ``queue_index``. Whatever is left out is counted by queue.

A send queue completes in order (10.8.3.1): a completion ends the unsignaled work requests before its own,
too. Where records were lost that cannot be known any more; then only failures and chosen work requests are
kept.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

SEND, RECEIVE, COMPLETION = "sends", "receives", "completions"
_MOST_OPEN: Final = 1 << 17
"""Work requests of a queue that are followed at most: more than any device's queue holds."""


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """What was chosen to be recorded.

    Attributes:
        qps: numbers of QPs; empty: all.
        opcodes: names of opcodes, RECV for receives; empty: all.
        every: of each queue the first of so many work requests; None: all, or with ``errors`` none.
        errors: so many work requests before each that failed; None: only the one that failed.
        summary: none, except those that failed, and totals by QP.
    """

    qps: frozenset[int] = frozenset()
    opcodes: frozenset[str] = frozenset()
    every: int | None = None
    errors: int | None = None
    summary: bool = False

    def __bool__(self) -> bool:
        return bool(self.qps or self.opcodes or self.every or self.errors is not None or self.summary)

    def __str__(self) -> str:
        parts = [f"--qp {number:#x}" for number in sorted(self.qps)]
        parts += [f"--opcode {name}" for name in sorted(self.opcodes)]
        parts += [f"--every {self.every}"] if self.every is not None else []
        parts += [f"--errors {self.errors}"] if self.errors is not None else []
        return " ".join([*parts, "--summary"] if self.summary else parts)

    def takes(self, qpn: int, opcode: str) -> bool:
        """Whether a QP and an opcode are chosen; a receive of a shared queue has QPN 0, and is."""
        return (not self.qps or not qpn or qpn in self.qps) and (not self.opcodes or opcode in self.opcodes)

    def samples(self, index: int) -> bool:
        """Whether the work request with this place in its queue is chosen, failures aside."""
        if self.summary:
            return False
        if self.every is not None:
            return index % self.every == 0
        return self.errors is None


ALL: Final = RecordFilter()
Line = Callable[[], str]
"""Makes a journal line; most lines of a filtered journal are never made."""


@dataclass(slots=True)
class QueueCounts:
    """What a queue's records add up to.

    Attributes:
        left_out: records that are not in the journal, by kind.
        totals: for a summary: by opcode and status, bytes, and times from post to completion.
    """

    left_out: Counter[str] = field(default_factory=Counter)
    totals: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class _Completion:
    """A completion that was left out, for as long as the work requests that it ends may be written."""

    index: int
    line: Line | None
    counts: QueueCounts


@dataclass(slots=True)
class _Entry:
    """A work request of a queue; ``line`` makes its line, until that is written."""

    index: int
    wr_id: int
    signaled: bool
    posted_ns: int
    taken: bool
    chosen: bool
    line: Line | None
    ended: _Completion | None = None


@dataclass(slots=True)
class _Queue:
    """A QP's queue of sends or receives, or a shared receive queue."""

    kind: str
    count: int = 0
    open: deque[_Entry] = field(default_factory=deque)
    ids: Counter[int] = field(default_factory=Counter)
    done: deque[_Entry] = field(default_factory=deque)


Place = tuple[int, int, bool]
"""A device's number, a queue's, and whether it is a shared receive queue."""


class Selection:
    """Keeps or leaves out the lines of one process's work requests and completions."""

    def __init__(self, choice: RecordFilter) -> None:
        self.choice = choice
        self.counts: dict[Place, QueueCounts] = {}
        self._sends: dict[Place, _Queue] = {}
        self._receives: dict[Place, _Queue] = {}
        self._lossy: set[Place] = set()

    def lose(self, place: Place) -> None:
        """Records of a queue were lost: which completion ends which work request is not known from now on."""
        self._lossy.add(place)
        for queues in (self._sends, self._receives):
            if (queue := queues.pop(place, None)) is not None:
                queues[place] = _Queue(queue.kind, queue.count)

    def lose_all(self) -> None:
        """The same of every queue."""
        for place in {*self._sends, *self._receives}:
            self.lose(place)

    def forget(self, place: Place) -> None:
        """A queue begins anew."""
        self._sends.pop(place, None)
        self._receives.pop(place, None)
        self._lossy.discard(place)

    def _of(self, place: Place) -> QueueCounts:
        found = self.counts.get(place)
        if found is None:
            found = self.counts[place] = QueueCounts()
        return found

    def post(
        self,
        place: Place,
        opcode: str,
        wr_id: int,
        line: Line,
        *,
        length: int = 0,
        signaled: bool = True,
        posted_ns: int = 0,
        failed: bool = False,
    ) -> Iterator[str]:
        """A work request or a receive (opcode RECV): the lines to write now."""
        receive = opcode == "RECV"
        queues, kind = (self._receives, RECEIVE) if receive else (self._sends, SEND)
        queue = queues.get(place)
        if queue is None:
            queue = queues[place] = _Queue(kind)
        counts = self._of(place)
        taken = self.choice.takes(0 if place[2] else place[1], opcode)
        if self.choice.summary and taken:
            counts.totals[opcode] += 1
            counts.totals["bytes"] += 0 if receive else length
            counts.totals["refused"] += failed
        if failed:
            if taken:
                yield from self._around_failure(queue, counts, None)
                yield line()
            else:
                counts.left_out[kind] += 1
            return
        index, queue.count = queue.count, queue.count + 1
        chosen = taken and self.choice.samples(index)
        lossy = place in self._lossy
        if chosen:
            yield _with_index(line(), -1 if lossy or receive else index)
        counts.left_out[kind] += not chosen
        if lossy:
            return
        held = None if chosen or not taken else line
        queue.open.append(_Entry(index, wr_id, signaled, posted_ns, taken, chosen, held))
        queue.ids[wr_id] += 1
        if len(queue.open) > _MOST_OPEN:
            self.lose(place)

    def complete(
        self,
        place: Place,
        shared: Place | None,
        opcode: str | None,
        wr_id: int,
        line: Line,
        *,
        polled_ns: int,
    ) -> Iterator[str]:
        """A completion (``opcode`` None: a failure, whose opcode means nothing): the lines to write now."""
        sends, receives = self._sends.get(place), self._receives.get(shared or place)
        counts = self._of(place)
        failed = opcode is None
        of_send = sends is not None and sends.ids[wr_id] > 0
        known = receives is not None and receives.ids[wr_id] > 0
        of_receive = opcode in _OF_RECEIVE or (failed and not of_send and known)
        queue = receives if of_receive else sends
        ended = [] if queue is None else self._end(queue, wr_id, failed, in_order=not of_receive)
        if not ended:
            # Of a work request that is not known: posted before the recording, or lost.
            taken = self.choice.takes(place[1], "RECV" if of_receive else "")
            if self.choice.summary and taken:
                counts.totals["failed" if failed else COMPLETION] += 1
            if failed and taken:
                yield line()
            else:
                counts.left_out[COMPLETION] += 1
            return
        assert queue is not None
        own = ended[-1]
        if self.choice.summary and own.taken:
            counts.totals["failed" if failed else COMPLETION] += 1
            took = max(0, polled_ns - own.posted_ns)
            counts.totals["timed"] += 1
            counts.totals["total_ns"] += took
            counts.totals["most_ns"] = max(counts.totals["most_ns"], took)
        of_queue = self._of(shared or place) if of_receive else counts
        queue.done.extend(ended[:-1])
        if failed and own.taken:
            yield from self._around_failure(queue, of_queue, own)
        if (failed and own.taken) or any(entry.chosen for entry in ended):
            yield _with_index(line(), -1 if of_receive else own.index)
        else:
            counts.left_out[COMPLETION] += 1
            if self.choice.errors:
                completion = _Completion(-1 if of_receive else own.index, line, counts)
                for entry in ended:
                    entry.ended = completion
        if not self.choice.errors:
            queue.done.clear()
            return
        queue.done.append(own)
        while len(queue.done) > self.choice.errors:
            queue.done.popleft()

    def _around_failure(self, queue: _Queue, counts: QueueCounts, own: _Entry | None) -> Iterator[str]:
        """The work requests before one that failed, and it, as far as they are not written yet."""
        before = [*queue.done] if own is not None else [*queue.done, *queue.open]
        near = before[len(before) - min(len(before), self.choice.errors or 0) :]
        for entry in near if own is None else [*near, own]:
            if entry.line is not None:
                yield _with_index(entry.line(), -1 if queue.kind == RECEIVE else entry.index)
                entry.line = None
                counts.left_out[queue.kind] -= 1
            ended = entry.ended
            if ended is not None and ended.line is not None:
                # Else the failed one would seem to have ended this, too.
                yield _with_index(ended.line(), ended.index)
                ended.line = None
                ended.counts.left_out[COMPLETION] -= 1

    @staticmethod
    def _end(queue: _Queue, wr_id: int, failed: bool, *, in_order: bool) -> list[_Entry]:
        """The work requests that a completion ends, its own last; none if it is of none that is known."""
        if not queue.ids[wr_id]:
            return []
        if not in_order:
            entry = next(entry for entry in queue.open if entry.wr_id == wr_id)
            if queue.open[0] is entry:
                queue.open.popleft()
            else:
                queue.open.remove(entry)
            queue.ids[wr_id] -= 1
            return [entry]
        ended = []
        while True:
            entry = queue.open.popleft()
            queue.ids[entry.wr_id] -= 1
            if not queue.ids[entry.wr_id]:
                del queue.ids[entry.wr_id]
            ended.append(entry)
            if entry.wr_id == wr_id and (entry.signaled or failed or not queue.ids[wr_id]):
                return ended


_OF_RECEIVE: Final = frozenset({"RECV", "RECV_RDMA_WITH_IMM"})


def _with_index(line: str, index: int) -> str:
    """A line with the place of its work request in the queue; without, where that is -1."""
    return line if index < 0 else f'{line[:-1]},"queue_index":{index}}}'
