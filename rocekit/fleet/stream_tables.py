"""The rows of one stream: analysed as ``rocekit analyze`` does it, and put into the tables of ``schema``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rocekit.analysis import analyze, find_journals
from rocekit.errors import RocekitError
from rocekit.files.frame_names import FRAME_MASK
from rocekit.findings.stories.copies import RESPONSE_LOSSES, lost_copies
from rocekit.fleet.rates import Meter
from rocekit.fleet.schema import TABLES, polars_schema
from rocekit.fleet.streams import Stream
from rocekit.track.passes import BEFORE, BEHIND

if TYPE_CHECKING:
    import polars as pl

    from rocekit.analysis import Analysis
    from rocekit.findings import Finding
    from rocekit.findings.stories.story import Story

Rows = Mapping[str, Sequence[Any]]

#: A capture of more bytes is split, by default.
SPLIT_BYTES: Final = 8 << 30

#: Rules by whose stories packets were lost.
LOSSES: Final = frozenset({"loss", "tail-loss", "ack-loss", "implied-nak"})


class LakeSettings(NamedTuple):
    """What decides about the rows of every stream; a LAKE is made with one of these.

    Attributes:
        transfers: how many transfers without trouble are kept of a capture, the slowest; None: all.
        check_icrc: whether ICRCs are verified.
        split_bytes: a capture of more bytes is split into parts of about so many.
    """

    transfers: int | None = 100
    check_icrc: bool = True
    split_bytes: int = SPLIT_BYTES


class StreamResult(NamedTuple):
    """The tables of a stream, and what a progress line needs."""

    tables: dict[str, pl.DataFrame]
    first_ns: int | None
    packets: int
    error: str | None


def stream_tables(stream: Stream, capture: str, size: int, settings: LakeSettings) -> StreamResult:
    """Analyse a stream. A capture that cannot be read is a row with its error.

    Args:
        capture: the id of the stream; size: bytes of its files.
    """
    meter = Meter()
    journals: list[Path] | None = None
    try:
        journals = find_journals(stream.name)
        analysis = analyze(
            stream.name,
            journals=journals,  # none is none: the folder is not looked through again
            check_icrc=settings.check_icrc,
            plain=settings.transfers,
            watch=meter,
        )
    except RocekitError as error:
        own = _own(stream, capture, size, journals)
        row = {name: [own.get(name, str(error) if name == "error" else None)] for name in TABLES["captures"]}
        return StreamResult({"captures": _frame("captures", row)}, None, 0, str(error))
    return tables_of(analysis, meter, stream, capture, size, journals)


def tables_of(
    analysis: Analysis, meter: Meter, stream: Stream, capture: str, size: int, journals: Sequence[Path]
) -> StreamResult:
    """The tables of a stream that was analysed."""
    first = stream.part is None or stream.part.number == 1  # has what is of the whole capture
    summary = _own(stream, capture, size, journals) | _summary(analysis, first=first)
    rows: dict[str, Rows] = {
        "captures": {name: [value] for name, value in summary.items()},
        "connections": _connections(analysis),
        "transfers": _transfers(analysis),
        "findings": findings_rows(analysis.findings, several=False),
        "troubles": _troubles(analysis),
        "rates": _rates(analysis, meter),
        "counters": _counters(analysis),
        "cm": _cm(analysis),
        "fingerprints": meter.fingerprints(),
    }
    tables = {name: _frame(name, own_rows, capture) for name, own_rows in rows.items()}
    return StreamResult(
        {name: table for name, table in tables.items() if len(table)},
        analysis.capture.first_ns,
        analysis.capture.counts.roce_packets,
        None,
    )


def _own(stream: Stream, capture: str, size: int, journals: Sequence[Path] | None) -> dict[str, Any]:
    """Of a capture's row, what is known without reading it."""
    first = stream.part is None or stream.part.number == 1
    return {
        "capture": capture,
        "source": stream.name,
        "part": None if stream.part is None else f"{stream.part.number}/{stream.part.of}",
        "files": len(stream.files),
        "bytes": size if first else 0,
        "journals": None if journals is None else json.dumps([str(j) for j in journals]),
    }


def _frame(table: str, rows: Rows, capture: str | None = None) -> pl.DataFrame:
    """Rows as a data frame with the columns and types of the table."""
    import polars as pl

    columns: dict[str, Any] = {}
    length = len(next((v for k, v in rows.items() if k != "capture"), ()))
    for name, dtype in polars_schema(table).items():
        values = [capture] * length if name == "capture" and name not in rows else rows[name]
        columns[name] = pl.Series(name, values, dtype=dtype, strict=False)
    return pl.DataFrame(columns)


