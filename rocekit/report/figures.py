"""The graphs of a lane as pictures, drawn by matplotlib: those of a report's page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from rocekit.report.collector import CE
from rocekit.report.figure_psn import psn_graph
from rocekit.report.figure_scene import ACK_COLOUR, BARS, ROUNDS, STEPS, Scene, marks
from rocekit.report.happenings import UNSENT, happenings
from rocekit.report.lanes import CNP, Lanes
from rocekit.wire.words import duration, short_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from rocekit.explanation.results import Results

BINS: Final = 300
_AROUND_NS: Final = 1_000


def _edges(scene: Scene) -> NDArray[np.float64]:
    """The edges of the bins: ns since the scene's start, which a double can hold."""
    packets = scene.rows.stop - scene.rows.start
    count = max(24, min(BINS, packets // 2))
    return np.linspace(0, max(scene.end - scene.begin, count), count + 1)


def _counts(scene: Scene, time_ns: NDArray[np.int64], weights: Any = None) -> NDArray[Any]:
    return np.histogram(time_ns - scene.begin, _edges(scene), weights=weights)[0]


def _rates(scene: Scene, weights: NDArray[np.int64]) -> NDArray[np.float64]:
    """Gb/s in each bin."""
    amounts = _counts(scene, scene.lanes.time_ns[scene.rows], weights)
    return amounts * 8 / np.diff(_edges(scene))


def _axis(scene: Scene) -> NDArray[np.float64]:
    """The edges of the bins on the time axis."""
    return (_edges(scene) + (scene.begin - scene.origin)) / 1e9


def _rate(scene: Scene, axes: Axes) -> None:
    lanes, rows = scene.lanes, scene.rows
    edges, every = _axis(scene), _rates(scene, lanes.bytes[rows])
    once = _rates(scene, np.where(lanes.round[rows] == 1, lanes.bytes[rows], 0))
    unit, factor = ("Gb/s", 1) if every.max(initial=0) >= 1 else ("Mb/s", 1000)
    axes.stairs(every * factor, edges, color=ROUNDS[1], label="throughput, repeats included")
    axes.stairs(once * factor, edges, color=ACK_COLOUR, label="goodput, each byte once")
    axes.set_ylabel(f"payload, {unit}")
    axes.set_ylim(bottom=0)


def _outstanding(scene: Scene, axes: Axes) -> None:
    lanes, rows = scene.lanes, scene.rows
    count = rows.stop - rows.start
    # The maximum of each group of packets, where there are more than fit.
    begins = np.arange(0, count, 1 + count // STEPS)
    times = scene.seconds(lanes.time_ns[rows][begins])
    psns = np.maximum.reduceat(lanes.outstanding[rows], begins) if count else lanes.outstanding[rows]
    amounts = np.maximum.reduceat(lanes.outstanding_bytes[rows], begins) if count else psns
    axes.step(times, psns, where="post", color=ROUNDS[0], linewidth=1.1, label="PSNs")
    axes.fill_between(times, psns, step="post", color=ROUNDS[0], alpha=0.12, linewidth=0)
    axes.set_ylabel("outstanding PSNs")
    axes.set_ylim(bottom=0)
    other = axes.twinx()
    other.tick_params(labelsize=8)
    other.step(times, amounts, where="post", color=ROUNDS[3], linewidth=1, linestyle="dashed")
    other.set_ylabel("bytes")
    other.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short_size(int(value))))
    other.set_ylim(bottom=0)
    axes.plot([], [], "--", color=ROUNDS[3], label="bytes (right)")


def _rtt(scene: Scene, axes: Axes) -> None:
    lanes, rows = scene.lanes, scene.rows
    timed = np.flatnonzero(lanes.rtt_ns[rows] > 0)
    times = scene.seconds(lanes.time_ns[rows][timed])
    axes.plot(
        times, lanes.rtt_ns[rows][timed], ".", color=ACK_COLOUR, markersize=4, rasterized=len(timed) > BARS
    )
    values = lanes.rtt_ns[rows][timed]
    narrow = len(timed) > 0 and values.max() < 10 * values.min()
    if len(timed):
        axes.set_yscale("log")
        if narrow:
            axes.yaxis.set_minor_locator(LogLocator(subs=(2, 3, 5)))
    axes.set_ylabel("ACK round trip")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: duration(value)))
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: duration(value) if narrow else ""))


