"""The neighbours of a capture: the same traffic, captured less well (the truth bench).

What happened on the wire stays the same, so the truth does too. ``make`` says which frame of the source each
frame is; a packet that a neighbour does not have is put into an Ethernet type that nobody reads. What is
claimed of a neighbour may be less, and must not be more false.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from truth_bench.packets import HEADER_BYTES, bth_at

_HEADER, _ETHERNET = 24, 14
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
#: How long a switch keeps a packet; how often a queue is emptied, and interrupts come; what the clocks of a
#: tap differ by.
_SWITCH_NS: Final = (500, 4_000)
_EMPTIED_NS, _INTERRUPT_NS, _TAPS_NS = 100_000, 64_000, 30_000
_ROUTER_MACS: Final = b"\x02\0\0\0\1\2\x02\0\0\0\1\1"
#: The RoCE packets of which overlapping files both have a copy; those that a stopped capture lacks.
_OVERLAP: Final = (0.35, 0.6)
_STOPPED: Final = (0.4, 0.55)
#: A packet up to so many bytes is small, and how often a mirror drops one.
_SMALL, _SMALL_DROPPED = 100, 0.15
#: A mirror's port: what it keeps, and how many of the packets it drops, when too much comes at once.
_PORT_BYTES, _OVERLOADED = 32 * 1024, (0.02, 0.06)
_VLAN: Final = b"\x81\x00\x00\x2a"
#: Ethernet, IPv4, UDP and BTH, without the AETH or RETH behind it.
_ONLY_BTH: Final = 54
#: Of the lab's two hosts.
_MACS: Final = (b"\x02\0\0\0\0\x01", b"\x02\0\0\0\0\x02")


@dataclass
class Frame:
    """A record of a pcap file: its number from 1, its time, its length on the wire, its bytes."""

    number: int
    time_ns: int
    length: int
    data: bytearray

    @property
    def is_roce(self) -> bool:
        """Whether it is a RoCE packet of a connection (and not of CM)."""
        at = bth_at(self.data)
        return at is not None and len(self.data) > at + 12 and self.qpn != 1

    @property
    def is_ipv6(self) -> bool:
        return self.data[_ETHERNET] >> 4 == 6

    @property
    def longer(self) -> int:
        """How much longer its IP header is than IPv4's."""
        return HEADER_BYTES[6] - HEADER_BYTES[4] if self.is_ipv6 else 0

    @property
    def bth(self) -> int:
        return _ETHERNET + HEADER_BYTES[4] + self.longer + 8

    @property
    def is_response(self) -> bool:
        opcode = self.data[self.bth]
        return opcode in _READ_RESPONSES or opcode in (_ACK, _ATOMIC_ACK)

    @property
    def is_nak(self) -> bool:
        """Whether it is a NAK; RNR NAKs are not."""
        return self.data[self.bth] == _ACK and self.data[self.bth + 12] >> 5 == _NAK

    @property
    def qpn(self) -> int:
        """The QP that it is for."""
        return int.from_bytes(self.data[self.bth + 5 : self.bth + 8], "big")

    def hide(self) -> None:
        self.data[12:14] = _HIDDEN


def _miss_small(frame: Frame, rng: random.Random) -> None:
    """A mirror that drops small packets first: ACKs, requests of READs, the ends of messages."""
    if frame.length <= _SMALL + frame.longer and rng.random() < _SMALL_DROPPED:
        frame.hide()


def _whole_microseconds(frame: Frame, _: random.Random) -> None:
    """Stamps as tcpdump writes them if nobody asks for more."""
    frame.time_ns -= frame.time_ns % 1_000


def _hide_if(unwanted: Callable[[Frame], bool]) -> Callable[[Frame, random.Random], None]:
    def change(frame: Frame, _: random.Random) -> None:
        if unwanted(frame):
            frame.hide()

    return change


def _miss(frame: Frame, rng: random.Random) -> None:
    if rng.random() < _MISSED:
        frame.hide()


def _sample(frame: Frame, rng: random.Random) -> None:
    """A mirror that takes one packet of two."""
    if rng.random() < 0.5:
        frame.hide()


def _without_icrc(frame: Frame) -> None:
    """What the ICRC covers is changed, so where there is one it goes."""
    if len(frame.data) == frame.length:
        del frame.data[-4:]


def _one_port(frame: Frame, _: random.Random) -> None:
    """All QPs of a host send from one UDP source port, as where a setting or a tunnel makes it one."""
    _without_icrc(frame)
    frame.data[frame.bth - 8 : frame.bth - 6] = _PORT


