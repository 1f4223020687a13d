"""The terminal view of `rocekit top`: a table of live connections, and one connection.

A thread feeds the `Watch` and takes its snapshots; the screen draws the latest. Only the visible rows are
drawn, so ten thousand connections cost no more than thirty.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Footer, Input, Static

from rocekit.errors import CaptureError
from rocekit.live.top_connection import ConnectionScreen
from rocekit.live.top_table import ConnectionTable, rate
from rocekit.wire.words import plural

if TYPE_CHECKING:
    from rocekit.files.frames import FrameBatch
    from rocekit.live.watch import Snapshot, Watch

#: The smallest terminal for the table.
MIN_COLUMNS, MIN_ROWS = 80, 10


class FrameSource(Protocol):
    """A source of frames: batches until it is stopped, empty ones when nothing comes."""

    @property
    def dropped(self) -> int | None: ...

    def __iter__(self) -> Iterable[FrameBatch]: ...

    def stop(self) -> None: ...


#: Connections from which on the garbage collector is spared them.
_MANY: Final = 100


class Feeder(threading.Thread):
    """Reads the capture and reports a snapshot every ``interval_s``, or the error that ended the capture."""

    def __init__(
        self,
        capture: FrameSource,
        watch: Watch,
        interval_s: float,
        report: Callable[[Snapshot | CaptureError], None],
    ) -> None:
        super().__init__(name="rocekit-top", daemon=True)
        self._capture, self._watch, self._interval_s, self._report = capture, watch, interval_s, report
        self._settled = _MANY

    def run(self) -> None:
        reported = time.monotonic()
        try:
            for batch in self._capture:  # type: ignore[attr-defined]
                if len(batch):
                    self._watch.feed(batch)
                now = time.monotonic()
                if now - reported >= self._interval_s:
                    news = self._watch.snapshot(now - reported)
                    self._report(news)
                    self._settle(len(news.lines))
                    reported = now
            self._report(self._watch.snapshot(max(time.monotonic() - reported, 1e-3)))
        except CaptureError as error:
            self._report(error)

    def _settle(self, connections: int) -> None:
        """Keep connections from the garbage collector: a search in ten thousand of them takes longer than the
        capture's ring takes to fill. Done each time their number doubles, so little garbage is kept.
        """
        if connections >= 2 * self._settled:
            gc.freeze()
            self._settled = max(connections, _MANY)


class Top(App[CaptureError | None]):
    """`rocekit top`: see the module. Returns None, or the error that ended the capture."""

    CSS = """
    ConnectionTable { overflow-x: hidden; scrollbar-size-vertical: 1; }
    #state { height: 1; }
    #nothing { height: auto; display: none; color: $warning; }
    #nothing.shown { display: block; }
    #filter { height: 1; border: none; display: none; }
    #filter.shown { display: block; }
    #head { height: auto; }
    #rate { height: 3; margin: 1 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter"),
        Binding("space", "freeze", "freeze"),
        Binding("q", "quit", "quit"),
    ]
    ENABLE_COMMAND_PALETTE = False

    class News(Message):
        """The feeder has something to show."""

    def __init__(
        self, interface: str, capture: FrameSource, watch: Watch, *, interval_s: float = 1.0
    ) -> None:
        super().__init__()
        self._interface, self._capture, self._watch = interface, capture, watch
        self._feeder = Feeder(capture, watch, interval_s, self._report)
        self._news: Snapshot | CaptureError | None = None
        self._latest: Snapshot | None = None
        self.frozen = False

    def compose(self) -> ComposeResult:
        yield Static(f"{self._interface}: waiting for packets", id="state")
        yield Static(id="nothing")
        yield Input(placeholder="rows with all these words: addresses, QPs, findings", id="filter")
        yield ConnectionTable()
        yield Footer()

    def on_mount(self) -> None:
        self.query_one(ConnectionTable).focus()
        self._feeder.start()

    def _report(self, news: Snapshot | CaptureError) -> None:
        """Called by the feeder's thread, which does not wait for the screen: a newer snapshot replaces one
        that is not drawn yet.
        """
        waiting, self._news = self._news is not None, news
        if not waiting and self.is_running:
            self.post_message(self.News())

    def on_top_news(self) -> None:
        news, self._news = self._news, None
        if news is None:
            return
        if isinstance(news, CaptureError):
            self.exit(news)
            return
        self._latest = news
        if not self.frozen:
            self.show()

    def show(self) -> None:
        """Draw the latest snapshot."""
        news = self._latest
        if news is None:
            return
        self._state(news)
        # The table is on the first screen, whatever is on top of it.
        self.screen_stack[0].query_one(ConnectionTable).show(news.lines)
        if isinstance(self.screen, ConnectionScreen):
            opened = self.screen
            line = next((line for line in news.lines if line.id == opened._line.id), None)
            if line is not None:
                opened.show(line)

    def _state(self, news: Snapshot) -> None:
        table = self.screen_stack[0].query_one(ConnectionTable)
        parts = [
            self._interface,
            plural(len(news.lines), "connection"),
            f"{rate(news.bits_per_s)}bit/s",
            f"{rate(news.packets_per_s)} packets/s",
        ]
        text = Text("  ".join(parts))
        dropped = self._capture.dropped
        if dropped:
            text.append(f"  {dropped:,} frames dropped by the kernel", style="bold red")
        if self._latest is not None and self._latest.evicted:
            text.append(f"  {self._latest.evicted:,} connections let go", style="dim")
        if table.wanted:
            text.append(f"  filter: {table.wanted}", style="cyan")
        if self.frozen:
            text.append("  FROZEN", style="bold reverse")
        self.screen_stack[0].query_one("#state", Static).update(text)
        nothing = self.screen_stack[0].query_one("#nothing", Static)
        nothing.update(Text("\n".join(news.nothing)))
        nothing.set_class(bool(news.nothing), "shown")

    def action_freeze(self) -> None:
        """Stop drawing; the watch continues."""
        self.frozen = not self.frozen
        if self._latest is not None:
            self._state(self._latest)
        if not self.frozen:
            self.show()

    def action_filter(self) -> None:
        """Ask for words; from an opened connection back in the table, which they are of."""
        if isinstance(self.screen, ConnectionScreen):
            self.pop_screen()
        line = self.query_one("#filter", Input)
        line.add_class("shown")
        line.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        table = self.query_one(ConnectionTable)
        table.wanted = event.value.strip()
        table.rearrange()
        if self._latest is not None:
            self._state(self._latest)

    def on_input_submitted(self) -> None:
        self.query_one("#filter", Input).remove_class("shown")
        self.query_one(ConnectionTable).focus()

    def on_key(self, event: events.Key) -> None:
        if event.key == "escape" and self.focused is self.query_one("#filter", Input):
            self.query_one("#filter", Input).value = ""
            self.on_input_submitted()

    def on_connection_table_opened(self, message: ConnectionTable.Opened) -> None:
        self._watch.open(message.line.id)
        self.push_screen(ConnectionScreen(message.line, self._watch))

    def on_unmount(self) -> None:
        self._capture.stop()
