"""ARP and ND requests that got no reply, in streaks: who asked for which address how often.

A host that gets no reply asks again about once a second. Any ARP or ND message from the address that was
asked for ends a streak, because hosts learn from all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rocekit.files.frame_names import frame_reference
from rocekit.packets.witnesses.icmp import NeighbourMessage
from rocekit.wire.byte_rows import gather

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]

_ARP_BYTES: Final = 28
#: The hardware and protocol of ARP for IPv4 over Ethernet (RFC 826), with their address lengths.
_ETHERNET_IPV4: Final = bytes.fromhex("000108000604")
_REQUEST, _REPLY = 1, 2
_NONE: Final = "0.0.0.0"

#: Streaks, addresses and answered hosts kept; further ones are left out.
MAX_KEPT: Final = 10_000
#: Frames kept of a streak.
_FRAMES: Final = 16
#: The same request sooner than this is a copy of it, as mirrors of two ports make them.
_COPY_NS: Final = 10_000_000
#: A request later than this starts a streak of its own.
_GAP_NS: Final = 10_000_000_000
#: A single request may have been lost, or the capture ended before its reply.
_LEAST: Final = 2


@dataclass(slots=True)
class Unanswered:
    """Requests of one host for one address, without a reply between them.

    Attributes:
        protocol: ``ARP`` or ``ND``.
        frames: frame references of the first requests.
        until_ns: when the address was heard again; None if it never was.
        replied: whether that was a reply.
    """

    protocol: str
    file: int
    asker: str
    target: str
    first_ns: int
    last_ns: int
    requests: int
    frames: list[int]
    until_ns: int | None = None
    replied: bool = False


class Neighbours:
    """Follows the requests and replies of a capture.

    Attributes:
        answered: hosts of which the capture has a reply to a request, so that it has that direction.
        replies: (file, asker, target) of these replies.
    """

    def __init__(self) -> None:
        self.answered: set[str] = set()
        self.replies: set[tuple[int, str, str]] = set()
        self._open: dict[tuple[int, str], dict[str, Unanswered]] = {}
        self._ended: list[Unanswered] = []

    @property
    def unanswered(self) -> list[Unanswered]:
        """The streaks of at least two requests, in order of time."""
        still = [s for by_asker in self._open.values() for s in by_asker.values() if s.requests >= _LEAST]
        return sorted([*self._ended, *still], key=lambda s: s.first_ns)

    def take(self, message: NeighbourMessage, file: int, number: int, time_ns: int) -> None:
        """Add a message; messages of a file come in its order."""
        if message.sender is not None:
            self._heard(message, file, time_ns)
        if message.request and message.sender is not None and message.sender != message.target:
            self._asked(message, file, frame_reference(file, number), time_ns)

    def _heard(self, message: NeighbourMessage, file: int, time_ns: int) -> None:
        """The sender's address is in use: nobody waits for it any more."""
        sender = message.sender
        assert sender is not None
        if message.receiver is not None and len(self.replies) < MAX_KEPT:
            self.answered.add(message.receiver)
            self.replies.add((file, message.receiver, sender))
        for streak in self._open.pop((file, sender), {}).values():
            self._end(streak, time_ns, replied=not message.request and message.receiver is not None)

    def _asked(self, message: NeighbourMessage, file: int, frame: int, time_ns: int) -> None:
        assert message.sender is not None
        key = (file, message.target)
        if key not in self._open and len(self._open) >= MAX_KEPT:
            return
        by_asker = self._open.setdefault(key, {})
        streak = by_asker.get(message.sender)
        if streak is not None and time_ns - streak.last_ns > _GAP_NS:
            self._end(by_asker.pop(message.sender), None, replied=False)
            streak = None
        if streak is None:
            if len(by_asker) < MAX_KEPT:
                by_asker[message.sender] = Unanswered(
                    message.protocol, file, message.sender, message.target, time_ns, time_ns, 1, [frame]
                )
        elif time_ns - streak.last_ns >= _COPY_NS:
            streak.last_ns = time_ns
            streak.requests += 1
            if len(streak.frames) < _FRAMES:
                streak.frames.append(frame)

    def _end(self, streak: Unanswered, until_ns: int | None, *, replied: bool) -> None:
        if streak.requests >= _LEAST and len(self._ended) < MAX_KEPT:
            streak.until_ns, streak.replied = until_ns, replied
            self._ended.append(streak)


def arp_messages(
    buffer: Bytes, rows: Ints, layer: Ints, limit: Ints
) -> Iterator[tuple[int, NeighbourMessage]]:
    """(index of the frame, message) of each ARP request and reply for IPv4; ``rows`` have ARP."""
    rows = rows[layer[rows] + _ARP_BYTES <= limit[rows]]
    heads = gather(buffer, layer[rows], _ARP_BYTES)
    for index, head in zip(rows.tolist(), heads, strict=True):
        data = head.tobytes()
        operation = int.from_bytes(data[6:8], "big")
        if data[:6] != _ETHERNET_IPV4 or operation not in (_REQUEST, _REPLY):
            continue
        sender, target = str(IPv4Address(data[14:18])), str(IPv4Address(data[24:28]))
        is_request = operation == _REQUEST
        known = None if sender == _NONE else sender
        if not is_request:  # its target is the host that asked; its own address twice announces it to all
            receiver = None if target in (sender, _NONE) else target
            yield index, NeighbourMessage("ARP", known, sender, False, receiver)
        else:
            yield index, NeighbourMessage("ARP", known, target, True, None)
