"""Several flows on one queue pair: which of them a packet belongs to, by its PSN."""

from __future__ import annotations

from bisect import bisect_right

from rocekit.soft.traffic.counting import Fields, FlowCounts
from rocekit.wire import CNP_OPCODE
from rocekit.wire import psn as serial
from rocekit.wire.psn import MASK


class SharedPsns:
    """The PSNs of a send queue that several flows post to.

    A flow's packets are counted as if it had the queue pair alone: its messages' PSNs follow each other. A
    CNP names no packet; it is counted with the flow whose marked packet was seen last.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._messages: list[
            tuple[FlowCounts, int]
        ] = []  # whose it is, and its first PSN among the flow's own
        self._own: dict[int, int] = {}
        self._next = 0
        self._marked: FlowCounts | None = None

    def begin(self, psn: int) -> None:
        """The first PSN of the queue."""
        self._next = psn

    def posted(self, counts: FlowCounts, packets: int) -> None:
        """A message of a flow takes the next PSNs."""
        own = self._own.get(id(counts), 0)
        self._starts.append(self._next)
        self._messages.append((counts, own))
        self._own[id(counts)] = own + packets
        self._next += packets

    def flow_of(self, seen: Fields) -> FlowCounts | None:
        """The flow that a packet belongs to; ``seen.psn`` becomes its PSN among that flow's own."""
        if not self._messages:
            return None
        if seen.opcode == CNP_OPCODE:
            return self._marked or self._messages[0][0]
        psn = serial.unwrap(seen.psn, self._next)
        place = max(0, bisect_right(self._starts, psn) - 1)
        counts, own = self._messages[place]
        seen.psn = own + psn - self._starts[place] & MASK
        if seen.marked:
            self._marked = counts
        return counts
