"""What ``mesh`` and ``ring`` stand on: n hosts in one program, and two exchanges that each does its own way.

A host's part of an exchange is a generator. It yields what it waits for, a condition, and goes on when that
holds; the hosts take turns, so one program runs all of them over any backend.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeVar

from rocekit.endpoint import LOCAL_WRITE, REMOTE_WRITE, Connection, Endpoint, QpOptions
from rocekit.endpoint.tcp_words import Place
from rocekit.errors import ScenarioError, VerbsError
from rocekit.scenarios.base import Link
from rocekit.scenarios.plan import Pattern, Remote
from rocekit.wire.psn import MASK

T = TypeVar("T")
Steps = Generator[Callable[[], bool], None, T]
"""A part of a host's program that gives a T in the end."""

WORD = 4
"""Bytes of a number that an all-reduce adds up."""
MOST_HOSTS = 64
_AHEAD = 2
"""Exchanges of which messages can be under way to a host: see :class:`Wire`."""
_SLICE_S = 0.1


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """What the hosts of a group do.

    Attributes:
        size: bytes that each host has for each other one in an all-to-all, and of the vector that each has in
            an all-reduce.
        iterations: of each exchange.
        path_mtu: bytes.
    """

    scenario: str
    hosts: int
    size: int
    iterations: int
    path_mtu: int = 1024

    @property
    def words(self) -> int:
        """Numbers in a host's vector: as many as fill the size, a whole number of them for each host."""
        return max(1, -(-self.size // (WORD * self.hosts))) * self.hosts


@dataclass(frozen=True, slots=True)
class Load:
    """What one host sends a neighbour in one exchange: so many messages, together so many bytes, the longest
    of so many.
    """

    messages: int
    bytes: int
    longest: int


@dataclass(slots=True)
class Parcel:
    """A message under way: its bytes, and how many messages had to come before it could be sent."""

    length: int
    depth: int


class Wire:
    """One host's way to a neighbour: a link, and areas for what goes out and what comes in.

    Messages are RDMA WRITEs with immediate, one behind the other into the neighbour's area, from its
    beginning again where the next does not fit. Both ends reckon the place of each by its length alone. The
    area holds two exchanges: a host can be one ahead of its neighbour, never two, since to end one it needs
    what every other host has sent in it.
    """

    def __init__(self, link: Link, area: int) -> None:
        self.link = link
        self.area = area
        self.messages = 0
        self.bytes = 0
        self._sent_at = self._came_at = 0
        self._came = 0

    def out(self, data: bytes) -> None:
        """Send a message."""
        at, self._sent_at = self._next(self._sent_at, len(data))
        self.link.region.write(at, data)
        self.link.send(
            self.link.wr(
                "RDMA_WRITE_WITH_IMM", at, len(data), remote=self.area + at, imm=self.messages & 0xFFFFFFFF
            )
        )
        self.messages += 1
        self.bytes += len(data)

    def arrived(self, length: int) -> bytes:
        """The message that came, so many bytes long.

        Raises:
            ScenarioError: it is not the one whose turn it was.
        """
        told = self.link.received.popleft()
        if (told.imm, told.byte_len) != (self._came & 0xFFFFFFFF, length):
            raise ScenarioError(
                f"message {self._came} of {length} bytes should have come, {told.imm} of {told.byte_len} did"
            )
        self._came += 1
        at, self._came_at = self._next(self._came_at, length)
        return self.link.region.read(self.area + at, length)

    def _next(self, at: int, length: int) -> tuple[int, int]:
        start = at if at + length <= self.area else 0
        return start, start + length


class Member:
    """One host of a group.

    Attributes:
        rank: its number; count: how many there are.
        wires: its ways to its neighbours, by rank.
        depth: how many messages, one waiting for the other, led to what it knows now.
    """

    def __init__(self, rank: int, count: int, endpoint: Endpoint) -> None:
        self.rank = rank
        self.count = count
        self.endpoint = endpoint
        self.wires: dict[int, Wire] = {}
        self.under_way: dict[int, deque[Parcel]] = {}
        self.depth = 0
        self._receives_left: dict[int, int] = {}
        self._links: dict[int, Link] = {}

    def meet(self, peer: int, wire: Wire) -> None:
        """Have a way to a neighbour."""
        self.wires[peer] = wire
        self.under_way[peer] = deque()
        self._links[wire.link.connection.qpn] = wire.link

    @property
    def next(self) -> int:
        """The rank after this one, round the ring."""
        return (self.rank + 1) % self.count

    @property
    def previous(self) -> int:
        return (self.rank - 1) % self.count

    @property
    def others(self) -> list[int]:
        """Every other rank, the next one first: so not all turn to rank 0 at once."""
        return [(self.rank + i) % self.count for i in range(1, self.count)]

    def put(self, peer: int, data: bytes) -> None:
        """Send bytes to a neighbour."""
        self.wires[peer].out(data)
        self.under_way[peer].append(Parcel(len(data), self.depth + 1))

    def take(self, peer: int, group: Sequence[Member]) -> Steps[bytes]:
        """The next bytes from a neighbour, when they have come."""
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
        """Until all that it sent is acknowledged: only then may its memory change."""
        yield lambda: not any(wire.link.unsent for wire in self.wires.values())

    def expect(self, peer: int, at_once: int, ever: int) -> None:
        """Post the receives for a neighbour's messages: some now, the others one by one."""
        for _ in range(min(at_once, ever)):
            self._post(self.wires[peer])
        self._receives_left[peer] = max(0, ever - at_once)

    @staticmethod
    def _post(wire: Wire) -> None:
        # The immediate takes a receive; the bytes go where the WRITE says, and none into the receive.
        wire.link.receive(0, 1)

    def poll(self) -> bool:
        """Note what completed; whether anything did.

        Raises:
            VerbsError: a work request failed.
        """
        found = self.endpoint.poll()
        for completion in found:
            if completion.status != "SUCCESS":
                self.endpoint.fail(completion)
            self._links[completion.qpn].completed(completion)
        return bool(found)


@dataclass(slots=True)
class Done:
    """One exchange of one iteration: when each host began and ended, and the longest chain of messages."""

    begun: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    hops: int = 0

    @property
    def took_ns(self) -> int:
        """From the first host's beginning to the last one's end."""
        return max(self.ended) - min(self.begun)


class GroupScenario(ABC):
    """A way to connect n hosts, and how they exchange data over it. The docstring says it step by step.

    Attributes:
        summary: a sentence for ``--list``.
        least: hosts.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    least: ClassVar[int] = 2
    default_size: ClassVar[int] = 4096
    default_iterations: ClassVar[int] = 5

    def check(self, plan: GroupPlan) -> None:
        """Raises :class:`ScenarioError` for a plan that cannot be followed."""
        if not self.least <= plan.hosts <= MOST_HOSTS:
            raise ScenarioError(f"a {self.name} has {self.least} to {MOST_HOSTS} hosts, not {plan.hosts}")

    @abstractmethod
    def pairs(self, count: int) -> list[tuple[int, int]]:
        """Which ranks are connected, each pair once."""

    @abstractmethod
    def loads(self, plan: GroupPlan, src: int, dst: int) -> tuple[Load, Load]:
        """What ``src`` sends the neighbour ``dst`` in an all-to-all and in an all-reduce."""

    @abstractmethod
    def all_to_all(self, member: Member, group: Sequence[Member], blocks: list[bytes]) -> Steps[list[bytes]]:
        """Give block i to host i, and get one from each: what each gave to this host, by rank."""

    @abstractmethod
    def all_reduce(self, member: Member, group: Sequence[Member], vector: array[int]) -> Steps[array[int]]:
        """The sum of all hosts' vectors, at every host."""


def add(into: array[int], other: array[int]) -> array[int]:
    """Element by element, as 32-bit words that wrap around."""
    return array("I", ((a + b) & 0xFFFFFFFF for a, b in zip(into, other, strict=True)))


EXCHANGES = ("all-to-all", "all-reduce")


def _room(loads: Sequence[Load]) -> int:
    """An area that holds what may be under way, and the end that is left open where a message did not fit."""
    return max(1, _AHEAD * max(load.bytes for load in loads) + max(load.longest for load in loads))


class Group:
    """The hosts of a scenario, connected.

    Args:
        endpoints: a device for each host.
        timeout_s: how long nothing may happen before it is given up.
        seed: what starting PSNs are drawn from; None: anew each time.
        idle: what to do while nothing has completed, until that time at most; None: wait as endpoints do.

    Raises:
        VerbsError: a device refused.
    """

    def __init__(
        self,
        scenario: GroupScenario,
        plan: GroupPlan,
        endpoints: Sequence[Endpoint],
        *,
        options: QpOptions | None = None,
        timeout_s: float = 30.0,
        seed: int | None = None,
        idle: Callable[[int], None] | None = None,
    ) -> None:
        self.scenario = scenario
        self.plan = plan
        self.members = [Member(i, len(endpoints), endpoint) for i, endpoint in enumerate(endpoints)]
        self.timeout_s = timeout_s
        self._idle = idle
        self.done = {name: defaultdict[int, Done](Done) for name in EXCHANGES}  # by iteration
        self._psns = random.Random(seed)
        for a, b in scenario.pairs(len(endpoints)):
            self._join(self.members[a], self.members[b], options or QpOptions())

    @property
    def qps(self) -> int:
        return sum(len(member.wires) for member in self.members)

    @property
    def traffic(self) -> dict[tuple[int, int], Wire]:
        """Each direction of each link, by the ranks at its ends: what went over it."""
        return {(m.rank, peer): wire for m in self.members for peer, wire in m.wires.items()}

    def _join(self, a: Member, b: Member, options: QpOptions) -> None:
        """A QP at each of two hosts, which know of each other without a connection manager."""
        ends: list[tuple[Member, Member, Connection, Place]] = []
        loads = self.scenario.loads
        area = max(_room(loads(self.plan, *ranks)) for ranks in ((a.rank, b.rank), (b.rank, a.rank)))
        for own, peer in ((a, b), (b, a)):
            there, back = (
                loads(self.plan, *ranks) for ranks in ((own.rank, peer.rank), (peer.rank, own.rank))
            )
            depths = replace(
                options,
                send_depth=max(1, *(load.messages for load in there)),
                recv_depth=max(1, _AHEAD * max(load.messages for load in back)),
                path_mtu=self.plan.path_mtu,
            )
            own.endpoint.check_mtu(depths)
            region = own.endpoint.register(2 * area, (LOCAL_WRITE, REMOTE_WRITE))
            connection = own.endpoint.queue_pair(depths)
            own.meet(peer.rank, Wire(Link(connection, region), area))
            psn = self._psns.getrandbits(24) & MASK
            place = Place(connection.qpn, psn, region.rkey, region.addr, own.endpoint.ip)
            ends.append((own, peer, connection, place))
        for (own, peer, connection, place), (*_, other) in zip(ends, reversed(ends), strict=True):
            own.wires[peer.rank].link.peer = Remote(other.address, other.rkey, 2 * area)
            connection.start(other, place.psn, self.plan.path_mtu)
            back = loads(self.plan, peer.rank, own.rank)
            ever = self.plan.iterations * sum(load.messages for load in back)
            own.expect(peer.rank, _AHEAD * max(load.messages for load in back), ever)

    # ------------------------------------------------------------------ the run

    def run(self) -> None:
        """All iterations of both exchanges, the data checked.

        Raises:
            ScenarioError: the data is not what was sent.
            VerbsError: a work request failed, or nothing happened for too long.
        """
        steps = {member: self._program(member) for member in self.members}
        waits = {member: next(program) for member, program in steps.items()}
        clock = self.members[0].endpoint
        limit = clock.now() + round(self.timeout_s * 1e9)
        while waits:
            busy = False
            for member in self.members:
                busy |= member.poll()
                while member in waits and waits[member]():
                    busy = True
                    try:
                        waits[member] = next(steps[member])
                    except StopIteration:
                        del waits[member]
            if busy:
                limit = clock.now() + round(self.timeout_s * 1e9)
                continue
            if clock.now() >= limit:
                late = ", ".join(str(member.rank) for member in waits)
                raise VerbsError(
                    f"nothing completed within {self.timeout_s:g} s (--timeout); hosts {late} wait"
                )
            if self._idle is not None:
                self._idle(limit)
            else:
                next(iter(waits)).endpoint.pause(_SLICE_S)

    def _program(self, member: Member) -> Steps[None]:
        """All that one host does."""
        for name, exchange in zip(EXCHANGES, (self._all_to_all, self._all_reduce), strict=True):
            for i in range(self.plan.iterations):
                done = self.done[name][i]
                member.depth = 0
                done.begun.append(member.endpoint.now())
                yield from exchange(member, i)
                done.ended.append(member.endpoint.now())
                done.hops = max(done.hops, member.depth)
                yield from member.sent()

    def _all_to_all(self, member: Member, i: int) -> Steps[None]:
        own = member.rank
        given = yield from self.scenario.all_to_all(
            member, self.members, [self._block(i, own, dst) for dst in range(member.count)]
        )
        for src, block in enumerate(given):
            if block != self._block(i, src, own):
                raise ScenarioError(f"all-to-all {i}: host {own} has other bytes than host {src} sent it")

    def _block(self, i: int, src: int, dst: int) -> bytes:
        count = self.plan.hosts
        return Pattern(self.plan.size)((i * count + src) * count + dst)

    def _all_reduce(self, member: Member, i: int) -> Steps[None]:
        total = yield from self.scenario.all_reduce(member, self.members, self._vector(i, member.rank))
        wanted = self._vector(i, 0)
        for rank in range(1, member.count):
            wanted = add(wanted, self._vector(i, rank))
        if total != wanted:
            raise ScenarioError(f"all-reduce {i}: the sum at host {member.rank} is wrong")

    def _vector(self, i: int, rank: int) -> array[int]:
        return array("I", Pattern(self.plan.words * WORD)(i * self.plan.hosts + rank))
