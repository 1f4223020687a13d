"""Which flow responds to which, where neither the CM exchange nor a journal says so.

Flows whose other half is not known wait with their packets in the lobby of their two hosts. So requests and
responses are tracked in the capture's order once the pair is known. An ACK belongs to the flow whose
requested PSNs contain its PSN. Starting PSNs are usually random, so one ACK decides. Where several flows use
the same PSNs (some libraries start every QP at 0), responses are counted until one flow alone explains them
all. A tie is broken by UDP source ports that hosts derive from QPNs (see ``source_ports``), else by equal
ones, at last by the times of responses (see ``response_times``). What stays undecided stays unpaired.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rocekit.packets.wrapping import PLAIN, Wrapping
from rocekit.track.bulk import Chain, Chains
from rocekit.track.pairs import source_ports
from rocekit.wire import ACK, ENDS, OPERATION, SYNDROME_KIND
from rocekit.wire.psn import HALF, MASK

if TYPE_CHECKING:
    from rocekit.packets.rows import Rows
    from rocekit.track.connections import Connection
    from rocekit.track.lane.clean_lane import CleanSide

#: Packets that a lobby keeps before it lets its flows go unpaired: so many, and more for each flow in it.
LOBBY_PACKETS: Final = 8192
FLOW_PACKETS: Final = 64
#: It never keeps more than these.
MOST_PACKETS: Final = 1 << 19
#: Capture time after which it lets its flows go.
LOBBY_NS: Final = 5_000_000_000
#: Two flows whose PSNs are this near can be confused.
NEAR: Final = 4096
_NEAR_BITS: Final = 12
_NEAR_MASK: Final = (1 << _NEAR_BITS) - 1
#: In a lobby with more flows than this many are near each other by chance: being near then means less.
CROWD: Final = 256
#: Responses to count where several flows fit.
VOTES: Final = 8
#: How far before the first PSN seen a NAK may point: the packet was lost before the capture point.
BEFORE: Final = 1024
#: More flows than this with the same PSNs are told apart only by their UDP source ports.
ALIKE: Final = 256
#: A queue is made anew once more than so many at its front, and half of it, wait no longer.
_LONG: Final = 64
#: A packet that waits: in which order it came, its flow, its batch and row; of a chain the order of the last
#: one and the row of the first one.
Waiting = tuple[int, "Flow", "Rows", int, "Chain | None"]

#: Of all flows and lobbies that have none, which are most: nothing is put into them.
_NONE_HELD: Final[list[Waiting]] = []
_NO_VOTES: Final[dict[Flow, int]] = {}
_NONE_NARROWED: Final[set[Flow]] = set()
_EMPTY: Final[dict[Any, Any]] = {}


@dataclass(eq=False)
class Flow:
    """Packets of one (source, destination, destination QPN).

    Attributes:
        src, dst: address numbers; qpn: the destination's.
        low, high: the range of PSNs it requested (unwrapped; ``high`` exclusive), -1 before the first.
        connection, side: known once paired or let go; ``side`` is the sender's.
        responses: how many ACKs, NAKs and other responses it carried while it waited.
        votes: the flows that those may respond to, and how many of them.
        lobby: where it waits.
        held: its waiting packets; held_ns: the first's time; waits: how many they are.
        turn: its place among the flows that wait; -1 while it does not.
        chained: packets of its open chain that ``high`` has been widened by.
        number: the packets' ``flow``, -1 before the first; partner: the flow the other way, once paired.
        around: what is around its packets; scope: of that.
        first_bucket, last_bucket: where its lobby finds it by PSN; -1 while it does not.
        clean: what the clean lane has of its sender's side, once its connection is known.
    """

    src: int
    dst: int
    qpn: int
    transport: str
    sport: int
    low: int = -1
    high: int = -1
    responses: int = 0
    votes: dict[Flow, int] = field(default_factory=lambda: _NO_VOTES)
    connection: Connection | None = None
    side: int = 0
    first_request_ns: int = 0
    held: list[Waiting] = field(default_factory=lambda: _NONE_HELD)
    held_ns: int = 0
    waits: int = 0
    turn: int = -1
    chained: int = 0
    lobby: Lobby | None = None
    first_bucket: int = -1
    last_bucket: int = -1
    number: int = -1
    partner: Flow | None = None
    around: Wrapping = PLAIN
    scope: int = 0
    clean: CleanSide | None = None

    def hold(self, packet: Waiting) -> None:
        """One more packet waits."""
        if not self.held:
            self.held = []
        self.held.append(packet)

    def vote(self, requester: Flow) -> None:
        """A response of this flow may respond to another one."""
        if not self.votes:
            self.votes = {}
        self.votes[requester] = self.votes.get(requester, 0) + 1

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
        progress = None if connection is None else connection.progress[self.side]
        if progress is None:
            return
        if progress.started:
            self.low, self.high = progress.begin, max(progress.high, progress.expected)
            return
        for r, i, chain in progress.held:
            self.requested(r.psn[i], 1 if chain is None else chain.count, r.time_ns[i])

    def could_have_requested(self, psn: int, nak: bool) -> bool:
        """Whether a response with this PSN may respond to this flow."""
        self._widen()
        if self.high < 0:
            return False
        p = self.high + ((psn - self.high + HALF) & MASK) - HALF
        return self.low - BEFORE <= p <= self.high if nak else self.low <= p < self.high

    def is_near(self, psn: int, near: int) -> bool:
        """Whether its PSNs are so near that it may be confused with another flow."""
        self._widen()
        if self.high < 0:
            return False
        p = self.high + ((psn - self.high + HALF) & MASK) - HALF
        return self.low - near <= p <= self.high + near


def seen(src: int, dst: int, qpn: int, transport: str, sport: int) -> Flow:
    """A flow at its first packet: ``Flow(…)`` without the time that its many arguments take."""
    flow: Flow = Flow.__new__(Flow)
    flow.src, flow.dst, flow.qpn, flow.transport, flow.sport = src, dst, qpn, transport, sport
    flow.low = flow.high = flow.first_bucket = flow.last_bucket = flow.number = flow.turn = -1
    flow.votes, flow.held, flow.around = _NO_VOTES, _NONE_HELD, PLAIN
    return flow


class Lobby:
    """The unpaired flows between two hosts and their waiting packets.

    Args:
        chains: packets that wait and go on with a message are chained there, until another one of their flow
            comes. The lobby limits that, so that it is overdue at the same packet as without.

    Attributes:
        flows: in the order in which they were seen.
        count: packets that wait, those chained aside.
        decided_by, surely: how the last partner was found (``Connection.paired_by``, ``paired_surely``).
    """

    def __init__(self, chains: Chains) -> None:
        self.flows: dict[Flow, None] = {}
        self.count = 0
        self._chains = chains
        self._number = chains.lobby()
        self._last = 0
        # Flows with waiting packets, in the order of the first of them; before _head none waits.
        self._queue: list[Flow] = []
        self._head = 0
        self._waiting = 0
        # Waiting flows by PSN: those whose requests come near a stretch of them; tracked ones by source.
        # Made at the first response: a flood of addresses makes many lobbies without.
        self._asked = False
        self._buckets = self._tracked = _EMPTY
        # The scopes that each source's flows have been in; until there is another than 0 the sources only.
        self._scopes: dict[int, set[int]] = _EMPTY
        self._plain: tuple[int, ...] = ()
        self.decided_by = "psn"
        self.surely = True
        # The QPNs of both hosts, and the flows that were added since somebody asked.
        self._qpns: source_ports.QpnsOfHosts | None = None
        self._new: list[Flow] = []
        # Responders whose candidates were so many that only those of their source port count.
        self._narrowed: set[Flow] = _NONE_NARROWED
        # Flows that a source port paired: without it they would still be candidates.
        self._by_ports: dict[Flow, bool] = _EMPTY

    def add(self, flow: Flow) -> None:
        self.flows[flow] = None
        self._new.append(flow)
        if flow.scope or self._scopes:
            if not self._scopes:
                self._scopes = {src: {0} for src in self._plain}
            self._scopes.setdefault(flow.src, set()).add(flow.scope)
        elif flow.src not in self._plain:
            self._plain += (flow.src,)

    def let_go(self, flow: Flow) -> None:
        """The flow is tracked alone from now on; its other half may still be found."""
        self._forget(flow)
        if self._asked:
            self._tracked.setdefault(flow.src, {})[flow] = None

    def remove(self, flow: Flow) -> None:
        """The flow is paired, or never will be."""
        self.flows.pop(flow, None)
        if self._tracked:
            self._tracked.get(flow.src, {}).pop(flow, None)
        self._forget(flow)
        self._limit()  # fewer flows, less room

    def requested(self, flow: Flow, psn: int, span: int, time_ns: int) -> None:
        """A flow requested ``span`` PSNs from ``psn`` on."""
        flow.requested(psn, span, time_ns)
        if self._asked:
            self._file(flow)

    def _file(self, flow: Flow) -> None:
        """Let a waiting flow be found by the PSNs that it requested."""
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

    def _find_by_psn(self) -> None:
        """From now on responses ask."""
        self._asked, self._buckets, self._tracked = True, {}, {}
        for flow in self.flows:
            if flow.connection is not None:
                self._tracked.setdefault(flow.src, {})[flow] = None
        for flow in self.waiting():
            if flow.high >= 0:
                self._file(flow)

    def hold(self, flow: Flow, r: Rows, i: int) -> None:
        """Keep the packet at row ``i``, after what was chained before it."""
        if not flow.held:
            flow.turn = len(self._queue)
            self._queue.append(flow)
            self._waiting += 1
            self._chains.waiters += 1
            flow.held_ns = r.time_ns[i]
        self._last = self._chains.order_of(r, i)
        flow.hold((self._last, flow, r, i, None))
        flow.waits += 1
        self.count += 1
        self._chains.held += 1
        self._limit()

    def keep(self, flow: Flow) -> None:
        """Keep the packets of a waiting flow that were chained."""
        if flow.number < 0:
            return
        self.keep_up(flow)
        flow.chained = 0
        chain = self._chains.take(flow.number)
        if chain is not None:
            flow.hold((chain.order(chain.last), flow, chain.batch.rows, chain.first, chain))
            flow.waits += chain.count
            self.count += chain.count
            self._chains.held += chain.count
            self._last = max(self._last, chain.order(chain.last))

    def keep_up(self, flow: Flow) -> None:
        """Widen a waiting flow's PSNs by what is chained so far."""
        if flow.connection is None and flow.number >= 0 and self._chains.last(flow.number) >= 0:
            count = self._chains.count(flow.number)
            flow.high += count - flow.chained
            flow.chained = count

    def go_on(self, flow: Flow, r: Rows, i: int) -> None:
        """Note which packet goes on after the request at row ``i`` of a waiting flow (see ``bulk``).

        Chained packets leave the flow where it is found by PSN, so a chain ends where that changes.
        """
        room = 0
        if not ENDS[r.opcode[i]] and (r.psn[i] + 1) & MASK == flow.high & MASK:
            room = _NEAR_MASK - (flow.high + NEAR & _NEAR_MASK)
        self._chains.await_more(flow.number, r.psn[i] + 1, r.payload_length[i], room, self._number)

    def is_last(self, order: int) -> bool:  # whether it was kept last
        return order == self._last

    def _most(self) -> int:
        return min(MOST_PACKETS, LOBBY_PACKETS + FLOW_PACKETS * len(self.flows))

    def _since_ns(self) -> int:
        """When the first of the packets came that wait; there is one."""
        queue, head = self._queue, self._head
        while queue[head].turn != head:
            head += 1
        if head > _LONG and head > len(queue) // 2:
            self._queue = queue = self.waiting()
            for turn, flow in enumerate(queue):
                flow.turn = turn
            head = 0
        self._head = head
        return queue[head].held_ns

    def _limit(self) -> None:
        """Note how many packets may be chained, and until when, before the lobby is overdue."""
        if self._waiting:
            self._chains.limit(self._number, self._most() - 1 - self.count, self._since_ns() + LOBBY_NS)

    def overdue(self, time_ns: int) -> bool:
        waiting = self.count + self._chains.chained(self._number)
        if not waiting:
            return False
        return waiting >= self._most() or time_ns - self._since_ns() > LOBBY_NS

    def take(self, flow: Flow, other: Flow | None = None) -> list[Waiting]:
        """Remove the waiting packets of one flow or two, in the capture's order."""
        mine = self._take(flow)
        if other is not None:
            mine = _merged(mine, self._take(other))
        self._limit()
        return mine

    def _take(self, flow: Flow) -> list[Waiting]:
        if flow.held:
            if flow.number >= 0:
                self.keep(flow)
                self._chains.expect(flow.number, 0, 0, 0)
            flow.turn = -1
            self._waiting -= 1
            self._chains.waiters -= 1
            if not self._waiting:
                self._queue, self._head = [], 0
        mine, flow.held = flow.held, _NONE_HELD
        self.count -= flow.waits
        self._chains.held -= flow.waits
        flow.waits = 0
        return mine

    def waiting(self) -> list[Flow]:
        """The flows that have waiting packets."""
        return [flow for turn, flow in enumerate(self._queue) if flow.turn == turn]

    def requesters(self, responder: Flow, psn: int) -> list[Flow]:
        """The unpaired flows of the other direction that may have requested ``psn``, or one near it."""
        if not self._asked:
            self._find_by_psn()
        found = [f for f in self._tracked.get(responder.dst, ()) if _faces(f, responder)]
        found += [f for f in self._buckets.get(psn >> _NEAR_BITS, ()) if _faces(f, responder)]
        if self._scopes:
            found = [f for f in found if self._share(f, responder)]
        if len(found) <= ALIKE:
            return found
        if not self._narrowed:
            self._narrowed = set()
        self._narrowed.add(responder)
        return self._by_source_port(found, responder)

    def _share(self, flow: Flow, responder: Flow) -> bool:
        """Whether two flows may be a pair by their scopes: the same VLAN, tunnel and so on.

        A mirror may show a tag in one direction only, and a tunnel may have another identifier for each.
        So two scopes go together if each has packets of one direction only.
        """
        if flow.scope == responder.scope:
            return True
        there, back = self._scopes.get(flow.src, set()), self._scopes.get(responder.src, set())
        return flow.scope not in back and responder.scope not in there

    def partner(self, responder: Flow, r: Rows, i: int) -> Flow | None:
        """The flow that the response at row ``i`` belongs to, if that is known by now."""
        psn = r.psn[i]
        nak = OPERATION[r.opcode[i]] == "ACK" and SYNDROME_KIND[r.syndrome[i]] != ACK
        responder.responses += 1
        near = NEAR * CROWD // max(CROWD, len(self.flows))
        fitting, nearby = [], 0
        for flow in self.requesters(responder, psn):
            self.keep_up(flow)
            if flow.could_have_requested(psn, nak):
                fitting.append(flow)
            elif flow.is_near(psn, near):
                nearby += 1
        if len(fitting) == 1 and not nearby:
            rivals = [f for f in self._by_ports if _faces(f, responder) and f.could_have_requested(psn, nak)]
            return self._by_psn(fitting[0], responder, rivals)
        for flow in fitting:
            responder.vote(flow)
        if responder.responses >= VOTES:
            return self.elect(responder)
        return None

    def may_pair(self, flow: Flow, responder: Flow) -> bool:
        """Whether the two go opposite ways between the same hosts, in scopes that go together."""
        return _faces(flow, responder) and self._share(flow, responder)

    def elect(self, responder: Flow) -> Flow | None:
        """The flow that explains more of the responses than any other; UDP source ports break a tie."""
        votes = {f: n for f, n in responder.votes.items() if f in self.flows and self.may_pair(f, responder)}
        most = max(votes.values(), default=0)
        best = [f for f, n in votes.items() if n == most]
        if len(best) == 1:
            rivals = [f for f, n in responder.votes.items() if n >= most and f in self._by_ports]
            return self._by_psn(best[0], responder, rivals)
        best = self._by_source_port(best, responder)
        if len(best) != 1:
            return None
        self._note_port(best[0])
        return best[0]

    def _note_port(self, flow: Flow) -> None:
        self._by_ports = self._by_ports or {}
        self._by_ports[flow] = self.surely

    def _by_psn(self, found: Flow, responder: Flow, rivals: list[Flow]) -> Flow:
        """The only candidate left: PSNs decide, unless only source ports took ``rivals`` away."""
        narrowed = responder in self._narrowed
        self.surely = not narrowed and all(self._by_ports[f] for f in rivals)
        self.decided_by = "source port" if narrowed or rivals else "psn"
        if self.decided_by == "source port":
            self._note_port(found)
        return found

    def _by_source_port(self, alike: list[Flow], responder: Flow) -> list[Flow]:
        """Those of ``alike`` whose source ports go with the responder's, by a known rule or as equal ones.

        Hosts that derive ports from their own QPNs give equal ports to QPs of the same number, which need
        not be a pair: where both hosts have such QPs, equal ports decide nothing.
        """
        derived = [f for f in alike if source_ports.fit(responder.qpn, f.sport, f.qpn, responder.sport)]
        self.decided_by, self.surely = "source port", bool(derived) and source_ports.is_sure(len(alike))
        if derived:
            return derived
        qpns = self._qpns = self._qpns or source_ports.QpnsOfHosts()
        new, self._new = self._new, []
        if qpns.has_same([(f.src, f.dst, f.qpn) for f in new]):
            return []
        return [f for f in alike if f.sport == responder.sport]


