"""QPNs in plain text: the TCP exchange with which perftest and libibverbs' examples connect their QPs.

Before they start, both ends send each other in text who they are: ``LID:QPN:PSN:GID`` (the examples of
libibverbs), or ``LID:OUTS:QPN:PSN:RKEY:VADDR:GID bytes`` (perftest), in hexadecimal. A capture with the
exchange has the pairing, both starting PSNs, and with perftest the memory region. The PSN is the one with
which its *sender* starts.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.wire.applications.programs import PERFTEST as PERFTEST_PROGRAM
from rocekit.wire.applications.programs import ROCEKIT, VERBS_EXAMPLES
from rocekit.wire.network import address_text

if TYPE_CHECKING:
    from rocekit.files.frames import FrameBatch

PINGPONG: Final = re.compile(rb"[0-9a-f]{4}:([0-9a-f]{6}):([0-9a-f]{6}):([0-9a-f]{32})(?![0-9a-f:])")
PERFTEST: Final = re.compile(
    rb"[0-9a-f]{4}:[0-9a-f]{4}:([0-9a-f]{6}):([0-9a-f]{6}):"
    rb"([0-9a-f]{8}):([0-9a-f]{16}):((?:[0-9a-f]{2}:){16})"
)
#: Frames that can contain such a message: from the shorter message to the longer one with all headers.
_SHORTEST: Final = 54 + 52
LONGEST_OFFER: Final = 400
_TCP: Final = 6
#: TCP connections whose offers are remembered; the one that offered first makes room.
MOST_CONVERSATIONS: Final = 1 << 16
#: rocekit's scenarios send perftest's text with the path MTU and private data behind it.
_OF_ROCEKIT: Final = re.compile(rb"[0-9a-f]{4}(?:" + b"rck".hex().encode() + rb")")


@dataclass(frozen=True, slots=True)
class Offer:
    """What one end says of itself.

    Attributes:
        ip: its GID's address; qpn, psn: its QP and the first PSN that it sends.
        rkey, remote_va: its memory region, where it names one.
        program: whose text or struct it is; others may use it too.
    """

    ip: str
    qpn: int
    psn: int
    rkey: int | None = None
    remote_va: int | None = None
    program: str = PERFTEST_PROGRAM


def parse_offer(text: bytes) -> Offer | None:
    """The message in ``text``, if there is one."""
    match = PERFTEST.search(text)
    if match is not None:
        qpn, psn, rkey, va, gid = match.groups()
        program = ROCEKIT if _OF_ROCEKIT.search(text, match.end()) else PERFTEST_PROGRAM
        ip = _gid(gid.replace(b":", b""))
        return Offer(ip, int(qpn, 16), int(psn, 16), int(rkey, 16), int(va, 16), program)
    match = PINGPONG.search(text)
    if match is not None:
        qpn, psn, gid = match.groups()
        return Offer(_gid(gid), int(qpn, 16), int(psn, 16), program=VERBS_EXAMPLES)
    return None


def _gid(text: bytes) -> str:
    number = int(text, 16)
    return address_text(number >> 64, number & (1 << 64) - 1)


@dataclass(slots=True)
class _Exchange:
    """The offers of a TCP connection: those that wait for one of the other end, and all of them."""

    waiting: dict[bytes, deque[Offer]] = field(default_factory=dict)
    known: set[tuple[bytes, Offer]] = field(default_factory=set)


class Handshakes:
    """Reads the frames of a capture that are not RoCE, and finds QP pairs in them.

    Attributes:
        row: the frame of the batch that completed the last pair.
    """

    def __init__(self) -> None:
        self.row = 0
        self._exchanges: dict[frozenset[bytes], _Exchange] = {}

    def feed(self, batch: FrameBatch, others: NDArray[np.int64]) -> Iterator[tuple[Offer, Offer]]:
        """The pairs that this batch completes, the end that sent first in front.

        Args:
            others: which frames of the batch are not RoCE.
        """
        lengths = batch.caplen[others]
        for i in others[(lengths >= _SHORTEST) & (lengths <= LONGEST_OFFER)].tolist():
            at = int(batch.offset[i])
            frame = batch.buffer[at : at + int(batch.caplen[i])].tobytes()
            offer = parse_offer(frame)
            ends = _tcp_ends(frame) if offer is not None else None
            if offer is not None and ends is not None:
                self.row = i
                yield from self._take(offer, *ends)

    def _take(self, offer: Offer, sender: bytes, receiver: bytes) -> Iterator[tuple[Offer, Offer]]:
        ends = frozenset((sender, receiver))
        exchange = self._exchanges.get(ends)
        if exchange is None:
            if len(self._exchanges) >= MOST_CONVERSATIONS:
                del self._exchanges[next(iter(self._exchanges))]
            exchange = self._exchanges[ends] = _Exchange()
        if (sender, offer) in exchange.known:  # perftest sends the same before and after the run
            return
        exchange.known.add((sender, offer))
        exchange.waiting.setdefault(sender, deque()).append(offer)
        if len(exchange.waiting) < 2:
            return
        first, second = exchange.waiting.values()
        while first and second:
            yield first.popleft(), second.popleft()


def _tcp_ends(frame: bytes) -> tuple[bytes, bytes] | None:
    """(address and port of the sender, of the receiver), whatever the link header is."""
    for at in range(0, min(len(frame) - 40, 64), 2):
        version, room = frame[at] >> 4, len(frame) - at
        if version == 4 and frame[at + 9] == _TCP and int.from_bytes(frame[at + 2 : at + 4], "big") <= room:
            tcp, source, end = at + (frame[at] & 15) * 4, at + 12, at + 16
        elif version == 6 and frame[at + 6] == _TCP and room >= 40:
            tcp, source, end = at + 40, at + 8, at + 24
        else:
            continue
        length = end - source
        sender = frame[source:end] + frame[tcp : tcp + 2]
        return sender, frame[end : end + length] + frame[tcp + 2 : tcp + 4]
    return None
