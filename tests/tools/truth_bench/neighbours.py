"""The neighbours of a capture: the same traffic, captured less well (the truth bench).

What happened on the wire stays the same, so the truth does too, and so do the frames' numbers: a packet that
a neighbour does not have is put into an Ethernet type that nobody reads. What is claimed of a neighbour may
be less, and must not be more false.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_HEADER, _ETHERNET, _BTH = 24, 14, 42
_MAGIC: Final = b"\x4d\x3c\xb2\xa1"
_RECORD: Final = struct.Struct("<4I")
_READ_RESPONSES: Final = range(13, 17)
_ACK, _ATOMIC_ACK, _NAK = 17, 18, 3
#: An Ethernet type for experiments (IEEE 802): the frame is there, and nobody reads it.
_HIDDEN: Final = b"\x88\xb5"
#: The last headers of a WRITE with their first bytes: Ethernet, IPv4, UDP, BTH and 12 bytes more.
_CUT_AT: Final = 66
_PORT: Final = b"\xc0\x00"
_MISSED, _STAMPED_LATE, _LATE_NS = 0.03, 0.05, 60_000
#: How often a capture begins to miss packets, and how many in a row.
_HOLES, _HOLE_PACKETS = 0.01, 25
_AHEAD_NS, _FASTER = 3_700_000, 50
#: Of the lab's two hosts.
_MACS: Final = (b"\x02\0\0\0\0\x01", b"\x02\0\0\0\0\x02")


@dataclass
class Frame:
    """A record of a pcap file: its time, its length on the wire, its bytes."""

    second: int
    nanosecond: int
    length: int
    data: bytearray

    @property
    def is_roce(self) -> bool:
        """Whether it is a RoCE packet of a connection over IPv4 (and not of CM)."""
        data = self.data
        return (
            len(data) > _BTH + 12
            and data[12:14] == b"\x08\x00"
            and data[36:38] == b"\x12\xb7"
            and int.from_bytes(data[_BTH + 5 : _BTH + 8], "big") != 1
        )

    @property
    def is_response(self) -> bool:
        return self.data[_BTH] in _READ_RESPONSES or self.data[_BTH] in (_ACK, _ATOMIC_ACK)

    @property
    def is_nak(self) -> bool:
        """Whether it is a NAK; RNR NAKs are not."""
        return self.data[_BTH] == _ACK and self.data[_BTH + 12] >> 5 == _NAK

    def hide(self) -> None:
        self.data[12:14] = _HIDDEN


def _hide_if(unwanted: Callable[[Frame], bool]) -> Callable[[Frame, random.Random], None]:
    def change(frame: Frame, _: random.Random) -> None:
        if unwanted(frame):
            frame.hide()

    return change


def _miss(frame: Frame, rng: random.Random) -> None:
    if rng.random() < _MISSED:
        frame.hide()


def _without_icrc(frame: Frame) -> None:
    """What the ICRC covers is changed, so where there is one it goes."""
    if len(frame.data) == frame.length:
        del frame.data[-4:]


def _one_port(frame: Frame, _: random.Random) -> None:
    """All QPs of a host send from one UDP source port, as where a setting or a tunnel makes it one."""
    _without_icrc(frame)
    frame.data[_ETHERNET + 20 : _ETHERNET + 22] = _PORT


def _zero_identification(frame: Frame, _: random.Random) -> None:
    """As NICs send: identification 0."""
    _without_icrc(frame)
    header = frame.data[_ETHERNET : _ETHERNET + 20]
    header[4:6] = header[10:12] = b"\0\0"
    total = sum(struct.unpack(">10H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    header[10:12] = struct.pack(">H", ~total & 0xFFFF)
    frame.data[_ETHERNET : _ETHERNET + 20] = header


def _stamp_late(frame: Frame, rng: random.Random) -> None:
    """A queue that stamps its packets late: time runs back at the next record."""
    if rng.random() < _STAMPED_LATE:
        seconds, frame.nanosecond = divmod(frame.nanosecond + rng.randrange(_LATE_NS), 10**9)
        frame.second += seconds


def _cut(at: int) -> Callable[[Frame, random.Random], None]:
    def change(frame: Frame, _: random.Random) -> None:
        del frame.data[at:]

    return change


class _Places:
    """Changes that depend on where and when a frame was captured, each of one file."""

    def __init__(self, source: Path) -> None:
        self._is_first = source.name.startswith("va")
        self._own = _MACS[0 if self._is_first else 1]
        self._left = 0

    def holes(self, frame: Frame, rng: random.Random) -> None:
        """A capture that could not keep up now and then: up to so many packets missed in a row."""
        if not self._left and rng.random() < _HOLES:
            self._left = rng.randrange(2, _HOLE_PACKETS)
        if self._left:
            self._left -= 1
            frame.hide()

    def outgoing_only(self, frame: Frame, _: random.Random) -> None:
        """A mirror of what its host sends."""
        if frame.data[6:12] != self._own:
            frame.hide()

    def incoming_only(self, frame: Frame, _: random.Random) -> None:
        """A mirror of what its host gets."""
        if frame.data[6:12] == self._own:
            frame.hide()

    def clocks_apart(self, frame: Frame, _: random.Random) -> None:
        """The second host's clock goes ahead, and faster."""
        if not self._is_first:
            ahead = _AHEAD_NS + (frame.second % 1000 * 10**9 + frame.nanosecond) * _FASTER // 10**6
            seconds, frame.nanosecond = divmod(frame.nanosecond + ahead, 10**9)
            frame.second += seconds

    def hardware(self, frame: Frame, rng: random.Random) -> None:
        """As of NICs, with a mirror that could not keep up: identification 0, some packets missed."""
        _zero_identification(frame, rng)
        _miss(frame, rng)


