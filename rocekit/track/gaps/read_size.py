"""How many PSNs a READ takes, where none of its responses is in the capture.

It takes as many as it has responses, which follow from the path MTU (IBA Vol. 1, 9.4.4), and the next request
comes right behind them. But where the capture misses packets, the next request in it may be a later one, and
another path MTU may seem to fit. A READ that is requested again from one of its responses on shows the path
MTU itself: by its PSN, and by its address, which is moved by the bytes of the responses before (9.4.4).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rocekit import wire

if TYPE_CHECKING:
    from rocekit.track.connections import Connection
    from rocekit.track.gaps.msn_count import MsnCount
    from rocekit.track.transfers import Transfer


class Size(NamedTuple):
    """A READ's PSNs (0: unknown), and whether no other number fits."""

    span: int
    sure: bool


def mtu_for(length: int, span: int) -> int:
    """The path MTU with which a message of ``length`` bytes takes ``span`` PSNs; 0 when none does."""
    return next((m for m in wire.PATH_MTU_CODES if wire.psns_of(length, m) == span), 0)


def mtu_of_part(read: tuple[int, int], part: tuple[int, int], psns: int) -> int:
    """The path MTU with which ``part`` is what remains of ``read`` behind ``psns`` responses; 0 if it is not.

    Args:
        read, part: the remote address and the length of each; they have the same R_Key.
    """
    (address, length), (part_address, part_length) = read, part
    moved = part_address - address
    if psns <= 0 or moved <= 0 or moved + part_length != length or moved % psns:
        return 0
    mtu = moved // psns
    return mtu if mtu in wire.PATH_MTU_CODES else 0


def size_before(connection: Connection, counts: MsnCount, read: Transfer, to: int) -> Size:
    """The size of a READ, by the next request in the capture, at PSN ``to``."""
    room = to - read.first_psn
    if read.length is None:  # the packet is cut before its length
        return Size(room, counts.begun_within(read, to) == 1)
    fit = {span for span in _spans(connection, read.length) if span <= room}
    if len(fit) > 1:
        # Each message takes at least one PSN, and the responder counts messages.
        messages = counts.begun_within(read, to)
        if messages is None:
            return Size(room, False) if room in fit else Size(0, False)
        fit = {span for span in fit if (span == room) == (messages == 1) and span + messages - 1 <= room}
    return Size(fit.pop(), True) if len(fit) == 1 else Size(0, False)


def _spans(connection: Connection, length: int) -> set[int]:
    """The PSNs of a message with each path MTU from the largest payload seen to what the CM agreed on."""
    limit = (connection.paired_by == "cm" and connection.path_mtu) or max(wire.PATH_MTU_CODES)
    mtus = [m for m in wire.PATH_MTU_CODES if connection.largest_payload <= m <= limit]
    return {wire.psns_of(length, m) for m in mtus}
