"""A capture's RoCE packets as frames to send, with :mod:`rocekit.edit.rewrite`'s changes, at any pace.

Frames that cannot be sent as they were are left out and counted: truncated packets, fragments, frames that
are not RoCE.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import numpy as np

from rocekit.craft.pace import Outgoing, Rate
from rocekit.edit.outer import Outer
from rocekit.edit.rewrite import Changes, FrameLayout, rewrite
from rocekit.files.frames import LINKTYPE_ETHERNET, USUAL_LINKTYPES, FrameBatch
from rocekit.files.reader import open_capture
from rocekit.packets import FIELD_HOMES, HAS
from rocekit.packets.decoder import Decoder
from rocekit.packets.locations import Locations
from rocekit.packets.mads import find_mads
from rocekit.wire.encapsulations import KINDS

if TYPE_CHECKING:
    from rocekit.files.reader import CaptureReader
    from rocekit.packets import Packets
    from rocekit.packets.filters import Filter

QPN_BITS: Final = 24
_MAC_BYTES: Final = 6
#: Layers whose addresses are at the very beginning of the frame, and that have no checksum.
_PLAIN: Final = frozenset(KINDS[kind] for kind in ("ethernet", "sll", "sll2", "ip", "vlan"))


@dataclass(slots=True)
class Extent:
    """How much there is to replay.

    Attributes:
        packets, bytes: of the frames; last_ns: about when the last is sent, after the first.
        left_out: how many frames are not replayed, by reason.
        sources, destinations, macs: addresses as captured.
        qps: (address, QPN) that packets name, as destination or source, or in a CM message.
        rkeys: those that packets have.
        first_ns: the first frame's time, since the epoch.
        damage: parts of the capture that could not be read.
    """

    packets: int = 0
    bytes: int = 0
    last_ns: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    sources: set[str] = field(default_factory=set)
    destinations: set[str] = field(default_factory=set)
    macs: set[str] = field(default_factory=set)
    qps: set[tuple[str, int]] = field(default_factory=set)
    rkeys: set[int] = field(default_factory=set)
    first_ns: int = 0
    damage: list[str] = field(default_factory=list)

    def leave_out(self, why: str, count: int) -> None:
        if count:
            self.left_out[why] = self.left_out.get(why, 0) + count


class Replay:
    """The packets of one capture.

    Args:
        path: a capture, or ``-`` for standard input, which is kept in memory.
        chosen: which packets; None: all.
        speed: how much faster than captured; None: as fast as possible.
        rate: this pace instead of the capture's.

    Raises:
        CaptureError: it is no capture.
    """

    def __init__(
        self,
        path: Path,
        changes: Changes,
        *,
        chosen: Filter | None = None,
        speed: float | None = 1.0,
        rate: Rate | None = None,
    ) -> None:
        self._path = path
        self._kept = sys.stdin.buffer.read() if str(path) == "-" else None
        self._changes = changes
        self._chosen = chosen
        self._speed = speed
        self._rate = rate
        self.extent = self._measure()

    @property
    def destinations(self) -> list[str]:
        """Every address that packets go to, after the changes."""
        moved = self._changes.addresses
        return sorted(moved.get(address, address) for address in self.extent.destinations)

    def frames(self) -> Iterator[Outgoing]:
        """The frames with the changes made, in the capture's order."""
        due = 0
        for batch, network, rows, packets in self._batches():
            for row, dst in zip(rows.tolist(), packets.dst.tolist(), strict=True):
                index = int(network.index[row])
                layout = _layout(batch, network, row)
                captured = batch.frame(index)
                frame = rewrite(captured, layout, self._changes)
                if self._rate is None:
                    since = int(batch.time_ns[index]) - self.extent.first_ns
                    # A frame is never sent earlier than the one before, even if the capture's clock went
                    # back.
                    due = max(due, round(since / self._speed) if self._speed else 0)
                outermost = None if layout.outer is None else layout.outer.destination(captured)
                address = packets.addresses[dst] if outermost is None else str(ip_address(outermost))
                yield Outgoing(frame, due, self._changes.addresses.get(address, address))
                if self._rate is not None:
                    due += self._rate.gap_ns(len(frame))

    # ------------------------------------------------------------------ reading

    def _open(self) -> CaptureReader:
        source: str | BinaryIO = str(self._path) if self._kept is None else io.BytesIO(self._kept)
        return open_capture(source)

    def _measure(self) -> Extent:
        extent = Extent()
        first = None
        for batch, network, rows, packets in self._batches(extent):
            if not len(rows):
                continue
            index = network.index[rows]
            times = batch.time_ns[index]
            if first is None:
                first = extent.first_ns = int(times[0])
            extent.packets += len(rows)
            extent.bytes += int(batch.caplen[index].sum())
            extent.last_ns = max(extent.last_ns, int(times.max()) - first)
            extent.sources |= {packets.addresses[i] for i in set(packets.src.tolist())}
            extent.destinations |= {packets.addresses[i] for i in set(packets.dst.tolist())}
            for number in set(packets.encapsulation.tolist()):
                outer = packets.wrappings[number].outer
                extent.sources |= set(outer[::2])
                extent.destinations |= set(outer[1::2])
            _note_names(extent, packets)
            if self._changes.macs:
                for i in index[batch.linktype[index] == LINKTYPE_ETHERNET].tolist():
                    frame = batch.frame(i)
                    extent.macs |= {frame[:_MAC_BYTES].hex(":"), frame[_MAC_BYTES : 2 * _MAC_BYTES].hex(":")}
        if self._rate is not None:
            mean = extent.bytes // max(1, extent.packets)
            extent.last_ns = max(0, extent.packets - 1) * self._rate.gap_ns(mean)
        else:
            extent.last_ns = round(extent.last_ns / self._speed) if self._speed else 0
        return extent

    def _batches(
        self, extent: Extent | None = None
    ) -> Iterator[tuple[FrameBatch, Locations, np.ndarray, Packets]]:
        """Batches with the rows of their networks to replay, and the packets at those rows."""
        decoder = Decoder(check_icrc=False)
        with self._open() as reader:
            for batch in reader:
                packets, network = decoder.decode(batch), decoder.network
                wanted = np.ones(len(packets), np.bool_) if self._chosen is None else self._chosen(packets)
                # A packet that is not complete in the capture cannot be sent.
                whole = (network.end <= network.limit) & ~network.truncated & ~network.fragment
                rows = np.flatnonzero(wanted & whole)
                if extent is not None:
                    extent.leave_out("not RoCE", len(batch) - len(packets))
                    extent.leave_out("a fragment", int((wanted & network.fragment).sum()))
                    extent.leave_out("cut by the snaplen", int((wanted & ~whole & ~network.fragment).sum()))
                yield batch, network, rows, packets.where(rows)
            if extent is not None:
                extent.damage += [str(damage) for damage in reader.damage]


