"""The hosts of a group, connected, and both exchanges run over them."""

from __future__ import annotations

import random
from array import array
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from mmap import PAGESIZE

from rocekit.endpoint import LOCAL_WRITE, REMOTE_WRITE, Connection, Endpoint, QpOptions
from rocekit.endpoint.qp_address import QpAddress
from rocekit.errors import ScenarioError, VerbsError
from rocekit.scenarios.group_member import EXCHANGES_AHEAD, Member, Steps, Wire
from rocekit.scenarios.group_scenario import WORD, GroupPlan, GroupScenario, Load, add
from rocekit.scenarios.plan import Pattern, Remote
from rocekit.scenarios.run import PeerLink
from rocekit.wire.psn import MASK

_SLICE_S = 0.1


@dataclass(slots=True)
class Done:
    """One exchange of one iteration: when each host started and ended, and the longest chain of messages."""

    begun: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    hops: int = 0

    @property
    def took_ns(self) -> int:
        """From the first host's start to the last one's end."""
        return max(self.ended) - min(self.begun)


EXCHANGES = ("all-to-all", "all-reduce")


def _rooms(loads: Sequence[Load]) -> tuple[int, int]:
    """Bytes for what a host sends a neighbour in one exchange, and for all that may be under way to it."""
    most = max(load.bytes for load in loads)
    # The longest once more, for the end of the area if a message did not fit; a page, because memory is given
    # back to the start of the page that a message begins in, and nothing new may lie there.
    return max(1, most), PAGESIZE + EXCHANGES_AHEAD * most + max(load.longest for load in loads)


class HostGroup:
    """The hosts of a scenario, connected.

    Args:
        endpoints: a device for each host.
        timeout_s: a run fails if nothing happens for so long.
        seed: of the starting PSNs; None: a new one.
        idle: called while nothing has completed, with the time until which it may wait; gives the ranks of
            hosts where something has. None: wait as endpoints do, and look at all.

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
        idle: Callable[[int], Sequence[int]] | None = None,
    ) -> None:
        self.scenario = scenario
        self.plan = plan
        self.members = [Member(i, len(endpoints), endpoint) for i, endpoint in enumerate(endpoints)]
        self.timeout_s = timeout_s
        self._idle = idle
        self.done = {name: defaultdict[int, Done](Done) for name in EXCHANGES}  # by iteration
        self._psns = random.Random(seed)
        self._sums: dict[int, array[int]] = {}
        for a, b in scenario.pairs(len(endpoints)):
            self._join(self.members[a], self.members[b], options or QpOptions())

    @property
    def qps(self) -> int:
        return sum(len(member.wires) for member in self.members)

    @property
    def traffic(self) -> dict[tuple[int, int], Wire]:
        """Each direction of each link, by the ranks (from, to)."""
        return {(m.rank, peer): wire for m in self.members for peer, wire in m.wires.items()}

    def _join(self, a: Member, b: Member, options: QpOptions) -> None:
        """Connect two hosts by a QP at each, without a connection manager."""
        ends: list[tuple[Member, Member, Connection, QpAddress]] = []
        loads = self.scenario.loads
        lengths: list[int] = []
        for own, peer in ((a, b), (b, a)):
            there, back = (
                loads(self.plan, *ranks) for ranks in ((own.rank, peer.rank), (peer.rank, own.rank))
            )
            depths = replace(
                options,
                send_depth=max(1, *(load.messages for load in there)),
                recv_depth=max(1, EXCHANGES_AHEAD * max(load.messages for load in back)),
                path_mtu=self.plan.path_mtu,
            )
            own.endpoint.check_mtu(depths)
            (out, room), (theirs, came_room) = _rooms(there), _rooms(back)
            region = own.endpoint.register(out + came_room, (LOCAL_WRITE, REMOTE_WRITE))
            lengths.append(region.length)
            connection = own.endpoint.queue_pair(depths)
            link = PeerLink(connection, region)
            own.meet(peer.rank, Wire(link, own=out, theirs=theirs, room=room, came_room=came_room))
            psn = self._psns.getrandbits(24) & MASK
            place = QpAddress(connection.qpn, psn, region.rkey, region.addr, own.endpoint.ip)
            ends.append((own, peer, connection, place))
        for (own, peer, connection, place), (*_, other), length in zip(
            ends, reversed(ends), reversed(lengths), strict=True
        ):
            own.wires[peer.rank].link.peer = Remote(other.address, other.rkey, length)
            connection.start(other, place.psn, self.plan.path_mtu)
            back = loads(self.plan, peer.rank, own.rank)
            ever = self.plan.iterations * sum(load.messages for load in back)
            own.expect(peer.rank, EXCHANGES_AHEAD * max(load.messages for load in back), ever)

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
        looked_at: Sequence[Member] = self.members
        while waits:
            busy = False
            for member in looked_at:
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
                looked_at = [self.members[rank] for rank in self._idle(limit)]
            else:
                next(iter(waits)).endpoint.pause(_SLICE_S)

    def _program(self, member: Member) -> Steps[None]:
        """The program of one host."""
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
        if total != self._sum(i):
            raise ScenarioError(f"all-reduce {i}: the sum at host {member.rank} is wrong")

    def _sum(self, i: int) -> array[int]:
        """What every host must have after all-reduce i; of two kept, as hosts are at most one apart."""
        if i not in self._sums:
            wanted = self._vector(i, 0)
            for rank in range(1, self.plan.hosts):
                wanted = add(wanted, self._vector(i, rank))
            self._sums.pop(i - EXCHANGES_AHEAD, None)
            self._sums[i] = wanted
        return self._sums[i]

    def _vector(self, i: int, rank: int) -> array[int]:
        return array("I", Pattern(self.plan.words * WORD)(i * self.plan.hosts + rank))
