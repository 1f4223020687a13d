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

from rocekit import wire
from rocekit.psn import HALF, MASK
from rocekit.tracking import Requests
from rocekit.wire import OPERATION

if TYPE_CHECKING:
    from rocekit.connections import Connection
    from rocekit.rows import Rows

#: Packets and capture time that a lobby keeps before it lets its flows go unpaired.
LOBBY_PACKETS: Final = 8192
LOBBY_NS: Final = 5_000_000_000
#: Two flows whose PSNs come this near can be taken for one another.
NEAR: Final = 4096
#: Answers to count where several flows could be meant.
VOTES: Final = 8
#: How far before the first PSN seen a NAK may point: what it asks for was lost before the capture point.
BEFORE: Final = 1024


@dataclass(eq=False)
class Flow:
    """Packets of one (source, destination, destination QPN).

    Attributes:
        src, dst: address numbers; qpn: the destination's.
        low, high: the range of PSNs it requested (unwrapped; ``high`` exclusive), -1 before the first.
        connection, side: known once paired or let go; ``side`` is the sender's.
        answers: whether it carries acknowledgements or responses.
    """

    src: int
    dst: int
    qpn: int
    transport: str
    sport: int
    low: int = -1
    high: int = -1
    answers: int = 0
    votes: dict[int, int] = field(default_factory=dict)
    connection: Connection | None = None
    side: int = 0
    first_request_ns: int = 0

    def requested(self, psn: int, span: int, time_ns: int) -> None:
        """Widen the range by a request of ``span`` PSNs."""
        if self.high < 0:
            self.low, self.high, self.first_request_ns = psn, psn + span, time_ns
            return
        p = self.high + ((psn - self.high + HALF) & MASK) - HALF
        self.low = min(self.low, p)
        self.high = max(self.high, p + span)

    def _range(self) -> tuple[int, int]:
        """The requested PSNs, also of a flow that was let go and is tracked by now."""
        requests: Requests | None = self.connection.requests[self.side] if self.connection else None
        if requests is not None and requests.started:
            return requests.begin, max(requests.high, requests.expected)
        if requests is not None:
            for r, i in requests.held:
                self.requested(r.psn[i], 1, r.time_ns[i])
        return self.low, self.high

    def could_have_asked(self, psn: int, *, nak: bool) -> bool:
        """Whether an answer with this PSN may answer this flow."""
        low, high = self._range()
        if high < 0:
            return False
        p = high + ((psn - high + HALF) & MASK) - HALF
        return low - BEFORE <= p <= high if nak else low <= p < high

    def is_near(self, psn: int) -> bool:
        """Whether its PSNs come near enough to be taken for another flow's."""
        low, high = self._range()
        if high < 0:
            return False
        p = high + ((psn - high + HALF) & MASK) - HALF
        return low - NEAR <= p <= high + NEAR


class Lobby:
    """The unpaired flows between two hosts and their waiting packets."""

    def __init__(self) -> None:
        self.flows: list[Flow] = []
        self.held: list[tuple[Flow, Rows, int]] = []

    def add(self, flow: Flow) -> None:
        self.flows.append(flow)

    def hold(self, flow: Flow, r: Rows, i: int) -> None:
        self.held.append((flow, r, i))

    def overdue(self, time_ns: int) -> bool:
        if not self.held:
            return False
        _, r, i = self.held[0]
        return len(self.held) >= LOBBY_PACKETS or time_ns - r.time_ns[i] > LOBBY_NS

    def take(self, *flows: Flow) -> list[tuple[Flow, Rows, int]]:
        """Remove the waiting packets of ``flows``, in the capture's order."""
        mine = [row for row in self.held if row[0] in flows]
        self.held = [row for row in self.held if row[0] not in flows]
        return mine

    def askers(self, answer: Flow) -> list[Flow]:
        """The unpaired flows in the other direction."""
        return [
            f
            for f in self.flows
            if f.src == answer.dst and f.dst == answer.src and f.transport == answer.transport
        ]

    def partner(self, answer: Flow, r: Rows, i: int) -> Flow | None:
        """Whom the answer at row ``i`` answers, if that can be said by now."""
        psn = r.psn[i]
        nak = OPERATION[r.opcode[i]] == "ACK" and wire.syndrome_kind(r.syndrome[i]) != wire.ACK
        answer.answers += 1
        askers = self.askers(answer)
        fitting = [f for f in askers if f.could_have_asked(psn, nak=nak)]
        for f in fitting:
            answer.votes[id(f)] = answer.votes.get(id(f), 0) + 1
        if len(fitting) == 1 and not any(f is not fitting[0] and f.is_near(psn) for f in askers):
            return fitting[0]
        if answer.answers >= VOTES:
            return self.elect(answer)
        return None

    def elect(self, answer: Flow) -> Flow | None:
        """The one flow that explains more of the answers than any other; equal UDP source ports break a tie.

        Both directions of a QP pair often carry the same source port where it is derived from both QPNs
        (A17.3.1 leaves the choice open), so this only ever decides between flows that the PSNs allow.
        """
        ranked = sorted(self.askers(answer), key=lambda f: -answer.votes.get(id(f), 0))
        best = [f for f in ranked if answer.votes.get(id(f), 0) == answer.votes.get(id(ranked[0]), 0)]
        if not best or not answer.votes.get(id(best[0]), 0):
            return None
        if len(best) > 1:
            best = [f for f in best if f.sport == answer.sport]
        return best[0] if len(best) == 1 else None
