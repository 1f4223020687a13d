"""Layouts and codes of management datagrams and of the communication manager's messages.

A MAD is 256 bytes (13.4.2); a CM message fills the 232 bytes behind the 24-byte common header (12.6). Layouts
and numbers are those of the IBA Specification, Volume 1, chapters 12 and 13; the IP addressing before a REQ's
or SIDR_REQ's private data is annex A11.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from rocekit.wire import Header

MAD_BYTES: Final = 256
MAD = Header.of(
    "MAD",
    "13.4.2",
    "base_version:8 mgmt_class:8 class_version:8 method:8 status:16 class_specific:16 transaction_id:64 "
    "attribute_id:16 resv16:16 attribute_modifier:32",
)
MGMT_CLASS_CM: Final = 0x07  # 13.4.4
CM_CLASS_VERSION: Final = 2
METHOD_SEND: Final = 0x03  # 13.4.5; CM messages are all sent with it
GSI_QKEY: Final = 0x8001_0000  # 10.2.5: the well-known Q_Key of QP1

MGMT_CLASSES: Final = MappingProxyType(
    {
        0x01: "SubnLIDRouted",
        0x03: "SubnAdm",
        0x04: "PerfMgt",
        0x05: "BM",
        0x06: "DevMgt",
        0x07: "ComMgt",
        0x08: "SNMP",
        0x81: "SubnDirected",
    }
)

_PATH = (
    "{p}_local_port_lid:16 {p}_remote_port_lid:16 {p}_local_port_gid:128 {p}_remote_port_gid:128 "
    "{p}_flow_label:20 resv_{p}0:6 {p}_packet_rate:6 {p}_traffic_class:8 {p}_hop_limit:8 {p}_sl:4 "
    "{p}_subnet_local:1 resv_{p}1:3 {p}_local_ack_timeout:5"
)

REQ = Header.of(
    "REQ",
    "12.6.5",
    "local_comm_id:32 resv0:8 vendor_id:24 service_id:64 local_ca_guid:64 resv1:32 local_qkey:32 "
    "local_qpn:24 responder_resources:8 local_eecn:24 initiator_depth:8 "
    "remote_eecn:24 remote_cm_response_timeout:5 transport_service_type:2 end_to_end_flow_control:1 "
    "starting_psn:24 local_cm_response_timeout:5 retry_count:3 partition_key:16 "
    "path_mtu_code:4 rdc_exists:1 rnr_retry_count:3 max_cm_retries:4 srq:1 extended_transport_type:3 "
    + _PATH.format(p="primary")
    + " resv_primary2:3 "
    + _PATH.format(p="alternate")
    + " sap_supported:1 resv_alternate2:2 private_data:736",
)
MRA = Header.of(
    "MRA",
    "12.6.6",
    "local_comm_id:32 remote_comm_id:32 message_mraed:2 resv0:6 service_timeout:5 resv1:3 private_data:1776",
)
REJ = Header.of(
    "REJ",
    "12.6.7",
    "local_comm_id:32 remote_comm_id:32 message_rejected:2 resv0:6 rejected_info_length:7 resv1:1 reason:16 "
    "additional_info:576 private_data:1184",
)
REP = Header.of(
    "REP",
    "12.6.8",
    "local_comm_id:32 remote_comm_id:32 local_qkey:32 local_qpn:24 vendor_id_high:8 local_eecn:24 "
    "vendor_id_mid:8 starting_psn:24 vendor_id_low:8 responder_resources:8 initiator_depth:8 "
    "target_ack_delay:5 failover_accepted:2 end_to_end_flow_control:1 rnr_retry_count:3 srq:1 resv3:4 "
    "local_ca_guid:64 private_data:1568",
)
RTU = Header.of("RTU", "12.6.9", "local_comm_id:32 remote_comm_id:32 private_data:1792")
DREQ = Header.of(
    "DREQ", "12.6.10", "local_comm_id:32 remote_comm_id:32 remote_qpn:24 resv0:8 private_data:1760"
)
DREP = Header.of("DREP", "12.6.11", "local_comm_id:32 remote_comm_id:32 private_data:1792")
LAP = Header.of(
    "LAP",
    "12.8.1",
    "local_comm_id:32 remote_comm_id:32 resv0:32 remote_qpn:24 remote_cm_response_timeout:5 resv1:3 resv2:32 "
    "alternate_local_port_lid:16 alternate_remote_port_lid:16 alternate_local_port_gid:128 "
    "alternate_remote_port_gid:128 alternate_flow_label:20 resv3:4 alternate_traffic_class:8 "
    "alternate_hop_limit:8 resv4:2 alternate_packet_rate:6 alternate_sl:4 alternate_subnet_local:1 resv5:3 "
    "alternate_local_ack_timeout:5 resv6:3 private_data:1344",
)
APR = Header.of(
    "APR",
    "12.8.2",
    "local_comm_id:32 remote_comm_id:32 additional_info_length:8 ap_status:8 resv0:16 additional_info:576 "
    "private_data:1184",
)
SIDR_REQ = Header.of(
    "SIDR_REQ", "12.11.1", "request_id:32 partition_key:16 resv0:16 service_id:64 private_data:1728"
)
SIDR_REP = Header.of(
    "SIDR_REP",
    "12.11.2",
    "request_id:32 sidr_status:8 additional_info_length:8 vendor_id_high:16 local_qpn:24 vendor_id_low:8 "
    "service_id:64 qkey:32 additional_info:576 private_data:1088",
)

#: CM attribute IDs (12.6, table "CM Attributes") to the message they carry.
CM_ATTRIBUTES: Final = MappingProxyType(
    {
        0x0010: REQ,
        0x0011: MRA,
        0x0012: REJ,
        0x0013: REP,
        0x0014: RTU,
        0x0015: DREQ,
        0x0016: DREP,
        0x0017: SIDR_REQ,
        0x0018: SIDR_REP,
        0x0019: LAP,
        0x001A: APR,
    }
)
CM_MESSAGES: Final = MappingProxyType({h.name: h for h in CM_ATTRIBUTES.values()})
CM_ATTRIBUTE_IDS: Final = MappingProxyType({h.name: a for a, h in CM_ATTRIBUTES.items()})

#: REQ's transport service type (12.6.5); 3 points to the extended transport type, of which 1 is XRC (A14).
CM_TRANSPORTS: Final = MappingProxyType({0: "RC", 1: "UC", 2: "RD", 3: "extended"})

#: The message that an MRA or REJ responds to (12.6.6, 12.6.7).
CM_ANSWERED: Final = MappingProxyType({0: "REQ", 1: "REP", 2: "other"})

#: Vendors whose drivers use Enhanced Connection Establishment, by the ID in REQ and REP.
ECE_VENDORS: Final = MappingProxyType({0x15B3: "NVIDIA, Mellanox"})

#: RDMA IP CM Service (A11): the header before the consumer's private data in REQ and SIDR_REQ.
IP_CM = Header.of(
    "IP_CM",
    "A11.3",
    "major_version:4 minor_version:4 ip_version:4 resv0:4 source_port:16 source_address:128 "
    "destination_address:128",
)
IP_CM_SERVICE_PREFIX: Final = 0x0000_0000_01  # A11.2: service IDs 0x0000000001ppnnnn: protocol pp, port nnnn
IP_PROTOCOLS: Final = MappingProxyType({6: "TCP", 17: "UDP", 132: "SCTP"})


def ip_service(service_id: int) -> tuple[int, int] | None:
    """(IP protocol, port) of an RDMA IP CM service ID, or None for any other service ID (A11.2)."""
    if service_id >> 24 != IP_CM_SERVICE_PREFIX:
        return None
    return service_id >> 16 & 0xFF, service_id & 0xFFFF


#: REJ reasons (12.6.7.2, table "REJ Reason Codes"), in words.
REJ_REASONS: Final = MappingProxyType(
    {
        1: "no QP available",
        2: "no EE context available",
        3: "no resources available",
        4: "timeout",
        5: "unsupported request",
        6: "invalid communication ID",
        7: "invalid communication instance",
        8: "invalid service ID (nobody listens on it)",
        9: "invalid transport service type",
        10: "stale connection",
        11: "RDC does not exist",
        12: "primary remote port GID rejected",
        13: "primary remote port LID rejected",
        14: "invalid primary SL",
        15: "invalid primary traffic class",
        16: "invalid primary hop limit",
        17: "invalid primary packet rate",
        18: "alternate remote port GID rejected",
        19: "alternate remote port LID rejected",
        20: "invalid alternate SL",
        21: "invalid alternate traffic class",
        22: "invalid alternate hop limit",
        23: "invalid alternate packet rate",
        24: "port and CM redirection",
        25: "port redirection",
        26: "invalid path MTU",
        27: "insufficient responder resources",
        28: "consumer reject",
        29: "RNR retry count rejected",
        30: "duplicate local communication ID",
        31: "invalid class version",
        32: "invalid primary flow label",
        33: "invalid alternate flow label",
        35: "vendor option not supported",
    }
)
REJ_CONSUMER: Final = 28

#: SIDR_REP status (12.11.2, table "SIDR_REP Status") in words.
SIDR_STATUSES: Final = MappingProxyType(
    {
        0: "QPN and Q_Key valid",
        1: "service ID not supported",
        2: "rejected by service provider",
        3: "no QP available",
        4: "request redirected",
        5: "unsupported version",
    }
)
