"""The connections of a live interface as they are now: rates, troubles, findings, in bounded memory.

A `Watch` takes frame batches and gives a `Snapshot` when asked: it has no clock, thread or screen. A trace
keeps every transfer; this keeps counters of each connection, and its recent events.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from rocekit.explanation.contents import NOTHING, Contents
from rocekit.explanation.event_steps import event_step
from rocekit.findings import SEVERITIES, Evidence, Finding
from rocekit.findings.rules import find
from rocekit.findings.story_builder import build_stories
from rocekit.live.letting_go import let_go
from rocekit.packets.decoder import LEFT_OUT, Decoder
from rocekit.packets.hold_back import LiveOrder
from rocekit.track.eviction import MOST_CONNECTIONS, crowd, end_idle
from rocekit.track.rest.resting import Rests
from rocekit.track.tracker import Tracker
from rocekit.track.transfers import ACKED
from rocekit.wire.words import end

if TYPE_CHECKING:
    from rocekit.files.frames import FrameBatch
    from rocekit.packets import Packets
    from rocekit.track.connections import Connection
    from rocekit.track.events import Event
    from rocekit.track.transfers import Transfer

#: The latest troubled transfers, on which a connection's findings are based, and its latest events.
KEPT: Final = 50
#: Snapshots in the graph of the opened connection.
HISTORY: Final = 240
#: Connections whose findings are updated in one snapshot, those first that wait longest. Meanwhile packets
#: wait in the capture's ring.
JUDGED_AT_ONCE: Final = 50


class Line(NamedTuple):
    """One connection now; a tuple, because thousands are made every second.

    Attributes:
        a, b: its ends, as ``10.9.0.1 QP 0x11``.
        bits_per_s: payload, both directions, with what was sent again; packets_per_s: both directions.
        outstanding: PSNs that are not acknowledged yet, both sides.
        round_trip_ns: from the last packet of the last message to its ACK; None while there is none.
        repeated, naks, rnr_naks, cnps, ce_marked, transfers: since the watch started; repeated_per_s: now.
        rules: findings, the worst first; severity: of the worst, or None.
    """

    id: int
    transport: str
    a: str
    b: str
    bits_per_s: float
    packets_per_s: float
    outstanding: int
    round_trip_ns: int | None
    repeated: int
    repeated_per_s: float
    naks: int
    rnr_naks: int
    cnps: int
    ce_marked: int
    transfers: int
    rules: tuple[str, ...]
    severity: str | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All connections at one moment.

    ``time_ns`` is the time of the last packet; rates are over the time since the snapshot before.
    ``nothing``: while there are no RoCE packets, what there is, and what to do. ``evicted``: connections that
    were let go so far.
    """

    time_ns: int
    lines: tuple[Line, ...]
    packets: int
    packets_per_s: float
    bits_per_s: float
    nothing: tuple[str, ...] = ()
    evicted: int = 0


@dataclass(slots=True)
class _Past:
    """What is kept of a connection between snapshots.

    Attributes:
        ends: the addresses and QPNs from which ``names`` and ``flows`` were made: a QPN may become known
            later.
        names: transport and both ends in words; flows: where its payload is counted.
        rules, severity: of ``findings``.
    """

    packets: int = 0
    payload: int = 0
    repeated: int = 0
    round_trip_ns: int | None = None
    ends: tuple[object, ...] = ()
    names: tuple[str, str, str] = ("", "", "")
    flows: tuple[int, ...] = ()
    findings: tuple[Finding, ...] = ()
    rules: tuple[str, ...] = ()
    severity: str | None = None
    troubled: deque[Transfer] | None = None
    events: deque[tuple[Transfer, Event]] | None = None


