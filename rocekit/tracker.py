"""From packets to connections and transfers: one pass, in the capture's order.

``Tracker.feed`` takes batches of packets as they come; ``finish`` says that no more will. It hands every
packet to the side of the connection that it belongs to; the rules are in ``tracking``, the pairing in
``pairing``, the CM's in ``exchanges``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from rocekit import wire
from rocekit.connections import Connection
from rocekit.datagrams import Datagrams
from rocekit.decode import ICRC_INVALID, ICRC_VALID
from rocekit.exchanges import CmRecord, Exchange, Exchanges, qpns
from rocekit.ledger import Sink
from rocekit.mad import Mad, parse_mad
from rocekit.pairing import Flow, Lobby
from rocekit.rows import Rows
from rocekit.runs import Runs
from rocekit.shortlist import Shortlist
from rocekit.suspects import Suspect, Suspects
from rocekit.told import Pair, Told
from rocekit.tracking import Requests
from rocekit.transfers import Event, Transfer, frame_reference
from rocekit.wire import OPERATION

if TYPE_CHECKING:
    from rocekit.decode import Packets
    from rocekit.handshake import Offer

_IGNORED, _REQUEST, _RESPONSE, _DATAGRAM, _CNP = range(5)
_QPN_BITS: Final = 24
_ADDRESS_BITS: Final = 20
_ECN_CE: Final = 3  # RFC 3168
_LEAST_MTU: Final = min(wire.PATH_MTU_CODES)


def _flow_key(r: Rows, i: int) -> int:
    return (r.src[i] << _ADDRESS_BITS | r.dst[i]) << _QPN_BITS | r.dest_qpn[i]


def _kind(value: int) -> int:
    opcode = wire.OPCODES.get(value)
    if opcode is None or opcode.transport == "RD":
        return _IGNORED
    if opcode.transport == "CNP":
        return _CNP
    if opcode.transport == "UD":
        return _DATAGRAM
    return _RESPONSE if opcode.response else _REQUEST


_KINDS: Final = tuple(_kind(v) for v in range(256))
_TRANSPORT: Final = tuple(wire.OPCODES[v].transport if v in wire.OPCODES else "" for v in range(256))


class Tracker(Sink):
    """Connections, transfers and CM messages out of packets.

    Args:
        pairs: QP pairs that a journal names.
        on_end: called with every transfer as it ends, while it may still change.
        on_change: called with a transfer at every event that befalls it.
        on_connection: called with every connection as it is known.
        on_cm: called with every CM message.
        plain: how many of the transfers to which nothing happened to keep, the slowest; None for all of them.
            Then ``transfers`` is there after ``finish`` only.

    Attributes:
        connections, transfers: all of them, in order of their ids.
        left_out: transfers that were not kept, by status.
        cm: the CM messages and exchanges.
        bad_icrc: frame references of packets that belong to no known connection.
        stray_cnps: CNPs to QPs of which nothing else is known.
        icrc_ignored: whether the ICRCs are tracked regardless, because most are wrong from the start: then it
            is not corruption but a capture, a device or a middlebox that does not keep them.
    """

    def __init__(
        self,
        *,
        pairs: Iterable[Pair] = (),
        on_end: Callable[[Transfer], None] | None = None,
        on_change: Callable[[Transfer, Event | None], None] | None = None,
        on_connection: Callable[[Connection], None] | None = None,
        on_cm: Callable[[CmRecord], None] | None = None,
        plain: int | None = None,
    ) -> None:
        self.connections: list[Connection] = []
        self.transfers: list[Transfer] = []
        self._shortlist = None if plain is None else Shortlist(plain)
        self.left_out: Counter[str] = Counter()
        self._began = 0
        self.cm = Exchanges()
        self.malformed: list[tuple[int, int]] = []
        self.bad_icrc: list[int] = []
        self.stray_cnps = 0
        self.icrc_ignored = False
        self._valid = False
        self._suspects = Suspects()
        self._distrusted: set[int] = set()
        self._told = Told(pairs)
        self._on_end = on_end
        self._on_change = on_change
        self._on_connection = on_connection
        self._on_cm = on_cm
        self._flows: dict[int, Flow] = {}
        self._by_number: list[Flow | None] = []
        self._runs = Runs()
        self._lobbies: dict[tuple[int, int], Lobby] = {}
        self._datagrams = Datagrams(self, self._connect_datagrams)
        self._addresses: list[str] = []
        self._mads: Mapping[int, Mad] | None = None
        self._tail: tuple[Any, Any] = ((), ())

    # ------------------------------------------------------------------ what tracking tells

    def next_id(self) -> int:
        return self._began

    def began(self, transfer: Transfer) -> None:
        self._began += 1
        if self._shortlist is None:
            self.transfers.append(transfer)
        else:
            self._shortlist.add(transfer)
        transfer.connection.transfers += 1

    def ended(self, transfer: Transfer) -> None:
        if self._on_end is not None:
            self._on_end(transfer)

    def settled(self, transfers: list[Transfer]) -> None:
        if self._shortlist is not None:
            self._shortlist.settle(transfers)

    def changed(self, transfer: Transfer) -> None:
        if self._on_change is not None:
            self._on_change(transfer, transfer.events[-1] if transfer.events else None)

    # ------------------------------------------------------------------ packets

    def feed(self, packets: Packets, mads: Mapping[int, Mad] | None = None) -> None:
        """Take a batch of packets, later than all before.

        Args:
            packets: with their payloads at hand, unless
            mads: has the MADs among them by frame reference.
        """
        if not len(packets):
            return
        self._mads = mads
        self._addresses = packets.addresses
        sound = (packets.malformed == 0) & (packets.opcode >= 0)
        if not sound.all():
            for i in np.flatnonzero(packets.malformed != 0).tolist():
                frame = frame_reference(int(packets.file[i]), int(packets.frame[i]))
                self.malformed.append((frame, int(packets.malformed[i])))
            packets = packets.where(sound)
            if not len(packets):
                return
        rows = Rows(packets, self._tail)
        self._tail = rows.tail()
        runs = self._runs
        runs.begin(rows, int(packets.flow.max()) + 1)
        wrong = rows.icrc_state if (packets.icrc_state == ICRC_INVALID).any() else None
        self._valid = self._valid or bool((packets.icrc_state == ICRC_VALID).any())
        for i in range(len(rows)):
            if wrong is not None and wrong[i] == ICRC_INVALID:
                if self._is_believed(rows, i, packets):
                    self._take(rows, i)
            elif not runs.takes(i):
                self._take(rows, i)
        self._settle_all()

    def _take(self, r: Rows, i: int) -> None:
        """Hand packet ``i`` to the flow, datagram or exchange that it belongs to."""
        kind = _KINDS[r.opcode[i]]
        if kind in (_REQUEST, _RESPONSE, _CNP):
            flow = self._flow(r, i)
            self._settle(flow)
            connection = flow.connection
            if connection is None:
                self._wait(flow, r, i, kind)
            else:
                self._dispatch(flow, connection, r, i, kind)
            if kind == _REQUEST:
                self._runs.request(r.flow[i], r.opcode[i])
            partner = flow.partner
            if partner is not None:
                self._expect(flow)
                self._expect(partner)
        elif kind == _DATAGRAM:
            if r.dest_qpn[i] in wire.MAD_QPNS:
                self._settle_all()
                self._management(r, i)
            else:
                self._count(self._datagrams.take(r, i), r, i)

    def forget(self) -> None:
        """Drop the transfers kept so far; those that go on are told of as ever."""
        if self._shortlist is not None:
            self._shortlist.forget()

    def _flow(self, r: Rows, i: int) -> Flow:
        """The flow of packet ``i``."""
        number = r.flow[i]
        flow = self._by_number[number] if number < len(self._by_number) else None
        if flow is None:
            key = _flow_key(r, i)
            flow = self._flows.get(key)
            if flow is None:
                flow = self._flows[key] = self._new_flow(r, i)
            flow.number = number
            if number >= len(self._by_number):
                self._by_number += [None] * (2 * number + 1 - len(self._by_number))
            self._by_number[number] = flow
        return flow

    def _replace(self, key: int, flow: Flow | None) -> None:
        """Another flow, or none, stands for (source, destination, QPN) from now on."""
        old = self._flows.pop(key, None)
        if flow is not None:
            self._flows[key] = flow
        if old is not None and old.number >= 0:
            self._settle_all()
            self._by_number[old.number] = None
            for gone in (old, old.partner):
                if gone is not None and gone.number >= 0:
                    self._runs.expect(gone.number, 0, 0, 0)
            if old.partner is not None:
                old.partner.partner = None
            old.partner, old.number = None, -1

    # ------------------------------------------------------------------ packets that simply go on

    def _expect(self, flow: Flow) -> None:
        """Note which packet would go on with the message that a paired flow carries (see ``runs``)."""
        number, connection = flow.number, flow.connection
        if number < 0 or connection is None:
            return
        requests = connection.requests[flow.side]
        if requests is not None:
            room = requests.room(self._runs.opcode(number))
            self._runs.expect(number, requests.expected, connection.path_mtu or 0, room)

    def _settle(self, flow: Flow) -> None:
        """Hand over what went on with the messages of a flow and its partner, in the order of the capture."""
        partner = flow.partner
        if partner is None:
            return
        first, second = (flow, partner) if self._last(flow) < self._last(partner) else (partner, flow)
        self._go_on(first)
        self._go_on(second)

    def _settle_all(self) -> None:
        for number in self._runs.open:
            flow = self._by_number[number]
            assert flow is not None
            self._settle(flow)
        self._runs.open = []

    def _last(self, flow: Flow) -> int:
        return self._runs.last(flow.number) if flow.number >= 0 else -1

    def _go_on(self, flow: Flow) -> None:
        last = self._last(flow)
        if last < 0:
            return
        runs, connection = self._runs, flow.connection
        assert connection is not None
        r = runs.rows
        requests = connection.requests[flow.side]
        assert r is not None
        assert requests is not None
        count = runs.count(flow.number)
        requests.go_on(r, runs.first(flow.number), runs.after, count)
        connection.packets += count
        connection.last_ns = r.time_ns[last]
        runs.clear(flow.number)

    def finish(self) -> None:
        """The capture has ended: settle what is open."""
        suspects = self._suspects.settle(believe=not self._valid)
        self.icrc_ignored = self.icrc_ignored or bool(suspects)
        for suspect in suspects:
            self._take_suspect(suspect)
        for lobby in self._lobbies.values():
            self._empty(lobby)
        for connection in self.connections:
            self._end(connection)
        if self._shortlist is not None:
            self.transfers = self._shortlist.finish()
            self.left_out = self._shortlist.left_out
        else:
            for transfer in self.transfers:
                transfer.connection.bytes += transfer.bytes
        for key, frame in self._suspects.wrong:
            flow = self._flows.get(key)
            if flow is not None and flow.connection is not None:
                flow.connection.note_bad_icrc(frame)
            else:
                self.bad_icrc.append(frame)

    @staticmethod
    def _end(connection: Connection) -> None:
        for requests in connection.requests:
            if requests is not None:
                requests.finalise()

    # ------------------------------------------------------------------ wrong ICRCs

    def _is_believed(self, r: Rows, i: int, packets: Packets) -> bool:
        """Whether a packet with a wrong ICRC is tracked nevertheless (see ``suspects``)."""
        key = _flow_key(r, i)
        if key in self._distrusted:
            return True
        if self._is_known(key, r, i):
            self._suspects.note(key, r.frame[i])
            return False
        held = self._suspects.hold(key, packets, i)
        if held:
            self._distrusted.add(key)
            self.icrc_ignored = True
            for suspect in held:
                self._take_suspect(suspect)
        return False

    def _is_known(self, key: int, r: Rows, i: int) -> bool:
        """Whether the packet's flow has carried packets with right ICRCs."""
        if _KINDS[r.opcode[i]] != _DATAGRAM:
            return key in self._flows
        if r.dest_qpn[i] in wire.MAD_QPNS:
            return bool(self.cm.records)
        return self._datagrams.knows(r, i)

    def _take_suspect(self, suspect: Suspect) -> None:
        mads, self._mads = self._mads, {suspect.rows.frame[0]: suspect.mad} if suspect.mad else {}
        self._take(suspect.rows, 0)
        self._mads = mads

    def _count(self, connection: Connection, r: Rows, i: int) -> None:
        connection.packets += 1
        if r.ecn[i] == _ECN_CE:
            connection.ce_marked += 1
        time_ns = r.time_ns[i]
        if connection.first_ns is None:
            connection.first_ns = time_ns
        connection.last_ns = time_ns

    def _dispatch(self, flow: Flow, connection: Connection, r: Rows, i: int, kind: int) -> None:
        self._count(connection, r, i)
        side = flow.side
        if kind == _REQUEST:
            requests = connection.requests[side] or self._requests(connection, side)
            requests.request(r, i)
        elif kind == _RESPONSE:
            requests = connection.requests[1 - side] or self._requests(connection, 1 - side)
            requests.respond(r, i)
        else:
            connection.cnps += 1

    def _requests(self, connection: Connection, side: int) -> Requests:
        requests = Requests(connection, side, self, reliable=connection.transport != "UC")
        connection.requests[side] = requests
        psn = connection.negotiated[side].starting_psn
        if psn is not None:
            requests.start(psn)
        return requests

    # ------------------------------------------------------------------ flows and pairs

    def _new_flow(self, r: Rows, i: int) -> Flow:
        flow = Flow(r.src[i], r.dst[i], r.dest_qpn[i], _TRANSPORT[r.opcode[i]], r.udp_sport[i])
        told = self._told.pair_of(self._addresses[flow.src], self._addresses[flow.dst], flow.qpn)
        if told is not None:
            self._pair_as_told(flow, *told)
        else:
            self._lobby(flow).add(flow)
        return flow

    def _lobby(self, flow: Flow) -> Lobby:
        lobby = flow.lobby
        if lobby is None:
            key = (min(flow.src, flow.dst), max(flow.src, flow.dst))
            lobby = flow.lobby = self._lobbies.setdefault(key, Lobby())
        return lobby

    def _wait(self, flow: Flow, r: Rows, i: int, kind: int) -> None:
        """Keep a packet of a flow whose other half is not known, and look whether it tells."""
        lobby = self._lobby(flow)
        if flow.transport == "CNP" and kind != _CNP:
            flow.transport = _TRANSPORT[r.opcode[i]]
        if kind == _REQUEST:
            length = r.dma_length[i] if OPERATION[r.opcode[i]] == "READ" else 0
            lobby.requested(flow, r.psn[i], wire.psns_of(length, _LEAST_MTU) if length else 1, r.time_ns[i])
        lobby.hold(flow, r, i)
        if flow.transport == "UC":
            self._let_go(lobby, flow)
        elif kind == _RESPONSE:
            partner = lobby.partner(flow, r, i)
            if partner is not None:
                self._pair_by_psn(lobby, partner, flow)
                return
        if lobby.overdue(r.time_ns[i]):
            self._empty(lobby)

    def _pair_by_psn(self, lobby: Lobby, asker: Flow, answer: Flow) -> None:
        connection = asker.connection
        if connection is None:
            first = asker
            if answer.high >= 0 and answer.first_request_ns < asker.first_request_ns:
                first = answer
            connection = self._connect(first, answer if first is asker else asker, "psn")
        else:
            answer.connection, answer.side = connection, 1 - asker.side
            asker.partner, answer.partner = answer, asker
            connection.qpns[asker.side] = answer.qpn
            connection.paired_by = "psn"
        lobby.remove(asker)
        lobby.remove(answer)
        self._replay(lobby.take(asker, answer))

    def _connect(self, asking: Flow, other: Flow | None, paired_by: str | None) -> Connection:
        """A connection whose ``a`` sends on ``asking``."""
        connection = Connection(
            len(self.connections),
            asking.transport,
            [self._addresses[asking.src], self._addresses[asking.dst]],
            [None if other is None else other.qpn, asking.qpn],
            paired_by,
        )
        asking.connection, asking.side = connection, 0
        if other is not None:
            other.connection, other.side = connection, 1
            asking.partner, other.partner = other, asking
        self._add(connection)
        return connection

    def _connect_datagrams(self, r: Rows, i: int) -> Connection:
        ips: list[str | None] = [self._addresses[r.src[i]], self._addresses[r.dst[i]]]
        connection = Connection(len(self.connections), "UD", ips, [r.src_qpn[i], r.dest_qpn[i]])
        self._add(connection)
        return connection

    def _add(self, connection: Connection) -> None:
        self.connections.append(connection)
        if self._on_connection is not None:
            self._on_connection(connection)

    def _replay(self, waited: list[tuple[Flow, Rows, int]]) -> None:
        for flow, r, i in waited:
            assert flow.connection is not None
            self._dispatch(flow, flow.connection, r, i, _KINDS[r.opcode[i]])

    def _let_go(self, lobby: Lobby, flow: Flow) -> None:
        """Track a flow alone; its other half may still be found."""
        if flow.transport == "CNP":  # nothing but CNPs, to a QP of which nothing else is known
            self.stray_cnps += len(lobby.take(flow))
            lobby.remove(flow)
            return
        if flow.high < 0 and flow.answers:  # answers only: the requester is the one they go to
            self._connect_answers(flow)
        else:
            self._connect(flow, None, None)
        if flow.transport == "UC" or flow.high < 0:
            lobby.remove(flow)
        else:
            lobby.let_go(flow)
        self._replay(lobby.take(flow))

    def _connect_answers(self, flow: Flow) -> Connection:
        connection = Connection(
            len(self.connections),
            flow.transport,
            [self._addresses[flow.dst], self._addresses[flow.src]],
            [flow.qpn, None],
        )
        flow.connection, flow.side = connection, 1
        self._add(connection)
        return connection

    def _empty(self, lobby: Lobby) -> None:
        """Decide by what is known, and let the rest go."""
        for answer in [f for f in lobby.flows if f.answers and f.connection is None]:
            if answer.connection is None:
                asker = lobby.elect(answer)
                if asker is not None:
                    self._pair_by_psn(lobby, asker, answer)
        for flow in [f for f in lobby.flows if f.connection is None]:
            self._let_go(lobby, flow)

    # ------------------------------------------------------------------ what was told

    def learn(self, first: Offer, second: Offer) -> None:
        """Two programs have told each other their QPs: from now on these are a pair, and begin anew."""
        self._told.learn(first, second)
        for here, there in ((first, second), (second, first)):
            if here.ip in self._addresses and there.ip in self._addresses:
                numbers = self._addresses.index(here.ip), self._addresses.index(there.ip)
                key = (numbers[0] << _ADDRESS_BITS | numbers[1]) << _QPN_BITS | there.qpn
                old = self._flows.get(key)
                if old is not None and old.connection is not None and old.connection.paired_by != "cm":
                    self._end(old.connection)
                    self._replace(key, None)

    def _pair_as_told(self, flow: Flow, pair: Pair, side: int) -> None:
        src, dst = self._addresses[flow.src], self._addresses[flow.dst]
        ips: list[str | None] = [src, dst] if side == 0 else [dst, src]
        connection = Connection(len(self.connections), flow.transport, ips, list(pair.qpns), pair.source)
        connection.negotiated = list(pair.negotiated)
        connection.path_mtu = pair.negotiated[0].path_mtu or pair.negotiated[1].path_mtu
        flow.connection, flow.side = connection, side
        back = Flow(
            flow.dst, flow.src, pair.qpns[side], flow.transport, 0, connection=connection, side=1 - side
        )
        flow.partner, back.partner = back, flow
        self._replace((flow.dst << _ADDRESS_BITS | flow.src) << _QPN_BITS | pair.qpns[side], back)
        self._add(connection)

    # ------------------------------------------------------------------ connection management

    def _management(self, r: Rows, i: int) -> None:
        mad = parse_mad(r.payload(i)) if self._mads is None else self._mads.get(r.frame[i])
        if mad is None:
            return
        src, dst = self._addresses[r.src[i]], self._addresses[r.dst[i]]
        record = self.cm.take(mad, r.frame[i], r.time_ns[i], src, dst)
        if record is None:
            return
        exchange = record.exchange
        if exchange is not None:
            if record.message == "REP" and exchange.connection is None:
                if record is exchange.reply:
                    self._pair_by_cm(exchange, r.dst[i], r.src[i])
            elif record.message in ("DREQ", "REJ") and exchange.connection is not None:
                connection = exchange.connection
                connection.closed_frame = connection.closed_frame or record.frame
        if self._on_cm is not None:
            self._on_cm(record)

    def _pair_by_cm(self, exchange: Exchange, a: int, b: int) -> None:
        """A REP answered a REQ: ``a`` asked, ``b`` was asked (address numbers)."""
        a_qpn, b_qpn = qpns(exchange)
        if a_qpn is None or b_qpn is None:
            return
        connection = Connection(
            len(self.connections),
            exchange.transport,
            [self._addresses[a], self._addresses[b]],
            [a_qpn, b_qpn],
            "cm",
            path_mtu=exchange.request.cm.path_mtu,
            negotiated=self._told.agreed(exchange, (a_qpn, b_qpn)),
        )
        exchange.connection = connection
        self._add(connection)
        waiting = []
        both = []
        for side, (src, dst, qpn) in enumerate(((a, b, b_qpn), (b, a, a_qpn))):
            key = (src << _ADDRESS_BITS | dst) << _QPN_BITS | qpn
            old = self._flows.get(key)
            if old is not None and old.connection is None:
                self._lobby(old).remove(old)
                old.connection, old.side = connection, side
                waiting.append(old)
                both.append(old)
                continue
            if old is not None and old.connection is not None:
                self._end(old.connection)  # the QPN lives anew
            both.append(Flow(src, dst, qpn, exchange.transport, 0, connection=connection, side=side))
            self._replace(key, both[-1])
        both[0].partner, both[1].partner = both[1], both[0]
        if waiting:
            self._replay(self._lobby(waiting[0]).take(*waiting))
