"""What every scenario stands on: the handshake, a link to the peer, waiting, and what was measured.

The client tells the server what will happen in the private data of its request (big-endian, :class:`Plan`),
and both tell where their memory is: the server in the private data of its reply. So a server needs no
options, and a capture holds nothing but the scenario's own messages.
"""

from __future__ import annotations

import random
import struct
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

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
    is_receive,
)
from rocekit.errors import ScenarioError, VerbsError

ATOMIC_TYPES = ("FETCH_AND_ADD", "CMP_AND_SWAP")
_MAGIC = b"rcki"
_PLAN = struct.Struct(">4s16sHHIIHHHHQII")
_REPLY = struct.Struct(">4sQII")
_GOODBYE_S = 10.0  # all is done and checked; an unanswered goodbye is not worth more
_PATTERN_STEP = 251
_PATTERN_SPAN = 4093


@dataclass(frozen=True, slots=True)
class Remote:
    """The peer's memory that this side may use."""

    addr: int
    rkey: int
    length: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What will happen, as the client tells it.

    Attributes:
        size: bytes of a message.
        iterations: messages, round trips or operations on each QP.
        qps: connections made one after the other.
        window, receives: sends and receives outstanding at most on a QP.
        post_list: WRs in one post.
        cq_mod: every so manyth WR is signaled.
        path_mtu: bytes, or 0 for what rdma_cm says.
        atomic: a name of :data:`ATOMIC_TYPES`.
    """

    scenario: str
    size: int
    iterations: int
    qps: int = 1
    window: int = 128
    receives: int = 512
    post_list: int = 1
    cq_mod: int = 100
    path_mtu: int = 0
    atomic: str = ATOMIC_TYPES[0]

    def pack(self, index: int, region: Region) -> bytes:
        """The private data of the request for the connection ``index``."""
        return _PLAN.pack(
            _MAGIC,
            self.scenario.encode(),
            index,
            self.qps,
            self.size,
            self.iterations,
            self.window,
            self.receives,
            self.path_mtu,
            ATOMIC_TYPES.index(self.atomic),
            region.addr,
            region.rkey,
            region.length,
        )

    @classmethod
    def unpack(cls, data: bytes) -> tuple[Plan, int, Remote]:
        """(plan, index of the connection, the client's memory).

        Raises:
            ScenarioError: it is no request of ours.
        """
        if len(data) < _PLAN.size or data[:4] != _MAGIC:
            raise ScenarioError("the client is not `rocekit inject`")
        _, name, index, *work, mtu, atomic, addr, rkey, length = _PLAN.unpack_from(data)
        qps, size, iterations, window, receives = work
        if atomic >= len(ATOMIC_TYPES) or not size or not iterations or not qps or not window or not receives:
            raise ScenarioError("the client's plan makes no sense")
        plan = cls(
            name.rstrip(b"\0").decode("ascii", "replace"),
            size,
            iterations,
            qps,
            window,
            receives,
            path_mtu=mtu,
            atomic=ATOMIC_TYPES[atomic],
        )
        return plan, index, Remote(addr, rkey, length)


def pack_reply(region: Region) -> bytes:
    """The private data of the server's reply."""
    return _REPLY.pack(_MAGIC, region.addr, region.rkey, region.length)


def unpack_reply(data: bytes) -> Remote:
    """The server's memory.

    Raises:
        ScenarioError: it is no reply of ours.
    """
    if len(data) < _REPLY.size or data[:4] != _MAGIC:
        raise ScenarioError("the server is not `rocekit inject`")
    _, addr, rkey, length = _REPLY.unpack_from(data)
    return Remote(addr, rkey, length)


class Pattern:
    """The bytes of the i-th message: never the same twice in a row, nor alike in two places of one."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._noise = random.Random(size).randbytes(size + _PATTERN_SPAN)

    def __call__(self, i: int) -> bytes:
        start = i * _PATTERN_STEP % _PATTERN_SPAN
        return self._noise[start : start + self._size]

    def check(self, i: int, data: bytes) -> None:
        """Raises :class:`ScenarioError` when the data is not that of message ``i``."""
        wanted = self(i)
        if data != wanted:
            at = next(k for k, (a, b) in enumerate(zip(data, wanted, strict=True)) if a != b)
            raise ScenarioError(f"message {i}: byte {at} is {data[at]:#04x}, not {wanted[at]:#04x}")


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
    ) -> SendWr:
        """A WR from or to ``offset`` of the region; ``remote`` is an offset into the peer's memory."""
        made = SendWr(
            self._take_id(),
            opcode,
            (Sge(self.region, offset, length),),
            signaled=signaled,
            inline=0 < length <= inline and opcode.startswith(("SEND", "RDMA_WRITE")),
            compare=compare,
            swap_add=swap_add,
        )
        if remote is None:
            return made
        assert self.peer is not None
        return replace(made, remote_va=self.peer.addr + remote, rkey=self.peer.rkey)

    def send(self, *wrs: SendWr) -> None:
        self._sending.extend(wr.wr_id for wr in wrs)
        self.connection.post_send(*wrs)

    def receive(self, offset: int, length: int) -> int:
        """Post a receive; gives its wr_id."""
        wr_id = self._take_id()
        self.connection.post_recv(RecvWr(wr_id, (Sge(self.region, offset, length),)))
        return wr_id

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
    """

    kind: str
    times_ns: tuple[int, ...]
    total_ns: int
    moved: int
    operations: int


class Run:
    """One side of a scenario while it runs.

    Args:
        timeout_s: how long nothing may happen before it is given up.
        inline_size: messages up to so many bytes are sent inline.
    """

    def __init__(
        self, endpoint: Endpoint, plan: Plan, links: list[Link], *, timeout_s: float, inline_size: int = 0
    ) -> None:
        self.endpoint = endpoint
        self.plan = plan
        self.links = links
        self.inline_size = inline_size
        self.timeout_s = timeout_s
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
        return bool(found)

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
            if not self._poll() and last.passed():
                left = sum(link.unsent for link in self.links)
                raise VerbsError(f"{left} sends were never acknowledged")
        for link in self.links:
            self._await_disconnect([link], last)
            link.connection.disconnect(last)

    def _await_disconnect(self, links: list[Link], deadline: Deadline) -> None:
        """Until the client has disconnected one of the links."""
        while not any(link.connection.disconnected for link in links):
            self.endpoint.gone()
            if not self._poll() and deadline.passed():
                raise VerbsError(f"the client did not disconnect within {deadline.seconds:g} s (--timeout)")


class Scenario(ABC):
    """A program in two parts. A subclass says in its docstring, step by step, what it does.

    Attributes:
        summary: a sentence for ``--list``.
        default_size, default_iterations: perftest's.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    default_size: ClassVar[int] = 2
    default_iterations: ClassVar[int] = 1000
    access: ClassVar[tuple[str, ...]] = (LOCAL_WRITE,)
    shared: ClassVar[bool] = False
    """Whether the server's connections share one region."""

    def check(self, plan: Plan) -> None:  # noqa: B027 -- most have nothing to refuse
        """Refuse a plan that this scenario cannot follow, with :class:`ScenarioError`."""

    @abstractmethod
    def client_memory(self, plan: Plan) -> int:
        """Bytes that the client registers for a connection."""

    @abstractmethod
    def server_memory(self, plan: Plan) -> int:
        """Bytes that the server registers for a connection."""

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


def patience_s(plan: Plan, timeout_s: float) -> float:
    """How long a server that sees nothing of the client's work waits for its goodbye."""
    return timeout_s + 0.05 * plan.iterations * plan.qps


def latency(plan: Plan, times_ns: list[int], started_ns: int, *, one_way: bool) -> Samples:
    """Samples of a scenario that waits for each answer; ``one_way`` halves them."""
    total = time.perf_counter_ns() - started_ns
    halved = tuple(value // 2 for value in times_ns) if one_way else tuple(times_ns)
    return Samples("latency", halved, total, len(times_ns) * plan.size, len(times_ns))


def queue_depths(scenario: Scenario, plan: Plan, options: QpOptions) -> QpOptions:
    """The options with the depths that the plan needs."""
    return replace(
        options,
        send_depth=max(1, plan.window),
        recv_depth=max(1, scenario.receives(plan)),
        path_mtu=plan.path_mtu or None,
    )