#: Changes that need to know their place in the file.
_PLACED: Final[dict[str, Callable[[_Places, Frame, random.Random], None]]] = {
    "holes": _Places.holes,
    "outgoing-only": _Places.outgoing_only,
    "incoming-only": _Places.incoming_only,
    "clocks-apart": _Places.clocks_apart,
    "hardware": _Places.hardware,
}
_PLAIN: Final[dict[str, Callable[[Frame, random.Random], None]]] = {
    "no-naks": _hide_if(lambda frame: frame.is_nak),
    "no-responses": _hide_if(lambda frame: frame.is_response),
    "no-requests": _hide_if(lambda frame: not frame.is_response),
    "identification-0": _zero_identification,
    "missed": _miss,
    "time-runs-back": _stamp_late,
    "cut": _cut(_CUT_AT),
    "cut-64": _cut(64),
    "cut-96": _cut(96),
    "one-port": _one_port,
}
#: Captures that have only a part of it: of each file, how much of the RoCE packets is before, and behind.
_PARTS: Final[dict[str, dict[str, tuple[float, float]]]] = {
    "began-later": {"va": (0.4, 0.0), "vb": (0.4, 0.0)},
    "second-later": {"va": (0.0, 0.0), "vb": (0.4, 0.0)},
    "ended-sooner": {"va": (0.0, 0.3), "vb": (0.0, 0.3)},
    "second-sooner": {"va": (0.0, 0.0), "vb": (0.0, 0.3)},
}
NEIGHBOURS: Final = (*_PLAIN, *_PLACED, *_PARTS)


def make(kind: str, source: Path, target: Path) -> int:
    """Write the neighbour of a pcap file (of this machine's byte order, in nanoseconds).

    Returns:
        How many frames it lacks in front, so that its first is not number 1 of its source.
    """
    raw, rng = source.read_bytes(), random.Random(source.parent.name)
    if raw[:4] != _MAGIC:
        raise ValueError(f"{source} is no pcap file in nanoseconds")
    parts = [raw[:_HEADER]]
    found = list(_frames(raw))
    first, end = _part(kind, source, found)
    places = _Places(source)
    for frame in found[first:end]:
        if frame.is_roce and kind in _PLACED:
            _PLACED[kind](places, frame, rng)
        elif frame.is_roce and kind in _PLAIN:
            _PLAIN[kind](frame, rng)
        header = (frame.second, frame.nanosecond, len(frame.data), frame.length)
        parts += [_RECORD.pack(*header), bytes(frame.data)]
    target.write_bytes(b"".join(parts))
    return first


def _part(kind: str, source: Path, found: list[Frame]) -> tuple[int, int]:
    """The first frame of a neighbour, and the one behind its last."""
    before, behind = _PARTS.get(kind, {}).get(source.stem, (0.0, 0.0))
    roce = [place for place, frame in enumerate(found) if frame.is_roce]
    if not roce or not before + behind:
        return 0, len(found)
    first = roce[int(len(roce) * before)] if before else 0
    return first, roce[int(len(roce) * (1 - behind))] if behind else len(found)


def _frames(raw: bytes) -> Iterator[Frame]:
    at = _HEADER
    while at + _RECORD.size <= len(raw):
        second, nanosecond, stored, length = _RECORD.unpack_from(raw, at)
        at += _RECORD.size + stored
        yield Frame(second, nanosecond, length, bytearray(raw[at - stored : at]))
