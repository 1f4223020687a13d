"""The table of live connections: its columns, and the widget that sorts, filters and draws their rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from rocekit.wire.words import duration

if TYPE_CHECKING:
    from rocekit.live.watch import Line

SEVERITY_STYLES: Final = {"error": "bold red", "warning": "yellow", "info": "cyan"}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table.

    Attributes:
        width: characters; 0 takes the rest.
        show, key: its text, and its sort key.
        descending: whether the largest comes first.
        spare: the order in which columns are left out in a narrow terminal; 0 stays.
    """

    title: str
    width: int
    show: Callable[[Line], str]
    key: Callable[[Line], Any]
    descending: bool = True
    spare: int = 0


def rate(per_s: float) -> str:
    """``12.3k``, ``1.20M``: three digits and a unit."""
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


class ConnectionTable(ScrollView, can_focus=True):
    """The connections that match the filter, sorted; one of them is chosen."""

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
        """Filter and sort again; the chosen connection stays chosen."""
        words = self.wanted.lower().split()
        chosen = [line for line in self._lines if all(word in _searched(line) for word in words)]
        chosen.sort(key=lambda line: line.id)
        chosen.sort(key=self.column.key, reverse=self.descending)
        self.rows = chosen
        self.virtual_size = Size(0, len(chosen) + 1)
        self._fit()
        self.refresh()

    def _fit(self) -> None:
        """Leave out columns until the rest and the longest ends fit."""
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
        """The row of the chosen connection; the first if none is chosen or the filter hides it."""
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
        """The title stays; below it are the rows from the scroll offset on."""
        if y == 0:
            return self._strip([self._title(c) for c in self.columns], Style(bold=True, reverse=True))
        place = y - 1 + int(self.scroll_offset.y)
        if place >= len(self.rows):
            return Strip.blank(self.size.width)
        line = self.rows[place]
        style = Style.parse(SEVERITY_STYLES[line.severity]) if line.severity else Style()
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
