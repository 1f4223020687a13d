"""Running a scenario as server or as client, over any :class:`rocekit.endpoint.Endpoint`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from rocekit.endpoint import (
    Deadline,
    Endpoint,
    EndpointOptions,
    QpOptions,
    Request,
    SharedReceives,
    WaitWays,
)
from rocekit.errors import RocekitError, ScenarioError, VerbsError
from rocekit.journal import JournalWriter
from rocekit.journal.counters import counting
from rocekit.machine import guard
from rocekit.machine.devices import source_address
from rocekit.scenarios import SCENARIOS
from rocekit.scenarios.measures import measures
from rocekit.scenarios.scenario import (
    OwnConnections,
    PeerLink,
    Plan,
    Samples,
    Scenario,
    ScenarioRun,
    patience_s,
    queue_options,
)
from rocekit.scenarios.usage import Usage, UsageMeter

DEFAULT_PORT = 18515  # perftest's
ENDED_EARLY = "or the client ended before it was done"
"""Added to the error of wrong data, if the server cannot tell which it was."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a side runs, for any scenario.

    Attributes:
        port: where the server listens.
        timeout_s: a side fails if nothing happens for so long.
        journal: a file for the verbs events, by name or open, or None.
        own_plan: the plan by a server's own options; most scenarios get it from the client.
        allow_remote: other machines' addresses that a client may send to.
        counters: whether the journal gets the device's counters, before and after.
    """

    endpoint: EndpointOptions = field(default_factory=EndpointOptions)
    qp: QpOptions = field(default_factory=QpOptions)
    port: int = DEFAULT_PORT
    timeout_s: float = 30.0
    journal: Path | IO[str] | None = None
    own_plan: Plan | None = None
    allow_remote: tuple[str, ...] = ()
    counters: bool = True


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a side did.

    Attributes:
        role: "client" or "server".
        samples: what was measured; None for a server, which measures nothing.
        ways: how it waited.
        cpu_percent: of one CPU, used by the client's process while the scenario ran.
        notes: the scenario's lines beside the numbers; details: the same for JSON.
        usage: what this side's process spent while the scenario ran; server_usage: with both sides here, what
            the server's spent.
    """

    role: str
    plan: Plan
    device: str
    ip: str
    peer_ip: str | None
    path_mtu: int
    samples: Samples | None = None
    ways: WaitWays = field(default_factory=WaitWays)
    cpu_percent: float | None = None
    notes: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    usage: Usage | None = None
    server_usage: Usage | None = None

    def to_dict(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "role": self.role,
            **{key: value for key, value in asdict(self.plan).items() if key != "path_mtu"},
            "device": self.device,
            "ip": self.ip,
            "peer_ip": self.peer_ip,
            "path_mtu": self.path_mtu,
            "cm": self.ways.cm,
            "cq": self.ways.cq,
        }
        if self.samples is not None:
            document |= measures(self.samples)
        if self.cpu_percent is not None:
            document["cpu_percent"] = round(self.cpu_percent, 1)
        if self.notes:
            document["notes"] = list(self.notes)
        return {**document, **self.details}


def make_endpoint(options: EndpointOptions, journal: JournalWriter | None) -> Endpoint:
    """An endpoint on a device of the kernel's.

    Raises:
        VerbsError: pyverbs, RDMA in the kernel or the device is missing.
    """
    from rocekit.verbs import VerbsEndpoint

    return VerbsEndpoint(options, journal)


MakeEndpoint = Callable[[EndpointOptions, JournalWriter | None], Endpoint]


def scenario_named(name: str) -> Scenario:
    """Raises :class:`ScenarioError` when there is none of that name."""
    if name not in SCENARIOS:
        raise ScenarioError(f"no scenario {name!r}; there is {', '.join(SCENARIOS)}")
    return SCENARIOS[name]()


def endpoint_options(scenario: Scenario, options: EndpointOptions) -> EndpointOptions:
    """The options, with those that the scenario fixes."""
    return replace(
        options,
        ways=options.ways.filled(scenario.ways),
        extended=scenario.extended,
        tcp=options.tcp if scenario.tcp is None else scenario.tcp,
    )


