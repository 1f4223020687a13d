"""From frames to the RoCE packets inside them: where IP begins, where the BTH begins, where the packet ends.

Everything here works on columns: one value a frame. A packet's end comes from the lengths in its headers and
never from the frame's, for short Ethernet frames are padded and some captures keep the frame check sequence
behind them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address, IPv6Address
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.arrays import distinct
from rocekit.frames import (
    LINKTYPE_ETHERNET,
    LINKTYPE_LINUX_SLL,
    LINKTYPE_LINUX_SLL2,
    FrameBatch,
)
from rocekit.wire import GRH, ICRC_BYTES, ROCE_UDP_PORT, ROCE_V1_ETHERTYPE

ETHERTYPE_IPV4: Final = 0x0800
ETHERTYPE_IPV6: Final = 0x86DD
ETHERTYPE_MAC_CONTROL: Final = 0x8808  # IEEE 802.3 annex 31A: PAUSE and, since 802.1Qbb, PFC
VLAN_ETHERTYPES: Final = (0x8100, 0x88A8, 0x9100)  # 802.1Q, 802.1ad, and what came before 802.1ad
_PAUSE_OPCODES: Final = (0x0001, 0x0101)  # 802.3 PAUSE, 802.1Qbb PFC

UDP_BYTES: Final = 8
_IPV4_BYTES: Final = 20
_IPV6_BYTES: Final = 40
_UDP: Final = 17
_FRAGMENT_HEADER: Final = 44
_EXTENSIONS: Final = (
    0,
    43,
    _FRAGMENT_HEADER,
    60,
)  # RFC 8200: hop-by-hop, routing, fragment, destination options
_MOST_EXTENSIONS: Final = 64
_GRH_NEXT_BTH: Final = 0x1B  # A16.3: what follows the GRH is an InfiniBand transport header
_MAPPED: Final = 0xFFFF  # RFC 4291, 2.5.5.2: ::ffff:a.b.c.d, as IPv4 stands in a GID
_MIXER: Final = np.uint64(0x9E37_79B9_7F4A_7C15)

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint32]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

#: What can be wrong with a packet, by the code in the column ``malformed``; 0 is a sound one.
MALFORMED: Final = MappingProxyType(
    {
        1: "headers cut",
        2: "shorter than its headers",
        3: "IP length out of bounds",
        4: "UDP length disagrees with the IP length",
        5: "pad count exceeds the payload",
        6: "unknown opcode",
        7: "payload behind an opcode that carries none",
        8: "IPv4 header checksum wrong",
        9: "unknown transport version",
        10: "GRH version is not 6",
    }
)
CUT, SHORT, IP_LENGTH, UDP_LENGTH, PAD, UNKNOWN_OPCODE, PAYLOAD, CHECKSUM, VERSION, GRH_VERSION = MALFORMED


def gather(buffer: Bytes, at: Ints, width: int) -> Bytes:
    """``width`` bytes from each place in ``at``: an array (len(at), width), zero behind the buffer's end.

    One item of ``width`` bytes at any place: NumPy then copies whole rows, many times faster than byte by
    byte.
    """
    if not len(at):
        return np.zeros((0, width), np.uint8)
    last = len(buffer) - width
    if last >= 0 and int(at.max()) <= last:
        return _windows(buffer, width)[at].view(np.uint8).reshape(len(at), width)
    inside = at <= last
    rows = np.zeros((len(at), width), np.uint8)
    if inside.any():
        rows[inside] = gather(buffer, at[inside], width)
    for i in np.flatnonzero(~inside):  # a frame or two at the very end of the buffer
        rest = buffer[int(at[i]) :]
        rows[i, : len(rest)] = rest[:width]
    return rows


def scatter(buffer: Bytes, at: Ints, rows: Bytes) -> None:
    """Write ``rows`` (as from :func:`gather`) back to their places, which must lie inside the buffer."""
    width = rows.shape[1]
    _windows(buffer, width)[at] = np.ascontiguousarray(rows).view(f"V{width}")[:, 0]


def _windows(buffer: Bytes, width: int) -> NDArray[Any]:
    """The buffer as overlapping items of ``width`` bytes, one beginning at each byte."""
    return np.ndarray((len(buffer) - width + 1,), f"V{width}", buffer, strides=(1,))


def words(buffer: Bytes, at: Ints, count: int) -> Words:
    """``count`` big-endian 32-bit words from each place: an array (len(at), count) in native order."""
    return gather(buffer, at, 4 * count).view(">u4").astype(np.uint32)


@dataclass(slots=True)
class Network:
    """The RoCE packets of a batch, one value a packet in each column, and what else was seen.

    Offsets are places in the batch's buffer.

    Attributes:
        index: which frame of the batch.
        start: the first byte of the IP header or GRH.
        bth: the first byte of the BTH.
        end: behind the ICRC, as the packet's own lengths say.
        limit: behind the last captured byte.
        truncated: whether the snaplen cut the packet.
        ip_version: 4 or 6 (a GRH counts as 6); roce_version: 1 or 2.
        tclass, hop_limit, flow_label: of the IP header or GRH.
        ip_id: IPv4's identification, which tells a datagram from its repeat; 0 elsewhere.
        udp_sport: 0 for RoCE v1.
        vlan, priority: of the innermost VLAN tag; −1 and 0 without one.
        source, destination: addresses as pairs of words (n, 2) of uint64; IPv4 as IPv4-mapped.
        fragment: a first fragment: the headers are there, the ICRC is not.
        malformed: a code of ``MALFORMED``, or 0.
        pauses: 802.3 PAUSE and PFC frames among the others, a row each: index in the batch, the priorities
            paused as a bit mask (all of them for 802.3 PAUSE), the longest pause in quanta of 512 bit times.
        later_fragments: of UDP datagrams, without the ports: whether they are RoCE cannot be said.
    """

    index: Ints
    start: Ints
    bth: Ints
    end: Ints
    limit: Ints
    truncated: Bools
    ip_version: NDArray[np.uint8]
    roce_version: NDArray[np.uint8]
    tclass: NDArray[np.uint8]
    hop_limit: NDArray[np.uint8]
    flow_label: NDArray[np.int32]
    ip_id: NDArray[np.uint16]
    udp_sport: NDArray[np.uint16]
    vlan: NDArray[np.int32]
    priority: NDArray[np.uint8]
    source: NDArray[np.uint64]
    destination: NDArray[np.uint64]
    fragment: Bools
    malformed: NDArray[np.uint8]
    pauses: Ints = field(default_factory=lambda: np.empty((0, 3), np.int64))
    later_fragments: int = 0

    def __len__(self) -> int:
        return len(self.index)


_COLUMNS: Final = tuple(Network.__slots__[:-2])


@dataclass(slots=True)
class _Frames:
    """Frames of one network protocol on their way: which, where it begins, where the bytes end."""

    index: Ints
    start: Ints
    limit: Ints
    wire: Ints
    vlan: NDArray[np.int32]
    priority: NDArray[np.uint8]

    def take(self, rows: Ints | Bools) -> _Frames:
        if rows.dtype == np.bool_ and rows.all():
            return self
        return _Frames(*(getattr(self, name)[rows] for name in _Frames.__slots__))


def find_roce(batch: FrameBatch) -> Network:
    """The RoCE packets of a batch of frames, in the order of the frames. Never raises for what is in them."""
    parts: list[Network] = []
    pauses, later = np.empty((0, 3), np.int64), 0
    if len(batch):
        frames, ethertype = _network_layer(batch)
        if (ethertype == ETHERTYPE_IPV4).all():
            parts.append(_ipv4(batch.buffer, frames))
        else:
            for kind, read in ((ETHERTYPE_IPV4, _ipv4), (ETHERTYPE_IPV6, _ipv6), (ROCE_V1_ETHERTYPE, _grh)):
                rows = np.flatnonzero(ethertype == kind)
                if len(rows):
                    parts.append(read(batch.buffer, frames.take(rows)))
            pauses = _pauses(batch.buffer, frames.take(ethertype == ETHERTYPE_MAC_CONTROL))
        later = sum(part.later_fragments for part in parts)
    parts = [part for part in parts if len(part)]
    if len(parts) == 1:
        network = parts[0]
    elif parts:
        order = np.argsort(np.concatenate([part.index for part in parts]), kind="stable")
        joined: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in parts])[order] for name in _COLUMNS
        }
        network = Network(**joined)
    else:
        network = _empty()
    network.pauses, network.later_fragments = pauses, later
    return network


def _empty() -> Network:
    none = np.empty(0, np.int64)
    frames = _Frames(none, none, none, none, none.astype(np.int32), none.astype(np.uint8))
    return _grh(np.empty(0, np.uint8), frames)


def network_layer(batch: FrameBatch) -> tuple[Ints, Ints]:
    """Where each frame's network layer begins, and its EtherType (0: none, or cut before it)."""
    frames, ethertype = _network_layer(batch)
    return frames.start, ethertype