def _faces(flow: Flow, responder: Flow) -> bool:
    """Whether the two go opposite ways between the same hosts."""
    return flow.src == responder.dst and flow.dst == responder.src and flow.transport == responder.transport


def explains_most(requester: Flow, responder: Flow) -> bool:
    """Whether no other flow explains more of the responses, were it paired by now or not."""
    return responder.votes[requester] == max(responder.votes.values())


def _merged(mine: list[Waiting], others: list[Waiting]) -> list[Waiting]:
    """The packets of two flows in the capture's order.

    Two chains may lie beside each other, since what goes on with one side's message changes nothing for the
    other's. Where any other packet of the other flow came, a chain is cut.
    """
    merged = _cut(mine, others) + _cut(others, mine)
    merged.sort()  # by their order: no two have the same
    return merged


def _cut(mine: list[Waiting], others: list[Waiting]) -> list[Waiting]:
    """The packets of a flow, its chains cut where one of the other flow came that is in none."""
    found: list[Waiting] = []
    at = 0
    for last, flow, r, i, chain in mine:
        if chain is None:
            found.append((last, flow, r, i, None))
            continue
        while chain is not None:
            first = chain.order(chain.first)
            while at < len(others) and (others[at][0] < first or others[at][4] is not None):
                at += 1
            rest = chain.cut(others[at][0]) if at < len(others) else None
            found.append((chain.order(chain.last), flow, r, chain.first, chain))
            chain = rest
    return found
