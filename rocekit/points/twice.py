"""Whether a capture may have packets twice, from what the tracker counted (see ``points.doubled``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import numpy as np

from rocekit.track.connections import came_again, has_ends_twice, mixed_ends

if TYPE_CHECKING:
    from rocekit.track.connections import Connection

#: Fewer packets than this in both places are no sign of two places.
LEAST: Final = 8
#: One packet in so many came before: then it is worth to look at all of them.
OFTEN: Final = 5
#: Of so many connections numbers are compared.
_MANY: Final = 64


def may_be_doubled(connections: Iterable[Connection]) -> bool:
    """Whether so much came twice, or in two scopes, that the capture may have two capture points."""
    every = connections if isinstance(connections, list) else list(connections)
    return came_again(every, LEAST, OFTEN) or _has_ends_twice(every)


def _has_ends_twice(connections: list[Connection]) -> bool:
    """Whether two connections have the same ends: numbers are compared first, in a tenth of the time."""
    if len(connections) < _MANY:
        return has_ends_twice(connections)
    mixed = np.empty(len(connections), np.uint64)
    mixed_ends(connections, mixed)
    mixed.sort()
    return bool((mixed[1:] == mixed[:-1]).any()) and has_ends_twice(connections)
