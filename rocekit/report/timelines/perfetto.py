"""An analysis as a trace of Perfetto: open it at ui.perfetto.dev, or ask its trace processor in SQL.

A host is a process. A QP is a track with what it sent below it: work requests (or transfers) as slices, waits
and recoveries as slices, packets as instants, outstanding bytes as a counter. The work request, packets, ACK
and completion of one transfer are joined by one flow. Times are the capture's, ns since the epoch.

The messages are those of the package ``perfetto`` (extra ``rocekit[perfetto]``); packets, which are many, are
written as columns (see ``padded_messages``).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.errors import needs_extra
from rocekit.explanation.packet_words import ordinal
from rocekit.explanation.packets import PacketStories
from rocekit.files.frame_names import FRAME_MASK
from rocekit.report.happenings import RNR, TIMEOUT, happenings, journal_times
from rocekit.report.timelines.padded_messages import PaddedMessages, placeholder, varint
from rocekit.wire.opcodes import opcode_words
from rocekit.wire.psn import MASK
from rocekit.wire.words import duration, end, plural, size

if TYPE_CHECKING:
    from rocekit.explanation.results import Results
    from rocekit.report.lanes import Lanes
    from rocekit.track.transfers import Transfer

_SEQUENCE: Final = 1
_CLEARED, _NEEDED = 1, 2
#: Identifiers of tracks and of packets' names have a fixed width, which begins here.
_FIRST_TRACK: Final = 1 << 28
#: Packets of one piece of output.
_PIECE: Final = 100_000
#: The rounds that have names of their own.
_ROUNDS: Final = 5


def need_perfetto() -> Any:
    """The module of Perfetto's messages.

    Raises:
        RocekitError: the package is not installed.
    """
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2
    except ImportError:
        raise needs_extra("export --to perfetto needs", "perfetto", "perfetto") from None
    return perfetto_trace_pb2


@dataclass(slots=True)
class TimelineSlice:
    """Something with a duration on the track of a QP."""

    begin_ns: int
    end_ns: int
    name: str
    flow: int = 0
    notes: dict[str, int | str] = field(default_factory=dict)


def write_perfetto(analysis: Results, stories: PacketStories, lanes: Lanes, out: IO[bytes]) -> int:
    """Write the trace.

    Returns:
        how many packets are in it.

    Raises:
        RocekitError: the package ``perfetto`` is not installed.
    """
    trace = _Trace(need_perfetto(), analysis, out)
    trace.tracks()
    trace.slices()
    trace.counters(lanes)
    return trace.packets(stories)


class _Trace:
    def __init__(self, pb: Any, analysis: Results, out: IO[bytes]) -> None:
        self._pb = pb
        self._analysis = analysis
        self._out = out
        self._next = _FIRST_TRACK
        self._hosts: dict[str, int] = {}
        self._qps: dict[int, int] = {}
        self._sent: dict[int, int] = {}
        self._first = True

    def _put(self, packet: Any) -> None:
        packet.trusted_packet_sequence_id = _SEQUENCE
        packet.sequence_flags = _CLEARED | _NEEDED if self._first else _NEEDED
        self._first = False
        whole = self._pb.Trace()
        whole.packet.append(packet)
        self._out.write(whole.SerializeToString())

    def _track(self, parent: int, name: str, *, rank: int = 0, counter: str = "") -> int:
        self._next += 1
        packet = self._pb.TracePacket()
        track = packet.track_descriptor
        track.uuid, track.parent_uuid, track.name, track.sibling_order_rank = self._next, parent, name, rank
        if counter:
            track.counter.unit_name = counter
        self._put(packet)
        return self._next

    def _host(self, ip: str) -> int:
        if ip not in self._hosts:
            self._next += 1
            packet = self._pb.TracePacket()
            packet.track_descriptor.uuid = self._next
            packet.track_descriptor.process.pid = len(self._hosts) + 1
            packet.track_descriptor.process.process_name = f"host {ip}"
            self._put(packet)
            self._hosts[ip] = self._next
        return self._hosts[ip]

    def tracks(self) -> None:
        """The names of packets, and a track of each QP of each host."""
        names = self._pb.TracePacket()
        for value in range(256):
            name = opcode_words(value)
            for sent in range(_ROUNDS):
                again = "" if sent < 2 else f" ({ordinal(sent)} time)" if sent < _ROUNDS - 1 else " (again)"
                entry = names.interned_data.event_names.add()
                entry.iid, entry.name = _name_id(value, sent), name + again
        for iid, name in enumerate(("frame", "psn", "payload_bytes", "round"), 1):
            entry = names.interned_data.debug_annotation_names.add()
            entry.iid, entry.name = iid, name
        self._put(names)
        for connection in self._analysis.connections:
            for side in (0, 1):
                here, there = connection.end(side), connection.end(1 - side)
                name = f"{connection.transport} {end(here)} → {end(there)} (connection {connection.id})"
                lane = 2 * connection.id + side
                self._qps[lane] = self._track(self._host(str(here["ip"] or "unknown")), name, rank=lane)
                self._sent[lane] = self._track(self._qps[lane], "packets sent", rank=1_000)

    # ------------------------------------------------------------------ slices

    def slices(self) -> None:
        """Work requests (or transfers), waits and recoveries."""
        by_lane: dict[int, list[TimelineSlice]] = {}
        completions: dict[int, list[TimelineSlice]] = {}
        recoveries: dict[int, list[TimelineSlice]] = {}
        for transfer in self._analysis.transfers:
            lane = 2 * transfer.connection.id + transfer.side
            posted, polled = journal_times(transfer, self._analysis)
            by_lane.setdefault(lane, []).append(_of_transfer(transfer, posted, polled))
            if polled is not None and transfer.wc is not None:
                name = f"WC {transfer.wc.wr_id} {transfer.wc.status}"
                completions.setdefault(lane, []).append(TimelineSlice(polled, polled, name, transfer.id + 1))
            for event in transfer.events:
                if event.kind in ("repeat", "response_repeat"):
                    name = f"{plural(event.count, 'packet')} again"
                    notes: dict[str, int | str] = {"psn": event.psn & MASK, "cause": event.cause or ""}
                    until = max(event.last_ns, event.time_ns)
                    recoveries.setdefault(lane, []).append(
                        TimelineSlice(event.time_ns, until, name, 0, notes)
                    )
        waits: dict[int, list[TimelineSlice]] = {}
        for h in happenings(self._analysis):
            if h.kind in (TIMEOUT, RNR) and h.until_ns > h.from_ns:
                what = "RNR wait" if h.kind == RNR else h.label or "timeout"
                name = f"{what} {duration(h.until_ns - h.from_ns)}" if h.kind == RNR else what
                waits.setdefault(h.lane, []).append(TimelineSlice(h.from_ns, h.until_ns, name))
        title = "work requests" if self._analysis.journal is not None else "transfers"
        for found, name, rank in (
            (by_lane, title, 1),
            (waits, "waits", 400),
            (recoveries, "recoveries", 600),
            (completions, "completions", 800),
        ):
            for lane, slices in sorted(found.items()):
                self._stack(self._qps[lane], name, rank, slices)

    def _stack(self, parent: int, name: str, rank: int, slices: list[TimelineSlice]) -> None:
        """Slices that overlap are on tracks of their own: those of one track of Perfetto must nest."""
        tracks: list[int] = []
        free: list[tuple[int, int]] = []
        for one in sorted(slices, key=lambda s: (s.begin_ns, s.end_ns)):
            if free and free[0][0] <= one.begin_ns:
                _, at = heapq.heappop(free)
            else:
                at = len(tracks)
                tracks.append(self._track(parent, name if not at else f"{name} {at + 1}", rank=rank + at))
            heapq.heappush(free, (one.end_ns, at))
            self._slice(tracks[at], one)

    def _slice(self, track: int, one: TimelineSlice) -> None:
        event = self._pb.TrackEvent
        packet = self._pb.TracePacket()
        packet.timestamp = max(one.begin_ns, 0)
        begun = packet.track_event
        begun.type = event.TYPE_SLICE_BEGIN if one.end_ns > one.begin_ns else event.TYPE_INSTANT
        begun.track_uuid, begun.name = track, one.name
        if one.flow:
            begun.flow_ids.append(one.flow)
        for name, value in one.notes.items():
            note = begun.debug_annotations.add()
            note.name = name
            if isinstance(value, int):
                note.int_value = value
            else:
                note.string_value = value
        self._put(packet)
        if one.end_ns > one.begin_ns:
            ended = self._pb.TracePacket()
            ended.timestamp = max(one.end_ns, 0)
            ended.track_event.type, ended.track_event.track_uuid = event.TYPE_SLICE_END, track
            self._put(ended)

    # ---------------------------------------------------------------- columns

    def counters(self, lanes: Lanes) -> None:
        """The bytes outstanding of each requester, where they change."""
        template = self._pb.Trace()
        packet = template.packet.add()
        packet.trusted_packet_sequence_id, packet.sequence_flags = _SEQUENCE, _NEEDED
        packet.timestamp = placeholder(9, 0)
        packet.track_event.type = self._pb.TrackEvent.TYPE_COUNTER
        packet.track_event.track_uuid = placeholder(5, 1)
        packet.track_event.counter_value = placeholder(6, 2)
        marks = {name: varint(placeholder(width, n)) for n, (name, width) in enumerate(_COUNTER.items())}
        messages = PaddedMessages(template.SerializeToString(), marks)
        for lane in range(len(lanes.first) - 1):
            rows = lanes.rows(lane)
            value, time = lanes.outstanding_bytes[rows], lanes.time_ns[rows]
            changed = np.flatnonzero(np.diff(value, prepend=-1))
            if not value.any():
                continue
            track = self._track(self._qps[lane], "outstanding bytes", rank=900, counter="bytes")
            columns = {
                "time": np.maximum(time[changed], 0),
                "track": np.full(len(changed), track),
                "value": np.minimum(np.maximum(value[changed], 0), _MOST_OUTSTANDING),
            }
            self._out.write(messages.fill(columns))

    def packets(self, stories: PacketStories) -> int:
        """Every packet of a connection, on the track of the QP that sent it."""
        p = stories.packets
        rows = np.flatnonzero((stories.connection >= 0) & (stories.sender >= 0) & (p.opcode >= 0))
        tracks = np.zeros(2 * len(self._analysis.connections), np.int64)
        for lane, track in self._sent.items():
            tracks[lane] = track
        for flowing in (True, False):
            messages = self._packet_messages(flowing)
            chosen = rows[(stories.transfer[rows] >= 0) == flowing]
            for start in range(0, len(chosen), _PIECE):
                at = chosen[start : start + _PIECE]
                sent = np.minimum(stories.round[at], _ROUNDS - 1)
                columns: dict[str, NDArray[Any]] = {
                    "time": np.maximum(p.time_ns[at], 0),
                    "track": tracks[2 * stories.connection[at] + stories.sender[at]],
                    "name": _name_id(p.opcode[at], sent),
                    "frame": p.frame[at] & FRAME_MASK,
                    "psn": np.maximum(p.psn[at], 0),
                    "bytes": np.maximum(p.payload_length[at], 0),
                    "round": stories.round[at],
                }
                if flowing:
                    columns["flow"] = stories.transfer[at].astype(np.int64) + 1
                self._out.write(messages.fill(columns, frozenset({"flow"})))
        return len(rows)

    def _packet_messages(self, flowing: bool) -> PaddedMessages:
        template = self._pb.Trace()
        packet = template.packet.add()
        packet.trusted_packet_sequence_id, packet.sequence_flags = _SEQUENCE, _NEEDED
        values = {name: placeholder(width, n) for n, (name, width) in enumerate(_PACKET.items())}
        marks = {name: varint(value) for name, value in values.items()}
        event = packet.track_event
        packet.timestamp, event.track_uuid, event.name_iid = values["time"], values["track"], values["name"]
        event.type = self._pb.TrackEvent.TYPE_INSTANT
        for iid, name in enumerate(("frame", "psn", "bytes", "round"), 1):
            note = event.debug_annotations.add()
            note.name_iid, note.uint_value = iid, values[name]
        if flowing:
            flow = 0x1122334455667788
            event.flow_ids.append(flow)
            marks["flow"] = flow.to_bytes(8, "little")
        return PaddedMessages(template.SerializeToString(), marks)


#: The numbers of a counter's message and of a packet's, with the bytes of their varints.
_COUNTER: Final = {"time": 9, "track": 5, "value": 6}
_MOST_OUTSTANDING: Final = (1 << 7 * _COUNTER["value"]) - 1
_PACKET: Final = {"time": 9, "track": 5, "name": 3, "frame": 6, "psn": 4, "bytes": 5, "round": 4}


def _name_id(opcode: Any, sent: Any) -> Any:
    """The number of the name of packets of this opcode that were sent so often."""
    return (opcode * _ROUNDS + sent) + 1


def _of_transfer(transfer: Transfer, posted: int | None, polled: int | None) -> TimelineSlice:
    begin = transfer.first_ns if posted is None else min(posted, transfer.first_ns)
    until = max(transfer.last_ns, transfer.acked_ns or 0, polled or 0)
    what = f"transfer {transfer.id} {transfer.operation}"
    if transfer.wr is not None:
        what = f"WR {transfer.wr.wr_id} {transfer.wr.opcode}"
    notes: dict[str, int | str] = {
        "transfer": transfer.id,
        "status": transfer.status,
        "bytes": transfer.bytes,
        "first_psn": transfer.first_psn & MASK,
        "last_psn": transfer.last_psn & MASK,
        "retransmitted_packets": transfer.retransmitted_packets,
    }
    return TimelineSlice(begin, until, f"{what} {size(transfer.bytes)}", transfer.id + 1, notes)
