"""The table of transfers: a row for each, with its work request, completion and times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from rocekit.correlate.time_split import recovery_ns, sent_again_later_ns
from rocekit.explanation.transfer_columns import TransferColumns
from rocekit.files.frame_names import FRAME_BITS, FRAME_MASK
from rocekit.track.transfers import NOTHING
from rocekit.wire.psn import MASK

if TYPE_CHECKING:
    import polars as pl

    from rocekit.explanation.results import Results
    from rocekit.track.connections import Connection
    from rocekit.track.transfers import Transfer


def transfers_table(transfers: Sequence[Transfer], analysis: Results | None) -> pl.DataFrame:
    """The table of some transfers, with the times of ``correlate.timing`` as columns."""
    import polars as pl

    columns = TransferColumns(transfers)
    series = {name: _series(pl, made(columns), kind) for name, (kind, made) in _TRANSFER.items()}
    journal = None if analysis is None else analysis.journal
    ahead = {} if journal is None else {host: clock.offset_ns for host, clock in journal.clocks.items()}
    own_clock: Any = pl.lit(0)
    off = [0] * len(transfers)
    if ahead:
        off = [0 if t.wr is None else ahead.get(t.wr.qp.host, 0) for t in transfers]
        own_clock = pl.Series(off, dtype=pl.Int64)
    recovery = [recovery_ns(t) if t.events else 0 for t in transfers]
    first, last = pl.col("first_ns"), pl.col("last_ns")
    posted, polled = pl.col("wr_posted_ns") - own_clock, pl.col("wc_polled_ns") - own_clock
    again = [sent_again_later_ns(t, o) if t.events else None for t, o in zip(transfers, off, strict=True)]
    end = pl.coalesce(pl.Series(again, dtype=pl.Int64), "acked_ns", "last_ns")
    return pl.DataFrame(series).with_columns(
        software_ns=first - posted,
        sending_ns=pl.max_horizontal(last - first, 0),
        wire_ns=end - first,
        recovery_ns=pl.Series(recovery, dtype=pl.Int64),
        completion_ns=polled - end,
        total_ns=polled - posted,
    )


def _series(pl: Any, values: Any, kind: str) -> Any:
    """A column of this type of polars, from an array or a list; None is null."""
    dtype = getattr(pl, kind)
    if isinstance(values, np.ndarray):
        return pl.Series(values=values).cast(dtype)
    if isinstance(values, pl.Series):
        return values
    if values and values.count(None) == len(values):
        return pl.Series([None], dtype=dtype).new_from_index(0, len(values))
    return pl.Series(values, dtype=dtype)


_Maker = Callable[[TransferColumns], Any]


def _number(name: str, limit: int | None = None) -> _Maker:
    """An attribute that is always a number; only its bits in ``limit``."""
    return lambda c: c.numbers(name) if limit is None else c.numbers(name) & limit


def _value(name: str) -> _Maker:
    return lambda c: c.values(name)


def _file(name: str) -> _Maker:
    return lambda c: c.numbers(name) >> FRAME_BITS


def _beside(record: str, name: str) -> _Maker:
    """An attribute of a transfer's work request or completion."""

    def made(c: TransferColumns) -> list[Any]:
        records = c.values(record)
        if records.count(None) == len(records):
            return records
        return [None if one is None else getattr(one, name) for one in records]

    return made


def _of_way(value: Callable[[Connection, int], Any], kind: str) -> _Maker:
    """What a connection and its requester's side have: looked up once for each."""

    def made(c: TransferColumns) -> Any:
        import polars as pl

        firsts, number = c.by_way
        each = [value(c.transfers[i].connection, c.transfers[i].side) for i in firsts.tolist()]
        return pl.Series(each, dtype=getattr(pl, kind)).gather(pl.Series(values=number))

    return made


def _missing(c: TransferColumns) -> Any:
    # Nearly all transfers have none, and to ask how many costs more than all else.
    missing, responses = c.values("missing"), c.values("responses_missing")
    if missing.count(NOTHING) == responses.count(NOTHING) == len(c):
        return np.zeros(len(c), np.int64)
    return [
        0 if one is NOTHING and other is NOTHING else len(one) + len(other)
        for one, other in zip(missing, responses, strict=True)
    ]


def _acked_frame(c: TransferColumns) -> Any:
    frames = c.values("acked_frame")
    if None not in frames:
        return np.fromiter(frames, np.int64, len(c)) & FRAME_MASK
    return [None if frame is None else frame & FRAME_MASK for frame in frames]


_TRANSFER: Final[dict[str, tuple[str, _Maker]]] = {
    "id": ("UInt32", _number("id")),
    "connection": ("UInt32", _number("connection.id")),
    "transport": ("String", _of_way(lambda c, side: c.transport, "String")),
    "requester_ip": ("String", _of_way(lambda c, side: c.ips[side], "String")),
    "requester_qpn": ("UInt32", _of_way(lambda c, side: c.qpns[side], "UInt32")),
    "responder_ip": ("String", _of_way(lambda c, side: c.ips[1 - side], "String")),
    "responder_qpn": ("UInt32", _of_way(lambda c, side: c.qpns[1 - side], "UInt32")),
    "operation": ("String", _value("operation")),
    "status": ("String", _value("status")),
    "bytes": ("UInt64", _number("bytes")),
    "packets": ("UInt32", _number("packets")),
    "first_psn": ("UInt32", _number("first_psn", MASK)),
    "last_psn": ("UInt32", _number("last_psn", MASK)),
    "immediate": ("UInt32", _value("immediate")),
    "invalidate_rkey": ("UInt32", _value("invalidate_rkey")),
    "remote_va": ("UInt64", _value("remote_va")),
    "rkey": ("UInt32", _value("rkey")),
    "first_ns": ("Int64", _number("first_ns")),
    "last_ns": ("Int64", _number("last_ns")),
    "acked_ns": ("Int64", _value("acked_ns")),
    **{
        name: ("UInt32", _number(name))
        for name in ("retransmitted_packets", "naks", "rnr_naks", "timeouts", "duplicates")
    },
    "missing_packets": ("UInt32", _missing),
    "wr_id": ("UInt64", _beside("wr", "wr_id")),
    "wr_opcode": ("String", _beside("wr", "opcode")),
    "wr_posted_ns": ("Int64", _beside("wr", "posted_ns")),
    "wr_matched_by": ("String", _beside("wr", "matched_by")),
    "wc_status": ("String", _beside("wc", "status")),
    "wc_polled_ns": ("Int64", _beside("wc", "polled_ns")),
    "first_file": ("UInt32", _file("first_frame")),
    "first_frame": ("Int64", _number("first_frame", FRAME_MASK)),
    "last_file": ("UInt32", _file("last_frame")),
    "last_frame": ("Int64", _number("last_frame", FRAME_MASK)),
    "acked_frame": ("Int64", _acked_frame),
}
