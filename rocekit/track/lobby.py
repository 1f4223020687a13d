"""Which flow responds to which, where neither the CM exchange nor a journal says so.

Flows whose other half is not known wait with their packets in the lobby of their two hosts. So requests and
responses are tracked in the capture's order once the pair is known. An ACK belongs to the flow whose
requested PSNs contain its PSN. Starting PSNs are usually random, so one ACK decides. Where several flows use
the same PSNs (some libraries start every QP at 0), responses are counted until one flow alone explains them
all. A tie is broken by UDP source ports that hosts derive from QPNs (see ``source_ports``), else by equal
ones, at last by the times of responses (see ``response_times``). What stays undecided stays unpaired.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rocekit.machine.limits import PAIRING_LOOKS
from rocekit.packets.flow_numbers import ADDRESS_BITS
from rocekit.track.bulk import Chains
from rocekit.track.pairs import source_ports
from rocekit.track.pairs.source_ports import QpnsOfHosts, fit
from rocekit.track.pairs.waiting import (
    NONE_HELD,
    Flow,
    Waiting,
    count_of,
    faces,
    facing,
    file_in,
    is_in_any,
    merged,
    place_of,
    take_out,
)
from rocekit.wire import ACK, ENDS, OPERATION, SYNDROME_KIND
from rocekit.wire.psn import MASK

if TYPE_CHECKING:
    from rocekit.packets.rows import Rows

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
#: More flows than this with the same PSNs are told apart only by their UDP source ports.
ALIKE: Final = 256
#: Responses look at so many flows each on average, beside the limit of all: each may fit all flows.
_LOOKS: Final = 8
#: Where a host has more scopes, responses are to flows of their own.
_MOST_SCOPES: Final = 64
_SOURCE_BITS: Final = ADDRESS_BITS
#: Of all lobbies that have none, which are most: nothing is put into them.
_NONE_NARROWED: Final[set[Flow]] = set()
_EMPTY: Final[dict[Any, Any]] = {}
#: A queue is made anew once more than so many at its front, and half of it, wait no longer.
_LONG: Final = 64


class Lobby:
    """The unpaired flows between two hosts and their waiting packets.

    Args:
        chains: packets that wait and go on with a message are chained there, until another one of their flow
            comes. The lobby limits that, so that it is overdue at the same packet as without.
        looks: the flows that its responses may look at in all, beside a few each (``PAIRING_LOOKS``).
        limits_met: gets that limit's name where they would look at more.

    Attributes:
        flows: in the order in which they were seen.
        count: packets that wait, those chained aside.
        decided_by, surely: how the last partner was found (``Connection.paired_by``, ``paired_surely``).
    """

    def set_up(self, chains: Chains, looks: int, limits_met: set[str]) -> None:
        """In place of a constructor, whose arguments take long: a flood makes many lobbies."""
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
        self._wide = 0  # of these flows those that are in several buckets
        self._buckets = self._tracked = self._ports = _EMPTY
        self._looks, self._met = looks, limits_met
        # The scopes that each source's flows have been in; until there is another than 0 the sources only.
        self._scopes: dict[int, set[int]] = _EMPTY
        self._plain: tuple[int, ...] = ()
        self.decided_by = "psn"
        self.surely = True
        # The QPNs of both hosts, and the flows that were added since somebody asked.
        self._qpns: QpnsOfHosts | None = None
        self._new: list[Flow] | None = None  # all of them
        # Responders whose candidates were so many that only those of their source port count.
        self._narrowed: set[Flow] = _NONE_NARROWED
        # Flows that a source port paired: without it they would still be candidates.
        self._by_ports: dict[Flow, bool] = _EMPTY

    def add(self, flow: Flow) -> None:
        self.flows[flow] = None
        if self._new is not None:
            self._new.append(flow)
        if flow.scope or self._scopes:
            if not self._scopes:
                self._scopes = {src: {0} for src in self._plain}
            known = self._scopes.get(flow.src)
            if known is None:
                known = self._scopes[flow.src] = set()
            known.add(flow.scope)
        elif flow.src not in self._plain:
            self._plain += (flow.src,)
        if self._ports:
            file_in(self._ports, (place_of(flow), flow.sport), flow)

    def take_in(self, flow: Flow) -> None:
        """A flow has been alone between its hosts until now: with one packet that waits, or tracked alone."""
        self.add(flow)
        if flow.connection is not None:
            return
        self._queue.append(flow)
        self._waiting = self.count = 1
        self._last = flow.held[0][0]
        self._limit()

    def let_go(self, flow: Flow) -> None:
        """The flow is tracked alone from now on; its other half may still be found."""
        self._forget(flow)
        if self._asked:
            file_in(self._tracked, place_of(flow), flow)

    def remove(self, flow: Flow) -> None:
        """The flow is paired, or never will be."""
        if self._new is None:
            self._new = list(self.flows)
        self.flows.pop(flow, None)
        if self._tracked:
            take_out(self._tracked, place_of(flow), flow)
        if self._ports:
            take_out(self._ports, (place_of(flow), flow.sport), flow)
        self._forget(flow)
        self._limit()  # fewer flows, less room

    def requested(self, flow: Flow, psn: int, span: int, time_ns: int) -> None:
        """A flow requested ``span`` PSNs from ``psn`` on."""
        flow.requested(psn, span, time_ns)
        if self._asked:
            self._file(flow)

    def _file(self, flow: Flow) -> None:
        """Let a waiting flow be found by the PSNs that it requested."""
        first, last = flow.low >> _NEAR_BITS, flow.high >> _NEAR_BITS
        if first == flow.first_bucket and last == flow.last_bucket:
            return
        self._forget(flow)
        flow.first_bucket, flow.last_bucket = first, last
        if first != last:
            self._wide += 1
        base = place_of(flow) << _NEAR_BITS
        for number in range(first, min(last, first + (MASK >> _NEAR_BITS)) + 1):
            self._buckets.setdefault(base | number & MASK >> _NEAR_BITS, {})[flow] = None

    def _forget(self, flow: Flow) -> None:
        if flow.last_bucket < 0:
            return
        first, last = flow.first_bucket, flow.last_bucket
        if first != last:
            self._wide -= 1
        base = place_of(flow) << _NEAR_BITS
        for number in range(first, min(last, first + (MASK >> _NEAR_BITS)) + 1):
            bucket = self._buckets[base | number & MASK >> _NEAR_BITS]
            bucket.pop(flow, None)
            if not bucket:  # there may be thousands of them
                del self._buckets[base | number & MASK >> _NEAR_BITS]
        flow.first_bucket = flow.last_bucket = -1

    def _find_by_psn(self) -> None:
        """From now on responses ask."""
        self._asked, self._buckets, self._tracked = True, {}, {}
        for flow in self.flows:
            if flow.connection is not None:
                file_in(self._tracked, place_of(flow), flow)
        for flow in self.waiting():
            if flow.high >= 0:
                self._file(flow)

    def hold(self, flow: Flow, r: Rows, i: int, order: int) -> None:
        """Keep the packet at row ``i``, after what was chained before it."""
        if not flow.held:
            flow.turn = len(self._queue)
            self._queue.append(flow)
            self._waiting += 1
            self._chains.waiters += 1
            flow.held_ns = r.time_ns[i]
        self._last = order
        flow.hold((order, flow, r, i, None))
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
            packets, ends = chain.packets, chain.ends()
            flow.hold((ends, flow, packets.rows(chain.first), packets.row(chain.first), chain))
            flow.waits += chain.count
            self.count += chain.count
            self._chains.held += chain.count
            self._last = max(self._last, ends)

    def keep_all(self) -> None:
        for flow in self.waiting():
            self.keep(flow)

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
        flow = queue[head]
        while flow.turn != head:
            head += 1
            flow = queue[head]
        if head > _LONG and head > len(queue) // 2:
            self._queue = queue = self.waiting()
            for turn, flow in enumerate(queue):
                flow.turn = turn
            head = 0
            flow = queue[head]
        self._head = head
        return flow.held_ns

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
            mine = merged(mine, self._take(other))
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
        mine, flow.held = flow.held, NONE_HELD
        self.count -= flow.waits
        self._chains.held -= flow.waits
        flow.waits = 0
        return mine

    def waiting(self) -> list[Flow]:
        """The flows that have waiting packets."""
        found = []
        for turn, flow in enumerate(self._queue):
            if flow.turn == turn:
                found.append(flow)  # in a comprehension the names have no C types
        return found

    def requesters(self, responder: Flow, psn: int) -> list[Flow]:
        """The unpaired flows of the other direction that may have requested ``psn``, or one near it."""
        self._looks += _LOOKS
        if self._looks < 0:
            self._met.add(PAIRING_LOOKS)
            return []
        if not self._asked:
            self._find_by_psn()
        places = [scope << _SOURCE_BITS | responder.dst for scope in self._scopes_with(responder)]
        groups = [self._tracked.get(place, _EMPTY) for place in places]
        for place in places:
            groups += self._near(place, psn >> _NEAR_BITS)
        count = count_of(groups)
        if count <= ALIKE:
            self._looks -= count
            return facing(groups, responder)
        if not self._narrowed:
            self._narrowed = set()
        self._narrowed.add(responder)
        if not self._ports:
            self._ports = {}
            for f in self.flows:
                file_in(self._ports, (place_of(f), f.sport), f)
        ports = source_ports.of_peers(responder.qpn, responder.sport)
        alike = facing(
            [self._ports.get((place, port), _EMPTY) for place in places for port in ports], responder
        )
        self._looks -= len(alike) * len(places)
        groups = [group for group in groups if group]
        near = []
        for f in alike:
            if is_in_any(f, groups):
                near.append(f)
        return self._by_source_port(near, responder, count)

    def _near(self, place: int, number: int) -> list[dict[Flow, None]]:
        """Waiting flows from a place that requested PSNs of this stretch or of one beside it."""
        found: list[dict[Flow, None]] = []
        most = 0
        for beside in (-1, 0, 1):
            bucket = self._buckets.get(place << _NEAR_BITS | number + beside & _NEAR_MASK)
            if bucket:
                found.append(bucket)
                most = max(most, len(bucket))
        # Each is to be there once, but of more than ALIKE it does not matter how many they are.
        if len(found) < 2 or most > ALIKE or not self._wide:
            return found
        once: dict[Flow, None] = {}
        for bucket in found:
            once.update(bucket)
        if len(once) > ALIKE:
            self._looks -= len(once)
        return [once]

    def _scopes_with(self, responder: Flow) -> list[int]:
        """Its scope, and others whose flows it may respond to (see ``_share``)."""
        if not self._scopes:
            return [responder.scope]
        there, back = self._scopes.get(responder.dst, set()), self._scopes.get(responder.src, set())
        if responder.scope in there or len(there) > _MOST_SCOPES:
            return [responder.scope]
        return [responder.scope, *(scope for scope in there if scope not in back)]

    def _share(self, flow: Flow, responder: Flow) -> bool:
        """Whether two flows may be a pair by their scopes, which are not the same VLAN, tunnel and so on.

        A mirror may show a tag in one direction only, and a tunnel may have another identifier for each.
        So two scopes go together if each has packets of one direction only.
        """
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
            ported = len(self._by_ports)
            known = ported <= max(ALIKE, self._looks)
            if not known:
                self._met.add(PAIRING_LOOKS)
            elif ported > ALIKE:
                self._looks -= ported
            looked = self._by_ports if known else ()
            rivals = [f for f in looked if faces(f, responder) and f.could_have_requested(psn, nak)]
            return self._by_psn(fitting[0], responder, rivals, known)
        if responder.votes:
            for flow in fitting:
                responder.vote(flow)
        elif fitting:
            responder.votes = dict.fromkeys(fitting, 1)  # each is there once
        if responder.responses < VOTES:
            return None
        if self._looks < 0:
            if responder.votes:
                self._met.add(PAIRING_LOOKS)
            return None
        self._looks -= len(responder.votes)
        return self.elect(responder)

    def may_pair(self, flow: Flow, responder: Flow) -> bool:
        """Whether the two go opposite ways between the same hosts, in scopes that go together."""
        return faces(flow, responder) and (flow.scope == responder.scope or self._share(flow, responder))

    def elect(self, responder: Flow) -> Flow | None:
        """The flow that explains more of the responses than any other; UDP source ports break a tie."""
        most = 0
        best: list[Flow] = []
        for flow, votes in responder.votes.items():
            if votes >= most and self.may_pair(flow, responder) and flow in self.flows:
                if votes > most:
                    most, best = votes, []
                best.append(flow)
        if not best:
            return None
        if len(best) == 1:
            rivals = [f for f, n in responder.votes.items() if n >= most and f in self._by_ports]
            return self._by_psn(best[0], responder, rivals, True)
        best = self._by_source_port(best, responder, len(best))
        if len(best) != 1:
            return None
        self._note_port(best[0])
        return best[0]

    def _note_port(self, flow: Flow) -> None:
        self._by_ports = self._by_ports or {}
        self._by_ports[flow] = self.surely

    def _by_psn(self, found: Flow, responder: Flow, rivals: list[Flow], known: bool) -> Flow:
        """The only candidate left: PSNs decide, unless only source ports took ``rivals`` away.

        Args:
            known: whether ``rivals`` are all of them.
        """
        narrowed = responder in self._narrowed or not known
        self.surely = not narrowed and all(self._by_ports[f] for f in rivals)
        self.decided_by = "source port" if narrowed or rivals else "psn"
        if self.decided_by == "source port":
            self._note_port(found)
        return found

    def _by_source_port(self, alike: list[Flow], responder: Flow, count: int) -> list[Flow]:
        """Those of ``alike`` whose source ports go with the responder's, by a known rule or as equal ones.

        Hosts that derive ports from their own QPNs give equal ports to QPs of the same number, which need
        not be a pair: where both hosts have such QPs, equal ports decide nothing.
        """
        own, port = responder.qpn, responder.sport
        derived, equal = [], []
        for f in alike:
            if fit(own, f.sport, f.qpn, port):
                derived.append(f)
            if f.sport == port:
                equal.append(f)
        self.decided_by, self.surely = "source port", bool(derived) and source_ports.is_sure(count)
        if derived:
            return derived
        if self._qpns is None:
            self._qpns = QpnsOfHosts()
        new = list(self.flows) if self._new is None else self._new
        if new:
            self._qpns.add(new)
        self._new = []
        return [] if self._qpns.same else equal


def is_due(flows: int, waited_ns: int) -> bool:
    """Whether a lobby is overdue that has so many flows with a packet each, the first ``waited_ns`` ago."""
    return flows >= MOST_PACKETS or waited_ns > LOBBY_NS


def lobby_of(chains: Chains, looks: int, limits_met: set[str]) -> Lobby:
    """A new lobby (see ``Lobby``)."""
    lobby: Lobby = Lobby.__new__(Lobby)
    lobby.set_up(chains, looks, limits_met)
    return lobby
