"""What each one-way flow looks like, added up from whole columns: a row a flow, however many there are.

What every packet adds to is in ``flow_sums``, which goes over each batch once. Marks of congestion, of which
most captures have none, are found in whole columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rocekit import wire
from rocekit.files.frame_names import FRAME_BITS
from rocekit.flows.sums import DSCP_BITS, UNKNOWN, FlowSums
from rocekit.flows.view import CNP, RATE_NS, REQUEST, RESPONSE, FlowView
from rocekit.wire.arrays import distinct
from rocekit.wire.arrays import starts as starts_of

if TYPE_CHECKING:
    from rocekit.packets import Packets

Ints = NDArray[np.int64]

#: Marks and CNPs of a flow kept one by one; beyond, they are only counted.
MAX_KEPT: Final = 10_000
_CE: Final = 3  # RFC 3168
_KINDS: Final = (REQUEST, RESPONSE, CNP)
_VARIED: Final = -2
_MARKS: Final = ("marked", "cnps", "notified")
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


class FlowTable:
    """The flows of a capture."""

    def __init__(self) -> None:
        self._addresses: list[str] = []
        self._sums = FlowSums()
        self._marks = {name: np.zeros(0, np.int64) for name in _MARKS}
        self._marked: dict[int, list[tuple[int, int]]] = {}
        self._cnps: dict[int, list[tuple[int, int]]] = {}
        self._rates: dict[int, dict[int, int]] = {}
        self._ecn = False

    def __len__(self) -> int:
        return len(self._used())

    def feed(self, packets: Packets, keep: NDArray[np.bool_]) -> None:
        """Take the packets of a batch that are to be kept, later than all before."""
        self._addresses = packets.addresses
        self._sums.add(packets, keep)
        kind = _KIND_OF[packets.opcode]
        has_ecn = bool(((packets.tclass & 3 != 0) & keep).any() or ((kind == 2) & keep).any())
        if has_ecn or (packets.becn[keep] != 0).any():
            self._note_marks(packets, np.flatnonzero(keep))
        self._ecn = self._ecn or has_ecn
        if self._ecn:
            self._note_rates(packets.flow[keep], packets.time_ns[keep], packets.payload_length[keep])

    def _note_marks(self, packets: Packets, rows: Ints) -> None:
        flow, kind = packets.flow[rows], _KIND_OF[packets.opcode[rows]]
        frame = packets.frame[rows] + (packets.file[rows].astype(np.int64) << FRAME_BITS)
        is_cnp = kind == 2
        marked = (packets.tclass[rows] & 3 == _CE) & (packets.payload_length[rows] > 0) & (kind < 2)
        notified = (packets.becn[rows] != 0) & ~is_cnp
        for name, chosen in (("marked", marked), ("cnps", is_cnp), ("notified", notified)):
            self._marks[name] = self._marks_of(name)
            more = np.bincount(flow[chosen], minlength=len(self._marks[name]))
            self._marks[name] += more
        for chosen, lists in ((marked, self._marked), (is_cnp, self._cnps)):
            at = np.flatnonzero(chosen)
            told = zip(flow[at].tolist(), packets.time_ns[rows[at]].tolist(), frame[at].tolist(), strict=True)
            for number, time_ns, reference in told:
                kept = lists.setdefault(number, [])
                if len(kept) < MAX_KEPT:
                    kept.append((time_ns, reference))

    def _marks_of(self, name: str) -> Ints:
        """One of ``_MARKS``, as long as there are rows of flows."""
        marks = self._marks[name]
        return np.append(marks, np.zeros(len(self._sums.column("packets")) - len(marks), np.int64))

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
        used = self._used()
        if not len(used):
            return {}
        pair = self._pairs()[used]
        order = np.argsort(pair, kind="stable")
        begins = starts_of(pair[order])
        last = np.maximum.reduceat(self.column("last_ns")[used[order]], begins)
        mask = (1 << _ADDRESS_BITS) - 1
        return {
            (self._addresses[key >> _ADDRESS_BITS], self._addresses[key & mask]): time_ns
            for key, time_ns in zip(pair[order[begins]].tolist(), last.tolist(), strict=True)
        }

    def _used(self) -> Ints:
        """Numbers of the flows of which packets came here."""
        return np.flatnonzero(self._sums.column("packets"))

    def _pairs(self) -> Ints:
        """Each flow's source and destination in one number."""
        return self._sums.column("src") << _ADDRESS_BITS | self._sums.column("dst")

    def column(self, name: str) -> Ints:
        """One of ``flow_sums.COLUMNS``, or ``marked``, ``cnps``, ``notified``, by flow number."""
        return self._marks_of(name) if name in _MARKS else self._sums.column(name)

    def numbers(self) -> dict[tuple[str, str, int], int]:
        """Every flow's number, by (source address, destination address, destination QPN)."""
        names, used = self._addresses, self._used()
        src, dst, qpn = (self._sums.column(name)[used].tolist() for name in ("src", "dst", "qpn"))
        return {
            (names[a], names[b], q): number
            for a, b, q, number in zip(src, dst, qpn, used.tolist(), strict=True)
        }

    def sizes(self) -> Ints:
        """Each flow's one payload of packets that do not end their message; −1 without any, −2 of several."""
        sizes = self.column("size").copy()
        sizes[list(self._sums.sizes)] = _VARIED
        return sizes

    def classes(self) -> tuple[Ints, Ints]:
        """Each flow's lowest and highest DSCP of requests and responses; above and below all without any."""
        flow, opcode, dscp = self._sums.every_kind()
        told = np.isin(_KIND_OF[opcode], (0, 1))
        flow, dscp = flow[told], dscp[told]
        flows = len(self._sums.column("packets"))
        low, high = np.full(flows, 1 << DSCP_BITS), np.full(flows, UNKNOWN)
        np.minimum.at(low, flow, dscp)
        np.maximum.at(high, flow, dscp)
        return low, high

    def requesters(self) -> Iterator[tuple[str, str, list[int], set[int]]]:
        """Of each two hosts, the RoCE v2 flows that ask: their first requests' frames, and their ports."""
        flow, opcode, _ = self._sums.every_kind()
        shape = self.column("shape")
        asking = np.zeros(len(shape), np.bool_)
        asking[flow[_KIND_OF[opcode] == 0]] = True
        newer = shape & 0xFF == 2
        for number, shapes in self._sums.shapes.items():
            newer[number] = any(one & 0xFF == 2 for one in shapes)
        flows = np.flatnonzero(asking & newer)
        if not len(flows):
            return
        pair = self._pairs()[flows]
        order = np.argsort(pair, kind="stable")
        parts = np.split(flows[order], starts_of(pair[order])[1:])
        frame, varied = self.column("first_frame"), list(self._sums.shapes)
        for part in sorted(parts, key=lambda part: int(part[0])):
            src, dst = int(self.column("src")[part[0]]), int(self.column("dst")[part[0]])
            ports = set(distinct(shape[part][shape[part] >= 0] >> 16).tolist())
            for number in part[np.isin(part, varied)].tolist():
                ports |= {one >> 16 for one in self._sums.shapes[number]}
            yield self._addresses[src], self._addresses[dst], frame[part].tolist(), ports

    def views(self) -> dict[tuple[str, str, int], FlowView]:
        """Every flow, by (source address, destination address, destination QPN)."""
        return {name: self.view(number) for name, number in self.numbers().items()}

    def view(self, number: int) -> FlowView:
        """The flow with a number that ``numbers`` gives."""
        column = self._sums.row(number)
        marks = {name: int(self._marks_of(name)[number]) for name in _MARKS}
        shapes = self._sums.shapes.get(number) or {column["shape"]}
        sizes = self._sums.sizes.get(number)
        if sizes is None:
            sizes = {} if column["size"] < 0 else {column["size"]: column["size_frame"]}
        view = FlowView(
            self._addresses[column["src"]],
            self._addresses[column["dst"]],
            column["qpn"],
            packets=column["packets"],
            payload=column["payload"],
            first_ns=column["first_ns"],
            last_ns=column["last_ns"],
            sports={shape >> 16 for shape in shapes},
            priorities={(shape >> 8 & 0xFF) - 1 for shape in shapes if shape >> 8 & 0xFF},
            roce_versions={shape & 0xFF for shape in shapes},
            full_sizes=sizes,
            first_psn=None if column["first_psn"] == UNKNOWN else column["first_psn"],
            first_frame=column["first_frame"],
            marked=self._marked.get(number, []),
            marked_count=marks["marked"],
            cnps=self._cnps.get(number, []),
            cnp_count=marks["cnps"],
            notified=marks["notified"],
            rate=self._rates.get(number, {}),
        )
        self._tell_kinds(view, number)
        return view

    def _tell_kinds(self, view: FlowView, number: int) -> None:
        """Fill in what packets of what class there were, in order of their first ones."""
        for opcode, dscp, n, frame in self._sums.kinds(number):
            view.opcodes[opcode] = view.opcodes.get(opcode, 0) + n
            kind = int(_KIND_OF[opcode])
            if kind >= 0:
                seen = view.dscps.setdefault(_KINDS[kind], {})
                count, first = seen.get(dscp, (0, frame))
                seen[dscp] = (count + n, first)