def _network_layer(batch: FrameBatch) -> tuple[_Frames, Ints]:
    """Where each frame's network layer begins, and its EtherType (0: none, or cut before it)."""
    offset, limit = batch.offset, batch.offset + batch.caplen
    n = len(offset)
    kinds = distinct(batch.linktype).tolist()
    if kinds == [LINKTYPE_ETHERNET]:
        ethertype, start = _ethertype_at(batch.buffer, offset + 12, limit), offset + 14
    else:
        ethertype, start = np.zeros(n, np.int64), offset.copy()
        for kind in kinds:
            rows = np.flatnonzero(batch.linktype == kind)
            at = offset[rows]
            if kind in _PROTOCOL_AT:
                place, length = _PROTOCOL_AT[kind]
                ethertype[rows] = _ethertype_at(batch.buffer, at + place, limit[rows])
                start[rows] = at + length
            else:  # raw IP says its version itself
                version = gather(batch.buffer, at, 1)[:, 0] >> 4
                known = np.where(version == 4, ETHERTYPE_IPV4, np.where(version == 6, ETHERTYPE_IPV6, 0))
                ethertype[rows] = np.where(at < limit[rows], known, 0)
    vlan, priority = np.full(n, -1, np.int32), np.zeros(n, np.uint8)
    tagged = np.flatnonzero(np.isin(ethertype, VLAN_ETHERTYPES))
    while len(tagged):
        tag = words(batch.buffer, start[tagged], 1)[:, 0].astype(np.int64)
        there = start[tagged] + 4 <= limit[tagged]
        ethertype[tagged] = np.where(there, tag & 0xFFFF, 0)
        start[tagged] += 4
        vlan[tagged], priority[tagged] = tag >> 16 & 0xFFF, tag >> 29
        tagged = tagged[np.isin(ethertype[tagged], VLAN_ETHERTYPES)]
    wire = offset + np.maximum(batch.wirelen, batch.caplen)
    return _Frames(np.arange(n), start, limit, wire, vlan, priority), ethertype


