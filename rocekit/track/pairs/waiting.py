"""Flows that wait for their other half with their packets (see ``lobby``), and the packets' order."""

from __future__ import annotations

from os import urandom
from typing import TYPE_CHECKING, Any, Final

from rocekit import wire
from rocekit.packets.flow_numbers import ADDRESS_BITS
from rocekit.packets.wrapping import PLAIN, Wrapping
from rocekit.wire import OPERATION
from rocekit.wire.psn import HALF, MASK

if TYPE_CHECKING:
    from rocekit.packets.rows import Rows
    from rocekit.track.bulk import Chain
    from rocekit.track.connections import Connection
    from rocekit.track.lane.clean_side import CleanSide

#: How far before the first PSN seen a NAK may point: the packet was lost before the capture point.
BEFORE: Final = 1024
_SOURCE_BITS: Final = ADDRESS_BITS
_QPN_BITS: Final = 24
_LEAST_MTU: Final = min(wire.PATH_MTU_CODES)
#: What a scope counts in a key, which is more than any two addresses with a QPN. Secret: Python's hash of a
#: number is what is left of a division, and scopes and QPNs could be chosen that all have one hash.
SCOPE: Final = (1 << 64) + int.from_bytes(urandom(8), "little")
#: The number of a flow whose connection was known before its packets; of one that had packets, but none since
#: flows were numbered anew (see ``eviction``).
AWAITED: Final = -1
UNNUMBERED: Final = -2

#: A packet that waits: in which order it came, its flow, its batch and row; of a chain the order of the last
#: one and the row of the first one.
Waiting = tuple[int, "Flow", "Rows", int, "Chain | None"]

#: Of all flows and lobbies that have none, which are most: nothing is put into them.
NONE_HELD: Final[list[Waiting]] = []
NO_VOTES: Final[dict[Flow, int]] = {}


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
        number: the packets' ``flow``, or ``AWAITED`` or ``UNNUMBERED``.
        partner: the flow the other way, once paired.
        around: what is around its packets; scope: of that.
        first_bucket, last_bucket: where its lobby finds it by PSN; -1 while it does not.
        clean: what the clean lane has of its sender's side, once its connection is known.
    """

    def __init__(self, src: int, dst: int, qpn: int, transport: str, sport: int) -> None:
        self.src, self.dst, self.qpn, self.transport, self.sport = src, dst, qpn, transport, sport
        self.low = self.high = self.first_bucket = self.last_bucket = self.number = self.turn = -1
        self.responses = self.side = self.first_request_ns = self.held_ns = self.waits = self.chained = 0
        self.scope = 0
        self.votes = NO_VOTES
        self.held = NONE_HELD
        self.connection: Connection | None = None
        self.partner: Flow | None = None
        self.clean: CleanSide | None = None
        self.lobby: Any = None  # a Lobby, which knows this module
        self.around: Wrapping = PLAIN

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


#: Stands for each flow that is a few numbers so far (see ``lone_flows``).
LONE: Final = Flow(0, 0, 0, "RC", 0)


def place_of(flow: Flow) -> int:
    """Where flows from its host in its scope are."""
    return flow.scope << _SOURCE_BITS | flow.src


def faces(flow: Flow, responder: Flow) -> bool:
    """Whether the two go opposite ways between the same hosts."""
    return flow.src == responder.dst and flow.dst == responder.src and flow.transport == responder.transport


def merged(mine: list[Waiting], others: list[Waiting]) -> list[Waiting]:
    """The packets of two flows in the capture's order.

    Two chains may lie beside each other, since what goes on with one side's message changes nothing for the
    other's. Where any other packet of the other flow came, a chain is cut.
    """
    both = _cut(mine, others) + _cut(others, mine)
    both.sort()  # by their order: no two have the same
    return both


def _cut(mine: list[Waiting], others: list[Waiting]) -> list[Waiting]:
    """The packets of a flow, its chains cut where one of the other flow came that is in none."""
    found: list[Waiting] = []
    at = 0
    for last, flow, r, i, chain in mine:
        if chain is None:
            found.append((last, flow, r, i, None))
            continue
        while chain is not None:
            first = chain.begins()
            while at < len(others) and (others[at][0] < first or others[at][4] is not None):
                at += 1
            rest = chain.cut(others[at][0]) if at < len(others) else None
            found.append(
                (chain.ends(), flow, chain.packets.rows(chain.first), chain.packets.row(chain.first), chain)
            )
            chain = rest
    return found


def facing(groups: list[dict[Flow, None]], responder: Flow) -> list[Flow]:
    """The flows that the responder faces."""
    found = []
    for group in groups:
        for flow in group:
            if faces(flow, responder):
                found.append(flow)  # in a comprehension the names have no C types
    return found


def count_of(groups: list[dict[Flow, None]]) -> int:
    """How many flows the groups have."""
    count = 0
    for group in groups:
        count += len(group)
    return count


def is_in_any(flow: Flow, groups: list[dict[Flow, None]]) -> bool:
    """Whether a group has the flow."""
    for group in groups:  # noqa: SIM110 compiled, and a generator would not be
        if flow in group:
            return True
    return False


def file_in(found: dict[Any, dict[Flow, None]], key: Any, flow: Flow) -> None:
    """Let a flow be found by a key."""
    filed = found.get(key)
    if filed is None:
        filed = found[key] = {}
    filed[flow] = None


def take_out(found: dict[Any, dict[Flow, None]], key: Any, flow: Flow) -> None:
    """Let a flow no longer be found by a key, if it was."""
    filed = found.get(key)
    if filed is not None and flow in filed:
        del filed[flow]


def note_rivals(undecided: dict[Flow, list[Flow]], later: list[Flow]) -> None:
    """Enter responders, and empty the list of them, where those are by each flow that they may respond to."""
    for responder in later:
        for rival in responder.votes:
            known = undecided.get(rival)
            if known is None:
                known = undecided[rival] = []
            known.append(responder)
    later.clear()


def explains_most(requester: Flow, responder: Flow) -> bool:
    """Whether no other flow explains more of the responses, were it paired by now or not."""
    return responder.votes[requester] == max(responder.votes.values())


def flow_key(r: Rows, i: int) -> int:
    """The ``way_key`` of the packet at row ``i``."""
    return way_key(r.src[i], r.dst[i], r.dest_qpn[i], r.around(i).scope)


def way_key(src: int, dst: int, qpn: int, scope: int = 0) -> int:
    """Source and destination (numbers of addresses), destination QPN and scope in one number."""
    way = (src << _SOURCE_BITS | dst) << _QPN_BITS | qpn
    return way + scope * SCOPE if scope else way


def hosts_key(src: int, dst: int) -> int:
    """Both hosts' numbers in one, the lower one first."""
    return src << _SOURCE_BITS | dst if src <= dst else dst << _SOURCE_BITS | src


def fetched(waited: list[Waiting]) -> int:
    """Read what waiting packets have: many cache lines are fetched together, not one after the other.

    Returns a number that has no meaning.
    """
    touched = 0
    for _, _, r, i, _ in waited:
        touched ^= r.psn[i] ^ r.opcode[i] ^ r.payload_length[i] ^ r.time_ns[i] ^ r.frame[i]
        touched ^= r.ip_id[i] ^ r.ecn[i] ^ r.dma_length[i] ^ r.rkey[i] ^ r.syndrome[i] ^ r.msn[i]
    return touched


def span_of(r: Rows, i: int) -> int:
    """How many PSNs the request at row ``i`` takes at most."""
    return wire.psns_of(r.dma_length[i], _LEAST_MTU) if OPERATION[r.opcode[i]] == "READ" else 1
