"""The columns that the dissector makes of a batch, and their types."""

from __future__ import annotations

from typing import Final

import numpy as np

#: What is known of each frame: where its network layer begins, and its EtherType (0: none, or cut before it).
FRAME_COLUMNS: Final = {"layer": np.int64, "ethertype": np.int64}
#: What is known of each RoCE packet; see ``locations.Locations`` and ``packets.Packets``.
PACKET_COLUMNS: Final = {
    "index": np.int64,
    "start": np.int64,
    "bth": np.int64,
    "end": np.int64,
    "limit": np.int64,
    "truncated": np.uint8,
    "ip_version": np.uint8,
    "roce_version": np.uint8,
    "tclass": np.uint8,
    "hop_limit": np.uint8,
    "flow_label": np.int32,
    "ip_id": np.uint16,
    "udp_sport": np.uint16,
    "vlan": np.int32,
    "priority": np.uint8,
    "source_high": np.uint64,
    "source_low": np.uint64,
    "destination_high": np.uint64,
    "destination_low": np.uint64,
    "fragment": np.uint8,
    "malformed": np.uint8,
    "checkable": np.uint8,
    "opcode": np.int64,
    "has": np.uint16,
    "payload_length": np.int32,
    "payload_at": np.int64,
    "dest_qpn": np.int64,
    "psn": np.int64,
    "syndrome": np.int64,
    "remote_va": np.uint64,
    "rkey": np.int64,
    "dma_length": np.int64,
}
