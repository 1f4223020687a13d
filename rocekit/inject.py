"""Traffic: runs a scenario as server, as client, or both, and says what was measured.

The scenarios themselves are in :mod:`rocekit.scenarios`; the device they run over is a
:class:`rocekit.endpoint.Endpoint`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import signal
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

from rocekit.devices import source_address
from rocekit.endpoint import Deadline, Endpoint, EndpointOptions, QpOptions
from rocekit.errors import RocekitError, ScenarioError
from rocekit.journal import JournalWriter, merge, read_journal
from rocekit.scenarios import SCENARIOS
from rocekit.scenarios.base import (
    Link,
    Plan,
    Run,
    Samples,
    Scenario,
    pack_reply,
    patience_s,
    queue_depths,
    unpack_reply,
)

DEFAULT_PORT = 18515  # perftest's
_GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class Settings:
    """How a side runs, whatever the scenario.

    Attributes:
        port: where the server listens.
        timeout_s: how long nothing may happen before it is given up.
        journal: a file for the verbs events, or None.
    """

    endpoint: EndpointOptions = field(default_factory=EndpointOptions)
    qp: QpOptions = field(default_factory=QpOptions)
    port: int = DEFAULT_PORT
    timeout_s: float = 30.0
    journal: Path | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a side did.

    Attributes:
        role: "client" or "server".
        samples: what was measured; None for a server, which measures nothing.
    """

    role: str
    plan: Plan
    device: str
    ip: str
    peer_ip: str | None
    path_mtu: int
    samples: Samples | None = None

    def to_dict(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "role": self.role,
            **{key: value for key, value in asdict(self.plan).items() if key != "path_mtu"},
            "device": self.device,
            "ip": self.ip,
            "peer_ip": self.peer_ip,
            "path_mtu": self.path_mtu,
        }
        if self.samples is not None:
            document |= measures(self.samples)
        return document


def measures(samples: Samples) -> dict[str, float | int]:
    """perftest's numbers: of a latency in µs, of a bandwidth in Gb/s and million messages a second."""
    found: dict[str, float | int] = {"operations": samples.operations, "bytes": samples.moved}
    if samples.kind == "latency":
        times = sorted(samples.times_ns)
        found |= {
            "t_min_us": times[0] / 1000,
            "t_max_us": times[-1] / 1000,
            "t_typical_us": statistics.median(times) / 1000,
            "t_avg_us": statistics.fmean(times) / 1000,
            "t_stdev_us": statistics.pstdev(times) / 1000,
            "p99_us": percentile(times, 99) / 1000,
            "p999_us": percentile(times, 99.9) / 1000,
        }
    else:
        seconds = max(1, samples.total_ns) / 1e9
        found |= {
            "bandwidth_gbps": samples.moved * 8 / seconds / 1e9,
            "message_rate_mpps": samples.operations / seconds / 1e6,
        }
    return found


def percentile(ordered: list[int], percent: float) -> int:
    """The smallest value that so many percent of them do not exceed."""
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, min(len(ordered), int(rank)) - 1)]


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
    with _journal(settings.journal) as journal, make(settings.endpoint, journal) as endpoint:
        endpoint.check_mtu(settings.qp)
        endpoint.listen(settings.port, backlog=64)
        if ready is not None:
            ready(endpoint.ip)
        plan, links = _meet_client(scenario, endpoint, settings)
        run = Run(endpoint, plan, links, timeout_s=settings.timeout_s, inline_size=settings.qp.inline_size)
        with _how_far(run):
            scenario.server(run)
            run.await_goodbye(patience_s(plan, settings.timeout_s))
            scenario.verify(run)
        return _outcome("server", run, None)


def _meet_client(scenario: Scenario, endpoint: Endpoint, settings: Settings) -> tuple[Plan, list[Link]]:
    links: list[Link] = []
    plan: Plan | None = None
    while plan is None or len(links) < plan.qps:
        deadline = Deadline(settings.timeout_s)
        request = endpoint.request(deadline)
        try:
            told, index, peer = Plan.unpack(request.private_data)
            if told.scenario != scenario.name:
                raise ScenarioError(f"this server does {scenario.name}, not {told.scenario}")
            # post_list and cq_mod are the client's own affair and are not told.
            if plan not in (None, told) or index != len(links):
                raise ScenarioError("this server is busy with another client")
            scenario.check(told)
            options = queue_depths(scenario, told, settings.qp)
            endpoint.check_mtu(options)
            if links and scenario.shared:
                region = links[0].region
            else:
                region = endpoint.register(scenario.server_memory(told), scenario.access)
            link = Link(request.connection(options), region, peer)
            scenario.prepare_server(told, link)
        except RocekitError as error:
            request.reject(str(error).encode())
            if plan is not None:
                continue  # the client at hand is still welcome
            raise
        link.connection.accept(pack_reply(region), deadline)
        plan = told
        links.append(link)
    return plan, links


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
    at = settings.endpoint
    if (at.device, at.gid_index, at.ip) == (None, None, None):
        at = replace(at, ip=source)
    options = queue_depths(scenario, plan, settings.qp)
    with _journal(settings.journal) as journal, make(at, journal) as endpoint:
        links: list[Link] = []
        for index in range(plan.qps):
            deadline = Deadline(settings.timeout_s)
            region = endpoint.register(scenario.client_memory(plan), scenario.access)
            connection = endpoint.dial(target, settings.port, options, deadline)
            link = Link(connection, region)
            scenario.prepare_client(plan, link)
            link.peer = unpack_reply(connection.connect(plan.pack(index, region), deadline))
            links.append(link)
        run = Run(endpoint, plan, links, timeout_s=settings.timeout_s, inline_size=settings.qp.inline_size)
        with _how_far(run):
            samples = scenario.client(run)
            run.goodbye()
        return _outcome("client", run, samples, peer_ip=target)