#: Where the EtherType stands and where the link header ends.
_PROTOCOL_AT: Final = {
    LINKTYPE_ETHERNET: (12, 14),
    LINKTYPE_LINUX_SLL: (14, 16),
    LINKTYPE_LINUX_SLL2: (0, 20),
}


def _ethertype_at(buffer: Bytes, at: Ints, limit: Ints) -> Ints:
    value = gather(buffer, at, 2).view(">u2")[:, 0].astype(np.int64)
    value[at + 2 > limit] = 0
    return value


def _pauses(buffer: Bytes, frames: _Frames) -> Ints:
    """PAUSE (802.3 annex 31B) and PFC frames (802.1Q clause 36; annex 31D): see ``Network.pauses``."""
    head = gather(buffer, frames.start, 20).view(">u2").astype(np.int64)
    for word in range(head.shape[1]):
        head[frames.start + 2 * word + 2 > frames.limit, word] = 0
    by_class = head[:, 0] == _PAUSE_OPCODES[1]
    enabled = np.where(by_class, head[:, 1] & 0xFF, 0xFF)
    asked = np.where((enabled[:, None] >> np.arange(8) & 1) != 0, head[:, 2:10], 0)
    quanta = np.where(by_class, asked.max(axis=1), head[:, 1])
    rows: Ints = np.stack([frames.index, enabled, quanta], axis=1)[np.isin(head[:, 0], _PAUSE_OPCODES)]
    return rows


