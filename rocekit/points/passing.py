"""The packets of one way that pass two capture points: how long they took, and which were overtaken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.packets.merging.merge import UNSEEN
from rocekit.packets.slim import PIECE
from rocekit.points.overtaken import DoubtfulPieces, overtaken

if TYPE_CHECKING:
    from rocekit.points.sightings import Sightings

Ints = NDArray[np.int64]
Rows = NDArray[np.int32]

_NO_ROWS: Final[Ints] = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Passing:
    """The packets of one way at two capture points.

    Attributes:
        both: how many packets both have.
        here, there: the first and the last time of these at the first and at the second; None without any.
        took: the shortest time and the 99th percentile of what they took; took_back: the same turned round.
        usual: the median of it.
        alone: the packets that only one of the two has.
        moved: those that were overtaken.
    """

    both: int
    here: tuple[int, int] | None
    there: tuple[int, int] | None
    took: tuple[int, int]
    took_back: tuple[int, int]
    usual: int
    alone: Ints
    moved: Ints

    @classmethod
    def of(cls, sightings: Sightings, own: Rows, first: int, second: int) -> Passing:
        took, count = np.empty(len(own), np.int64), 0
        ends: list[tuple[int, ...]] = []
        alone, stretches = [_NO_ROWS], DoubtfulPieces()
        for at in range(0, len(own), PIECE):
            rows = own[at : at + PIECE]
            here, there = sightings.seen_ns[first][rows], sightings.seen_ns[second][rows]
            both = (here != UNSEEN) & (there != UNSEEN)
            if not both.all():
                alone.append(rows[(here != UNSEEN) != (there != UNSEEN)].astype(np.int64))
                rows, here, there = rows[both], here[both], there[both]
            stretches.add((here, sightings.frames[first][rows]), (there, sightings.frames[second][rows]))
            if len(rows):
                ends.append((int(here.min()), int(here.max()), int(there.min()), int(there.max())))
            np.subtract(there, here, out=took[count : count + len(rows)])
            count += len(rows)
        took = took[:count]
        moved = [_NO_ROWS]
        for begin, end in stretches.found():
            rows = own[begin * PIECE : end * PIECE]
            here, there = sightings.seen_ns[first][rows], sightings.seen_ns[second][rows]
            both = (here != UNSEEN) & (there != UNSEEN)
            rows, here, there = rows[both], here[both], there[both]
            frames = [sightings.frames[file][rows] for file in (first, second)]
            moved.append(rows[overtaken(here, frames[0], there, frames[1])].astype(np.int64))
        if not count:
            return cls(0, None, None, (0, 0), (0, 0), 0, np.concatenate(alone), np.concatenate(moved))
        least, most = int(took.min()), int(took.max())
        usual = int(np.median(took, overwrite_input=True))
        late = int(np.quantile(took, 0.99, overwrite_input=True))
        np.negative(took, out=took)
        early = int(np.quantile(took, 0.99, overwrite_input=True))
        return cls(
            count,
            (min(e[0] for e in ends), max(e[1] for e in ends)),
            (min(e[2] for e in ends), max(e[3] for e in ends)),
            (least, late),
            (-most, early),
            usual,
            np.concatenate(alone),
            np.concatenate(moved),
        )
