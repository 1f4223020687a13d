"""What each one-way flow looks like, added up from whole columns: a row a flow, however many there are.

A batch is sorted once by flow and by what its packets are; sums and extremes over each flow's rows then go
to arrays that have a place for every flow. Python touches a flow by itself only where something about it
changes, or where congestion is marked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rocekit import wire
from rocekit.arrays import distinct, first_of_each
from rocekit.arrays import starts as starts_of
from rocekit.flow_view import CNP, RATE_NS, REQUEST, RESPONSE, FlowView
from rocekit.transfers import FRAME_BITS

if TYPE_CHECKING:
    from rocekit.decode import Packets

Ints = NDArray[np.int64]

#: Marks and CNPs of a flow kept one by one; beyond, they are only counted.
MAX_KEPT: Final = 10_000
_CE: Final = 3  # RFC 3168
_KINDS: Final = (REQUEST, RESPONSE, CNP)
_PLACE_BITS: Final = 16  # of a packet in what is sorted at once
_DSCP_BITS: Final = 6
_OPCODE_BITS: Final = 8
_UNKNOWN: Final = -1
_VARIED: Final = -2
_ADDRESS_BITS: Final = 32


def _kinds() -> Ints:
    """Kinds of opcode: an index into ``_KINDS``, −1 for datagrams and what is unknown."""
    kinds = np.full(257, -1, np.int64)
    for value, opcode in wire.OPCODES.items():
        if opcode.transport == "CNP":
            kinds[value] = _KINDS.index(CNP)
        elif opcode.transport not in ("UD", "RD"):
            kinds[value] = _KINDS.index(RESPONSE if opcode.response else REQUEST)
    return kinds


_KIND_OF: Final = _kinds()
#: Whether a packet with this opcode is as large as the path MTU: it does not end its message.
_IS_FULL: Final = np.array(
    [v in wire.OPCODES and wire.OPCODES[v].position in (wire.FIRST, wire.MIDDLE) for v in range(257)]
)


class _Tally:
    """How often each of many numbers came, and at which packet and frame first; merged in sorted pieces."""

    def __init__(self) -> None:
        self.keys = np.empty(0, np.int64)
        self.counts = np.empty(0, np.int64)
        self.first = np.empty(0, np.int64)
        self.frame = np.empty(0, np.int64)

    def add(self, keys: Ints, counts: Ints, first: Ints, frame: Ints) -> None:
        """Take sorted ``keys``, each once; later than all before."""
        place = np.searchsorted(self.keys, keys)
        known = place < len(self.keys)
        known[known] = self.keys[place[known]] == keys[known]
        self.counts[place[known]] += counts[known]
        if known.all():
            return
        new = ~known
        merged = np.concatenate([self.keys, keys[new]])
        order = np.argsort(merged)
        self.keys = merged[order]
        self.counts = np.concatenate([self.counts, counts[new]])[order]
        self.first = np.concatenate([self.first, first[new]])[order]
        self.frame = np.concatenate([self.frame, frame[new]])[order]


class FlowTable:
    """The flows of a capture."""

    def __init__(self) -> None:
        self._addresses: list[str] = []
        # Source, destination, QPN by the decoder's number; −1 where none of its packets came here.
        self._flows = np.empty((0, 3), np.int64)
        # By number, a row a flow: see _COLUMNS.
        self._rows = np.empty((len(_COLUMNS), 0), np.int64)
        self._tally = _Tally()
        self._shapes: dict[int, set[int]] = {}
        self._sizes: dict[int, dict[int, int]] = {}
        self._marked: dict[int, list[tuple[int, int]]] = {}
        self._cnps: dict[int, list[tuple[int, int]]] = {}
        self._rates: dict[int, dict[int, int]] = {}
        self._ecn = False
        self._fed = 0

    def __len__(self) -> int:
        return int((self._flows[:, 0] != _UNKNOWN).sum())

    def feed(self, packets: Packets, rows: Ints) -> None:
        """Take the packets at ``rows``, later than all before."""
        self._addresses = packets.addresses
        for start in range(0, len(rows), 1 << _PLACE_BITS):
            self._feed(packets, rows[start : start + (1 << _PLACE_BITS)])

    def _feed(self, packets: Packets, rows: Ints) -> None:
        flow = self._numbers(packets, rows)
        opcode = packets.opcode[rows]
        tclass = packets.tclass[rows]
        kinds = (flow << _OPCODE_BITS | opcode) << _DSCP_BITS | tclass >> 2
        ordered = np.sort(kinds << _PLACE_BITS | np.arange(len(rows)))
        place, kinds = ordered & (1 << _PLACE_BITS) - 1, ordered >> _PLACE_BITS
        frame = packets.frame[rows] + (packets.file[rows].astype(np.int64) << FRAME_BITS)

        starts = starts_of(kinds)
        counts = np.diff(starts, append=len(rows))
        first = place[starts]
        self._tally.add(kinds[starts], counts, first + self._fed, frame[first])
        self._fed += len(rows)

        by_flow = kinds >> (_OPCODE_BITS + _DSCP_BITS)
        starts = starts_of(by_flow)
        flows = by_flow[starts]
        time = packets.time_ns[rows]
        column = dict(zip(_COLUMNS, self._rows, strict=True))
        column["packets"][flows] += np.diff(starts, append=len(rows))
        column["payload"][flows] += np.add.reduceat(
            packets.payload_length[rows][place], starts, dtype=np.int64
        )
        here = time[place]
        fresh = flows[column["first_ns"][flows] == _UNKNOWN]
        if len(fresh):
            column["first_ns"][flows] = np.where(
                column["first_ns"][flows] == _UNKNOWN,
                np.minimum.reduceat(here, starts),
                column["first_ns"][flows],
            )
        column["last_ns"][flows] = np.maximum(column["last_ns"][flows], np.maximum.reduceat(here, starts))

        self._note_first_requests(column, packets, rows, flow, opcode, frame)
        self._note_shapes(column["shape"], flows, starts, packets, rows[place])
        self._note_sizes(column, packets, rows[place], by_flow, opcode[place], frame[place])
        kind = _KIND_OF[opcode]
        has_ecn = bool((tclass & 3).any() or (kind == 2).any())
        if has_ecn or (packets.becn[rows] != 0).any():
            self._note_marks(column, packets, rows, flow, kind, tclass, frame)
        self._ecn = self._ecn or has_ecn
        if self._ecn:
            self._note_rates(flow, time, packets.payload_length[rows])

    def _numbers(self, packets: Packets, rows: Ints) -> Ints:
        """Each packet's flow, by the decoder's number, with a row for it."""
        flow: Ints = packets.flow[rows]
        more = int(flow.max()) + 1 - len(self._flows)
        if more > 0:
            more = max(more, len(self._flows))  # so that growing costs little for each
            self._flows = np.concatenate([self._flows, np.full((more, 3), _UNKNOWN)])
            begin = np.array([[_COLUMNS[name]] for name in _COLUMNS])
            self._rows = np.concatenate([self._rows, np.repeat(begin, more, axis=1)], axis=1)
        strange = np.flatnonzero(self._flows[flow, 0] == _UNKNOWN)
        if len(strange):
            at = rows[strange]
            self._flows[flow[strange]] = np.stack(
                [packets.src[at], packets.dst[at], packets.dest_qpn[at]], axis=1
            )
        return flow

    @staticmethod
    def _note_first_requests(
        column: dict[str, Ints], packets: Packets, rows: Ints, flow: Ints, opcode: Ints, frame: Ints
    ) -> None:
        asks = np.flatnonzero((column["first_psn"][flow] == _UNKNOWN) & (_KIND_OF[opcode] == 0))
        if len(asks):
            flows, at = first_of_each(flow[asks])
            column["first_psn"][flows] = packets.psn[rows[asks[at]]]
            column["first_frame"][flows] = frame[asks[at]]

    def _note_shapes(self, known: Ints, flows: Ints, starts: Ints, packets: Packets, rows: Ints) -> None:
        """UDP source ports, VLAN priorities (one more; 0: untagged) and RoCE versions, in one number."""
        tag = np.where(packets.vlan[rows] >= 0, packets.priority[rows].astype(np.int64) + 1, 0)
        shape = packets.udp_sport[rows].astype(np.int64) << 16 | tag << 8 | packets.roce_version[rows]
        low, high = np.minimum.reduceat(shape, starts), np.maximum.reduceat(shape, starts)
        before = known[flows]
        first = (before == _UNKNOWN) & (low == high)
        known[flows[first]] = low[first]
        ends = np.append(starts[1:], len(rows))
        for i in np.flatnonzero(~first & ((low != high) | (before != low))).tolist():
            number = int(flows[i])
            seen = self._shapes.setdefault(number, {int(before[i])} if before[i] >= 0 else set())
            seen.update(shape[starts[i] : ends[i]].tolist())
            known[number] = low[i] if low[i] == high[i] else _VARIED

    def _note_sizes(
        self,
        column: dict[str, Ints],
        packets: Packets,
        rows: Ints,
        by_flow: Ints,
        opcode: Ints,
        frame: Ints,
    ) -> None:
        """The smallest and the largest payload of packets that do not end their message."""
        full = np.flatnonzero(_IS_FULL[opcode])
        if not len(full):
            return
        of, at = by_flow[full], frame[full]
        size = packets.payload_length[rows[full]].astype(np.int64)
        starts = starts_of(of)
        flows = of[starts]
        low, high = np.minimum.reduceat(size, starts), np.maximum.reduceat(size, starts)
        known, known_frame = column["size"], column["size_frame"]
        before = known[flows]
        first = (before == _UNKNOWN) & (low == high)
        known[flows[first]] = low[first]
        known_frame[flows[first]] = np.minimum.reduceat(at, starts)[first]
        ends = np.append(starts[1:], len(full))
        for i in np.flatnonzero(~first & ((low != high) | (before != low))).tolist():
            number = int(flows[i])
            begun = {int(before[i]): int(known_frame[number])} if before[i] >= 0 else {}
            seen = self._sizes.setdefault(number, begun)
            part = slice(int(starts[i]), int(ends[i]))
            for extreme in dict.fromkeys((int(low[i]), int(high[i]))):
                if extreme not in seen:
                    seen[extreme] = int(at[part][size[part] == extreme].min())
            known[number] = low[i] if low[i] == high[i] else _VARIED

    def _note_marks(
        self,
        column: dict[str, Ints],
        packets: Packets,
        rows: Ints,
        flow: Ints,
        kind: Ints,
        tclass: NDArray[np.uint8],
        frame: Ints,
    ) -> None:
        is_cnp = kind == 2
        marked = (tclass & 3 == _CE) & (packets.payload_length[rows] > 0) & (kind < 2)
        notified = (packets.becn[rows] != 0) & ~is_cnp
        for name, chosen in (("marked", marked), ("cnps", is_cnp), ("notified", notified)):
            column[name] += np.bincount(flow[chosen], minlength=len(self._flows))
        for chosen, lists in ((marked, self._marked), (is_cnp, self._cnps)):
            at = np.flatnonzero(chosen)
            told = zip(flow[at].tolist(), packets.time_ns[rows[at]].tolist(), frame[at].tolist(), strict=True)
            for number, time_ns, reference in told:
                kept = lists.setdefault(number, [])
                if len(kept) < MAX_KEPT:
                    kept.append((time_ns, reference))

    def _note_rates(self, flow: Ints, time: Ints, payload: NDArray[np.int32]) -> None:
        span = time // RATE_NS
        order = np.lexsort((span, flow))
        flow, span = flow[order], span[order]
        starts = np.flatnonzero((np.diff(flow, prepend=-1) != 0) | (np.diff(span, prepend=span[0] - 1) != 0))
        sums = np.add.reduceat(payload[order], starts, dtype=np.int64)
        for number, at, n in zip(flow[starts].tolist(), span[starts].tolist(), sums.tolist(), strict=True):
            if n:
                rate = self._rates.setdefault(number, {})
                rate[at] = rate.get(at, 0) + n

    # ------------------------------------------------------------------ what was seen

    def heard(self) -> dict[tuple[str, str], int]:
        """The last time that any packet went from one address to another."""
        used = np.flatnonzero(self._flows[:, 0] != _UNKNOWN)
        if not len(used):
            return {}
        pair = self._flows[used, 0] << _ADDRESS_BITS | self._flows[used, 1]
        order = np.argsort(pair, kind="stable")
        begins = starts_of(pair[order])
        last = np.maximum.reduceat(self.column("last_ns")[used[order]], begins)
        mask = (1 << _ADDRESS_BITS) - 1
        return {
            (self._addresses[key >> _ADDRESS_BITS], self._addresses[key & mask]): time_ns
            for key, time_ns in zip(pair[order[begins]].tolist(), last.tolist(), strict=True)
        }

    def column(self, name: str) -> Ints:
        """One of ``_COLUMNS``, by flow number."""
        values: Ints = self._rows[list(_COLUMNS).index(name)]
        return values

    def numbers(self) -> dict[tuple[str, str, int], int]:
        """Every flow's number, by (source address, destination address, destination QPN)."""
        names = self._addresses
        return {
            (names[src], names[dst], qpn): number
            for number, (src, dst, qpn) in enumerate(self._flows.tolist())
            if src != _UNKNOWN
        }

    def sizes(self) -> Ints:
        """Each flow's one payload of packets that do not end their message; −1 without any, −2 of several."""
        sizes = self.column("size").copy()
        sizes[list(self._sizes)] = _VARIED
        return sizes

    def classes(self) -> tuple[Ints, Ints]:
        """Each flow's lowest and highest DSCP of requests and responses; above and below all without any."""
        key = self._tally.keys
        key = key[np.isin(_KIND_OF[key >> _DSCP_BITS & (1 << _OPCODE_BITS) - 1], (0, 1))]
        flow, dscp = key >> (_OPCODE_BITS + _DSCP_BITS), key & (1 << _DSCP_BITS) - 1
        low, high = np.full(len(self._flows), 1 << _DSCP_BITS), np.full(len(self._flows), _UNKNOWN)
        np.minimum.at(low, flow, dscp)
        np.maximum.at(high, flow, dscp)
        return low, high

    def requesters(self) -> Iterator[tuple[str, str, list[int], set[int]]]:
        """Of each two hosts, the RoCE v2 flows that ask: their first requests' frames, and their ports."""
        key = self._tally.keys
        asking = np.zeros(len(self._flows), np.bool_)
        asks = _KIND_OF[key >> _DSCP_BITS & (1 << _OPCODE_BITS) - 1] == 0
        asking[key[asks] >> (_OPCODE_BITS + _DSCP_BITS)] = True
        shape = self.column("shape")
        newer = shape & 0xFF == 2
        for number, shapes in self._shapes.items():
            newer[number] = any(one & 0xFF == 2 for one in shapes)
        flows = np.flatnonzero(asking & newer)
        if not len(flows):
            return
        pair = self._flows[flows, 0] << _ADDRESS_BITS | self._flows[flows, 1]
        order = np.argsort(pair, kind="stable")
        parts = np.split(flows[order], starts_of(pair[order])[1:])
        frame, varied = self.column("first_frame"), list(self._shapes)
        for part in sorted(parts, key=lambda part: int(part[0])):
            src, dst = self._flows[part[0], :2].tolist()
            ports = set(distinct(shape[part][shape[part] >= 0] >> 16).tolist())
            for number in part[np.isin(part, varied)].tolist():
                ports |= {one >> 16 for one in self._shapes[number]}
            yield self._addresses[src], self._addresses[dst], frame[part].tolist(), ports

    def views(self) -> dict[tuple[str, str, int], FlowView]:
        """Every flow, by (source address, destination address, destination QPN)."""
        return {name: self.view(number) for name, number in self.numbers().items()}

    def view(self, number: int) -> FlowView:
        """The flow with a number that ``numbers`` gives."""
        src, dst, qpn = self._flows[number].tolist()
        column = dict(zip(_COLUMNS, self._rows[:, number].tolist(), strict=True))
        shapes = self._shapes.get(number) or {column["shape"]}
        sizes = self._sizes.get(number)
        if sizes is None:
            sizes = {} if column["size"] < 0 else {column["size"]: column["size_frame"]}
        view = FlowView(
            self._addresses[src],
            self._addresses[dst],
            qpn,
            packets=column["packets"],
            payload=column["payload"],
            first_ns=column["first_ns"],
            last_ns=column["last_ns"],
            sports={shape >> 16 for shape in shapes},
            priorities={(shape >> 8 & 0xFF) - 1 for shape in shapes if shape >> 8 & 0xFF},
            roce_versions={shape & 0xFF for shape in shapes},
            full_sizes=sizes,
            first_psn=None if column["first_psn"] == _UNKNOWN else column["first_psn"],
            first_frame=column["first_frame"],
            marked=self._marked.get(number, []),
            marked_count=column["marked"],
            cnps=self._cnps.get(number, []),
            cnp_count=column["cnps"],
            notified=column["notified"],
            rate=self._rates.get(number, {}),
        )
        self._tell_kinds(view, number)
        return view

    def _tell_kinds(self, view: FlowView, number: int) -> None:
        """Fill in what packets of what class there were, in order of their first ones."""
        tally = self._tally
        bits = _OPCODE_BITS + _DSCP_BITS
        begin, end = np.searchsorted(tally.keys, [number << bits, number + 1 << bits]).tolist()
        order = begin + np.argsort(tally.first[begin:end], kind="stable")
        for key, n, frame in zip(
            tally.keys[order].tolist(), tally.counts[order].tolist(), tally.frame[order].tolist(), strict=True
        ):
            opcode = key >> _DSCP_BITS & (1 << _OPCODE_BITS) - 1
            dscp = key & (1 << _DSCP_BITS) - 1
            view.opcodes[opcode] = view.opcodes.get(opcode, 0) + n
            kind = int(_KIND_OF[opcode])
            if kind >= 0:
                seen = view.dscps.setdefault(_KINDS[kind], {})
                count, first = seen.get(dscp, (0, frame))
                seen[dscp] = (count + n, first)


#: What stands for each flow, and what it begins with.
_COLUMNS: Final = {
    "packets": 0,
    "payload": 0,
    "first_ns": _UNKNOWN,
    "last_ns": _UNKNOWN,
    "first_psn": _UNKNOWN,
    "first_frame": 0,
    "shape": _UNKNOWN,
    "size": _UNKNOWN,
    "size_frame": 0,
    "marked": 0,
    "cnps": 0,
    "notified": 0,
}
