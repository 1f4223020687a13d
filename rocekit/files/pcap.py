"""Classic pcap files (draft-ietf-opsawg-pcap): a file header, then a header and bytes for each record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from struct import Struct
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from rocekit.errors import CaptureError
from rocekit.files.frames import (
    DAMAGE_LIMIT,
    LARGEST_FRAME,
    RESYNC_LIMIT,
    RESYNC_STEP,
    SUPPORTED_LINKTYPES,
    DamageLog,
    FrameBatch,
    empty_batch,
    fold_linktype,
    unsupported_linktype,
)
from rocekit.files.record_loops import PCAP_COLUMNS, PCAP_RECORD, walk_pcap
from rocekit.files.window import Window

FILE_HEADER = 24

MICROSECONDS_MAGIC, NANOSECONDS_MAGIC = 0xA1B2_C3D4, 0xA1B2_3C4D

#: By the file's first bytes: whether it is big-endian, and the unit of fractions of a second in nanoseconds.
MAGICS = {
    magic.to_bytes(4, "big" if big else "little"): (big, unit_ns)
    for magic, unit_ns in ((MICROSECONDS_MAGIC, 1000), (NANOSECONDS_MAGIC, 1))
    for big in (False, True)
}

_LARGEST_WIRE = 16 << 20
_DAY_S = 86400
_NS = 1_000_000_000

_RESYNC_CHAIN = 3  # records that must follow one another before the first is taken for one


class PcapFrames:
    """The frames of one pcap stream; iterating gives batches, until the stream ends or cannot be read on.

    Args:
        window: the stream, its file header not used yet.
        name: what to call it in errors.
        file: the capture's place among the captures analysed together.
        damage: where to note what cannot be read.
        batch_frames: the most frames in a batch.
        follow: whether the stream may still be written to: then a record without its end is not damage.

    Raises:
        CaptureError: the header is cut short, or its link type cannot carry RoCE.
    """

    def __init__(
        self, window: Window, name: str, file: int, damage: DamageLog, batch_frames: int, follow: bool
    ) -> None:
        self._window = window
        self._file = file
        self._damage = damage
        self._follow = follow
        self.frames = 0
        # A pcap file has one link type, and no room for these.
        self.comments: Mapping[int, tuple[str, ...]] = MappingProxyType({})
        self.skipped: Mapping[int, int] = MappingProxyType({})
        self.dropped: int | None = None
        while window.end - window.start < FILE_HEADER:
            if not window.more() and window.ended:
                raise CaptureError(
                    "the file ends inside the pcap file header", file=name, offset=window.base + window.end
                )
        head = bytes(window.view[window.start : window.start + FILE_HEADER])
        self._big, self._fraction_ns = MAGICS[head[:4]]
        _, self.snaplen, network = Struct(">IIIIII" if self._big else "<IIIIII").unpack(head)[3:]
        self.linktype = fold_linktype(network)
        if self.linktype not in SUPPORTED_LINKTYPES:
            raise unsupported_linktype(self.linktype, name)
        window.start += FILE_HEADER
        self._word = np.dtype(">u4" if self._big else "<u4")
        self._room = batch_frames
        self._headers = np.empty(PCAP_COLUMNS * batch_frames, np.int64)
        self._last_s: int | None = None

    def __iter__(self) -> Iterator[FrameBatch]:
        window = self._window
        headers, room = self._headers.data, self._room
        while True:
            count, window_start = walk_pcap(
                window.view, window.start, window.end, self._big, LARGEST_FRAME, headers, room
            )
            window.start = window_start
            if count:
                yield self._batch(count)
                continue
            caplen = self._caplen(window.start)
            if caplen is not None and caplen > LARGEST_FRAME:
                if not self._resynchronise(f"the record of frame {self.frames + 1} claims {caplen} bytes"):
                    return
            elif not window.more(PCAP_RECORD + (caplen or 0)):
                if not window.ended:
                    yield empty_batch(self._file)
                elif not self._end(caplen):
                    return

    def _caplen(self, place: int) -> int | None:
        """The captured length in the header of the record at ``place``; None if it has not come yet."""
        if self._window.end - place < PCAP_RECORD:
            return None
        head = self._window.view[place + 8 : place + 12]
        return int.from_bytes(head, "big" if self._big else "little")

    def _batch(self, count: int) -> FrameBatch:
        headers = self._headers.reshape(PCAP_COLUMNS, self._room)[:, :count]
        offset, seconds, fraction, caplen, wirelen = headers
        time_ns = seconds * _NS
        time_ns += fraction * self._fraction_ns
        self._last_s = int(seconds[-1])
        number = np.arange(self.frames + 1, self.frames + count + 1, dtype=np.int64)
        self.frames += count
        return FrameBatch(
            file=self._file,
            buffer=self._window.array,
            offset=offset.copy(),
            caplen=caplen.copy(),
            wirelen=wirelen.copy(),
            time_ns=time_ns,
            number=number,
            linktype=np.full(count, self.linktype, np.uint16),
        )

    def _end(self, caplen: int | None) -> bool:
        """Note what is left at the end of the stream. True if more records were found in it."""
        window = self._window
        left = window.end - window.start
        if window.problem is not None:
            self._damage.note(window.base + window.end, f"{window.problem}; read up to frame {self.frames}")
        elif left and not self._follow:
            what = f"the file ends in the middle of frame {self.frames + 1}"
            if caplen is None:
                what += "'s record header"
            else:
                what += f": {left - PCAP_RECORD} of its {caplen} bytes are there"
            return self._resynchronise(what, at_end=True)
        return False

    # -- after damage: find the next plausible record

    def _resynchronise(self, what: str, *, at_end: bool = False) -> bool:
        """Move to the next plausible record after a damaged one. False: none within ``RESYNC_LIMIT``."""
        window = self._window
        bad = window.base + window.start
        window.start += 1
        searched, step = 0, RESYNC_STEP
        while searched < RESYNC_LIMIT and self._damage.total < DAMAGE_LIMIT:
            # Bytes behind the searched ones are needed to follow a chain that starts in them.
            while not window.ended and window.end - window.start < step + LARGEST_FRAME:
                window.more(step + LARGEST_FRAME)
            found = self._plausible(window.start, min(window.start + step, window.end))
            if found is not None:
                window.start = found
                skipped = window.base + found - bad
                self._damage.note(bad, f"{what}; reading goes on {skipped} bytes further")
                return True
            searched += step
            window.start = min(window.start + step, window.end)
            step = min(8 * step, RESYNC_LIMIT // 16)
            if window.start == window.end and window.ended:
                break
        if not at_end:
            what += ", and no record can be found behind it; the rest was not read"
        self._damage.note(bad, what)
        return False

    def _plausible(self, start: int, stop: int) -> int | None:
        """The first place in ``start:stop`` where a chain of plausible records starts."""
        last = min(stop, self._window.end - PCAP_RECORD + 1)
        if last <= start:
            return None
        stretch = self._window.array[start : last + PCAP_RECORD - 1]

        def word(index: int) -> NDArray[np.uint32]:
            return np.ndarray((last - start,), self._word, stretch, offset=4 * index, strides=(1,))

        fraction, caplen, wirelen = word(1), word(2), word(3)
        good = (fraction < _NS // self._fraction_ns) & (caplen <= LARGEST_FRAME)
        good &= (caplen > 0) & (caplen <= wirelen) & (wirelen <= _LARGEST_WIRE)
        if self._last_s is not None:
            # Differences of unsigned numbers wrap: a day on either side is one range.
            near = word(0) - np.uint32((self._last_s - _DAY_S) & 0xFFFFFFFF)
            good &= near <= np.uint32(2 * _DAY_S)
        for place in np.flatnonzero(good):
            if self._chain(start + int(place)):
                return start + int(place)
        return None

    def _chain(self, place: int) -> bool:
        """Whether records follow one another from ``place``, up to the end of the stream or far enough."""
        window = self._window
        unpack = Struct(">IIII" if self._big else "<IIII").unpack_from
        limit = _NS // self._fraction_ns
        for link in range(_RESYNC_CHAIN):
            if place == window.end and window.ended:
                return True
            if place + PCAP_RECORD > window.end:
                return link > 1
            _, fraction, caplen, wirelen = unpack(window.view, place)
            if fraction >= limit or caplen > LARGEST_FRAME or caplen > wirelen or wirelen > _LARGEST_WIRE:
                return False
            place += PCAP_RECORD + caplen
        return True
