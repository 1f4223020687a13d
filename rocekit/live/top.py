"""The terminal view of `rocekit top`: a table of live connections, and one connection opened.

A thread feeds the `Watch` and takes its snapshots; the screen draws the latest. Only the rows that can be
seen are drawn, so ten thousand connections cost no more than thirty.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.geometry import Size
from textual.message import Message
from textual.screen import Screen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Footer, Input, Sparkline, Static

from rocekit.errors import CaptureError
from rocekit.wire.words import duration, plural

if TYPE_CHECKING:
    from rocekit.files.frames import FrameBatch
    from rocekit.live.watch import Line, Snapshot, Watch

#: The least that the table needs.
MIN_COLUMNS, MIN_ROWS = 80, 10

_SEVERITY_STYLES: Final = {"error": "bold red", "warning": "yellow", "info": "cyan"}


class Source(Protocol):
    """Where frames come from: batches, empty ones when nothing comes, until it is stopped."""

    @property
    def dropped(self) -> int | None: ...

    def __iter__(self) -> Iterable[FrameBatch]: ...

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table.

    Attributes:
        width: characters; 0 takes what is left.
        show, key: what stands in it, and what it sorts by.
        descending: whether the largest comes first.
        spare: where the terminal is narrow, columns go in this order; 0 stays.
    """

    title: str
    width: int
    show: Callable[[Line], str]
    key: Callable[[Line], Any]
    descending: bool = True
    spare: int = 0


def rate(per_s: float) -> str:
    """``12.3k``, ``1.20M``: a number with three digits and a factor of thousand."""
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if per_s >= factor:
            value = per_s / factor
            return f"{value:.{max(0, 3 - len(str(int(value))))}f}{unit}"
    return f"{per_s:.0f}"


def _count(number: int) -> str:
    return f"{number:,}" if number < 1_000_000 else rate(number)


COLUMNS: Final = (
    Column("id", 5, lambda x: str(x.id), lambda x: x.id, False),
    Column("bit/s", 7, lambda x: rate(x.bits_per_s), lambda x: x.bits_per_s),
    Column("pkt/s", 7, lambda x: rate(x.packets_per_s), lambda x: x.packets_per_s, spare=6),
    Column("outst", 6, lambda x: str(x.outstanding), lambda x: x.outstanding, spare=5),
    Column(
        "rtt",
        11,
        lambda x: "" if x.round_trip_ns is None else duration(x.round_trip_ns),
        lambda x: x.round_trip_ns or 0,
        spare=7,
    ),
    Column("again", 8, lambda x: _count(x.repeated), lambda x: (x.repeated_per_s, x.repeated)),
    Column("nak", 6, lambda x: _count(x.naks), lambda x: x.naks, spare=4),
    Column("rnr", 6, lambda x: _count(x.rnr_naks), lambda x: x.rnr_naks, spare=3),
    Column("cnp", 6, lambda x: _count(x.cnps), lambda x: x.cnps, spare=2),
    Column("ce", 6, lambda x: _count(x.ce_marked), lambda x: x.ce_marked, spare=1),
    Column(
        "findings",
        16,
        lambda x: " ".join(x.rules),
        lambda x: (("info", "warning", "error").index(x.severity) if x.severity else -1, len(x.rules)),
    ),
    Column("ends", 0, lambda x: f"{x.transport}  {x.a} ⇄ {x.b}", lambda x: (x.a, x.b), False),
)
_BIT_RATE: Final = 1
_ENDS: Final = COLUMNS[-1]


#: Connections that are worth the garbage collector's time.
_MANY: Final = 100


class Feeder(threading.Thread):
    """Reads the capture and hands over a snapshot every ``interval_s``, or what ended the capture."""

    def __init__(
        self,
        capture: Source,
        watch: Watch,
        interval_s: float,
        tell: Callable[[Snapshot | CaptureError], None],
    ) -> None:
        super().__init__(name="rocekit-top", daemon=True)
        self._capture, self._watch, self._interval_s, self._tell = capture, watch, interval_s, tell
        self._settled = _MANY

    def run(self) -> None:
        told = time.monotonic()
        try:
            for batch in self._capture:  # type: ignore[attr-defined]
                if len(batch):
                    self._watch.feed(batch)
                now = time.monotonic()
                if now - told >= self._interval_s:
                    news = self._watch.snapshot(now - told)
                    self._tell(news)
                    self._settle(len(news.lines))
                    told = now
            self._tell(self._watch.snapshot(max(time.monotonic() - told, 1e-3)))
        except CaptureError as error:
            self._tell(error)

    def _settle(self, connections: int) -> None:
        """What is kept of connections stays: to look for garbage in ten thousand of them takes the time in
        which the capture's ring fills. Done as their number doubles, so that what is garbage then is little.
        """
        if connections >= 2 * self._settled:
            gc.freeze()
            self._settled = max(connections, _MANY)


