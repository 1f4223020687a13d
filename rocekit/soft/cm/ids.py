"""What the communication manager knows of one peer: identifier, state, parameters; and what it tells (12.9,
A11).

The names follow librdmacm: an identifier is an ``rdma_cm_id``, events are ``rdma_cm_event_type``, parameters
    are
``rdma_conn_param``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from rocekit.wire.cm import CM_MESSAGES, IP_CM

if TYPE_CHECKING:
    from rocekit.soft.engine.qp import Qp

GSI_QPN: Final = 1
IDLE, ADDR_BOUND, ROUTE_RESOLVED, LISTEN = "IDLE", "ADDR_BOUND", "ROUTE_RESOLVED", "LISTEN"
REQ_SENT, REQ_RCVD, MRA_SENT, REP_SENT, REP_RCVD = "REQ_SENT", "REQ_RCVD", "MRA_SENT", "REP_SENT", "REP_RCVD"
ESTABLISHED, DREQ_SENT, DREQ_RCVD, TIMEWAIT = "ESTABLISHED", "DREQ_SENT", "DREQ_RCVD", "TIMEWAIT"
SIDR_REQ_SENT, SIDR_REQ_RCVD, CLOSED = "SIDR_REQ_SENT", "SIDR_REQ_RCVD", "CLOSED"

#: Which message a state takes in, and the manager's method for it (12.9.7, the communication establishment
#: and release state diagrams). What is not here is ignored, or answered as the repeat it is.
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
        (DREQ_SENT, "DREQ"): "take_crossing_dreq",
        (DREQ_SENT, "DREP"): "take_drep",
        (TIMEWAIT, "DREQ"): "repeat_drep",
        (SIDR_REQ_SENT, "SIDR_REP"): "take_sidr_rep",
    }
)


def private_data_limit(message: str) -> int:
    """Bytes of the program's own that a message has room for; in a REQ the IP addressing takes a part
    (A11.3).
    """
    room = CM_MESSAGES[message].by_name["private_data"].bits // 8
    return room - IP_CM.length if message in ("REQ", "SIDR_REQ") else room


@dataclass(frozen=True, slots=True)
class ConnParam:
    """``struct rdma_conn_param``.

    Attributes:
        responder_resources: READs and atomics of the peer's that this side serves at once.
        initiator_depth: READs and atomics that this side wants to have under way at once.
        retry_count, rnr_retry_count: what the peer is told to do.
        qp_num: the QP's number where the program keeps the QP to itself.
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
    """One side of a connection, being made or made.

    Attributes:
        state: see :data:`TRANSITIONS`.
        qp: the queue pair that the manager moves through its states, or None when the program does so itself.
        peer_ip, port: the other side's address; for a listener, ``port`` is where it listens.
        remote: the fields of the peer's REQ or REP.
        starting_psn: where this side tells the peer to begin sending.
        timeout, path_mtu: local ACK timeout code and path MTU in bytes that a REQ asks for.
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
    # The message that waits for its answer, and what was last said, in case the peer asks again.
    last_mad: bytes = b""
    retries: int = 0
    interval_ns: int = 0
    deadline: int | None = None


@dataclass(frozen=True, slots=True)
class CmEvent:
    """``struct rdma_cm_event``.

    Attributes:
        type: a name of ``wire.CM_EVENTS``.
        status: 0; a negative errno; for REJECTED the REJ's reason; for a UD's UNREACHABLE the SIDR status.
        private_data: as the message had it, zeros behind it included.
        param: what the peer asked for or granted.
    """

    type: str
    id: CmId
    status: int = 0
    private_data: bytes = b""
    param: dict[str, Any] = field(default_factory=dict)
    listener: CmId | None = None
