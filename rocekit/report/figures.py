"""The graphs of a lane for tickets and papers: matplotlib draws what a report's page shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from rocekit import wire
from rocekit.report.collect import CE, LOST
from rocekit.report.happenings import HOLES, UNSENT, Happening, happenings, journal_times
from rocekit.report.lanes import BAD_ICRC, CNP, Lanes
from rocekit.wire.psn import MASK
from rocekit.wire.words import duration, end, short_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from rocekit.explanation.results import Results
    from rocekit.track.transfers import Transfer

#: Okabe and Ito's colours, which people who see few colours tell apart.
ROUNDS: Final = ("#0072b2", "#e69f00", "#d55e00", "#b5558f")
ROUND_NAMES: Final = ("sent once", "2nd time", "3rd time", "4th or later")
ACK_COLOUR, NAK_COLOUR, WAIT_COLOUR, BAND_COLOUR = "#00805c", "#b3261e", "#5a6473", "#0072b2"

#: Packets drawn as bars of their own; more become points of a picture, in SVG too.
BARS: Final = 20_000
BANDS: Final = 2_000
NAMED_BANDS: Final = 40
SHADES: Final = 400
BINS: Final = 300
STEPS: Final = 4_000

_ACKS: Final = np.array([v in wire.OPCODES and wire.OPCODES[v].operation == "ACK" for v in range(256)])
_READS: Final = np.array([v in wire.OPCODES and wire.OPCODES[v].operation == "READ" for v in range(256)])

#: What a happening's marker looks like: shape, size, colour, whether it is filled; and its name.
_MARKERS: Final[dict[str, tuple[str, float, str, bool, str]]] = {
    "nak": ("x", 6, NAK_COLOUR, True, "NAK"),
    "rnr": ("$\\Vert$", 8, NAK_COLOUR, True, "RNR NAK, its wait shaded"),
    "timeout": ("o", 7, "black", False, "timeout, its silence shaded"),
    "repeat": ("$\\rangle$", 6, ROUNDS[1], True, "goes back"),
    "hole": ("s", 6, NAK_COLOUR, False, "PSNs passed over"),
    "response_hole": ("s", 6, NAK_COLOUR, False, "responses passed over"),
    "missed": ("s", 6, "#7a8694", False, "missed by the capture"),
    "late": ("o", 5, ROUNDS[2], False, "out of order"),
    "duplicate": ("D", 5, ROUNDS[3], False, "doubled by the network"),
    "failed": ("X", 9, NAK_COLOUR, True, "WC in error"),
    "jump": ("^", 6, "#556270", True, "PSN leaps"),
    "unsent": ("$\\oslash$", 9, NAK_COLOUR, True, "WR without packets"),
}


@dataclass(frozen=True)
class Scene:
    """What is drawn: one lane between two times.

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
        """Times as they stand on the axis: seconds since the capture's first packet."""
        return (np.asarray(time_ns) - self.origin) / 1e9

    def title(self) -> str:
        connection, side = self.analysis.connections[self.number // 2], self.number % 2
        ends = f"{end(connection.end(side))} → {end(connection.end(1 - side))}"
        files = ", ".join(Path(f).name for f in self.analysis.capture.files)
        return f"{files} · connection {connection.id} {connection.transport} · requests of {ends}"


def _psn(scene: Scene, axes: Axes) -> None:
    lanes, rows = scene.lanes, scene.rows
    times, psn, span = scene.seconds(lanes.time_ns[rows]), lanes.psn[rows], lanes.span[rows]
    ack, rounds = _ACKS[lanes.opcode[rows]], np.minimum(lanes.round[rows], 4)
    read = _READS[lanes.opcode[rows]]
    events = scene.events
    _shade_waits(scene, axes, events)
    _bands(scene, axes)
    for number, (colour, name) in enumerate(zip(ROUNDS, ROUND_NAMES, strict=True), 1):
        chosen = np.flatnonzero((rounds == number) & ~ack & ~read)
        if len(chosen):
            _bars(axes, times[chosen], psn[chosen], span[chosen], colour, name)
        asked = np.flatnonzero((rounds == number) & read)
        if len(asked):
            ends = psn[asked] + span[asked]
            axes.vlines(times[asked], psn[asked], ends, colors=colour, linestyles="dotted", linewidth=1)
            axes.plot(times[asked], psn[asked], "_", color=colour, markersize=8, label="READ request")
    lost = np.flatnonzero(lanes.flags[rows] & LOST)
    if len(lost):
        axes.plot(times[lost], psn[lost] + 0.5, "s", color=NAK_COLOUR, markersize=7, markerfacecolor="none",
                  linestyle="none", label="did not arrive")  # fmt: skip
    if lanes.outstanding.any() and rows.start < rows.stop:
        changes = np.flatnonzero(np.diff(lanes.acked[rows], prepend=-1))
        changes = changes[:: 1 + len(changes) // STEPS]
        at = np.append(times[changes], times[-1])
        up_to = np.append(lanes.acked[rows][changes], lanes.acked[rows][-1])
        axes.step(at, up_to, where="post", color=ACK_COLOUR, linewidth=1.2, label="acknowledged up to")
    _unsent(scene, axes, events)
    _markers(scene, axes, events)
    axes.set_ylabel("PSN")
    axes.yaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{int(value) & MASK}"))


def _bars(axes: Axes, times: Any, psn: Any, span: Any, colour: str, name: str) -> None:
    if len(times) > BARS:
        axes.plot(times, psn, ",", color=colour, rasterized=True)
        axes.plot([], [], "|", color=colour, markersize=9, markeredgewidth=2.5, label=name)
        return
    ends = psn + span - 0.12
    segments = np.stack([np.column_stack([times, psn]), np.column_stack([times, ends])], axis=1)
    axes.add_collection(LineCollection(list(segments), colors=colour, linewidths=2, capstyle="butt"))
    axes.plot([], [], "|", color=colour, markersize=9, markeredgewidth=2.5, label=name)
    axes.update_datalim(segments.reshape(-1, 2))
    axes.autoscale_view()


def _shade_waits(scene: Scene, axes: Axes, events: Sequence[Happening]) -> None:
    waits = [h for h in events if h.until_ns > h.from_ns and h.kind != UNSENT]
    width = max(1, scene.end - scene.begin)
    for wait in waits[:SHADES]:
        colour = ROUNDS[1] if wait.kind == "rnr" else WAIT_COLOUR
        low, high = scene.seconds([wait.from_ns, wait.until_ns])
        axes.axvspan(low, high, color=colour, alpha=0.16, linewidth=0)
        length = wait.until_ns - wait.from_ns
        if length > width / 8:
            words = f"{'RNR wait' if wait.kind == 'rnr' else 'timeout'} {duration(length)}"
            code = wait.detail.partition("ACK timeout ")[2]
            if code and wait.kind != "rnr":
                words += f"\n({code})"
            axes.annotate(words, (low, 1), xycoords=("data", "axes fraction"), xytext=(3, -3),
                          textcoords="offset points", va="top", fontsize=7, color="#404a56")  # fmt: skip


def _bands(scene: Scene, axes: Axes) -> None:
    chosen = scene.transfers
    if len(chosen) > BANDS:
        return
    patches, names = [], len(chosen) <= NAMED_BANDS
    for transfer in chosen:
        posted, polled = journal_times(transfer, scene.analysis)
        begin = transfer.first_ns if posted is None else min(posted, transfer.first_ns)
        last = max(transfer.last_ns, transfer.acked_ns or 0, polled or 0)
        low, high = scene.seconds([begin, last])
        tall = transfer.last_psn + 1 - transfer.first_psn
        patches.append(Rectangle((low, transfer.first_psn), high - low, tall))
        if names:
            words = f"#{transfer.id} {transfer.operation}"
            if transfer.wr is not None:
                words = f"WR {transfer.wr.wr_id} {transfer.wr.opcode}"
            place = (max(low, float(scene.seconds(scene.begin))), transfer.last_psn + 1)
            axes.annotate(words, place, xytext=(3, -2), textcoords="offset points", va="top", fontsize=6.5,
                          color="#404a56", annotation_clip=True)  # fmt: skip
        for time_ns, psn, shape in ((posted, transfer.first_psn, ">"), (polled, transfer.last_psn + 1, "<")):
            if time_ns is not None and scene.begin <= time_ns <= scene.end:
                face = "#334155" if shape == ">" else "white"
                axes.plot(
                    scene.seconds(time_ns), psn, shape, color="#334155", markersize=4, markerfacecolor=face
                )
    if patches:
        axes.add_collection(
            PatchCollection(patches, facecolor=BAND_COLOUR, alpha=0.12, edgecolor=BAND_COLOUR, linewidth=0.4)
        )


def _unsent(scene: Scene, axes: Axes, events: Sequence[Happening]) -> None:
    """Work requests without packets, from their posting to their end; a few with their names."""
    unsent = [h for h in events if h.kind == UNSENT]
    psns = _unsent_psns(scene, unsent)
    middle = (scene.begin + scene.end) / 2
    for happening, psn in list(zip(unsent, psns, strict=True))[:BANDS]:
        low, high = scene.seconds([happening.from_ns, happening.until_ns])
        axes.plot([low, high], [psn, psn], color=NAK_COLOUR, linewidth=1, linestyle="dotted")
        if scene.begin <= happening.from_ns < happening.until_ns:
            axes.plot(low, psn, ">", color="#334155", markersize=4)
    named = dict(zip(psns, unsent, strict=True))  # of several at one height the last
    for psn, happening in named.items() if len(named) <= NAMED_BANDS else ():
        if not scene.begin <= happening.time_ns <= scene.end:
            continue
        others = psns.count(psn) - 1
        place = (float(scene.seconds(happening.time_ns)), psn)
        axes.annotate(happening.what + f" and {others:,} more" * bool(others), place, xytext=(0, 6),
                      textcoords="offset points", ha="left" if happening.time_ns < middle else "right",
                      fontsize=6.5, color=NAK_COLOUR)  # fmt: skip


def _unsent_psns(scene: Scene, unsent: Sequence[Happening]) -> list[float]:
    """Where they stand: at the PSN that would have been theirs, as far up as leaves the packets room."""
    psn, span = scene.lanes.psn[scene.rows], scene.lanes.span[scene.rows]
    if not len(psn):
        return [h.psn + 0.5 for h in unsent]
    least, most = int(psn.min()), int((psn + span).max())
    return [min(h.psn + 0.5, most + max(4, (most - least) / 2)) for h in unsent]


def _markers(scene: Scene, axes: Axes, events: Sequence[Happening]) -> None:
    seen = [h for h in events if scene.begin <= h.time_ns <= scene.end]
    for kind, (shape, big, colour, filled, name) in _MARKERS.items():
        own = [h for h in seen if h.kind == kind]
        if own:
            times = scene.seconds([h.time_ns for h in own])
            psns = (
                _unsent_psns(scene, own)
                if kind == UNSENT
                else [(h.psn + h.last_psn) / 2 + 0.5 if kind in HOLES else h.psn + 0.5 for h in own]
            )
            face = colour if filled else "white" if kind == "timeout" else "none"
            axes.plot(times, psns, marker=shape, color=colour, markersize=big, markerfacecolor=face,
                      linestyle="none", label=name, zorder=4)  # fmt: skip
    for message in (h for h in seen if h.kind == "cm"):
        at = float(scene.seconds(message.time_ns))
        axes.axvline(at, color="#7a8694", linewidth=0.8, linestyle="dashed")
        axes.annotate(message.what, (at, 0), xycoords=("data", "axes fraction"), xytext=(2, 3),
                      textcoords="offset points", fontsize=6.5, rotation=90, color="#556270")  # fmt: skip
    lanes, rows = scene.lanes, scene.rows
    marked = np.flatnonzero(lanes.flags[rows] & CE)
    if len(marked):
        at, psn = scene.seconds(lanes.time_ns[rows][marked]), lanes.psn[rows][marked] + 0.5
        axes.plot(at, psn, "d", color="#a06a00", markersize=4, linestyle="none", label="ECN-CE mark")
    for mark, shape, colour, name in (
        (CNP, "v", "#8a3f6b", "CNP"),
        (BAD_ICRC, "^", NAK_COLOUR, "wrong ICRC"),
    ):
        times = _marks(scene, mark)
        if len(times):
            height = np.full(len(times), 0.96 if mark == CNP else 0.91)
            axes.plot(scene.seconds(times), height, shape, color=colour, markersize=5, linestyle="none",
                      transform=axes.get_xaxis_transform(), label=name)  # fmt: skip


def _marks(scene: Scene, kind: int) -> NDArray[np.int64]:
    marks = scene.lanes.marks
    return marks.time_ns[(marks.kind == kind) & (marks.time_ns >= scene.begin) & (marks.time_ns <= scene.end)]


def _edges(scene: Scene) -> NDArray[np.float64]:
    """Of the bins that are counted over: ns since the scene's beginning, where a double still tells them."""
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
    """The bins' edges as they stand on the axis."""
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
    # The most of each share of the packets, where there are more than could be seen.
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
    told = np.flatnonzero(lanes.rtt_ns[rows] > 0)
    times = scene.seconds(lanes.time_ns[rows][told])
    axes.plot(
        times, lanes.rtt_ns[rows][told], ".", color=ACK_COLOUR, markersize=4, rasterized=len(told) > BARS
    )
    values = lanes.rtt_ns[rows][told]
    narrow = len(told) > 0 and values.max() < 10 * values.min()
    if len(told):
        axes.set_yscale("log")
        if narrow:
            axes.yaxis.set_minor_locator(LogLocator(subs=(2, 3, 5)))
    axes.set_ylabel("ACK round-trip")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: duration(value)))
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: duration(value) if narrow else ""))


