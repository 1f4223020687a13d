# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Find the RoCE packets in frames: link header, IP, UDP, BTH and the headers behind it, in one pass.

Most frames are plain, and taken the short way (``plain_frames``). Others of the usual links are first read as
frames with VLAN tags at most. Those in which this finds no packet are searched by the walk over tunnels,
labels and other links (``walk``).

A packet's end comes from the lengths in its headers, never from the frame's length: short Ethernet frames are
padded, and some captures keep the frame check sequence. Every read stops at the end of the buffer, whatever
a header claims, and rows are written in order: so the compiled loop needs no checks of its own.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from rocekit import wire
from rocekit.files.frames import (
    LINKTYPE_ETHERNET,
    LINKTYPE_LINUX_SLL,
    LINKTYPE_LINUX_SLL2,
    FrameBatch,
    empty_batch,
)
from rocekit.packets import (
    BLOCK_WORDS,
    HAS,
    HEADERS_BYTES,
    PLACE_WORDS,
)
from rocekit.packets import malformed as faults
from rocekit.packets.dissecting.columns import link_numbers, table, trim
from rocekit.packets.dissecting.plain_frames import PlainFrames
from rocekit.packets.rows import COMPILED
from rocekit.packets.walk import Walk
from rocekit.wire import encapsulations, network

try:
    import cython
except ImportError:
    from rocekit import _cython as cython

_NO_BYTES: Final = b""

_IPV4: Final = network.ETHERTYPE_IPV4
_IPV6: Final = network.ETHERTYPE_IPV6
_ROCE_V1: Final = wire.ROCE_V1_ETHERTYPE
_TAG, _OUTER_TAG, _OLD_TAG = network.VLAN_ETHERTYPES
_ETHERNET: Final = LINKTYPE_ETHERNET
_SLL: Final = LINKTYPE_LINUX_SLL
_SLL2: Final = LINKTYPE_LINUX_SLL2
_IPV4_KIND: Final = encapsulations.KINDS["ipv4"]
_IPV6_KIND: Final = encapsulations.KINDS["ipv6"]

_IPV4_BYTES: Final = network.IPV4_BYTES
_IPV6_BYTES: Final = network.IPV6_BYTES
_UDP: Final = network.UDP_PROTOCOL
_UDP_BYTES: Final = network.UDP_BYTES
_PORT: Final = wire.ROCE_UDP_PORT
# RFC 8200, 4: hop-by-hop, routing, fragment and destination options headers.
_HOP_BY_HOP, _ROUTING, _FRAGMENT, _OPTIONS = 0, 43, 44, 60
_MOST_EXTENSIONS: Final = 64
_GRH_BYTES: Final = wire.GRH.length
_GRH_NEXT_BTH: Final = wire.GRH_NEXT_BTH
_MAPPED: Final = network.MAPPED

_CUT: Final = faults.CUT
_SHORT: Final = faults.SHORT
_IP_LENGTH: Final = faults.IP_LENGTH
_UDP_LENGTH: Final = faults.UDP_LENGTH
_PAD: Final = faults.PAD
_UNKNOWN_OPCODE: Final = faults.UNKNOWN_OPCODE
_PAYLOAD: Final = faults.PAYLOAD
_CHECKSUM: Final = faults.CHECKSUM
_VERSION: Final = faults.VERSION
_GRH_VERSION: Final = faults.GRH_VERSION

_BTH_BYTES: Final = wire.BTH.length
_QPN_MASK: Final = (1 << wire.QPN_BITS) - 1
_PSN_MASK: Final = (1 << wire.PSN_BITS) - 1
_ICRC_BYTES: Final = wire.ICRC_BYTES
_NO_OPCODE: Final = 256  #: the row of a packet without one in the tables by opcode
_WORDS: Final = BLOCK_WORDS
_ROWS: Final = len(HEADERS_BYTES)
_KINDS_OF_HEADERS: Final = len(PLACE_WORDS)
_HAS_GRH: Final = HAS["GRH"]


def _join(first: int, second: int, third: int, fourth: int) -> int:
    return first << 24 | second << 16 | third << 8 | fourth


def _long(high: int, low: int) -> int:
    return high << 32 | low


def _is_tag(ethertype: int) -> bool:
    return ethertype in (_TAG, _OUTER_TAG, _OLD_TAG)


def _is_extension(following: int) -> bool:
    return following in (_HOP_BY_HOP, _ROUTING, _FRAGMENT, _OPTIONS)


