"""Pcapng files (draft-ietf-opsawg-pcapng): sections of blocks, each with its own byte order and interfaces.

:mod:`rocekit.files.pcapng_interface` reads link types and times.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from rocekit.files.frames import (
    DAMAGE_LIMIT,
    RESYNC_LIMIT,
    RESYNC_STEP,
    SECTION_HEADER,
    SUPPORTED_LINKTYPES,
    DamageLog,
    FrameBatch,
    empty_batch,
    fold_linktype,
    unsupported_linktype,
)
from rocekit.files.pcapng_interface import Interface, InterfaceTables, OddPacket, Stretches
from rocekit.files.record_loops import ENHANCED_PACKET, ENHANCED_PACKET_LEAST, walk_enhanced
from rocekit.files.window import Window
from rocekit.machine.limits import BYTE_ORDERS, COMMENT_BYTES, how_to_raise, limit

INTERFACE = 1
PACKET = 2  # obsolete
SIMPLE_PACKET = 3
INTERFACE_STATISTICS = 5

# Every assigned block type; a search after damage takes nothing else for a block.
_KNOWN = (SECTION_HEADER, 1, 2, 3, 4, 5, ENHANCED_PACKET, 7, 8, 9, 10, 0xBAD, 0x40000BAD)

BYTE_ORDER_MAGIC = 0x1A2B3C4D
_ORDERS = {BYTE_ORDER_MAGIC.to_bytes(4, "little"): False, BYTE_ORDER_MAGIC.to_bytes(4, "big"): True}
_SECTION = SECTION_HEADER.to_bytes(4, "big")  # the same in both orders
BLOCK_LEAST = 12  # type, length, length again
_LEAST = {SECTION_HEADER: 28, ENHANCED_PACKET: ENHANCED_PACKET_LEAST}
_PACKET_HEAD = 28  # block type to wire length of an enhanced packet block
LARGEST_BLOCK = 16 << 20  # Wireshark's limit too
_RESYNC_AHEAD = 1 << 20  # longer blocks are not plausible after damage
_REFUSE_AFTER = 10_000  # frames of unsupported link types, if no interface so far has a supported one

OPT_COMMENT = 1
_COMMENT_COSTS = 64  # bytes that a comment takes beside its text
_OPT_END = 0
_OPTIONS_AT_ONCE = 4  # options of packets that are read in bulk, before the rest is read one by one
IF_NAME, IF_TSRESOL, _IF_TSOFFSET = 2, 9, 14
_ISB_IFDROP, ISB_OSDROP = 5, 7


class PcapngFrames:
    """The frames of one pcapng stream; iterating gives batches, until the stream ends or cannot be read on.

    Has the arguments of :class:`rocekit.files.pcap.PcapFrames`. Raises CaptureError if no interface has a
    link type that can have RoCE; if only some have, ``skipped`` counts the others' frames, by link type.
    """

    def __init__(
        self, window: Window, name: str, file: int, damage: DamageLog, batch_frames: int, follow: bool
    ) -> None:
        self._window = window
        self._name = name
        self._file = file
        self._damage = damage
        self._follow = follow
        self.frames = 0
        self.comments: dict[int, tuple[str, ...]] = {}
        self.skipped: dict[int, int] = {}
        self.interfaces: list[Interface] = []
        """The interfaces of the section being read."""
        self._section = 0
        self._changes = 0  # of the byte order
        self._comment_bytes = self._left_comments = 0
        self.reads_comments = True
        self._readable = False
        self._refused: Interface | None = None
        self._drops: dict[tuple[int, int], int] = {}
        self._big: bool | None = None
        self._set_order(False)
        self._places = np.empty(batch_frames, np.int64)
        self._count = 0
        self._odd: dict[int, OddPacket] = {}
        self._tables = InterfaceTables()
        self._stretches = Stretches()

    @property
    def dropped(self) -> int | None:
        """Frames dropped, by the last statistics of each interface; None if there are none."""
        return sum(self._drops.values()) if self._drops else None

    def _set_order(self, big: bool) -> None:
        if big is self._big:  # a file may begin a section at every packet
            return
        self._big = big
        order = ">" if big else "<"
        self._word = np.dtype(order + "u4")
        self._half = np.dtype(order + "u2")
        self._u32 = Struct(order + "I").unpack_from
        self._pair = Struct(order + "II").unpack_from
        self._halves = Struct(order + "HH").unpack_from
        self._u64 = Struct(order + "Q").unpack_from
        self._i64 = Struct(order + "q").unpack_from

    def __iter__(self) -> Iterator[FrameBatch]:
        window = self._window
        while True:
            stop = self._collect()
            if self._count:
                batch = self._batch()
                if len(batch):
                    yield batch
            if stop == "section":
                self._section_header(bool(self._order_of_section(window.start)))
                if self._changes > limit(BYTE_ORDERS):
                    words = f"the byte order changes more than {limit(BYTE_ORDERS):,} times"
                    words = f"{words}: the rest was not read; {how_to_raise(BYTE_ORDERS)}"
                    self._damage.note(window.base + window.start, words)
                    break
            elif stop == "bad":
                if not self._resynchronise("no block can stand here"):
                    break
            elif stop == "part" and not window.more(self._need()):
                if not window.ended:
                    yield empty_batch(self._file)
                elif not self._end():
                    break
        if self._left_comments:
            words = f"more than {limit(COMMENT_BYTES):,} bytes of comments: those of"
            words = f"{words} {self._left_comments:,} frames were left out; {how_to_raise(COMMENT_BYTES)}"
            self._damage.note(window.base + window.start, words)
        if self._refused and not self._readable:
            raise unsupported_linktype(self._refused.linktype, self._name)

    # -- blocks

    def _collect(self) -> str:
        """Walk over blocks and keep the places of packets, up to a batch of them.

        Returns why it stopped: the batch is "full" or must be yielded first, only a "part" of a block has
        come, a "section" header, or something "bad". Only then may bytes move or the byte order change.
        """
        window = self._window
        places = self._places.data
        while self._count < len(places):
            left = window.end - window.start
            if left < BLOCK_LEAST:
                return "part"
            kind, total = self._pair(window.view, window.start)
            if kind == ENHANCED_PACKET:  # to call the loop takes as long as to read two blocks
                before = window.start
                self._count, window.start = walk_enhanced(
                    window.view, window.start, window.end, bool(self._big), places, self._count, len(places)
                )
                if window.start > before:
                    continue
            if kind == SECTION_HEADER:
                big = self._order_of_section(window.start)
                if big is None:
                    return "bad"
                total = Struct(">I" if big else "<I").unpack_from(window.view, window.start + 4)[0]
            if not _is_plausible_length(kind, total):
                return "bad"
            if total > left:
                return "part"
            if kind == SECTION_HEADER:
                if self._count and big != self._big:
                    return "full"  # a batch has one byte order
                if self._count == 0:
                    return "section"
                assert big is not None
                self._section_header(big)
                continue
            if self._u32(window.view, window.start + total - 4)[0] != total:
                return "bad"
            self._block(kind, window.start, window.start + total - 4)
            window.start += total
        return "full"

    def _need(self) -> int:
        """Bytes of the block at the start of the window, or of its head if that has not come yet."""
        window = self._window
        if window.end - window.start < BLOCK_LEAST:
            return BLOCK_LEAST
        big = self._order_of_section(window.start)
        head = window.view[window.start + 4 : window.start + 8]
        return int.from_bytes(head, "big" if (self._big if big is None else big) else "little")

    def _order_of_section(self, place: int) -> bool | None:
        """Whether the section header at ``place`` is big-endian; None if it is not a section header."""
        head = bytes(self._window.view[place : place + BLOCK_LEAST])
        return _ORDERS.get(head[8:]) if head[:4] == _SECTION else None

    def _section_header(self, big: bool) -> None:
        window = self._window
        if self._section and big != self._big:
            self._changes += 1
        self._set_order(big)
        self._section += 1
        self.interfaces = []
        self._stretches.begin(self._count, 0, len(self._tables))
        total = self._u32(window.view, window.start + 4)[0]
        major = self._halves(window.view, window.start + 12)[0]
        at = window.base + window.start
        if major != 1:
            self._damage.note(at, f"a section of pcapng version {major}, read as if it were version 1")
        if self._u32(window.view, window.start + total - 4)[0] != total:
            self._damage.note(at, "the two lengths of a section header differ")
        window.start += total

    def _block(self, kind: int, place: int, end: int) -> None:
        """Use one whole block of another type; its second length stands at ``end``."""
        if kind in (PACKET, SIMPLE_PACKET):
            odd = self._odd_packet(kind, place, end)
            if odd is not None:
                self._odd[self._count] = odd
                self._places[self._count] = 0
                self._count += 1
        elif kind == INTERFACE:
            self._interface(place, end)
        elif kind == INTERFACE_STATISTICS:
            self._statistics(place, end)

    def _odd_packet(self, kind: int, place: int, end: int) -> OddPacket | None:
        """A packet in a simple or an obsolete packet block."""
        view = self._window.view
        data = place + (12 if kind == SIMPLE_PACKET else 28)
        if data > end:
            self._damage.note(
                self._window.base + place, "a packet block too short for its header was left out"
            )
            return None
        if kind == SIMPLE_PACKET:
            wirelen = self._u32(view, place + 8)[0]
            snaplen = self.interfaces[0].snaplen if self.interfaces else 0
            return OddPacket(0, None, min(wirelen, end - data, snaplen or wirelen), wirelen, place, data, end)
        high, low = self._pair(view, place + 12)
        caplen, wirelen = self._pair(view, place + 20)
        return OddPacket(
            self._halves(view, place + 8)[0], high << 32 | low, caplen, wirelen, place, data, end
        )

    def _interface(self, place: int, end: int) -> None:
        view = self._window.view
        if end - place < 16:
            self._damage.note(self._window.base + place, "an interface description too short for its header")
            self._add(Interface(0xFFFF, 0))
            return
        linktype = fold_linktype(self._halves(view, place + 8)[0])
        resolution, offset_s = 6, 0
        if end - place > 16:
            for code, value in self._options(place + 16, end, place):
                if code == IF_TSRESOL and value:
                    resolution = value[0]
                elif code == _IF_TSOFFSET and len(value) >= 8:
                    offset_s = self._i64(value)[0]
        found = Interface(linktype, self._u32(view, place + 12)[0], resolution, offset_s)
        self._add(found)
        if linktype in SUPPORTED_LINKTYPES:
            self._readable = True
        else:
            self._refused = found

    def _add(self, interface: Interface) -> None:
        """The section has one interface more, which only the packets behind it can name."""
        self.interfaces.append(interface)
        self._tables.add(interface)
        self._stretches.begin(self._count, len(self.interfaces), self._stretches.row)

    def _statistics(self, place: int, end: int) -> None:
        if end - place < 20:
            return
        view = self._window.view
        dropped = None
        for code, value in self._options(place + 20, end, place):
            if code in (_ISB_IFDROP, ISB_OSDROP) and len(value) >= 8:
                dropped = (dropped or 0) + self._u64(value)[0]
        if dropped is not None:
            self._drops[self._section, self._u32(view, place + 8)[0]] = dropped

    def _options(self, place: int, end: int, block: int) -> list[tuple[int, bytes]]:
        """Code and value of each option in ``place:end``; one that runs past the end is damage."""
        data, halves = bytes(self._window.view[place:end]), self._halves
        found, at, last = [], 0, end - place - 4
        while at <= last:
            code, size = halves(data, at)
            at += 4
            if code == _OPT_END:
                break
            if size > last + 4 - at:
                self._damage.note(self._window.base + block, f"option {code} runs past the end of its block")
                break
            found.append((code, data[at : at + size]))
            at += size + 3 & ~3
        return found

    # -- packets

    def _batch(self) -> FrameBatch:
        """The packets collected, as columns, without those that cannot be read."""
        count, self._count = self._count, 0
        odd, self._odd = self._odd, {}
        array = self._window.array
        places = self._places[:count].copy()
        head = np.ndarray((len(array) - _PACKET_HEAD + 1,), f"V{_PACKET_HEAD}", array, strides=(1,))
        words = head[places].view(self._word).reshape(count, _PACKET_HEAD // 4)
        interface = words[:, 2].astype(np.int64)
        stamp = words[:, 3].astype(np.uint64) << np.uint64(32) | words[:, 4]
        caplen, wirelen = words[:, 5].astype(np.int64), words[:, 6].astype(np.int64)
        data, end = places + _PACKET_HEAD, places + words[:, 1] - 4
        for index, packet in odd.items():
            interface[index], stamp[index] = packet.interface, packet.stamp or 0
            caplen[index], wirelen[index] = packet.caplen, packet.wirelen
            places[index], data[index], end[index] = packet.block, packet.data, packet.end
        number = np.arange(self.frames + 1, self.frames + count + 1, dtype=np.int64)
        self.frames += count

        tables = self._tables
        tables.build()
        known, row = self._stretches.take(count)
        keep = (interface < known) & (caplen <= end - data)
        if not keep.all():
            self._note_impossible(np.flatnonzero(~keep), places, number, interface, known)
        interface = interface + row
        linktype = np.zeros(count, np.uint16)
        linktype[keep] = tables.linktype[interface[keep]]
        if not tables.all_supported:
            keep &= self._supported(linktype, keep)
        time_ns = np.zeros(count, np.int64)
        time_ns[keep], outside = tables.time_ns(interface[keep], stamp[keep])
        if outside:
            first = int(number[keep][0])
            words_ = (
                f"{outside} times between frames {first} and {number[-1]} are outside the years 1824 to 2116"
            )
            self._damage.note(self._window.base + int(places[0]), words_)
        for index, packet in odd.items():
            if packet.stamp is None:
                time_ns[index] = 0
        self._comments(places, data + (caplen + 3 & ~3), end, number, keep)
        columns = (data, caplen, wirelen, time_ns, number, linktype)
        if not keep.all():
            columns = tuple(column[keep] for column in columns)
        return FrameBatch(self._file, array, *columns)

    def _note_impossible(
        self,
        which: NDArray[np.int64],
        places: NDArray[np.int64],
        number: NDArray[np.int64],
        interface: NDArray[np.int64],
        known: NDArray[np.int64],
    ) -> None:
        for index in which.tolist():
            if interface[index] >= known[index]:
                why = f"names interface {interface[index]}, and there are {known[index]}"
            else:
                why = "claims more bytes than its block has"
            self._damage.note(
                self._window.base + int(places[index]), f"frame {number[index]} {why}: it was left out"
            )

    def _supported(self, linktype: NDArray[np.uint16], keep: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which frames have a link type that can be read; counts the others."""
        good = np.isin(linktype, list(SUPPORTED_LINKTYPES))
        kinds, counts = np.unique(linktype[keep & ~good], return_counts=True)
        for kind, count in zip(kinds.tolist(), counts.tolist(), strict=True):
            self.skipped[kind] = self.skipped.get(kind, 0) + count
        hopeless = self._follow or sum(self.skipped.values()) > _REFUSE_AFTER
        if self._refused and not self._readable and hopeless:
            raise unsupported_linktype(self._refused.linktype, self._name)
        return good

    def _comments(
        self,
        places: NDArray[np.int64],
        options: NDArray[np.int64],
        end: NDArray[np.int64],
        number: NDArray[np.int64],
        keep: NDArray[np.bool_],
    ) -> None:
        """Keep the comments of packets. Few packets have options, and most of those only flags."""
        at = np.flatnonzero(keep & (options + 4 <= end))
        if not len(at) or not self.reads_comments:
            return
        array = self._window.array
        heads = np.ndarray((len(array) - 3,), "V4", array, strides=(1,))
        place = options[at]
        wanted: list[int] = []
        for _ in range(_OPTIONS_AT_ONCE):
            head = heads[place].view(self._half).reshape(-1, 2).astype(np.int64)
            code, size = head[:, 0], head[:, 1]
            stop = (code == OPT_COMMENT) | (place + 4 + size > end[at])
            wanted += at[stop & (code != _OPT_END)].tolist()
            place = place + 4 + (size + 3 & ~3)
            go_on = ~stop & (code != _OPT_END) & (place + 4 <= end[at])
            at, place = at[go_on], place[go_on]
            if not len(at):
                break
        most = limit(COMMENT_BYTES)
        for index in sorted(wanted + at.tolist()):
            if self._comment_bytes > most:
                self._left_comments += 1
                continue
            found = self._options(int(options[index]), int(end[index]), int(places[index]))
            texts = tuple(data.decode("utf-8", "replace") for code, data in found if code == OPT_COMMENT)
            if texts:
                self.comments[int(number[index])] = texts
                self._comment_bytes += sum(map(len, texts)) + _COMMENT_COSTS * len(texts)

    # -- after damage, and at the end

    def _end(self) -> bool:
        """Note what is left at the end of the stream. True if more blocks were found in it."""
        window = self._window
        left = window.end - window.start
        if window.problem is not None:
            self._damage.note(window.base + window.end, f"{window.problem}; read up to frame {self.frames}")
        elif left and not self._follow:
            if left < BLOCK_LEAST:
                words = f"the file ends in the middle of a block, after frame {self.frames}"
            else:
                total = self._need()
                words = (
                    f"the file ends in the middle of a block, after frame {self.frames}: "
                    f"{left} of {total} bytes are there"
                )
            return self._resynchronise(words, at_end=True)
        return False

    def _resynchronise(self, what: str, *, at_end: bool = False) -> bool:
        """Move to the next plausible block after a damaged one. False: none within ``RESYNC_LIMIT``."""
        window = self._window
        bad = window.base + window.start
        window.start += min(4, window.end - window.start)
        searched, step = 0, RESYNC_STEP
        while searched < RESYNC_LIMIT and self._damage.total < DAMAGE_LIMIT:
            while not window.ended and window.end - window.start < step + _RESYNC_AHEAD:
                window.more(step + _RESYNC_AHEAD)
            found = self._plausible(window.start, min(window.start + step, window.end))
            if found is not None:
                window.start = found
                self._damage.note(bad, f"{what}; reading goes on {window.base + found - bad} bytes further")
                return True
            searched += step
            window.start = min(window.start + step, window.end)
            step = min(8 * step, _RESYNC_AHEAD)
            if window.start == window.end and window.ended:
                break
        self._damage.note(
            bad, what if at_end else f"{what}, and none can be found behind it; the rest was not read"
        )
        return False

    def _plausible(self, start: int, stop: int) -> int | None:
        """The first place in ``start:stop`` of a whole block of a known type whose two lengths agree."""
        window = self._window
        last = min(stop, window.end - BLOCK_LEAST + 1)
        if last <= start:
            return None
        stretch = window.array[start : last + 7]
        kinds = np.ndarray((last - start,), self._word, stretch, strides=(1,))
        totals = np.ndarray((last - start,), self._word, stretch, offset=4, strides=(1,))
        likely = (
            np.isin(kinds, _KNOWN) & (totals >= BLOCK_LEAST) & (totals <= _RESYNC_AHEAD) & (totals & 3 == 0)
        )
        likely |= kinds == SECTION_HEADER  # may be of the other byte order
        for index in np.flatnonzero(likely):
            place = start + int(index)
            kind, total = self._pair(window.view, place)
            if kind == SECTION_HEADER:
                big = self._order_of_section(place)
                if big is None:
                    continue
                total = Struct(">I" if big else "<I").unpack_from(window.view, place + 4)[0]
            if _is_plausible_length(kind, total) and place + total <= window.end:
                tail = window.view[place + total - 4 : place + total]
                if tail == window.view[place + 4 : place + 8]:
                    return place
        return None


def _is_plausible_length(kind: int, total: int) -> bool:
    return _LEAST.get(kind, BLOCK_LEAST) <= total <= LARGEST_BLOCK and total & 3 == 0
