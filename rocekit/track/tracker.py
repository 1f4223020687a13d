# cython: boundscheck=False
"""From packets to connections and transfers: one pass, in the capture's order.

``Tracker.feed`` takes batches of packets as they come; ``finish`` says that no more will. It hands every
packet to the side of the connection that it belongs to. The rules are in ``requests``, the pairing in
``pairing``, the CM's in ``cm_exchanges``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from rocekit import wire
from rocekit.files.frame_names import frame_reference
from rocekit.packets import ICRC_INVALID, ICRC_VALID
from rocekit.packets.rows import COMPILED, Rows
from rocekit.track.cm_exchanges import CmRecord, Exchanges
from rocekit.track.connections import Connection
from rocekit.track.datagrams import Datagrams
from rocekit.track.events import Event
from rocekit.track.kept import Kept
from rocekit.track.lobby import Flow
from rocekit.track.pairing import Pairing, flow_key
from rocekit.track.pairs.known_pairs import Pair
from rocekit.track.pairs.waiting_rows import WaitingRows
from rocekit.track.suspect_icrcs import Suspect, Suspects
from rocekit.track.transfers import Transfer
from rocekit.wire.mad import Mad, parse_mad
from rocekit.wire.packet_kinds import CNP, DATAGRAM, KINDS, REQUEST, RESPONSE

if TYPE_CHECKING:
    from rocekit.packets import Packets

_GROUP: Final = 64


class Tracker(Pairing):
    """Connections, transfers and CM messages out of packets.

    Args:
        pairs: QP pairs that a journal names.
        on_end: called with every transfer as it ends, while it may still change.
        on_change: called with a transfer at every event that happens to it.
        on_connection: called with every connection as it becomes known.
        on_cm: called with every CM message.
        plain: how many of the transfers to which nothing happened to keep, the slowest; None for all of them.
            Then ``transfers`` is filled by ``finish`` only.

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
    ) -> None:
        super().__init__(pairs, on_connection)
        self.transfers: list[Transfer] = []
        self._kept = None if plain is None else Kept(plain)
        self.left_out: Counter[str] = Counter()
        self._began = 0
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
        self._waiting = WaitingRows()
        self._tail: tuple[Any, Any] = ((), ())

    # ------------------------------------------------------------------ what tracking reports

    def next_id(self) -> int:
        return self._began

    def began(self, transfer: Transfer) -> None:
        self._began += 1
        if self._kept is None:
            self.transfers.append(transfer)
        else:
            self._kept.add(transfer)
        transfer.connection.transfers += 1

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
        chains = self._chains
        chains.begin(rows, int(packets.flow.max()) + 1)
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
                i = chains.takes(i, end)
                if i == end:
                    continue
                self._take(rows, i)
            i += 1
        self._settle_all()
        self._waiting.add(rows, chains.held, self._lobbies.values(), self._by_number)

    def _take(self, r: Rows, i: int) -> None:
        """Hand packet ``i`` to the flow, datagram or exchange that it belongs to."""
        kind = KINDS[r.opcode[i]]
        if kind in (REQUEST, RESPONSE, CNP):
            flow = self._flow(r, i)
            self._settle(flow)
            connection = flow.connection
            if connection is None:
                self._wait(flow, r, i, kind)
            else:
                self._dispatch(flow, connection, r, i, kind)
            if kind == REQUEST:
                self._chains.request(r.flow[i], r.opcode[i])
            partner = flow.partner
            if partner is not None:
                self._expect(flow)
                self._expect(partner)
            elif flow.connection is None and kind == REQUEST:
                self._lobby(flow).go_on(flow, r, i)
        elif kind == DATAGRAM:
            if r.dest_qpn[i] in wire.MAD_QPNS:
                self._settle_all()
                self._management(r, i)
            else:
                self._count(self._datagrams.take(r, i), r, i)

    def forget(self) -> None:
        """Drop the transfers kept so far; those that go on are still reported."""
        if self._kept is not None:
            self._kept.forget()

    # ------------------------------------------------------------------ packets that simply go on

    def _expect(self, flow: Flow) -> None:
        """Note which packet would go on with the message that a paired flow carries (see ``bulk``)."""
        number, connection = flow.number, flow.connection
        if number < 0 or connection is None:
            return
        requests = self._sides[2 * connection.id + flow.side]
        if requests is not None:
            room = requests.room(self._chains.opcode(number))
            self._chains.expect(number, requests.progress.expected, connection.path_mtu or 0, room)

    def _settle(self, flow: Flow) -> None:
        """Hand over the chains of a flow and its partner, in the capture's order."""
        partner = flow.partner
        if partner is None:
            if flow.lobby is not None and flow.connection is None:
                flow.lobby.keep(flow)
            return
        if self._last(flow) < self._last(partner):
            self._go_on(flow)
            self._go_on(partner)
        else:
            self._go_on(partner)
            self._go_on(flow)

    def _part(self, flow: Flow) -> None:
        self._settle_all()
        for gone in (flow, flow.partner):
            if gone is not None and gone.number >= 0:
                self._chains.expect(gone.number, 0, 0, 0)

    def _settle_all(self) -> None:
        numbers = self._chains.open
        for start in range(0, len(numbers), _GROUP):
            group = numbers[start : start + _GROUP]
            if COMPILED:
                self._fetch_flows(group)
            for number in group:
                flow = self._by_number[number]
                assert flow is not None
                self._settle(flow)
        self._chains.open = []

    def _fetch_flows(self, numbers: list[int]) -> None:
        """Read what settling these flows needs: many cache lines are fetched together, not one by one."""
        touched = 0
        for number in numbers:
            flow = self._by_number[number]
            if flow is not None:
                touched ^= flow.side
        for number in numbers:
            flow = self._by_number[number]
            if flow is None:
                continue
            partner, connection = flow.partner, flow.connection
            if partner is not None and connection is not None:
                touched ^= partner.number ^ connection.packets
        for number in numbers:
            flow = self._by_number[number]
            if flow is None or flow.connection is None:
                continue
            requests = self._sides[2 * flow.connection.id + flow.side]
            if requests is not None and requests.ledger.building is not None:
                touched ^= requests.ledger.building.last_ns
        self._touched = touched

    def _last(self, flow: Flow) -> int:
        return self._chains.last(flow.number) if flow.number >= 0 else -1

    def _go_on(self, flow: Flow) -> None:
        last = self._last(flow)
        if last < 0:
            return
        chains, connection = self._chains, flow.connection
        assert connection is not None
        r = chains.rows
        requests = self._sides[2 * connection.id + flow.side]
        assert r is not None
        assert requests is not None
        count = chains.count(flow.number)
        requests.go_on(r, chains.first(flow.number), chains.after, count)
        connection.packets += count
        connection.last_ns = r.time_ns[last]
        chains.clear(flow.number)

    def finish(self) -> None:
        """The capture has ended: settle what is open."""
        suspects = self._suspects.settle(believe=not self._valid)
        self._chains.row = self._chains.size()
        self.icrc_ignored = self.icrc_ignored or bool(suspects)
        for suspect in suspects:
            self._take_suspect(suspect)
        for lobby in self._lobbies.values():
            self._empty(lobby)
        for connection in self.connections:
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
        held = self._suspects.hold(key, packets, i)
        if held:
            self._distrusted.add(key)
            self.icrc_ignored = True
            for suspect in held:
                self._take_suspect(suspect)
        return False

    def _is_known(self, key: int, r: Rows, i: int) -> bool:
        """Whether the packet's flow has had packets with valid ICRCs."""
        if KINDS[r.opcode[i]] != DATAGRAM:
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
        mad = parse_mad(r.payload(i)) if self._mads is None else self._mads.get(r.frame[i])
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
