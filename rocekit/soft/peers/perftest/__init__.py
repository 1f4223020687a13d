"""perftest's bandwidth tests (version 6): ib_write_bw, ib_read_bw, ib_send_bw, ib_atomic_bw.

They work over TCP (perftest's default) and over rdma_cm (``-R``).
"""

from __future__ import annotations

from rocekit.soft.peers.perftest.bandwidth import PORT, TESTS, TRANSPORTS
from rocekit.soft.peers.perftest.client import call
from rocekit.soft.peers.perftest.server import serve

__all__ = ["PORT", "TESTS", "TRANSPORTS", "call", "serve"]