def _zero_identification(frame: Frame, _: random.Random) -> None:
    """As NICs send: identification 0. IPv6 has none."""
    if frame.is_ipv6:
        return
    _without_icrc(frame)
    header = frame.data[_ETHERNET : _ETHERNET + 20]
    header[4:6] = b"\0\0"
    frame.data[_ETHERNET : _ETHERNET + 20] = header
    _set_checksum(frame)


def _set_checksum(frame: Frame) -> None:
    """The checksum of an IPv4 header."""
    if frame.is_ipv6:
        return
    header = frame.data[_ETHERNET : _ETHERNET + 20]
    header[10:12] = b"\0\0"
    total = sum(struct.unpack(">10H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    frame.data[_ETHERNET + 10 : _ETHERNET + 12] = struct.pack(">H", ~total & 0xFFFF)


def _stamp_late(frame: Frame, rng: random.Random) -> None:
    """A queue that stamps its packets late: time runs back at the next record."""
    if rng.random() < _STAMPED_LATE:
        frame.time_ns += rng.randrange(_LATE_NS)


def _cut(at: int) -> Callable[[Frame, random.Random], None]:
    def change(frame: Frame, _: random.Random) -> None:
        del frame.data[at + frame.longer :]

    return change


class _Places:
    """Changes that depend on where and when a frame was captured, each of one file."""

    def __init__(self, source: Path) -> None:
        self._is_first = source.name.startswith("va")
        self._own = _MACS[0 if self._is_first else 1]
        self._left = 0

    def is_own(self, frame: Frame) -> bool:
        """Whether its host sends it."""
        return frame.data[6:12] == self._own

    def holes(self, frame: Frame, rng: random.Random) -> None:
        """A capture that could not keep up now and then: up to so many packets missed in a row."""
        if not self._left and rng.random() < _HOLES:
            self._left = rng.randrange(2, _HOLE_PACKETS)
        if self._left:
            self._left -= 1
            frame.hide()

    def outgoing_only(self, frame: Frame, _: random.Random) -> None:
        """A mirror of what its host sends."""
        if not self.is_own(frame):
            frame.hide()

    def incoming_only(self, frame: Frame, _: random.Random) -> None:
        """A mirror of what its host gets."""
        if self.is_own(frame):
            frame.hide()

    def clocks_apart(self, frame: Frame, _: random.Random) -> None:
        """The second host's clock goes ahead, and faster."""
        if not self._is_first:
            frame.time_ns += _AHEAD_NS + frame.time_ns % 10**12 * _FASTER // 10**6

    def unidentified_one_way(self, frame: Frame, rng: random.Random) -> None:
        """Two kinds of NICs: the first host's sends identification 0."""
        if self.is_own(frame) == self._is_first:
            _zero_identification(frame, rng)

    def tagged_one_way(self, frame: Frame, _: random.Random) -> None:
        """The host's own frames are taken with their VLAN tag, and its NIC strips those that come."""
        if self.is_own(frame):
            frame.data[12:12] = _VLAN
            frame.length += len(_VLAN)

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
    "identification-0-one-way": _Places.unidentified_one_way,
    "vlan-one-way": _Places.tagged_one_way,
}
_PLAIN: Final[dict[str, Callable[[Frame, random.Random], None]]] = {
    "no-naks": _hide_if(lambda frame: frame.is_nak),
    "no-responses": _hide_if(lambda frame: frame.is_response),
    "no-requests": _hide_if(lambda frame: not frame.is_response),
    "identification-0": _zero_identification,
    "missed": _miss,
    "sampled": _sample,
    "time-runs-back": _stamp_late,
    "cut": _cut(_CUT_AT),
    "cut-64": _cut(64),
    "cut-96": _cut(96),
    "cut-54": _cut(_ONLY_BTH),
    "small-missed": _miss_small,
    "microseconds": _whole_microseconds,
    "one-port": _one_port,
}
#: Captures that have only a part of it: of each file, how much of the RoCE packets is before, and behind.
_PARTS: Final[dict[str, dict[str, tuple[float, float]]]] = {
    "began-later": {"va": (0.4, 0.0), "vb": (0.4, 0.0)},
    "second-later": {"va": (0.0, 0.0), "vb": (0.4, 0.0)},
    "ended-sooner": {"va": (0.0, 0.3), "vb": (0.0, 0.3)},
    "second-sooner": {"va": (0.0, 0.0), "vb": (0.0, 0.3)},
}


def _by_time(frames: Iterable[Frame]) -> list[Frame]:
    return sorted(frames, key=lambda frame: frame.time_ns)


def _doubled(_: _Places, frames: list[Frame], rng: random.Random) -> list[Frame]:
    """A mirror of what comes into a switch and of what leaves it, in order: each packet is there twice."""
    copies, left_ns = [], dict[bytes, int]()
    for frame in frames:
        if not frame.is_roce:
            continue
        way = bytes(frame.data[:12])
        left_ns[way] = max(left_ns.get(way, 0) + 1, frame.time_ns + rng.randrange(*_SWITCH_NS))
        copies.append(replace(frame, time_ns=left_ns[way], data=bytearray(frame.data)))
    return _by_time([*frames, *copies])


def _routed(places: _Places, frames: list[Frame], rng: random.Random) -> list[Frame]:
    """The same of a router: the second copy has lived one hop longer, between other MACs."""
    found = _doubled(places, frames, rng)
    seen = set()
    for frame in found:
        if frame.number in seen:
            frame.data[:12] = _ROUTER_MACS
            frame.data[_ETHERNET + (7 if frame.is_ipv6 else 8)] -= 1
            _set_checksum(frame)
        seen.add(frame.number)
    return found


def _by_queues(_: _Places, frames: list[Frame], _rng: random.Random) -> list[Frame]:
    """A capture of two queues, one for each direction: they are emptied in turn, and the stamps are right."""
    return sorted(frames, key=lambda f: (f.time_ns // _EMPTIED_NS, bytes(f.data[:12]), f.time_ns))


def _gathered(places: _Places, frames: list[Frame], _: random.Random) -> list[Frame]:
    """Interrupts are gathered: what a host gets is stamped at the next of them, what it sends at once."""
    for frame in frames:
        if frame.is_roce and not places.is_own(frame):
            frame.time_ns += -frame.time_ns % _INTERRUPT_NS
    return _by_time(frames)


def _taps_apart(places: _Places, frames: list[Frame], _: random.Random) -> list[Frame]:
    """A tap with a port for each direction, whose clocks differ."""
    for frame in frames:
        if frame.is_roce and places.is_own(frame):
            frame.time_ns += _TAPS_NS
    return _by_time(frames)


def _milliseconds(_: _Places, frames: list[Frame], _rng: random.Random) -> list[Frame]:
    """Stamps in whole milliseconds; the order of the file is right."""
    for frame in frames:
        frame.time_ns -= frame.time_ns % 1_000_000
    return frames


def _overlapped(_: _Places, frames: list[Frame], _rng: random.Random) -> list[Frame]:
    """Two files of one capture that overlap, made one by their times: a part is there twice."""
    first, end = _within(frames, _OVERLAP)
    copied = []
    for place, frame in enumerate(frames):
        copied.append(frame)
        if first <= place < end:
            copied.append(replace(frame, data=bytearray(frame.data)))
    return copied


def _stopped(_: _Places, frames: list[Frame], _rng: random.Random) -> list[Frame]:
    """A ring of files of which one in the middle is gone."""
    first, end = _within(frames, _STOPPED)
    return [*frames[:first], *frames[end:]]


def _one_pair(_: _Places, frames: list[Frame], _rng: random.Random) -> list[Frame]:
    """A filter for one QP: only the packets to it are there."""
    qpns = sorted({frame.qpn for frame in frames if frame.is_roce})
    for frame in frames:
        if frame.is_roce and frame.qpn != qpns[len(qpns) // 2]:
            frame.hide()
    return frames


def _oversubscribed(_: _Places, frames: list[Frame], _rng: random.Random) -> list[Frame]:
    """A mirror's port that sends more slowly than both directions together: it drops the ends of bursts."""
    roce = [frame for frame in frames if frame.is_roce]
    low, high, dropped = 0.0, 1_000.0, set[int]()
    for _attempt in range(40):  # nanoseconds for a byte
        each = (low + high) / 2
        dropped = _dropped(roce, each)
        share = len(dropped) / max(1, len(roce))
        if _OVERLOADED[0] <= share <= _OVERLOADED[1]:
            break
        low, high = (each, high) if share < _OVERLOADED[0] else (low, each)
    for frame in roce:
        if frame.number in dropped:
            frame.hide()
    return frames


def _dropped(frames: list[Frame], ns_a_byte: float) -> set[int]:
    """The numbers of what a port drops that needs so long for a byte."""
    kept, last_ns, found = 0.0, 0, set[int]()
    for frame in frames:
        kept, last_ns = max(0.0, kept - (frame.time_ns - last_ns) / ns_a_byte), frame.time_ns
        if kept + frame.length > _PORT_BYTES:
            found.add(frame.number)
        else:
            kept += frame.length
    return found


#: Changes of the order, the stamps, or the number of all frames.
_ORDERED: Final[dict[str, Callable[[_Places, list[Frame], random.Random], list[Frame]]]] = {
    "doubled": _doubled,
    "routed": _routed,
    "by-queues": _by_queues,
    "gathered": _gathered,
    "taps-apart": _taps_apart,
    "milliseconds": _milliseconds,
    "overlapped": _overlapped,
    "stopped": _stopped,
    "one-qp": _one_pair,
    "oversubscribed": _oversubscribed,
}
#: Those whose times are not of the machine's clock, or only nearly.
OTHER_CLOCKS: Final = frozenset({"clocks-apart", "taps-apart", "milliseconds", "gathered"})
NEIGHBOURS: Final = (*_PLAIN, *_PLACED, *_PARTS, *_ORDERED)
#: Of two captures that are less good in different ways: one that is as it was.
WHOLE: Final = "whole"
#: Such captures: ``va``, and ``vb``.
UNLIKE: Final = (
    "outgoing-only,whole",
    "whole,outgoing-only",
    "incoming-only,whole",
    "whole,incoming-only",
    "no-requests,whole",
    "whole,no-requests",
    "whole,no-responses",
    "cut-54,whole",
    "whole,cut-54",
    "missed,whole",
    "holes,whole",
    "whole,sampled",
    "stopped,whole",
)


def known(kind: str) -> str:
    """A kind of neighbour, or two of which one is that of ``va`` and the other that of ``vb``.

    Raises:
        ValueError: there is no such kind.
    """
    names = kind.split(",")
    if len(names) > 2 or not all(name in NEIGHBOURS or (name == WHOLE and len(names) == 2) for name in names):
        raise ValueError(f"{kind}: name one of {', '.join(NEIGHBOURS)}, or two (or {WHOLE}) with a comma")
    return kind


def make(kind: str, source: Path, target: Path) -> list[int]:
    """Write the neighbour of a pcap file (of this machine's byte order, in nanoseconds).

    Args:
        kind: one of ``NEIGHBOURS``, or two that ``va`` and ``vb`` have, as in ``UNLIKE``.

    Returns:
        Of each frame of the neighbour the number of the source's frame that it is.
    """
    kind = known(kind).split(",")[-1 if source.stem == "vb" else 0]
    raw, rng = source.read_bytes(), random.Random(source.parent.name)
    if raw[:4] != _MAGIC:
        raise ValueError(f"{source} is no pcap file in nanoseconds")
    found = list(_frames(raw))
    first, end = _part(kind, source, found)
    found = found[first:end]
    places = _Places(source)
    for frame in found:
        if frame.is_roce and kind in _PLACED:
            _PLACED[kind](places, frame, rng)
        elif frame.is_roce and kind in _PLAIN:
            _PLAIN[kind](frame, rng)
    if kind in _ORDERED:
        now_ns = 0
        for frame in found:  # the file's order is the one in which they came
            now_ns = frame.time_ns = max(now_ns, frame.time_ns)
        found = _ORDERED[kind](places, found, rng)
    parts = [raw[:_HEADER]]
    for frame in found:
        stamp = divmod(frame.time_ns, 10**9)
        parts += [_RECORD.pack(*stamp, len(frame.data), frame.length), bytes(frame.data)]
    target.write_bytes(b"".join(parts))
    return [frame.number for frame in found]


def _part(kind: str, source: Path, found: list[Frame]) -> tuple[int, int]:
    """The first frame of a neighbour, and the one behind its last."""
    before, behind = _PARTS.get(kind, {}).get(source.stem, (0.0, 0.0))
    first, end = _within(found, (before, 1 - behind))
    return first if before else 0, end if behind else len(found)


def _within(frames: list[Frame], part: tuple[float, float]) -> tuple[int, int]:
    """The first frame of a part of the RoCE packets, and the one behind its last."""
    roce = [place for place, frame in enumerate(frames) if frame.is_roce]
    first, end = ((*roce, len(frames))[int(len(roce) * share)] for share in part)
    return first, end


def _frames(raw: bytes) -> Iterator[Frame]:
    at, number = _HEADER, 0
    while at + _RECORD.size <= len(raw):
        second, nanosecond, stored, length = _RECORD.unpack_from(raw, at)
        at += _RECORD.size + stored
        number += 1
        yield Frame(number, second * 10**9 + nanosecond, length, bytearray(raw[at - stored : at]))
