"""Frames to packet columns: one row a RoCE packet, one NumPy column a field of ``wire``.

The dissector reads the headers once. It makes columns of the fields that are used most; the BTH and the
headers behind it are kept as words too, from which :class:`rocekit.packets.Packets` derives other columns.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from rocekit.files.frames import CapturePart, FrameBatch
from rocekit.packets import (
    FIELD_HOMES,
    ICRC_INVALID,
    ICRC_UNCHECKED,
    ICRC_VALID,
    KEPT,
    Column,
    Packets,
    empty_packets,
)
from rocekit.packets.dissect import Dissector
from rocekit.packets.dissecting.columns import AROUND, PACKET_COLUMNS
from rocekit.packets.flow_numbers import Addresses, FlowNumbers, PairNumbers
from rocekit.packets.foreign import ForeignPackets
from rocekit.packets.icrc_columns import icrc_columns
from rocekit.packets.malformed import UNKNOWN_OPCODE
from rocekit.packets.other_frames import NOT_ROCE, count_others
from rocekit.packets.witnesses import Witnesses
from rocekit.packets.wrappings import LOOK_AHEAD, Fronts, Wrappings
from rocekit.wire import ICRC_BYTES, VENDOR
from rocekit.wire.byte_rows import gather

if TYPE_CHECKING:
    from rocekit.packets.locations import Locations
    from rocekit.packets.pauses import Pause


@dataclass(slots=True, eq=False, repr=False)
class Counts:
    """Counts of the frames that a decoder has seen.

    Attributes:
        frames: all of them.
        roce_packets: those that became rows.
        truncated_packets: cut by the snaplen, or by a mirror.
        malformed_packets: with a code in ``malformed``.
        bad_icrc, unchecked_icrc: packets whose ICRC is wrong, or was not checked.
        fragments: first fragments (rows) and later ones of UDP datagrams (no rows).
        pause_frames: 802.3 PAUSE and PFC.
        non_roce: all other frames.
        others: every frame that is no RoCE packet by kind (see ``other_frames``), fragments and pause frames
            included.
        cut_packets: RoCE packets cut before the end of their BTH.
        cut_by_mirror: RoCE packets cut before the capture, whose record gives the cut length as the sent one.
    """

    frames: int = 0
    roce_packets: int = 0
    truncated_packets: int = 0
    malformed_packets: int = 0
    bad_icrc: int = 0
    unchecked_icrc: int = 0
    fragments: int = 0
    pause_frames: int = 0
    non_roce: int = 0
    others: dict[str, int] = field(default_factory=dict)
    cut_packets: int = 0
    cut_by_mirror: int = 0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def add(self, packets: Packets, sign: int) -> None:
        """Count packets as RoCE (``sign`` 1) that were counted as foreign, or the other way round (−1)."""
        n = sign * len(packets)
        self.roce_packets += n
        self.non_roce -= n
        foreign = self.others.get(NOT_ROCE, 0) - n
        self.others[NOT_ROCE] = foreign
        if not foreign:
            del self.others[NOT_ROCE]
        self.truncated_packets += sign * int(packets.truncated.sum())
        self.malformed_packets += sign * int((packets.malformed != 0).sum())
        self.fragments += sign * int(packets.fragment.sum())
        self.bad_icrc += sign * int((packets.icrc_state == ICRC_INVALID).sum())
        self.unchecked_icrc += sign * int((packets.icrc_state == ICRC_UNCHECKED).sum())


#: What a decoder does with packets to UDP port 4791 that are no RoCE.
GIVEN: Final = "given"
COUNTED: Final = "counted"
LEFT_OUT: Final = "left out"

#: What is around packets is kept as text: it takes the room of so many addresses.
_OF_A_WRAPPING: Final = 4
#: What is copied in one piece may be so many times as large as its parts.
_WHOLE: Final = 2
_PLAIN: Column = np.zeros(1, np.int32)
#: By opcode; the 257th row (also index −1) is that of a packet without one.
_VENDOR = np.array([*VENDOR, False])
_NO_ROWS = np.empty(0, np.int64)

#: Columns of the dissector that packets keep as they are, and its fields that are packets' columns too.
_AS_FOUND = tuple(name for name in PACKET_COLUMNS if name in KEPT and name not in ("truncated", "fragment"))
_FIELDS = tuple(name for name in PACKET_COLUMNS if name in FIELD_HOMES and name not in KEPT)


class Decoder:
    """Turns batches of frames into packets; addresses, flows and counts continue from batch to batch.

    Args:
        check_icrc: whether to compute every packet's ICRC; if not, all are ``ICRC_UNCHECKED``.
        foreign: what to do with packets to UDP port 4791 that are no RoCE (see ``foreign``): ``GIVEN`` like
            others, ``COUNTED`` (given, but after ``rest`` not counted as RoCE packets), or ``LEFT_OUT``.

    Attributes:
        counts: of the frames so far.
        pauses: the pause frames so far.
        witnesses: ICMP errors, ARP and ND so far.
        others: indices of the last batch's frames that are no RoCE packets.
    """

    def __init__(self, *, check_icrc: bool = True, foreign: str = GIVEN) -> None:
        self.others = _NO_ROWS
        self.counts = Counts()
        self.pauses: list[Pause] = []
        self.witnesses = Witnesses()
        self._check_icrc = check_icrc
        self._foreign = None if foreign == GIVEN else ForeignPackets()
        self._leaves_out = foreign == LEFT_OUT
        self._addresses = Addresses()
        self._dissector = Dissector()
        self._flows = FlowNumbers()
        self._pairs: dict[int, PairNumbers] = {}
        self._wrappings = Wrappings()

    def again(self) -> Decoder:
        """A decoder with the same addresses, flows and wrappings, to decode a capture a second time.

        It counts anew, and gives packets that are no RoCE as well.
        """
        other = Decoder(check_icrc=self._check_icrc)
        other._addresses, other._flows = self._addresses, self._flows
        other._pairs, other._wrappings = self._pairs, self._wrappings
        return other

    @property
    def network(self) -> Locations:
        """Where the packets of the last batch are in its frames."""
        from rocekit.packets.locations import Locations  # for those who change frames

        return Locations.of(self._dissector)

    @property
    def addresses(self) -> list[str]:
        return self._addresses.texts

    def decode(self, batch: FrameBatch) -> Packets:
        """The RoCE packets of a batch, in its order. A malformed one is a row with a code, not an error."""
        dissector = self._dissector
        dissector.run(batch)
        n, found = dissector.count, dissector.columns
        counts = self.counts
        counts.frames += len(batch)
        counts.fragments += dissector.later_fragments
        self.others = _NO_ROWS
        if n < len(batch):
            is_other = np.ones(len(batch), np.bool_)
            is_other[found["index"]] = False
            self.others = np.flatnonzero(is_other)
            paused = self._note_pauses(batch, found["layer"], found["ethertype"])
            self.witnesses.feed(batch, self.others, found["layer"], found["ethertype"])
            counts.pause_frames += paused
            counts.non_roce += len(batch) - n - paused - dissector.later_fragments
            count_others(batch, self.others, found["layer"], found["ethertype"], counts.others)
        if batch.part is not None and n:
            self._keep_part(batch.part, batch.file)
            counts.frames -= n - dissector.count
            n, found = dissector.count, dissector.columns
        counts.roce_packets += n
        if not n:
            return empty_packets(self.addresses)

        counts.truncated_packets += dissector.truncated_count
        counts.malformed_packets += dissector.malformed_count
        counts.fragments += dissector.fragment_count
        src = self._addresses.of(found["source_high"], found["source_low"])
        dst = self._addresses.of(found["destination_high"], found["destination_low"])
        wrapping, scope = np.broadcast_to(_PLAIN, n), None
        if dissector.wrapped:
            wrapping, scope = self._around(batch, found)
        every = n == len(batch)
        columns: dict[str, Column] = {name: found[name] for name in _AS_FOUND}
        columns |= {
            "frame": batch.number if every else batch.number[found["index"]],
            "file": np.full(n, batch.file, np.int32),
            "time_ns": batch.time_ns if every else batch.time_ns[found["index"]],
            "src": src,
            "dst": dst,
            "flow": self._flows.of(src, dst, found["dest_qpn"], scope),
            "encapsulation": wrapping,
            "truncated": found["truncated"].view(np.bool_),
            "fragment": found["fragment"].view(np.bool_),
            "limit": np.minimum(found["limit"], found["end"]),
        }
        columns["icrc"], columns["icrc_state"] = self._icrcs(batch, found)
        if dissector.malformed_count:
            self._clear_vendors(found, columns)
        fields = {name: found[name] for name in _FIELDS}
        around = self._wrappings.every
        packets = Packets(
            columns, found["words"], self.addresses, batch.buffer, found["payload_at"], fields, around
        )
        if dissector.truncated_count:
            counts.cut_packets += int(np.count_nonzero((packets.opcode < 0) & packets.truncated))
            whole = batch.caplen >= batch.wirelen
            if whole.any():
                counts.cut_by_mirror += int(np.count_nonzero(whole[found["index"]] & packets.truncated))
        return packets if self._foreign is None else self._judged(packets, self._foreign)

    def _keep_part(self, part: CapturePart, file: int) -> None:
        """Forget the packets of a batch that are in other parts of the capture. Each file has its own."""
        found = self._dissector.columns
        src = self._addresses.of(found["source_high"], found["source_low"])
        dst = self._addresses.of(found["destination_high"], found["destination_low"])
        ends = np.minimum(src, dst).astype(np.uint64), np.maximum(src, dst).astype(np.uint64)
        pairs = self._pairs.setdefault(file, PairNumbers())
        _keep_packets(self._dissector, pairs.of(*ends) % part.of == part.number - 1)

    def _clear_vendors(self, found: dict[str, Column], columns: dict[str, Column]) -> None:
        """A vendor's opcode is the vendor's to define: it breaks no format, unless its ICRC is wrong."""
        vendors = _VENDOR[found["opcode"]] & (found["malformed"] == UNKNOWN_OPCODE)
        vendors &= columns["icrc_state"] != ICRC_INVALID
        if vendors.any():
            columns["malformed"] = np.where(vendors, 0, found["malformed"]).astype(found["malformed"].dtype)
            self.counts.malformed_packets -= int(vendors.sum())

    def keep_addresses(self, numbers: list[int], scopes: Collection[int] = ()) -> None:
        """Forget all addresses and flows but these addresses, which are numbered anew in this order.

        Args:
            scopes: those that keep their numbers (see ``Wrappings``).
        """
        known = self._addresses._pairs
        high, low = (np.array([half[n] for n in numbers], np.uint64) for half in (known.high, known.low))
        self._addresses, self._flows = Addresses(), FlowNumbers()
        if numbers:
            self._addresses.of(high, low)
        self._wrappings.keep(scopes)
        if self._foreign is not None:
            self._foreign = ForeignPackets()

    @property
    def numbered(self) -> int:
        """How many addresses or flows there are, whatever are more. A wrapping takes as much as four."""
        return max(len(self._addresses.texts), self._flows.count, _OF_A_WRAPPING * len(self._wrappings.every))

    def rest(self) -> Packets | None:
        """At the capture's end, packets that were held back as foreign but are corrupted RoCE packets."""
        packets = None if self._foreign is None else self._foreign.settle()
        if packets is not None:
            self.counts.add(packets, 1)
        return packets

    def _judged(self, packets: Packets, foreign: ForeignPackets) -> Packets:
        mine, left = foreign.split(packets)
        if left is not None:
            self.counts.add(left, -1)
        return mine if self._leaves_out else packets

    def _around(self, batch: FrameBatch, found: dict[str, Column]) -> tuple[Column, Column]:
        """The wrapping and the scope of each packet."""

        wrapped = found["wrapped_row"]

        def fronts(places: Column) -> Fronts:
            rows = wrapped[places]
            index = found["index"][rows]
            begin, start = batch.offset[index], found["start"][rows]
            end = np.minimum(start + LOOK_AHEAD, begin + batch.caplen[index])
            data, lengths, linktypes = batch.buffer.data, end - begin, batch.linktype[index].astype(np.int64)
            first, last = int(begin.min()), int(end.max())
            if last - first <= _WHOLE * int(lengths.sum()):  # nearly all there is: one copy, not thousands
                return Fronts(bytes(data[first:last]), begin - first, end - first, start - begin, linktypes)
            parts = [data[one:behind] for one, behind in zip(begin.tolist(), end.tolist(), strict=True)]
            ends = np.cumsum(lengths)
            return Fronts(b"".join(parts), ends - lengths, ends, start - begin, linktypes)

        wrapping, scope = np.zeros(len(found["bth"]), np.int32), np.zeros(len(found["bth"]), np.int64)
        wrapping[wrapped], scope[wrapped] = self._wrappings.of(found["chain"], found["scope"], fronts)
        return wrapping, scope

    def _icrcs(self, batch: FrameBatch, found: dict[str, Column]) -> tuple[Column, Column]:
        """Each packet's ICRC, 0 if it was not checked, and its state."""
        n = len(found["bth"])
        icrc, state = np.zeros(n, np.uint32), np.full(n, ICRC_UNCHECKED, np.uint8)
        rows = np.flatnonzero(found["checkable"].view(np.bool_)) if self._check_icrc else _NO_ROWS
        if len(rows):
            end = found["end"][rows] - ICRC_BYTES
            sent = gather(batch.buffer, end, ICRC_BYTES).view("<u4")[:, 0]
            computed = icrc_columns(
                batch.buffer, found["start"][rows], found["bth"][rows], end, found["roce_version"][rows] == 2
            )
            icrc[rows] = sent
            state[rows] = np.where(sent == computed, ICRC_VALID, ICRC_INVALID)
        self.counts.bad_icrc += int(np.count_nonzero(state == ICRC_INVALID))
        self.counts.unchecked_icrc += int(np.count_nonzero(state == ICRC_UNCHECKED))
        return icrc, state

    def _note_pauses(self, batch: FrameBatch, layer: Column, ethertype: Column) -> int:
        """Keep the pause frames of a batch; returns how many there are."""
        from rocekit.packets.pauses import MAX_PAUSES, find_pauses, pauses_of

        found = find_pauses(batch, layer, ethertype)
        self.pauses += pauses_of(batch, found[: MAX_PAUSES - len(self.pauses)])
        return len(found)


def _keep_packets(dissector: Dissector, kept: Column) -> None:
    """Forget packets of the batch that a dissector took last, as if their frames had not been there.

    Args:
        kept: whether a packet stays.
    """
    columns = dissector.columns
    wrapped = columns["wrapped_row"]
    around = kept[wrapped]
    places = np.cumsum(kept) - 1
    for name in AROUND:
        columns[name] = columns[name][around]
    columns["wrapped_row"] = places[columns["wrapped_row"]]
    for name in (*PACKET_COLUMNS, "words"):
        columns[name] = columns[name][kept]
    dissector.count, dissector.wrapped = int(kept.sum()), int(around.sum())
    dissector.truncated_count = int(columns["truncated"].sum())
    dissector.malformed_count = int((columns["malformed"] != 0).sum())
    dissector.fragment_count = int(columns["fragment"].sum())