def both(plan: Plan, server: Settings, client: Settings, *, make: MakeEndpoint = make_endpoint) -> Outcome:
    """Server and client on this machine, the server in a process of its own.

    When both name the same journal, it gets the events of both.

    Raises:
        RocekitError: what went wrong on either side.
    """
    scenario_named(plan.scenario).check(plan)
    shared = client.journal if client.journal == server.journal else None
    if shared is not None:
        server = replace(server, journal=shared.with_name(shared.name + ".server"))
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve_apart, args=(plan.scenario, server, theirs, make))
    process.start()
    theirs.close()
    try:
        said = _hear(ours, process, client.timeout_s)
        try:
            outcome = call(said["ip"], plan, client, make=make)
        except RocekitError as error:
            # The server may know better why: it saw the same end from the other side.
            raise _better(error, ours) from None
        _hear(ours, process, client.timeout_s)
        return outcome
    finally:
        process.join(_GRACE_S)
        if process.is_alive():
            process.terminate()
            process.join(_GRACE_S)
        if process.is_alive():
            process.kill()
            process.join()
        ours.close()
        if shared is not None and server.journal is not None:
            _join_journals(shared, server.journal)


def _serve_apart(
    name: str, settings: Settings, pipe: multiprocessing.connection.Connection, make: MakeEndpoint
) -> None:
    # Ctrl-C reaches both processes; the parent tells this one to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with terminated_cleanly():
        try:
            serve(name, settings, ready=lambda ip: pipe.send({"ip": ip}), make=make)
            pipe.send({})
        except RocekitError as error:
            pipe.send({"error": str(error)})
        except BrokenPipeError:
            pass


def _hear(
    pipe: multiprocessing.connection.Connection,
    process: multiprocessing.process.BaseProcess,
    timeout_s: float,
) -> dict[str, str]:
    if not pipe.poll(timeout_s + _GRACE_S):
        raise ScenarioError("the server's process says nothing")
    try:
        said: dict[str, str] = pipe.recv()
    except EOFError:
        process.join(_GRACE_S)
        raise ScenarioError(f"the server's process ended with status {process.exitcode}") from None
    if "error" in said:
        raise ScenarioError(f"server: {said['error']}")
    return said


def _better(error: RocekitError, pipe: multiprocessing.connection.Connection) -> RocekitError:
    with contextlib.suppress(EOFError, OSError):
        if pipe.poll(_GRACE_S):
            said = pipe.recv()
            if "error" in said and "disconnected" not in said["error"]:
                return ScenarioError(f"server: {said['error']}")
    return error


def _join_journals(journal: Path, other: Path) -> None:
    """Put the events of both files into the first, by time, and remove the second."""
    found = []
    for path in (journal, other):
        with contextlib.suppress(RocekitError):
            found.append(read_journal(path))
    whole = merge(found)
    with JournalWriter(journal) as writer:
        for event in whole:
            writer.write_event(event)
    other.unlink(missing_ok=True)


@contextlib.contextmanager
def _journal(path: Path | None) -> Iterator[JournalWriter | None]:
    if path is None:
        yield None
        return
    with JournalWriter(path) as writer:
        yield writer


@contextlib.contextmanager
def _how_far(run: Run) -> Iterator[None]:
    """An error of a running scenario says how far it came."""
    try:
        yield
    except RocekitError as error:
        whole = run.plan.iterations * run.plan.qps
        raise ScenarioError(f"{run.plan.scenario}, after {run.done} of {whole}: {error}") from error


def _outcome(role: str, run: Run, samples: Samples | None, peer_ip: str | None = None) -> Outcome:
    endpoint = run.endpoint
    return Outcome(
        role,
        run.plan,
        endpoint.device,
        endpoint.ip,
        peer_ip,
        run.links[0].connection.path_mtu,
        samples,
    )


@contextlib.contextmanager
def terminated_cleanly() -> Iterator[None]:
    """SIGTERM ends the program as an exception does: all is taken down, and journals are written out."""

    def stop(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
