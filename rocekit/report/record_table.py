"""Tables of records that know their analysis: for notebooks, and as data frames."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, SupportsIndex, TypeVar, overload

from rocekit.errors import needs_extra
from rocekit.explanation.results import Results, Table
from rocekit.files.frame_names import frame_name
from rocekit.report.text import transfer_row
from rocekit.wire import OPCODES
from rocekit.wire.words import end, plural

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

T = TypeVar("T")

#: Rows of a table that a notebook shows.
SHOWN: Final = 20
_OPERATIONS: Final = frozenset(opcode.operation for opcode in OPCODES.values())


class RecordTable(Table[T]):
    """The connections, transfers, CM messages or findings of an analysis.

    Args:
        kind: which of them: ``connections``, ``transfers``, ``cm``, ``findings``.
    """

    __slots__ = ("analysis", "kind")

    def __init__(self, records: Iterable[T], kind: str, analysis: Results | None = None) -> None:
        super().__init__(records)
        self.kind = kind
        self.analysis = analysis

    @overload
    def __getitem__(self, place: SupportsIndex) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> RecordTable[T]: ...
    def __getitem__(self, place: SupportsIndex | slice) -> T | RecordTable[T]:
        if isinstance(place, slice):
            return RecordTable(super().__getitem__(place), self.kind, self.analysis)
        return super().__getitem__(place)

    def where(self, **wanted: Any) -> RecordTable[T]:
        """The records whose attributes have these values; a value may be a function that returns a bool.

        Raises:
            AttributeError: the records have no such attribute.
            ValueError: there is no operation of that name.
        """
        operation = wanted.get("operation")
        if isinstance(operation, str) and self.kind == "transfers" and operation not in _OPERATIONS:
            import difflib

            near = difflib.get_close_matches(operation.upper(), _OPERATIONS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(_OPERATIONS))}"
            raise ValueError(f"no operation {operation!r}: {hint}")
        return RecordTable(super().where(**wanted), self.kind, self.analysis)

    def to_polars(self) -> pl.DataFrame:
        """The records as a polars data frame, with the columns of `rocekit export`.

        Raises:
            RocekitError: polars is not installed.
        """
        from rocekit.report.export import frame_of

        return frame_of(self.kind, self, self.analysis)

    def to_pandas(self) -> pd.DataFrame:
        """The records as a pandas data frame; integers stay integers where values are missing.

        Raises:
            RocekitError: polars, pandas or pyarrow is not installed.
        """
        return as_pandas(self.to_polars())

    def _repr_html_(self) -> str:
        from rocekit.wire.notebook_html import block, heading, paragraph

        more = len(self) - SHOWN
        note = paragraph(f"… and {more:,} more: to_polars() and to_pandas() have all", dim=True)
        return block(heading(_TITLES[self.kind](len(self))), self.html(), note if more > 0 else "")

    def html(self, limit: int = SHOWN) -> str:
        """The first records as an HTML table."""
        from rocekit.wire.notebook_html import html_table

        several = self.analysis is not None and self.analysis.capture.several
        heads, row, right, wide = _COLUMNS[self.kind]
        return html_table(heads, (row(r, several) for r in self[:limit]), right=right, wide=wide)


def as_pandas(frame: pl.DataFrame) -> pd.DataFrame:
    """A polars data frame for pandas, with Arrow's types: nanoseconds stay exact where some are missing.

    Raises:
        RocekitError: pandas or pyarrow is not installed.
    """
    try:
        return frame.to_pandas(use_pyarrow_extension_array=True)
    except ImportError as error:
        raise needs_extra("to_pandas() needs", error.name or "pandas and pyarrow", "notebook") from None


def _transfer(t: Any, _several: bool) -> list[object]:
    return [cell.strip() for cell in transfer_row(t)]


def _connection(c: Any, _several: bool) -> list[object]:
    return [
        *(c.id, c.transport, end(c.end(0)), end(c.end(1)), c.paired_by, c.path_mtu),
        *(f"{c.packets:,}", f"{c.transfers:,}", f"{c.bytes:,}", c.retransmitted_packets, c.naks),
        "" if c.application is None else str(c.application),
    ]


def _finding(f: Any, several: bool) -> list[object]:
    frames = ", ".join(str(frame_name(frame, several=several)) for frame in f.frames[:4])
    connection = None if f.connection is None else f.connection.id
    transfer = None if f.transfer is None else f.transfer.id
    more = f" … ({len(f.frames)})" if len(f.frames) > 4 else ""
    return [f.severity, f.rule, f.title, connection, transfer, frames + more]


def _cm(record: Any, several: bool) -> list[object]:
    told = record.to_dict(several=several)
    return [told["frame"], told["message"], told["src"]["ip"], told["dst"]["ip"], told["connection"]]


_TITLES: Final[dict[str, Callable[[int], str]]] = {
    "connections": lambda n: plural(n, "connection"),
    "transfers": lambda n: plural(n, "transfer"),
    "findings": lambda n: plural(n, "finding"),
    "cm": lambda n: plural(n, "CM message"),
}
_Columns = tuple[tuple[str, ...], Callable[[Any, bool], list[object]], tuple[str, ...], tuple[str, ...]]
_COLUMNS: Final[dict[str, _Columns]] = {
    "transfers": (
        ("id", "operation", "from", "to", "bytes", "packets", "PSN", "duration", "status", "notes"),
        _transfer,
        ("id", "bytes", "packets", "PSN", "duration"),
        ("notes",),
    ),
    "connections": (
        (
            *("id", "transport", "a", "b", "paired by", "MTU", "packets", "transfers", "bytes"),
            *("sent again", "NAKs", "used by"),
        ),
        _connection,
        ("id", "MTU", "packets", "transfers", "bytes", "sent again", "NAKs"),
        ("used by",),
    ),
    "findings": (
        ("severity", "rule", "what", "connection", "transfer", "frames"),
        _finding,
        ("connection", "transfer"),
        ("what",),
    ),
    "cm": (("frame", "message", "from", "to", "connection"), _cm, ("frame", "connection"), ()),
}
