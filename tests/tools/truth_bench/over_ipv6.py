"""Experiments of the truth bench over IPv6: ``ipv6-drawn-7`` is ``drawn-7``, between the hosts' IPv6 GIDs.

IPv6 has no identification, so a packet that is sent again equals the one sent before, bit by bit. The judge
must know them apart: the lab numbers each packet that a host sends, in the flow label, which the ICRC does
not cover, and takes the numbers out of the captures when they are made (``marks`` of the truth).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from truth_bench.experiments import TO, Experiment

PREFIX: Final = "ipv6-"
_TO: Final = "fd00:9::2"
#: Of each device; 1 is IPv4's.
_GID_INDEX: Final = 2


def over_ipv6(experiment: Experiment) -> Experiment:
    """The same experiment over IPv6.

    perftest's own connection, over TCP, remains one of IPv4. Its ``-R`` is left out: with librdmacm it takes
    only IPv4 addresses.
    """
    client, server = experiment.client, experiment.server
    return replace(
        experiment,
        name=PREFIX + experiment.name,
        client=_words(client),
        server=None if server is None else _words(server),
        ip_version=6,
    )


def _words(command: str) -> str:
    command = re.sub(r" -R\b", "", command)
    if re.search(r"\bibv?_", command):
        return re.sub(r" -([xg]) 1\b", rf" -\1 {_GID_INDEX}", command)
    return re.sub(r"\binject (\S+)", rf"inject \1 -x {_GID_INDEX}", command).replace(TO, _TO)


def marks(truth: Mapping[str, Any], point: str) -> list[int]:
    """The number of each packet of a capture, by frame; empty over IPv4."""
    return list(truth.get("marks", {}).get(point, ()))
