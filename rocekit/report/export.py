"""Packets, connections, transfers and findings as tables for polars, pandas, DuckDB and spreadsheets.

The columns are those of the JSON and of ``Packets``. Numbers have types of their size; what is unknown or not
in a packet is null. Names contain units; times are integer nanoseconds, because a float loses precision. This
module needs polars, the extra ``rocekit[export]``.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BytesIO
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from rocekit.errors import RocekitError, needs_extra
from rocekit.explanation.packets import packet_stories
from rocekit.files.frame_names import FRAME_BITS, FRAME_MASK
from rocekit.files.new_file import not_written
from rocekit.files.outputs import STANDARD_OUTPUT
from rocekit.report.tables.packet_table import PacketPieces, Pieces
from rocekit.report.tables.transfer_table import transfers_table
from rocekit.wire.text_table import safe_cell

if TYPE_CHECKING:
    import polars as pl

    from rocekit.explanation.results import Results
    from rocekit.findings import Finding
    from rocekit.packets import Packets
    from rocekit.track.connections import Connection

TABLES: Final = ("packets", "connections", "transfers", "findings")
#: Formats and their file suffixes.
FORMATS: Final = {"parquet": ".parquet", "arrow": ".arrow", "csv": ".csv", "jsonl": ".jsonl"}
#: As small as at polars' own level, 3, and faster; other methods make half as much again.
_PARQUET: Final[dict[str, Any]] = {"compression": "zstd", "compression_level": 1}


def need_polars() -> Any:
    """The module polars.

    Raises:
        RocekitError: it is not installed.
    """
    try:
        import polars
    except ImportError:
        raise needs_extra("export needs", "polars", "export") from None
    return polars


def tables(
    analysis: Results, names: Iterable[str] = TABLES, packets: Packets | None = None
) -> dict[str, pl.DataFrame]:
    """The tables of an analysis as polars data frames, by name.

    Args:
        packets: those of the analysis; None reads them again, if they are wanted.

    Raises:
        RocekitError: polars is not installed.
        ValueError: a name that is not in ``TABLES``, or an analysis without all its transfers.
    """
    polars = need_polars()
    made = each_table(analysis, names, packets)
    return {
        name: table if isinstance(table, polars.DataFrame) else polars.concat(table) for name, table in made
    }


def each_table(
    analysis: Results, names: Iterable[str], packets: Packets | None = None
) -> Iterator[tuple[str, pl.DataFrame | Pieces]]:
    """As ``tables``, one after the other; that of packets is made piece by piece while it is written."""
    need_polars()
    makers: dict[str, Callable[[], pl.DataFrame | Pieces]] = {
        "packets": lambda: PacketPieces(packet_stories(analysis, packets)),
        "connections": lambda: connections_table(analysis),
        "transfers": lambda: transfers_table(analysis.transfers, analysis),
        "findings": lambda: findings_table(analysis),
    }
    unknown = [name for name in names if name not in makers]
    if unknown:
        raise ValueError(f"no table {', '.join(unknown)}: there are {', '.join(TABLES)}")
    return ((name, makers[name]()) for name in names)


def write_table(table: pl.DataFrame | Pieces, file: BinaryIO, kind: str, name: str | Path) -> None:
    """Write a table as one of ``FORMATS``; see ``start_table``."""
    start_table(table, file, kind, name)()


def start_table(
    table: pl.DataFrame | Pieces, file: BinaryIO, kind: str, name: str | Path
) -> Callable[[], None]:
    """Begin to write a table as one of ``FORMATS``. CSV has no lists: there a list is JSON text.

    Args:
        file: open for writing; name: what errors call it.

    Returns:
        What waits until it is written. It raises RocekitError where it cannot be, and BrokenPipeError where
        the reader has gone.
    """
    pl = need_polars()
    # polars reports a closed pipe as an error of its own.
    whole = BytesIO() if name == STANDARD_OUTPUT else None
    wait = _in_thread(lambda: _write(pl, table, file if whole is None else whole, kind))

    def end() -> None:
        try:
            wait()
            if whole is not None:
                file.write(whole.getbuffer())
            file.flush()
        except OSError as error:
            raise not_written(error, name) from None
        except pl.exceptions.PolarsError as error:
            # Some formats report a full disk as an error of polars.
            raise RocekitError(f"{name}: cannot be written; is the disk full? ({error})") from None

    return end


def _in_thread(write: Callable[[], None]) -> Callable[[], None]:
    """Do it in a thread of its own, as polars hears no signals: Ctrl-C ends the waiting.

    Returns:
        What waits for its end, and raises what it raised.
    """
    raised: list[BaseException] = []

    def run() -> None:
        try:
            write()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def wait() -> None:
        thread.join()
        for error in raised:
            raise error

    return wait


def _write(pl: Any, table: Any, out: BinaryIO, kind: str) -> None:
    pieces: Iterator[pl.DataFrame] = iter([table] if isinstance(table, pl.DataFrame) else table)
    first = next(pieces)
    if first.height == table.height:
        _write_whole(pl, first, out, kind)
    elif kind in ("csv", "jsonl"):
        _write_whole(pl, first, out, kind)
        for piece in pieces:
            _write_whole(pl, piece, out, kind, begins=False)
    else:
        made = _lazily(pl, first, pieces)
        if kind == "parquet":
            made.sink_parquet(out, row_group_size=first.height, **_PARQUET)
        else:
            made.sink_ipc(out)


def _lazily(pl: Any, first: pl.DataFrame, others: Iterator[pl.DataFrame]) -> Any:
    """A table of pieces, each of which is made when polars asks for it."""
    from polars.io.plugins import register_io_source

    def pieces(*_: Any) -> Iterator[pl.DataFrame]:
        yield first
        yield from others

    return register_io_source(pieces, schema=first.schema)


def _write_whole(pl: Any, table: pl.DataFrame, out: BinaryIO, kind: str, begins: bool = True) -> None:
    """Write a table, or a piece of one; only the one that begins it has a line of names in CSV."""
    if kind == "parquet":
        table.write_parquet(out, **_PARQUET)
    elif kind == "arrow":
        table.write_ipc(out)
    elif kind == "jsonl":
        table.write_ndjson(out)
    else:
        lists = [name for name, dtype in table.schema.items() if dtype.is_nested()]
        table = table.with_columns(
            pl.col(name).map_elements(lambda v: json.dumps(v.to_list()), return_dtype=pl.String)
            for name in lists
        )
        # Enumerations have words of ours. Others, such as a journal's, may be formulas.
        texts = [_safe_cells(column) for column in table if column.dtype == pl.String]
        table.with_columns(texts).write_csv(out, include_header=begins)


def _safe_cells(column: pl.Series) -> pl.Series:
    texts = column.unique().drop_nulls().to_list()
    changed = {text: cell for text in texts if (cell := safe_cell(text)) != text}
    return column.replace(changed) if changed else column


def frame_of(kind: str, records: Sequence[Any], analysis: Results | None) -> pl.DataFrame:
    """Some records of an analysis as a data frame: ``connections``, ``transfers``, ``findings`` or ``cm``."""
    if kind == "connections":
        return _table(_CONNECTION, records)
    if kind == "transfers":
        return transfers_table(records, analysis)
    several = analysis is not None and analysis.capture.several
    if kind == "findings":
        return _findings(records, several)
    rows = [record.to_dict(several=several) for record in records]
    frame: pl.DataFrame = need_polars().DataFrame(rows, infer_schema_length=None)
    return frame


def connections_table(analysis: Results) -> pl.DataFrame:
    """One row for each connection."""
    return _table(_CONNECTION, analysis.connections)


def findings_table(analysis: Results) -> pl.DataFrame:
    """One row for each finding; its evidence is JSON text."""
    return _findings(analysis.findings, analysis.capture.several)


def _findings(findings: Sequence[Finding], several: bool) -> pl.DataFrame:
    return _table(
        {
            **_FINDING,
            "evidence": ("String", lambda f: json.dumps(f.to_dict(several=several)["evidence"])),
            "advice": ("String", lambda f: f.advice),
        },
        findings,
    )


_Columns = dict[str, tuple[str, Callable[[Any], Any]]]


def _table(columns: _Columns, records: Sequence[Any]) -> pl.DataFrame:
    """Records as columns with polars types by name; ``List(X)`` is a list of X."""
    pl = need_polars()

    def dtype(name: str) -> Any:
        inner = name.removeprefix("List(").removesuffix(")")
        return pl.List(getattr(pl, inner)) if inner != name else getattr(pl, name)

    return pl.DataFrame(
        {
            name: pl.Series(list(map(value, records)), dtype=dtype(kind))
            for name, (kind, value) in columns.items()
        }
    )


_attribute = attrgetter


def _connection_end(side: int, what: str) -> Callable[[Connection], Any]:
    return lambda c: c.end(side)[what]


def _application(connection: Connection) -> str | None:
    return None if connection.application is None else str(connection.application)


def _number(frame: int) -> int:
    return frame & FRAME_MASK


_CONNECTION: Final[_Columns] = {
    "id": ("UInt32", _attribute("id")),
    "transport": ("String", _attribute("transport")),
    "a_ip": ("String", _connection_end(0, "ip")),
    "a_qpn": ("UInt32", _connection_end(0, "qpn")),
    "b_ip": ("String", _connection_end(1, "ip")),
    "b_qpn": ("UInt32", _connection_end(1, "qpn")),
    "paired_by": ("String", _attribute("paired_by")),
    "path_mtu_bytes": ("UInt32", _attribute("path_mtu")),
    "used_by": ("String", _application),
    "first_ns": ("Int64", _attribute("first_ns")),
    "last_ns": ("Int64", _attribute("last_ns")),
    **{
        name: ("UInt64", _attribute(name))
        for name in (
            *("packets", "bytes", "transfers", "retransmitted_packets", "naks", "rnr_naks"),
            *("cnps", "ce_marked", "duplicates"),
        )
    },
    "bad_icrc_packets": ("UInt64", _attribute("bad_icrc_count")),
}


def _frames(f: Finding) -> list[int]:
    return [_number(frame) for frame in f.frames]


_FINDING: Final[_Columns] = {
    "rule": ("String", _attribute("rule")),
    "severity": ("String", _attribute("severity")),
    "title": ("String", _attribute("title")),
    "connection": ("UInt32", lambda f: None if f.connection is None else f.connection.id),
    "transfer": ("UInt32", lambda f: None if f.transfer is None else f.transfer.id),
    "files": ("List(UInt32)", lambda f: [frame >> FRAME_BITS for frame in f.frames]),
    "frames": ("List(Int64)", _frames),
}
