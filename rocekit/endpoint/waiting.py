"""How long something may take, how a program waits for it, and what is said when it does not come."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import dataclass

from rocekit.errors import VerbsError


class Deadline:
    """A point in time up to which something may take, or no such point.

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
class Ways:
    """How a program waits; None leaves it to the scenario, and then to the backend.

    Attributes:
        cm: for connection events. ``sync``: only where one must come, nobody looks in between; ``thread``: a
            thread reads them all the time; ``poll``: the event channel is non-blocking and looked at in
            between.
        cq: for completions. ``poll``: the CQ is asked again and again; ``channel``: the program sleeps in
            the completion channel; ``nonblocking``: the channel is non-blocking, and poll() sleeps on it, and
            on the event channel with ``cm`` ``poll``.
    """

    cm: str | None = None
    cq: str | None = None

    def filled(self, other: Ways) -> Ways:
        """What is open here, taken from there."""
        return Ways(self.cm or other.cm, self.cq or other.cq)


class Disconnected(VerbsError):
    """The peer ended the connection while something was still wanted of it."""

    def __init__(self, qpn: int) -> None:
        super().__init__(f"the peer of QP {qpn:#x} disconnected (ECONNRESET)", errno=errno.ECONNRESET)


def errno_text(code: int) -> str:
    """``EINVAL (Invalid argument)``."""
    return f"{errno.errorcode.get(code, str(code))} ({os.strerror(code)})"
