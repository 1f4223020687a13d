"""Frames without their addresses, keys and payload, with new checksums and ICRCs.

A checksum or an ICRC that was invalid is invalid again. All bytes that are not known to be harmless become
zero: payload, pad, bytes after the packet, options. Lengths never change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from rocekit import wire
from rocekit.edit.outer import Outer, OuterChecksums
from rocekit.edit.redact_mad import redact_mad, redact_offer
from rocekit.files.frames import (
    LINKTYPE_ETHERNET,
    LINKTYPE_LINUX_SLL,
    LINKTYPE_LINUX_SLL2,
    USUAL_LINKTYPES,
    FrameBatch,
)
from rocekit.packets import (
    FIELD_HOMES,
    HAS,
    HEADERS_BYTES,
    ICRC_INVALID,
    ICRC_UNCHECKED,
    PLACE_WORDS,
    Packets,
)
from rocekit.packets.icrc_columns import icrc_columns
from rocekit.packets.locations import Locations, least_end
from rocekit.wire.byte_rows import gather, scatter
from rocekit.wire.network import (
    ETHERTYPE_IPV4,
    ETHERTYPE_IPV6,
    ETHERTYPE_MAC_CONTROL,
    IPV4_BYTES,
    IPV6_BYTES,
    MAPPED_PREFIX,
    UDP_BYTES,
    UDP_PROTOCOL,
    internet_checksum,
)
from rocekit.wire.sorting import distinct

if TYPE_CHECKING:
    from rocekit.edit.redact import Redactor

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]

_TCP: Final = 6
_TCP_BYTES: Final = 20
_UDP: Final = 17
_NO_OPERATION: Final = 1  # an option of IPv4 and TCP without content
_FRAGMENT: Final = 44
_EXTENSIONS: Final = (0, 43, 44, 60)
_PAUSE_BYTES: Final = 20  # opcode, and PFC's times of eight classes
_WRONG: Final = (0x0F0F, 0x00F0)  # XORed with a valid 16-bit checksum, it is invalid
#: In cooked captures: offsets of the sender's link address and of its length, and the bytes of that.
_COOKED: Final = {LINKTYPE_LINUX_SLL: (6, 4, 2), LINKTYPE_LINUX_SLL2: (12, 11, 1)}
_LINK_ADDRESS_BYTES: Final = 8
_IPV4_ADDRESS: Final = 4  # bytes


def redact_batch(
    batch: FrameBatch,
    packets: Packets,
    network: Locations,
    others: Sequence[int],
    redactor: Redactor,
    doubtful: NDArray[np.bool_] | None = None,
) -> FrameBatch:
    """A batch with its RoCE packets and the named other frames redacted.

    Args:
        batch: any frames; its buffer is not changed.
        packets: the RoCE packets of this batch, with their ICRCs checked; network: where they are in it.
        others: indices in the batch of frames that are PAUSE, PFC, or a TCP exchange of QP numbers; frames
        that
            are neither RoCE nor named here become all zeros.
        doubtful: packets so damaged that their opcodes do not determine the headers after the BTH; None:
        those
            with an invalid ICRC.
    """
    view = replace(batch, buffer=batch.buffer.copy())
    strangers = np.setdiff1d(np.arange(len(batch)), network.index)
    kept = set(others)
    for i in strangers.tolist():
        at, end = int(batch.offset[i]), int(batch.offset[i] + batch.caplen[i])
        view.buffer[at:end] = 0
        if i in kept:
            _other(batch, view.buffer, i, int(network.layer[i]), int(network.ethertype[i]), redactor)
    if len(network):
        wrong = packets.icrc_state == ICRC_INVALID if doubtful is None else doubtful
        _Roce(batch, view.buffer, packets, network, redactor, wrong).redact()
        _link_addresses(view, network.index, redactor)
        _around(batch, view.buffer, packets, network, redactor)
    return view


# ---------------------------------------------------------------------- RoCE packets


class _Roce:
    """The packets of a batch; ``old`` has the captured bytes, ``new`` the redacted ones."""

    def __init__(
        self,
        batch: FrameBatch,
        new: Bytes,
        packets: Packets,
        network: Locations,
        redactor: Redactor,
        doubtful: NDArray[np.bool_],
    ) -> None:
        self._batch, self._old, self._new = batch, batch.buffer, new
        self._packets, self._net = packets, network
        self._redactor = redactor
        self._doubtful = doubtful
        self._has = np.where(doubtful, 0, packets.has)
        self._ip_bytes = network.bth - network.start - np.where(network.roce_version == 2, UDP_BYTES, 0)

    def redact(self) -> None:
        self._blank()
        self._fields()
        self._pkeys()
        self._options()
        self._ip_addresses()
        self._ip_checksums()
        self._icrcs()
        self._udp_checksums()

    def _blank(self) -> None:
        """Zeros from the payload to the end of the frame; MADs are rewritten."""
        p, net = self._packets, self._net
        readable = least_end(net)
        begins = net.bth + np.where(self._doubtful, wire.BTH.length, HEADERS_BYTES[p.opcode])
        for i in np.flatnonzero(begins > readable).tolist():
            begins[i] = self._whole_headers(i, int(readable[i]))
        ends = (self._batch.offset + self._batch.caplen)[net.index]  # bytes after the packet become zero, too
        mads = np.isin(p.dest_qpn, wire.MAD_QPNS) & (self._has & HAS["DETH"] != 0) & (begins <= readable)
        texts = {i: redact_mad(p.payload(i), self._redactor) for i in np.flatnonzero(mads).tolist()}
        new = self._new
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            new[begin:end] = 0
        for i, text in texts.items():
            at = int(begins[i])
            new[at : at + len(text)] = np.frombuffer(text, np.uint8)

    def _whole_headers(self, i: int, readable: int) -> int:
        """The end of the headers that are complete in packet ``i``."""
        at = int(self._net.bth[i]) + wire.BTH.length
        if at > readable:
            return max(readable, int(self._net.bth[i]))
        opcode = wire.OPCODES.get(int(self._packets.opcode[i]))
        for header in opcode.headers if opcode is not None else ():
            if at + header.length > readable:
                break
            at += header.length
        return at

    def _fields(self) -> None:
        """Redact keys, memory addresses, and data in headers."""
        redactor = self._redactor
        ways: dict[str, Callable[[int], int]] = {
            "remote_va": redactor.address,
            "rkey": redactor.key,
            "invalidate_rkey": redactor.key,
            "immediate": redactor.key,
            "qkey": redactor.qkey,
            "swap_add": redactor.value,
            "compare": redactor.value,
            "original": redactor.value,
        }
        p = self._packets
        for name, way in ways.items():
            for header, field in FIELD_HOMES[name]:
                rows = np.flatnonzero(self._has & HAS[header.name])
                if len(rows):
                    place = PLACE_WORDS[header.name][p.opcode[rows]].astype(np.int64) * 4 + field.offset // 8
                    self._put(self._net.bth[rows] + place, _each(p[name][rows], way), field.bits // 8)

    def _pkeys(self) -> None:
        p = self._packets
        rows = np.flatnonzero(~np.isin(p.pkey, (0, 0x7FFF, 0xFFFF)) & (p.opcode >= 0))
        if len(rows):
            place = self._net.bth[rows] + wire.BTH.by_name["pkey"].offset // 8
            self._put(place, _each(p.pkey[rows], self._redactor.pkey), 2)

    def _put(self, at: Ints, values: NDArray[np.uint64], width: int) -> None:
        """Write numbers, big-endian."""
        scatter(self._new, at, values.astype(">u8").view(np.uint8).reshape(-1, 8)[:, 8 - width :])

    def _options(self) -> None:
        """Redact IPv4 options and IPv6 extension headers, which may contain addresses."""
        net = self._net
        for i in np.flatnonzero((net.roce_version == 2) & (self._ip_bytes > IPV4_BYTES)).tolist():
            start, end = int(net.start[i]), int(net.start[i] + self._ip_bytes[i])
            if net.ip_version[i] == 4:
                self._new[start + IPV4_BYTES : end] = _NO_OPERATION
            else:
                self._extensions(start, end)

    def _extensions(self, start: int, end: int) -> None:
        kind, at = int(self._old[start + 6]), start + IPV6_BYTES
        while kind in _EXTENSIONS and at < end:
            length = 8 if kind == _FRAGMENT else 8 + 8 * int(self._old[at + 1])
            if kind != _FRAGMENT:
                self._new[at + 2 : min(at + length, end)] = 0
            kind, at = int(self._old[at]), at + length

    def _ip_addresses(self) -> None:
        p, net = self._packets, self._net
        table = np.array([list(self._redactor.ip_bytes(text)) for text in p.addresses], np.uint8).reshape(
            -1, 16
        )
        for version, first, width in ((4, 12, 4), (6, 8, 16)):
            rows = np.flatnonzero(net.ip_version == version)
            for numbers, at in ((p.src, first), (p.dst, first + width)):
                if len(rows):
                    scatter(self._new, net.start[rows] + at, table[numbers[rows], 16 - width :])

    def _ip_checksums(self) -> None:
        net = self._net
        whole = (net.ip_version == 4) & (net.start + self._ip_bytes <= net.limit)
        for length in distinct(self._ip_bytes[whole]).tolist():
            rows = np.flatnonzero(whole & (self._ip_bytes == length))
            old = gather(self._old, net.start[rows], length).view(">u2").astype(np.int64)
            new = gather(self._new, net.start[rows], length).view(">u2").astype(np.int64)
            sent, old[:, 5], new[:, 5] = old[:, 5].copy(), 0, 0
            was, now = 0xFFFF - _fold(old.sum(axis=1)), 0xFFFF - _fold(new.sum(axis=1))
            wrong = np.where(np.isin(now ^ _WRONG[0], (0, 0xFFFF)), now ^ _WRONG[1], now ^ _WRONG[0])
            value = np.where(sent == 0, 0, np.where(_fold(sent) == _fold(was), now, wrong))
            scatter(self._new, net.start[rows] + 10, value.astype(">u2").view(np.uint8).reshape(-1, 2))

    def _icrcs(self) -> None:
        p, net = self._packets, self._net
        rows = np.flatnonzero(p.icrc_state != ICRC_UNCHECKED)
        if not len(rows):
            return
        at = net.end[rows] - wire.ICRC_BYTES
        icrc = icrc_columns(self._new, net.start[rows], net.bth[rows], at, net.roce_version[rows] == 2)
        wrong = p.icrc_state[rows] == ICRC_INVALID
        if wrong.any():
            own = icrc_columns(self._old, net.start[rows], net.bth[rows], at, net.roce_version[rows] == 2)
            sent = p.icrc[rows]
            # An ICRC that a device left out stays left out; any other is wrong by the same bits as before.
            constant = np.isin(sent, (0, 0xFFFFFFFF)) & (sent != icrc)
            icrc = np.where(wrong, np.where(constant, sent, icrc ^ sent ^ own), icrc)
        scatter(self._new, at, icrc.astype("<u4").view(np.uint8).reshape(-1, 4))

    def _udp_checksums(self) -> None:
        """Write new UDP checksums; most senders leave them 0, which means that there is none (A17.3.2.4)."""
        net = self._net
        at = net.bth - UDP_BYTES
        rows = np.flatnonzero((net.roce_version == 2) & (net.bth <= net.limit))
        sent = gather(self._new, at[rows] + 6, 2).view(">u2")[:, 0]
        for i, old in zip(rows[sent != 0].tolist(), sent[sent != 0].tolist(), strict=True):
            begin, end = int(at[i]), int(net.end[i])
            value = 0
            if not net.truncated[i] and not net.fragment[i]:
                addresses = _addresses_at(int(net.start[i]), int(net.ip_version[i]))
                was = _transport_checksum(self._old, addresses, begin, end, begin + 6, UDP_PROTOCOL)
                now = _transport_checksum(self._new, addresses, begin, end, begin + 6, UDP_PROTOCOL)
                value = _in_place_of(old, was or 0xFFFF, now or 0xFFFF)
            self._new[begin + 6 : begin + 8] = (value >> 8, value & 0xFF)


def _around(batch: FrameBatch, new: Bytes, packets: Packets, network: Locations, redactor: Redactor) -> None:
    """Redact what is around packets: outer addresses, options; their checksums are as valid as before."""
    tagged = np.array([not w.outer and all("VLAN" in layer for layer in w.layers) for w in packets.wrappings])
    usual = np.isin(batch.linktype[network.index], USUAL_LINKTYPES)
    for i in np.flatnonzero(~(tagged[packets.encapsulation] & usual)).tolist():
        index = int(network.index[i])
        begin, end = int(batch.offset[index]), int(batch.offset[index] + batch.caplen[index])
        old = bytearray(batch.buffer[begin:end].tobytes())
        data = bytearray(new[begin:end].tobytes())
        outer = Outer.of(bytes(old), int(batch.linktype[index]), int(network.start[i]) - begin)
        checksums = OuterChecksums(old, outer)
        outer.blank(data)
        outer.change_addresses(data, lambda raw: _new_address(raw, redactor))
        outer.change_macs(data, lambda raw: redactor.mac(int.from_bytes(raw, "big")).to_bytes(6, "big"))
        checksums.restore(data)
        new[begin:end] = np.frombuffer(data, np.uint8)


def _new_address(raw: bytes, redactor: Redactor) -> bytes:
    """The replacement of an address in an IP header."""
    mapped = MAPPED_PREFIX + raw if len(raw) == _IPV4_ADDRESS else raw
    return redactor.gid(mapped)[16 - len(raw) :]


def _each(column: NDArray[Any], way: Callable[[int], int]) -> NDArray[np.uint64]:
    """A column with every value replaced; each different value is computed once."""
    values, place = np.unique(column, return_inverse=True)
    return np.array([way(int(value)) for value in values.tolist()], np.uint64)[place]


# ---------------------------------------------------------------------- link layer and other frames


def _link_addresses(batch: FrameBatch, rows: Ints, redactor: Redactor) -> None:
    """Redact MAC addresses, and link addresses of cooked captures, in place."""
    kinds = batch.linktype[rows]
    ethernet = batch.offset[rows[kinds == LINKTYPE_ETHERNET]]
    if len(ethernet):
        words = gather(batch.buffer, ethernet, 12).view(">u2").astype(np.uint64).reshape(-1, 2, 3)
        macs = words[..., 0] << np.uint64(32) | words[..., 1] << np.uint64(16) | words[..., 2]
        new = _each(macs.ravel(), redactor.mac).astype(">u8").view(np.uint8).reshape(-1, 8)[:, 2:]
        scatter(batch.buffer, ethernet, new.reshape(-1, 12))
    for kind, (place, length_at, width) in _COOKED.items():
        for at in batch.offset[rows[kinds == kind]].tolist():
            length = int.from_bytes(batch.buffer[at + length_at : at + length_at + width].tobytes(), "big")
            old = batch.buffer[at + place : at + place + _LINK_ADDRESS_BYTES].tobytes()
            new_mac = redactor.mac(int.from_bytes(old[:6], "big")).to_bytes(6, "big") if length == 6 else b""
            batch.buffer[at + place : at + place + _LINK_ADDRESS_BYTES] = np.frombuffer(
                new_mac.ljust(_LINK_ADDRESS_BYTES, b"\0"), np.uint8
            )


def _other(batch: FrameBatch, new: Bytes, i: int, start: int, ethertype: int, redactor: Redactor) -> None:
    """Write a PAUSE, PFC or TCP frame into ``new``, which is all zeros."""
    old, begin, end = batch.buffer, int(batch.offset[i]), int(batch.offset[i] + batch.caplen[i])
    keep = min(start, end)
    if ethertype == ETHERTYPE_MAC_CONTROL:
        keep = min(start + _PAUSE_BYTES, end)
    elif ethertype in (ETHERTYPE_IPV4, ETHERTYPE_IPV6):
        _tcp(old, new, start, end, redactor)
    new[begin:keep] = old[begin:keep]
    view = replace(batch, buffer=new)
    _link_addresses(view, np.array([i]), redactor)


def _tcp(old: Bytes, new: Bytes, start: int, end: int, redactor: Redactor) -> None:
    """Write a TCP segment with the QPs exchanged in it; zeros if it is none, or truncated in its headers."""
    version = int(old[start]) >> 4
    if end - start < IPV6_BYTES:
        return
    if version == 4:
        protocol, tcp = int(old[start + 9]), start + (int(old[start]) & 15) * 4
        stop = start + int.from_bytes(old[start + 2 : start + 4].tobytes(), "big")
        fixed = IPV4_BYTES
    else:
        protocol, tcp, fixed = int(old[start + 6]), start + IPV6_BYTES, IPV6_BYTES
        stop = tcp + int.from_bytes(old[start + 4 : start + 6].tobytes(), "big")
    if protocol != _TCP or tcp + _TCP_BYTES > end:
        return
    text = tcp + (int(old[tcp + 12]) >> 4) * 4
    stop = max(min(stop, end), min(text, end))
    new[start : start + fixed] = old[start : start + fixed]
    new[start + fixed : tcp] = _NO_OPERATION
    new[tcp : tcp + _TCP_BYTES] = old[tcp : tcp + _TCP_BYTES]
    new[tcp + _TCP_BYTES : min(text, end)] = _NO_OPERATION
    new[text:stop] = np.frombuffer(redact_offer(old[text:stop].tobytes(), redactor), np.uint8)
    places = _addresses_at(start, version)
    width = (places[1] - places[0]) // 2
    for at in (places[0], places[0] + width):
        raw = old[at : at + width].tobytes()
        new[at : at + width] = np.frombuffer(_new_address(raw, redactor), np.uint8)
    if version == 4:
        was, now = (_checksum(b[start:tcp].tobytes(), 10) for b in (old, new))
        _replace(old, new, start + 10, was, now)
    was, now = (_transport_checksum(b, places, tcp, stop, tcp + 16, _TCP) for b in (old, new))
    _replace(old, new, tcp + 16, was, now)


def _replace(old: Bytes, new: Bytes, at: int, was: int, now: int) -> None:
    """Write a checksum that is valid if the old one was."""
    value = _in_place_of(int.from_bytes(old[at : at + 2].tobytes(), "big"), was, now)
    new[at : at + 2] = (value >> 8, value & 0xFF)


# ---------------------------------------------------------------------- checksums


def _in_place_of(sent: int, was: int, now: int) -> int:
    """The new checksum: ``now`` if ``sent`` was the valid one, ``was``; else an invalid one."""
    if sent == was:
        return now
    wrong = now ^ _WRONG[0]
    return now ^ _WRONG[1] if wrong in (0, 0xFFFF) else wrong


def _fold(total: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ones' complement sums in 16 bits (RFC 1071)."""
    total = (total & 0xFFFF) + (total >> 16)
    return (total & 0xFFFF) + (total >> 16)


def _checksum(data: bytes, at: int) -> int:
    return internet_checksum(data[:at] + data[at + 2 :])


def _addresses_at(start: int, version: int) -> tuple[int, int]:
    """The offsets where an IP header's two addresses start and end."""
    return (start + 12, start + 20) if version == 4 else (start + 8, start + 40)


def _transport_checksum(
    buffer: Bytes, addresses: tuple[int, int], begin: int, end: int, at: int, protocol: int
) -> int:
    """The checksum of a UDP or TCP segment with its pseudo header (RFC 768, RFC 9293, RFC 8200)."""
    segment = buffer[begin:at].tobytes() + b"\0\0" + buffer[at + 2 : end].tobytes()
    pseudo = buffer[addresses[0] : addresses[1]].tobytes()
    pseudo += len(segment).to_bytes(4, "big") + protocol.to_bytes(4, "big")
    return internet_checksum(pseudo + segment)