class Table(ScrollView, can_focus=True):
    """The connections that the filter lets through, sorted; one of them is chosen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "up", show=False),
        Binding("down", "move(1)", "down", show=False),
        Binding("pageup", "page(-1)", "page up", show=False),
        Binding("pagedown", "page(1)", "page down", show=False),
        Binding("home", "edge(0)", "first", show=False),
        Binding("end", "edge(-1)", "last", show=False),
        Binding("enter", "open", "open"),
        Binding("left,less_than_sign", "sort(-1)", "sort ←"),
        Binding("right,greater_than_sign", "sort(1)", "sort →"),
        Binding("r", "reverse", "reverse"),
    ]

    class Opened(Message):
        """A connection was chosen to be opened."""

        def __init__(self, line: Line) -> None:
            super().__init__()
            self.line = line

    def __init__(self) -> None:
        super().__init__()
        self._lines: tuple[Line, ...] = ()
        self.rows: list[Line] = []
        self.chosen: int | None = None
        self.column = COLUMNS[_BIT_RATE]
        self.descending = self.column.descending
        self.columns: tuple[Column, ...] = COLUMNS
        self.wanted = ""

    def show(self, lines: tuple[Line, ...]) -> None:
        self._lines = lines
        self.rearrange()

    def rearrange(self) -> None:
        """Filter and sort anew; the chosen connection stays chosen, wherever it moves."""
        words = self.wanted.lower().split()
        chosen = [line for line in self._lines if all(word in _searched(line) for word in words)]
        chosen.sort(key=lambda line: line.id)
        chosen.sort(key=self.column.key, reverse=self.descending)
        self.rows = chosen
        self.virtual_size = Size(0, len(chosen) + 1)
        self._fit()
        self.refresh()

    def _fit(self) -> None:
        """Leave out columns until the rest, and the longest ends, have room."""
        room = self.size.width - max((len(_ENDS.show(line)) for line in self.rows), default=0) - 1
        columns = list(COLUMNS)
        for column in sorted((c for c in COLUMNS if c.spare), key=lambda c: c.spare):
            if sum(c.width + 1 for c in columns if c.width) <= room:
                break
            columns.remove(column)
        self.columns = tuple(columns)

    def on_resize(self) -> None:
        self._fit()

    @property
    def place(self) -> int:
        """Where the chosen connection stands; first where none is chosen or it is filtered away."""
        return next((i for i, line in enumerate(self.rows) if line.id == self.chosen), 0)

    def choose(self, place: int) -> None:
        if not self.rows:
            return
        place = max(0, min(len(self.rows) - 1, place))
        self.chosen = self.rows[place].id
        height = max(1, self.size.height - 1)
        if place < self.scroll_offset.y:
            self.scroll_to(y=place, animate=False)
        elif place >= self.scroll_offset.y + height:
            self.scroll_to(y=place - height + 1, animate=False)
        self.refresh()

    def action_move(self, by: int) -> None:
        self.choose(self.place + by)

    def action_page(self, by: int) -> None:
        self.choose(self.place + by * max(1, self.size.height - 2))

    def action_edge(self, place: int) -> None:
        self.choose(place if place >= 0 else len(self.rows) - 1)

    def action_sort(self, by: int) -> None:
        at = self.columns.index(self.column) if self.column in self.columns else 0
        self.column = self.columns[(at + by) % len(self.columns)]
        self.descending = self.column.descending
        self.rearrange()

    def action_reverse(self) -> None:
        self.descending = not self.descending
        self.rearrange()

    def action_open(self) -> None:
        if self.rows:
            self.post_message(self.Opened(self.rows[self.place]))

    def on_click(self, event: events.Click) -> None:
        if event.y > 0:
            self.choose(event.y - 1 + int(self.scroll_offset.y))

    def render_line(self, y: int) -> Strip:
        """The title stands still; below it are the rows from the scroll offset on."""
        if y == 0:
            return self._strip([self._title(c) for c in self.columns], Style(bold=True, reverse=True))
        place = y - 1 + int(self.scroll_offset.y)
        if place >= len(self.rows):
            return Strip.blank(self.size.width)
        line = self.rows[place]
        style = Style.parse(_SEVERITY_STYLES[line.severity]) if line.severity else Style()
        if not line.packets_per_s:
            style += Style(dim=True)
        if line.id == self.chosen or (self.chosen is None and place == 0):
            style += Style(reverse=True)
        return self._strip([column.show(line) for column in self.columns], style)

    def _title(self, column: Column) -> str:
        arrow = ("▼" if self.descending else "▲") if column is self.column else ""
        return column.title + arrow

    def _strip(self, cells: list[str], style: Style) -> Strip:
        parts = []
        for column, cell in zip(self.columns, cells, strict=True):
            if not column.width:
                parts.append(f" {cell}")
            elif column.title == "findings":
                parts.append(f" {cell:<{column.width}.{column.width}}")
            else:
                parts.append(f"{cell:>{column.width}.{column.width}} ")
        text = "".join(parts)
        return Strip([Segment(text, style)]).adjust_cell_length(self.size.width, style)


def _searched(line: Line) -> str:
    return " ".join((str(line.id), line.transport, line.a, line.b, *line.rules)).lower()


class Opened(Screen[None]):
    """One connection: its numbers, its rate over time, its findings, what befell it lately."""

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
            text.append(f"{finding.severity} {finding.rule}: ", style=_SEVERITY_STYLES[finding.severity])
            text.append(f"{finding.title}\n")
            text.append(f"  → {finding.advice}\n", style="dim")
        told = self._watch.told(line.id)
        if told:
            text.append("\nlately\n", style="bold")
        for time_ns, words in reversed(told):
            text.append(f"  {time.strftime('%H:%M:%S', time.localtime(time_ns // 10**9))}", style="dim")
            text.append(f".{time_ns % 10**9 // 1000:06d}  ", style="dim")
            text.append(f"{words}\n")
        return text if text else Text("nothing has gone wrong\n", style="dim")


class Top(App[CaptureError | None]):
    """`rocekit top`: see the module. Ends with None, or with what ended the capture."""

    CSS = """
    Table { overflow-x: hidden; scrollbar-size-vertical: 1; }
    #state { height: 1; }
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

    def __init__(self, interface: str, capture: Source, watch: Watch, *, interval_s: float = 1.0) -> None:
        super().__init__()
        self._interface, self._capture, self._watch = interface, capture, watch
        self._feeder = Feeder(capture, watch, interval_s, self._told)
        self._news: Snapshot | CaptureError | None = None
        self._latest: Snapshot | None = None
        self.frozen = False

    def compose(self) -> ComposeResult:
        yield Static(f"{self._interface}: waiting for packets", id="state")
        yield Input(placeholder="addresses, QPs, findings: rows that have all these words", id="filter")
        yield Table()
        yield Footer()

    def on_mount(self) -> None:
        self.query_one(Table).focus()
        self._feeder.start()

    def _told(self, news: Snapshot | CaptureError) -> None:
        """Called by the feeder's thread, which does not wait for the screen: a newer snapshot replaces one
        that was not drawn yet.
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
        # The table is the first screen's, whatever lies on top of it.
        self.screen_stack[0].query_one(Table).show(news.lines)
        if isinstance(self.screen, Opened):
            opened = self.screen
            line = next((line for line in news.lines if line.id == opened._line.id), None)
            if line is not None:
                opened.show(line)

    def _state(self, news: Snapshot) -> None:
        table = self.screen_stack[0].query_one(Table)
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
        if table.wanted:
            text.append(f"  filter: {table.wanted}", style="cyan")
        if self.frozen:
            text.append("  FROZEN", style="bold reverse")
        self.screen_stack[0].query_one("#state", Static).update(text)

    def action_freeze(self) -> None:
        """Hold what is shown; the watch goes on behind it."""
        self.frozen = not self.frozen
        if self._latest is not None:
            self._state(self._latest)
        if not self.frozen:
            self.show()

    def action_filter(self) -> None:
        line = self.query_one("#filter", Input)
        line.add_class("shown")
        line.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        table = self.query_one(Table)
        table.wanted = event.value.strip()
        table.rearrange()
        if self._latest is not None:
            self._state(self._latest)

    def on_input_submitted(self) -> None:
        self.query_one("#filter", Input).remove_class("shown")
        self.query_one(Table).focus()

    def on_key(self, event: events.Key) -> None:
        if event.key == "escape" and self.focused is self.query_one("#filter", Input):
            self.query_one("#filter", Input).value = ""
            self.on_input_submitted()

    def on_table_opened(self, message: Table.Opened) -> None:
        self._watch.open(message.line.id)
        self.push_screen(Opened(message.line, self._watch))

    def on_unmount(self) -> None:
        self._capture.stop()
