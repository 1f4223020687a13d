"""How an endpoint and its QPs are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from rocekit.endpoint.receives import SharedReceives
from rocekit.endpoint.waiting import WaitWays
from rocekit.endpoint.work import REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE

DEFAULT_MTU: Final = 1024
"""Bytes of payload in a packet if neither the user nor a connection manager chose."""


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    """Which device, port and address an endpoint uses; None leaves the choice to the backend.

    Attributes:
        completions: how many may wait to be polled.
        ways: how it waits.
        extended: completions of sends come on an extended CQ of their own.
        timestamps: that CQ gives the time at which the device completed them.
        any_ip: another address is used if ``ip`` is taken.
        tcp: QPs are introduced over TCP, as the examples of libibverbs and perftest do, not by rdma_cm.
        allow_remote: other machines' addresses that it may send to although its peer merely names them.
    """

    device: str | None = None
    port: int = 1
    gid_index: int | None = None
    ip: str | None = None
    completions: int = 4096
    ways: WaitWays = field(default_factory=WaitWays)
    extended: bool = False
    timestamps: bool = True
    tcp: bool = False
    any_ip: bool = False
    allow_remote: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QpOptions:
    """How a QP is made and how long it retries.

    Attributes:
        send_depth, recv_depth: WRs that its queues hold.
        sges: elements in a scatter-gather list.
        inline_size: bytes that may be sent inline.
        path_mtu: bytes; None leaves it to the connection manager.
        timeout: local ACK timeout code, 4.096 µs × 2^code.
        retry_cnt: how often a lost packet is sent again; some devices (rxe) never count 7 down.
        rnr_retry: how often a request is sent again after an RNR NAK; 7 is without end.
        min_rnr_timer: code of the wait that this side demands in an RNR NAK.
        reads: READs and atomics outstanding at once, each way.
        transport: RC, UC or UD.
        access: what the peer may do through the QP (``qp_access_flags``), if its memory allows it too.
        shared: the receive queue that it takes its receives from, instead of one of its own.
    """

    send_depth: int = 128
    recv_depth: int = 512
    sges: int = 1
    inline_size: int = 0
    path_mtu: int | None = None
    timeout: int = 14
    retry_cnt: int = 6
    rnr_retry: int = 7
    min_rnr_timer: int = 12
    reads: int = 16
    transport: str = "RC"
    access: tuple[str, ...] = (REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC)
    shared: SharedReceives | None = None
