"""Which flow answers which, where neither the CM exchange nor a journal says so.

Flows whose other half is not known wait in the lobby of their two hosts, with their packets, so that requests
and answers can be tracked in the order of the capture once the pair is known. An acknowledgement speaks for
the flow whose requested PSNs hold the PSN it acknowledges. Starting PSNs are random as a rule, so one
acknowledgement decides; where several flows run on the same PSNs (some libraries start every QP at 0) answers
are counted until one flow alone explains them all. What stays undecided stays unpaired.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from rocekit.wire import ACK, OPERATION, SYNDROME_KIND
from rocekit.wire.psn import HALF, MASK

if TYPE_CHECKING:
    from rocekit.packets.rows import Rows
    from rocekit.track.connections import Connection

#: Packets that a lobby keeps before it lets its flows go unpaired: so many, and more for every flow in it.
LOBBY_PACKETS: Final = 8192
FLOW_PACKETS: Final = 64
#: More than these it never keeps.
MOST_PACKETS: Final = 1 << 19
#: Capture time after which it lets its flows go.
LOBBY_NS: Final = 5_000_000_000
#: Two flows whose PSNs come this near can be taken for one another.
NEAR: Final = 4096
_NEAR_BITS: Final = 12
#: Of more flows than this in a lobby many come near each other by chance: nearness then means less.
CROWD: Final = 256
#: Answers to count where several flows could be meant.
VOTES: Final = 8
#: How far before the first PSN seen a NAK may point: what it asks for was lost before the capture point.
BEFORE: Final = 1024
#: Flows on the same PSNs beyond this number are told apart by nothing but their UDP source ports.
ALIKE: Final = 256

#: A packet that waits: in which order it came, its flow, its batch and its row there.
Waiting = tuple[int, "Flow", "Rows", int]


@dataclass(eq=False)
class Flow:
    """Packets of one (source, destination, destination QPN).

    Attributes:
        src, dst: address numbers; qpn: the destination's.
        low, high: the range of PSNs it requested (unwrapped; ``high`` exclusive), -1 before the first.
        connection, side: known once paired or let go; ``side`` is the sender's.
        answers: how many acknowledgements and responses it carried while it waited.
        votes: which flows those could answer, and how many of them.
        lobby: where it waits.
        held: its waiting packets; held_ns: the first's time.
        number: the packets' ``flow``, -1 before the first; partner: the flow the other way, once paired.
        first_bucket, last_bucket: where its lobby finds it by PSN; -1 while it does not.
    """

    src: int
    dst: int
    qpn: int
    transport: str
    sport: int
    low: int = -1
    high: int = -1
    answers: int = 0
    votes: dict[Flow, int] = field(default_factory=dict)
    connection: Connection | None = None
    side: int = 0
    first_request_ns: int = 0
    held: list[Waiting] = field(default_factory=list)
    held_ns: int = 0
    lobby: Lobby | None = None
    first_bucket: int = -1
    last_bucket: int = -1
    number: int = -1
    partner: Flow | None = None

    def requested(self, psn: int, span: int, time_ns: int) -> None:
        """Widen the range by a request of ``span`` PSNs."""
        if self.high < 0:
            self.low, self.high, self.first_request_ns = psn, psn + span, time_ns
            return
        p = self.high + ((psn - self.high + HALF) & MASK) - HALF
        if p < self.low:
            self.low = p
        if p + span > self.high:
            self.high = p + span

    def _widen(self) -> None:
        """Bring the requested PSNs up to date, also of a flow that was let go and is tracked by now."""
        connection = self.connection
        if connection is None:
            return
        progress = connection.progress[self.side]
        if progress is None:
            return
        if progress.started:
            self.low, self.high = progress.begin, max(progress.high, progress.expected)
            return
        for r, i in progress.held:
            self.requested(r.psn[i], 1, r.time_ns[i])

    def could_have_asked(self, psn: int, nak: bool) -> bool:
        """Whether an answer with this PSN may answer this flow."""
        self._widen()
        if self.high < 0:
            return False
        p = self.high + ((psn - self.high + HALF) & MASK) - HALF
        return self.low - BEFORE <= p <= self.high if nak else self.low <= p < self.high

    def is_near(self, psn: int, near: int) -> bool:
        """Whether its PSNs come near enough to be taken for another flow's."""
        self._widen()
        if self.high < 0:
            return False
        p = self.high + ((psn - self.high + HALF) & MASK) - HALF
        return self.low - near <= p <= self.high + near


def seen(src: int, dst: int, qpn: int, transport: str, sport: int) -> Flow:
    """A flow of which the first packet came: ``Flow(…)`` without the time its many arguments take."""
    flow: Flow = Flow.__new__(Flow)
    flow.src, flow.dst, flow.qpn, flow.transport, flow.sport = src, dst, qpn, transport, sport
    flow.low = flow.high = flow.first_bucket = flow.last_bucket = flow.number = -1
    flow.votes = {}
    flow.held = []
    return flow


