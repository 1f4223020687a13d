"""Completion queues and receive queues (10.2.4, 10.2.9, 10.8)."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from rocekit.soft.engine.errors import PostError
from rocekit.soft.engine.memory import PD
from rocekit.soft.engine.work import WC, RecvWR


class CQ:
    """A completion queue of ``capacity`` entries.

    Args:
        notify: called with an event type and the queue.
        clock: of an extended CQ, whose completions have timestamps.

    Attributes:
        overflowed: whether a completion was lost because the queue was full; it takes no more (11.6.3.1).
    """

    __slots__ = ("_armed", "_clock", "_entries", "_notify", "capacity", "handle", "overflowed", "users")

    def __init__(
        self,
        handle: int,
        capacity: int,
        notify: Callable[[str, CQ], None],
        clock: Callable[[], int] | None = None,
    ) -> None:
        self._clock = clock
        self.handle = handle
        self.capacity = capacity
        self.overflowed = False
        self.users = 0
        self._entries: deque[WC] = deque()
        self._armed: str | None = None
        self._notify = notify

    def __len__(self) -> int:
        return len(self._entries)

    def push(self, wc: WC) -> bool:
        """Add a completion, and notify if that was requested; False when the queue was full."""
        if self.overflowed or len(self._entries) >= self.capacity:
            if not self.overflowed:
                self.overflowed = True
                self._notify("CQ_ERR", self)
            return False
        self._entries.append(wc if self._clock is None else replace(wc, timestamp=self._clock()))
        # A failed completion counts as solicited (11.4.2.2).
        if self._armed == "any" or (self._armed == "solicited" and (wc.solicited or wc.status != "SUCCESS")):
            self._armed = None
            self._notify("COMPLETION", self)
        return True

    def poll(self, count: int) -> list[WC]:
        """At most ``count`` completions, the oldest first."""
        entries = self._entries
        return [entries.popleft() for _ in range(min(count, len(entries)))]

    def arm(self, solicited_only: bool) -> None:
        """Request one event at the next completion, or the next solicited one (11.4.2.2)."""
        # When both were requested, any completion counts.
        if self._armed != "any":
            self._armed = "solicited" if solicited_only else "any"

    def forget(self, qpn: int) -> None:
        """Remove the completions of a QP that is destroyed or reset."""
        self._entries = deque(wc for wc in self._entries if wc.qpn != qpn)


class ReceiveQueue:
    """Receive requests in order. A shared one (SRQ) serves several QPs and notifies when few are left."""

    __slots__ = (
        "_limit",
        "_notify",
        "handle",
        "max_sge",
        "max_wr",
        "pd",
        "posted",
        "queue",
        "shared",
        "users",
    )

    def __init__(
        self,
        pd: PD,
        max_wr: int,
        max_sge: int,
        *,
        handle: int = 0,
        shared: bool = False,
        limit: int = 0,
        notify: Callable[[ReceiveQueue], None] | None = None,
    ) -> None:
        self.pd = pd
        self.max_wr = max_wr
        self.max_sge = max_sge
        self.handle = handle
        self.shared = shared
        self.queue: deque[RecvWR] = deque()
        self.posted = 0
        self.users = 0
        self._limit = limit
        self._notify = notify

    def __len__(self) -> int:
        return len(self.queue)

    def post(self, wr: RecvWR) -> None:
        """Append a request.

        Raises:
            PostError: EINVAL for too many SGEs, ENOMEM when the queue is full.
        """
        if len(wr.sges) > self.max_sge:
            raise PostError(errno.EINVAL, f"{len(wr.sges)} SGEs; the queue takes {self.max_sge}")
        if len(self.queue) >= self.max_wr:
            raise PostError(errno.ENOMEM, f"all {self.max_wr} receive requests are in use")
        self.queue.append(wr)
        self.posted += 1

    def take(self) -> RecvWR | None:
        """The next receive request, or None when the receiver is not ready."""
        if not self.queue:
            return None
        wr = self.queue.popleft()
        if self._limit and len(self.queue) < self._limit:
            self._limit = 0  # once; ibv_modify_srq arms it again
            if self._notify is not None:
                self._notify(self)
        return wr

    def arm(self, limit: int) -> None:
        """Notify once when fewer than ``limit`` requests are left (10.2.9.1)."""
        self._limit = limit
