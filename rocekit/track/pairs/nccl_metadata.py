"""QPNs in C structs: the TCP exchange with which NCCL connects its QPs.

The sender of a channel connects to its receiver over TCP. Each end sends one struct (little endian) with the
QPNs of its side, and the GIDs, MTUs and ports of its devices; QP i of one end is connected with QP i of the
other. Every QP starts at PSN 0. Three kinds of struct exist: up to 2.9 one QP, up to 2.19 128 QPNs of one
device (``ncclIbQpInfo``), from 2.20 on 128 QPs striped over several devices (``ncclIbConnectionMetadata``).
From 2.16 on the sender first sends a magic number and the type of its socket, from 2.24 on both ends send
their lists of devices before the struct.

Until 2.23, unused slots of a struct keep what the stack had there. Where they are not zero, only the QPs that
every connection has are read: one of each device.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.track.pairs.handshake import Offer
from rocekit.track.pairs.tcp_bytes import TcpStarts
from rocekit.wire.applications.programs import NCCL
from rocekit.wire.network import address_text

if TYPE_CHECKING:
    from rocekit.files.frames import FrameBatch

_SLOTS: Final = 128
_QPN_BITS, _FIRST_QPN = 24, 2
_MOST_LID, _MOST_PORT, _MOST_MTU, _ETHERNET, _INFINIBAND = 0xFFFF, 16, 5, 2, 1
_STARTING_PSN: Final = 0
#: QPNs that an end creates in a row are this near, where nothing says which slots are used.
_NEAR: Final = 1 << 12
_MAPPED: Final = bytes(10) + b"\xff\xff"
_LINK_LOCAL: Final = b"\xfe\x80" + bytes(6)
#: The magic number and the type of the socket; the type of NCCL's IB transport.
_HELLO, _TYPE_AT, _IB_SOCKET = 12, 8, 4

_SLOT: Final = struct.Struct("<I12xiI")  # QPN, (ECE), ECE supported, device
_DEVICE: Final = struct.Struct("<IB3xIB3x16s24x")  # LID, port, MTU, link layer, GID
_NAME: Final = re.compile(rb"[\x21-\x7e]+\0+")


@dataclass(frozen=True, slots=True)
class EndQps:
    """What a struct says of its sender.

    Attributes:
        qps: (GID, QPN) by position.
        complete: whether these are surely all its QPs.
    """

    qps: tuple[tuple[bytes, int], ...]
    complete: bool


@dataclass(frozen=True, slots=True)
class OneDevice:
    """``ncclIbQpInfo``: the QPs of one device.

    Attributes:
        slots: places for QPNs.
        gid_at: where the GID is; the MTU follows it.
    """

    slots: int
    gid_at: int

    @property
    def size(self) -> int:
        return self.gid_at + 32

    def may_be(self, data: bytes | bytearray, at: int) -> bool:
        """Whether what is there of a struct allows that it is one."""
        if len(data) < at + 12:
            return True
        lid, port, link, qpn = struct.unpack_from("<IBB2xI", data, at)
        known = lid == 0 or (self.slots > 1 and link == _ETHERNET and lid <= _MOST_LID)
        layer = self.slots == 1 or link != _INFINIBAND
        return known and layer and 0 < port <= _MOST_PORT and _is_qpn(qpn)

    def read(self, data: bytes | bytearray, at: int) -> EndQps | None:
        """The struct at ``at``; None if it is none."""
        gid = bytes(data[at + self.gid_at : at + self.gid_at + 16])
        (mtu,) = struct.unpack_from("<I", data, at + self.gid_at + 16)
        if not self.may_be(data, at) or not 0 < mtu <= _MOST_MTU or not _is_gid(gid):
            return None
        if self.slots == 1 and len(data) != at + self.size:  # nothing follows the short struct
            return None
        qpns = struct.unpack_from(f"<{self.slots}I", data, at + 8)
        used = _used(qpns)
        near = all(abs(qpn - qpns[0]) < _NEAR for qpn in qpns[:used])
        if any(qpns[used:]) or not near or len(set(qpns[:used])) != used:
            return EndQps(((gid, qpns[0]),), complete=False)
        return EndQps(tuple((gid, qpn) for qpn in qpns[:used]), complete=True)


@dataclass(frozen=True, slots=True)
class SeveralDevices:
    """``ncclIbConnectionMetadata``: QPs striped over the devices of a merged NIC.

    Attributes:
        devices: places for devices.
        name: bytes of a device's name.
        spare: slots behind the QPs' for those that watch and recover ports.
        cleared: whether NCCL clears the struct first.
    """

    devices: int
    name: int
    spare: int = 0
    cleared: bool = True

    @property
    def _devices_at(self) -> int:
        return (_SLOTS + self.spare) * _SLOT.size

    @property
    def _name_at(self) -> int:
        return self._devices_at + self.devices * _DEVICE.size

    @property
    def _address_at(self) -> int:
        return -(-(self._name_at + (self.name + 1) * self.devices) // 8) * 8

    @property
    def size(self) -> int:
        """Up to the number of devices, the last field that is read."""
        return self._address_at + 12

    def may_be(self, data: bytes | bytearray, at: int) -> bool:
        """Whether what is there of a struct allows that it is one."""
        if len(data) < at + _SLOT.size:
            return True
        qpn, _, device = _SLOT.unpack_from(data, at)
        return _is_qpn(qpn) and device == 0

    def read(self, data: bytes | bytearray, at: int) -> EndQps | None:
        """The struct at ``at``; None if it is none."""
        address, count = struct.unpack_from("<QI", data, at + self._address_at)
        name = bytes(data[at + self._name_at : at + self._name_at + (self.name + 1) * self.devices])
        if not address or not 0 < count <= self.devices or not _NAME.fullmatch(name):
            return None
        gids = []
        for n in range(count):
            lid, port, mtu, link, gid = _DEVICE.unpack_from(data, at + self._devices_at + n * _DEVICE.size)
            if lid > _MOST_LID or not 0 < port <= _MOST_PORT or not 0 < mtu <= _MOST_MTU:
                return None
            if link != _ETHERNET or not _is_gid(gid):
                return None
            gids.append(gid)
        rest = data[at + self._devices_at + count * _DEVICE.size : at + self._name_at]
        if self.cleared and any(rest):
            return None
        return self._qps(data[at : at + _SLOTS * _SLOT.size], gids)

    def _qps(self, data: bytes | bytearray, gids: Sequence[bytes]) -> EndQps | None:
        slots = list(_SLOT.iter_unpack(data))
        used = _used([qpn for qpn, _, _ in slots])
        qps = tuple((gids[n % len(gids)], qpn) for n, (qpn, _, _) in enumerate(slots[:used]))
        rest = data[used * _SLOT.size :]
        striped = all(device == n % len(gids) for n, (_, _, device) in enumerate(slots[:used]))
        known = all(supported in (0, 1) for _, supported, _ in slots[:used])
        right = striped and len(set(qps)) == used
        if right and known and used >= len(gids) and not any(rest):
            return EndQps(qps, complete=True)
        if self.cleared:
            return None
        first = slots[: len(gids)]
        if used < len(gids) or any(device != n for n, (_, _, device) in enumerate(first)):
            return None
        return EndQps(qps[: len(gids)], complete=False) if len(set(qps[: len(gids)])) == len(gids) else None


@dataclass(frozen=True, slots=True)
class Layout:
    """A struct, and what is sent before it.

    Attributes:
        hello: whether the end that connects first sends a magic number and a type.
        devices: places in the lists of devices, 0 without lists.
        flags: bytes behind each list.
    """

    body: OneDevice | SeveralDevices
    hello: bool
    devices: int = 0
    flags: int = 0

    @property
    def starts(self) -> tuple[int, int]:
        """Where the struct starts in what the end that connects sends, and the other one."""
        before = 4 * (1 + self.devices) + self.flags if self.devices else 0
        return before + _HELLO * self.hello, before

    def may_be(self, data: bytes | bytearray, at: int, hello: int) -> bool:
        """Whether the bytes so far can be the start of this layout, its struct at ``at``."""
        if hello and len(data) >= hello and _word(data, _TYPE_AT) != _IB_SOCKET:
            return False
        if self.devices and len(data) >= hello + 4 and not 0 < _word(data, hello) <= self.devices:
            return False
        return self.body.may_be(data, at)


LAYOUTS: Final = (
    Layout(OneDevice(1, 16), hello=False),  # 2.3 to 2.9
    Layout(OneDevice(_SLOTS, 520), hello=False),  # 2.10 to 2.15
    Layout(OneDevice(_SLOTS, 520), hello=True),  # 2.16 to 2.18
    Layout(OneDevice(_SLOTS, 2568), hello=True),  # 2.19, with ECE
    Layout(SeveralDevices(2, 64, cleared=False), hello=True),  # 2.20 to 2.23
    Layout(SeveralDevices(4, 64), hello=True, devices=4),  # 2.24 to 2.26
    Layout(SeveralDevices(4, 80), hello=True, devices=4),  # 2.27 to 2.29.3
    Layout(SeveralDevices(4, 80, spare=4), hello=True, devices=4),  # 2.29.7
    Layout(SeveralDevices(8, 80, spare=16), hello=True, devices=8, flags=1),  # 2.30
)
MOST_BYTES: Final = max(layout.starts[0] + layout.body.size for layout in LAYOUTS)
#: (layout, its number, whether the end connects, where its struct starts and ends, bytes of magic and type).
_WAYS: Final = tuple(
    (layout, number, connects, at, at + layout.body.size, _HELLO * (layout.hello and connects))
    for number, layout in enumerate(LAYOUTS)
    for connects, at in zip((False, True), reversed(layout.starts), strict=True)
)
#: (number of the layout, whether its sender connected): what it says.
Ends = dict[tuple[int, bool], EndQps]


def read_start(data: bytes | bytearray) -> tuple[Ends, bool]:
    """The structs that the first bytes of a TCP direction can be, and whether more bytes can make others."""
    found: Ends = {}
    may_come = False
    for layout, number, connects, at, end, hello in _WAYS:
        if not layout.may_be(data, at, hello):
            continue
        if len(data) < end:
            may_come = True
            continue
        qps = layout.body.read(data, at)
        if qps is not None:
            found[number, connects] = qps
    return found, may_come


class NcclExchanges:
    """Reads the frames of a capture that are not RoCE, and finds the QP pairs of NCCL in them."""

    def __init__(self) -> None:
        self._starts = TcpStarts(MOST_BYTES)

    @property
    def row(self) -> int:
        """The frame of the batch that completed the last pair."""
        return self._starts.row

    def feed(self, batch: FrameBatch, others: NDArray[np.int64]) -> Iterator[tuple[Offer, Offer]]:
        """The pairs that this batch completes, the end that connected in front.

        Args:
            others: which frames of the batch are not RoCE.
        """
        for direction in self._starts.feed(batch, others):
            found, may_come = read_start(direction.data)
            other = self._starts.reverse(direction)
            pairs = _pairs(found, {} if other is None else read_start(other.data)[0])
            if pairs and other is not None:
                yield from pairs
                self._starts.close(direction)
                self._starts.close(other)
            elif not found and not may_come:
                self._starts.close(direction)


def _pairs(here: Ends, there: Ends) -> list[tuple[Offer, Offer]]:
    """The pairs of two directions of a connection; none unless both have the same layout and as many QPs.

    Where nothing before the struct tells who connected, it was ``there``, which sent first.
    """
    for (number, connects), side in here.items():
        other = there.get((number, not connects))
        if other is None:
            continue
        first, second = (side, other) if connects else (other, side)
        if side.complete and other.complete and len(side.qps) != len(other.qps):
            continue
        qps = list(zip(first.qps, second.qps, strict=False))
        if all(a != b and _is_mapped(a[0]) == _is_mapped(b[0]) for a, b in qps):
            return [(_offer(*a), _offer(*b)) for a, b in qps]
    return []


def _offer(gid: bytes, qpn: int) -> Offer:
    high, low = struct.unpack(">QQ", gid)
    return Offer(address_text(high, low), qpn, _STARTING_PSN, program=NCCL)


def _word(data: bytes | bytearray, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def _is_qpn(number: int) -> bool:
    return _FIRST_QPN <= number < 1 << _QPN_BITS


def _used(qpns: Sequence[int]) -> int:
    """How many slots from the first on have a QPN."""
    return next((n for n, qpn in enumerate(qpns) if not _is_qpn(qpn)), len(qpns))


def _is_mapped(gid: bytes) -> bool:
    return gid.startswith(_MAPPED)


def _is_gid(gid: bytes) -> bool:
    """Whether it is the IPv4-mapped or IPv6 address of a host."""
    if _is_mapped(gid):
        return 0 < gid[12] < 224 and gid[12] != 127
    if gid.startswith(_LINK_LOCAL):
        return any(gid[8:])
    return gid[0] >> 5 == 1 or gid[0] >> 1 == 0xFC >> 1