def _is_checksum_right(
    first: int, second: int, third: int, source: int, destination: int, options: int
) -> bool:
    """Whether the 16-bit words of an IPv4 header, with its options, add up (RFC 791, 3.1)."""
    total = options + (first >> 16) + (first & 0xFFFF) + (second >> 16) + (second & 0xFFFF)
    total += (third >> 16) + (third & 0xFFFF) + (source >> 16) + (source & 0xFFFF)
    total += (destination >> 16) + (destination & 0xFFFF)
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    return total == 0xFFFF


class Dissector(PlainFrames):
    """Takes batches of frames apart; what a batch holds is in the columns after ``run``.

    Attributes:
        wrapped: packets with a tag or a tunnel around them.
        later_fragments: of UDP datagrams; they have no ports, so whether they are RoCE is unknown.
        malformed_count, fragment_count: packets with a value in those columns.
    """

    # Of the current frame.
    _start: int
    _limit: int
    _wire: int

    def __init__(self) -> None:
        super().__init__()
        self.later_fragments = self.malformed_count = self.fragment_count = 0
        # Of each kind of header: the word it starts in, by opcode; its length in bytes; its bit.
        self._places = table(np.concatenate([PLACE_WORDS[name] for name in PLACE_WORDS]))
        self._lengths = table([wire.HEADERS[name].length for name in PLACE_WORDS])
        self._bits = table([HAS[name] for name in PLACE_WORDS])
        self._walk, self.wrapped, self._wraps = Walk(), 0, False
        self._start = self._limit = self._wire = 0
        self.run(empty_batch())  # so that all columns are there: compiled, one without memory is a crash

    def run(self, batch: FrameBatch) -> None:
        """Take a batch of frames. Raises for no frame's content."""
        frames = len(batch)
        self.wrapped = self.later_fragments = self.malformed_count = self.fragment_count = 0
        self.begin(frames)
        if frames:
            buffer = batch.buffer.data if COMPILED else bytes(batch.buffer)
            self._buffer, self._size = buffer, len(buffer)
            self._walk.read(buffer, self._size)
            self._offset, self._linktype = table(batch.offset), link_numbers(batch.linktype)
            self._caplen, self._wirelen = table(batch.caplen), table(batch.wirelen)
            self._loop(frames)
        trim(self.columns, frames, self.count, self.wrapped)
        self._buffer = _NO_BYTES
        self._walk.read(_NO_BYTES, 0)

    def _read(self, at: int) -> int:
        """The big-endian word at a place of the buffer, with zeros for bytes behind its end."""
        if at + 4 <= self._size:
            return _join(self._buffer[at], self._buffer[at + 1], self._buffer[at + 2], self._buffer[at + 3])
        return _join(self._byte(at), self._byte(at + 1), self._byte(at + 2), 0)

    def _byte(self, at: int) -> int:
        return self._buffer[at] if at < self._size else 0

    # ------------------------------------------------------------------ link and network layer

    def _loop(self, frames: int) -> None:
        with cython.nogil:
            self._every(frames)

    def _every(self, frames: int) -> None:
        """Take all frames. The numbers of unusual link types come with all their bits turned."""
        i = self._take_plain(0, frames)
        while i < frames:
            begin, link = self._offset[i], self._linktype[i]
            self._limit = begin + self._caplen[i]
            self._wire = begin + max(self._wirelen[i], self._caplen[i])
            self._wraps = False
            self.index[self.count] = i
            count, walking = self.count, False
            if link >= 0:
                ethertype = self._link(begin, link)
                self.layer[i], self.ethertype[i] = self._start, ethertype
            else:
                ethertype, self._start, link = 0, -1, ~link
                self.layer[i], self.ethertype[i] = begin, 0
            while True:
                if ethertype == _IPV4:
                    self._ipv4()
                elif ethertype == _IPV6:
                    self._ipv6()
                elif ethertype == _ROCE_V1:
                    self._grh()
                if self.count != count:
                    break
                if not walking:
                    self._wraps = True
                    self._walk.begin(begin, self._limit, link)
                ethertype, walking = self._inside(walking), True
                if ethertype == 0:
                    break
            i = self._take_plain(i + 1, frames)

    def _inside(self, walking: bool) -> int:
        """Go on to the next network layer, past the one that holds no packet; gives its EtherType, or 0."""
        if walking:
            self._walk.past()
        if self._walk.network() and not walking and self._walk.at == self._start:
            self._walk.past()
        if not self._walk.network():
            return 0
        self._start = self._walk.at
        kind = self._walk.kind
        return _IPV4 if kind == _IPV4_KIND else _IPV6 if kind == _IPV6_KIND else _ROCE_V1

    def _link(self, begin: int, linktype: int) -> int:
        """Find where the network layer starts; returns the EtherType."""
        if linktype == _ETHERNET:
            place, self._start = begin + 12, begin + 14
        elif linktype == _SLL:
            place, self._start = begin + 14, begin + 16
        elif linktype == _SLL2:
            place, self._start = begin, begin + 20
        else:  # raw IP: the first four bits are the version
            self._start = begin
            version = self._read(begin) >> 28 if begin < self._limit else 0
            return _IPV4 if version == 4 else _IPV6 if version == 6 else 0
        ethertype = self._read(place) >> 16 if place + 2 <= self._limit else 0
        while _is_tag(ethertype):
            if not self._wraps:
                self._wraps = True
                self._walk.clear()
            tag = self._read(self._start)
            self._walk.tag(tag)
            ethertype = tag & 0xFFFF if self._start + 4 <= self._limit else 0
            self._start += 4
        return ethertype

    def _ipv4(self) -> None:
        start = self._start
        first = self._read(start)
        third = self._read(start + 8)
        length = first >> 22 & 0x3C
        if first >> 28 != 4 or length < _IPV4_BYTES or third >> 16 & 0xFF != _UDP:
            return
        if start + _IPV4_BYTES > self._limit:
            return
        second = self._read(start + 4)
        if second & 0x1FFF:
            self.later_fragments += 1
            return
        at = start + length
        ports = self._read(at)
        if ports & 0xFFFF != _PORT or at + 4 > self._limit:
            return
        n = self.count
        self.ip_version[n] = 4
        self.tclass[n], self.hop_limit[n] = first >> 16 & 0xFF, third >> 24
        self.flow_label[n], self.ip_id[n] = 0, second >> 16
        self.source_high[n] = self.destination_high[n] = 0
        source, destination = self._read(start + 12), self._read(start + 16)
        self.source_low[n], self.destination_low[n] = _MAPPED << 32 | source, _MAPPED << 32 | destination
        # A checksum of zero was left to the interface to compute: not wrong.
        wrong = third & 0xFFFF != 0 and at <= self._limit
        if wrong:
            options = self._sum_of_options(length) if length > _IPV4_BYTES else 0
            wrong = not _is_checksum_right(first, second, third, source, destination, options)
        fragment, malformed = second & 0x3FFF != 0, _CHECKSUM if wrong else 0
        self._over_udp(at, ports >> 16, start + (first & 0xFFFF), fragment, malformed)

    def _sum_of_options(self, length: int) -> int:
        """The sum of the 16-bit words of an IPv4 header's options; ``length``: of the whole header."""
        total = 0
        for place in range(self._start + _IPV4_BYTES, self._start + length, 4):
            word = self._read(place)
            total += (word >> 16) + (word & 0xFFFF)
        return total

    def _ipv6(self) -> None:
        start = self._start
        at = start + _IPV6_BYTES
        first, second = self._read(start), self._read(start + 4)
        if first >> 28 != 6 or at > self._limit:
            return
        following = second >> 8 & 0xFF
        fragment = later = False
        headers = 0
        while _is_extension(following) and not later and headers < _MOST_EXTENSIONS:
            headers += 1
            extension = self._read(at)
            there = at + 8 <= self._limit
            if following == _FRAGMENT:
                if there:
                    fragment = fragment or extension & 0xFFF9 != 0  # an offset, or more to come
                    later = later or extension & 0xFFF8 != 0
                at += 8
            else:
                at += ((extension >> 16 & 0xFF) + 1) * 8
            following = extension >> 24 if there else -1
        if following != _UDP:
            return
        if later:
            self.later_fragments += 1
            return
        ports = self._read(at)
        if ports & 0xFFFF != _PORT or at + 4 > self._limit:
            return
        self._ipv6_columns(first, second)
        self._over_udp(at, ports >> 16, start + _IPV6_BYTES + (second >> 16), fragment, 0)

    def _grh(self) -> None:
        start = self._start
        first, second = self._read(start), self._read(start + 4)
        bth = start + _GRH_BYTES
        if second >> 8 & 0xFF != _GRH_NEXT_BTH or bth > self._limit:
            return
        self._ipv6_columns(first, second)
        n = self.count
        end = bth + (second >> 16)
        self.malformed[n] = _GRH_VERSION if first >> 28 != 6 else _IP_LENGTH if end > self._wire else 0
        self.roce_version[n], self.udp_sport[n], self.fragment[n] = 1, 0, 0
        self._transport(bth, min(end, self._wire), self._limit, min(end, self._wire) > self._limit)

    def _ipv6_columns(self, first: int, second: int) -> None:
        at = self._start
        n = self.count
        self.ip_version[n] = 6
        self.tclass[n], self.hop_limit[n] = first >> 20 & 0xFF, second & 0xFF
        self.flow_label[n], self.ip_id[n] = first & 0xFFFFF, 0
        self.source_high[n] = _long(self._read(at + 8), self._read(at + 12))
        self.source_low[n] = _long(self._read(at + 16), self._read(at + 20))
        self.destination_high[n] = _long(self._read(at + 24), self._read(at + 28))
        self.destination_low[n] = _long(self._read(at + 32), self._read(at + 36))

    def _over_udp(self, at: int, sport: int, ip_end: int, fragment: bool, malformed: int) -> None:
        """Take the packet behind a UDP header. It ends where the shorter of IP's and UDP's lengths says."""
        n, limit, wire = self.count, self._limit, self._wire
        bth = at + _UDP_BYTES
        udp_end = at + (self._read(at + 4) >> 16)
        if udp_end != ip_end and not fragment:
            malformed = _UDP_LENGTH
        if ip_end > wire and ip_end == udp_end and not malformed:
            wire = ip_end  # a mirror cut the packet, and gives the cut length as the sent one
        if ip_end > wire or ip_end < bth:
            malformed = _IP_LENGTH
        ip_end = min(ip_end, wire)
        # A first fragment's datagram ends in a later fragment: this IP length does not count.
        end = udp_end if fragment else min(ip_end, udp_end)
        truncated = ip_end > limit
        if bth > limit:  # cut before the UDP length: only the frame's length is known
            malformed, end, truncated = _CUT, wire, True
        if fragment:
            # Bytes behind a fragment in its frame are Ethernet's padding.
            limit = min(limit, ip_end)
        self.roce_version[n], self.udp_sport[n] = 2, sport
        self.fragment[n], self.malformed[n] = fragment, malformed
        self._transport(bth, end, limit, truncated)

    # ------------------------------------------------------------------ transport

    def _transport(self, bth: int, end: int, limit: int, truncated: bool) -> None:
        """Take the BTH and the headers behind it, which completes the row."""
        n = self.count
        base = n * _WORDS
        self.bth[n], self.end[n], self.limit[n], self.truncated[n] = bth, end, limit, truncated
        self.start[n], self.vlan[n], self.priority[n] = self._start, -1, 0
        if self._wraps:
            self.vlan[n], self.priority[n] = self._walk.vlan, self._walk.priority
            w = self.wrapped
            self.wrapped_row[w], self.chain[w], self.scope[w] = n, self._walk.chain, self._walk.scope
            self.wrapped = w + 1
        opcode = self._read(bth) >> 24
        row = opcode
        need = self._need[row]
        readable = min(limit, end - _ICRC_BYTES) - bth
        has = self._has_of[row]
        if readable < need:
            if readable < _BTH_BYTES:
                opcode, row, need = -1, _NO_OPCODE, _BTH_BYTES
            has = self._cut(row, readable)
            if not truncated or end - _ICRC_BYTES - bth < need:
                self._mark(_SHORT)
            elif opcode < 0:
                self._mark(_CUT)
        words = max(0, min(need, readable)) >> 2
        for word in range(words):
            self.words[base + word] = self._read(bth + 4 * word)
        if opcode >= 0 and not self._known[row]:
            self._mark(_UNKNOWN_OPCODE)
        if self.words[base] >> 16 & 0xF:
            self._mark(_VERSION)
        if self.roce_version[n] == 1:
            has |= _HAS_GRH
        room = end - bth - need - _ICRC_BYTES
        payload = 0 if opcode < 0 else room - (self.words[base] >> 20 & 3)
        if payload < 0 <= room:
            self._mark(_PAD)
        if room > 0 and self._payloadless[row]:
            self._mark(_PAYLOAD)
        self.opcode[n], self.has[n] = opcode, has
        self.payload_length[n], self.payload_at[n] = max(payload, 0), bth + need
        self.dest_qpn[n], self.psn[n] = self.words[base + 1] & _QPN_MASK, self.words[base + 2] & _PSN_MASK
        self._fields(n, row, has, base)
        self.checkable[n] = not truncated and not self.fragment[n] and end - bth >= _BTH_BYTES + _ICRC_BYTES
        self.truncated_count += truncated
        self.fragment_count += self.fragment[n]
        self.malformed_count += self.malformed[n] != 0
        self.count = n + 1

    def _cut(self, row: int, readable: int) -> int:
        """Which headers are whole in a packet that ends ``readable`` bytes after the BTH's start."""
        has: int = self._has_of[row]
        for n in range(_KINDS_OF_HEADERS):
            place = self._places[n * _ROWS + row]
            if place > 0 and place * 4 + self._lengths[n] > readable:
                has &= ~self._bits[n]
        return has

    def _mark(self, code: int) -> None:
        """Note what is wrong with the packet, unless something was noted before."""
        if self.malformed[self.count] == 0:
            self.malformed[self.count] = code
