"""Pictures of an analysis: the graphs of a connection, a transfer's ladder, a finding's place.

They need matplotlib, the extra ``rocekit[plot]``. The captures are read again for the first picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rocekit.errors import RocekitError, check_number, needs_extra
from rocekit.explanation.packets import tracked_packets
from rocekit.files.outputs import complete, writing
from rocekit.report.collector import Collector
from rocekit.report.document import FindingPlaces
from rocekit.report.happenings import happenings
from rocekit.report.ladder import ladder
from rocekit.report.lane_columns import build_lanes
from rocekit.wire.notebook_html import block, picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rocekit.explanation.results import Results
    from rocekit.findings import Finding
    from rocekit.report.lanes import Lanes
    from rocekit.track.transfers import Transfer

LADDER: Final = "ladder"
#: The file types of pictures.
SUFFIXES: Final = (".png", ".svg", ".pdf")


def need_matplotlib() -> None:
    """Check that matplotlib is installed.

    Raises:
        RocekitError: it is not.
    """
    if find_spec("matplotlib") is None:
        raise needs_extra("plot needs", "matplotlib", "plot")


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture: shown by notebooks, saved as PNG, SVG or PDF.

    Attributes:
        figure: matplotlib's figure.
        words: what it shows.
    """

    figure: Figure
    words: str

    def save(self, path: str | Path, *, dpi: int = 150) -> None:
        """Write it in the format of the path's suffix.

        Raises:
            ValueError: another suffix than ``SUFFIXES``.
            RocekitError: the file cannot be written.
        """
        from rocekit.report.figures import save

        out = Path(path)
        if out.suffix.lower() not in SUFFIXES:
            raise ValueError(f"{out}: the name must end in {', '.join(SUFFIXES)}")
        with writing(out), complete(out) as part:
            save(self.figure, part, out.suffix, dpi=dpi)

    def svg(self) -> bytes:
        """It as SVG."""
        from rocekit.report.figures import save

        whole = BytesIO()
        save(self.figure, whole, ".svg")
        return whole.getvalue()

    def __repr__(self) -> str:
        return f"<Picture: {self.words}>"

    def _repr_html_(self) -> str:
        return block(picture(self.svg(), self.words))


