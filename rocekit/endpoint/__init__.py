"""What a scenario needs of an RDMA stack: the interface that every backend implements.

An :class:`Endpoint` is one side's device: it registers memory, connects to peers and polls completions. A
:class:`Connection` is a QP and its way to the peer.
"""

from __future__ import annotations

from rocekit.endpoint.connection import Connection, Request
from rocekit.endpoint.endpoint import CmNews, Endpoint
from rocekit.endpoint.errors import Disconnected, errno_text
from rocekit.endpoint.options import EndpointOptions, QpOptions
from rocekit.endpoint.receives import SharedReceives
from rocekit.endpoint.waiting import Deadline, WaitWays
from rocekit.endpoint.work import (
    ATOMICS,
    LOCAL_WRITE,
    MW_BIND,
    REMOTE_ATOMIC,
    REMOTE_READ,
    REMOTE_WRITE,
    WC_MEANINGS,
    Completion,
    DeviceMemory,
    RecvWr,
    Region,
    SendWr,
    Sge,
    Target,
    is_receive,
)

__all__ = [
    "ATOMICS",
    "LOCAL_WRITE",
    "MW_BIND",
    "REMOTE_ATOMIC",
    "REMOTE_READ",
    "REMOTE_WRITE",
    "WC_MEANINGS",
    "CmNews",
    "Completion",
    "Connection",
    "Deadline",
    "DeviceMemory",
    "Disconnected",
    "Endpoint",
    "EndpointOptions",
    "QpOptions",
    "RecvWr",
    "Region",
    "Request",
    "SendWr",
    "Sge",
    "SharedReceives",
    "Target",
    "WaitWays",
    "errno_text",
    "is_receive",
]
