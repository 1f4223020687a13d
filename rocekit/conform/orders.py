"""What a player orders of a bench, and the reply to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Transmit:
    """Send IP packets, one directly after the other."""

    data: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class AwaitPacket:
    """Wait for a packet."""

    until_ns: int


@dataclass(frozen=True, slots=True)
class LetPass:
    """Let time pass."""

    until_ns: int


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the device's program."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


Command = Transmit | AwaitPacket | LetPass | Call


@dataclass(frozen=True, slots=True)
class BenchReply:
    """What came of a command: a packet and the time when it came, or a call's result."""

    now_ns: int
    result: Any = None
