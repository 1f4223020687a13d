"""What every scenario stands on: a link to the peer, waiting, and what was measured."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from rocekit.connecting import RefusedPost
from rocekit.endpoint import (
    LOCAL_WRITE,
    Completion,
    Connection,
    Deadline,
    Disconnected,
    Endpoint,
    QpOptions,
    RecvWr,
    Region,
    SendWr,
    Sge,
    SharedReceives,
    Target,
    Ways,
    is_receive,
)
from rocekit.errors import VerbsError
from rocekit.scenarios.plan import (
    ATOMIC_TYPES,
    Pattern,
    Plan,
    Remote,
    pack_reply,
    unpack_reply,
)

__all__ = [
    "ATOMIC_TYPES",
    "Link",
    "OwnMeeting",
    "Pattern",
    "Plan",
    "Remote",
    "Run",
    "Samples",
    "Scenario",
    "latency",
    "pack_reply",
    "patience_s",
    "queue_options",
    "unpack_reply",
]

_GOODBYE_S = 10.0  # all is done and checked; an unanswered goodbye is not worth more


class Link:
    """One connection of a scenario: its QP, its memory, its peer's, and how many WRs are done.

    A wr_id is used once on a link, for a send or a receive.
    """

    def __init__(self, connection: Connection, region: Region, peer: Remote | None = None) -> None:
        self.connection = connection
        self.region = region
        self.peer = peer
        self.received: deque[Completion] = deque()
        self._next_id = 0
        self._places: dict[int, int] = {}
        self._sending: deque[int] = deque()

    @property
    def unsent(self) -> int:
        """Sends posted whose completion is still to come."""
        return len(self._sending)

    def wr(
        self,
        opcode: str,
        offset: int,
        length: int,
        *,
        remote: int | None = None,
        inline: int = 0,
        signaled: bool = True,
        compare: int | None = None,
        swap_add: int | None = None,
        imm: int | None = None,
        invalidate_rkey: int | None = None,
        more: Sequence[tuple[int, int]] = (),
        to: Target | None = None,
        at: tuple[int, int] | None = None,
    ) -> SendWr:
        """A WR from or to ``offset`` of the region; ``remote`` is an offset into the peer's memory.

        Args:
            more: (offset, length) of further elements of its scatter-gather list.
            to: of a UD request.
            at: (address, rkey) of the peer's, instead of ``remote``.
        """
        parts = ((offset, length), *more)
        made = SendWr(
            self._take_id(),
            opcode,
            tuple(Sge(self.region, start, size) for start, size in parts),
            signaled=signaled,
            inline=0 < sum(size for _, size in parts) <= inline and opcode.startswith(("SEND", "RDMA_WRITE")),
            compare=compare,
            swap_add=swap_add,
            imm=imm,
            invalidate_rkey=invalidate_rkey,
            to=to,
        )
        if at is not None:
            return replace(made, remote_va=at[0], rkey=at[1])
        if remote is None:
            return made
        assert self.peer is not None
        return replace(made, remote_va=self.peer.addr + remote, rkey=self.peer.rkey)

    def send(self, *wrs: SendWr) -> None:
        """Post in one list.

        Raises:
            RefusedPost: the device did not take one of them; those before it are on their way.
        """
        ids = [wr.wr_id for wr in wrs]
        try:
            self.connection.post_send(*wrs)
        except RefusedPost as refused:
            self._sending.extend(ids[: refused.place])
            raise
        self._sending.extend(ids)

    def receive(self, offset: int, length: int, *, more: Sequence[tuple[int, int]] = ()) -> int:
        """Post a receive; gives its wr_id. ``more`` as in :meth:`wr`."""
        wr_id = self._take_id()
        sges = tuple(Sge(self.region, start, size) for start, size in ((offset, length), *more))
        self._places[wr_id] = offset
        self.connection.post_recv(RecvWr(wr_id, sges))
        return wr_id

    def take(self) -> tuple[Completion, int]:
        """The oldest receive that completed, and the offset that it was posted with."""
        done = self.received.popleft()
        return done, self._places.pop(done.wr_id)

    def _take_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def completed(self, completion: Completion) -> None:
        """Note a completion. That of a send tells of the unsignaled ones before it too."""
        if is_receive(completion):
            self.received.append(completion)
        else:
            while self._sending and self._sending.popleft() != completion.wr_id:
                pass


@dataclass(frozen=True, slots=True)
class Samples:
    """What the client measured.

    Attributes:
        kind: "latency" or "bandwidth".
        times_ns: of each iteration, for latency; a ping-pong's is half its round trip, as perftest gives it.
        total_ns: from the first post to the last completion.
        moved: bytes of payload, one way.
        operations: WRs that moved them.
        peak_ns: the shortest time a message took on average in any part of a stream; 0: not known.
    """

    kind: str
    times_ns: tuple[int, ...]
    total_ns: int
    moved: int
    operations: int
    peak_ns: float = 0.0


class Run:
    """One side of a scenario while it runs.

    Args:
        options: of its QPs.
        timeout_s: how long nothing may happen before it is given up.

    Attributes:
        shared: the receive queue that all its QPs share, if they do.
        notes: lines that are printed below what was measured.
        details: the same for JSON.
        stamps: (link, timestamp) of completions that an extended CQ gave.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        plan: Plan,
        links: list[Link],
        *,
        timeout_s: float,
        options: QpOptions | None = None,
        shared: SharedReceives | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.plan = plan
        self.links = links
        self.options = options or QpOptions()
        self.inline_size = self.options.inline_size
        self.timeout_s = timeout_s
        self.shared = shared
        self.notes: list[str] = []
        self.details: dict[str, Any] = {}
        self.stamps: list[tuple[Link, int]] = []
        self.done = 0
        """Iterations finished, over all links; an error says how far it came."""
        self._by_qpn = {link.connection.qpn: link for link in links}

    def until(self, condition: Callable[[], bool]) -> None:
        """Poll until the condition holds.

        Raises:
            Disconnected, VerbsError: the peer went away, a WR failed, nothing happened for too long.
        """
        deadline = Deadline(self.timeout_s)
        while not condition():
            if self._poll():
                deadline = Deadline(self.timeout_s)
                continue
            try:
                self.endpoint.look_around(deadline)
            except Disconnected:
                # The peer may have ended well: what completed before its goodbye was noticed still counts.
                while self._poll():
                    pass
                if not condition():
                    raise

    def _poll(self) -> bool:
        found = self.endpoint.poll()
        for completion in found:
            if completion.status != "SUCCESS":
                self.endpoint.fail(completion)
            link = self._by_qpn.get(completion.qpn)
            if link is not None:
                link.completed(completion)
                if completion.timestamp is not None:
                    self.stamps.append((link, completion.timestamp))
        return bool(found)

    def within(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Poll until the condition holds, at most so long; whether it does. For what may be lost."""
        limit = Deadline(seconds)
        while not condition():
            if limit.passed():
                return False
            if not self._poll():
                self.endpoint.look_around(Deadline(self.timeout_s))
        return True

    def flush(self) -> None:
        """Wait until every send is done."""
        self.until(lambda: not any(link.unsent for link in self.links))

    def goodbye(self) -> None:
        """The client's end: everything is done, so disconnect."""
        for link in self.links:
            link.connection.disconnect(Deadline(min(self.timeout_s, _GOODBYE_S)))

    def await_goodbye(self, patience_s: float) -> None:
        """The server's end: until the client has disconnected, and the last sends are acknowledged.

        A request to disconnect is answered only then; until it is, the client's QP stays to acknowledge.

        Raises:
            VerbsError: the client does not, or sends stayed unacknowledged.
        """
        self._await_disconnect(self.links, Deadline(patience_s))
        # The client says goodbye on all its links when it is done with all.
        last = Deadline(self.timeout_s)
        while any(link.unsent for link in self.links):
            if self._poll():
                continue
            if last.passed():
                left = sum(link.unsent for link in self.links)
                raise VerbsError(f"{left} sends were never acknowledged")
            self.endpoint.pause(last.left())
        for link in self.links:
            self._await_disconnect([link], last)
            link.connection.disconnect(last)

    def _await_disconnect(self, links: list[Link], deadline: Deadline) -> None:
        """Until the client has disconnected one of the links."""
        while not any(link.connection.disconnected for link in links):
            self.endpoint.gone(expected=True)
            if self._poll():
                continue
            if deadline.passed():
                raise VerbsError(f"the client did not disconnect within {deadline.seconds:g} s (--timeout)")
            self.endpoint.pause(deadline.left())


class Scenario(ABC):
    """A program in two parts. A subclass says in its docstring, step by step, what it does.

    Attributes:
        summary: a sentence for ``--list``.
        default_size, default_iterations: perftest's.
        access: what the memory is registered for.
        transport: of its QPs.
        tcp: whether its peers meet over TCP, whatever the user says; None: as the user says.
        sges: elements in its scatter-gather lists.
        ways: how it waits, where the user does not say.
        timestamps: whether it needs an extended CQ.
        shares_receives: whether the server's QPs have one receive queue.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    default_size: ClassVar[int] = 2
    default_iterations: ClassVar[int] = 1000
    access: ClassVar[tuple[str, ...]] = (LOCAL_WRITE,)
    transport: ClassVar[str] = "RC"
    tcp: ClassVar[bool | None] = None
    sges: ClassVar[int] = 1
    ways: ClassVar[Ways] = Ways()
    timestamps: ClassVar[bool] = False
    shares_receives: ClassVar[bool] = False
    shared: ClassVar[bool] = False
    """Whether the server's connections share one region."""

    # What the sides tell each other when they meet.

    def request_data(self, plan: Plan, index: int, region: Region) -> bytes:
        """The private data of the client's request for the connection ``index``."""
        return plan.pack(index, region)

    def read_request(self, data: bytes, own: Plan) -> tuple[Plan, int | None, Remote | None]:
        """(plan, index of the connection if it was told, the client's memory if it was told).

        Args:
            own: what the server's own options say.

        Raises:
            ScenarioError: the data is none of ours.
        """
        return Plan.unpack(data)

    def reply_data(self, region: Region) -> bytes:
        """The private data of the server's reply."""
        return pack_reply(region)

    def read_reply(self, data: bytes) -> Remote | None:
        """The server's memory, if it was told.

        Raises:
            ScenarioError: the data is none of ours.
        """
        return unpack_reply(data)

    def check(self, plan: Plan) -> None:  # noqa: B027 -- most have nothing to refuse
        """Refuse a plan that this scenario cannot follow, with :class:`ScenarioError`."""

    @abstractmethod
    def client_memory(self, plan: Plan) -> int:
        """Bytes that the client registers for a connection."""

    @abstractmethod
    def server_memory(self, plan: Plan) -> int:
        """Bytes that the server registers for a connection."""

    def server_region(self, endpoint: Endpoint, plan: Plan) -> Region:
        """The server's memory for a connection."""
        return endpoint.register(self.server_memory(plan), self.access)

    def prepare_shared(  # noqa: B027
        self, plan: Plan, shared: SharedReceives, region: Region
    ) -> None:
        """Before any connection is there, where the QPs share their receives."""

    def receives(self, plan: Plan) -> int:
        """Receives that a connection has posted at most."""
        return 1

    def prepare_client(self, plan: Plan, link: Link) -> None:  # noqa: B027
        """Before the connection is there."""

    def prepare_server(self, plan: Plan, link: Link) -> None:  # noqa: B027
        """Before the connection is there: receives posted now are there for the first message."""

    @abstractmethod
    def client(self, run: Run) -> Samples:
        """The client's part, up to its last completion."""

    @abstractmethod
    def server(self, run: Run) -> None:
        """The server's part, up to where it waits for the client's goodbye."""

    def verify(self, run: Run) -> None:  # noqa: B027
        """What the server checks after the goodbye."""


class OwnMeeting(Scenario):
    """A scenario that meets its peer again and again, in ways of its own."""

    @abstractmethod
    def serve(self, endpoint: Endpoint, port: int, options: QpOptions, timeout_s: float) -> Run:
        """The server's part; ``endpoint`` listens."""

    @abstractmethod
    def call(
        self, endpoint: Endpoint, host: str, plan: Plan, port: int, options: QpOptions, timeout_s: float
    ) -> Run:
        """The client's part."""

    def client_memory(self, plan: Plan) -> int:
        return 0

    server_memory = client_memory

    def client(self, run: Run) -> Samples:
        raise NotImplementedError("see call")

    def server(self, run: Run) -> None:
        raise NotImplementedError("see serve")


def patience_s(plan: Plan, timeout_s: float) -> float:
    """How long a server that sees nothing of the client's work waits for its goodbye."""
    return timeout_s + 0.05 * plan.iterations * plan.qps


def latency(plan: Plan, times_ns: list[int], started_ns: int, *, one_way: bool) -> Samples:
    """Samples of a scenario that waits for each answer; ``one_way`` halves them."""
    total = time.perf_counter_ns() - started_ns
    halved = tuple(value // 2 for value in times_ns) if one_way else tuple(times_ns)
    return Samples("latency", halved, total, len(times_ns) * plan.size, len(times_ns))


def queue_options(scenario: Scenario, plan: Plan, options: QpOptions) -> QpOptions:
    """The options with the depths that the plan needs, and the transport."""
    return replace(
        options,
        send_depth=max(1, plan.window),
        recv_depth=max(1, scenario.receives(plan)),
        path_mtu=plan.path_mtu or None,
        sges=scenario.sges,
        transport=scenario.transport,
    )