def serve(
    name: str,
    settings: Settings,
    *,
    ready: Callable[[str], None] | None = None,
    make: MakeEndpoint = make_endpoint,
) -> Outcome:
    """Serve one client of a scenario.

    Args:
        ready: called with the address when the server listens.

    Raises:
        RocekitError: what went wrong; everything is taken down.
    """
    scenario = scenario_named(name)
    at = replace(endpoint_options(scenario, settings.endpoint), allow_remote=settings.allow_remote)
    with (
        _journal(settings.journal) as journal,
        make(at, journal) as endpoint,
        _counting(settings, journal, endpoint),
    ):
        endpoint.check_mtu(settings.qp)
        endpoint.listen(settings.port, backlog=64)
        if ready is not None:
            ready(endpoint.ip)
        if isinstance(scenario, OwnConnections):
            run = scenario.serve(endpoint, settings.port, settings.qp, settings.timeout_s)
            return _outcome("server", run)
        run = _accept_client(scenario, endpoint, settings)
        meter = UsageMeter()
        with _how_far(run, counted=scenario.server_sees == "each"):
            scenario.server(run)
            run.await_goodbye(patience_s(run.plan, settings.timeout_s))
            try:
                scenario.verify(run)
            except ScenarioError as error:
                early = f"; {ENDED_EARLY}" if scenario.server_sees == "end" else ""
                raise ScenarioError(f"{error}{early}") from None
        return replace(_outcome("server", run), usage=meter.stop())


def _accept_client(scenario: Scenario, endpoint: Endpoint, settings: Settings) -> ScenarioRun:
    own = settings.own_plan or Plan(scenario.name, scenario.default_size, scenario.default_iterations)
    links: list[PeerLink] = []
    plan: Plan | None = None
    options = settings.qp
    shared: SharedReceives | None = None
    stranger: RocekitError | None = None
    first = Deadline(settings.timeout_s)
    while plan is None or len(links) < plan.qps:
        deadline = first if plan is None else Deadline(settings.timeout_s)
        try:
            request = endpoint.request(deadline)
        except VerbsError as error:
            if stranger is None or plan is not None:
                raise
            raise ScenarioError(f"{error}; one that asked was turned away: {stranger}") from None
        try:
            received, index, peer = scenario.read_request(request.private_data, own)
        except RocekitError as error:  # not a client of ours: the right one may still come
            stranger = error
            _turn_away(request, error)
            continue
        try:
            if received.scenario != scenario.name:
                raise ScenarioError(f"this server does {scenario.name}, not {received.scenario}")
            # post_list and cq_mod concern the client only and are not sent.
            if plan not in (None, received) or index not in (None, len(links)):
                raise ScenarioError("this server is busy with another client")
            scenario.check(received)
            options = queue_options(scenario, received, settings.qp)
            endpoint.check_mtu(options)
            if links and scenario.shared:
                region = links[0].region
            else:
                region = scenario.server_region(endpoint, received)
            if scenario.shares_receives and shared is None:
                shared = endpoint.share(scenario.receives(received), scenario.sges)
                scenario.prepare_shared(received, shared, region)
            connection = request.connection(replace(options, shared=shared))
            connection.shown = region
            link = PeerLink(connection, region, peer)
            scenario.prepare_server(received, link)
        except RocekitError as error:
            _turn_away(request, error)
            if plan is not None:
                continue  # the first client is served all the same
            raise
        try:
            patience = Deadline(settings.timeout_s / 3) if plan is None else deadline
            link.connection.accept(scenario.reply_data(region), patience)
        except RocekitError as error:
            if plan is not None:
                raise
            # It asked and was never there, or named an address that is not its own.
            stranger = error
            _turn_away(request, error)
            with contextlib.suppress(VerbsError):
                link.connection.abandon()
            endpoint.forget(link.connection)
            continue
        plan = received
        links.append(link)
    return ScenarioRun(endpoint, plan, links, timeout_s=settings.timeout_s, options=options, shared=shared)


