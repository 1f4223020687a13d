"""Soft RoCE v2 endpoints: an engine without I/O, clock or randomness, wires to run it over, and its record of
truth.
"""

from __future__ import annotations

from rocekit.soft.device import Device, Event, Limits
from rocekit.soft.engine.packet import Datagram
from rocekit.soft.engine.record import Recorder
from rocekit.soft.engine.work import WC, PostError, RecvWR, SendWR, Sge

__all__ = ["WC", "Datagram", "Device", "Event", "Limits", "PostError", "RecvWR", "Recorder", "SendWR", "Sge"]
