"""The table of transfers: a row for each, with its work request, completion and times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rocekit.correlate.time_split import recovery_ns, sent_again_later_ns
from rocekit.explanation.transfer_columns import TransferColumns
from rocekit.files.frame_names import FRAME_BITS, FRAME_MASK
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
    off = np.zeros(len(transfers), np.int64)
    if ahead:
        for at, t in columns.those("particular"):
            off[at] = 0 if t.wr is None else ahead.get(t.wr.qp.host, 0)
        own_clock = pl.Series(values=off)
    recovery = np.zeros(len(transfers), np.int64)
    again = _Sparse(columns)
    for at, t in columns.those("eventful"):
        recovery[at] = recovery_ns(t)
        again.put(at, sent_again_later_ns(t, int(off[at])))
    first, last = pl.col("first_ns"), pl.col("last_ns")
    posted, polled = pl.col("wr_posted_ns") - own_clock, pl.col("wc_polled_ns") - own_clock
    # An ACK behind the completion is not what completed the message.
    acked = pl.when(polled < pl.col("acked_ns")).then(None).otherwise(pl.col("acked_ns"))
    end = pl.coalesce(_series(pl, again, "Int64"), acked, "last_ns")
    return pl.DataFrame(series).with_columns(
        software_ns=pl.when(first >= posted).then(first - posted),
        sending_ns=pl.max_horizontal(last - first, 0),
        wire_ns=end - first,
        recovery_ns=pl.Series(values=recovery),
        completion_ns=pl.when(polled >= end).then(polled - end),
        total_ns=polled - posted,
    )


class _Sparse:
    """A column that few transfers have: the places of those that do, and what they have."""

    def __init__(self, columns: TransferColumns) -> None:
        self.size = len(columns)
        self.places: list[int] = []
        self.values: list[Any] = []

    def put(self, place: int, value: Any) -> None:
        """What one has; None: nothing."""
        if value is not None:
            self.places.append(place)
            self.values.append(value)


class _Known(NamedTuple):
    """A column of numbers that are null where they are not known."""

    values: NDArray[Any]
    known: NDArray[np.bool_]


def _series(pl: Any, values: Any, kind: str) -> Any:
    """A column of this type of polars."""
    dtype = getattr(pl, kind)
    if isinstance(values, np.ndarray):
        return pl.Series(values=values).cast(dtype)
    if isinstance(values, _Known):
        numbers, known = values
        if known.all():
            return pl.Series(values=numbers).cast(dtype)
        # What is not known may be no number of this type.
        return pl.Series(values=np.where(known, numbers, 0)).cast(dtype).set(pl.Series(values=~known), None)
    if isinstance(values, _Sparse):
        empty = pl.Series([None], dtype=dtype).new_from_index(0, values.size)
        return empty.scatter(values.places, pl.Series(values.values, dtype=dtype)) if values.places else empty
    return values


_Maker = Callable[[TransferColumns], Any]


def _number(name: str, limit: int | None = None) -> _Maker:
    """A number that each has; only its bits in ``limit``."""
    return lambda c: c.numbers(name) if limit is None else c.numbers(name) & limit


def _word(name: str) -> _Maker:
    """A word that each has."""

    def made(c: TransferColumns) -> Any:
        import polars as pl

        return pl.Series(c.words, dtype=pl.String).gather(pl.Series(values=c.numbers(name)))

    return made


def _particular(name: str, attribute: str = "") -> _Maker:
    """One of a transfer's ``Particulars``, or an attribute of it."""

    def made(c: TransferColumns) -> _Sparse:
        found = _Sparse(c)
        for at, transfer in c.those("particular"):
            value = getattr(transfer, name)
            found.put(at, getattr(value, attribute) if attribute and value is not None else value)
        return found

    return made


def _file(name: str) -> _Maker:
    return lambda c: c.numbers(name) >> FRAME_BITS


def _of_way(value: Callable[[Connection, int], Any], kind: str) -> _Maker:
    """What a connection and its requester's side have: looked up once for each."""

    def made(c: TransferColumns) -> Any:
        import polars as pl

        firsts, number = c.by_way
        each = [value(c.transfers[i].connection, c.transfers[i].side) for i in firsts.tolist()]
        return pl.Series(each, dtype=getattr(pl, kind)).gather(pl.Series(values=number))

    return made


def _missing(c: TransferColumns) -> Any:
    missing = np.zeros(len(c), np.int64)
    for at, transfer in c.those("lacks"):
        missing[at] = len(transfer.missing) + len(transfer.responses_missing)
    return missing


_TRANSFER: Final[dict[str, tuple[str, _Maker]]] = {
    "id": ("UInt32", _number("id")),
    "connection": ("UInt32", _number("connection")),
    "transport": ("String", _of_way(lambda c, side: c.transport, "String")),
    "requester_ip": ("String", _of_way(lambda c, side: c.ips[side], "String")),
    "requester_qpn": ("UInt32", _of_way(lambda c, side: c.qpns[side], "UInt32")),
    "responder_ip": ("String", _of_way(lambda c, side: c.ips[1 - side], "String")),
    "responder_qpn": ("UInt32", _of_way(lambda c, side: c.qpns[1 - side], "UInt32")),
    "operation": ("String", _word("operation")),
    "status": ("String", _word("status")),
    "bytes": ("UInt64", _number("bytes")),
    "packets": ("UInt32", _number("packets")),
    "first_psn": ("UInt32", _number("first_psn", MASK)),
    "last_psn": ("UInt32", _number("last_psn", MASK)),
    "immediate": ("UInt32", _particular("immediate")),
    "invalidate_rkey": ("UInt32", _particular("invalidate_rkey")),
    "remote_va": ("UInt64", lambda c: _Known(c.remote_va, c.numbers("key") >= 0)),
    "rkey": ("UInt32", lambda c: _Known(c.numbers("key"), c.numbers("key") >= 0)),
    "first_ns": ("Int64", _number("first_ns")),
    "last_ns": ("Int64", _number("last_ns")),
    "acked_ns": ("Int64", lambda c: _Known(c.numbers("ack_ns"), c.have("acked"))),
    **{
        name: ("UInt32", _number(name))
        for name in ("retransmitted_packets", "naks", "rnr_naks", "timeouts", "duplicates")
    },
    "missing_packets": ("UInt32", _missing),
    "wr_id": ("UInt64", _particular("wr", "wr_id")),
    "wr_opcode": ("String", _particular("wr", "opcode")),
    "wr_posted_ns": ("Int64", _particular("wr", "posted_ns")),
    "wr_matched_by": ("String", _particular("wr", "matched_by")),
    "wc_status": ("String", _particular("wc", "status")),
    "wc_polled_ns": ("Int64", _particular("wc", "polled_ns")),
    "first_file": ("UInt32", _file("first_frame")),
    "first_frame": ("Int64", _number("first_frame", FRAME_MASK)),
    "last_file": ("UInt32", _file("last_frame")),
    "last_frame": ("Int64", _number("last_frame", FRAME_MASK)),
    "acked_frame": (
        "Int64",
        lambda c: _Known(c.numbers("ack_frame") & FRAME_MASK, c.numbers("ack_frame") >= 0),
    ),
}
