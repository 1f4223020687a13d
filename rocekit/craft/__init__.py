"""Packets as people describe them: an opcode, and the fields that differ from a good sender's.

    for packet in craft([{"op": "RC_RDMA_WRITE_FIRST"}, {"op": "RC_RDMA_WRITE_LAST", "icrc": "bad"}]):
        packet.frame, packet.at_ns

or, in a YAML file::

    src: 10.9.0.1            # for all packets
    dest_qpn: 0x11
    psn: 100                 # each flow's first
    packets:
      - op: RC_RDMA_WRITE_FIRST
      - {op: RC_RDMA_WRITE_LAST, payload: 100, rkey: 0x1234}
      - {op: RC_ACKNOWLEDGE, src: 10.9.0.2, dst: 10.9.0.1, dest_qpn: 0x12, wait_us: 3}

Every field of the opcode's headers has ``wire``'s name. A request without a PSN takes the next one of its
flow (source, destination, destination QPN); a response takes that of the last request from its destination.
``CM_REQ``, ``CM_REP``, … are the connection manager's messages, with their fields.
"""

from __future__ import annotations

from rocekit.craft.sequence import craft, destinations, how_many
from rocekit.craft.values import CM_PREFIX, Wrong

__all__ = ["CM_PREFIX", "Wrong", "craft", "destinations", "how_many"]
