"""Questions to a LAKE in SQL, answered by DuckDB."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from rocekit.errors import RocekitError, needs_extra
from rocekit.fleet.lake import PAIRS, SUMMARY, Lake
from rocekit.fleet.schema import OF_ALL, OF_PAIRS, TABLES

_TYPES: Final = {"Int64": "BIGINT", "UInt64": "UBIGINT", "String": "VARCHAR", "Boolean": "BOOLEAN"}
_PARTITION: Final = {"day": "VARCHAR", "point": "VARCHAR"}


class Answer(NamedTuple):
    """The result of a query: names of columns, and rows."""

    columns: list[str]
    rows: list[tuple[Any, ...]]


def connect(lake: Lake) -> Any:
    """A DuckDB connection with the LAKE's tables as views.

    Raises:
        RocekitError: DuckDB is not installed, this is no LAKE, or one of its files is damaged.
    """
    try:
        import duckdb
    except ImportError:
        raise needs_extra("fleet query needs", "duckdb", "fleet") from None
    lake.manifest()
    connection = duckdb.connect(":memory:")
    for table in TABLES:
        try:
            connection.execute(f"CREATE VIEW {table} AS {_view(lake, table)}")
        except duckdb.Error as error:  # DuckDB reads what columns the files have
            first = str(error).strip().partition("\n")[0]
            raise RocekitError(f"{lake.folder}: the table {table} cannot be read: {first}") from None
    return connection


def _view(lake: Lake, table: str) -> str:
    """The SQL of a table: its files, or nothing with its columns."""
    hive = table not in (*OF_PAIRS, *OF_ALL)
    pattern = f"day=*/point=*/*/{table}.parquet" if hive else f"{PAIRS}/*/{table}.parquet"
    if table in OF_ALL:
        pattern = f"{SUMMARY}/{table}.parquet"
    columns = {name: _TYPES[kind] for name, (kind, _) in TABLES[table].items()}
    if hive:
        columns = _PARTITION | columns
    if next(lake.folder.glob(pattern), None) is None:
        return "SELECT " + ", ".join(f"NULL::{t} AS {n}" for n, t in columns.items()) + " WHERE false"
    whole = _quoted(f"{_escaped(lake.folder.resolve())}/{pattern}")
    types = "{'day': VARCHAR, 'point': VARCHAR}"
    options = f", hive_partitioning = true, hive_types = {types}" if hive else ", hive_partitioning = false"
    return f"SELECT {', '.join(columns)} FROM read_parquet({whole}{options})"


def _escaped(folder: Path) -> str:
    """A folder as a pattern that only it fits."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in str(folder))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def ask(connection: Any, sql: str) -> Answer:
    """The answer to a query.

    Raises:
        RocekitError: DuckDB cannot answer it; its words say why.
    """
    import duckdb

    try:
        result = connection.execute(sql)
        if result.description is None:
            return Answer([], [])
        return Answer([column[0] for column in result.description], result.fetchall())
    except duckdb.Error as error:
        first = str(error).strip().partition("\n")[0]
        raise RocekitError(f"the query cannot be answered: {first}") from None


def dicts(connection: Any, sql: str) -> list[dict[str, Any]]:
    """The answer to a query, a dict a row."""
    answer = ask(connection, sql)
    return [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]


def as_text(answer: Answer) -> list[str]:
    """The answer as a table, a line a row."""
    if not answer.columns:
        return []
    cells = [["" if v is None else _cell(v) for v in row] for row in answer.rows]
    places = range(len(answer.columns))
    right = [all(isinstance(row[i], int | float | None) for row in answer.rows) for i in places]
    widths = [max(len(name), *(len(row[i]) for row in cells), 0) if cells else len(name)
              for i, name in enumerate(answer.columns)]  # fmt: skip

    def line(values: Sequence[str]) -> str:
        padded = (v.rjust(w) if r else v.ljust(w) for v, w, r in zip(values, widths, right, strict=True))
        return "  ".join(padded).rstrip()

    return [line(answer.columns), *(line(row) for row in cells)]


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    return " ".join(str(value).split()) if isinstance(value, str) else str(value)
