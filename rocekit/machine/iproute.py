"""This machine's interfaces, routes and neighbours, from iproute2's JSON."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import time
from collections.abc import Sequence
from typing import Any, Final

_PATIENCE_S: Final = 5
_RESOLVE_S: Final = 1.0


def ip(*arguments: str, within: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The output of ``ip -j ARGUMENTS``; empty if it fails.

    Args:
        within: a command that runs it elsewhere, as ``nsenter`` does.
    """
    try:
        command = [*within, "ip", "-j", *arguments]
        said = subprocess.run(command, capture_output=True, timeout=_PATIENCE_S, check=True).stdout
        return list(json.loads(said or b"[]"))
    except (OSError, subprocess.SubprocessError, ValueError):
        return []


def first_address(interface: str) -> str | None:
    """The first address of an interface that is not link-local, None if it has none."""
    for link in ip("addr", "show", "dev", interface):
        for entry in link.get("addr_info", []):
            if entry.get("scope") != "link":
                return str(entry["local"])
    return None


def addresses(interface: str) -> list[str]:
    """All addresses of an interface."""
    found = [entry for link in ip("addr", "show", "dev", interface) for entry in link.get("addr_info", ())]
    return [str(entry["local"]) for entry in found if "local" in entry]


def link_counts(interface: str) -> dict[str, int]:
    """What an interface has counted, such as ``rx_packets``."""
    found: dict[str, int] = {}
    for link in ip("-s", "link", "show", "dev", interface):
        for way, counts in (link.get("stats64") or link.get("stats") or {}).items():
            found |= {f"{way}_{name}": int(count) for name, count in counts.items()}
    return found


def leads_away(interface: str) -> bool:
    """Whether packets sent on an interface leave the machine, unlike on loopback; False if there is none."""
    return any("LOOPBACK" not in link.get("flags", ()) for link in ip("link", "show", "dev", interface))


def neighbour(address: str, interface: str) -> str | None:
    """The MAC address of the next hop to an address, which the kernel knows or finds."""
    route = ip("route", "get", address, "oif", interface)
    hop = str(route[0].get("gateway", address)) if route else address
    deadline = time.monotonic() + _RESOLVE_S
    asked = False
    while True:
        for entry in ip("neigh", "show", "to", hop, "dev", interface):
            if "lladdr" in entry:
                return str(entry["lladdr"])
        if time.monotonic() >= deadline:
            return None
        if not asked:
            # Any datagram makes the kernel ask; port 9 discards it.
            asked = True
            family = socket.AF_INET6 if ":" in hop else socket.AF_INET
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.sendto(b"", (hop, 9))
        time.sleep(0.02)
