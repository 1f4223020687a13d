# cython: boundscheck=False
"""Which connection each flow belongs to, and its packets handed there.

A flow is paired by a journal, a handshake, the CM's messages or its PSNs (``lobby``), or tracked alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from rocekit.machine.limits import PAIRING_LOOKS, limit
from rocekit.machine.signals import OFTEN, take_signals
from rocekit.packets.rows import COMPILED, Rows
from rocekit.track.bulk import Chains, singles
from rocekit.track.cm_exchanges import Exchange, qpns
from rocekit.track.connections import Connection, connected
from rocekit.track.lobby import Lobby, lobby_of
from rocekit.track.pairs import response_times
from rocekit.track.pairs.address_numbers import AddressNumbers
from rocekit.track.pairs.known_pairs import KnownPairs, Pair
from rocekit.track.pairs.waiting import (
    AWAITED,
    LONE,
    SCOPE,
    UNNUMBERED,
    Flow,
    Waiting,
    explains_most,
    fetched,
    hosts_key,
    note_rivals,
    span_of,
    way_key,
)
from rocekit.track.requests import PROBATION
from rocekit.track.rest.side_table import SideTable
from rocekit.wire.packet_kinds import CNP, KINDS, REQUEST, RESPONSE, TRANSPORT
from rocekit.wire.psn import HALF, MASK

if TYPE_CHECKING:
    from rocekit.packets.wrapping import Wrapping
    from rocekit.track.pairs.handshake import Offer


class Pairing(SideTable):
    """Connections out of flows.

    Args:
        pairs: QP pairs that a journal names.
        on_connection: called with every connection as it becomes known.

    Attributes:
        connections: in order of their ids.
        stray_cnps: CNPs to QPs of which nothing else is known.
        limits_met: the names of limits that bounded the search for other halves.
    """

    def __init__(self, pairs: Iterable[Pair], on_connection: Callable[[Connection], None] | None) -> None:
        super().__init__()
        self.connections: list[Connection] = []
        self.stray_cnps = 0
        self.limits_met: set[str] = set()
        self._known = KnownPairs(pairs, self.limits_met)
        self._looks = limit(PAIRING_LOOKS)
        self._on_connection = on_connection
        self._flows: dict[int, Flow] = {}
        # The scopes, but 0, in which there were flows of a source, destination and destination QPN.
        self._scopes: dict[int, set[int]] = {}
        # Those of them that were known before their packets.
        self._awaited: dict[int, set[int]] = {}
        self._by_number: list[Flow | None] = []
        # By both hosts (see ``hosts_key``). A flow that is alone there needs no lobby before its next packet.
        # A number: of the first of the lone flows there (see ``lone_flows``).
        self._lobbies: dict[int, Lobby | Flow | int | None] = {}
        self._chains = Chains()
        self._addresses: list[str] = []
        self._numbers = AddressNumbers()
        self._touched = 0
        # Whether flows may be lone (see ``lone_flows``): none is known before its packets.
        self._may_be_lone = not self._known.by_end

    def _know(self, key: int) -> Lobby | Flow | None:
        """Make flows between two hosts that are numbers (see ``lone_flows``) what others are."""
        raise NotImplementedError

    def _part(self, flow: Flow) -> None:
        """A flow and its partner are about to be separated: their chains of packets must end."""
        raise NotImplementedError

    # ------------------------------------------------------------------ packets to their connections

    def _flow(self, r: Rows, i: int) -> Flow:
        """The flow of packet ``i``."""
        number = r.flow[i]
        flow = self._by_number[number] if number < len(self._by_number) else None
        if flow is LONE:
            self._know(hosts_key(r.src[i], r.dst[i]))
            flow = self._by_number[number]
        if flow is None:
            around = r.around(i)
            scope = around.scope
            key = way_key(r.src[i], r.dst[i], r.dest_qpn[i], scope)
            flow = self._flows.get(key)
            if flow is None:
                if scope or self._scopes:
                    flow = self._expected(r, i, around)
                if flow is None:
                    flow = self._new_flow(r, i, around)
                self._flows[key] = flow
            flow.number = number
            if number >= len(self._by_number):
                self._by_number += [None] * (2 * number + 1 - len(self._by_number))
            self._by_number[number] = flow
        return flow

    def _expected(self, r: Rows, i: int, around: Wrapping) -> Flow | None:
        """The flow of packet ``i`` if its connection was known beforehand, but not its scope.

        The two directions of a connection may differ in it: a mirror may show a tag in one of them only.
        """
        way = way_key(r.src[i], r.dst[i], r.dest_qpn[i])
        if around.scope:
            known = self._scopes.get(way)  # without a set for each packet of a flood
            if known is None:
                known = self._scopes[way] = set()
            known.add(around.scope)
        scope, awaited = 0, self._awaited.get(way)
        while True:
            flow = self._flows.get(way + scope * SCOPE)
            if flow is not None and flow.number == AWAITED and flow.connection is not None:
                break
            if not awaited:
                return None
            scope = awaited.pop()
        del self._flows[way + scope * SCOPE]
        flow.around, flow.scope = around, around.scope
        flow.connection.has_around(flow.side, around)
        return flow

    # ------------------------------------------------------------------ by PSN

    def _new_flow(self, r: Rows, i: int, around: Wrapping) -> Flow:
        flow = Flow(r.src[i], r.dst[i], r.dest_qpn[i], TRANSPORT[r.opcode[i]], r.udp_sport[i])
        flow.around, flow.scope = around, around.scope
        if self._known.by_end:
            known = self._known.pair_of(
                self._addresses[flow.src], self._addresses[flow.dst], flow.qpn, r.time_ns[i], r.psn[i]
            )
            if known is not None:
                self._pair_as_known(flow, *known)
                return flow
        key = hosts_key(flow.src, flow.dst)
        found = self._lobbies.get(key)
        if found is None and KINDS[r.opcode[i]] == REQUEST and flow.transport != "UC":
            self._lobbies[key] = flow
        else:
            lobby = flow.lobby = self._lobby_at(key, found)
            lobby.add(flow)
        return flow

    def _lobby(self, flow: Flow) -> Lobby:
        lobby: Lobby | None = flow.lobby
        if lobby is None:
            key = hosts_key(flow.src, flow.dst)
            lobby = flow.lobby = self._lobby_at(key, self._lobbies.get(key))
        return lobby

    def _lobby_at(self, key: int, found: Lobby | Flow | int | None) -> Lobby:
        """The lobby of two hosts, of which ``found`` is there by now."""
        if isinstance(found, int):
            found = self._know(key)
        if isinstance(found, Lobby):
            return found
        lobby = self._lobbies[key] = lobby_of(self._chains, self._looks, self.limits_met)
        if found is not None:
            found.lobby = lobby
            lobby.take_in(found)
        return lobby

    def _wait(self, flow: Flow, r: Rows, i: int, kind: int, order: int) -> None:
        """Keep a packet of a flow whose other half is not known, and see whether it reveals it."""
        if flow.lobby is None and not flow.held:  # it is alone between its hosts
            flow.requested(r.psn[i], span_of(r, i), r.time_ns[i])
            flow.held, flow.held_ns = [(order, flow, r, i, None)], r.time_ns[i]
            flow.waits, flow.turn = 1, 0
            self._chains.waiters += 1
            self._chains.held += 1
            return
        lobby = self._lobby(flow)
        if flow.transport == "CNP" and kind != CNP:
            flow.transport = TRANSPORT[r.opcode[i]]
        if kind == REQUEST:
            lobby.requested(flow, r.psn[i], span_of(r, i), r.time_ns[i])
        lobby.hold(flow, r, i, order)
        if flow.transport == "UC":
            self._let_go(lobby, flow)
        elif kind == RESPONSE:
            partner = lobby.partner(flow, r, i)
            if partner is not None:
                self._pair_by_psn(lobby, partner, flow)
                return
        if lobby.overdue(r.time_ns[i]):
            self._empty(lobby)

    def _pair_by_psn(self, lobby: Lobby, requester: Flow, responder: Flow) -> None:
        lobby.keep(requester)
        lobby.keep(responder)
        connection = requester.connection
        if connection is None:
            first = requester
            if responder.high >= 0 and responder.first_request_ns < requester.first_request_ns:
                first = responder
            connection = self._connect(
                first, responder if first is requester else requester, lobby.decided_by
            )
            connection.paired_surely = lobby.surely
            if self._is_first_response(lobby, requester, responder):
                self._requests(connection, requester.side).start(requester.low & MASK)
        else:
            responder.connection, responder.side = connection, 1 - requester.side
            connection.has_around(1 - requester.side, responder.around)
            requester.partner, responder.partner = responder, requester
            connection.qpns[requester.side] = responder.qpn
            connection.paired_by = lobby.decided_by
            connection.paired_surely = lobby.surely
        lobby.remove(requester)
        lobby.remove(responder)
        self._replay(lobby.take(requester, responder))

    def _is_first_response(self, lobby: Lobby, requester: Flow, responder: Flow) -> bool:
        """Whether the packet at hand is a pair's first response, which fixes the requester's starting PSN.

        Then the requests that wait for it need not be held a second time (see ``Progress.held``): nothing
        else of their connection comes before them.
        """
        if (
            requester.responses
            or responder.responses != 1
            or not responder.held
            or requester.waits >= PROBATION
        ):
            return False
        order, _, r, i, chain = responder.held[-1]
        if (
            chain is not None
            or not lobby.is_last(order)
            or KINDS[r.opcode[i]] != RESPONSE
            or requester.high - requester.low >= HALF
        ):
            return False
        return requester.high + ((r.psn[i] - requester.high + HALF) & MASK) - HALF >= requester.low

    def _connect(self, asking: Flow, other: Flow | None, paired_by: str | None) -> Connection:
        """A connection whose ``a`` sends on ``asking``."""
        connection = connected(
            len(self.connections),
            asking.transport,
            [self._addresses[asking.src], self._addresses[asking.dst]],
            [None if other is None else other.qpn, asking.qpn],
            paired_by,
        )
        asking.connection, asking.side = connection, 0
        connection.is_in(asking.around, asking.around if other is None else other.around)
        if other is not None:
            other.connection, other.side = connection, 1
            asking.partner, other.partner = other, asking
        self._add(connection)
        return connection

    def _connect_datagrams(self, src: int, dst: int, ends: list[int | None], around: Wrapping) -> Connection:
        addresses = self._addresses
        connection = connected(len(self.connections), "UD", [addresses[src], addresses[dst]], ends, None)
        connection.is_in(around, around)
        self._add(connection)
        return connection

    def _add(self, connection: Connection) -> None:
        self.connections.append(connection)
        self._sides.append(None)
        self._sides.append(None)
        if self._on_connection is not None:
            self._on_connection(connection)
        if len(self.connections) % OFTEN == 0:  # many may come of one packet, or of none at the end
            take_signals()

    def _replay(self, waited: list[Waiting]) -> None:
        if COMPILED:
            self._touched = fetched(waited)
        for n, (_, flow, r, i, chain) in enumerate(waited):
            assert flow.connection is not None
            if chain is None:
                self._dispatch(flow, flow.connection, r, i, KINDS[r.opcode[i]])
            elif not self._replay_chain(flow, flow.connection, chain):
                self._replay(sorted(singles(waited[n:])))
                return

    def _let_go(self, lobby: Lobby, flow: Flow, resting: bool = False) -> None:
        """Track a flow alone; its other half may still be found. ``resting``: one packet may stay a row."""
        lobby.keep(flow)
        if flow.transport == "CNP":  # nothing but CNPs, to a QP of which nothing else is known
            self.stray_cnps += len(lobby.take(flow))
            lobby.remove(flow)
            if flow.number >= 0:  # what comes to that QP later is another flow
                del self._flows[way_key(flow.src, flow.dst, flow.qpn, flow.scope)]
                self._by_number[flow.number] = None
            return
        connection = self._connect_alone(flow)
        if flow.transport == "UC" or flow.high < 0:
            lobby.remove(flow)
        else:
            lobby.let_go(flow)
        waited = lobby.take(flow)
        if resting and len(waited) == 1 and self._keeps_alone(flow, waited[0]):
            self._count(connection, waited[0][2], waited[0][3])
        else:
            self._replay(waited)

    def _connect_alone(self, flow: Flow) -> Connection:
        """The connection of a flow whose other half is not known."""
        if flow.high >= 0 or not flow.responses:
            return self._connect(flow, None, None)
        connection = connected(  # responses only: they go to the requester
            len(self.connections),
            flow.transport,
            [self._addresses[flow.dst], self._addresses[flow.src]],
            [flow.qpn, None],
            None,
        )
        connection.is_in(flow.around, flow.around)
        flow.connection, flow.side = connection, 1
        self._add(connection)
        return connection

    def _empty(self, lobby: Lobby, resting: bool = False) -> None:
        """Pair what can be paired now between two hosts, and track the rest alone."""
        self._pair_rest(lobby)
        for flow in list(lobby.flows):
            if flow.connection is None:
                self._let_go(lobby, flow, resting)

    def _pair_rest(self, lobby: Lobby) -> None:
        """Pair what can be paired now between two hosts."""
        lobby.keep_all()
        responders = [f for f in lobby.flows if f.responses and f.connection is None]
        if responders:
            self._pair_waiting(lobby, deque(responders))

    def _pair_waiting(self, lobby: Lobby, waiting: deque[Flow]) -> None:
        """Pair what can be paired of a lobby that is to be empty.

        Args:
            waiting: its flows with responses.
        """
        undecided: dict[Flow, list[Flow]] = {}
        later: list[Flow] = []  # those that are not in there yet: most floods pair nothing
        tied: set[Flow] = set()
        while waiting:
            responder = waiting.popleft()
            if responder.connection is not None:
                continue
            requester = lobby.elect(responder)
            if requester is None or (responder in tied and not explains_most(requester, responder)):
                tied.add(responder)
                later.append(responder)
                continue
            self._pair_by_psn(lobby, requester, responder)
            note_rivals(undecided, later)
            # Both are out of the question for others now: of several candidates that explain as many
            # responses one may be left.
            for taken in (requester, responder):
                waiting.extend(undecided.pop(taken, ()))
        for requester, responder in list(response_times.pairs(lobby.waiting(), lobby.may_pair)):
            lobby.decided_by, lobby.surely = "response times", False
            self._pair_by_psn(lobby, requester, responder)

    def _replace(self, key: int, flow: Flow | None) -> None:
        """From now on another flow, or none, is that of (source, destination, QPN)."""
        old = self._flows.pop(key, None)
        if flow is not None:
            self._flows[key] = flow
        if old is not None and old.number != AWAITED:
            self._part(old)
            if old.number >= 0:
                self._by_number[old.number] = None
            if old.partner is not None:
                old.partner.partner = None
            old.partner, old.number = None, UNNUMBERED

    # ------------------------------------------------------------------ what is known beforehand

    def learn(self, first: Offer, second: Offer) -> None:
        """Two programs exchanged their QPs: from now on these are a pair, and start anew."""
        self._known.learn(first, second)
        self._begin_anew((first.ip, second.ip), (first.qpn, second.qpn), over_cm=False)

    def _begin_anew(self, ips: tuple[str, str], qpns: tuple[int, int], *, over_cm: bool) -> None:
        """The flows of a pair that becomes known are those of earlier QPs: end their connections.

        Args:
            over_cm: whether also those that the CM paired.
        """
        for side in (0, 1):
            here, there = (self._numbers.of(self._addresses, ips[n]) for n in (side, 1 - side))
            if here < 0 or there < 0:
                continue
            way = way_key(here, there, qpns[1 - side])
            for scope in (0, *self._scopes.get(way, ())):
                key = way + scope * SCOPE
                old = self._flows.get(key)
                if old is None or old.connection is None:
                    continue
                if over_cm or old.connection.paired_by != "cm":
                    self._end(old.connection)
                    self._replace(key, None)

    def _pair_as_known(self, flow: Flow, pair: Pair, side: int) -> None:
        src, dst = self._addresses[flow.src], self._addresses[flow.dst]
        ips: list[str | None] = [src, dst] if side == 0 else [dst, src]
        connection = pair.connection
        if connection is None:
            connection = connected(len(self.connections), flow.transport, ips, list(pair.qpns), pair.source)
            connection.negotiated = tuple(pair.negotiated)
            connection.path_mtu = pair.negotiated[0].path_mtu or pair.negotiated[1].path_mtu
        else:
            self._leave(connection)
            connection.ips = ips
        flow.connection, flow.side = connection, side
        connection.is_in(flow.around, flow.around)
        back = Flow(flow.dst, flow.src, pair.qpns[side], flow.transport, 0)
        back.connection, back.side, back.around, back.scope = connection, 1 - side, flow.around, flow.scope
        flow.partner, back.partner = back, flow
        self._await(back)
        if pair.connection is None:
            self._add(connection)

    def _leave(self, connection: Connection) -> None:
        """A connection without packets no longer waits for them between its addresses."""
        for side in (0, 1):
            src, dst = (self._numbers.of(self._addresses, connection.ips[n]) for n in (side, 1 - side))
            key = way_key(src, dst, connection.qpns[1 - side] or 0, connection.around[side].scope)
            flow = self._flows.get(key)
            if flow is not None and flow.connection is connection:
                self._replace(key, None)

    def _await(self, flow: Flow) -> None:
        """From now on this flow is that of its packets."""
        self._may_be_lone = False
        way = way_key(flow.src, flow.dst, flow.qpn)
        if flow.scope:
            self._scopes.setdefault(way, set()).add(flow.scope)
            self._awaited.setdefault(way, set()).add(flow.scope)
        self._replace(way + flow.scope * SCOPE, flow)

    def _pair_by_cm(self, exchange: Exchange, a: int, b: int, around: Wrapping) -> None:
        """A REP answered a REQ: ``a`` sent the REQ, ``b`` the REP (address numbers).

        Args:
            around: what is around the REP.
        """
        a_qpn, b_qpn = qpns(exchange)
        if a_qpn is None or b_qpn is None:
            return
        connection = connected(
            len(self.connections),
            exchange.transport,
            [self._addresses[a], self._addresses[b]],
            [a_qpn, b_qpn],
            "cm",
        )
        connection.path_mtu = exchange.request.cm.path_mtu
        connection.negotiated = self._known.agreed(exchange, (a_qpn, b_qpn))
        connection.is_in(exchange.request.around, around)
        exchange.connection = connection
        self._add(connection)
        waiting, both = [], []
        for side, (src, dst, qpn) in enumerate(((a, b, b_qpn), (b, a, a_qpn))):
            around = connection.around[side]
            old = self._flows.get(way_key(src, dst, qpn, around.scope))
            if old is not None and old.connection is None:
                self._lobby(old).remove(old)
                old.connection, old.side = connection, side
                waiting.append(old)
                both.append(old)
                continue
            if old is not None and old.connection is not None:
                self._end(old.connection)  # the QPN is used again
            flow = Flow(src, dst, qpn, connection.transport, 0)
            flow.connection, flow.side, flow.around, flow.scope = connection, side, around, around.scope
            both.append(flow)
            self._await(both[-1])
        both[0].partner, both[1].partner = both[1], both[0]
        if waiting:
            other = waiting[1] if len(waiting) > 1 else None
            self._replay(self._lobby(waiting[0]).take(waiting[0], other))
        if not connection.packets:
            pair = self._known.expect(exchange, connection)
            if pair is not None:
                self._begin_anew((pair.ips[0] or "", pair.ips[1] or ""), pair.qpns, over_cm=True)
