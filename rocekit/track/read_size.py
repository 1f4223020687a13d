"""How many PSNs a READ takes, where the capture shows none of its responses.

It takes as many as it has responses, which the path MTU tells (IBA Vol. 1, 9.4.4), and the next request
stands right behind them. But where the capture misses packets, the next request that it shows may stand
further back, and another path MTU seem to fit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rocekit import wire

if TYPE_CHECKING:
    from rocekit.track.connections import Connection
    from rocekit.track.msn_count import MsnCount
    from rocekit.track.transfers import Transfer


class Size(NamedTuple):
    """A READ's PSNs (0: nothing tells), and whether no other number fits."""

    span: int
    sure: bool


def mtu_for(length: int, span: int) -> int:
    """The path MTU with which a message of ``length`` bytes takes ``span`` PSNs; 0 when none does."""
    return next((m for m in wire.PATH_MTU_CODES if wire.psns_of(length, m) == span), 0)


def size_before(connection: Connection, counts: MsnCount, read: Transfer, to: int) -> Size:
    """The size of a READ, judged by the next request that the capture shows, at PSN ``to``."""
    room = to - read.first_psn
    fit = {span for span in _spans(connection, read.length or 0) if span <= room}
    if len(fit) > 1:
        # Of messages that take a PSN each at least, the responder counts how many there are.
        messages = counts.begun_within(read, to)
        if messages is None:
            return Size(room, False) if room in fit else Size(0, False)
        fit = {span for span in fit if (span == room) == (messages == 1) and span + messages - 1 <= room}
    return Size(fit.pop(), True) if len(fit) == 1 else Size(0, False)


def _spans(connection: Connection, length: int) -> set[int]:
    """The PSNs that a message may take with each path MTU that is no smaller than a packet that was seen, and
    no larger than what the CM agreed on.
    """
    limit = (connection.paired_by == "cm" and connection.path_mtu) or max(wire.PATH_MTU_CODES)
    mtus = [m for m in wire.PATH_MTU_CODES if connection.largest_payload <= m <= limit]
    return {wire.psns_of(length, m) for m in mtus}