class Lobby:
    """The unpaired flows between two hosts and their waiting packets.

    Attributes:
        flows: in the order in which they were seen.
        count: packets that wait.
    """

    def __init__(self) -> None:
        self.flows: dict[Flow, None] = {}
        self.count = 0
        self._taken = 0
        # Flows with waiting packets, in the order of the first of them.
        self._waiting: dict[Flow, None] = {}
        self._oldest: Flow | None = None
        # Waiting flows by PSN: those whose requests come near a stretch of them. Tracked ones by source.
        self._buckets: dict[int, dict[Flow, None]] = {}
        self._tracked: dict[int, dict[Flow, None]] = {}

    def add(self, flow: Flow) -> None:
        self.flows[flow] = None

    def let_go(self, flow: Flow) -> None:
        """It is tracked alone from now on; its other half may still be found."""
        self._forget(flow)
        self._tracked.setdefault(flow.src, {})[flow] = None

    def remove(self, flow: Flow) -> None:
        """It is paired, or will never be."""
        self.flows.pop(flow, None)
        self._tracked.get(flow.src, {}).pop(flow, None)
        self._forget(flow)

    def requested(self, flow: Flow, psn: int, span: int, time_ns: int) -> None:
        """A flow asked for ``span`` PSNs from ``psn`` on."""
        flow.requested(psn, span, time_ns)
        first, last = (flow.low - NEAR) >> _NEAR_BITS, (flow.high + NEAR) >> _NEAR_BITS
        if first == flow.first_bucket and last == flow.last_bucket:
            return
        self._forget(flow)
        flow.first_bucket, flow.last_bucket = first, last
        for number in range(first, min(last, first + (MASK >> _NEAR_BITS)) + 1):
            self._buckets.setdefault(number & MASK >> _NEAR_BITS, {})[flow] = None

    def _forget(self, flow: Flow) -> None:
        if flow.first_bucket == flow.last_bucket:
            return
        first, last = flow.first_bucket, flow.last_bucket
        for number in range(first, min(last, first + (MASK >> _NEAR_BITS)) + 1):
            self._buckets[number & MASK >> _NEAR_BITS].pop(flow, None)
        flow.first_bucket = flow.last_bucket = -1

    def hold(self, flow: Flow, r: Rows, i: int) -> None:
        if not flow.held:
            self._waiting[flow] = None
            flow.held_ns = r.time_ns[i]
        flow.held.append((self._taken, flow, r, i))
        self._taken += 1
        self.count += 1

    def is_last(self, order: int) -> bool:
        """Whether the packet with this number is the last that was kept."""
        return order == self._taken - 1

    def overdue(self, time_ns: int) -> bool:
        if not self.count:
            return False
        if self.count >= min(MOST_PACKETS, LOBBY_PACKETS + FLOW_PACKETS * len(self.flows)):
            return True
        oldest = self._oldest
        if oldest is None or not oldest.held:
            oldest = self._oldest = next(iter(self._waiting))
        return time_ns - oldest.held_ns > LOBBY_NS

    def take(self, flow: Flow, other: Flow | None = None) -> list[Waiting]:
        """Remove the waiting packets of one flow or two, in the capture's order."""
        mine, flow.held = flow.held, []
        self._waiting.pop(flow, None)
        if other is not None:
            mine += other.held
            mine.sort()  # by their order: no two have the same
            other.held = []
            self._waiting.pop(other, None)
        self.count -= len(mine)
        return mine

    def waiting(self) -> list[Flow]:
        """The flows that packets wait for."""
        return list(self._waiting)

    def askers(self, answer: Flow, psn: int) -> list[Flow]:
        """The unpaired flows in the other direction that may have asked for ``psn``, or for one near it."""
        found = [f for f in self._tracked.get(answer.dst, ()) if _faces(f, answer)]
        found += [f for f in self._buckets.get(psn >> _NEAR_BITS, ()) if _faces(f, answer)]
        return found if len(found) <= ALIKE else [f for f in found if f.sport == answer.sport]

    def partner(self, answer: Flow, r: Rows, i: int) -> Flow | None:
        """Whom the answer at row ``i`` answers, if that can be said by now."""
        psn = r.psn[i]
        nak = OPERATION[r.opcode[i]] == "ACK" and SYNDROME_KIND[r.syndrome[i]] != ACK
        answer.answers += 1
        near = NEAR * CROWD // max(CROWD, len(self.flows))
        fitting, nearby = [], 0
        for flow in self.askers(answer, psn):
            if flow.could_have_asked(psn, nak):
                fitting.append(flow)
            elif flow.is_near(psn, near):
                nearby += 1
        if len(fitting) == 1 and not nearby:
            return fitting[0]
        for flow in fitting:
            answer.votes[flow] = answer.votes.get(flow, 0) + 1
        if answer.answers >= VOTES:
            return self.elect(answer)
        return None

    def elect(self, answer: Flow) -> Flow | None:
        """The one flow that explains more of the answers than any other; equal UDP source ports break a tie.

        Both directions of a QP pair often carry the same source port where it is derived from both QPNs
        (A17.3.1 leaves the choice open), so this only ever decides between flows that the PSNs allow.
        """
        votes = {f: n for f, n in answer.votes.items() if f in self.flows and _faces(f, answer)}
        most = max(votes.values(), default=0)
        best = [f for f, n in votes.items() if n == most]
        if len(best) > 1:
            best = [f for f in best if f.sport == answer.sport]
        return best[0] if len(best) == 1 else None


def _faces(flow: Flow, answer: Flow) -> bool:
    """Whether the two go opposite ways between the same hosts."""
    return flow.src == answer.dst and flow.dst == answer.src and flow.transport == answer.transport
