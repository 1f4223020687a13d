"""Tries the orders that a capture's packets may be in: the one with the fewest troubles is taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rocekit.packets.time_order import BY_FILE
from rocekit.track.tracker import Tracker
from rocekit.track.transfers import ACKED, SENT

if TYPE_CHECKING:
    from rocekit.packets import Packets
    from rocekit.packets.time_order import TimeOrder


def choose_order(orders: Sequence[TimeOrder], sample: Packets) -> TimeOrder:
    """The order with the fewest troubles in a sample; the first of equals.

    The file's order, in which times run back, must have less than half as many as others.
    """
    if len(orders) == 1:
        return orders[0]
    return min(orders, key=lambda order: _troubles(order, sample))


def _troubles(order: TimeOrder, sample: Packets) -> int:
    if order.by == BY_FILE:
        return 2 * troubles(sample, timed=False)
    return troubles(order.of(sample))


def troubles(packets: Packets, *, timed: bool = True) -> int:
    """How often something other than a plain transfer, or (``timed``) an ACK before its request, is seen."""
    tracker = Tracker()
    tracker.feed(packets, {})
    tracker.finish()
    count = 0
    for transfer in tracker.transfers:
        early = timed and transfer.acked_ns is not None and transfer.acked_ns < transfer.first_ns
        count += len(transfer.events) + (transfer.status not in (ACKED, SENT)) + early
    for connection in tracker.connections:
        count += len(connection.missed) + len(connection.stray_events) + len(connection.jumps)
    return count
