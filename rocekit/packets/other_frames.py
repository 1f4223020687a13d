"""The frames of a capture that are no RoCE packets: what kind each of them is, and how many there are.

Only frames that the dissector passed over are looked at, as columns. A frame counts once, as its outermost
protocol. In tunnels that are not decoded, UDP port 4791 is searched for: RoCE in them was not read.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from rocekit.files.frames import LINKTYPE_ETHERNET, FrameBatch
from rocekit.wire import ROCE_UDP_PORT
from rocekit.wire.byte_rows import gather
from rocekit.wire.encapsulations import KINDS, LAYERS, LINKS
from rocekit.wire.network import (
    ETHERTYPE_IPV4,
    ETHERTYPE_IPV6,
    ICMPV6,
    IPV4_BYTES,
    IPV6_BYTES,
    UDP_PROTOCOL,
)
from rocekit.wire.other_protocols import (
    ENCRYPTED,
    ETHERTYPES,
    FIRST_NEIGHBOUR_DISCOVERY,
    IP_PROTOCOLS,
    LAST_NEIGHBOUR_DISCOVERY,
    LEAST_ETHERTYPE,
    NEIGHBOUR_DISCOVERY,
    TUNNELS,
    UDP_PORTS,
)
from rocekit.wire.sorting import distinct

Ints = NDArray[np.int64]
Codes = NDArray[np.int16]

CUT: Final = "cut before the end of their headers"
FRAGMENTS: Final = "later fragments of UDP datagrams"
NOT_ROCE: Final = "UDP port 4791, not RoCE"
FROM_ROCE_PORT: Final = "UDP from port 4791, not to it"
_DAMAGED: Final = "IP with a damaged header"
ERF_INFINIBAND: Final = "native InfiniBand in ERF records"
#: Records of links that carry several protocols, by the link's layer: of a type that has no row there.
_OTHER_RECORDS: Final = {"erf": "ERF records of another type", "ppi": "PPI records of another link type"}
#: Endace's record type of native InfiniBand; the highest bit says that extension headers follow.
_ERF_TYPE_INFINIBAND, _ERF_TYPE_MASK = 21, 0x7F
_LLC: Final = "LLC (spanning tree and others)"
_OTHER_ETHERNET: Final = "other EtherTypes"
_OTHER_IP: Final = "other IP protocols"
_OTHER_UDP: Final = "UDP to other ports"
_SPECIAL: Final = (
    *(CUT, FRAGMENTS, FROM_ROCE_PORT, _DAMAGED, _LLC, _OTHER_ETHERNET, _OTHER_IP, _OTHER_UDP),
    *(ERF_INFINIBAND, *_OTHER_RECORDS.values()),
    NEIGHBOUR_DISCOVERY,
)
_INSIDE: Final = f" with UDP {ROCE_UDP_PORT} inside"
_CUT_INSIDE: Final = ", cut before what is inside"

_PLAIN: Final = tuple(
    dict.fromkeys([*_SPECIAL, *ETHERTYPES.values(), *IP_PROTOCOLS.values(), *UDP_PORTS.values()])
)
_CARRIERS: Final = tuple(sorted(TUNNELS))
#: The kinds by code: plain ones; tunnels in which UDP port 4791 was found; tunnels cut before it.
_NAMES: Final = (
    *_PLAIN,
    *(tunnel + _INSIDE for tunnel in _CARRIERS),
    *(tunnel + _CUT_INSIDE for tunnel in _CARRIERS),
)
#: Tunnels with UDP port 4791 inside, which rocekit did not decode.
UNDECODED: Final = frozenset(tunnel + _INSIDE for tunnel in _CARRIERS)
#: Kinds that have RoCE inside, or may have it: nothing can be said of what is in them.
NOT_READ: Final = frozenset(
    {CUT, FRAGMENTS, *ENCRYPTED, *UNDECODED, *(tunnel + _CUT_INSIDE for tunnel in _CARRIERS)}
)

_CODE: Final = {name: code for code, name in enumerate(_NAMES)}
_INSIDE_CODE = np.full(len(_NAMES), -1, np.int16)
_CUT_CODE = np.full(len(_NAMES), -1, np.int16)
for _name in _CARRIERS:
    _INSIDE_CODE[_CODE[_name]] = _CODE[_name + _INSIDE]
    _CUT_CODE[_CODE[_name]] = _CODE[_name + _CUT_INSIDE]


def _table(size: int, names: dict[int, str], other: str | None) -> Codes:
    """Codes by number; numbers without a name have the code of ``other``, or −1."""
    table = np.full(size, -1 if other is None else _CODE[other], np.int16)
    for number, name in names.items():
        table[number] = _CODE[name]
    return table


_BY_ETHERTYPE: Final = _table(1 << 16, ETHERTYPES, _OTHER_ETHERNET)
_BY_ETHERTYPE[:LEAST_ETHERTYPE] = _CODE[_LLC]
_BY_PROTOCOL: Final = _table(1 << 8, IP_PROTOCOLS, _OTHER_IP)
_BY_PORT: Final = _table(1 << 16, UDP_PORTS, None)

_EXTENSIONS = np.zeros(256, np.bool_)  # RFC 8200, 4: hop-by-hop, routing, destination options
_EXTENSIONS[[0, 43, 60]] = True
_FRAGMENT: Final = 44
_MOST_EXTENSIONS: Final = 8
#: Bytes behind a network header that are searched for a UDP header to port 4791.
_SEARCHED: Final = 160
#: A frame cut sooner than this behind its network header may lack the inner port (VXLAN with IPv4 in it: 78).
_INNER_HEADERS: Final = 80
#: From the inner IP header's start to the port: IPv4 (RFC 791) or IPv6 (RFC 8200), then UDP's second field.
_PORT_BEHIND_IPV4: Final = IPV4_BYTES + 2
_PORT_BEHIND_IPV6: Final = IPV6_BYTES + 2
_PROTOCOL_AT, _NEXT_HEADER_AT = 9, 6
_AT_ONCE: Final = 1 << 14  # frames searched at once: they are copied


def count_others(
    batch: FrameBatch, others: Ints, layer: Ints, ethertype: Ints, found: dict[str, int]
) -> None:
    """Add the kinds of frames that are no RoCE packets to ``found``.

    Args:
        others: indices of these frames in the batch.
        layer, ethertype: of every frame of the batch, as the dissector found them.
        found: frames by kind.
    """
    frames = _Frames(batch, others, layer, ethertype)
    counts = np.bincount(frames.codes(), minlength=len(_NAMES))
    for code in np.flatnonzero(counts).tolist():
        if code == _CODE[_OTHER_ETHERNET]:
            continue
        name = _NAMES[code]
        found[name] = found.get(name, 0) + int(counts[code])
    if counts[_CODE[_OTHER_ETHERNET]]:
        unknown = frames.ethertype[_BY_ETHERTYPE[frames.ethertype] == _CODE[_OTHER_ETHERNET]]
        unknown = unknown[(unknown != ETHERTYPE_IPV4) & (unknown != ETHERTYPE_IPV6)]
        for value in distinct(unknown).tolist():
            name = f"EtherType {value:#06x}"
            found[name] = found.get(name, 0) + int(np.count_nonzero(unknown == value))


class _Frames:
    """Some frames of a batch as columns: where each one's network header starts and its bytes end."""

    def __init__(self, batch: FrameBatch, rows: Ints, layer: Ints, ethertype: Ints) -> None:
        self.ethertype = ethertype[rows]
        self._buffer = batch.buffer
        self._start = layer[rows]
        self._limit = (batch.offset + batch.caplen)[rows]
        self._is_cut = (batch.caplen < batch.wirelen)[rows]
        self._linktype = batch.linktype[rows]
        self._record = batch.offset[rows]

    def codes(self) -> Codes:
        """Each frame's kind."""
        codes = _BY_ETHERTYPE[self.ethertype]
        nothing = self.ethertype == 0
        if nothing.any():
            # The frame ends before its EtherType, is raw IP of no known version, or LLC of length 0.
            codes[nothing & (self._linktype != LINKTYPE_ETHERNET)] = _CODE[_DAMAGED]
            codes[nothing & (self._start >= self._limit)] = _CODE[CUT]
            self._name_records(codes, nothing)
        for ethertype, look in ((ETHERTYPE_IPV4, self._ipv4), (ETHERTYPE_IPV6, self._ipv6)):
            rows = np.flatnonzero(self.ethertype == ethertype)
            if len(rows):
                codes[rows] = look(rows)
        carriers = np.flatnonzero(_INSIDE_CODE[codes] >= 0)
        for first in range(0, len(carriers), _AT_ONCE):
            rows = carriers[first : first + _AT_ONCE]
            codes[rows] = self._inside(rows, codes[rows])
        return codes

    def _name_records(self, codes: Codes, nothing: NDArray[np.bool_]) -> None:
        """Name the records of a type that nobody looked into; ``nothing``: those without an EtherType."""
        for link, name in _OTHER_RECORDS.items():
            layer = LAYERS[KINDS[link]]
            rows = np.flatnonzero(
                nothing & np.isin(self._linktype, [n for n, k in LINKS.items() if k == link])
            )
            number = self._bytes(self._record[rows] + layer.next_at, rows)
            other = ~np.isin(number, list(layer.numbers or ()))
            codes[rows[other]] = _CODE[name]
            if link == "erf":
                codes[rows[number & _ERF_TYPE_MASK == _ERF_TYPE_INFINIBAND]] = _CODE[ERF_INFINIBAND]

    def _bytes(self, at: Ints, rows: Ints) -> Ints:
        """The byte at each place, 0 behind the end of its frame."""
        there = at < self._limit[rows]
        return np.where(there, self._buffer[np.where(there, at, 0)], 0).astype(np.int64)

    def _ipv4(self, rows: Ints) -> Codes:
        start = self._start[rows]
        head = self._bytes(start, rows)
        protocol = self._bytes(start + _PROTOCOL_AT, rows)
        codes = _BY_PROTOCOL[protocol]
        udp = np.flatnonzero(protocol == UDP_PROTOCOL)
        if len(udp):
            flags = self._bytes(start[udp] + 6, rows[udp]) << 8 | self._bytes(start[udp] + 7, rows[udp])
            codes[udp] = self._udp(rows[udp], start[udp] + (head[udp] & 0xF) * 4)
            codes[udp[flags & 0x1FFF != 0]] = _CODE[FRAGMENTS]
        limit = self._limit[rows]
        codes[start + IPV4_BYTES > limit] = _CODE[CUT]
        codes[((head >> 4 != 4) | (head & 0xF < IPV4_BYTES // 4)) & (start < limit)] = _CODE[_DAMAGED]
        return codes

    def _ipv6(self, rows: Ints) -> Codes:
        start = self._start[rows]
        at = start + IPV6_BYTES
        following = self._bytes(start + _NEXT_HEADER_AT, rows)
        later = np.zeros(len(rows), np.bool_)
        for _ in range(_MOST_EXTENSIONS):
            fragment = (following == _FRAGMENT) & ~later
            more = _EXTENSIONS[following] | fragment
            if not more.any():
                break
            words = self._bytes(at + 2, rows) << 8 | self._bytes(at + 3, rows)
            later |= fragment & (words & 0xFFF8 != 0)
            length = np.where(fragment, 8, (self._bytes(at + 1, rows) + 1) * 8)
            following = np.where(more, self._bytes(at, rows), following)
            at = np.where(more, at + length, at)
        codes = _BY_PROTOCOL[following]
        udp = np.flatnonzero(following == UDP_PROTOCOL)
        if len(udp):
            codes[udp] = np.where(later[udp], _CODE[FRAGMENTS], self._udp(rows[udp], at[udp]))
        icmp = following == ICMPV6
        if icmp.any():
            kind = self._bytes(at, rows)
            discovery = (kind >= FIRST_NEIGHBOUR_DISCOVERY) & (kind <= LAST_NEIGHBOUR_DISCOVERY)
            codes[icmp & discovery] = _CODE[NEIGHBOUR_DISCOVERY]
        limit = self._limit[rows]
        codes[at > limit] = _CODE[CUT]
        codes[(self._bytes(start, rows) >> 4 != 6) & (start < limit)] = _CODE[_DAMAGED]
        return codes

    def _udp(self, rows: Ints, at: Ints) -> Codes:
        source = self._bytes(at, rows) << 8 | self._bytes(at + 1, rows)
        destination = self._bytes(at + 2, rows) << 8 | self._bytes(at + 3, rows)
        codes = _BY_PORT[destination]
        codes = np.where(codes < 0, _BY_PORT[source], codes)
        codes[codes < 0] = _CODE[_OTHER_UDP]
        codes[source == ROCE_UDP_PORT] = _CODE[FROM_ROCE_PORT]
        codes[at + 4 > self._limit[rows]] = _CODE[CUT]
        return codes

    def _inside(self, rows: Ints, codes: Codes) -> Codes:
        """The kinds of tunnelled frames by what is inside: UDP to port 4791 behind an IP header, or cut."""
        start = self._start[rows]
        width = min(_SEARCHED, max(0, int((self._limit[rows] - start).max())))
        text = gather(self._buffer, start, width)
        text[np.arange(width) >= (self._limit[rows] - start)[:, None]] = 0
        high, low = ROCE_UDP_PORT >> 8, ROCE_UDP_PORT & 0xFF
        frame, at = np.nonzero((text[:, :-1] == high) & (text[:, 1:] == low))
        found = np.zeros(len(rows), np.bool_)
        for version, back, protocol_at in (
            (4, _PORT_BEHIND_IPV4, _PROTOCOL_AT),
            (6, _PORT_BEHIND_IPV6, _NEXT_HEADER_AT),
        ):
            begin = at - back
            inner = begin >= 0
            one, begin = frame[inner], begin[inner]
            is_ip = (text[one, begin] >> 4 == version) & (text[one, begin + protocol_at] == UDP_PROTOCOL)
            found[one[is_ip]] = True
        short = self._is_cut[rows] & (self._limit[rows] - start < _INNER_HEADERS)
        result = np.where(short & ~found, _CUT_CODE[codes], codes)
        return np.where(found, _INSIDE_CODE[codes], result).astype(np.int16)
