"""How long a program waits, and in which way."""

from __future__ import annotations

import time
from dataclasses import dataclass


class Deadline:
    """A point in time by which something must be done.

    Args:
        seconds: from now on.
    """

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self.seconds = seconds

    def left(self) -> float:
        """Seconds left, never under 0."""
        return max(0.0, self._end - time.monotonic())

    def passed(self) -> bool:
        return time.monotonic() >= self._end


CM_WAYS = ("sync", "thread", "poll")
CQ_WAYS = ("poll", "channel", "nonblocking")


@dataclass(frozen=True, slots=True)
class WaitWays:
    """How a program waits; None leaves it to the scenario, and then to the backend.

    Attributes:
        cm: for connection events. ``sync``: only where one must come, nobody looks in between; ``thread``: a
            thread reads them all the time; ``poll``: the event channel is non-blocking and read in between.
        cq: for completions. ``poll``: the program polls the CQ in a loop; ``channel``: it sleeps in the
            completion channel; ``nonblocking``: the channel is non-blocking, and poll() sleeps on it, and on
            the event channel with ``cm`` ``poll``.
    """

    cm: str | None = None
    cq: str | None = None

    def filled(self, other: WaitWays) -> WaitWays:
        """These, with what is None here taken from ``other``."""
        return WaitWays(self.cm or other.cm, self.cq or other.cq)
