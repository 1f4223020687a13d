"""Connection events that a soft device causes itself, because no peer does, or it would take too long."""

from __future__ import annotations

from typing import Final

from rocekit.endpoint import Deadline, Endpoint
from rocekit.soft.backend.adapter import SoftAdapter
from rocekit.soft.cm.ids import CmId, ConnParam
from rocekit.soft.cm.manager import ConnectionManager

#: A multicast group and an address that is not one, by IP version.
_GROUPS: Final = {4: ("224.0.0.77", "10.0.0.1"), 6: ("ff0e::77", "fd00::1")}
#: Code of a response timeout of 1 ms, for a peer that does not exist.
_SHORT: Final = 8
_PORT: Final = 18514


def provoke(
    endpoint: Endpoint,
    adapter: SoftAdapter,
    event: str,
    peer: tuple[str, int],
    private_data: bytes,
    deadline: Deadline,
) -> str | None:
    """Cause a connection event and wait until the endpoint has it; or the reason why it cannot be caused."""
    device = adapter.device
    cm = device.cm
    version = 6 if ":" in endpoint.ip else 4
    if event == "ADDR_ERROR":
        # The device has no address of the other IP version.
        cm.resolve_addr(cm.create_id(), "fd00::1" if version == 4 else "192.0.2.1", _PORT)
    elif event == "ROUTE_ERROR":
        cm_id = cm.create_id()
        cm.resolve_addr(cm_id, *peer)
        device.remove(adapter.now())
        cm.resolve_route(cm_id)
    elif event == "DEVICE_REMOVAL":
        if not device.removed:
            device.remove(adapter.now())
    elif event in ("MULTICAST_JOIN", "MULTICAST_ERROR"):
        cm.join_multicast(cm.create_id("UD"), _GROUPS[version][event == "MULTICAST_ERROR"])
    elif event == "ADDR_CHANGE":
        cm.report_all("ADDR_CHANGE")
    elif event == "UNREACHABLE":
        patience = cm.max_retries, cm.response_timeout
        cm.max_retries, cm.response_timeout = 1, _SHORT
        try:
            cm.connect(_resolved(cm, _unused_address(peer[0]), _PORT), ConnParam(), adapter.now())
        finally:
            cm.max_retries, cm.response_timeout = patience
    elif event == "CONNECT_ERROR":
        # The manager cannot move a QP that is still in RESET to RTR.
        cm_id = _resolved(cm, *peer)
        cm_id.qp = device.create_qp(adapter.pd, "RC", adapter.cq)
        cm.connect(cm_id, ConnParam(private_data), adapter.now())
    elif event != "TIMEWAIT_EXIT":
        return "every connection causes it"
    while not any(news.type == event for news in endpoint.heard_of) and not deadline.passed():
        endpoint.hear(0.001)
    return None


def _resolved(cm: ConnectionManager, host: str, port: int) -> CmId:
    cm_id = cm.create_id()
    cm.resolve_addr(cm_id, host, port)
    cm.resolve_route(cm_id)
    return cm_id


def _unused_address(ip: str) -> str:
    """An address next to a given one, probably unused."""
    head, dot, _ = ip.rpartition(":" if ":" in ip else ".")
    return f"{head}{dot}{'fa7' if dot == ':' else 253}"
