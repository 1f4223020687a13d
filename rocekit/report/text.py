"""What people read in a terminal: summaries, tables and stories; plain text that ``style`` may colour."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rocekit.files.frames import linktype_name
from rocekit.findings.text import finding_lines
from rocekit.wire.text_table import Style, columns, plain
from rocekit.wire.words import duration, end, moment, plural, short_size, size

if TYPE_CHECKING:
    from rocekit.explanation.results import CaptureSummary, Results
    from rocekit.track.connections import Connection
    from rocekit.track.transfers import Transfer

SHOWN_TRANSFERS = 20
SHOWN_CONNECTIONS = 100
_SHOWN_PLACES = 3
_PAIRED = {"cm": "CM exchange", "journal": "journal", "psn": "PSNs", "handshake": "handshake"}


def summary(analysis: Results, *, style: Style = plain, transfers: int | None = SHOWN_TRANSFERS) -> str:
    """An analysis in text: the capture, connections, transfers, findings.

    Args:
        transfers: how many to list, the troubled and the slowest first; None for all, in order.
    """
    lines = [*capture_lines(analysis.capture, style), *place_lines(analysis), ""]
    if analysis.connections:
        lines.append(style("Connections", "title"))
        lines += connection_lines(analysis.connections, None if transfers is None else SHOWN_CONNECTIONS)
    if analysis.cm:
        rejected = sum(r.message == "REJ" for r in analysis.cm)
        refused = f", {rejected} of them REJ" if rejected else ""
        lines.append(f"  {plural(len(analysis.cm), 'CM message')}{refused}")
    if analysis.transfers:
        lines += ["", *transfer_lines(analysis, style, transfers)]
    if analysis.journal is not None:
        lines += ["", *journal_lines(analysis, style)]
    lines += ["", *finding_lines(analysis.findings, style, several=analysis.capture.several)]
    return "\n".join(lines)


def capture_lines(capture: CaptureSummary, style: Style = plain) -> list[str]:
    counts = capture.counts
    name = ", ".join(capture.files)
    lines = [
        f"{style(name, 'title')}: {plural(counts.frames, 'frame')}, "
        f"{plural(counts.roce_packets - capture.copies, 'RoCE packet')}"
    ]
    if capture.first_ns is not None and capture.last_ns is not None:
        lines[0] += f", {duration(capture.last_ns - capture.first_ns)} from {moment(capture.first_ns)}"
    checked = counts.roce_packets - counts.unchecked_icrc
    if counts.roce_packets:
        state = "all valid" if not counts.bad_icrc else style(f"{counts.bad_icrc} WRONG", "error")
        unchecked = f", {counts.unchecked_icrc} not checkable" if counts.unchecked_icrc else ""
        lines.append(f"  ICRC: {checked:,} checked, {state}{unchecked}")
    if capture.copies:
        lines.append(f"  {plural(capture.copies, 'packet')} in more than one file, counted once")
    for alignment in capture.alignments[1:]:
        bound = "" if alignment.bound_ns is None else f" ± {duration(alignment.bound_ns)}"
        lines.append(
            f"  clock of {capture.files[alignment.file]}: {duration(alignment.offset_ns)}{bound} ahead of "
            f"{capture.files[0]}'s ({plural(alignment.common, 'packet')} in common)"
        )
    for way in capture.sightings.one_way if capture.sightings is not None else ():
        bound = "" if way.bound_ns is None else f", all ± {duration(way.bound_ns)}"
        lines.append(
            f"  {way.src} → {way.dst}: {duration(way.took.median_ns)} from {capture.files[way.first]} to "
            f"{capture.files[way.second]} (median of {way.took.count:,}; {duration(way.took.min_ns)} at the "
            f"least, {duration(way.took.p99_ns)} for 99 %{bound})"
        )
    if capture.dropped:
        lost = plural(capture.dropped, "packet")
        lines.append(style(f"  the capturing machine says it dropped {lost}", "warning"))
    for linktype, count in capture.skipped.items():
        lines.append(style(f"  left out: {plural(count, 'frame')} of {linktype_name(linktype)}", "warning"))
    if counts.malformed_packets:
        lines.append(style(f"  {plural(counts.malformed_packets, 'malformed packet')}", "warning"))
    for file, message in capture.damage[:5]:
        lines.append(style(f"  damaged: {file}: {message}", "warning"))
    if len(capture.damage) > 5:
        lines.append(style(f"  … and {len(capture.damage) - 5} more damages", "warning"))
    if capture.interrupted:
        lines.append(style("  interrupted: what follows is of the part read until then", "warning"))
    return lines


def place_lines(analysis: Results) -> list[str]:
    """Where each capture was taken: of each two hosts what can be told, each once."""
    lines = []
    for file, vantages in analysis.vantages().of_files().items():
        name = f"{analysis.capture.files[file]}: " if analysis.capture.several else ""
        told = [v for v in vantages if v.place is not None]
        lines += [f"  {name}{v}" for v in (told or vantages)[:_SHOWN_PLACES]]
    return lines


def connection_lines(connections: Sequence[Connection], limit: int | None = None) -> list[str]:
    """A line a connection; of more than ``limit`` the troubled ones and those that carried most."""
    rows = []
    shown = connections
    if limit is not None and len(connections) > limit:
        shown = sorted(heapq.nlargest(limit, connections, key=_weight), key=lambda c: c.id)
    for c in shown:
        troubles = [
            f"{count:,} {word}"
            for count, word in (
                (c.retransmitted_packets, "sent again"),
                (c.naks, "NAK"),
                (c.rnr_naks, "RNR NAK"),
                (c.cnps, "CNP"),
                (c.ce_marked, "CE"),
                (c.duplicates, "doubled"),
                (c.bad_icrc_count, "bad ICRC"),
            )
            if count
        ]
        rows.append(
            (
                str(c.id),
                c.transport,
                end(c.end(0)),
                "⇄" if c.transport != "UC" or None not in c.qpns else "→",
                end(c.end(1)),
                f"paired by {_PAIRED[c.paired_by]}" if c.paired_by else "",
                f"MTU {c.path_mtu}" if c.path_mtu else "",
                plural(c.packets, "packet"),
                plural(c.transfers, "transfer"),
                short_size(c.bytes),
                ", ".join(troubles),
            )
        )
    lines = columns(rows, right=frozenset({0, 7, 8, 9}))
    if len(shown) < len(connections):
        more = plural(len(connections) - len(shown), "connection")
        lines.append(f"  … and {more} with less trouble and fewer packets (--all lists every one)")
    return lines


def _weight(c: Connection) -> tuple[int, int]:
    return c.retransmitted_packets + c.naks + c.rnr_naks + c.bad_icrc_count, c.packets


def transfer_lines(analysis: Results, style: Style, limit: int | None) -> list[str]:
    transfers = list(analysis.transfers)
    states = Counter(t.status for t in transfers) + analysis.left_out
    title = plural(states.total(), "transfer")
    head = f"{title}: " + ", ".join(f"{n:,} {s}" for s, n in sorted(states.items(), key=lambda x: -x[1]))
    shown = transfers
    if limit is not None and states.total() > limit:
        shown = heapq.nsmallest(limit, transfers, key=lambda t: (t.clean, -t.duration_ns))
        head += f"; the {limit} {'slowest' if shown[0].clean else 'most troubled and slowest'}:"
    rows = [("", "", "", "", "bytes", "packets", "PSN", "took", "status", "")]
    rows += [transfer_row(t) for t in shown]
    return [style(head, "title"), *columns(rows, right=frozenset({0, 4, 5, 6, 7}))]


def transfer_row(t: Transfer) -> tuple[str, str, str, str, str, str, str, str, str, str]:
    """The cells of a transfer's line."""
    from rocekit.wire.psn import MASK

    troubles = [
        f"{count:,} {word}"
        for count, word in (
            (t.retransmitted_packets, "sent again"),
            (t.naks, "NAK"),
            (t.rnr_naks, "RNR NAK"),
            (t.timeouts, "timeout"),
            (t.duplicates, "doubled"),
        )
        if count
    ]
    if t.wr is not None:
        troubles.insert(0, f"WR {t.wr.wr_id}" + (f" {t.wc.status}" if t.wc is not None else ""))
    return (
        str(t.id),
        t.operation
        + ("+imm" if t.immediate is not None else "")
        + ("+inv" if t.invalidate_rkey is not None else ""),
        end(t.requester),
        f"→ {end(t.responder)}",
        f"{t.bytes:,}",
        f"{t.packets:,}",
        str(t.first_psn & MASK),
        duration(t.duration_ns),
        t.status,
        ", ".join(troubles),
    )