def _congestion(scene: Scene, axes: Axes) -> None:
    lanes, rows, edges = scene.lanes, scene.rows, _axis(scene)
    marked = lanes.time_ns[rows][lanes.flags[rows] & CE != 0]
    cnps, seen = _counts(scene, marks(scene, CNP)), _counts(scene, marked)
    axes.stairs(cnps, edges, color="#8a3f6b", fill=True, alpha=0.7, label="CNPs")
    axes.stairs(seen, edges, color="#a06a00", label="CE marks")
    axes.set_ylabel("CNPs, CE marks")
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.set_ylim(bottom=0)
    other = axes.twinx()
    other.tick_params(labelsize=8)
    other.stairs(_rates(scene, lanes.bytes[rows]), edges, color="#7a8694", linewidth=0.8)
    other.set_ylabel("Gb/s")
    axes.plot([], [], color="#7a8694", label="rate (right)")


#: The graphs over time: the function that draws each, and its relative height.
GRAPHS: Final[dict[str, tuple[Callable[[Scene, Axes], None], float]]] = {
    "psn": (psn_graph, 4.2),
    "rate": (_rate, 1.3),
    "outstanding": (_outstanding, 1.3),
    "rtt": (_rtt, 1.3),
    "congestion": (_congestion, 1.3),
}


def span(analysis: Results, lane: Lanes, number: int) -> tuple[int, int]:
    """From a lane's first packet to its last, including work requests without packets."""
    events = happenings(analysis, [analysis.connections[number // 2]])
    unsent = [h for h in events if h.kind == UNSENT and h.lane == number]
    first = min([int(lane.time_ns[0]), *(h.from_ns for h in unsent)])
    last = max([int(lane.time_ns[-1]), *(h.until_ns for h in unsent)])
    # A single packet lasts no time, in which nothing can be drawn.
    return (first, last) if first < last else (first - _AROUND_NS, last + _AROUND_NS)


def worth_drawing(scene: Scene) -> list[str]:
    """The graphs that are not empty."""
    lanes = scene.lanes
    several = len(lanes) > 1  # one packet has no rate
    wanted = {
        "psn": True,
        "rate": several and bool(lanes.bytes.any()),
        "outstanding": several and bool(lanes.outstanding.any()),
        "rtt": bool((lanes.rtt_ns > 0).any()),
        "congestion": bool((lanes.flags & CE).any() or (lanes.marks.kind == CNP).any()),
    }
    return [name for name, shown in wanted.items() if shown]


def draw(scene: Scene, graphs: Sequence[str], *, width: float = 11.0) -> Figure:
    """A figure of these graphs, one below the other on one time axis; ``width`` in inches."""
    heights = [GRAPHS[name][1] for name in graphs]
    figure = Figure(figsize=(width, sum(heights) + 1.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(graphs), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for name, one in zip(graphs, axes, strict=True):
        GRAPHS[name][0](scene, one)
        one.grid(color="#e3e7ec", linewidth=0.6)
        one.set_axisbelow(True)
        one.spines[["top", "right"]].set_visible(False)
        one.tick_params(labelsize=8, which="both")
        handles, labels = one.get_legend_handles_labels()
        by_name = dict(zip(labels, handles, strict=True))
        if by_name:
            one.legend(by_name.values(), by_name.keys(), loc="lower left", bbox_to_anchor=(0, 1), ncols=8,
                       fontsize=7, frameon=False, borderaxespad=0.1, columnspacing=1.2)  # fmt: skip
    margin = max((scene.end - scene.begin) * 0.01, 500)
    axes[-1].set_xlim(*scene.seconds([scene.begin - margin, scene.end + margin]))
    unit, factor = _time_unit(scene)
    axes[-1].xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * factor:,.10g}"))
    axes[-1].set_xlabel(f"time since the capture's first packet, {unit}")
    figure.suptitle(scene.title(), fontsize=10, x=0.01, ha="left")
    return figure


def _time_unit(scene: Scene) -> tuple[str, float]:
    latest = scene.end - scene.origin
    return ("µs", 1e6) if latest < 10_000_000 else ("ms", 1e3) if latest < 10_000_000_000 else ("s", 1)


def save(figure: Figure, file: BinaryIO, suffix: str, *, dpi: int = 150) -> None:
    """Write a figure in the format of a suffix, such as ``.png``; the same figure gives the same bytes.

    Raises:
        OSError: the file cannot be written.
    """
    kind = suffix.removeprefix(".").lower()
    for text in [*figure.texts, *(text for axes in figure.axes for text in axes.texts)]:
        text.set_parse_math(False)  # names of files may have "$", which would be a formula
    nothing: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {})
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "rocekit", "font.family": ["DejaVu Sans"]}):
        figure.savefig(file, format=kind, dpi=dpi, metadata=nothing)