def _ipv4(buffer: Bytes, frames: _Frames) -> Network:
    head = words(buffer, frames.start, 7)  # with the UDP header, where there are no options
    first, third = head[:, 0], head[:, 2]
    length = (first >> 22 & 0x3C).astype(np.int64)
    udp_at = frames.start + length
    fragment = head[:, 1] & 0x3FFF
    udp = (first >> 28 == 4) & (length >= _IPV4_BYTES) & (third >> 16 & 0xFF == _UDP)
    udp &= frames.start + _IPV4_BYTES <= frames.limit
    later = udp & (fragment & 0x1FFF != 0)
    options = np.flatnonzero(udp & (length > _IPV4_BYTES))
    if len(options):
        head[options, 5:7] = words(buffer, udp_at[options], 2)
    roce = udp & ~later & (head[:, 5] & 0xFFFF == ROCE_UDP_PORT) & (udp_at + 4 <= frames.limit)
    if not roce.all():
        rows = np.flatnonzero(roce)
        frames, head, length, udp_at = frames.take(rows), head[rows], length[rows], udp_at[rows]
        first, third, fragment = head[:, 0], head[:, 2], fragment[rows]
    total = (first & 0xFFFF).astype(np.int64)
    wrong = _checksum_wrong(buffer, frames, head, length)
    pair = np.zeros((2, len(head), 2), np.uint64)
    pair[0, :, 1], pair[1, :, 1] = head[:, 3], head[:, 4]
    pair[:, :, 1] |= np.uint64(_MAPPED << 32)
    network = _over_udp(
        frames,
        head[:, 5:7],
        udp_at,
        frames.start + total,
        ip_version=4,
        tclass=first >> 16 & 0xFF,
        hop_limit=third >> 24,
        flow_label=np.zeros(len(head), np.int32),
        ip_id=head[:, 1] >> 16,
        fragment=fragment != 0,
        malformed=np.where(wrong, CHECKSUM, 0).astype(np.uint8),
        source=pair[0],
        destination=pair[1],
    )
    network.later_fragments = int(later.sum())
    return network


def _checksum_wrong(buffer: Bytes, frames: _Frames, head: Words, length: Ints) -> Bools:
    """Whether the IPv4 header checksum does not hold. Zero is taken for "the interface will fill it in"."""
    total = np.zeros(len(head), np.uint32)
    for column in range(5):
        total += (head[:, column] >> 16) + (head[:, column] & 0xFFFF)
    for i in np.flatnonzero(length > _IPV4_BYTES):
        options = buffer[int(frames.start[i]) + _IPV4_BYTES : int(frames.start[i] + length[i])]
        total[i] += int(options[: len(options) & ~1].view(">u2").sum())
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    whole = frames.start + length <= frames.limit
    wrong: Bools = (total != 0xFFFF) & (head[:, 2] & 0xFFFF != 0) & whole
    return wrong


def _ipv6(buffer: Bytes, frames: _Frames) -> Network:
    head = words(buffer, frames.start, 10)
    at = frames.start + _IPV6_BYTES
    following = (head[:, 1] >> 8 & 0xFF).astype(np.int64)
    sound = (head[:, 0] >> 28 == 6) & (at <= frames.limit)
    fragment, later = np.zeros(len(head), np.bool_), np.zeros(len(head), np.bool_)
    rows = np.flatnonzero(sound & np.isin(following, _EXTENSIONS))
    for _ in range(_MOST_EXTENSIONS):
        if not len(rows):
            break
        extension = words(buffer, at[rows], 1)[:, 0].astype(np.int64)
        there = at[rows] + 8 <= frames.limit[rows]
        is_fragment = (following[rows] == _FRAGMENT_HEADER) & there
        fragment[rows] |= is_fragment & (extension & 0xFFF9 != 0)  # an offset, or more to come
        later[rows] |= is_fragment & (extension & 0xFFF8 != 0)
        at[rows] += np.where(following[rows] == _FRAGMENT_HEADER, 8, ((extension >> 16 & 0xFF) + 1) * 8)
        following[rows] = np.where(there, extension >> 24, -1)
        rows = rows[np.isin(following[rows], _EXTENSIONS) & ~later[rows]]
    udp = sound & (following == _UDP)
    ports = words(buffer, at, 2)
    roce = udp & ~later & (ports[:, 0] & 0xFFFF == ROCE_UDP_PORT) & (at + 4 <= frames.limit)
    keep = np.flatnonzero(roce)
    frames, head, at = frames.take(keep), head[keep], at[keep]
    network = _over_udp(
        frames,
        ports[keep],
        at,
        frames.start + _IPV6_BYTES + (head[:, 1] >> 16),
        ip_version=6,
        fragment=fragment[keep],
        malformed=np.zeros(len(keep), np.uint8),
        **_ipv6_columns(head),
    )
    network.later_fragments = int((udp & later).sum())
    return network


