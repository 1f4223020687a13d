"""One host of a group, and its way to each neighbour.

A host's part of an exchange is a generator. It yields a condition that it waits for, and continues when that
holds; the hosts take turns, so one program runs all of them over any backend.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from mmap import PAGESIZE
from typing import TypeVar

from rocekit.endpoint import Endpoint
from rocekit.errors import ScenarioError
from rocekit.scenarios.run import PeerLink

T = TypeVar("T")
Steps = Generator[Callable[[], bool], None, T]
"""A part of a host's program that returns a T."""

EXCHANGES_AHEAD = 2
"""Exchanges of which messages can be under way to a host: see :class:`Wire`."""


@dataclass(slots=True)
class Parcel:
    """A message under way: its bytes, and how many messages had to arrive before it could be sent."""

    length: int
    depth: int


class Wire:
    """One host's connection to a neighbour: a link, and areas for messages in each direction.

    Messages are RDMA WRITEs with immediate, one after the other into the neighbour's area, from its start
    again if the next does not fit. Both ends compute the offset of each from the lengths. That area holds two
    exchanges: a host can be one ahead of its neighbour, never two, because it cannot end one without the
    messages of all other hosts. What is sent lies in an area for one: it is acknowledged before the next.

    Args:
        own: bytes at the start of this side's region for what it sends; what comes lies behind.
        theirs: the same of the neighbour's region.
        room: bytes of the neighbour's area for what comes; came_room: of this side's.
    """

    def __init__(self, link: PeerLink, *, own: int, theirs: int, room: int, came_room: int) -> None:
        self.link = link
        self.messages = 0
        self.bytes = 0
        self._own, self._theirs = own, theirs
        self._room, self._came_room = room, came_room
        self._unsent: deque[tuple[int, int]] = deque()
        self._sent_at = self._came_at = self._came = 0

    def out(self, data: bytes) -> None:
        """Send a message."""
        while len(self._unsent) > self.link.unsent:
            self._give_back(0, *self._unsent.popleft())
        start = sum(self._unsent[-1]) if self._unsent else 0
        self._unsent.append((start, len(data)))
        at, self._sent_at = _next(self._sent_at, len(data), self._room)
        self.link.region.write(start, data)
        self.link.send(
            self.link.wr(
                "RDMA_WRITE_WITH_IMM",
                start,
                len(data),
                remote=self._theirs + at,
                imm=self.messages & 0xFFFFFFFF,
            )
        )
        self.messages += 1
        self.bytes += len(data)

    def arrived(self, length: int) -> bytes:
        """The message that arrived, of so many bytes.

        Raises:
            ScenarioError: it is not the next one.
        """
        done = self.link.received.popleft()
        if (done.imm, done.byte_len) != (self._came & 0xFFFFFFFF, length):
            raise ScenarioError(
                f"message {self._came} of {length} bytes was expected, {done.imm} of {done.byte_len} came"
            )
        self._came += 1
        at, self._came_at = _next(self._came_at, length, self._came_room)
        data = self.link.region.read(self._own + at, length)
        self._give_back(self._own, self._own + at, length)
        return data

    def _give_back(self, area: int, start: int, length: int) -> None:
        """Nobody needs a message any more, nor what lies before it in the area, to the start of its page."""
        first = max(area, start - PAGESIZE + 1)
        self.link.region.discard(first, start + length - first)


def _next(at: int, length: int, room: int) -> tuple[int, int]:
    """Where a message of an area starts and ends that comes after one which ended ``at``."""
    start = at if at + length <= room else 0
    return start, start + length


class Member:
    """One host of a group.

    Attributes:
        rank: its number; count: how many there are.
        wires: its connections to neighbours, by rank.
        depth: the longest chain of messages, each sent after the one before arrived, that reached this host.
    """

    def __init__(self, rank: int, count: int, endpoint: Endpoint) -> None:
        self.rank = rank
        self.count = count
        self.endpoint = endpoint
        self.wires: dict[int, Wire] = {}
        self.under_way: dict[int, deque[Parcel]] = {}
        self.depth = 0
        self._receives_left: dict[int, int] = {}
        self._links: dict[int, PeerLink] = {}

    def meet(self, peer: int, wire: Wire) -> None:
        """Add the connection to a neighbour."""
        self.wires[peer] = wire
        self.under_way[peer] = deque()
        self._links[wire.link.connection.qpn] = wire.link

    @property
    def next(self) -> int:
        """The rank after this one, on the ring."""
        return (self.rank + 1) % self.count

    @property
    def previous(self) -> int:
        return (self.rank - 1) % self.count

    @property
    def others(self) -> list[int]:
        """Every other rank, the next one first: so not all hosts send to rank 0 at once."""
        return [(self.rank + i) % self.count for i in range(1, self.count)]

    def put(self, peer: int, data: bytes) -> None:
        """Send bytes to a neighbour."""
        self.wires[peer].out(data)
        self.under_way[peer].append(Parcel(len(data), self.depth + 1))

    def take(self, peer: int, group: Sequence[Member]) -> Steps[bytes]:
        """The next bytes from a neighbour, when they have arrived."""
        wire = self.wires[peer]
        yield lambda: bool(wire.link.received)
        parcel = group[peer].under_way[self.rank].popleft()
        data = wire.arrived(parcel.length)
        self.depth = max(self.depth, parcel.depth)
        if self._receives_left[peer]:
            self._receives_left[peer] -= 1
            self._post(wire)
        return data

    def sent(self) -> Steps[None]:
        """Wait until all that it sent is acknowledged: only then may its memory change."""
        yield lambda: not any(wire.link.unsent for wire in self.wires.values())

    def expect(self, peer: int, at_once: int, ever: int) -> None:
        """Post the receives for a neighbour's messages: some now, the others one by one."""
        for _ in range(min(at_once, ever)):
            self._post(self.wires[peer])
        self._receives_left[peer] = max(0, ever - at_once)

    @staticmethod
    def _post(wire: Wire) -> None:
        # The immediate takes a receive; the WRITE's bytes do not go into it.
        wire.link.receive(0, 1)

    def poll(self) -> bool:
        """Note completions; whether there were any.

        Raises:
            VerbsError: a work request failed.
        """
        found = self.endpoint.poll()
        for completion in found:
            if completion.status != "SUCCESS":
                self.endpoint.fail(completion)
            self._links[completion.qpn].completed(completion)
        return bool(found)