def _congestion(scene: Scene, axes: Axes) -> None:
    lanes, rows, edges = scene.lanes, scene.rows, _axis(scene)
    marked = lanes.time_ns[rows][lanes.flags[rows] & CE != 0]
    told, seen = _counts(scene, _marks(scene, CNP)), _counts(scene, marked)
    axes.stairs(told, edges, color="#8a3f6b", fill=True, alpha=0.7, label="CNPs")
    axes.stairs(seen, edges, color="#a06a00", label="CE marks")
    axes.set_ylabel("CNPs, CE marks")
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.set_ylim(bottom=0)
    other = axes.twinx()
    other.tick_params(labelsize=8)
    other.stairs(_rates(scene, lanes.bytes[rows]), edges, color="#7a8694", linewidth=0.8)
    other.set_ylabel("Gb/s")
    axes.plot([], [], color="#7a8694", label="rate (right)")


#: What can be drawn over time, how, and how tall it is beside the others.
GRAPHS: Final[dict[str, tuple[Callable[[Scene, Axes], None], float]]] = {
    "psn": (_psn, 4.2),
    "rate": (_rate, 1.3),
    "outstanding": (_outstanding, 1.3),
    "rtt": (_rtt, 1.3),
    "congestion": (_congestion, 1.3),
}


def span(analysis: Results, lane: Lanes, number: int) -> tuple[int, int]:
    """From a lane's first packet to its last, and on to where work requests without packets ended."""
    events = happenings(analysis, [analysis.connections[number // 2]])
    unsent = [h for h in events if h.kind == UNSENT and h.lane == number]
    first = min([int(lane.time_ns[0]), *(h.from_ns for h in unsent)])
    return first, max([int(lane.time_ns[-1]), *(h.until_ns for h in unsent)])


def worth_drawing(scene: Scene) -> list[str]:
    """The graphs that have something to show."""
    lanes = scene.lanes
    wanted = {
        "psn": True,
        "rate": bool(lanes.bytes.any()),
        "outstanding": bool(lanes.outstanding.any()),
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


def save(figure: Figure, path: Path, *, dpi: int = 150) -> None:
    """Write a figure in the format that the path's suffix names; the same figure gives the same bytes.

    Raises:
        OSError: the file cannot be written.
    """
    kind = path.suffix.removeprefix(".").lower()
    nothing: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {})
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "rocekit", "font.family": ["DejaVu Sans"]}):
        figure.savefig(path, dpi=dpi, metadata=nothing)