def journal_lines(analysis: Results, style: Style) -> list[str]:
    journal = analysis.journal
    assert journal is not None
    requests = journal.work_requests
    matched = [wr for wr in requests if wr.transfer is not None]
    by_psn = sum(wr.matched_by == "psn" for wr in matched)
    told = sum(event.record is not None for event in journal.cm_events)
    lines = [
        style("Journal", "title")
        + f": {plural(len(requests), 'work request')}, {len(matched):,} beside their transfers "
        f"({by_psn:,} by PSN, {len(matched) - by_psn:,} by order), "
        f"{plural(len(journal.cm_events), 'CM event')}, {told} beside their messages"
    ]
    for wr in journal.unmatched[:5]:
        outcome = "refused when posted" if wr.refused else wr.wc.status if wr.wc else "no completion"
        lines.append(f"  WR {wr.wr_id} {wr.opcode} {size(wr.length)} of {wr.qp}: not on the wire; {outcome}")
    if len(journal.unmatched) > 5:
        lines.append(f"  … and {len(journal.unmatched) - 5:,} more without a transfer")
    for clock in journal.clocks.values():
        if clock.offset_ns:
            lines.append(f"  clock of {clock.host}: {duration(clock.offset_ns)} ahead of the capture's")
    for problem in analysis.journal_problems[:5]:
        lines.append(style(f"  not used: {problem}", "warning"))
    if len(analysis.journal_problems) > 5:
        lines.append(style(f"  … and {len(analysis.journal_problems) - 5} more lines not used", "warning"))
    return lines
