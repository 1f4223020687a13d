"""Running a scenario of n hosts, over soft devices or the kernel's, and its outcome."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocekit.endpoint import Endpoint, EndpointOptions, QpOptions
from rocekit.errors import RocekitError, ScenarioError
from rocekit.journal import JournalWriter
from rocekit.scenarios import GROUPS
from rocekit.scenarios.group_scenario import GroupPlan
from rocekit.scenarios.host_group import EXCHANGES, HostGroup

if TYPE_CHECKING:
    from rocekit.soft.wires.faults import Fault

#: Addresses of soft hosts: 10.9.0.1, 10.9.0.2, …
_FIRST_ADDRESS = "10.9.0."


@dataclass(frozen=True, slots=True)
class ExchangeOutcome:
    """An exchange and its times.

    Attributes:
        messages: over all links, of one iteration; bytes: their payload.
        hops: messages in the longest chain, each sent after the one before arrived.
        times_ns: of each iteration, from the first host's start to the last one's end.
    """

    name: str
    messages: int
    bytes: int
    hops: int
    times_ns: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "exchange": self.name,
            "messages": self.messages,
            "bytes": self.bytes,
            "hops": self.hops,
            "t_min_us": min(self.times_ns) / 1000,
            "t_max_us": max(self.times_ns) / 1000,
            "t_typical_us": statistics.median(self.times_ns) / 1000,
            "t_avg_us": statistics.fmean(self.times_ns) / 1000,
        }


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """What a group did.

    Attributes:
        devices: (device, address) by rank.
        link_bytes: by ranks (from, to), payload in the whole run.
        packets: on the wire in memory; None over other wires.
    """

    plan: GroupPlan
    devices: tuple[tuple[str, str], ...]
    qps: int
    exchanges: tuple[ExchangeOutcome, ...]
    link_bytes: dict[tuple[int, int], int]
    packets: int | None = None

    @property
    def links(self) -> int:
        return len({frozenset(ranks) for ranks in self.link_bytes})

    def to_dict(self) -> dict[str, Any]:
        plan = self.plan
        return {
            "scenario": plan.scenario,
            "hosts": [{"rank": i, "device": d, "ip": ip} for i, (d, ip) in enumerate(self.devices)],
            "size": plan.size,
            "iterations": plan.iterations,
            "path_mtu": plan.path_mtu,
            "qps": self.qps,
            "packets": self.packets,
            "links": self.links,
            "exchanges": [exchange.to_dict() for exchange in self.exchanges],
            "link_bytes": [{"from": a, "to": b, "bytes": n} for (a, b), n in sorted(self.link_bytes.items())],
        }


def run_group(
    plan: GroupPlan,
    endpoints: Sequence[Endpoint],
    *,
    options: QpOptions | None = None,
    timeout_s: float = 30.0,
    seed: int | None = None,
    idle: Callable[[int], Sequence[int]] | None = None,
) -> GroupOutcome:
    """Connect the endpoints and run the plan over them; the data is checked.

    Raises:
        RocekitError: what went wrong, and where.
    """
    scenario = GROUPS[plan.scenario]()
    scenario.check(plan)
    group = HostGroup(scenario, plan, endpoints, options=options, timeout_s=timeout_s, seed=seed, idle=idle)
    try:
        group.run()
    except RocekitError as error:
        raise ScenarioError(f"{plan.scenario} of {plan.hosts}: {error}") from error
    found = []
    for place, name in enumerate(EXCHANGES):
        loads = [scenario.loads(plan, *ranks)[place] for ranks in group.traffic]
        done = group.done[name].values()
        found.append(
            ExchangeOutcome(
                name,
                sum(load.messages for load in loads),
                sum(load.bytes for load in loads),
                max(d.hops for d in done),
                tuple(d.took_ns for d in done),
            )
        )
    return GroupOutcome(
        plan,
        tuple((endpoint.device, endpoint.ip) for endpoint in endpoints),
        group.qps,
        tuple(found),
        {ranks: wire.bytes for ranks, wire in group.traffic.items()},
    )


def soft_group(
    plan: GroupPlan,
    *,
    options: QpOptions | None = None,
    timeout_s: float = 30.0,
    capture: str | Path | None = None,
    journal: str | Path | None = None,
    faults: Iterable[Fault] = (),
    seed: int | None = None,
) -> GroupOutcome:
    """Run a plan over soft devices on a wire in memory, whose time passes only while all wait.

    Args:
        capture: pcapng to write of all packets, before faults.
        seed: the same one gives the same run and files, byte for byte.
    """
    from rocekit.files.pcapng_write import PcapngWriter
    from rocekit.soft.backend import SoftEndpoint
    from rocekit.soft.wires.memory import MemoryWire

    GROUPS[plan.scenario]().check(plan)
    drawn = int.from_bytes(os.urandom(8), "big") if seed is None else seed
    with ExitStack() as stack:
        sink = None
        if capture is not None:
            sink = stack.enter_context(PcapngWriter(capture, interface_name="soft"))
        writers = stack.enter_context(_soft_journals(journal, plan.hosts))
        wire = MemoryWire(seed=drawn, faults=faults, capture=sink, journal=writers.pop())
        endpoints: list[SoftEndpoint] = []
        for rank, writer in enumerate(writers):
            at = EndpointOptions(ip=f"{_FIRST_ADDRESS}{rank + 1}")
            endpoints.append(SoftEndpoint(at, writer, seed=drawn, wire=wire))
            stack.callback(endpoints[-1].close)

        ranks = {port: rank for rank, port in enumerate(wire.ports)}

        def completed() -> bool:
            # Only the device that the event reached can have a new completion: no look at all others.
            return wire.acted is not None and len(endpoints[ranks[wire.acted]].cq) > 0

        def idle(until_ns: int) -> Sequence[int]:
            if wire.run(until_ns, stop=completed):
                wire.now = max(wire.now, until_ns)
            return (ranks[wire.acted],) if wire.acted is not None and completed() else ()

        outcome = run_group(plan, endpoints, options=options, timeout_s=timeout_s, seed=drawn, idle=idle)
        return replace(outcome, packets=wire.packets)


def verbs_group(
    plan: GroupPlan,
    devices: Sequence[EndpointOptions],
    *,
    options: QpOptions | None = None,
    timeout_s: float = 30.0,
    journal: str | Path | None = None,
) -> GroupOutcome:
    """Run a plan over devices of the kernel, one for each host."""
    from rocekit.scenarios.client_server import make_endpoint

    GROUPS[plan.scenario]().check(plan)
    with ExitStack() as stack:
        writer = None if journal is None else stack.enter_context(JournalWriter(journal))
        endpoints = [stack.enter_context(make_endpoint(at, writer)) for at in devices]
        return run_group(plan, endpoints, options=options, timeout_s=timeout_s)


@contextmanager
def _soft_journals(path: str | Path | None, hosts: int) -> Iterator[list[JournalWriter | None]]:
    """A writer for each host, as if it were a machine with one process, and one for the wire; one file."""
    if path is None:
        yield [None] * (hosts + 1)
        return
    names = [*(f"rank{rank}" for rank in range(hosts)), "wire"]
    with JournalWriter(path) as writer:
        yield [writer.of_host(name, 1) for name in names]
