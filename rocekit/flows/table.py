"""All one-way flows of a capture, a row each.

:mod:`rocekit.flows.sums` counts packet by packet. Congestion marks, which most captures do not have, are
found here, in whole columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.files.frame_names import FRAME_BITS
from rocekit.flows import MOST_SPANS, RATE_NS
from rocekit.flows.scopes import FlowKey, FlowScopes
from rocekit.flows.sums import UNKNOWN, FlowSums
from rocekit.packets.flow_numbers import ADDRESS_BITS
from rocekit.wire import ACK, CNP_OPCODE, OPCODES, RNR_NAK, make_syndrome, packet_kinds, syndrome_kind
from rocekit.wire.network import DSCP_BITS, ECN_CE
from rocekit.wire.sorting import distinct
from rocekit.wire.sorting import starts as starts_of

if TYPE_CHECKING:
    from rocekit.flows.view import FlowView
    from rocekit.packets import Packets

Ints = NDArray[np.int64]

#: Marks and CNPs of a flow kept one by one; more are only counted.
MAX_KEPT: Final = 10_000
REQUEST, RESPONSE, CNP = "request", "response", "cnp"
#: Names of kinds of packets, by their index in ``_KIND_OF``.
_KINDS: Final = (REQUEST, RESPONSE, CNP)
_VARIED: Final = -2
_MARKS: Final = ("marked", "cnps", "notified", "naks", "rnr_naks")
#: The least syndrome that is not an ACK's.
_REFUSES: Final = make_syndrome(RNR_NAK, 0)
_IS_RNR: Final = np.array([syndrome_kind(s) == RNR_NAK for s in range(256)])
_IS_NAK: Final = np.array([syndrome_kind(s) not in (ACK, RNR_NAK) for s in range(256)])
#: By opcode; the last is that of a packet without one.
_IS_ACK: Final = np.array([o in OPCODES and OPCODES[o].operation == "ACK" for o in range(256)] + [False])


_REQUEST, _RESPONSE, _CNP = range(3)
_INDEX: Final = {packet_kinds.REQUEST: _REQUEST, packet_kinds.RESPONSE: _RESPONSE, packet_kinds.CNP: _CNP}
#: By opcode: an index into ``_KINDS``, −1 of datagrams, of unknown opcodes, and of none (the last).
_KIND_OF: Final = np.array([*(_INDEX.get(kind, -1) for kind in packet_kinds.KINDS), -1])


def reversed_ways(ways: Ints) -> Ints:
    """The opposite of each way (see ``FlowTable.ways``)."""
    return (ways & (1 << ADDRESS_BITS) - 1) << ADDRESS_BITS | ways >> ADDRESS_BITS


class FlowTable:
    """The flows of a capture."""

    def __init__(self) -> None:
        self._addresses: list[str] = []
        self._scopes = FlowScopes()
        self._sums = FlowSums()
        self._marks = {name: np.zeros(0, np.int64) for name in _MARKS}
        self._marked: dict[int, list[tuple[int, int]]] = {}
        self._cnps: dict[int, list[tuple[int, int]]] = {}
        self._rates: dict[int, dict[int, int]] = {}
        self._ecn = False

    def __len__(self) -> int:
        return len(self._used())

    def feed(self, packets: Packets, keep: NDArray[np.bool_]) -> None:
        """Add the packets of a batch that ``keep`` chooses; batches come in order of time."""
        self._addresses = packets.addresses
        self._scopes.feed(packets)
        self._sums.add(packets, keep)
        has_ecn = bool(((packets.ecn != 0) & keep).any() or ((packets.opcode == CNP_OPCODE) & keep).any())
        if has_ecn or ((packets.becn != 0) & keep).any():
            self._note_marks(packets, np.flatnonzero(keep))
        if (packets.syndrome >= _REFUSES).any():
            self._note_refusals(packets, np.flatnonzero(keep & _IS_ACK[packets.opcode]))
        self._ecn = self._ecn or has_ecn
        if self._ecn:
            self._note_rates(packets.flow[keep], packets.time_ns[keep], packets.payload_length[keep])

    def _note_refusals(self, packets: Packets, rows: Ints) -> None:
        """Count NAKs and RNR NAKs."""
        flow, syndrome = packets.flow[rows], packets.syndrome[rows]
        for name, is_one in (("naks", _IS_NAK), ("rnr_naks", _IS_RNR)):
            self._marks[name] = self._marks_of(name)
            self._marks[name] += np.bincount(flow[is_one[syndrome]], minlength=len(self._marks[name]))

    def _note_marks(self, packets: Packets, rows: Ints) -> None:
        flow, kind = packets.flow[rows], _KIND_OF[packets.opcode[rows]]
        frame = packets.frame[rows] + (packets.file[rows].astype(np.int64) << FRAME_BITS)
        is_cnp = kind == _CNP
        marked = (packets.ecn[rows] == ECN_CE) & (packets.payload_length[rows] > 0) & ~is_cnp
        notified = (packets.becn[rows] != 0) & ~is_cnp
        for name, chosen in (("marked", marked), ("cnps", is_cnp), ("notified", notified)):
            self._marks[name] = self._marks_of(name)
            more = np.bincount(flow[chosen], minlength=len(self._marks[name]))
            self._marks[name] += more
        for chosen, lists in ((marked, self._marked), (is_cnp, self._cnps)):
            at = np.flatnonzero(chosen)
            seen = zip(flow[at].tolist(), packets.time_ns[rows[at]].tolist(), frame[at].tolist(), strict=True)
            for number, time_ns, reference in seen:
                kept = lists.setdefault(number, [])
                if len(kept) < MAX_KEPT:
                    kept.append((time_ns, reference))

    def _marks_of(self, name: str) -> Ints:
        """One of ``_MARKS``, a value a flow."""
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
                if len(rate) < MOST_SPANS or at in rate:  # the first ones, as of marks
                    rate[at] = rate.get(at, 0) + n

    # ------------------------------------------------------------------ results

    def heard(self) -> dict[tuple[str, str], int]:
        """By (source, destination address): the time of the last packet."""
        used = self._used()
        if not len(used):
            return {}
        pair = self._pairs()[used]
        order = np.argsort(pair, kind="stable")
        begins = starts_of(pair[order])
        last = np.maximum.reduceat(self.column("last_ns")[used[order]], begins)
        mask = (1 << ADDRESS_BITS) - 1
        return {
            (self._addresses[key >> ADDRESS_BITS], self._addresses[key & mask]): time_ns
            for key, time_ns in zip(pair[order[begins]].tolist(), last.tolist(), strict=True)
        }

    def ways(self) -> Ints:
        """Source and destination of the flows' packets, each two once, sorted; in one number."""
        return distinct(self._pairs()[self._used()])

    def _used(self) -> Ints:
        """The numbers of the flows that have packets here."""
        return np.flatnonzero(self._sums.column("packets"))

    def _pairs(self) -> Ints:
        """Each flow's source and destination address in one number."""
        return self._sums.column("src") << ADDRESS_BITS | self._sums.column("dst")

    def column(self, name: str) -> Ints:
        """One of ``sums.COLUMNS``, or ``marked``, ``cnps``, ``notified``, by flow number."""
        return self._marks_of(name) if name in _MARKS else self._sums.column(name)

    def numbers(self) -> dict[FlowKey, int]:
        """Every flow's number, by its key."""
        names, used = self._addresses, self._used()
        src, dst, qpn = (self._sums.column(name)[used].tolist() for name in ("src", "dst", "qpn"))
        scopes = self._scopes.of(used).tolist()
        return {
            (names[a], names[b], q, scope): number
            for a, b, q, scope, number in zip(src, dst, qpn, scopes, used.tolist(), strict=True)
        }

    def sizes(self) -> Ints:
        """Each flow's payload of packets that do not end their message; −1: no such packet, −2: several."""
        sizes = self.column("size").copy()
        sizes[list(self._sums.sizes)] = _VARIED
        return sizes

    def classes(self, kinds: Sequence[str] = (REQUEST, RESPONSE)) -> tuple[Ints, Ints]:
        """Each flow's lowest and highest DSCP of some kinds of packets; 64 and −1 of a flow without any."""
        flow, opcode, dscp = self._sums.every_kind()
        chosen = np.isin(_KIND_OF[opcode], [_KINDS.index(kind) for kind in kinds])
        flow, dscp = flow[chosen], dscp[chosen]
        flows = len(self._sums.column("packets"))
        low, high = np.full(flows, 1 << DSCP_BITS), np.full(flows, UNKNOWN)
        np.minimum.at(low, flow, dscp)
        np.maximum.at(high, flow, dscp)
        return low, high

    def priorities(self) -> dict[int, set[int]]:
        """By DSCP, the priorities of its VLAN tags; without DSCPs that have no tag."""
        flow, _, dscp = self._sums.every_kind()
        shape = self.column("shape")[flow]
        tagged = (shape >= 0) & (shape >> 8 & 0xFF != 0)
        found: dict[int, set[int]] = {}
        for pair in distinct(dscp[tagged] << 8 | (shape[tagged] >> 8 & 0xFF) - 1).tolist():
            found.setdefault(pair >> 8, set()).add(pair & 0xFF)
        return found

    def requesters(self, least: int = 1) -> Iterator[tuple[str, str, int, list[int], set[int]]]:
        """Of each two addresses in a scope: that scope, frames of RoCE v2 flows' first requests, and ports.

        Args:
            least: without addresses that have fewer flows; a flood has one of each, and very many.
        """
        flow, opcode, _ = self._sums.every_kind()
        shape = self.column("shape")
        has_requests = np.zeros(len(shape), np.bool_)
        has_requests[flow[_KIND_OF[opcode] == _REQUEST]] = True
        newer = shape & 0xFF == 2
        for number, shapes in self._sums.shapes.items():
            newer[number] = any(one & 0xFF == 2 for one in shapes)
        flows = np.flatnonzero(has_requests & newer)
        if not len(flows):
            return
        pair, scope = self._pairs()[flows], self._scopes.of(flows)
        order = np.lexsort((scope, pair)) if scope.any() else np.argsort(pair, kind="stable")
        begins = distinct(np.append(starts_of(pair[order]), starts_of(scope[order])))
        counts = np.diff(begins, append=len(order))
        chosen = counts >= least
        parts = [
            flows[order[at : at + count]]
            for at, count in zip(begins[chosen].tolist(), counts[chosen].tolist(), strict=True)
        ]
        frame, src_of, dst_of = self.column("first_frame"), self.column("src"), self.column("dst")
        is_varied = np.zeros(len(shape), np.bool_)
        is_varied[list(self._sums.shapes)] = True
        scope_of = dict(zip(flows.tolist(), scope.tolist(), strict=True)) if scope.any() else {}
        for part in sorted(parts, key=lambda part: int(part[0])):
            src, dst, own = int(src_of[part[0]]), int(dst_of[part[0]]), scope_of.get(int(part[0]), 0)
            ports = set(distinct(shape[part][shape[part] >= 0] >> 16).tolist())
            for number in part[is_varied[part]].tolist():
                ports |= {one >> 16 for one in self._sums.shapes[number]}
            yield self._addresses[src], self._addresses[dst], own, frame[part].tolist(), ports

    def notified_pairs(self) -> frozenset[tuple[str, str]]:
        """Source and destination addresses of the flows with CNPs or other packets with BECN."""
        marks = self._marks_of("cnps") + self._marks_of("notified")
        return frozenset(name[:2] for name, number in self.numbers().items() if marks[number])

    def with_several_ports(self) -> set[FlowKey]:
        """The names (as in ``numbers``) of RoCE v2 flows with more than one UDP source port."""
        several = {
            number
            for number, shapes in self._sums.shapes.items()
            if len({one >> 16 for one in shapes if one & 0xFF == 2}) > 1
        }
        return {name for name, number in self.numbers().items() if number in several} if several else set()

    def views(self) -> dict[FlowKey, FlowView]:
        """Every flow, by its key."""
        return {name: self.view(number) for name, number in self.numbers().items()}

    def view(self, number: int) -> FlowView:
        """The flow with a number that ``numbers`` gives."""
        # Where no rule asks for a flow, there are only columns.
        from rocekit.flows.view import FlowView

        column = self._sums.row(number)
        marks = {name: int(kept[number]) if number < len(kept) else 0 for name, kept in self._marks.items()}
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
            naks=marks["naks"],
            rnr_naks=marks["rnr_naks"],
            rate=self._rates.get(number, {}),
        )
        self._add_kinds(view, number)
        return view

    def _add_kinds(self, view: FlowView, number: int) -> None:
        """Fill in opcodes and classes, in order of their first packets."""
        for opcode, dscp, n, frame in self._sums.kinds(number):
            view.opcodes[opcode] = view.opcodes.get(opcode, 0) + n
            kind = int(_KIND_OF[opcode])
            if kind >= 0:
                seen = view.dscps.setdefault(_KINDS[kind], {})
                count, first = seen.get(dscp, (0, frame))
                seen[dscp] = (count + n, first)
