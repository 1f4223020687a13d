"""Identifiers, states, parameters and events of the connection manager (12.9, A11).

The names follow librdmacm: ``rdma_cm_id``, ``rdma_conn_param``, ``rdma_cm_event``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from rocekit.soft.engine.qp import Qp
from rocekit.wire.cm import CM_MESSAGES, IP_CM

IDLE, ADDR_BOUND, ROUTE_RESOLVED, LISTEN = "IDLE", "ADDR_BOUND", "ROUTE_RESOLVED", "LISTEN"
REQ_SENT, REQ_RCVD, MRA_SENT, REP_SENT, REP_RCVD = "REQ_SENT", "REQ_RCVD", "MRA_SENT", "REP_SENT", "REP_RCVD"
ESTABLISHED, DREQ_SENT, DREQ_RCVD, TIMEWAIT = "ESTABLISHED", "DREQ_SENT", "DREQ_RCVD", "TIMEWAIT"
SIDR_REQ_SENT, SIDR_REQ_RCVD, CLOSED = "SIDR_REQ_SENT", "SIDR_REQ_RCVD", "CLOSED"

#: The largest backlog of a listener, as the kernel's rdma_ucm has it (``max_backlog``).
BACKLOG: Final = 1024

#: The messages that each state handles, and the manager's method for each (12.9.7, the state diagrams of
#: communication establishment and release). All other messages are dropped.
TRANSITIONS: Final = MappingProxyType(
    {
        (REQ_SENT, "REP"): "take_rep",
        (REQ_SENT, "REJ"): "take_rej",
        (REQ_SENT, "MRA"): "take_mra",
        (REP_RCVD, "REJ"): "take_rej",
        (REP_RCVD, "REP"): "repeat",
        (REQ_RCVD, "REJ"): "take_rej",
        (MRA_SENT, "REJ"): "take_rej",
        (MRA_SENT, "REQ"): "repeat",
        (REP_SENT, "REQ"): "repeat",
        (REP_SENT, "RTU"): "take_rtu",
        (REP_SENT, "MRA"): "take_mra",
        (REP_SENT, "REJ"): "take_rej",
        (REP_SENT, "DREQ"): "take_dreq",
        (ESTABLISHED, "REP"): "repeat",
        (ESTABLISHED, "DREQ"): "take_dreq",
        (ESTABLISHED, "REJ"): "take_late_rej",
        (ESTABLISHED, "SIDR_REQ"): "repeat",
        (DREQ_SENT, "DREQ"): "take_crossing_dreq",
        (DREQ_SENT, "DREP"): "take_drep",
        (DREQ_SENT, "REJ"): "take_drep",
        (TIMEWAIT, "DREQ"): "repeat_drep",
        (SIDR_REQ_SENT, "SIDR_REP"): "take_sidr_rep",
    }
)


def private_data_limit(message: str) -> int:
    """Bytes of private data that a program may put into a message; IP addressing takes some (A11.3)."""
    room = CM_MESSAGES[message].by_name["private_data"].bits // 8
    return room - IP_CM.length if message in ("REQ", "SIDR_REQ") else room


@dataclass(frozen=True, slots=True)
class ConnParam:
    """``struct rdma_conn_param``.

    Attributes:
        responder_resources: outstanding READs and atomics of the peer that this side accepts.
        initiator_depth: outstanding READs and atomics that this side wants.
        retry_count, rnr_retry_count: for the peer to use.
        qp_num: the QPN if the program moves the QP itself.
        qkey: of a UD service.
    """

    private_data: bytes = b""
    responder_resources: int = 4
    initiator_depth: int = 4
    flow_control: bool = False
    retry_count: int = 7
    rnr_retry_count: int = 7
    srq: bool = False
    qp_num: int = 0
    qkey: int = 0


@dataclass(eq=False, slots=True)
class CmId:
    """One side of a connection.

    Attributes:
        state: see :data:`TRANSITIONS`.
        qp: the queue pair that the manager moves through its states, or None if the program does so itself.
        peer_ip, port: address of the peer; the port of a listener is its own.
        active: whether this side sent the REQ.
        remote: the fields of the peer's REQ or REP.
        request: the fields of the REQ that both sides use.
        starting_psn: the first PSN that the peer shall send.
        timeout, path_mtu, tclass: the local ACK timeout code, the path MTU in bytes and the traffic class
            (DSCP) for a REQ.
        last_mad: the last message sent, in case that the peer repeats its own.
        retries, interval_ns, deadline: of the message whose response is awaited.
        backlog: of a listener: how many peers that asked may wait for it.
    """

    number: int
    transport: str
    state: str = IDLE
    qp: Qp | None = None
    local_ip: str = ""
    peer_ip: str = ""
    port: int = 0
    source_port: int = 0
    active: bool = False
    listener: CmId | None = None
    local_comm_id: int = 0
    remote_comm_id: int = 0
    transaction_id: int = 0
    param: ConnParam = field(default_factory=ConnParam)
    remote: dict[str, Any] = field(default_factory=dict)
    request: dict[str, Any] = field(default_factory=dict)
    starting_psn: int = 0
    timeout: int = 14
    path_mtu: int = 1024
    tclass: int = 0
    last_mad: bytes = b""
    retries: int = 0
    interval_ns: int = 0
    deadline: int | None = None
    backlog: int = BACKLOG

    @property
    def remote_qp(self) -> tuple[int, int]:
        """The peer's QP: the GUID of its channel adapter and its QPN, as it said them in its REQ or REP."""
        return int(self.remote.get("local_ca_guid", 0)), int(self.remote.get("local_qpn", 0))

    @property
    def qpn(self) -> int:
        """Of the QP that the program moves itself, or that the manager moves; 0: there is none yet."""
        return self.param.qp_num or (0 if self.qp is None else self.qp.qpn)


@dataclass(frozen=True, slots=True)
class CmEvent:
    """``struct rdma_cm_event``.

    Attributes:
        type: a name of ``wire.CM_EVENTS``.
        status: 0; a negative errno; the reason of a REJ if REJECTED; the SIDR status if UNREACHABLE on UD.
        private_data: that of the message, including the zeros at its end.
        param: the fields of the message.
        listener: the identifier that listened, for a connection that the peer requested.
    """

    type: str
    id: CmId
    status: int = 0
    private_data: bytes = b""
    param: dict[str, Any] = field(default_factory=dict)
    listener: CmId | None = None
