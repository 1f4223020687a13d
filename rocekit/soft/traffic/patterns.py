"""Patterns of traffic between hosts: incast, all-to-all, ring, permutation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from rocekit.soft.engine.congestion import DcqcnParameters
from rocekit.soft.engine.prng import Prng
from rocekit.soft.traffic.plan import FlowPlan, HostPlan, TrafficPlan
from rocekit.soft.wires.switch import SwitchSettings

_MOST_HOSTS: Final = 250


def _incast(hosts: int, _draw: Prng) -> list[tuple[int, int]]:
    return [(sender, 0) for sender in range(1, hosts)]


def _all_to_all(hosts: int, _draw: Prng) -> list[tuple[int, int]]:
    return [(a, b) for a in range(hosts) for b in range(hosts) if a != b]


def _ring(hosts: int, _draw: Prng) -> list[tuple[int, int]]:
    return [(host, (host + 1) % hosts) for host in range(hosts)]


def _permutation(hosts: int, draw: Prng) -> list[tuple[int, int]]:
    """Every host sends to one and receives from one, none to itself (Sattolo's algorithm: one cycle)."""
    order = list(range(hosts))
    for i in range(hosts - 1, 0, -1):
        j = draw.below(i)
        order[i], order[j] = order[j], order[i]
    return list(enumerate(order))


#: By name: the pairs (sender, receiver) of so many hosts.
PATTERNS: Final[Mapping[str, Callable[[int, Prng], list[tuple[int, int]]]]] = MappingProxyType(
    {"incast": _incast, "all-to-all": _all_to_all, "ring": _ring, "permutation": _permutation}
)


@dataclass(frozen=True, slots=True)
class PatternSettings:
    """How a pattern is played.

    Attributes:
        hosts: how many; of an incast, the senders and the one receiver.
        rate: the share of its link that each host sends at most; its flows share it.
        flow: what all flows are like; name, source, destination and rate are set by the pattern.
        dcqcn: how senders react to CNPs, at a line rate that is set to the link's; None: not at all.
        cnps: whether receivers send CNPs.
    """

    hosts: int = 5
    duration_ns: int = 5_000_000
    rate_bps: int = 40_000_000_000
    rate: float = 1.0
    delay_ns: int = 1_000
    flow: FlowPlan = field(default_factory=lambda: FlowPlan("", 0, 0))
    dcqcn: DcqcnParameters | None = field(default_factory=DcqcnParameters)
    cnps: bool = True
    switch: SwitchSettings = field(default_factory=SwitchSettings)
    ip_version: int = 4
    tap: str | None = None
    seed: int = 0


def pattern(name: str, settings: PatternSettings) -> TrafficPlan:
    """The plan of a pattern; the capture of an incast is taken at the receiver, of others as delivered.

    Raises:
        ValueError: a value that makes no sense.
    """
    if name not in PATTERNS:
        raise ValueError(f"a pattern is one of {', '.join(PATTERNS)}, not {name!r}")
    if not 2 <= settings.hosts <= _MOST_HOSTS:
        raise ValueError(f"a pattern has 2 to {_MOST_HOSTS} hosts, not {settings.hosts}")
    dcqcn = settings.dcqcn
    if dcqcn is not None:
        dcqcn = replace(dcqcn, line_rate_bps=settings.rate_bps)
    network = "10.9.0." if settings.ip_version == 4 else "fd00:9::"
    hosts = tuple(
        HostPlan(
            f"host{n + 1}",
            f"{network}{n + 1:{'d' if settings.ip_version == 4 else 'x'}}",
            f"port{n + 1}",
            cnp_interval_ns=50_000 if settings.cnps else None,
            dcqcn=dcqcn,
        )
        for n in range(settings.hosts)
    )
    pairs = PATTERNS[name](settings.hosts, Prng(settings.seed, "pattern"))
    each = {sender: sum(s == sender for s, _ in pairs) for sender, _ in pairs}
    flows = tuple(
        replace(
            settings.flow,
            name=f"{hosts[a].name}-{hosts[b].name}",
            source=a,
            destination=b,
            rate=settings.rate / each[a],
        )
        for a, b in pairs
    )
    return TrafficPlan(
        hosts,
        flows,
        settings.duration_ns,
        settings.rate_bps,
        settings.delay_ns,
        settings.switch,
        settings.tap or (hosts[0].name if name == "incast" else "delivered"),
        settings.seed,
    )
