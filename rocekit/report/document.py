"""The document inside a report's page: names and words as JSON, numbers as columns.

Times are ns since the capture's first packet, so that JavaScript's numbers hold them; −1 means none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.explanation.event_steps import syndrome_words
from rocekit.explanation.topology import topology
from rocekit.explanation.transfer import explain, operation_name
from rocekit.files.frame_names import FRAME_BITS, frame_name
from rocekit.findings.alike import AlikeFindings, gathered
from rocekit.findings.stories import USED_AGAIN
from rocekit.findings.stories.stalls import stalled_ns
from rocekit.report.happenings import happenings, journal_times, timeout_words
from rocekit.report.measured_waits import measured_waits, wait_words
from rocekit.report.text import capture_point_lines, no_findings
from rocekit.wire.opcodes import opcode_words
from rocekit.wire.words import moment

if TYPE_CHECKING:
    from rocekit.explanation.contents import Contents
    from rocekit.explanation.results import Results
    from rocekit.findings import Finding
    from rocekit.findings.evidence import Evidence
    from rocekit.report.happenings import Happening
    from rocekit.report.lanes import Lanes
    from rocekit.track.connections import Connection
    from rocekit.track.transfers import Transfer

SCHEMA: Final = "rocekit-report/1"
#: Rows of packets in a page; of more packets, runs of plain ones share a row.
MAX_ROWS: Final = 1_200_000
#: Transfers whose steps are in the document; the page shows others from their columns.
MAX_STORIES: Final = 2_000
#: Happenings with words; more of them are only drawn and counted.
MAX_WORDS: Final = 50_000
#: Cases of a finding, to step through.
MAX_CASES: Final = 100

Meta = dict[str, Any]
Columns = dict[str, NDArray[Any]]


def _notice(contents: Contents) -> str | None:
    """What must be said before all else; None: nothing."""
    said = [] if contents.one_direction is None else [contents.one_direction]
    if contents.notice is not None:
        said += [contents.notice, contents.next_step or ""]
    return " ".join(said) or None


def document(analysis: Results, lanes: Lanes) -> tuple[Meta, Columns]:
    """Everything that the page shows: JSON, and columns by name."""
    origin = analysis.capture.first_ns or 0
    shown = lanes.thinned(MAX_ROWS)
    found = happenings(analysis)
    columns = _packet_columns(shown, origin)
    transfer_meta, transfer_columns = _transfers(analysis, origin)
    happening_meta, happening_columns = _happenings(found, origin)
    columns |= transfer_columns | happening_columns
    capture = analysis.capture.to_dict()
    contents = analysis.capture.contents
    measured = measured_waits(found)
    known, unknown = capture_point_lines(analysis)
    meta: Meta = {
        "schema": SCHEMA,
        "capture": {
            **{k: v for k, v in capture.items() if k not in ("first_ns", "last_ns")},
            "began": None if analysis.capture.first_ns is None else moment(analysis.capture.first_ns),
            "duration_ns": (analysis.capture.last_ns or 0) - origin,
            "stalled_ns": 0 if analysis.evidence is None else _stalled_ns(analysis.evidence),
            "places": [*_relations(analysis), *(line.strip() for line in known)],
            "unknown": [*unknown, *([] if analysis.journal is None else analysis.journal.lacking)],
            "paths": _paths(analysis),
            "nothing": contents.refusal("judge"),
            "notice": _notice(contents),
            "no_findings": no_findings(contents),
        },
        "opcodes": {str(v): opcode_words(v) for v in _different(shown.opcode)},
        "syndromes": {str(v): syndrome_words(v) for v in _different(shown.syndrome)},
        "rows_stand_for": len(lanes),
        "frame_bits": FRAME_BITS,
        "connections": [_connection(c, measured.get(c.id, {})) for c in analysis.connections],
        "findings": _findings(analysis, lanes, found, origin),
        "transfers": transfer_meta,
        "left_out": analysis.left_out.total(),
        "happenings": happening_meta,
        "journal": analysis.journal is not None,
        "stories": _stories(analysis, origin),
        "topology": None if analysis.evidence is None else topology(analysis).to_dict(),
    }
    return meta, columns


def _relations(analysis: Results) -> list[str]:
    """What is to be said of several captures that are not of the same traffic."""
    found = analysis.capture.relations
    return [] if found is None else found.lines(analysis.capture.names)


def _paths(analysis: Results) -> list[Meta]:
    """What happened between the capture points."""
    found, names = analysis.capture.paths, analysis.capture.names
    return [
        {
            "way": f"{p.src} → {p.dst}",
            "between": f"{names[p.first]} → {names[p.second]}",
            "packets": p.packets,
            "missing": p.missing,
            "missed_second": p.missed_second,
            "overtaken": p.overtaken,
            "doubled": p.doubled,
            "only_second": p.only_second,
            "outside": p.outside + p.outside_second,
        }
        for p in (() if found is None else found.every)
    ]


def _stalled_ns(evidence: Evidence) -> int:
    """How long at least one connection made no progress; a QP that is used again was not stopped before."""
    return stalled_ns([story for story in evidence.stories if story.rule != USED_AGAIN])


def _different(values: NDArray[np.uint8]) -> list[int]:
    """The different values, sorted."""
    return np.flatnonzero(np.bincount(values)).tolist()


def _packet_columns(lanes: Lanes, origin: int) -> Columns:
    marks = lanes.marks
    return {
        "lane_first": lanes.first,
        "time": lanes.time_ns - origin,
        "frame": lanes.frame,
        "psn": lanes.psn,
        "span": lanes.span,
        "opcode": lanes.opcode,
        "bytes": lanes.bytes,
        "syndrome": lanes.syndrome,
        "packets": lanes.packets,
        "round": lanes.round,
        "flags": lanes.flags,
        "acked": lanes.acked,
        "outstanding": lanes.outstanding,
        "outstanding_bytes": lanes.outstanding_bytes,
        "rtt": lanes.rtt_ns,
        "mark_kind": marks.kind,
        "mark_lane": marks.lane,
        "mark_time": marks.time_ns - origin,
        "mark_frame": marks.frame,
    }


def _connection(connection: Connection, waits: Mapping[int, Sequence[int]]) -> Meta:
    return connection.to_dict() | {
        "used_by": None if connection.application is None else str(connection.application),
        "timeout": [timeout_words(connection, side).removeprefix("; ") for side in (0, 1)],
        "waits": [wait_words(connection, side, waits.get(side, ())) for side in (0, 1)],
        "doubled": connection.duplicates,
        "bad_icrc": connection.bad_icrc_count,
        "first_frame_closed": connection.closed_frame,
    }


def _transfers(analysis: Results, origin: int) -> tuple[Meta, Columns]:
    every = analysis.transfers
    names: dict[str, list[str]] = {"operations": [], "statuses": [], "completions": []}
    places: dict[str, dict[str, int]] = {kind: {} for kind in names}

    def number(kind: str, name: str) -> int:
        known = places[kind]
        if name not in known:
            known[name] = len(known)
            names[kind].append(name)
        return known[name]

    def relative(time_ns: int | None) -> int:
        return -1 if time_ns is None else time_ns - origin

    times = [journal_times(t, analysis) for t in every] if analysis.journal is not None else []
    lists: dict[str, list[int]] = {
        "id": [t.id for t in every],
        "lane": [2 * t.connection.id + t.side for t in every],
        "operation": [number("operations", _operation(t)) for t in every],
        "status": [number("statuses", t.status) for t in every],
        "bytes": [t.bytes for t in every],
        "packets": [t.packets for t in every],
        "psn": [t.first_psn for t in every],
        "last_psn": [t.last_psn for t in every],
        "first": [t.first_ns - origin for t in every],
        "last": [t.last_ns - origin for t in every],
        "acked": [relative(t.acked_ns) for t in every],
        "again": [t.retransmitted_packets for t in every],
        "naks": [t.naks for t in every],
        "rnrs": [t.rnr_naks for t in every],
        "timeouts": [t.timeouts for t in every],
        "events": [len(t.events) for t in every],
        "first_frame": [t.first_frame for t in every],
        "last_frame": [t.last_frame for t in every],
    }
    wr_ids: list[str | None] = []
    if times:
        lists["posted"] = [relative(posted) for posted, _ in times]
        lists["polled"] = [relative(polled) for _, polled in times]
        lists["completion"] = [-1 if t.wc is None else number("completions", t.wc.status) for t in every]
        wr_ids = [None if t.wr is None else str(t.wr.wr_id) for t in every]
    columns: Columns = {f"t_{name}": np.array(values, np.int64) for name, values in lists.items()}
    return {**names, "wr_ids": wr_ids}, columns


def _operation(transfer: Transfer) -> str:
    """The operation, with its immediate or invalidate."""
    suffix = "+imm" * transfer.with_immediate + "+inv" * transfer.with_invalidate
    return transfer.operation + suffix


def _happenings(found: Sequence[Happening], origin: int) -> tuple[Meta, Columns]:
    kinds = sorted({h.kind for h in found})
    place = {kind: n for n, kind in enumerate(kinds)}
    lists = {
        "kind": [place[h.kind] for h in found],
        "lane": [h.lane for h in found],
        "time": [h.time_ns - origin for h in found],
        "from": [h.from_ns - origin for h in found],
        "until": [h.until_ns - origin for h in found],
        "frame": [h.frame for h in found],
        "psn": [h.psn for h in found],
        "last_psn": [h.last_psn for h in found],
        "transfer": [-1 if h.transfer is None else h.transfer for h in found],
    }
    words = [[h.what, h.detail, *([h.label] if h.label else [])] for h in found[:MAX_WORDS]]
    return {"kinds": kinds, "words": words}, {f"h_{k}": np.array(v, np.int64) for k, v in lists.items()}


def _stories(analysis: Results, origin: int) -> Meta:
    """The explanations of troubled transfers first, then of others up to ``MAX_STORIES``."""
    troubled = [t for t in analysis.transfers if not t.clean]
    plain = [t for t in analysis.transfers if t.clean]
    chosen = (sorted(troubled, key=lambda t: -len(t.events)) + plain)[:MAX_STORIES]
    return {str(t.id): _story(t, analysis, origin) for t in chosen}


def _story(transfer: Transfer, analysis: Results, origin: int) -> Meta:
    explained = explain(transfer, analysis)
    return {
        "title": f"{operation_name(transfer)}",
        "steps": [[s.time_ns - origin, s.what, s.detail, int(s.trouble)] for s in explained.summed_steps()],
        "verdict": explained.verdict,
        "notes": list(explained.notes),
    }


def _findings(analysis: Results, lanes: Lanes, found: Sequence[Happening], origin: int) -> list[Meta]:
    places = FindingPlaces(lanes, analysis.findings, found)
    several = analysis.capture.several
    number = {id(f): k for k, f in enumerate(analysis.findings)}
    kinds = [kind for kind in gathered(analysis.findings) if isinstance(kind, AlikeFindings)]
    alike = {id(f): kind for kind in kinds for f in kind.findings}
    return [
        {
            "rule": f.rule,
            "severity": f.severity,
            "title": f.title,
            "advice": f.advice,
            "connection": None if f.connection is None else f.connection.id,
            "transfer": None if f.transfer is None else f.transfer.id,
            "frames": [frame_name(n, several=several) for n in f.frames],
            "cost": {
                name: f.evidence[name]
                for name in ("added_ns", "repeated_packets", "repeated_bytes")
                if isinstance(f.evidence.get(name), int) and f.evidence[name]
            },
            "place": places.of(f, origin),
            # Many alike ones are one card: that of the worst, with a title for all.
            "worst": None if id(f) not in alike else number[id(alike[id(f)].worst)],
            "all": alike[id(f)].title() if id(f) in alike and alike[id(f)].worst is f else None,
        }
        for f in analysis.findings
    ]


class FindingPlaces:
    """Where the frames of findings are among the packets of lanes."""

    def __init__(self, lanes: Lanes, findings: Sequence[Finding], found: Sequence[Happening]) -> None:
        self._lanes = lanes
        #: The silence before a timeout, and the wait after an RNR NAK, by lane and frame.
        self._waits = {(h.lane, h.frame): (h.from_ns, h.until_ns) for h in found if h.until_ns > h.from_ns}
        wanted = {frame for finding in findings for frame in (*finding.frames, *_worst(finding))}
        wanted.update(frame for f in findings for frames in _case_frames(f) for frame in frames)
        rows = np.flatnonzero(np.isin(lanes.frame, np.array(list(wanted), np.int64)))
        self._order = rows[np.argsort(lanes.frame[rows], kind="stable")]
        self._frames = lanes.frame[self._order]

    def rows(self, frames: Sequence[int]) -> NDArray[np.int64]:
        """The rows of these frame references, without those that are in no lane."""
        wanted = np.array(sorted(frames), np.int64)
        if not len(self._frames) or not len(wanted):
            return np.empty(0, np.int64)
        at = np.minimum(np.searchsorted(self._frames, wanted), len(self._frames) - 1)
        return self._order[at[self._frames[at] == wanted]]

    def of(self, finding: Finding, origin: int) -> Meta | None:
        """The lane and time of a finding: its worst case, or else its first; None without packets."""
        lanes = self._lanes
        rows = self.rows(finding.frames)
        transfer = finding.transfer
        if len(rows):
            lane_of = self._lane_of(rows)
            lane = int(np.bincount(lane_of).argmax())
            rows = rows[lane_of == lane]
        elif transfer is not None:
            lane = 2 * transfer.connection.id + transfer.side
        elif finding.connection is not None:
            lane = 2 * finding.connection.id
            lane += int(lanes.first[lane] == lanes.first[lane + 1] and lanes.first[lane + 1] < len(lanes))
        else:
            return None
        worst = _worst(finding)
        focus = self.rows(worst) if worst else rows
        focus = focus[self._lane_of(focus) == lane] if len(focus) else rows
        chosen = focus if len(focus) else rows
        own = (self.rows(frames) for frames in _case_frames(finding))
        named = [self._spans(rows_[self._lane_of(rows_) == lane], lane, origin) for rows_ in own]
        cases = sorted([spans[0][0], max(end for _, end in spans)] for spans in named if spans)
        if not cases:
            cases = self._spans(rows, lane, origin)
        if len(chosen):
            spans = self._spans(chosen, lane, origin)
            span = [spans[0][0], max(end for _, end in spans)]
        elif transfer is not None:
            span = [transfer.first_ns - origin, transfer.last_ns - origin]
        else:
            span = None
        return {
            "lane": lane,
            "span": span,
            "cases": cases[:MAX_CASES],
            "at": np.column_stack([lanes.time_ns[rows] - origin, lanes.psn[rows]]).tolist(),
        }

    def _lane_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self._lanes.first, rows, "right") - 1

    def _spans(self, rows: NDArray[np.int64], lane: int, origin: int) -> list[list[int]]:
        """The times of packets, each with the wait that it ended; those that overlap are one."""
        spans = []
        for row in rows.tolist():
            time = int(self._lanes.time_ns[row])
            begin, end = self._waits.get((lane, int(self._lanes.frame[row])), (time, time))
            spans.append([min(begin, time) - origin, max(end, time) - origin])
        merged: list[list[int]] = []
        for begin, end in sorted(spans):
            if merged and begin <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            else:
                merged.append([begin, end])
        return merged


def _case_frames(finding: Finding) -> list[list[int]]:
    """The frames of each case that a finding lists, without cases that name none."""
    listed = finding.evidence.get("cases")
    cases = [case for case in listed if isinstance(case, Mapping)] if isinstance(listed, Sequence) else []
    named = [[v for k, v in case.items() if k.endswith("_frame") and isinstance(v, int)] for case in cases]
    return [frames for frames in named if frames]


def _worst(finding: Finding) -> Sequence[int]:
    """The frames of a finding's worst case, if it names one."""
    worst = finding.evidence.get("worst")
    return worst.get("frames") or () if isinstance(worst, dict) else ()
