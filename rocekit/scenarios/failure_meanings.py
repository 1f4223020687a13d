"""What every completion status and connection event means, and why some cannot be provoked."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from rocekit.endpoint.work import WC_MEANINGS

_RD: Final = "about Reliable Datagram QPs (end-to-end contexts)"
_NO_RD: Final = "verbs have no such QPs"
_TAGS: Final = "about the device's own matching of tags"
_NO_TAGS: Final = "it needs a device that matches tags"

#: Statuses that ``ibv_poll_cq`` can give, in words.
STATUS_WORDS: Final = MappingProxyType(
    {
        "SUCCESS": "the work request was carried out",
        **WC_MEANINGS,
        "MW_BIND_ERR": "a memory window could not be bound to the region",
        "BAD_RESP_ERR": "the peer's response fits no request",
        "LOC_EEC_OP_ERR": _RD,
        "LOC_RDD_VIOL_ERR": _RD,
        "REM_INV_RD_REQ_ERR": _RD,
        "INV_EECN_ERR": _RD,
        "INV_EEC_STATE_ERR": _RD,
        "REM_ABORT_ERR": "the peer aborted the operation",
        "FATAL_ERR": "the device failed",
        "RESP_TIMEOUT_ERR": "of some drivers only: no response in time",
        "GENERAL_ERR": "of some drivers only: any other error",
        "TM_ERR": _TAGS,
        "TM_RNDV_INCOMPLETE": _TAGS,
    }
)

#: Why no case here causes a status.
STATUS_NOT: Final = MappingProxyType(
    {
        "LOC_EEC_OP_ERR": _NO_RD,
        "LOC_RDD_VIOL_ERR": _NO_RD,
        "REM_INV_RD_REQ_ERR": _NO_RD,
        "INV_EECN_ERR": _NO_RD,
        "INV_EEC_STATE_ERR": _NO_RD,
        "LOC_ACCESS_ERR": "a forbidden access is reported to the peer (REM_ACCESS_ERR), here by an event",
        "REM_ABORT_ERR": "no case here has a peer that aborts an operation",
        "FATAL_ERR": "the device would have to fail",
        "RESP_TIMEOUT_ERR": "only some drivers give it",
        "GENERAL_ERR": "only some drivers give it",
        "TM_ERR": _NO_TAGS,
        "TM_RNDV_INCOMPLETE": _NO_TAGS,
    }
)

#: Events that ``rdma_get_cm_event`` can give, in words.
EVENT_WORDS: Final = MappingProxyType(
    {
        "ADDR_RESOLVED": "rdma_resolve_addr found the device and a route to the address",
        "ADDR_ERROR": "rdma_resolve_addr failed: no route to the address, no neighbour, or no RDMA device",
        "ROUTE_RESOLVED": "rdma_resolve_route is done (RoCE: the netdev's route)",
        "ROUTE_ERROR": "rdma_resolve_route failed: the device is gone, or a subnet manager knows no path",
        "CONNECT_REQUEST": "a client asks the listener to connect (REQ)",
        "CONNECT_RESPONSE": "the server accepted (REP); the program moves its QP and confirms (RTU)",
        "CONNECT_ERROR": "the connection could not be made, though the peer had replied",
        "UNREACHABLE": "the peer's connection manager did not answer",
        "REJECTED": "the peer rejected the request (REJ), with a reason",
        "ESTABLISHED": "the connection is made (RTU, or the first packet)",
        "DISCONNECTED": "the peer ended the connection, or confirmed that this side did (DREQ, DREP)",
        "DEVICE_REMOVAL": "the device is being removed: everything on it must be destroyed",
        "MULTICAST_JOIN": "rdma_join_multicast is done: the group's address handle is there",
        "MULTICAST_ERROR": "the group could not be joined, or membership was lost",
        "ADDR_CHANGE": "the interface's hardware address changed, as when a bond fails over",
        "TIMEWAIT_EXIT": "packets of the old connection no longer arrive: its QP number may be used again",
    }
)
