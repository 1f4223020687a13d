"""The guard: nothing leaves this machine unless the user named its destination address.

Made-up packets and load for a test can break a network that others work on. So every sender asks here first.
Allowed are loopback, this machine's own addresses, and those of its network namespaces (the other ends of
veth pairs, containers).
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

from rocekit.errors import ScenarioError
from rocekit.machine.iproute import ip

OPTION = "--allow-remote"


def check(destinations: Iterable[str], allowed: Iterable[str] = ()) -> None:
    """Refuse destinations that are not on this machine, before anything is sent.

    Args:
        destinations: addresses or host names; a name that cannot be resolved is left to its user.
        allowed: addresses or host names that the user named.

    Raises:
        ScenarioError: a destination is neither; the first such.
    """
    named = {address for name in allowed for address in _resolved(name)}
    for destination in dict.fromkeys(destinations):
        for address in _resolved(destination):
            if address not in named and not is_own(address):
                raise ScenarioError(
                    f"{destination} is no address of this machine or its namespaces, nothing was sent; "
                    f"{OPTION} {destination} sends there"
                )


def is_own(address: str) -> bool:
    """Whether an address is loopback, this machine's, or one of its namespaces'."""
    found = _plain(address)
    if found.is_loopback:
        return True
    if str(found) in _addresses(ip("addr", "show")):
        return True
    return any(str(found) in _addresses(ip("addr", "show", within=place)) for place in _namespaces())


def _plain(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The address without a scope; one that is IPv4-mapped, as in a GID, becomes IPv4."""
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


def _resolved(name: str) -> list[str]:
    try:
        return [str(_plain(name))]
    except ValueError:
        pass
    try:
        return list(dict.fromkeys(str(_plain(str(a[4][0]))) for a in socket.getaddrinfo(name, None)))
    except OSError:
        return []


def _addresses(links: Iterable[dict[str, object]]) -> frozenset[str]:
    found = set()
    for link in links:
        entries = link.get("addr_info")
        for entry in entries if isinstance(entries, list) else ():
            if "local" in entry:
                found.add(str(ipaddress.ip_address(entry["local"])))
    return frozenset(found)


def _namespaces() -> Iterator[tuple[str, ...]]:
    """How to run a command in each other network namespace of this machine that this process may enter."""
    for entry in ip("netns", "list"):
        yield "ip", "netns", "exec", str(entry["name"])
    if os.geteuid() != 0:
        return
    seen = {_inode("self")}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (inode := _inode(folder.name)) not in seen:
            seen.add(inode)
            if inode is not None:
                yield "nsenter", f"--net=/proc/{folder.name}/ns/net"


def _inode(process: str) -> str | None:
    try:
        return str(Path("/proc", process, "ns/net").readlink())
    except OSError:
        return None
