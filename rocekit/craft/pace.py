"""When frames are sent: at a rate, or each at its time."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_UNITS: Final = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}
_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?)(pps|p/s|bit|bits|bit/s|bps)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """An Ethernet frame to send, when (ns after the first one), and its destination address."""

    frame: bytes
    at_ns: int
    dst: str


@dataclass(frozen=True, slots=True)
class Rate:
    """How much is sent in a second.

    Attributes:
        value: packets, or bits of whole frames (without preamble, FCS and gap).
        bits: which of the two.
    """

    value: float
    bits: bool = False

    def gap_ns(self, frame_bytes: int) -> int:
        """From the start of a frame of so many bytes to the start of the next."""
        return round((frame_bytes * 8 if self.bits else 1) * 1e9 / self.value)

    def __str__(self) -> str:
        return f"{self.value:,.10g} {'bit/s' if self.bits else 'packets/s'}"


def parse_rate(text: str) -> Rate:
    """``1000`` or ``1kpps`` (packets a second), ``100Mbit`` (bits a second).

    Raises:
        ValueError: it is no rate, or none above 0.
    """
    found = _RATE.fullmatch(text.strip())
    if found is None or not float(found[1]):
        raise ValueError(f"{text!r} is no rate; 1000 or 1k is packets a second, 100Mbit bits a second")
    unit = (found[3] or "").lower()
    return Rate(float(found[1]) * _UNITS[found[2].lower()], unit.startswith("b"))


class Pacer:
    """Waits until each frame's time; a late frame is sent at once, and the others keep their times.

    Args:
        now, sleep: the clock in ns, and a function that waits so many seconds.
    """

    def __init__(
        self,
        now: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._now = now
        self._sleep = sleep
        self._start: int | None = None

    def wait(self, at_ns: int) -> None:
        """Until ``at_ns`` after the first call."""
        if self._start is None:
            self._start = self._now() - at_ns
        left = self._start + at_ns - self._now()
        if left > 0:
            self._sleep(left / 1e9)
