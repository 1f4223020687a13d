"""Whether a capture may have packets twice, from what the tracker counted (see ``points.doubled``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from rocekit.track.connections import has_ends_twice

if TYPE_CHECKING:
    from rocekit.track.connections import Connection

#: Fewer packets than this in both places are no sign of two places.
LEAST: Final = 8
#: One packet in so many came before: then it is worth to look at all of them.
OFTEN: Final = 5


def may_be_doubled(connections: Iterable[Connection]) -> bool:
    """Whether so much came twice, or in two scopes, that the capture may have two capture points."""
    for connection in connections:
        packets = connection.packets
        if packets >= LEAST:
            again = connection.duplicates + connection.duplicate_acks + connection.retransmitted_packets
            if again * OFTEN >= packets:
                return True
    return has_ends_twice(connections)
