"""The backend ``soft`` of ``rocekit inject``: scenarios over a soft device.

Without an interface, the peers are processes of this machine (:mod:`rocekit.soft.wires.local`) and no
privileges are needed. With one (``-d eth0``), packets go over it (:mod:`rocekit.soft.wires.interface`) and
the peer may be rxe or hardware.
"""

from __future__ import annotations

from rocekit.soft.backend.endpoint import SoftEndpoint, check_gid, soft_backend

__all__ = ["SoftEndpoint", "check_gid", "soft_backend"]
