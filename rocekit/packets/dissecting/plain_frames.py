# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The short way for plain frames: Ethernet without tags, IPv4 without options, UDP, and whole headers.

Most frames of a capture are like that. What this takes of a frame is what the dissector would take; of every
frame in which something is unusual (a fragment, a wrong checksum, lengths that differ, an unknown opcode, a
cut header) it takes nothing, and the dissector goes its long way.
"""

from __future__ import annotations

from typing import Any, Final

from rocekit import wire
from rocekit.files.frames import LINKTYPE_ETHERNET
from rocekit.packets import BLOCK_WORDS, HAS, HAS_OF, HEADERS_BYTES, KNOWN, NO_PAYLOAD
from rocekit.packets.dissecting.columns import new_columns, table, word_of
from rocekit.wire import network

try:
    import cython
except ImportError:
    from rocekit import _cython as cython

_LINK: Final = LINKTYPE_ETHERNET
_LINK_BYTES: Final = 14
_ETHERTYPE: Final = network.ETHERTYPE_IPV4
_FIRST_BYTE: Final = 0x45  # version 4, and a header of five words
_IP_BYTES: Final = network.IPV4_BYTES
_UDP: Final = network.UDP_PROTOCOL
_UDP_BYTES: Final = network.UDP_BYTES
_PORT: Final = wire.ROCE_UDP_PORT
_MAPPED: Final = network.MAPPED << 32
_BTH_AT: Final = _LINK_BYTES + _IP_BYTES + _UDP_BYTES
_LEAST: Final = _BTH_AT + wire.BTH.length
_QPN_MASK: Final = (1 << wire.QPN_BITS) - 1
_PSN_MASK: Final = (1 << wire.PSN_BITS) - 1
_ICRC_BYTES: Final = wire.ICRC_BYTES
_WORDS: Final = BLOCK_WORDS
_HAS_AETH: Final = HAS["AETH"]
_HAS_RETH: Final = HAS["RETH"]
_HAS_KEY: Final = HAS["RETH"] | HAS["AtomicETH"]
_NO_BYTES: Final = b""


class PlainFrames:
    """The columns of a batch of frames, and the rows of those frames that are plain.

    Attributes:
        columns: by name, an array with a value for each RoCE packet (see ``columns``); ``words`` has the BTH
            and the headers that follow it as words, a row a packet, zeros behind them.
        layer, ethertype: a value for each frame: where its outermost network layer starts, and its EtherType
            (0: none, cut before it, or an unusual link).
        count: RoCE packets.
        truncated_count: those that are cut.
    """

    # Set for each batch: its columns while they are filled, and its frames.
    _buffer: Any
    _offset: Any
    _caplen: Any
    _wirelen: Any
    _linktype: Any
    layer: Any
    ethertype: Any
    index: Any
    start: Any
    bth: Any
    end: Any
    limit: Any
    truncated: Any
    ip_version: Any
    roce_version: Any
    tclass: Any
    hop_limit: Any
    flow_label: Any
    ip_id: Any
    udp_sport: Any
    vlan: Any
    priority: Any
    source_high: Any
    source_low: Any
    destination_high: Any
    destination_low: Any
    fragment: Any
    malformed: Any
    checkable: Any
    opcode: Any
    has: Any
    payload_length: Any
    payload_at: Any
    dest_qpn: Any
    psn: Any
    syndrome: Any
    remote_va: Any
    rkey: Any
    dma_length: Any
    words: Any
    wrapped_row: Any
    chain: Any
    scope: Any
    _size: int

    def __init__(self) -> None:
        self.columns: dict[str, Any] = {}
        self.count = self.truncated_count = 0
        # By opcode, with a row for packets without one.
        self._need, self._has_of = table(HEADERS_BYTES), table(HAS_OF)
        self._known, self._payloadless = table(KNOWN), table(NO_PAYLOAD)
        self._syndrome_at, self._va_at = word_of("syndrome"), word_of("remote_va")
        self._rkey_at, self._length_at = word_of("rkey"), word_of("dma_length")
        self._buffer, self._size = _NO_BYTES, 0

    def begin(self, frames: int) -> None:
        """Make columns for so many frames."""
        self.count = self.truncated_count = 0
        self.columns = new_columns(frames)
        for name, column in self.columns.items():
            setattr(self, name, column)

    def _word(self, at: int) -> int:
        """The big-endian word at a place of the buffer."""
        if cython.compiled:  # in C, which the types have: a compiler makes one load of it
            return big_word(cython.address(self._buffer[at]))  # type: ignore  # noqa: F821
        return self._half(at) << 16 | self._half(at + 2)

    def _half(self, at: int) -> int:
        if cython.compiled:
            return big_half(cython.address(self._buffer[at]))  # type: ignore  # noqa: F821
        return self._buffer[at] << 8 | self._buffer[at + 1]

    def _take_plain(self, i: int, frames: int) -> int:
        """Take the frames from number ``i`` on that are plain; gives the first that is not, or ``frames``."""
        while i < frames and self._linktype[i] == _LINK and self._take(i):
            i += 1
        return i

    def _take(self, i: int) -> bool:
        """Take a frame, if it is plain."""
        begin = self._offset[i]
        limit = begin + self._caplen[i]
        ip = begin + _LINK_BYTES
        if limit > self._size or limit < begin + _LEAST or self._half(begin + 12) != _ETHERTYPE:
            return False
        first, second, third = self._word(ip), self._word(ip + 4), self._word(ip + 8)
        if first >> 24 != _FIRST_BYTE or second & 0x3FFF or third >> 16 & 0xFF != _UDP:
            return False
        source, destination = self._word(ip + 12), self._word(ip + 16)
        if third & 0xFFFF:  # else the checksum is left to the interface
            total = (first >> 16) + (first & 0xFFFF) + (second >> 16) + (third >> 16) + (third & 0xFFFF)
            total += (source >> 16) + (source & 0xFFFF) + (destination >> 16) + (destination & 0xFFFF)
            total += second & 0xFFFF
            total = (total & 0xFFFF) + (total >> 16)
            if (total & 0xFFFF) + (total >> 16) != 0xFFFF:
                return False
        udp, bth, end = ip + _IP_BYTES, begin + _BTH_AT, ip + (first & 0xFFFF)
        if self._half(udp + 2) != _PORT or udp + self._half(udp + 4) != end:
            return False
        head = self._word(bth)
        opcode = head >> 24
        need, room = self._need[opcode], end - bth - self._need[opcode] - _ICRC_BYTES
        payload = room - (head >> 20 & 3)
        if not self._known[opcode] or head >> 16 & 0xF or payload < 0 or limit < bth + need:
            return False
        if (room > 0 and self._payloadless[opcode]) or end > begin + max(self._wirelen[i], self._caplen[i]):
            return False

        n = self.count
        self.count = n + 1
        self.layer[i], self.ethertype[i], self.index[n] = ip, _ETHERTYPE, i
        self.start[n], self.bth[n], self.end[n], self.limit[n] = ip, bth, end, limit
        self.ip_version[n], self.roce_version[n] = 4, 2
        self.tclass[n], self.hop_limit[n] = first >> 16 & 0xFF, third >> 24
        self.flow_label[n], self.ip_id[n], self.udp_sport[n] = 0, second >> 16, self._half(udp)
        self.vlan[n], self.priority[n] = -1, 0
        self.source_high[n] = self.destination_high[n] = 0
        self.source_low[n], self.destination_low[n] = _MAPPED | source, _MAPPED | destination
        self.fragment[n] = self.malformed[n] = 0
        truncated = end > limit
        self.truncated[n], self.checkable[n] = truncated, not truncated
        self.truncated_count += truncated
        has, base = self._has_of[opcode], n * _WORDS
        self.opcode[n], self.has[n] = opcode, has
        self.payload_length[n], self.payload_at[n] = payload, bth + need
        self.words[base] = head
        for word in range(1, need >> 2):
            self.words[base + word] = self._word(bth + 4 * word)
        self.dest_qpn[n], self.psn[n] = self.words[base + 1] & _QPN_MASK, self.words[base + 2] & _PSN_MASK
        self._fields(n, opcode, has, base)
        return True

    def _fields(self, n: int, row: int, has: int, base: int) -> None:
        """Take the fields behind the BTH that tracking needs of every packet."""
        self.syndrome[n] = self.words[base + self._syndrome_at[row]] >> 24 if has & _HAS_AETH else 0
        self.remote_va[n] = self.rkey[n] = self.dma_length[n] = 0
        if has & _HAS_KEY:
            at = base + self._va_at[row]
            high = self.words[at]  # in a wide variable before it is shifted
            self.remote_va[n] = high << 32 | self.words[at + 1]
            self.rkey[n] = self.words[base + self._rkey_at[row]]
        if has & _HAS_RETH:
            self.dma_length[n] = self.words[base + self._length_at[row]]