class Watch:
    """Takes the batches of one capture in order; see the module.

    Args:
        max_connections: of more connections those used last are kept, half as many.
    """

    def __init__(self, max_connections: int = MOST_CONNECTIONS) -> None:
        self._most_connections = max_connections
        self._rests = Rests()
        self._evicted = 0
        self._decoder = Decoder(foreign=LEFT_OUT)
        self._order = LiveOrder()
        self._past: dict[int, _Past] = {}
        self._unjudged: dict[int, Connection] = {}  # by id: in trouble since they were last judged
        self._payload = np.zeros(0, np.int64)  # by flow
        self._flows: dict[tuple[str | None, str | None, int | None, int], int] = {}
        self._tracker = Tracker(plain=0, on_end=self._ended, on_change=self._changed)
        self._packets = 0
        self._last_ns = 0
        self._packets_before = 0
        self._opened: int | None = None
        self.history: deque[Line] = deque(maxlen=HISTORY)

    # ------------------------------------------------------------------ packets

    def feed(self, batch: FrameBatch) -> None:
        packets = self._decoder.decode(batch)
        if not len(packets):
            return
        self._packets += len(packets)
        self._last_ns = max(self._last_ns, int(packets.time_ns.max()))
        self._meter(packets)
        self._track(self._order.take(packets))
        if crowd(self._tracker, self._decoder.numbered) > self._most_connections:
            self._let_go()

    def _let_go(self) -> None:
        """Keep half as many connections as there may be, with what is known of them."""
        self._track(self._order.rest())
        gone = end_idle(self._tracker, self._most_connections // 2)
        evicted = let_go(self._tracker, self._decoder, gone)
        self._evicted += len(evicted.gone)
        kept = evicted.kept
        self._past = {kept[old]: past for old, past in self._past.items() if old in kept}
        self._unjudged = {kept[old]: c for old, c in self._unjudged.items() if old in kept}
        self._opened = None if self._opened is None else kept.get(self._opened)
        self._payload = np.zeros(0, np.int64)
        self._flows.clear()
        for past in self._past.values():
            past.ends, past.flows, past.payload = (), (), 0

    def _track(self, parts: list[Packets]) -> None:
        for packets in parts:
            self._tracker.feed(packets, self._order.mads)

    def _meter(self, packets: Packets) -> None:
        """Add up payload by flow."""
        flow, known = packets.flow, len(self._payload)
        more = int(flow.max()) + 1 - known
        if more > 0:
            self._payload = np.append(self._payload, np.zeros(more, np.int64))
            rows = np.flatnonzero(flow >= known)
            names = packets.addresses
            chosen = (packets.src, packets.dst, packets.dest_qpn, packets.scope, flow)
            columns = (column[rows].tolist() for column in chosen)
            for src, dst, qpn, scope, number in zip(*columns, strict=True):
                self._flows[names[src], names[dst], qpn, scope] = number
        sums = np.bincount(flow, packets.payload_length, len(self._payload))
        self._payload += sums.astype(np.int64)

    def _know(self, connection: Connection, past: _Past, ends: tuple[object, ...]) -> None:
        """Store the names and flows of a connection.

        The flows of UD are all packets to these two QPs, from any sender.
        """
        ways = (connection.way_key(side) for side in (0, 1))
        past.ends, past.flows = ends, tuple(self._flows[way] for way in ways if way in self._flows)
        past.names = (connection.transport, end(connection.end(0)), end(connection.end(1)))

    def _ended(self, transfer: Transfer) -> None:
        if transfer.acked_ns is not None and transfer.status == ACKED:
            self._of(transfer.connection).round_trip_ns = transfer.acked_ns - transfer.last_ns

    def _changed(self, transfer: Transfer, event: Event | None) -> None:
        past = self._of(transfer.connection)
        self._unjudged.setdefault(transfer.connection.id, transfer.connection)
        if past.troubled is None or past.events is None:
            past.troubled, past.events = deque(maxlen=KEPT), deque(maxlen=KEPT)
        if not past.troubled or past.troubled[-1] is not transfer:
            past.troubled.append(transfer)
        if event is not None and not (past.events and past.events[-1][1] is event):
            past.events.append((transfer, event))

    def _of(self, connection: Connection) -> _Past:
        past = self._past.get(connection.id)
        if past is None:
            past = self._past[connection.id] = _Past()
        return past

    # ------------------------------------------------------------------ snapshots

    def open(self, connection: int | None) -> None:
        """From now on keep this connection's lines in ``history``."""
        self._opened = connection
        self.history.clear()

    def snapshot(self, elapsed_s: float) -> Snapshot:
        """Everything now; rates are over ``elapsed_s``, the time since the last snapshot."""
        rate = 1 / elapsed_s if elapsed_s > 0 else 0.0
        self._track(self._order.rest())
        lines = []
        grown = 0
        counted = self._payload.tolist()
        for number in list(self._unjudged)[:JUDGED_AT_ONCE]:
            self._judge(self._unjudged.pop(number), self._past[number])
        for connection in self._tracker.connections:
            past = self._past.get(connection.id) or self._of(connection)
            ends = (*connection.ips, *connection.qpns, *connection.scopes)
            if ends != past.ends or len(past.flows) < 2:
                self._know(connection, past, ends)
            payload = 0
            for flow in past.flows:
                payload += counted[flow]
            line = self._line(connection, past, payload, rate)
            grown += payload - past.payload
            past.payload, past.packets = payload, connection.packets
            past.repeated = connection.retransmitted_packets
            lines.append(line)
            if connection.id == self._opened:
                self.history.append(line)
        # The tracker keeps troubled transfers for a summary at the end; there is none here.
        self._tracker.forget()
        self._rests.look(self._tracker, self._last_ns)
        packets_per_s = (self._packets - self._packets_before) * rate
        self._packets_before = self._packets
        bits_per_s = grown * 8 * rate
        return Snapshot(
            self._last_ns,
            tuple(lines),
            self._packets,
            packets_per_s,
            bits_per_s,
            self._nothing(),
            self._evicted,
        )

    def _nothing(self) -> tuple[str, ...]:
        contents = Contents(self._decoder.counts, live=True)
        return (NOTHING, contents.held(), contents.next_step or "") if contents.is_blank else ()

    def _line(self, connection: Connection, past: _Past, payload: int, rate: float) -> Line:
        outstanding = 0
        for r in connection.progress:
            if r is not None and r.reliable and r.high > r.acked:
                outstanding += r.high - r.acked
        repeated = connection.retransmitted_packets
        return Line(
            connection.id,
            *past.names,
            (payload - past.payload) * 8 * rate,
            (connection.packets - past.packets) * rate,
            outstanding,
            past.round_trip_ns,
            repeated,
            (repeated - past.repeated) * rate,
            connection.naks,
            connection.rnr_naks,
            connection.cnps,
            connection.ce_marked,
            connection.transfers,
            past.rules,
            past.severity,
        )

    def _judge(self, connection: Connection, past: _Past) -> None:
        """Apply the rules to the connection's latest troubles, without the rules on the whole capture."""
        evidence = Evidence(
            connections=[connection],
            transfers=sorted(past.troubled or (), key=lambda t: t.id),
            exchanges=[e for e in self._tracker.cm.exchanges if e.connection is connection],
            counts=self._decoder.counts,
            build_stories=build_stories,
        )
        found = [finding for finding in find(evidence) if finding.connection is connection]
        past.findings = tuple(sorted(found, key=lambda f: SEVERITIES.index(f.severity)))
        past.rules = tuple(dict.fromkeys(finding.rule for finding in past.findings))
        past.severity = past.findings[0].severity if past.findings else None

    def findings(self, connection: int) -> tuple[Finding, ...]:
        """The findings of a connection, as of the last snapshot."""
        past = self._past.get(connection)
        return () if past is None else past.findings

    def recent_events(self, connection: int) -> list[tuple[int, str]]:
        """The recent events of a connection: (time, words), the latest last."""
        past = self._past.get(connection)
        events = () if past is None or past.events is None else past.events
        steps = [event_step(transfer, event) for transfer, event in events]
        return [(step.time_ns, f"{step.what}: {step.detail}") for step in steps]
