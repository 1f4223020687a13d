"""All packets of a description, in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from rocekit.craft.keys import NETWORK
from rocekit.craft.pace import Outgoing, Rate
from rocekit.craft.packet import Flows, PacketSpec, announced_lengths


def craft(
    packets: Sequence[Mapping[str, Any]],
    common: Mapping[str, Any] = MappingProxyType({}),
    *,
    count: int = 1,
    rate: Rate | None = None,
) -> Iterator[Outgoing]:
    """Make the packets of a description, one after the other.

    Args:
        packets: one mapping for each packet, with keys of :mod:`rocekit.craft.keys`.
        common: keys for all of them; ``psn`` is each flow's first.
        count: how often all of them are made; PSNs continue.
        rate: how fast they follow each other; None: a microsecond apart.

    Raises:
        Wrong: a description that makes no packet; the packets before it were made.
    """
    specs = [PacketSpec(place, packet, common) for place, packet in enumerate(packets)]
    flows, lengths = Flows(), announced_lengths(specs)
    at_ns = 0
    for _ in range(count):
        for spec, length in zip(specs, lengths, strict=True):
            for number in range(spec.count):
                at_ns += spec.wait_ns
                frame = spec.build(number, flows, length)
                yield Outgoing(frame, at_ns, spec.network["dst"])
                at_ns += 1_000 if rate is None else rate.gap_ns(len(frame))


def how_many(packets: Sequence[Mapping[str, Any]], common: Mapping[str, Any]) -> int:
    """How many packets a description makes.

    Raises:
        Wrong: it makes none.
    """
    return sum(PacketSpec(place, packet, common).count for place, packet in enumerate(packets))


def destinations(packets: Iterable[Mapping[str, Any]], common: Mapping[str, Any]) -> list[str]:
    """Every address that the packets of a description go to."""
    return list(dict.fromkeys(str({**NETWORK, **common, **packet}["dst"]) for packet in packets))
