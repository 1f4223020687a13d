"""Letting connections rest that are not used: a live view may have a hundred thousand of them.

A connection that rests is a few bytes beside the record that everybody reads. It goes on at its next packet
as if it had not rested.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocekit.track.requests import Requests
from rocekit.track.rest.sides import PackedSide, is_at_rest, only_packet, pack

if TYPE_CHECKING:
    from rocekit.track.connections import Connection
    from rocekit.track.tracker import Tracker

#: Connections without a packet for so long rest; how often a live view looks for them.
REST_AFTER_NS: Final = 10_000_000_000


def rest(tracker: Tracker, before_ns: int) -> None:
    """Let those connections rest whose last packet came before a time; between two batches of packets."""
    if not tracker.forgets():  # the transfers are kept, and everything else is little beside them
        return
    for connection in tracker.connections:
        last_ns = connection.last_ns
        if last_ns is not None and last_ns < before_ns:
            rest_connection(tracker, connection)
    for flow in tracker._flows.values():
        clean, of = flow.clean, flow.connection
        if clean is None or of is None:
            continue
        if isinstance(tracker._sides[2 * of.id + flow.side], PackedSide):
            clean.requests = None
        if _rests(tracker, of):
            flow.clean = None
            tracker._lane.send_on(flow.number, None)


def _rests(tracker: Tracker, connection: Connection) -> bool:
    return not any(isinstance(tracker._sides[2 * connection.id + side], Requests) for side in (0, 1))


def rest_connection(tracker: Tracker, connection: Connection) -> None:
    """Let both sides of a connection rest, if nothing of them is under way."""
    for side in (0, 1):
        _rest_side(tracker, connection, side)


def _rest_side(tracker: Tracker, connection: Connection, side: int) -> None:
    at = 2 * connection.id + side
    requests = tracker._sides[at]
    if not isinstance(requests, Requests):
        return
    first = only_packet(requests)
    if first is not None:
        requests.progress.held = ()
        tracker._sides[at] = first
    if first is not None or not is_at_rest(requests):
        return
    unmade = tracker._lane.hand_over(requests.clean) if requests.in_lane else []
    packed = pack(requests, unmade)
    if packed is None:
        for transfer in unmade:
            tracker.made(transfer)
        return
    tracker._sides[at] = packed


class Rests:
    """When a live view lets connections rest."""

    def __init__(self) -> None:
        self._next_ns = 0

    def look(self, tracker: Tracker, now_ns: int) -> None:
        """Let connections rest, if it is time; ``now_ns`` is that of the last packet."""
        if now_ns >= self._next_ns:
            self._next_ns = now_ns + REST_AFTER_NS
            rest(tracker, now_ns - REST_AFTER_NS)