def table_of(table: str, rows: Rows, capture: str) -> pl.DataFrame:
    """Rows as a data frame with the columns and types of the table; ``capture`` in each."""
    return _frame(table, rows, capture)


def _summary(analysis: Analysis, *, first: bool) -> dict[str, Any]:
    """The capture's row.

    Args:
        first: whether what is of the whole capture is counted here: frames that are in every part.
    """
    capture, counts = analysis.capture, analysis.capture.counts
    vantages = [v for vs in analysis.vantages().of_files().values() for v in vs]
    places = {v.host for v in vantages}
    host = next(iter(places)) if len(places) == 1 else None
    damage = "; ".join(f"{words}" for _, words in capture.damage[:3])
    contents = capture.contents
    return {
        "error": None,
        "damage": damage or None,
        "frames": counts.frames if first else counts.roce_packets,
        "roce_packets": counts.roce_packets,
        "first_ns": capture.first_ns,
        "last_ns": capture.last_ns,
        "dropped": capture.dropped if first else None,
        "taken_at": host,
        "taken_surely": None if host is None else all(v.certain for v in vantages),
        "connections": len(analysis.connections),
        "transfers": len(analysis.transfers) + analysis.left_out.total(),
        "findings": len(analysis.findings),
        "notice": contents.refusal("judge") or contents.notice,
    }


def _columns(records: Iterable[Any], columns: Mapping[str, Callable[[Any], Any]]) -> Rows:
    kept = list(records)
    return {name: [value(record) for record in kept] for name, value in columns.items()}


def _attribute(name: str) -> Callable[[Any], Any]:
    return lambda record: getattr(record, name)


def _number(frame: int) -> int:
    return frame & FRAME_MASK


def _connections(analysis: Analysis) -> Rows:
    same = (
        *("transport", "paired_by", "first_ns", "last_ns", "packets", "bytes", "transfers"),
        *("retransmitted_packets", "naks", "rnr_naks", "cnps", "ce_marked", "duplicates"),
    )
    return _columns(
        analysis.connections,
        {
            "connection": _attribute("id"),
            **{name: _attribute(name) for name in same},
            "a_ip": lambda c: c.ips[0],
            "a_qpn": lambda c: c.qpns[0],
            "b_ip": lambda c: c.ips[1],
            "b_qpn": lambda c: c.qpns[1],
            "path_mtu_bytes": _attribute("path_mtu"),
            "used_by": lambda c: None if c.application is None else str(c.application),
            "bad_icrc_packets": _attribute("bad_icrc_count"),
        },
    )


def _transfers(analysis: Analysis) -> Rows:
    same = (
        *("operation", "status", "bytes", "packets", "first_ns", "last_ns", "acked_ns"),
        *("retransmitted_packets", "naks", "rnr_naks", "timeouts"),
    )
    return _columns(
        analysis.transfers,
        {
            "transfer": _attribute("id"),
            "connection": lambda t: t.connection.id,
            **{name: _attribute(name) for name in same},
            "requester_ip": lambda t: t.requester["ip"],
            "requester_qpn": lambda t: t.requester["qpn"],
            "responder_ip": lambda t: t.responder["ip"],
            "responder_qpn": lambda t: t.responder["qpn"],
            "wr_id": lambda t: None if t.wr is None else str(t.wr.wr_id),
            "wc_status": lambda t: None if t.wc is None else t.wc.status,
            "troubled": lambda t: not t.clean,
        },
    )


def findings_rows(findings: Sequence[Finding], *, several: bool) -> Rows:
    """Findings as columns; those of several captures have frames as ``i:n`` in their evidence."""
    dicts = [finding.to_dict(several=several) for finding in findings]
    return {
        "finding": list(range(len(findings))),
        **{name: [d[name] for d in dicts] for name in ("rule", "severity", "title", "transfer", "advice")},
        "connection": [d["connection"] for d in dicts],
        "a_ip": [None if f.connection is None else f.connection.ips[0] for f in findings],
        "b_ip": [None if f.connection is None else f.connection.ips[1] for f in findings],
        "first_ns": [_first_ns(f.evidence) for f in findings],
        "first_frame": [_number(f.frames[0]) if f.frames else None for f in findings],
        **{
            name: [_whole(f.evidence.get(name)) for f in findings]
            for name in ("lost_packets", "probably_lost_packets")
        },
        "added_ns": [_whole(f.evidence.get("added_ns")) for f in findings],
        "evidence": [json.dumps(d["evidence"], ensure_ascii=False) for d in dicts],
    }


