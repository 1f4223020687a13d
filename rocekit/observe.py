"""What whole columns tell beside the tracker: corrupted packets, and what each one-way flow looks like.

The tracker follows messages; a question that needs no order of messages (which classes a flow rides, where
congestion was marked, which ICRCs were wrong, how large full packets are) is answered here with NumPy, a
batch at a time: one sort by flow, then sums and extremes over each flow's rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rocekit import wire
from rocekit.decode import ICRC_INVALID
from rocekit.transfers import FRAME_BITS

if TYPE_CHECKING:
    from rocekit.connections import Connection
    from rocekit.decode import Packets

Ints = NDArray[np.int64]

#: Corrupted packets, marks and CNPs kept one by one; beyond, they are only counted.
MAX_KEPT: Final = 10_000
#: Payload bytes of a flow are added up over spans of this length, to see its rate change.
RATE_NS: Final = 1_000_000

_CE: Final = 3  # RFC 3168
REQUEST, RESPONSE, CNP = "request", "response", "cnp"
_KINDS: Final = (REQUEST, RESPONSE, CNP)


def _table() -> NDArray[np.int64]:
    """Kinds of opcode: an index into ``_KINDS``, −1 for datagrams and what is unknown."""
    kinds = np.full(257, -1, np.int64)
    for value, opcode in wire.OPCODES.items():
        if opcode.transport == "CNP":
            kinds[value] = _KINDS.index(CNP)
        elif opcode.transport not in ("UD", "RD"):
            kinds[value] = _KINDS.index(RESPONSE if opcode.response else REQUEST)
    return kinds


_KIND_OF: Final = _table()
#: Whether a packet with this opcode is as large as the path MTU: it does not end its message.
_IS_FULL: Final = np.array(
    [v in wire.OPCODES and wire.OPCODES[v].position in (wire.FIRST, wire.MIDDLE) for v in range(257)]
)


@dataclass(frozen=True, slots=True)
class BadPacket:
    """A packet with a wrong ICRC, or malformed. What it says may itself be damaged.

    Attributes:
        frame: frame reference.
        malformed: 0, or a code of ``decode.MALFORMED``.
        icrc_wrong: whether the ICRC does not fit.
    """

    frame: int
    time_ns: int
    src: str
    dst: str
    dest_qpn: int
    psn: int
    opcode: int
    malformed: int
    icrc_wrong: bool


@dataclass(slots=True)
class FlowView:
    """One one-way flow: what goes from one address to one QP at another.

    Attributes:
        opcodes: packets by opcode; payload: bytes, repeats included.
        dscps: kind of packet (``request``, ``response``, ``cnp``) to DSCP to (packets, first frame).
        sports: UDP source ports seen; roce_versions.
        full_sizes: payloads of packets that do not end their message, to the first frame with it.
        first_psn, first_frame: of the first request.
        marked: (time, frame) of packets with payload marked CE; marked_count: how many.
        cnps: (time, frame) of CNPs on this flow, which answer marks on the flow the other way; cnp_count.
        notified: packets with BECN that are no CNPs.
        rate: payload bytes by span of ``RATE_NS``; kept from the first ECN-capable packet on.
    """

    src: str
    dst: str
    dest_qpn: int
    packets: int = 0
    opcodes: dict[int, int] = field(default_factory=dict)
    payload: int = 0
    first_ns: int = 0
    last_ns: int = 0
    dscps: dict[str, dict[int, tuple[int, int]]] = field(default_factory=dict)
    sports: set[int] = field(default_factory=set)
    roce_versions: set[int] = field(default_factory=set)
    full_sizes: dict[int, int] = field(default_factory=dict)
    first_psn: int | None = None
    first_frame: int = 0
    marked: list[tuple[int, int]] = field(default_factory=list)
    marked_count: int = 0
    cnps: list[tuple[int, int]] = field(default_factory=list)
    cnp_count: int = 0
    notified: int = 0
    rate: dict[int, int] = field(default_factory=dict)

    def rate_between(self, start_ns: int, end_ns: int) -> float | None:
        """Payload bits per second between two times, by whole spans; None where less than one span lies
        there.
        """
        first, last = -(-start_ns // RATE_NS), end_ns // RATE_NS
        if last <= first:
            return None
        total = sum(n for span, n in self.rate.items() if first <= span < last)
        return total * 8e9 / ((last - first) * RATE_NS)


class Observer:
    """Collects from batches of packets what findings need and the tracker does not keep.

    Attributes:
        first_ns, last_ns: of all RoCE packets.
        bad: packets with wrong ICRCs or malformed, in the capture's order; bad_count: how many there were.
        flows: by (source address, destination address, destination QPN). Management datagrams are left out.
        heard: the last time that any packet went from one address to another.
    """

    def __init__(self) -> None:
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self.bad: list[BadPacket] = []
        self.bad_count = 0
        self.flows: dict[tuple[str, str, int], FlowView] = {}
        self.heard: dict[tuple[str, str], int] = {}
        self._ecn = False

    def flow(self, connection: Connection, side: int) -> FlowView | None:
        """What ``side`` of a connection sends; None where nothing was seen or its peer's QPN is not known."""
        src, dst, qpn = connection.ips[side], connection.ips[1 - side], connection.qpns[1 - side]
        return None if src is None or dst is None or qpn is None else self.flows.get((src, dst, qpn))

    def feed(self, packets: Packets) -> None:
        """Take a batch of packets, later than all before."""
        if not len(packets):
            return
        first, last = int(packets.time_ns.min()), int(packets.time_ns.max())
        self.first_ns = first if self.first_ns is None else min(first, self.first_ns)
        self.last_ns = last if self.last_ns is None else max(last, self.last_ns)
        wrong = (packets.icrc_state == ICRC_INVALID) | (packets.malformed != 0)
        if wrong.any():
            self._note_bad(packets, np.flatnonzero(wrong))
        self._note_flows(packets, wrong)

    def _note_bad(self, packets: Packets, rows: Ints) -> None:
        self.bad_count += len(rows)
        for i in rows[: max(0, MAX_KEPT - len(self.bad))].tolist():
            self.bad.append(
                BadPacket(
                    int(packets.file[i]) << FRAME_BITS | int(packets.frame[i]),
                    int(packets.time_ns[i]),
                    packets.addresses[int(packets.src[i])],
                    packets.addresses[int(packets.dst[i])],
                    int(packets.dest_qpn[i]),
                    int(packets.psn[i]),
                    int(packets.opcode[i]),
                    int(packets.malformed[i]),
                    bool(packets.icrc_state[i] == ICRC_INVALID),
                )
            )

    def _note_flows(self, packets: Packets, wrong: NDArray[np.bool_]) -> None:
        usable = (packets.opcode >= 0) & (packets.dest_qpn > max(wire.MAD_QPNS))
        if int(wrong.sum()) * 2 < len(packets):  # else ICRCs mean nothing here: see the rule icrc-bad
            usable &= ~wrong
        rows = np.flatnonzero(usable)
        if not len(rows):
            return
        key = packets.src[rows].astype(np.int64) << 44 | packets.dst[rows].astype(np.int64) << 24
        key |= packets.dest_qpn[rows]
        order = np.argsort(key, kind="stable")
        rows, key = rows[order], key[order]
        starts = np.flatnonzero(np.diff(key, prepend=key[0] - 1))
        batch = _Batch(packets, rows, starts)
        self._ecn = self._ecn or batch.has_ecn
        for segment, row in enumerate(rows[starts].tolist()):
            src, dst = packets.addresses[int(packets.src[row])], packets.addresses[int(packets.dst[row])]
            qpn = int(packets.dest_qpn[row])
            view = self.flows.get((src, dst, qpn))
            if view is None:
                view = self.flows[src, dst, qpn] = FlowView(src, dst, qpn, first_ns=batch.first_ns[segment])
            batch.add(view, segment, rate=self._ecn)
            self.heard[src, dst] = max(batch.last_ns[segment], self.heard.get((src, dst), 0))