def _note_names(extent: Extent, packets: Packets) -> None:
    """Note the QPs and rkeys of packets, which changes may name."""
    for end, header, qpn in (("dst", "BTH", "dest_qpn"), ("src", "DETH", "src_qpn")):
        rows = packets.has & HAS[header] != 0
        there = np.unique(packets[end][rows].astype(np.int64) << QPN_BITS | packets[qpn][rows])
        extent.qps |= {(packets.addresses[i >> QPN_BITS], i & (1 << QPN_BITS) - 1) for i in there.tolist()}
    for name in ("rkey", "invalidate_rkey"):
        mask = sum(HAS[header.name] for header, _ in FIELD_HOMES[name])
        extent.rkeys |= set(packets[name][packets.has & mask != 0].tolist())
    for i, mad in find_mads(packets):
        for end, key in (("src", "local_qpn"), ("dst", "remote_qpn")):
            number = None if mad.cm is None else mad.cm.fields.get(key)
            if isinstance(number, int) and number:
                extent.qps.add((packets.addresses[packets[end][i]], number))


def _layout(batch: FrameBatch, network: Locations, row: int) -> FrameLayout:
    index = int(network.index[row])
    start, linktype = int(batch.offset[index]), int(batch.linktype[index])
    outer = Outer.of(batch.frame(index), linktype, int(network.start[row]) - start)
    plain = linktype in USUAL_LINKTYPES and all(kind in _PLAIN for kind, _ in outer.layers)
    return FrameLayout(
        int(network.start[row]) - start,
        int(network.bth[row]) - start,
        int(network.end[row]) - start,
        int(network.ip_version[row]),
        int(network.roce_version[row]),
        linktype == LINKTYPE_ETHERNET,
        None if plain else outer,
    )


def peers_of(path: Path) -> dict[tuple[str, int], tuple[str, int]]:
    """The peer of each QP of a capture, by (address, QPN)."""
    from rocekit.analysis import analyze

    found: dict[tuple[str, int], tuple[str, int]] = {}
    for connection in analyze(path, plain=0, check_icrc=False).connections:
        (a, b), (qa, qb) = connection.ips, connection.qpns
        if a is not None and b is not None and qa is not None and qb is not None:
            found |= {(a, qa): (b, qb), (b, qb): (a, qa)}
    return found
