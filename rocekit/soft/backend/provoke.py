"""Connection events that a soft device brings about itself: what no peer does, or takes too long to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocekit.endpoint import Deadline
from rocekit.soft.cm.ids import CmId, ConnParam

if TYPE_CHECKING:
    from rocekit.soft.backend import SoftEndpoint

#: A group and an address that is none, by IP version.
_GROUPS: Final = {4: ("224.0.0.77", "10.0.0.1"), 6: ("ff0e::77", "fd00::1")}
#: Code of a response timeout of 1 ms, for a peer that does not answer at all.
_SHORT: Final = 8
_PORT: Final = 18514


def provoke(
    endpoint: SoftEndpoint, event: str, peer: tuple[str, int], private_data: bytes, deadline: Deadline
) -> str | None:
    """Bring a connection event about; why it cannot be."""
    cm = endpoint.soft.cm
    version = 6 if ":" in endpoint.ip else 4
    if event == "ADDR_ERROR":
        # The device has no address of the other IP version.
        cm.resolve_addr(cm.create_id(), "fd00::1" if version == 4 else "192.0.2.1", _PORT)
    elif event == "ROUTE_ERROR":
        cm_id = cm.create_id()
        cm.resolve_addr(cm_id, *peer)
        endpoint.soft.remove(endpoint.shell.now())
        cm.resolve_route(cm_id)
    elif event == "DEVICE_REMOVAL":
        if not endpoint.soft.removed:
            endpoint.soft.remove(endpoint.shell.now())
    elif event in ("MULTICAST_JOIN", "MULTICAST_ERROR"):
        cm.join_multicast(cm.create_id("UD"), _GROUPS[version][event == "MULTICAST_ERROR"])
    elif event == "ADDR_CHANGE":
        cm.tell_all("ADDR_CHANGE")
    elif event == "UNREACHABLE":
        patience = cm.max_retries, cm.response_timeout
        cm.max_retries, cm.response_timeout = 1, _SHORT
        try:
            # Nobody is at the address behind the device's own.
            cm.connect(_resolved(endpoint, _nobody(peer[0]), _PORT), ConnParam(), endpoint.shell.now())
        finally:
            cm.max_retries, cm.response_timeout = patience
    elif event == "CONNECT_ERROR":
        # The manager is to move a QP that is still in RESET, and cannot.
        cm_id = _resolved(endpoint, *peer)
        cm_id.qp = endpoint.soft.create_qp(endpoint.pd, "RC", endpoint.cq)
        cm.connect(cm_id, ConnParam(private_data), endpoint.shell.now())
    elif event != "TIMEWAIT_EXIT":
        return "every connection brings it"
    while not any(news.type == event for news in endpoint.heard_of) and not deadline.passed():
        endpoint.hear(0.001)
    return None


def _resolved(endpoint: SoftEndpoint, host: str, port: int) -> CmId:
    cm = endpoint.soft.cm
    cm_id = cm.create_id()
    cm.resolve_addr(cm_id, host, port)
    cm.resolve_route(cm_id)
    return cm_id


def _nobody(ip: str) -> str:
    """An address next to a given one that nobody is expected to have."""
    head, dot, _ = ip.rpartition(":" if ":" in ip else ".")
    return f"{head}{dot}{'fa7' if dot == ':' else 253}"
