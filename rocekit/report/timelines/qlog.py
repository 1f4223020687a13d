"""An analysis as qlog: one event a line, in the order of time (draft-ietf-quic-qlog-main-schema, JSON-SEQ).

docs/formats.md has the events. Times are milliseconds since the epoch, as qlog has them; ``time_ns`` in the
data is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from heapq import merge
from itertools import islice
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np

from rocekit import wire
from rocekit.explanation.packets import CAUSES, ROLES, PacketStories
from rocekit.files.frame_names import frame_name
from rocekit.report import json_text
from rocekit.report.happenings import CM, FAILED, happenings, journal_times
from rocekit.wire.psn import MASK

if TYPE_CHECKING:
    from rocekit.explanation.results import Results
    from rocekit.track.transfers import Transfer

EVENT_SCHEMA: Final = "urn:x-rocekit:qlog:events:roce-1"
#: What begins a record of a JSON text sequence (RFC 7464).
_RECORD: Final = "\x1e"
_PIECE: Final = 10_000
#: What is told of a transfer when it begins, and when it ends.
_BEGUN: Final = ("requester", "operation", "bytes", "packets", "first_psn", "last_psn", "remote_va", "rkey")
_ENDED: Final = ("status", "retransmitted_packets", "naks", "rnr_naks", "timeouts")

#: (time_ns, order among events of one time, name, connection, data or what makes them, as there may be many)
_Event = tuple[int, int, str, "int | None", dict[str, Any] | Callable[[], dict[str, Any]]]


def write_qlog(analysis: Results, stories: PacketStories, out: IO[bytes]) -> int:
    """Write the events.

    Returns:
        how many there are.
    """
    out.write(_record(_head(analysis)).encode())
    every = merge(
        sorted(_events(analysis), key=lambda e: e[:2]), _packets(stories), key=lambda e: (e[0], e[1])
    )
    count = 0
    while lines := [_line(event) for event in islice(every, _PIECE)]:
        count += len(lines)
        out.write("".join(lines).encode())
    return count


def _record(value: object) -> str:
    return f"{_RECORD}{json_text.line(value)}\n"


def _line(event: _Event) -> str:
    time_ns, _, name, connection, made = event
    data = made() if callable(made) else made
    whole: dict[str, Any] = {"time": time_ns / 1e6, "name": name, "data": {"time_ns": time_ns} | data}
    if connection is not None:
        whole["group_id"] = str(connection)
    return _record(whole)


def _head(analysis: Results) -> dict[str, Any]:
    return {
        "file_schema": "urn:ietf:params:qlog:file:sequential",
        "serialization_format": "application/qlog+json-seq",
        "title": f"rocekit: {', '.join(analysis.capture.inputs)}",
        "trace": {
            "vantage_point": {"type": "network"},
            "common_fields": {
                "time_format": "relative_to_epoch",
                "reference_time": {"clock_type": "system", "epoch": "1970-01-01T00:00:00.000Z"},
            },
            "event_schemas": [EVENT_SCHEMA],
        },
    }


def _packets(stories: PacketStories) -> Iterator[_Event]:
    """The packets, by time."""
    p, several = stories.packets, stories.analysis.capture.several
    names = [wire.OPCODES[v].name if v in wire.OPCODES else v for v in range(256)]
    columns = ("connection", "transfer", "role", "round", "cause")
    order = np.argsort(p.time_ns, kind="stable")
    for start in range(0, len(order), _PIECE):
        rows = order[start : start + _PIECE]
        lists = [getattr(stories, name)[rows].tolist() for name in columns]
        fields = [p[name][rows].tolist() for name in ("time_ns", "opcode", "psn", "payload_length")]
        ends = [[p.addresses[k] for k in p[name][rows].tolist()] for name in ("src", "dst")]
        references = stories.reference[rows].tolist()
        for reference, connection, transfer, role, sent, cause, time, opcode, psn, length, src, dst in zip(
            references, *lists, *fields, *ends, strict=True
        ):
            data: dict[str, Any] = {
                "frame": frame_name(reference, several=several),
                "src": src,
                "dst": dst,
                "opcode": names[opcode] if opcode >= 0 else None,
                "psn": psn,
                "payload_bytes": length,
                "role": ROLES[role],
            }
            if transfer >= 0:
                data["transfer"] = transfer
            if sent > 0:
                data["round"] = sent
            if cause > 0:
                data["cause"] = CAUSES[cause]
            yield time, 5, "roce:packet", connection if connection >= 0 else None, data


def _told(transfer: Transfer, keys: tuple[str, ...]) -> dict[str, Any]:
    told = transfer.to_dict()
    return {"transfer": transfer.id} | {key: told[key] for key in keys}


def _events(analysis: Results) -> Iterator[_Event]:
    """All but the packets."""
    several = analysis.capture.several
    for connection in analysis.connections:
        told = connection.to_dict()
        own = {k: told[k] for k in ("transport", "a", "b", "paired_by", "path_mtu")}
        yield connection.first_ns or 0, 0, "roce:connection", connection.id, own
    for transfer in analysis.transfers:
        id = transfer.connection.id
        posted, polled = journal_times(transfer, analysis)
        if posted is not None:
            yield posted, 2, "verbs:wr_posted", id, partial(_told, transfer, ("wr",))
        yield transfer.first_ns, 3, "roce:transfer_begun", id, partial(_told, transfer, _BEGUN)
        ended_ns = transfer.first_ns + transfer.duration_ns
        yield ended_ns, 6, "roce:transfer_ended", id, partial(_told, transfer, _ENDED)
        if polled is not None:
            yield polled, 7, "verbs:wc_polled", id, partial(_told, transfer, ("wc",))
    for record in analysis.cm:
        told = record.to_dict(several=several)
        time, connection_id = told.pop("time_ns"), told.pop("connection")
        yield time, 4, "cm:message", connection_id, told
    for h in happenings(analysis):
        if h.kind in (CM, FAILED):
            continue
        data = {
            "frame": frame_name(h.frame, several=several) if h.frame else None,
            "first_psn": h.psn & MASK,
            "last_psn": h.last_psn & MASK,
            "transfer": h.transfer,
            "from_ns": h.from_ns,
            "until_ns": h.until_ns,
            "what": h.what,
            "detail": h.detail,
        }
        yield h.time_ns, 6, f"roce:{h.kind}", h.lane // 2, data
    last = analysis.capture.last_ns or 0
    for finding in analysis.findings:
        told = finding.to_dict(several=several)
        yield last, 9, "roce:finding", told.pop("connection"), told
