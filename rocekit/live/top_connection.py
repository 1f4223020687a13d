"""The screen of `rocekit top` that shows one connection."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import Screen
from textual.widgets import Footer, Sparkline, Static

from rocekit.live.top_table import SEVERITY_STYLES, rate
from rocekit.wire.words import duration, plural

if TYPE_CHECKING:
    from rocekit.live.watch import Line, Watch


class ConnectionScreen(Screen[None]):
    """One connection: its numbers, its rate over time, its findings, its recent events."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,backspace", "app.pop_screen", "back"),
        Binding("space", "app.freeze", "freeze"),
        Binding("q", "app.quit", "quit"),
    ]

    def __init__(self, line: Line, watch: Watch) -> None:
        super().__init__()
        self._line, self._watch = line, watch

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(id="head")
            yield Sparkline([], id="rate")
            yield Static(id="story")
        yield Footer()

    def on_mount(self) -> None:
        self.show(self._line)

    def show(self, line: Line) -> None:
        self._line = line
        head = Text(f"connection {line.id}  {line.transport}  {line.a} ⇄ {line.b}\n", style="bold")
        trip = "?" if line.round_trip_ns is None else duration(line.round_trip_ns)
        numbers = (
            f"{rate(line.bits_per_s)}bit/s  {rate(line.packets_per_s)} packets/s  "
            f"outstanding {line.outstanding}  round trip {trip}\n"
            f"{plural(line.transfers, 'transfer')}  "
            f"{line.repeated:,} sent again ({rate(line.repeated_per_s)}/s)  "
            f"{line.naks:,} NAK  {line.rnr_naks:,} RNR NAK  {line.cnps:,} CNP  {line.ce_marked:,} marked CE"
        )
        self.query_one("#head", Static).update(head.append(numbers, style="not bold"))
        self.query_one("#rate", Sparkline).data = [past.bits_per_s for past in list(self._watch.history)]
        self.query_one("#story", Static).update(self._story(line))

    def _story(self, line: Line) -> Text:
        text = Text()
        for finding in self._watch.findings(line.id):
            text.append(f"{finding.severity} {finding.rule}: ", style=SEVERITY_STYLES[finding.severity])
            text.append(f"{finding.title}\n")
            text.append(f"  → {finding.advice}\n", style="dim")
        events = self._watch.recent_events(line.id)
        if events:
            text.append("\nrecent events\n", style="bold")
        for time_ns, words in reversed(events):
            text.append(f"  {time.strftime('%H:%M:%S', time.localtime(time_ns // 10**9))}", style="dim")
            text.append(f".{time_ns % 10**9 // 1000:06d}  ", style="dim")
            text.append(f"{words}\n")
        return text if text else Text("no findings, no events\n", style="dim")
