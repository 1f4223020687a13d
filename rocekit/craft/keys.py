"""The keys of a description of packets, and their defaults."""

from __future__ import annotations

import re
from collections.abc import Iterable
from types import MappingProxyType
from typing import Final

from rocekit import wire
from rocekit.wire import cm as wire_cm
from rocekit.wire.build import DST_MAC, LEAST_SOURCE_PORT, SRC_MAC

#: Keys of the network headers and of the frame, and their defaults.
NETWORK: Final = MappingProxyType(
    {
        "src": "10.9.0.1",
        "dst": "10.9.0.2",
        "src_mac": SRC_MAC,
        "dst_mac": DST_MAC,
        "vlan": None,
        "priority": 0,
        "dscp": 0,
        "ecn": 0,
        "ttl": 64,
        "identification": 0,
        "fragment": 0x4000,
        "flow_label": 0,
        "sport": LEAST_SOURCE_PORT,
        "dport": wire.ROCE_UDP_PORT,
        "roce_version": 2,
    }
)
IPV6_ADDRESSES: Final = MappingProxyType({"src": "fd00:9::1", "dst": "fd00:9::2"})
TEXTS: Final = frozenset({"src", "dst", "src_mac", "dst_mac"})
#: Bits of the numbers among them.
BITS: Final = MappingProxyType(
    {
        "vlan": 12,
        "priority": 3,
        "dscp": 6,
        "ecn": 2,
        "ttl": 8,
        "identification": 16,
        "fragment": 16,
        "flow_label": 20,
        "sport": 16,
        "dport": 16,
        "roce_version": 2,
    }
)
MAC_ADDRESS: Final = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}", re.IGNORECASE)

#: Keys of the packet as a whole, and what each means.
PACKET: Final = MappingProxyType(
    {
        "op": "opcode by name or number, or CM_REQ, CM_REP, …",
        "payload": "so many bytes, text:…, or hex:…",
        "icrc": "good, bad, or a number",
        "mtu": "bytes in a packet that does not end its message",
        "count": "so many of it",
        "step": "by how much a field grows from one to the next",
        "wait_us": "this long after the packet before",
    }
)


def fields_of(headers: Iterable[wire.Header]) -> tuple[str, ...]:
    """Fields that a description may have, in wire order: no opcode, and reserved ones only of the BTH."""
    return tuple(
        dict.fromkeys(
            f.name
            for header in headers
            for f in header.fields
            if f.name != "opcode" and (not f.reserved or header is wire.BTH)
        )
    )


FIELDS: Final = fields_of(wire.HEADERS.values())
#: Fields of MADs and CM messages: bytes are given as ``text:…``, ``hex:…`` or an address.
CM_HEADERS: Final = (wire_cm.MAD, *wire_cm.CM_MESSAGES.values())
CM_FIELDS: Final = fields_of(CM_HEADERS)
#: Keys that may be given for all packets; the CM's fields may be, too.
COMMON: Final = (*PACKET, *NETWORK, *FIELDS)
KEYS: Final = tuple(dict.fromkeys((*COMMON, *CM_FIELDS)))

#: Defaults of fields for which 0 would not do.
FIELD_DEFAULTS: Final = MappingProxyType(
    {
        "dest_qpn": 0x11,
        "src_qpn": 0x12,
        "qkey": 0x1111_1111,  # that of the libibverbs examples
        "syndrome": wire.make_syndrome(wire.ACK),
        "remote_va": 0x10000,
        "rkey": 0x1234,
        "swap_add": 1,
        "placement_type": 1,
    }
)
CM_DEFAULTS: Final = MappingProxyType(
    {
        "local_comm_id": 1,
        "remote_comm_id": 2,
        "service_id": 0x0106_0000 | 18515,  # A11: TCP port space, perftest's port
        "local_qpn": 0x11,
        "responder_resources": 4,
        "initiator_depth": 4,
        "remote_cm_response_timeout": 20,
        "local_cm_response_timeout": 20,
        "retry_count": 7,
        "rnr_retry_count": 7,
        "max_cm_retries": 15,
        "partition_key": wire.DEFAULT_PKEY,
        "primary_local_ack_timeout": 14,
        "primary_hop_limit": 64,
    }
)
IP_CM_PORT: Final = 40_000
