"""The bytes of CM messages, with the values that the kernel's rdma_cm sends (12.6, A11)."""

from __future__ import annotations

from typing import Final

from rocekit.soft.cm.ids import CmId
from rocekit.wire import DEFAULT_PKEY, PATH_MTU_CODES
from rocekit.wire.build import build_ip_cm, build_mad, gid
from rocekit.wire.cm import CM_TRANSPORTS, IP_CM_SERVICE_PREFIX, IP_PROTOCOLS, ip_service
from rocekit.wire.mad import CmMessage

_TRANSPORT_CODES: Final = {name: code for code, name in CM_TRANSPORTS.items()}
_PROTOCOLS: Final = {name: number for number, name in IP_PROTOCOLS.items()}
#: A RoCE port has no LID: the permissive one is sent (A16.4.7).
_NO_LID: Final = 0xFFFF
_HOP_LIMIT: Final = 64
#: The code of 10 Gb/s in a PathRecord (15.2.5.16).
_RATE: Final = 3


def service_id(port: int, transport: str) -> int:
    """The service ID of an IP port: TCP's space for connections, UDP's for datagrams (A11.2)."""
    protocol = _PROTOCOLS["UDP" if transport == "UD" else "TCP"]
    return IP_CM_SERVICE_PREFIX << 24 | protocol << 16 | port


def service_port(message: CmMessage) -> int | None:
    """The port in a REQ or SIDR_REQ, or None when its service is not an IP one."""
    found = ip_service(message.number("service_id") or 0)
    return None if found is None else found[1]


def req(cm_id: CmId, response_timeout: int, max_retries: int, guid: int) -> bytes:
    """A REQ (12.6.5), with IP addressing before the program's private data (A11.3)."""
    param = cm_id.param
    return build_mad(
        "REQ",
        cm_id.transaction_id,
        local_comm_id=cm_id.local_comm_id,
        service_id=service_id(cm_id.port, cm_id.transport),
        local_ca_guid=guid,
        local_qpn=cm_id.qpn,
        responder_resources=param.responder_resources,
        initiator_depth=param.initiator_depth,
        remote_cm_response_timeout=response_timeout,
        transport_service_type=_TRANSPORT_CODES[cm_id.transport],
        end_to_end_flow_control=param.flow_control,
        starting_psn=cm_id.starting_psn,
        local_cm_response_timeout=response_timeout,
        retry_count=param.retry_count,
        partition_key=DEFAULT_PKEY,
        path_mtu_code=PATH_MTU_CODES[cm_id.path_mtu],
        rnr_retry_count=param.rnr_retry_count,
        max_cm_retries=max_retries,
        srq=param.srq,
        primary_local_port_lid=_NO_LID,
        primary_remote_port_lid=_NO_LID,
        primary_local_port_gid=gid(cm_id.local_ip),
        primary_remote_port_gid=gid(cm_id.peer_ip),
        primary_packet_rate=_RATE,
        primary_traffic_class=cm_id.tclass,
        primary_hop_limit=_HOP_LIMIT,
        primary_local_ack_timeout=cm_id.timeout,
        private_data=build_ip_cm(cm_id.local_ip, cm_id.peer_ip, cm_id.source_port, param.private_data),
    )


def rep(cm_id: CmId, guid: int) -> bytes:
    """A REP (12.6.8)."""
    param = cm_id.param
    return build_mad(
        "REP",
        cm_id.transaction_id,
        local_comm_id=cm_id.local_comm_id,
        remote_comm_id=cm_id.remote_comm_id,
        local_qpn=cm_id.qpn,
        starting_psn=cm_id.starting_psn,
        responder_resources=param.responder_resources,
        initiator_depth=param.initiator_depth,
        target_ack_delay=cm_id.timeout,
        end_to_end_flow_control=param.flow_control,
        rnr_retry_count=param.rnr_retry_count,
        srq=param.srq,
        local_ca_guid=guid,
        private_data=param.private_data,
    )


def rej(cm_id: CmId, rejected: int, reason: int, private_data: bytes = b"") -> bytes:
    """A REJ (12.6.7)."""
    return build_mad(
        "REJ",
        cm_id.transaction_id,
        local_comm_id=cm_id.local_comm_id,
        remote_comm_id=cm_id.remote_comm_id,
        message_rejected=rejected,
        reason=reason,
        private_data=private_data,
    )


def sidr_req(cm_id: CmId) -> bytes:
    """A SIDR_REQ (12.11.1): a request for the QPN of a service."""
    return build_mad(
        "SIDR_REQ",
        cm_id.transaction_id,
        request_id=cm_id.local_comm_id,
        partition_key=DEFAULT_PKEY,
        service_id=service_id(cm_id.port, "UD"),
        private_data=build_ip_cm(cm_id.local_ip, cm_id.peer_ip, cm_id.source_port, cm_id.param.private_data),
    )


def sidr_rep(cm_id: CmId, status: int, private_data: bytes | None = None) -> bytes:
    """A SIDR_REP (12.11.2)."""
    param = cm_id.param
    return build_mad(
        "SIDR_REP",
        cm_id.transaction_id,
        request_id=cm_id.remote_comm_id,
        sidr_status=status,
        local_qpn=cm_id.qpn,
        service_id=service_id(cm_id.port, "UD"),
        qkey=param.qkey,
        private_data=param.private_data if private_data is None else private_data,
    )
