"""Soft RoCE v2 endpoints: an engine without I/O, clock or randomness, wires, and a record of truth."""

from __future__ import annotations

from rocekit.soft.device import DeviceEvent, Limits, SoftDevice
from rocekit.soft.engine.errors import PostError
from rocekit.soft.engine.memory import Sge
from rocekit.soft.engine.packet import Datagram
from rocekit.soft.engine.record import TruthRecorder
from rocekit.soft.engine.work import WC, RecvWR, SendWR

__all__ = [
    "WC",
    "Datagram",
    "DeviceEvent",
    "Limits",
    "PostError",
    "RecvWR",
    "SendWR",
    "Sge",
    "SoftDevice",
    "TruthRecorder",
]