def _turn_away(request: Request, reason: RocekitError) -> None:
    """Reject a client, if it is still there."""
    with contextlib.suppress(VerbsError):
        request.reject(str(reason).encode())


def call(host: str, plan: Plan, settings: Settings, *, make: MakeEndpoint = make_endpoint) -> Outcome:
    """Be the client of a scenario's server.

    Args:
        host: the server's name or address.

    Raises:
        RocekitError: what went wrong; everything is taken down.
    """
    scenario = scenario_named(plan.scenario)
    scenario.check(plan)
    source, target = source_address(host, settings.port)
    at = replace(endpoint_options(scenario, settings.endpoint), allow_remote=settings.allow_remote)
    if (at.device, at.gid_index, at.ip) == (None, None, None):
        at = replace(at, ip=source, any_ip=True)
    options = queue_options(scenario, plan, settings.qp)
    with (
        _journal(settings.journal) as journal,
        make(at, journal) as endpoint,
        _counting(settings, journal, endpoint),
    ):
        if endpoint.leaves_machine or at.tcp:  # TCP goes wherever the kernel has a route
            guard.check([target], settings.allow_remote)
        if isinstance(scenario, OwnConnections):
            run = scenario.call(endpoint, target, plan, settings.port, settings.qp, settings.timeout_s)
            return _outcome("client", run, None, target)
        links: list[PeerLink] = []
        for index in range(plan.qps):
            deadline = Deadline(settings.timeout_s)
            region = endpoint.register(scenario.client_memory(plan), scenario.access)
            connection = endpoint.dial(target, settings.port, options, deadline)
            connection.shown = region
            link = PeerLink(connection, region)
            scenario.prepare_client(plan, link)
            reply = connection.connect(scenario.request_data(plan, index, region), deadline)
            link.peer = scenario.read_reply(reply)
            links.append(link)
        run = ScenarioRun(endpoint, plan, links, timeout_s=settings.timeout_s, options=options)
        with _how_far(run):
            cpu_ns, started_ns = time.process_time_ns(), time.perf_counter_ns()
            meter = UsageMeter()
            samples = scenario.client(run)
            usage = meter.stop()
            cpu_ns = time.process_time_ns() - cpu_ns
            cpu_percent = 100 * cpu_ns / max(1, time.perf_counter_ns() - started_ns)
            run.goodbye()
        return replace(_outcome("client", run, samples, target, cpu_percent), usage=usage)


def _counting(
    settings: Settings, journal: JournalWriter | None, endpoint: Endpoint
) -> contextlib.AbstractContextManager[None]:
    return counting(journal if settings.counters else None, endpoint.device)


@contextlib.contextmanager
def _journal(path: Path | IO[str] | None) -> Iterator[JournalWriter | None]:
    if path is None:
        yield None
        return
    with JournalWriter(path) as writer:
        yield writer


@contextlib.contextmanager
def _how_far(run: ScenarioRun, *, counted: bool = True) -> Iterator[None]:
    """Adds to an error of a running scenario how many iterations were done, if they are ``counted``."""
    try:
        yield
    except RocekitError as error:
        far = f", after {run.done} of {run.plan.iterations * run.plan.qps}" if counted else ""
        raise ScenarioError(f"{run.plan.scenario}{far}: {error}") from error


def _outcome(
    role: str,
    run: ScenarioRun,
    samples: Samples | None = None,
    peer_ip: str | None = None,
    cpu_percent: float | None = None,
) -> Outcome:
    endpoint = run.endpoint
    return Outcome(
        role,
        run.plan,
        endpoint.device,
        endpoint.ip,
        peer_ip,
        run.links[0].connection.path_mtu if run.links else 0,
        samples,
        endpoint.ways,
        cpu_percent,
        tuple(run.notes),
        {**run.details, **endpoint.counts()},
    )
