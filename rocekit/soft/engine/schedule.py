"""When a device's senders send and wake: its queue pairs take turns, and each has at most one timer.

A sender is a queue pair or the connection manager, known here by its QPN.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import Protocol

from rocekit.soft.engine.packet import Datagram, Route


class PacketSender(Protocol):
    """What the schedule needs of a queue pair or the connection manager."""

    route: Route | None

    @property
    def qpn(self) -> int: ...

    def next_packet(self, now: int) -> bytes | None: ...

    def deadline(self) -> int | None: ...


class Schedule:
    """The turns and timers of one device."""

    __slots__ = ("_armed", "_ready", "_ready_qpns", "_timers")

    def __init__(self) -> None:
        self._ready: deque[PacketSender] = deque()
        self._ready_qpns: set[int] = set()
        self._timers: list[tuple[int, int]] = []
        self._armed: dict[int, int] = {}

    def wake(self, sender: PacketSender) -> None:
        """Something happened to a sender: it may have a packet to send, and another deadline."""
        if sender.qpn not in self._ready_qpns:
            self._ready_qpns.add(sender.qpn)
            self._ready.append(sender)
        self._arm(sender)

    def forget(self, sender: PacketSender) -> None:
        """Take a sender out of the turns."""
        # Ctrl-C may have interrupted next_packet: then the sender is in only one of the two.
        self._ready_qpns.discard(sender.qpn)
        if sender in self._ready:
            self._ready.remove(sender)

    def waits(self) -> bool:
        """Whether a sender waits for its turn: it may have a packet to send now."""
        return bool(self._ready)

    def datagrams(self, now: int, limit: int | None) -> list[Datagram]:
        """What is sent now, at most ``limit`` datagrams: one packet of each sender in turn."""
        sent: list[Datagram] = []
        while self._ready and (limit is None or len(sent) < limit):
            sender = self._ready.popleft()
            data = sender.next_packet(now)
            if data is None or sender.route is None:
                self._ready_qpns.discard(sender.qpn)
            else:
                sent.append(sender.route.datagram(data))
                self._ready.append(sender)
            self._arm(sender)
        return sent

    def next_timer(self) -> int | None:
        """When the first timer expires, or None; a deadline may have moved back since."""
        return self._timers[0][0] if self._timers else None

    def expired(self, now: int) -> int | None:
        """Remove a timer that has expired; the QPN of its sender, or None when no more has."""
        if not self._timers or self._timers[0][0] > now:
            return None
        due, qpn = heapq.heappop(self._timers)
        if self._armed.get(qpn) == due:
            del self._armed[qpn]
        return qpn

    def _arm(self, sender: PacketSender) -> None:
        # One timer a sender: when its deadline moves back, the old timer expires and finds nothing due.
        deadline = sender.deadline()
        if deadline is not None:
            armed = self._armed.get(sender.qpn)
            if armed is None or deadline < armed:
                self._armed[sender.qpn] = deadline
                heapq.heappush(self._timers, (deadline, sender.qpn))
