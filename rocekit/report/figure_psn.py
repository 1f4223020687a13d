"""The PSN graph of a figure: packets as bars over time, transfers as bands, and what happened to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from rocekit import wire
from rocekit.report.collector import CE, LOST
from rocekit.report.figure_scene import (
    ACK_COLOUR,
    BAND_COLOUR,
    BARS,
    NAK_COLOUR,
    ROUND_NAMES,
    ROUNDS,
    STEPS,
    WAIT_COLOUR,
    Scene,
    marks,
)
from rocekit.report.happenings import HOLES, UNSENT, Happening, journal_times
from rocekit.report.lanes import BAD_ICRC, CNP
from rocekit.wire.psn import MASK
from rocekit.wire.words import duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BANDS: Final = 2_000
NAMED_BANDS: Final = 40
SHADES: Final = 400

_ACKS: Final = np.array([v in wire.OPCODES and wire.OPCODES[v].operation == "ACK" for v in range(256)])
_READS: Final = np.array([v in wire.OPCODES and wire.OPCODES[v].operation == "READ" for v in range(256)])

#: The marker of each kind of happening: shape, size, colour, whether it is filled; and its name.
_MARKERS: Final[dict[str, tuple[str, float, str, bool, str]]] = {
    "nak": ("x", 6, NAK_COLOUR, True, "NAK"),
    "rnr": ("$\\Vert$", 8, NAK_COLOUR, True, "RNR NAK (wait shaded)"),
    "timeout": ("o", 7, "black", False, "timeout (silence shaded)"),
    "repeat": ("$\\rangle$", 6, ROUNDS[1], True, "go-back"),
    "hole": ("s", 6, NAK_COLOUR, False, "PSNs missing"),
    "response_hole": ("s", 6, NAK_COLOUR, False, "responses missing"),
    "missed": ("s", 6, "#7a8694", False, "not in the capture"),
    "late": ("o", 5, ROUNDS[2], False, "reordered"),
    "duplicate": ("D", 5, ROUNDS[3], False, "came twice"),
    "failed": ("X", 9, NAK_COLOUR, True, "WC with error"),
    "jump": ("^", 6, "#556270", True, "PSN jump"),
    "unsent": ("$\\oslash$", 9, NAK_COLOUR, True, "WR without packets"),
}


def psn_graph(scene: Scene, axes: Axes) -> None:
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
        requests = np.flatnonzero((rounds == number) & read)
        if len(requests):
            ends = psn[requests] + span[requests]
            axes.vlines(times[requests], psn[requests], ends, colors=colour, linestyles="dotted", linewidth=1)
            axes.plot(times[requests], psn[requests], "_", color=colour, markersize=8, label="READ request")
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
            words = wait.label or f"RNR wait {duration(length)}"
            code = wait.detail.partition("ACK timeout ")[2]
            if "×" in code and wait.kind != "rnr":
                words += f"\n({code})"
            label = axes.annotate(
                words, (low, 1), xycoords=("data", "axes fraction"), xytext=(3, -3),
                textcoords="offset points", va="top", fontsize=7, color="#404a56",
            )  # fmt: skip
            label.set_in_layout(False)  # a wait may begin far outside what is drawn


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
            start = max(low, float(scene.seconds(scene.begin)))
            late = start > scene.seconds(scene.begin + 0.9 * (scene.end - scene.begin))
            axes.annotate(words, (start, transfer.last_psn + 1), xytext=(-3 if late else 3, -2),
                          ha="right" if late else "left", textcoords="offset points", va="top", fontsize=6.5,
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
    """Work requests without packets, from post to completion; a few with their names."""
    unsent = [h for h in events if h.kind == UNSENT]
    psns = _unsent_psns(scene, unsent)
    middle = (scene.begin + scene.end) / 2
    for happening, psn in list(zip(unsent, psns, strict=True))[:BANDS]:
        low, high = scene.seconds([happening.from_ns, happening.until_ns])
        axes.plot([low, high], [psn, psn], color=NAK_COLOUR, linewidth=1, linestyle="dotted")
        if scene.begin <= happening.from_ns < happening.until_ns:
            axes.plot(low, psn, ">", color="#334155", markersize=4)
    named = dict(zip(psns, unsent, strict=True))  # the last of several at one height
    for psn, happening in named.items() if len(named) <= NAMED_BANDS else ():
        if not scene.begin <= happening.time_ns <= scene.end:
            continue
        others = psns.count(psn) - 1
        place = (float(scene.seconds(happening.time_ns)), psn)
        axes.annotate(happening.what + f" and {others:,} more" * bool(others), place, xytext=(0, 6),
                      textcoords="offset points", ha="left" if happening.time_ns < middle else "right",
                      fontsize=6.5, color=NAK_COLOUR)  # fmt: skip


def _unsent_psns(scene: Scene, unsent: Sequence[Happening]) -> list[float]:
    """Where they are drawn: at the PSN that would have been theirs, but not far above the packets."""
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
        times = marks(scene, mark)
        if len(times):
            height = np.full(len(times), 0.96 if mark == CNP else 0.91)
            axes.plot(scene.seconds(times), height, shape, color=colour, markersize=5, linestyle="none",
                      transform=axes.get_xaxis_transform(), label=name)  # fmt: skip