def _whole(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) else None


def _first_ns(evidence: Mapping[str, Any]) -> int | None:
    """The earliest time that a finding's evidence has of its cases."""
    cases = evidence.get("cases")
    times = [c.get("time_ns") for c in cases if isinstance(c, Mapping)] if isinstance(cases, Sequence) else []
    times.append(evidence.get("time_ns", evidence.get("first_ns")))
    return min((int(t) for t in times if isinstance(t, int)), default=None)


def _troubles(analysis: Analysis) -> Rows:
    rows: list[dict[str, Any]] = []
    stories = [] if analysis.evidence is None else analysis.evidence.stories
    for story in stories:
        if story.rule:
            rows += _trouble(story)
    return {name: [row[name] for row in rows] for name in TABLES["troubles"] if name != "capture"}


def _trouble(story: Story) -> list[dict[str, Any]]:
    """A story as a row for each place of its losses; what it cost is in the first."""
    side = story.side
    responses = story.rule in RESPONSE_LOSSES or story.of_response
    src, dst = (1 - side, side) if responses else (side, 1 - side)
    lost: dict[str | None, int] = {}
    if story.rule in LOSSES:
        for copy in lost_copies(story):
            place = copy.where if copy.where in (BEFORE, BEHIND) else None
            lost[place] = lost.get(place, 0) + copy.packets
    transfer, frames, ips = story.transfer, story.first_frames(1), story.connection.ips
    return [
        {
            "time_ns": story.time_ns,
            "rule": story.rule,
            "connection": story.connection.id,
            "src": ips[src],
            "dst": ips[dst],
            "requester_ip": ips[side],
            "lost_packets": packets,
            "place": place,
            "certain": story.certain,
            "repeated_packets": 0 if number else story.repeated_packets,
            "added_ns": 0 if number else story.cost_ns,
            "transfer": None if transfer is None else transfer.id,
            "frame": _number(frames[0]) if frames else None,
        }
        for number, (place, packets) in enumerate(lost.items() or [(None, 0)])
    ]


def _rates(analysis: Analysis, meter: Meter) -> Rows:
    ways: dict[tuple[str | None, str | None, int | None], int] = {}
    for connection in analysis.connections:
        for side in (0, 1):
            src, dst, qpn, _ = connection.way_key(side)
            ways.setdefault((src, dst, qpn), connection.id)
    keys = sorted(meter.rates, key=lambda k: (k[3], k[0], k[1], k[2]))
    values = [meter.rates[key] for key in keys]
    counted = ("packets", "bytes", "ce_marked", "cnps", "naks")
    return {
        "second": [key[3] for key in keys],
        "connection": [ways.get(key[:3]) for key in keys],
        "src": [key[0] for key in keys],
        "dst": [key[1] for key in keys],
        "dst_qpn": [key[2] for key in keys],
        **{name: [int(row[i]) for row in values] for i, name in enumerate(counted)},
    }


def _counters(analysis: Analysis) -> Rows:
    same = ("host", "counter", "went_up_by", "predicted", "verdict", "words", "from_ns", "to_ns")
    return _columns(
        analysis.counters,
        {
            **{name: _attribute(name) for name in same},
            "device": lambda c: c.place.device,
            "interface": lambda c: c.place.interface,
        },
    )


def _cm(analysis: Analysis) -> Rows:
    dicts = [record.to_dict() for record in analysis.cm]
    return {
        "frame": [_number(record.frame) for record in analysis.cm],
        "time_ns": [d["time_ns"] for d in dicts],
        "message": [d["message"] for d in dicts],
        "src": [d["src"]["ip"] for d in dicts],
        "dst": [d["dst"]["ip"] for d in dicts],
        "connection": [d["connection"] for d in dicts],
        "transaction_id": [f"{d['transaction_id']:#x}" for d in dicts],
        "fields": [json.dumps(d, ensure_ascii=False) for d in dicts],
    }


def paths_of(stream: Stream) -> list[Path | str]:
    """The files that decide about a stream's rows: its captures and their journals.

    Raises:
        RocekitError: they cannot be listed.
    """
    return [*stream.files, *find_journals(stream.name)]
