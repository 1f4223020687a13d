# cython: boundscheck=False
"""From packets to connections and transfers: one pass, in the capture's order.

``Tracker.feed`` takes batches of packets as they come; ``finish`` says that no more will. It hands every
packet to the side of the connection that it belongs to. The rules are in ``requests``, the pairing in
``pairing``, the CM's in ``cm_exchanges``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from rocekit import wire
from rocekit.files.frame_names import frame_reference
from rocekit.machine.signals import OFTEN, take_signals
from rocekit.packets import ICRC_INVALID, ICRC_VALID
from rocekit.packets.rows import Rows
from rocekit.track.bulk import Chain
from rocekit.track.cm_exchanges import CmRecord, Exchanges
from rocekit.track.connections import Connection
from rocekit.track.datagrams import Datagrams
from rocekit.track.events import Event
from rocekit.track.kept import Kept
from rocekit.track.lane.clean_lane import CleanLane
from rocekit.track.lane.clean_side import CleanSide
from rocekit.track.pairs.known_pairs import Pair
from rocekit.track.pairs.lone_flows import LoneFlows, LoneTable
from rocekit.track.pairs.waiting import Flow, flow_key, hosts_key
from rocekit.track.pairs.waiting_rows import WaitingRows
from rocekit.track.requests import Requests
from rocekit.track.rest.sides import PackedSide, pack
from rocekit.track.suspect_icrcs import Suspect, Suspects
from rocekit.track.transfers import Transfer
from rocekit.wire.packet_kinds import CNP, DATAGRAM, KINDS, REQUEST, RESPONSE

if TYPE_CHECKING:
    from rocekit.packets import Packets
    from rocekit.wire.mad import Mad

_ID: Final = attrgetter("id")
#: A connection of fewer packets gains nothing in the clean lane; a flood has many such.
_SHORT: Final = 8


class Tracker(LoneFlows):
    """Connections, transfers and CM messages out of packets.

    Args:
        pairs: QP pairs that a journal names.
        on_end: called with every transfer as it ends, while it may still change.
        on_change: called with a transfer at every event that happens to it.
        on_connection: called with every connection as it becomes known.
        on_cm: called with every CM message.
        plain: how many of the transfers to which nothing happened to keep, the slowest; None for all of them.
            Then ``transfers`` is filled by ``finish`` only.
        clean_lane: whether packets in order may pass beside the state machine (see ``clean_lane``); the
            result is the same.

    Attributes:
        connections, transfers: all of them, in order of their ids.
        left_out: transfers that were not kept, by status.
        cm: the CM messages and exchanges.
        bad_icrc: frame references of packets that belong to no known connection.
        stray_cnps: CNPs to QPs of which nothing else is known.
        icrc_ignored: whether packets are tracked in spite of wrong ICRCs, because most are wrong from the
            start: then nothing is corrupted, but a capture, a device or a middlebox does not keep ICRCs.
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
        clean_lane: bool = True,
    ) -> None:
        super().__init__(pairs, on_connection)
        self.transfers: list[Transfer] = []
        self._kept = None if plain is None else Kept(plain)
        self.left_out: Counter[str] = Counter()
        self.numbered = 0
        self.cm = Exchanges()
        self.malformed: list[tuple[int, int]] = []
        self.bad_icrc: list[int] = []
        self.icrc_ignored = False
        self._valid = False
        self._suspects = Suspects()
        self._distrusted: set[int] = set()
        self._on_end = on_end
        self._on_change = on_change
        self._on_cm = on_cm
        self._datagrams = Datagrams(self, self._connect_datagrams)
        self._mads: Mapping[int, Mad] | None = None
        self._parse_mad: Any = None
        reports = on_end is not None or on_change is not None
        # A live view lets go of flows, and has those that stay in the order in which they became known.
        self._may_be_lone = self._may_be_lone and not reports
        self._lane = CleanLane(self, clean_lane, reports, plain is None)
        self._waiting = WaitingRows()
        self._tail: tuple[Any, Any] = ((), ())

    # ------------------------------------------------------------------ what tracking reports

    def next_id(self) -> int:
        return self.numbered

    def began(self, transfer: Transfer) -> None:
        self.numbered += 1
        if self._kept is None:
            self.transfers.append(transfer)
        else:
            self._kept.add(transfer)
        connection: Connection = transfer.connection
        connection.transfers += 1

    def made(self, transfer: Transfer) -> None:
        if self._kept is None:
            self.transfers.append(transfer)
        else:
            self._kept.add(transfer)

    def leaves_out(
        self, connection: Connection, side: int, kind: int, status: str, size: int, duration_ns: int
    ) -> bool:
        return self._kept is not None and self._kept.leaves_out(
            connection, side, kind, status, size, duration_ns
        )

    def ended(self, transfer: Transfer) -> None:
        if self._on_end is not None:
            self._on_end(transfer)

    def settled(self, transfers: list[Transfer]) -> None:
        if self._kept is not None:
            self._kept.settle(transfers)

    def forgets(self) -> bool:
        return self._kept is not None

    def given_up(self, transfers: list[Transfer]) -> None:
        if self._kept is not None:
            self._kept.give_up(transfers)

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
        known = len(self.transfers)
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
        chains, lane = self._chains, self._lane
        if not chains.has_room(rows):
            self._settle_all()
        flows = int(packets.flow.max()) + 1
        chains.begin(rows, flows)
        lane.begin(rows, flows)
        wrong = rows.icrc_state if (packets.icrc_state == ICRC_INVALID).any() else None
        self._valid = self._valid or bool((packets.icrc_state == ICRC_VALID).any())
        count = len(rows)
        i = 0
        while i < count:
            if wrong is not None and wrong[i] == ICRC_INVALID:
                chains.row = i
                if self._is_believed(rows, i, packets):
                    self._take(rows, i)
            else:
                end = count if wrong is None else i + 1
                i = lane.takes(rows, i, end)
                if i == end:
                    continue
                waiting = chains.takes(i, end)
                if waiting > i:
                    i = waiting
                    continue
                self._take(rows, i)
                if i % OFTEN == 0:
                    take_signals()
            i += 1
        lane.over()
        if self._kept is None:  # those that passed the state machine became objects later than others
            self.transfers[known:] = sorted(self.transfers[known:], key=_ID)
        held = chains.held + chains.chaining
        self._waiting.add(rows, held, self._lobbies.values(), self._by_number, self._end_chains)

    def _take(self, r: Rows, i: int) -> None:
        """Hand packet ``i`` to the flow, datagram or exchange that it belongs to."""
        kind = KINDS[r.opcode[i]]
        if kind in (REQUEST, RESPONSE, CNP):
            if kind == REQUEST and self._stays_lone(r, i):
                return
            flow = self._flow(r, i)
            connection = flow.connection
            if connection is None:
                if flow.lobby is not None:
                    flow.lobby.keep(flow)
                self._wait(flow, r, i, kind, self._chains.order_of(r, i))
            else:
                self._dispatch(flow, connection, r, i, kind)
            if flow.connection is not None:
                self._enter(flow, kind, r.opcode[i])
            elif kind == REQUEST and flow.lobby is not None:
                self._chains.request(r.flow[i], r.opcode[i])
                self._lobby(flow).go_on(flow, r, i)
        elif kind == DATAGRAM:
            if r.dest_qpn[i] in wire.MAD_QPNS:
                self._know_all()
                self._settle_all()
                self._management(r, i)
            else:
                self._count(self._datagrams.take(r, i), r, i)

    def _count_before(self, flow: Flow) -> None:
        """Count the packets that the clean lane has taken of a flow's connection."""
        clean = flow.clean
        if clean is None and flow.partner is not None:
            clean = flow.partner.clean
        if clean is not None:
            self._lane.flush(clean)

    def _dispatch(self, flow: Flow, connection: Connection, r: Rows, i: int, kind: int) -> None:
        self._count_before(flow)
        self._count(connection, r, i)
        side = flow.side
        if kind == REQUEST:
            self._side(connection, side).request(r, i)
        elif kind == RESPONSE:
            self._side(connection, 1 - side).respond(r, i)
        else:
            connection.cnps += 1

    def _replay_chain(self, flow: Flow, connection: Connection, chain: Chain) -> bool:
        """Track packets that were chained while they waited; False if they are to be tracked one by one."""
        requests = self._side(connection, flow.side)
        if not requests.chained(chain):
            return False
        self._count_before(flow)
        connection.packets += chain.count
        connection.used(chain.last_ns())
        return True

    def forget(self) -> None:
        """Drop the transfers kept so far; those that go on are still reported."""
        if self._kept is not None:
            resting = []
            for at, requests in enumerate(self._sides):
                if isinstance(requests, Requests):
                    if requests.in_lane:
                        requests.clean.leave()
                elif isinstance(requests, PackedSide) and requests.unmade:
                    resting.append(at)
            self._kept.forget()
            # One after the other: there may be many, and all of them take much memory.
            for at in resting:
                awake = self._side(self.connections[at >> 1], at & 1)
                self._kept.forget()
                self._sides[at] = pack(awake, []) or awake

    # ------------------------------------------------------------------ packets that simply go on

    def _enter(self, flow: Flow, kind: int, opcode: int) -> None:
        """A packet of a flow came: what follows it may be in order, and taken by the clean lane."""
        partner, connection = flow.partner, flow.connection
        assert connection is not None
        if not self._lane.wanted or (connection.packets < _SHORT and flow.clean is None):
            return
        mine = self._clean_side(flow)
        mine.mtu = -1 if connection.path_mtu is None else connection.path_mtu
        if partner is not None:
            other = self._clean_side(partner)
            mine.other, other.other, other.mtu = other, mine, mine.mtu
        # A request, or a response to one, changes what is known of the side whose request it is.
        asks = flow if kind == REQUEST else partner
        if kind == CNP or asks is None or asks.clean is None:
            return
        requests = self._sides[2 * connection.id + asks.side]
        if isinstance(requests, Requests) and not requests.in_lane and self._lane.knows(opcode):
            self._lane.enter(asks.clean, requests)

    def _clean_side(self, flow: Flow) -> CleanSide:
        """What the clean lane has of a flow's sender."""
        side = flow.clean
        if side is None:
            assert flow.connection is not None
            side = flow.clean = CleanSide(self._lane, flow.connection, flow.side)
        if flow.number >= 0:
            self._lane.send_on(flow.number, side)
        return side

    def _part(self, flow: Flow) -> None:
        self._settle_all()
        for gone in (flow, flow.partner):
            if gone is not None and gone.clean is not None:
                self._lane.flush(gone.clean)
                gone.clean.other = None
                self._lane.send_on(gone.number, None)
            if gone is not None and gone.number >= 0:
                self._chains.expect(gone.number, 0, 0, 0)

    def _settle_all(self) -> None:
        """The chains of flows that wait end here."""
        for number in self._chains.open:
            flow = self._by_number[number]
            if flow is not None and flow.lobby is not None and flow.connection is None:
                flow.lobby.keep(flow)
        self._chains.open = []

    def _end_chains(self) -> None:
        self._know_all()
        self._settle_all()
        self._chains.over()

    def finish(self) -> None:
        """The capture has ended: settle what is open."""
        self._settle_all()
        suspects = self._suspects.settle(believe=not self._valid)
        self._chains.row = self._chains.size()
        self.icrc_ignored = self.icrc_ignored or bool(suspects)
        for suspect in suspects:
            self._take_suspect(suspect)
        if self._suspects.wrong:
            self._know_all()
        else:  # nobody asks for flows any more: their memory is used again while others end
            self._flows, self._by_number = {}, []
        lobbies = [*reversed(self._lobbies.values())]
        self._lobbies = {}
        while lobbies:
            self._end_waiting(lobbies.pop())
        self._lone = LoneTable()
        for requests in self._sides:
            if isinstance(requests, Requests) and requests.in_lane:
                self._lane.end(requests.clean)
        for start in range(0, len(self.connections), OFTEN):
            take_signals()
            for connection in self.connections[start : start + OFTEN]:
                self._end(connection)
        if self._kept is not None:
            self.transfers = self._kept.finish()
            self.left_out = self._kept.left_out
        else:
            for transfer in self.transfers:
                transfer.connection.bytes += transfer.bytes
        for key, frame in self._suspects.wrong:
            flow = self._flows.get(key)
            if flow is not None and flow.connection is not None:
                flow.connection.note_bad_icrc(frame)
            else:
                self.bad_icrc.append(frame)

    # ------------------------------------------------------------------ wrong ICRCs

    def _is_believed(self, r: Rows, i: int, packets: Packets) -> bool:
        """Whether a packet with a wrong ICRC is tracked all the same (see ``suspect_icrcs``)."""
        key = flow_key(r, i)
        if key in self._distrusted:
            return True
        if self._is_known(key, r, i):
            self._suspects.note(key, r.frame[i])
            return False
        keys, held = self._suspects.hold(key, packets, i)
        if held:
            self._distrusted.update(keys)
            self.icrc_ignored = True
            for suspect in held:
                self._take_suspect(suspect)
        return False

    def _is_known(self, key: int, r: Rows, i: int) -> bool:
        """Whether the packet's flow has had packets with valid ICRCs."""
        if KINDS[r.opcode[i]] != DATAGRAM:
            self._know_any(hosts_key(r.src[i], r.dst[i]))
            return key in self._flows
        if r.dest_qpn[i] in wire.MAD_QPNS:
            return bool(self.cm.records)
        return self._datagrams.knows(r, i)

    def _take_suspect(self, suspect: Suspect) -> None:
        mads, self._mads = self._mads, {suspect.rows.frame[0]: suspect.mad} if suspect.mad else {}
        self._take(suspect.rows, 0)
        self._mads = mads

    # ------------------------------------------------------------------ connection management

    def _management(self, r: Rows, i: int) -> None:
        if self._parse_mad is None:
            from rocekit.wire.mad import parse_mad  # few captures have such packets

            self._parse_mad = parse_mad  # to import it for each packet takes as long as to parse one
        mad = self._parse_mad(r.payload(i)) if self._mads is None else self._mads.get(r.frame[i])
        if mad is None:
            return
        src, dst = self._addresses[r.src[i]], self._addresses[r.dst[i]]
        around = r.around(i)
        record = self.cm.take(mad, r.frame[i], r.time_ns[i], src, dst, r.ip_id[i], around)
        if record is None:
            return
        exchange = record.exchange
        if exchange is not None:
            if record.message == "REP" and exchange.connection is None:
                if record is exchange.reply:
                    self._pair_by_cm(exchange, r.dst[i], r.src[i], around)
            elif record.message in ("DREQ", "REJ") and exchange.connection is not None:
                connection = exchange.connection
                connection.closed_frame = connection.closed_frame or record.frame
        if self._on_cm is not None:
            self._on_cm(record)
