"""Connection events that a program can make happen on a device of the kernel's, without harm to it."""

from __future__ import annotations

import ipaddress
from types import MappingProxyType
from typing import Final, Protocol

from rocekit.endpoint.endpoint import CmNews
from rocekit.endpoint.waiting import Deadline
from rocekit.errors import VerbsError
from rocekit.verbs.open_device import OpenDevice
from rocekit.verbs.rdma_cm import PORT_SPACE_UDP, Channel

#: Groups that nobody uses, by IP version (RFC 5771's and RFC 4291's ranges for sites).
_GROUPS: Final = {4: "239.255.77.77", 6: "ff05::7777"}
_PORT: Final = 18514
_NOT: Final = MappingProxyType(
    {
        "ROUTE_ERROR": "RoCE's routes are the netdev's: rdma_resolve_route asks nobody",
        "CONNECT_ERROR": "the kernel reports it only of QPs that it moves itself",
        "UNREACHABLE": "it needs a host whose connection manager is silent, and takes 70 s",
        "DEVICE_REMOVAL": "the device would have to be removed (rdma link delete)",
        "ADDR_CHANGE": "the address would have to move to another device (a bond that fails over)",
        "MULTICAST_ERROR": "the device would have to go while a group is joined",
    }
)


class EventSource(Protocol):
    """What making an event happen needs of an endpoint."""

    @property
    def ip(self) -> str: ...

    @property
    def opened(self) -> OpenDevice: ...

    @property
    def channel(self) -> Channel: ...

    @property
    def heard_of(self) -> list[CmNews]: ...

    def hear(self, wait_s: float = 0.0) -> None: ...


def provoke(endpoint: EventSource, event: str, peer_ip: str, deadline: Deadline) -> str | None:
    """Make a connection event happen; why not, if it cannot."""
    if event in _NOT:
        return _NOT[event]
    try:
        if event == "MULTICAST_JOIN":
            group = endpoint.channel.create_id(PORT_SPACE_UDP)
            endpoint.opened.release(group.close)
            group.bind(endpoint.ip, 0)
            group.join(_GROUPS[ipaddress.ip_address(endpoint.ip).version])
        elif event == "ADDR_ERROR":
            lost = endpoint.channel.create_id()
            endpoint.opened.release(lost.close)
            lost.resolve_address(endpoint.ip, _nobody(peer_ip), _PORT, Deadline(min(2.0, deadline.left())))
    except VerbsError as error:
        return str(error)
    while not any(news.type == event for news in endpoint.heard_of):
        if deadline.passed():
            return f"not reported within {deadline.seconds:g} s"
        endpoint.hear(min(0.1, deadline.left()))
    return None


def _nobody(ip: str) -> str:
    """An address next to a given one that nobody is expected to have."""
    head, sign, _ = ip.rpartition(":" if ":" in ip else ".")
    return f"{head}{sign}{'fa7' if sign == ':' else 253}"