def _grh(buffer: Bytes, frames: _Frames) -> Network:
    head = words(buffer, frames.start, 10)
    sound = (head[:, 1] >> 8 & 0xFF == _GRH_NEXT_BTH) & (frames.start + GRH.length <= frames.limit)
    keep = np.flatnonzero(sound)
    frames, head = frames.take(keep), head[keep]
    end = frames.start + GRH.length + (head[:, 1] >> 16)
    too_long = end > frames.wire
    end = np.minimum(end, frames.wire)
    return _packets(
        frames,
        6,
        1,
        bth=frames.start + GRH.length,
        end=end,
        truncated=end > frames.limit,
        sport=np.zeros(len(keep)),
        fragment=np.zeros(len(keep)),
        malformed=np.where(head[:, 0] >> 28 != 6, GRH_VERSION, np.where(too_long, IP_LENGTH, 0)),
        **_ipv6_columns(head),
    )


def _ipv6_columns(head: Words) -> dict[str, Any]:
    address = head[:, 2:].astype(np.uint64)
    pairs = address[:, 0::2] << np.uint64(32) | address[:, 1::2]
    return {
        "tclass": head[:, 0] >> 20 & 0xFF,
        "hop_limit": head[:, 1] & 0xFF,
        "flow_label": head[:, 0] & 0xFFFFF,
        "ip_id": np.zeros(len(head), np.uint16),
        "source": pairs[:, 0:2],
        "destination": pairs[:, 2:4],
    }


def _over_udp(
    frames: _Frames, udp: Words, at: Ints, ip_end: Ints, *, ip_version: int, fragment: Bools, **columns: Any
) -> Network:
    """Packets behind UDP headers. They end where IP and UDP agree, or else at the nearer of the two ends."""
    udp_end = at + (udp[:, 1] >> 16)
    malformed = columns.pop("malformed")
    malformed[(udp_end != ip_end) & ~fragment] = UDP_LENGTH
    malformed[(ip_end > frames.wire) | (ip_end < at + UDP_BYTES)] = IP_LENGTH
    ip_end = np.minimum(ip_end, frames.wire)
    # A first fragment's datagram ends in a later fragment: its own IP length says nothing about it.
    end = np.where(fragment, udp_end, np.minimum(ip_end, udp_end))
    cut = at + UDP_BYTES > frames.limit  # before the UDP length: the frame is all that is known
    if cut.any():
        malformed[cut], end[cut] = CUT, frames.wire[cut]
    truncated = cut | (ip_end > frames.limit)
    if fragment.any():
        # What stands behind a fragment in its frame is Ethernet's padding and no part of the datagram.
        frames = replace(frames, limit=np.where(fragment, np.minimum(frames.limit, ip_end), frames.limit))
    return _packets(
        frames,
        ip_version,
        2,
        bth=at + UDP_BYTES,
        end=end,
        truncated=truncated,
        sport=udp[:, 0] >> 16,
        fragment=fragment,
        malformed=malformed,
        **columns,
    )


def _packets(frames: _Frames, ip_version: int, roce_version: int, **columns: Any) -> Network:
    n = len(frames.index)
    return Network(
        index=frames.index,
        start=frames.start,
        bth=columns["bth"].astype(np.int64, copy=False),
        end=columns["end"].astype(np.int64, copy=False),
        limit=frames.limit,
        truncated=columns["truncated"].astype(np.bool_, copy=False),
        ip_version=np.full(n, ip_version, np.uint8),
        roce_version=np.full(n, roce_version, np.uint8),
        tclass=columns["tclass"].astype(np.uint8),
        hop_limit=columns["hop_limit"].astype(np.uint8),
        flow_label=columns["flow_label"].astype(np.int32),
        ip_id=columns["ip_id"].astype(np.uint16),
        udp_sport=columns["sport"].astype(np.uint16),
        vlan=frames.vlan,
        priority=frames.priority,
        source=columns["source"],
        destination=columns["destination"],
        fragment=columns["fragment"].astype(np.bool_),
        malformed=columns["malformed"].astype(np.uint8),
    )


def least_end(network: Network) -> Ints:
    """Where the bytes end that can be read as headers: before the ICRC, and before the capture's cut."""
    return np.minimum(network.limit, network.end - ICRC_BYTES)


def address_text(high: int, low: int) -> str:
    """An address as people write it, from its two 64-bit halves; an IPv4-mapped one (a GID) in dots."""
    if not high and low >> 32 == _MAPPED:
        return str(IPv4Address(low & 0xFFFF_FFFF))
    return str(IPv6Address(high << 64 | low))


def address_keys(pairs: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A 64-bit word for each address, mixed from its halves. IPv6 addresses may collide, IPv4 ones cannot."""
    return pairs[:, 0] * _MIXER ^ pairs[:, 1]