class Drawings:
    """Draws from one analysis, whose packets are read once.

    Raises:
        RocekitError: matplotlib is not installed.
    """

    def __init__(self, analysis: Results, lanes: Lanes | None = None) -> None:
        need_matplotlib()
        self._analysis = analysis
        self._lanes = lanes
        self._places: FindingPlaces | None = None

    @property
    def lanes(self) -> Lanes:
        if self._lanes is None:
            collector = Collector()
            collector(tracked_packets(self._analysis))
            self._lanes = build_lanes(collector, self._analysis)
        return self._lanes

    def plot(
        self,
        graphs: Sequence[str] = (),
        *,
        connection: int | None = None,
        side: str | None = None,
        transfer: int | Transfer | None = None,
        begin_ns: int | None = None,
        end_ns: int | None = None,
    ) -> Picture:
        """The graphs of one side of a connection, or a ladder.

        Raises:
            RocekitError: there is nothing to draw, or no such connection or transfer.
            ValueError: no such graph or side.
        """
        analysis = self._analysis
        check_graphs(graphs, side)
        if not analysis.connections:
            raise RocekitError(f"{', '.join(analysis.capture.files)}: no connection to draw")
        if connection is not None:
            check_number(connection, len(analysis.connections), "connection")
        if isinstance(transfer, int):
            check_number(transfer, len(analysis.transfers), "transfer")
            transfer = analysis.transfers[transfer]
        if LADDER in graphs and transfer is None:
            transfer = _most_troubled(analysis, connection)
        number = _lane(analysis, self.lanes, connection, side, transfer)
        lane = self.lanes.lane(number)
        if LADDER in graphs and transfer is not None:
            return self._ladder(transfer, lane, number)
        if not len(lane):
            raise RocekitError(
                f"connection {number // 2} has no packets of side {'ab'[number % 2]}: try the other --side"
            )
        from rocekit.report.figures import span

        first, last = span(analysis, lane, number)
        if transfer is not None:
            margin = transfer.duration_ns // 10 + 1_000
            first, last = transfer.first_ns - margin, transfer.first_ns + transfer.duration_ns + margin
        first, last = begin_ns or first, end_ns or last
        return self._graphs(lane, number, first, last, graphs)

    def _graphs(self, lane: Lanes, number: int, first: int, last: int, graphs: Sequence[str]) -> Picture:
        from rocekit.report.figure_scene import Scene
        from rocekit.report.figures import draw, worth_drawing

        if last <= first:
            raise RocekitError("there is nothing between these times: --from must be before --to")
        scene = Scene(self._analysis, lane, number, first, last)
        return Picture(draw(scene, list(graphs) or worth_drawing(scene)), _words(number))

    def _ladder(self, transfer: Transfer, lane: Lanes, number: int) -> Picture:
        from rocekit.report.ladder_figure import draw_ladder

        return Picture(draw_ladder(transfer, ladder(self._analysis, lane, transfer)), _words(number))

    def of_finding(self, finding: Finding) -> Picture | None:
        """The PSN graph around a finding; None if it has no place in one."""
        analysis = self._analysis
        if self._places is None:
            self._places = FindingPlaces(self.lanes, analysis.findings, happenings(analysis))
        place = self._places.of(finding, analysis.capture.first_ns or 0)
        if place is None or place["span"] is None:
            return None
        first, last = (time + (analysis.capture.first_ns or 0) for time in place["span"])
        margin = max((last - first) // 3, 20_000)
        lane = self.lanes.lane(place["lane"])
        if not len(lane):
            return None
        return self._graphs(lane, place["lane"], first - margin, last + margin, ["psn"])


def _words(number: int) -> str:
    """What a lane shows."""
    return f"connection {number // 2}, requests of side {'ab'[number % 2]}"


def check_graphs(graphs: Sequence[str], side: str | None = None) -> None:
    """Check the names of graphs and of a side.

    Raises:
        ValueError: there is none of that name, or a ladder is with others.
    """
    from rocekit.report.figures import GRAPHS

    unknown = [name for name in graphs if name not in GRAPHS and name != LADDER]
    if unknown:
        raise ValueError(f"no graph {', '.join(unknown)}: there are {', '.join([*GRAPHS, LADDER])}")
    if LADDER in graphs and len(graphs) > 1:
        raise ValueError("a ladder cannot be combined: leave out the other graphs")
    if side not in (None, "a", "b"):
        raise ValueError(f"no side {side!r}: a connection has a and b")


def _lane(
    analysis: Results, lanes: Lanes, connection: int | None, side: str | None, transfer: Transfer | None
) -> int:
    """The side of a connection to draw: as given, or with findings, or with most packets.

    Raises:
        RocekitError: the transfer belongs to another connection.
    """
    if transfer is not None:
        own = transfer.connection.id
        if connection not in (None, own):
            raise RocekitError(f"transfer {transfer.id} belongs to connection {own}, not {connection}")
        return 2 * own + (transfer.side if side is None else "ab".index(side))
    if connection is None:
        troubled = [f.connection.id for f in analysis.findings if f.connection is not None]
        busiest = max(analysis.connections, key=lambda c: c.packets)
        connection = troubled[0] if troubled else busiest.id
    if side is not None:
        return 2 * connection + "ab".index(side)

    def weight(number: int) -> tuple[int, int]:
        rows = lanes.rows(number)
        return int((lanes.round[rows] > 1).sum()), rows.stop - rows.start

    return max((2 * connection, 2 * connection + 1), key=weight)


def _most_troubled(analysis: Results, connection: int | None) -> Transfer:
    own = [t for t in analysis.transfers if connection in (None, t.connection.id)]
    if not own:
        raise RocekitError("no transfer to draw a ladder of")
    return max(own, key=lambda t: (len(t.events), t.duration_ns))
