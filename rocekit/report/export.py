"""Packets, connections, transfers and findings as tables for polars, pandas, DuckDB and spreadsheets.

The columns are those of the JSON and of ``Packets``. Numbers have types of their size; what is unknown or not
in a packet is null. Names contain units; times are integer nanoseconds, because a float loses precision. This
module needs polars, the extra ``rocekit[export]``.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Sequence
from io import BytesIO
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import numpy as np

from rocekit import wire
from rocekit.correlate.time_split import recovery_ns
from rocekit.errors import RocekitError, needs_extra
from rocekit.explanation.packets import CAUSES, ROLES, PacketStories, packet_stories
from rocekit.files.frame_names import FRAME_BITS, FRAME_MASK
from rocekit.files.outputs import STANDARD_OUTPUT, not_written
from rocekit.packets import COLUMNS, FIELD_HOMES, HAS, ICRC_STATES, ICRC_UNCHECKED
from rocekit.packets.malformed import MALFORMED
from rocekit.track.transfers import NOTHING
from rocekit.wire.psn import MASK
from rocekit.wire.text_table import safe_cell

if TYPE_CHECKING:
    import polars as pl

    from rocekit.explanation.results import Results
    from rocekit.findings import Finding
    from rocekit.track.connections import Connection
    from rocekit.track.transfers import Transfer

TABLES: Final = ("packets", "connections", "transfers", "findings")
#: Formats and their file suffixes.
FORMATS: Final = {"parquet": ".parquet", "arrow": ".arrow", "csv": ".csv", "jsonl": ".jsonl"}

#: Columns whose names in ``Packets`` have no unit.
_RENAMED: Final = {"payload_length": "payload_bytes", "dma_length": "dma_bytes"}
#: Columns for internal use only.
_INNER: Final = frozenset({"has", "flow"})
_BITS: Final = {name: homes[0][1].bits for name, homes in FIELD_HOMES.items()}


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


def tables(analysis: Results, names: Iterable[str] = TABLES) -> dict[str, pl.DataFrame]:
    """The tables of an analysis as polars data frames, by name.

    Raises:
        RocekitError: polars is not installed.
        ValueError: a name that is not in ``TABLES``, or an analysis without all its transfers.
    """
    need_polars()
    makers: dict[str, Callable[[Results], pl.DataFrame]] = {
        "packets": lambda a: packets_table(packet_stories(a)),
        "connections": connections_table,
        "transfers": transfers_table,
        "findings": findings_table,
    }
    unknown = [name for name in names if name not in makers]
    if unknown:
        raise ValueError(f"no table {', '.join(unknown)}: there are {', '.join(TABLES)}")
    return {name: makers[name](analysis) for name in names}


def write_table(table: pl.DataFrame, file: BinaryIO, kind: str, name: str | Path) -> None:
    """Write a table as one of ``FORMATS``. CSV has no lists: there a list is JSON text.

    Args:
        file: open for writing; name: what errors call it.

    Raises:
        RocekitError: it cannot be written.
        BrokenPipeError: the reader has gone.
    """
    pl = need_polars()
    try:
        if name == STANDARD_OUTPUT:
            # polars reports a closed pipe as an error of its own.
            whole = BytesIO()
            _interruptibly(lambda: _write(pl, table, whole, kind))
            file.write(whole.getbuffer())
        else:
            _interruptibly(lambda: _write(pl, table, file, kind))
        file.flush()
    except OSError as error:
        raise not_written(error, name) from None
    except pl.exceptions.PolarsError as error:
        # Some formats report a full disk as an error of polars.
        raise RocekitError(f"{name}: cannot be written; is the disk full? ({error})") from None


def _interruptibly(write: Callable[[], None]) -> None:
    """Do it in a thread of its own, as polars hears no signals: Ctrl-C then ends the waiting.

    Raises:
        Exception: what it raises.
    """
    raised: list[BaseException] = []

    def run() -> None:
        try:
            write()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join()
    for error in raised:
        raise error


def _write(pl: Any, table: pl.DataFrame, out: BinaryIO, kind: str) -> None:
    if kind == "parquet":
        table.write_parquet(out)
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
        table.with_columns(_safe_cells(column) for column in table if column.dtype == pl.String).write_csv(
            out
        )


def _safe_cells(column: pl.Series) -> pl.Series:
    texts = column.unique().drop_nulls().to_list()
    changed = {text: cell for text in texts if (cell := safe_cell(text)) != text}
    return column.replace(changed) if changed else column


# ---------------------------------------------------------------------- packets


def packets_table(stories: PacketStories) -> pl.DataFrame:
    """One row for each packet: its connection, transfer, role and cause, then its fields."""
    pl = need_polars()
    p = stories.packets
    n = len(p)
    texts = [*p.addresses, ""]
    cause = stories.cause_row
    columns: dict[str, Any] = {
        "file": p.file,
        "frame": p.frame,
        "time_ns": p.time_ns,
        "src": _names(pl, texts, p.src),
        "dst": _names(pl, texts, p.dst),
        "connection": _nullable(pl, stories.connection, stories.connection >= 0, pl.UInt32),
        "sender": _names(pl, ["a", "b", None], stories.sender),
        "transfer": _nullable(pl, stories.transfer, stories.transfer >= 0, pl.UInt32),
        "role": _names(pl, ROLES, stories.role),
        "unwrapped_psn": _nullable(pl, stories.psn, stories.psn >= 0, pl.Int64),
        "round": _nullable(pl, stories.round, stories.round > 0, pl.UInt32),
        "duplicate": stories.duplicate,
        "cause": _names(pl, [None, *CAUSES[1:]], stories.cause),
        "cause_file": _nullable(pl, p.file[cause] if n else cause, cause >= 0, pl.Int32),
        "cause_frame": _nullable(pl, p.frame[cause] if n else cause, cause >= 0, pl.Int64),
    }
    for name in COLUMNS:
        if name not in columns and name not in _INNER:
            columns[_RENAMED.get(name, name)] = _field(pl, stories, name)
    return pl.DataFrame(columns)


def _field(pl: Any, stories: PacketStories, name: str) -> Any:
    """A column of ``Packets``, null where the packet does not have the field."""
    p = stories.packets
    if name in FIELD_HOMES and name != "opcode":
        bits = sum(HAS[header.name] for header, _ in FIELD_HOMES[name])
        width = next(w for w in (8, 16, 32, 64) if w >= _BITS[name])
        kind = pl.Boolean if _BITS[name] == 1 else getattr(pl, f"UInt{width}")
        there = p.has & bits != 0
        return _nullable(pl, p[name] if there.any() else p.has, there, kind)
    values = p[name]
    if name == "opcode":
        known = [wire.OPCODES[v].name if v in wire.OPCODES else None for v in range(256)]
        return _names(pl, [*known, None], values)
    if name == "icrc_state":
        return _names(pl, ICRC_STATES, values)
    if name == "malformed":
        return _names(pl, [MALFORMED.get(code) for code in range(max(MALFORMED) + 1)], values)
    if name == "icrc":
        return _nullable(pl, values, p.icrc_state != ICRC_UNCHECKED, pl.UInt32)
    if name in ("vlan", "priority"):
        return _nullable(pl, values, p.vlan >= 0, pl.UInt16)
    if name == "vni":
        return _nullable(pl, values, values >= 0, pl.UInt32)
    if name == "encapsulation":
        return _names(pl, [", ".join(wrapping.layers) or None for wrapping in p.wrappings], values)
    if name == "udp_sport":
        return _nullable(pl, values, p.roce_version == 2, pl.UInt16)
    if name == "ip_id":
        return _nullable(pl, values, p.ip_version == 4, pl.UInt16)
    if name == "flow_label":
        return _nullable(pl, values, p.ip_version == 6, pl.UInt32)
    return values


def _names(pl: Any, names: Sequence[str | None], codes: np.ndarray) -> Any:
    """A column of texts by their numbers; −1 is the last of ``names``."""
    if not len(codes):
        return pl.Series(dtype=pl.Categorical)
    # Only the names that occur are categories, in the order in which they do.
    first = np.full(len(names), len(codes), np.int64)
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    order = np.argsort(first, kind="stable")[: np.count_nonzero(first < len(codes))]
    place = np.empty(len(names), np.uint32)
    place[order] = np.arange(len(order), dtype=np.uint32)
    words = pl.Series([names[code] for code in order.tolist()], dtype=pl.String).cast(pl.Categorical)
    return words.gather(pl.Series(place[codes]))


def _nullable(pl: Any, values: np.ndarray, there: np.ndarray, dtype: Any) -> Any:
    """A column with nulls where ``there`` is false."""
    if not there.any():
        return pl.Series([None], dtype=dtype).new_from_index(0, len(there))
    if there.all():
        return pl.Series(values=values).cast(dtype)
    series = pl.Series(values=np.where(there, values, 0))
    return series.cast(dtype).set(pl.Series(~there), None)


# ---------------------------------------------------------------------- records


def frame_of(kind: str, records: Sequence[Any], analysis: Results | None) -> pl.DataFrame:
    """Some records of an analysis as a data frame: ``connections``, ``transfers``, ``findings`` or ``cm``."""
    if kind == "connections":
        return _table(_CONNECTION, records)
    if kind == "transfers":
        return _transfers(records, analysis)
    several = analysis is not None and analysis.capture.several
    if kind == "findings":
        return _findings(records, several)
    rows = [record.to_dict(several=several) for record in records]
    frame: pl.DataFrame = need_polars().DataFrame(rows, infer_schema_length=None)
    return frame


def connections_table(analysis: Results) -> pl.DataFrame:
    """One row for each connection."""
    return _table(_CONNECTION, analysis.connections)


def transfers_table(analysis: Results) -> pl.DataFrame:
    """One row for each transfer, with its work request, completion, and times."""
    return _transfers(analysis.transfers, analysis)


def _transfers(transfers: Sequence[Transfer], analysis: Results | None) -> pl.DataFrame:
    """The table of transfers, with the times of ``correlate.timing`` as columns."""
    pl = need_polars()
    journal = None if analysis is None else analysis.journal
    ahead = {} if journal is None else {host: clock.offset_ns for host, clock in journal.clocks.items()}
    table = _table(_TRANSFER, transfers)
    off = [0 if not ahead or t.wr is None else ahead.get(t.wr.qp.host, 0) for t in transfers]
    own_clock = pl.Series(off, dtype=pl.Int64)
    first, last = pl.col("first_ns"), pl.col("last_ns")
    posted, polled = pl.col("wr_posted_ns") - own_clock, pl.col("wc_polled_ns") - own_clock
    end = pl.coalesce("acked_ns", "last_ns")
    return table.with_columns(
        software_ns=first - posted,
        sending_ns=pl.max_horizontal(last - first, 0),
        wire_ns=end - first,
        recovery_ns=pl.Series([recovery_ns(t) if t.events else 0 for t in transfers], dtype=pl.Int64),
        completion_ns=polled - end,
        total_ns=polled - posted,
    )


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


def _wr(name: str) -> Callable[[Transfer], Any]:
    return lambda t: None if t.wr is None else getattr(t.wr, name)


def _wc(name: str) -> Callable[[Transfer], Any]:
    return lambda t: None if t.wc is None else getattr(t.wc, name)


def _connection_end(side: int, what: str) -> Callable[[Connection], Any]:
    return lambda c: c.end(side)[what]


def _application(connection: Connection) -> str | None:
    return None if connection.application is None else str(connection.application)


def _number(frame: int) -> int:
    return frame & FRAME_MASK


def _missing(t: Transfer) -> int:
    # Nearly all transfers have none, and to ask how many costs more than all else.
    if t.missing is NOTHING and t.responses_missing is NOTHING:
        return 0
    return len(t.missing) + len(t.responses_missing)


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
_TRANSFER: Final[_Columns] = {
    "id": ("UInt32", _attribute("id")),
    "connection": ("UInt32", _attribute("connection.id")),
    "transport": ("String", _attribute("connection.transport")),
    "requester_ip": ("String", lambda t: t.connection.ips[t.side]),
    "requester_qpn": ("UInt32", lambda t: t.connection.qpns[t.side]),
    "responder_ip": ("String", lambda t: t.connection.ips[1 - t.side]),
    "responder_qpn": ("UInt32", lambda t: t.connection.qpns[1 - t.side]),
    "operation": ("String", _attribute("operation")),
    "status": ("String", _attribute("status")),
    "bytes": ("UInt64", _attribute("bytes")),
    "packets": ("UInt32", _attribute("packets")),
    "first_psn": ("UInt32", lambda t: t.first_psn & MASK),
    "last_psn": ("UInt32", lambda t: t.last_psn & MASK),
    "immediate": ("UInt32", _attribute("immediate")),
    "invalidate_rkey": ("UInt32", _attribute("invalidate_rkey")),
    "remote_va": ("UInt64", _attribute("remote_va")),
    "rkey": ("UInt32", _attribute("rkey")),
    "first_ns": ("Int64", _attribute("first_ns")),
    "last_ns": ("Int64", _attribute("last_ns")),
    "acked_ns": ("Int64", _attribute("acked_ns")),
    **{
        name: ("UInt32", _attribute(name))
        for name in ("retransmitted_packets", "naks", "rnr_naks", "timeouts", "duplicates")
    },
    "missing_packets": ("UInt32", _missing),
    "wr_id": ("UInt64", _wr("wr_id")),
    "wr_opcode": ("String", _wr("opcode")),
    "wr_posted_ns": ("Int64", _wr("posted_ns")),
    "wr_matched_by": ("String", _wr("matched_by")),
    "wc_status": ("String", _wc("status")),
    "wc_polled_ns": ("Int64", _wc("polled_ns")),
    "first_file": ("UInt32", lambda t: t.first_frame >> FRAME_BITS),
    "first_frame": ("Int64", lambda t: t.first_frame & FRAME_MASK),
    "last_file": ("UInt32", lambda t: t.last_frame >> FRAME_BITS),
    "last_frame": ("Int64", lambda t: t.last_frame & FRAME_MASK),
    "acked_frame": ("Int64", lambda t: None if t.acked_frame is None else t.acked_frame & FRAME_MASK),
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