class _Batch:
    """The rows of a batch sorted by flow, and what is the same for each flow's whole segment."""

    def __init__(self, packets: Packets, rows: Ints, starts: Ints) -> None:
        self.bounds = [*starts.tolist(), len(rows)]
        opcode = packets.opcode[rows]
        self.kind = _KIND_OF[opcode]
        self.opcode = opcode
        self.full = _IS_FULL[opcode]
        self.tclass = packets.tclass[rows]
        self.payload = packets.payload_length[rows].astype(np.int64)
        self.time = packets.time_ns[rows]
        self.frame = packets.frame[rows] + (packets.file[rows].astype(np.int64) << FRAME_BITS)
        self.sport = packets.udp_sport[rows]
        self.psn = packets.psn[rows]
        self.version = packets.roce_version[rows]
        self.has_ecn = bool((self.tclass & 3).any() or (self.kind == 2).any())
        self.becn = packets.becn[rows] if self.has_ecn else None
        self.first_ns = np.minimum.reduceat(self.time, starts).tolist()
        self.last_ns = np.maximum.reduceat(self.time, starts).tolist()
        shape = self.sport.astype(np.int64) << 16 | self.version.astype(np.int64) << 8 | (self.tclass >> 2)
        # Sizes that differ, kinds that mix, ports that change: a segment where all is one needs one look
        # only.
        self.plain = (np.minimum.reduceat(shape, starts) == np.maximum.reduceat(shape, starts)).tolist()

    def add(self, view: FlowView, segment: int, *, rate: bool) -> None:
        low, high = self.bounds[segment], self.bounds[segment + 1]
        part = slice(low, high)
        view.packets += high - low
        view.last_ns = max(view.last_ns, self.last_ns[segment])
        view.payload += int(self.payload[part].sum())
        seen = np.bincount(self.opcode[part])
        for opcode in np.flatnonzero(seen).tolist():
            view.opcodes[opcode] = view.opcodes.get(opcode, 0) + int(seen[opcode])
        kind = self.kind[part]
        if self.plain[segment]:
            view.sports.add(int(self.sport[low]))
            view.roce_versions.add(int(self.version[low]))
        else:
            view.sports.update(np.unique(self.sport[part]).tolist())
            view.roce_versions.update(np.unique(self.version[part]).tolist())
        for number, name in enumerate(_KINDS):
            of_kind = kind == number
            n = int(of_kind.sum())
            if n:
                self._add_kind(view, name, low, of_kind, n, plain=self.plain[segment])
        full = np.flatnonzero(self.full[part])
        if len(full):
            sizes = self.payload[part][full]
            for size in {int(sizes.min()), int(sizes.max())}:
                if size not in view.full_sizes:
                    view.full_sizes[size] = int(self.frame[low + int(full[np.argmax(sizes == size)])])
        if self.has_ecn:
            self._add_marks(view, part, kind)
        if rate:
            self._add_rate(view, part)

    def _add_kind(
        self, view: FlowView, name: str, low: int, of_kind: NDArray[np.bool_], n: int, *, plain: bool
    ) -> None:
        first = low + int(np.argmax(of_kind))
        if name == REQUEST and view.first_psn is None:
            view.first_psn, view.first_frame = int(self.psn[first]), int(self.frame[first])
        seen = view.dscps.setdefault(name, {})
        if plain:
            found = [(int(self.tclass[first]) >> 2, n, first)]
        else:
            of = np.flatnonzero(of_kind)
            values, at, counts = np.unique(self.tclass[low + of] >> 2, return_index=True, return_counts=True)
            found = [(int(v), int(c), low + int(of[a])) for v, a, c in zip(values, at, counts, strict=True)]
        for dscp, count, at_row in found:
            before = seen.get(dscp, (0, int(self.frame[at_row])))
            seen[dscp] = (before[0] + count, before[1])

    def _add_marks(self, view: FlowView, part: slice, kind: Ints) -> None:
        low = part.start
        marked = np.flatnonzero((self.tclass[part] & 3 == _CE) & (self.payload[part] > 0) & (kind < 2))
        cnps = np.flatnonzero(kind == 2)
        view.marked_count += len(marked)
        view.cnp_count += len(cnps)
        for rows, kept in ((marked, view.marked), (cnps, view.cnps)):
            for i in rows[: max(0, MAX_KEPT - len(kept))].tolist():
                kept.append((int(self.time[low + i]), int(self.frame[low + i])))
        if self.becn is not None:
            view.notified += int(((self.becn[part] != 0) & (kind != 2)).sum())

    def _add_rate(self, view: FlowView, part: slice) -> None:
        spans = self.time[part] // RATE_NS
        changes = np.flatnonzero(np.diff(spans, prepend=spans[0] - 1))
        sums = np.add.reduceat(self.payload[part], changes)
        for span, n in zip(spans[changes].tolist(), sums.tolist(), strict=True):
            if n:
                view.rate[span] = view.rate.get(span, 0) + n
