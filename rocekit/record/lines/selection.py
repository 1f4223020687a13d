"""Which work requests become lines of the journal: by QP, opcode, every n-th, and those around failures.

A completion is kept with the work request that it ends, and only with it: else a reader would give it to
another work request with the same wr_id. So what a queue has open is followed here, and a kept work request
and the completion that ends it have the same ``queue_index``. Whatever is left out is counted by queue.

A send queue completes in order (10.8.3.3): a completion ends the unsignaled work requests before its own,
too. Where records were lost that cannot be known any more; then only failures and chosen work requests are
kept.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rocekit.record.process import RecordedQp
from rocekit.record.verbs_names import WR_OPCODES

SEND, RECEIVE, COMPLETION = "sends", "receives", "completions"
MOST_OPEN: Final = 1 << 17
"""Work requests of a queue that are followed at most: more than any device's queue holds."""
RECEIVES: Final = 16
"""Where receives are counted, behind the opcodes of sends that go the short way."""


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
        posts, sent_bytes, completions, total_ns, most_ns: what the short way has added up of totals, posts by
            opcode's number.
        sends_left, receives_left, completions_left: the same of what was left out.
    """

    left_out: Counter[str] = field(default_factory=Counter)
    totals: Counter[str] = field(default_factory=Counter)
    posts: list[int] = field(default_factory=lambda: [0] * (RECEIVES + 1))
    sent_bytes: int = 0
    completions: int = 0
    timed: int = 0
    total_ns: int = 0
    most_ns: int = 0
    sends_left: int = 0
    receives_left: int = 0
    completions_left: int = 0

    def settle(self) -> None:
        """Add what the short way has added up to the rest."""
        self.left_out[SEND] += self.sends_left
        self.left_out[RECEIVE] += self.receives_left
        self.left_out[COMPLETION] += self.completions_left
        self.sends_left = self.receives_left = self.completions_left = 0
        for opcode, count in enumerate(self.posts):
            if count:
                self.totals["RECV" if opcode == RECEIVES else opcode_name(opcode)] += count
                self.posts[opcode] = 0
        self.totals["bytes"] += self.sent_bytes
        self.totals[COMPLETION] += self.completions
        self.totals["timed"] += self.timed
        self.totals["total_ns"] += self.total_ns
        self.totals["most_ns"] = max(self.totals["most_ns"], self.most_ns)
        self.sent_bytes = self.completions = self.timed = self.total_ns = self.most_ns = 0


@dataclass(slots=True)
class _Completion:
    """A completion that was left out, for as long as the work requests that it ends may be written."""

    index: int
    line: Line | None
    counts: QueueCounts


@dataclass(slots=True)
class Held:
    """A work request that is not written yet: what makes its line, and the completion that has ended it."""

    line: Line | None
    ended: _Completion | None = None


class Entry(NamedTuple):
    """A work request of a queue.

    Attributes:
        number: how many were posted before.
        held: what its line is made of; of a record that went the short way its bytes, with ``sq_psn``, its
            QP's starting PSN at that time.
    """

    wr_id: int
    signaled: bool
    posted_ns: int
    number: int
    taken: bool
    chosen: bool
    held: Held | bytes | None
    sq_psn: int | None = None


@dataclass(slots=True)
class Queue:
    """A QP's queue of sends or receives, or a shared receive queue.

    Attributes:
        ids: how many open entries have a wr_id; None as long as nobody had to look one up.
    """

    kind: str
    count: int = 0
    open: deque[Entry] = field(default_factory=deque)
    ids: Counter[int] | None = None
    done: deque[Entry] = field(default_factory=deque)

    def has(self, wr_id: int) -> bool:
        """Whether a work request with this wr_id is open."""
        if self.ids is None:
            if self.open and self.open[0].wr_id == wr_id:
                return True
            self.ids = Counter([entry.wr_id for entry in self.open])
        return wr_id in self.ids

    def first(self) -> Entry:
        """Take the oldest entry out."""
        entry = self.open.popleft()
        self._without(entry)
        return entry

    def first_with(self, wr_id: int) -> Entry:
        """Take out the oldest entry with this wr_id; there is one."""
        if self.open[0].wr_id == wr_id:
            return self.first()
        entry = next(entry for entry in self.open if entry.wr_id == wr_id)
        self.open.remove(entry)
        self._without(entry)
        return entry

    def _without(self, entry: Entry) -> None:
        if not self.open:
            self.ids = None
        elif self.ids is not None:
            self.ids[entry.wr_id] -= 1
            if not self.ids[entry.wr_id]:
                del self.ids[entry.wr_id]


Place = tuple[int, int, bool]
"""A device's number, a queue's, and whether it is a shared receive queue."""


@dataclass(slots=True)
class Seen:
    """A QP, or a shared receive queue, as the short way looks at it.

    Attributes:
        qp: None for a shared receive queue.
        lossy: records of it were lost. of_shared: it takes its receives from a shared queue.
        takes: whether an opcode's work requests are chosen, receives last; ``takes_unknown``: whether
            completions of work requests that are not known are.
    """

    qp: RecordedQp | None
    sends: Queue
    receives: Queue
    counts: QueueCounts
    lossy: bool
    takes: list[bool]
    takes_unknown: bool
    of_shared: bool = False


class Selection:
    """Keeps or leaves out the lines of one process's work requests and completions.

    Args:
        line_of: makes the line of an entry's bytes.

    Attributes:
        seen: the queues as the short way looks at them, by the bytes that name them.
    """

    def __init__(
        self, choice: RecordFilter, line_of: Callable[[bytes, int | None], str] | None = None
    ) -> None:
        self.choice = choice
        self.counts: dict[Place, QueueCounts] = {}
        self.seen: dict[bytes, Seen] = {}
        self._line_of = line_of
        self._sends: dict[Place, Queue] = {}
        self._receives: dict[Place, Queue] = {}
        self._lossy: set[Place] = set()

    def lose(self, place: Place) -> None:
        """Records of a queue were lost: which completion ends which work request is not known from now on."""
        self._lossy.add(place)
        self.seen.clear()
        for queues in (self._sends, self._receives):
            if (queue := queues.pop(place, None)) is not None:
                queues[place] = Queue(queue.kind, queue.count)

    def lose_all(self) -> None:
        """The same of every queue."""
        for place in {*self._sends, *self._receives}:
            self.lose(place)

    def forget(self, place: Place) -> None:
        """A queue begins anew."""
        self._sends.pop(place, None)
        self._receives.pop(place, None)
        self._lossy.discard(place)
        self.seen.clear()

    def see(self, place: Place, shared: Place | None, qp: RecordedQp | None) -> Seen:
        """A queue as the short way looks at it, until ``seen`` is cleared."""
        number = 0 if place[2] else place[1]
        return Seen(
            qp,
            self._queue(self._sends, place, SEND),
            self._queue(self._receives, shared or place, RECEIVE),
            self._of(place),
            place in self._lossy,
            [
                self.choice.takes(number, "RECV" if code == RECEIVES else opcode_name(code))
                for code in range(RECEIVES + 1)
            ],
            self.choice.takes(number, ""),
            shared is not None,
        )

    @staticmethod
    def _queue(queues: dict[Place, Queue], place: Place, kind: str) -> Queue:
        queue = queues.get(place)
        if queue is None:
            queue = queues[place] = Queue(kind)
        return queue

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
        queue = self._queue(queues, place, kind)
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
            yield with_index(line(), -1 if lossy or receive else index)
        counts.left_out[kind] += not chosen
        if lossy:
            return
        held = Held(None if chosen or not taken else line)
        queue.open.append(Entry(wr_id, signaled, posted_ns, index, taken, chosen, held))
        if queue.ids is not None:
            queue.ids[wr_id] += 1
        if len(queue.open) > MOST_OPEN:
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
        of_receive = opcode in _OF_RECEIVE or (
            failed
            and not (sends is not None and sends.has(wr_id))
            and receives is not None
            and receives.has(wr_id)
        )
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
            yield with_index(line(), -1 if of_receive else own.number)
        else:
            counts.left_out[COMPLETION] += 1
            if self.choice.errors:
                completion = _Completion(-1 if of_receive else own.number, line, counts)
                for entry in ended:
                    if isinstance(entry.held, Held):
                        entry.held.ended = completion
        if not self.choice.errors:
            queue.done.clear()
            return
        queue.done.append(own)
        while len(queue.done) > self.choice.errors:
            queue.done.popleft()

    def _around_failure(self, queue: Queue, counts: QueueCounts, own: Entry | None) -> Iterator[str]:
        """The work requests before one that failed, and it, as far as they are not written yet."""
        before = [*queue.done] if own is not None else [*queue.done, *queue.open]
        near = before[len(before) - min(len(before), self.choice.errors or 0) :]
        for entry in near if own is None else [*near, own]:
            index = -1 if queue.kind == RECEIVE else entry.number
            held = entry.held
            if isinstance(held, bytes):  # without --errors: it is the one that failed
                assert self._line_of is not None
                yield with_index(self._line_of(held, entry.sq_psn), index)
                counts.left_out[queue.kind] -= 1
                continue
            if held is None:
                continue
            if held.line is not None:
                yield with_index(held.line(), index)
                held.line = None
                counts.left_out[queue.kind] -= 1
            ended = held.ended
            if ended is not None and ended.line is not None:
                # Else the failed one would seem to have ended this, too.
                yield with_index(ended.line(), ended.index)
                ended.line = None
                ended.counts.left_out[COMPLETION] -= 1

    @staticmethod
    def _end(queue: Queue, wr_id: int, failed: bool, *, in_order: bool) -> list[Entry]:
        """The work requests that a completion ends, its own last; none if it is of none that is known."""
        if not queue.has(wr_id):
            return []
        if not in_order:
            return [queue.first_with(wr_id)]
        ended = []
        while True:
            entry = queue.first()
            ended.append(entry)
            if entry.wr_id == wr_id and (entry.signaled or failed or not queue.has(wr_id)):
                return ended


_OF_RECEIVE: Final = frozenset({"RECV", "RECV_RDMA_WITH_IMM"})


def with_index(line: str, index: int) -> str:
    """A line with the place of its work request in the queue; without, where that is -1."""
    return line if index < 0 else f'{line[:-1]},"queue_index":{index}}}'


def opcode_name(code: int) -> str:
    """A work request's opcode by its number."""
    return WR_OPCODES.get(code, f"OPCODE_{code}")
