"""A scenario: a program in two parts, and what its sides send each other when they connect."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import ClassVar

from rocekit.endpoint import (
    LOCAL_WRITE,
    Endpoint,
    QpOptions,
    Region,
    SharedReceives,
    WaitWays,
)
from rocekit.scenarios.plan import (
    ATOMIC_TYPES,
    Pattern,
    Plan,
    Remote,
    pack_reply,
    unpack_reply,
)
from rocekit.scenarios.run import PeerLink, Samples, ScenarioRun

__all__ = [
    "ATOMIC_TYPES",
    "PeerLink",
    "OwnConnections",
    "Pattern",
    "Plan",
    "Remote",
    "ScenarioRun",
    "Samples",
    "Scenario",
    "latency",
    "pack_reply",
    "patience_s",
    "queue_options",
    "unpack_reply",
]


class Scenario(ABC):
    """A program in two parts. The docstring of a subclass lists its steps.

    Attributes:
        summary: a sentence for ``--list``.
        default_size, default_iterations: perftest's.
        access: what the memory is registered for.
        transport: of its QPs.
        tcp: whether its peers are introduced over TCP; None: as the user says.
        sges: elements in its scatter-gather lists.
        ways: how it waits, unless the user says.
        extended: whether its sends complete on an extended CQ.
        shares_receives: whether the server's QPs have one receive queue.
        server_sees: whether the server's program sees "each" message, only the memory at the "end", or
        "nothing",
            because its device does all.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    default_size: ClassVar[int] = 2
    default_iterations: ClassVar[int] = 1000
    access: ClassVar[tuple[str, ...]] = (LOCAL_WRITE,)
    transport: ClassVar[str] = "RC"
    tcp: ClassVar[bool | None] = None
    sges: ClassVar[int] = 1
    ways: ClassVar[WaitWays] = WaitWays()
    extended: ClassVar[bool] = False
    shares_receives: ClassVar[bool] = False
    server_sees: ClassVar[str] = "each"
    shared: ClassVar[bool] = False
    """Whether the server's connections share one region."""

    # What the sides send each other when they connect.

    def request_data(self, plan: Plan, index: int, region: Region) -> bytes:
        """The private data of the client's request for the connection ``index``."""
        return plan.pack(index, region)

    def read_request(self, data: bytes, own: Plan) -> tuple[Plan, int | None, Remote | None]:
        """(plan, index of the connection if it is in the data, the client's memory if it is in the data).

        Args:
            own: the plan by the server's own options.

        Raises:
            ScenarioError: the data is not of this scenario.
        """
        return Plan.unpack(data)

    def reply_data(self, region: Region) -> bytes:
        """The private data of the server's reply."""
        return pack_reply(region)

    def read_reply(self, data: bytes) -> Remote | None:
        """The server's memory, if it is in the data.

        Raises:
            ScenarioError: the data is not of this scenario.
        """
        return unpack_reply(data)

    def check(self, plan: Plan) -> None:  # noqa: B027 -- most have nothing to refuse
        """Raises :class:`ScenarioError` for a plan that this scenario cannot follow."""

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
        """Called before the first connection, if the QPs share their receives."""

    def receives(self, plan: Plan) -> int:
        """The most receives that a connection has posted at once."""
        return 1

    def prepare_client(self, plan: Plan, link: PeerLink) -> None:  # noqa: B027
        """Called before the connection is made."""

    def prepare_server(self, plan: Plan, link: PeerLink) -> None:  # noqa: B027
        """Called before the connection is made: receives posted now are there for the first message."""

    @abstractmethod
    def client(self, run: ScenarioRun) -> Samples:
        """The client's part, up to its last completion."""

    @abstractmethod
    def server(self, run: ScenarioRun) -> None:
        """The server's part, until it waits for the client's disconnect."""

    def verify(self, run: ScenarioRun) -> None:  # noqa: B027
        """The server's check after the disconnect."""


class OwnConnections(Scenario):
    """A scenario that makes its own connections, several one after the other."""

    @abstractmethod
    def serve(self, endpoint: Endpoint, port: int, options: QpOptions, timeout_s: float) -> ScenarioRun:
        """The server's part; ``endpoint`` listens."""

    @abstractmethod
    def call(
        self, endpoint: Endpoint, host: str, plan: Plan, port: int, options: QpOptions, timeout_s: float
    ) -> ScenarioRun:
        """The client's part."""

    def client_memory(self, plan: Plan) -> int:
        return 0

    server_memory = client_memory

    def client(self, run: ScenarioRun) -> Samples:
        raise NotImplementedError("see call")

    def server(self, run: ScenarioRun) -> None:
        raise NotImplementedError("see serve")


def patience_s(plan: Plan, timeout_s: float) -> float:
    """How long a server that sees nothing of the client's work waits for its disconnect."""
    return timeout_s + 0.05 * plan.iterations * plan.qps


def latency(plan: Plan, times_ns: list[int], started_ns: int, *, one_way: bool) -> Samples:
    """Samples of a scenario that waits for each message to come back; ``one_way`` halves them."""
    total = time.perf_counter_ns() - started_ns
    halved = tuple(value // 2 for value in times_ns) if one_way else tuple(times_ns)
    return Samples("latency", halved, total, len(times_ns) * plan.size, len(times_ns))


def queue_options(scenario: Scenario, plan: Plan, options: QpOptions) -> QpOptions:
    """The options with the queue depths that the plan needs, and the scenario's transport."""
    return replace(
        options,
        send_depth=max(1, plan.window),
        recv_depth=max(1, scenario.receives(plan)),
        path_mtu=plan.path_mtu or None,
        sges=scenario.sges,
        transport=scenario.transport,
    )
