"""A transfer's ladder as a figure."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from rocekit.explanation.transfer import operation_name
from rocekit.report.figure_scene import ACK_COLOUR, NAK_COLOUR, ROUNDS, WAIT_COLOUR
from rocekit.report.happenings import HOLE
from rocekit.report.ladder import NOTE, Rung
from rocekit.wire.words import duration, end, plural, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from rocekit.track.transfers import Transfer

#: More rungs than this are not drawn.
MOST: Final = 250
_SLANT: Final = 0.35
#: A silence this many times the usual step, and at least this long, is drawn.
_LONG: Final = 20
_LONG_NS: Final = 50_000


def draw_ladder(transfer: Transfer, rungs: Sequence[Rung], *, width: float = 8.5) -> Figure:
    """The figure of a transfer's ladder, time going down."""
    shown = rungs[:MOST]
    steps = [b.time_ns - a.until_ns for a, b in pairwise(shown)]
    usual = median(steps) if steps else 0
    origin = shown[0].time_ns if shown else transfer.first_ns
    pauses = sum(step > max(_LONG * usual, _LONG_NS) for step in steps)
    height = 1.1 + 0.27 * (len(shown) + 1.3 * pauses + 1)
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.set_axis_off()
    y, before = 0.0, origin
    for rung in shown:
        pause = rung.time_ns - before
        if pause > max(_LONG * usual, _LONG_NS):
            axes.axhspan(y - 0.45, y + 0.55, 0.25, 0.75, color=WAIT_COLOUR, alpha=0.16, linewidth=0)
            words = f"{duration(pause)} without a packet of this transfer"
            axes.text(0.5, y + 0.05, words, ha="center", va="center", fontsize=7.5, color="#404a56")
            y += 1.3
        axes.text(
            -0.03,
            y,
            f"+{duration(rung.time_ns - origin)}",
            ha="right",
            va="center",
            fontsize=7.5,
            color="#556270",
        )
        _rung(axes, rung, y)
        y += 1
        before = rung.until_ns
    if len(rungs) > len(shown):
        axes.text(0.5, y, f"… and {plural(len(rungs) - len(shown), 'step')} more", ha="center", fontsize=7.5)
        y += 1
    for x, place, role in ((0, transfer.requester, "requester"), (1, transfer.responder, "responder")):
        axes.plot([x, x], [-0.7, y], color="#c5ccd5", linewidth=1.6, zorder=0)
        axes.text(x, -1.0, f"{end(place)}\n{role}", ha="center", va="bottom", fontsize=8)
    axes.set_xlim(-0.5, 1.5)
    axes.set_ylim(y + 0.2, -2.2)
    title = f"Transfer {transfer.id} · {operation_name(transfer)} {size(transfer.bytes)} · {transfer.status}"
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    return figure


def _rung(axes: Axes, rung: Rung, y: float) -> None:
    if rung.kind == NOTE:
        axes.plot(0, y, "o", color="#334155", markersize=4)
        axes.text(0.02, y, rung.text, va="center", fontsize=7.5)
        return
    start, stop = (1.0, 0.0) if rung.back else (0.0, 1.0)
    if rung.kind == HOLE:
        tip = (start + (stop - start) * 0.62, y + _SLANT * 0.62)
        axes.plot([start, tip[0]], [y, tip[1]], color=NAK_COLOUR, linewidth=1, linestyle="dashed")
        axes.plot(*tip, "x", color=NAK_COLOUR, markersize=7, markeredgewidth=1.8)
        axes.text(0.5, y - 0.12, rung.text, ha="center", va="bottom", fontsize=7, color="#556270")
        return
    colour = NAK_COLOUR if rung.nak else ACK_COLOUR if rung.ack else ROUNDS[min(4, rung.round) - 1]
    share = 0.72 if rung.lost else 1.0
    tip = (start + (stop - start) * share, y + _SLANT * share)
    style: dict[str, Any] = {"arrowstyle": "-" if rung.lost else "-|>", "shrinkA": 0, "shrinkB": 0}
    style |= {"color": colour, "linewidth": 2.6 if rung.count > 1 else 1.3}
    axes.annotate("", tip, (start, y), arrowprops=style)
    if rung.lost:
        axes.plot(*tip, "x", color=NAK_COLOUR, markersize=7, markeredgewidth=1.8)
    axes.text(0.5, y - 0.02, rung.text, ha="center", va="bottom", fontsize=7)
    note = ", did not arrive" if rung.lost else ""
    axes.text(
        1.03,
        y,
        f"frame {rung.frame}{' …' if rung.count > 1 else ''}{note}",
        va="center",
        fontsize=7,
        color="#556270",
    )
