"""What a figure draws, one lane between two times, and the colours of all figures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from rocekit.report.happenings import Happening, happenings
from rocekit.report.lanes import Lanes
from rocekit.wire.text_table import safe
from rocekit.wire.words import end

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rocekit.explanation.results import Results
    from rocekit.track.transfers import Transfer

#: The colours of Okabe and Ito, which colour-blind people can distinguish.
ROUNDS: Final = ("#0072b2", "#e69f00", "#d55e00", "#b5558f")
ROUND_NAMES: Final = ("sent once", "2nd time", "3rd time", "4th or later")
ACK_COLOUR, NAK_COLOUR, WAIT_COLOUR, BAND_COLOUR = "#00805c", "#b3261e", "#5a6473", "#0072b2"


#: Packets that are drawn one by one; more of them become a bitmap, in SVG too.
BARS: Final = 20_000
#: Points of a line; of more, some are left out.
STEPS: Final = 4_000


@dataclass(frozen=True)
class Scene:
    """One lane between two times, to be drawn.

    Attributes:
        lanes: the lane alone, all of it; rows: which of its packets lie between ``begin`` and ``end``
            (ns since the epoch).
    """

    analysis: Results
    lanes: Lanes
    number: int
    begin: int
    end: int

    @property
    def rows(self) -> slice:
        low, high = np.searchsorted(self.lanes.time_ns, [self.begin, self.end + 1])
        return slice(int(low), int(high))

    @property
    def origin(self) -> int:
        return self.analysis.capture.first_ns or 0

    @property
    def transfers(self) -> list[Transfer]:
        return [
            t
            for t in self.analysis.transfers
            if 2 * t.connection.id + t.side == self.number
            and t.first_ns <= self.end
            and max(t.last_ns, t.acked_ns or 0) >= self.begin
        ]

    @property
    def events(self) -> list[Happening]:
        connection = self.analysis.connections[self.number // 2]
        found = happenings(self.analysis, [connection])
        return [
            h for h in found if h.lane == self.number and h.until_ns >= self.begin and h.from_ns <= self.end
        ]

    def seconds(self, time_ns: Any) -> Any:
        """Times on the axis: seconds since the capture's first packet."""
        return (np.asarray(time_ns) - self.origin) / 1e9

    def title(self) -> str:
        connection, side = self.analysis.connections[self.number // 2], self.number % 2
        ends = f"{end(connection.end(side))} → {end(connection.end(1 - side))}"
        files = ", ".join(safe(Path(f).name) for f in self.analysis.capture.files)
        return f"{files} · connection {connection.id} {connection.transport} · requests of {ends}"


def marks(scene: Scene, kind: int) -> NDArray[np.int64]:
    marks = scene.lanes.marks
    return marks.time_ns[(marks.kind == kind) & (marks.time_ns >= scene.begin) & (marks.time_ns <= scene.end)]
