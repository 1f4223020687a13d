"""The first bytes that each end of a TCP connection sends, put together from the segments of a capture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.files.frames import (
    LINKTYPE_ETHERNET,
    LINKTYPE_IPV4,
    LINKTYPE_IPV6,
    LINKTYPE_LINUX_SLL,
    LINKTYPE_LINUX_SLL2,
    LINKTYPE_RAW,
)
from rocekit.wire.byte_rows import gather
from rocekit.wire.sorting import distinct, is_among

if TYPE_CHECKING:
    from rocekit.files.frames import FrameBatch

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]

_TCP: Final = 6
_SYN, _ACK = 0x02, 0x10
_MORE_FRAGMENTS, _FRAGMENT_OFFSET = 0x2000, 0x1FFF
_IPV4, _IPV6 = 20, 40
_LEAST_TCP: Final = 20
#: Where the type of the network layer is, and where that layer starts.
_LINKS: Final = {
    LINKTYPE_ETHERNET: (12, 14),
    LINKTYPE_LINUX_SLL: (14, 16),
    LINKTYPE_LINUX_SLL2: (0, 20),
}
_RAW: Final = (LINKTYPE_RAW, LINKTYPE_IPV4, LINKTYPE_IPV6)
_VLANS: Final = np.array([0x8100, 0x88A8], np.int64)
_VERSIONS: Final = {0x0800: 4, 0x86DD: 6}
_SEQUENCE: Final = 1 << 32
#: Directions that are followed at once; the one that was opened first makes room.
MOST_OPEN: Final = 4096
#: Directions that are remembered as no longer followed.
MOST_CLOSED: Final = 1 << 16


@dataclass(slots=True, eq=False)
class Direction:
    """What one end of a TCP connection sent first.

    Attributes:
        sender, receiver: address and port.
        key: of both, for fast comparison.
        start: the sequence number of its first byte.
        data: its first bytes, without a gap.
        waiting: segments behind a gap, by their place.
    """

    sender: bytes
    receiver: bytes
    key: int
    start: int
    data: bytearray = field(default_factory=bytearray)
    waiting: dict[int, bytes] = field(default_factory=dict)

    def take(self, sequence: int, payload: bytes, most: int) -> bool:
        """Add a segment; True if ``data`` has grown."""
        at = (sequence - self.start) % _SEQUENCE
        if at >= _SEQUENCE // 2:  # it begins before the first byte
            payload, at = payload[_SEQUENCE - at :], 0
        if at >= most or at + len(payload) <= len(self.data):
            return False
        if len(payload) > len(self.waiting.get(at, b"")):
            self.waiting[at] = payload[: most - at]
        before = len(self.data)
        for place in sorted(self.waiting):
            if place > len(self.data):
                break
            self.data += self.waiting.pop(place)[len(self.data) - place :]
        return len(self.data) > before

    def kept(self) -> int:
        """The bytes that wait behind a gap."""
        return sum(map(len, self.waiting.values()))


@dataclass(frozen=True, slots=True)
class _Segments:
    """TCP segments with data or SYN: for each its frame, the key of its ends, and where its parts are."""

    rows: Ints
    keys: NDArray[np.uint64]
    version: Ints
    network: Ints
    tcp: Ints
    payload: Ints
    length: Ints
    captured: Ints
    syn: Ints

    def where(self, mask: NDArray[np.bool_]) -> _Segments:
        return _Segments(*(getattr(self, name)[mask] for name in self.__slots__))


class TcpStarts:
    """Follows every TCP direction of a capture until its reader closes it, or bytes are missing for good.

    Args:
        most: so many first bytes of a direction are put together.

    Attributes:
        row: the frame of the batch with which a direction has grown last.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.row = 0
        self._open: dict[bytes, Direction] = {}
        self._closed: dict[int, int] = {}
        self._closed_keys: NDArray[np.uint64] | None = np.empty(0, np.uint64)

    def feed(self, batch: FrameBatch, others: Ints) -> Iterator[Direction]:
        """The directions that grow, each time one does.

        Args:
            others: which frames of the batch are not RoCE.
        """
        if not len(others):
            return
        segments = _segments(batch, others)
        if self._closed_keys is None:
            self._closed_keys = np.fromiter(self._closed, np.uint64, len(self._closed))
        opening = segments.syn > 0
        opened = distinct(segments.keys[opening])
        closed = np.sort(self._closed_keys[~is_among(self._closed_keys, opened)])
        segments = segments.where(opening | ~is_among(segments.keys, closed))
        for i in range(len(segments.rows)):
            grown = self._take(batch.buffer, segments, i)
            if grown is not None:
                self.row = int(segments.rows[i])
                yield grown

    def reverse(self, direction: Direction) -> Direction | None:
        """What the other end sent, if it is followed."""
        return self._open.get(direction.receiver + direction.sender)

    def close(self, direction: Direction) -> None:
        """Stop following a direction."""
        if self._open.get(direction.sender + direction.receiver) is direction:
            del self._open[direction.sender + direction.receiver]
        self._closed[direction.key] = direction.start
        self._closed_keys = None
        if len(self._closed) > MOST_CLOSED:
            for key in list(self._closed)[: MOST_CLOSED // 2]:
                del self._closed[key]

    def _take(self, buffer: Bytes, segments: _Segments, i: int) -> Direction | None:
        key, tcp = int(segments.keys[i]), int(segments.tcp[i])
        length, captured = int(segments.length[i]), int(segments.captured[i])
        sequence = int.from_bytes(buffer[tcp + 4 : tcp + 8].tobytes(), "big")
        syn = int(segments.syn[i])
        if not syn and key in self._closed:
            return None
        sender, receiver = _ends(buffer, int(segments.network[i]), tcp, int(segments.version[i]))
        if syn:
            self._restart(sender, receiver, key, (sequence + 1) % _SEQUENCE, syn)
            return None
        direction = self._open.get(sender + receiver)
        if direction is None:
            direction = self._follow(Direction(sender, receiver, key, sequence))
        start = int(segments.payload[i])
        payload = buffer[start : start + captured].tobytes()
        grown = direction.take(sequence, payload, self._most)
        beyond = (sequence - direction.start) % _SEQUENCE
        if captured < length or direction.kept() > self._most or 2 * self._most < beyond < _SEQUENCE // 2:
            self.close(direction)
        return direction if grown else None

    def _restart(self, sender: bytes, receiver: bytes, key: int, start: int, syn: int) -> None:
        """A SYN opens a new connection between these ends, unless it is a copy of the last one."""
        known = self._open.get(sender + receiver)
        if (self._closed.get(key) if known is None else known.start) == start:
            return
        self._follow(Direction(sender, receiver, key, start))
        if not syn & _ACK:
            self._open.pop(receiver + sender, None)

    def _follow(self, direction: Direction) -> Direction:
        if self._closed.pop(direction.key, None) is not None:
            self._closed_keys = None
        self._open.pop(direction.sender + direction.receiver, None)
        self._open[direction.sender + direction.receiver] = direction
        if len(self._open) > MOST_OPEN:
            oldest = next(iter(self._open.values()))
            if oldest.data:
                self.close(oldest)
            else:
                del self._open[oldest.sender + oldest.receiver]
        return direction


def _segments(batch: FrameBatch, others: Ints) -> _Segments:
    """The TCP segments among some frames that have data or a SYN."""
    rows = others[batch.caplen[others] >= _IPV4 + _LEAST_TCP]
    at, version = _networks(batch, rows)
    parts = [_of_version(batch, rows[version == v], at[version == v], v) for v in (4, 6)]
    joined = _Segments(*(np.concatenate([getattr(p, n) for p in parts]) for n in _Segments.__slots__))
    order = np.argsort(joined.rows, kind="stable")
    return _Segments(*(getattr(joined, name)[order] for name in _Segments.__slots__))


def _networks(batch: FrameBatch, rows: Ints) -> tuple[Ints, Ints]:
    """Where the network layer of each frame starts in the buffer, and its IP version; 0 if it is no IP."""
    at, version = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    links = batch.linktype[rows]
    for link, (kind_at, start) in _LINKS.items():
        here = np.flatnonzero(links == link)
        if not len(here):
            continue
        begin = batch.offset[rows[here]]
        kinds, places = _number(gather(batch.buffer, begin + kind_at, 2)), begin + start
        for _ in range(2):
            tagged = np.isin(kinds, _VLANS)
            if tagged.any():
                kinds[tagged] = _number(gather(batch.buffer, places[tagged] + 2, 2))
                places[tagged] += 4
        at[here] = places
        for kind, number in _VERSIONS.items():
            version[here[kinds == kind]] = number
    here = np.flatnonzero(np.isin(links, _RAW))
    if len(here):
        at[here] = batch.offset[rows[here]]
        version[here] = gather(batch.buffer, at[here], 1)[:, 0] >> 4
    return at, version


def _of_version(batch: FrameBatch, rows: Ints, at: Ints, version: int) -> _Segments:
    header = _IPV4 if version == 4 else _IPV6
    end = batch.offset[rows] + batch.caplen[rows]
    fits = at + header + _LEAST_TCP <= end
    rows, at, end = rows[fits], at[fits], end[fits]
    ip = gather(batch.buffer, at, header)
    if version == 4:
        size = (ip[:, 0].astype(np.int64) & 15) * 4
        whole = _number(ip[:, 6:8]) & (_MORE_FRAGMENTS | _FRAGMENT_OFFSET) == 0
        is_tcp = (ip[:, 0] >> 4 == 4) & (size >= _IPV4) & (ip[:, 9] == _TCP) & whole
        length, ends = _number(ip[:, 2:4]), ip[:, 12:20]
    else:
        size = np.full(len(rows), _IPV6, np.int64)
        is_tcp = (ip[:, 0] >> 4 == 6) & (ip[:, 6] == _TCP)
        length, ends = _number(ip[:, 4:6]) + _IPV6, ip[:, 8:40]
    tcp = at + size
    is_tcp &= tcp + _LEAST_TCP <= end
    rows, at, end, tcp, length, size, ends = (x[is_tcp] for x in (rows, at, end, tcp, length, size, ends))
    head = gather(batch.buffer, tcp, _LEAST_TCP)
    payload = tcp + (head[:, 12].astype(np.int64) >> 4) * 4
    carried = at + length - payload
    captured = np.clip(np.minimum(carried, end - payload), 0, None)
    flags = head[:, 13].astype(np.int64)
    syn = np.where(flags & _SYN, flags, 0)
    found = _Segments(
        rows, _keys(np.hstack((ends, head[:, :4]))), np.full(len(rows), version, np.int64), at, tcp, payload,
        carried, captured, syn,
    )  # fmt: skip
    return found.where((payload >= tcp + _LEAST_TCP) & ((carried > 0) | (syn > 0)))


def _number(columns: Bytes) -> Ints:
    """Two columns of bytes as big-endian numbers."""
    return columns[:, 0].astype(np.int64) << 8 | columns[:, 1]


def _keys(ends: Bytes) -> NDArray[np.uint64]:
    """Rows of addresses and ports as numbers that differ where rows differ, but for accidents of 2^-64."""
    keys = np.zeros(len(ends), np.uint64)
    for at in range(0, ends.shape[1], 4):
        word = np.ascontiguousarray(ends[:, at : at + 4]).view(">u4")[:, 0].astype(np.uint64)
        keys = (keys ^ word) * np.uint64(0x9E3779B97F4A7C15)
        keys ^= keys >> np.uint64(29)
    return keys


def _ends(buffer: Bytes, network: int, tcp: int, version: int) -> tuple[bytes, bytes]:
    """(address and port of the sender, of the receiver)."""
    first, width = (12, 4) if version == 4 else (8, 16)
    addresses = buffer[network + first : network + first + 2 * width].tobytes()
    ports = buffer[tcp : tcp + 4].tobytes()
    return addresses[:width] + ports[:2], addresses[width:] + ports[2:]
