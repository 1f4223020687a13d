"""What people read in a terminal: summaries and tables; plain text that ``style`` may colour."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from rocekit.explanation.contents import NOTHING
from rocekit.files.frames import linktype_name
from rocekit.machine.limits import met_words
from rocekit.packets.other_frames import NOT_ROCE
from rocekit.track.connections import weights_of
from rocekit.track.transfers import ranks_of
from rocekit.wire.text_table import Style, columns, plain, safe, wrapped
from rocekit.wire.words import duration, end, moment, plural, short_size, size

if TYPE_CHECKING:
    from rocekit.explanation.contents import Contents
    from rocekit.explanation.results import CaptureSummary, Results
    from rocekit.points.vantage import Vantage
    from rocekit.track.connections import Connection
    from rocekit.track.transfers import Transfer

SHOWN_TRANSFERS = 20
SHOWN_CONNECTIONS = 100
INTERRUPTED = "interrupted: only the part read until then is reported"
_SHOWN_POINTS = 3
_STATUS = attrgetter("status")
_SHOWN_PATHS = 20
#: More lines than this push what stands above them off a terminal.
_SCREEN = 24
_PAIRED = {
    "cm": "CM exchange",
    "journal": "journal",
    "psn": "PSNs",
    "handshake": "handshake",
    "source port": "source port",
    "response times": "response times",
}


def summary(
    analysis: Results,
    *,
    style: Style = plain,
    transfers: int | None = SHOWN_TRANSFERS,
    width: int | None = None,
) -> str:
    """An analysis in text: the capture, its findings, connections, transfers, the journal, what is unknown.

    Args:
        transfers: how many to list, the most troubled and the slowest first; None for all, in order.
        width: of the terminal, which tables and prose then fit; None: lines of any length.
    """
    details = []
    if analysis.connections:
        details.append(style("Connections", "title"))
        details += connection_lines(
            analysis.connections, None if transfers is None else SHOWN_CONNECTIONS, width
        )
    if analysis.cm:
        rejected = sum(r.message == "REJ" for r in analysis.cm)
        details.append(f"  {plural(len(analysis.cm), 'CM message')}{f', {rejected} REJ' if rejected else ''}")
    if analysis.transfers:
        details += ["", *transfer_lines(analysis, style, transfers, width)]
    if analysis.journal is not None:
        details += ["", *journal_lines(analysis, style)]
    if analysis.counters:
        from rocekit.report.counters import counter_lines

        details += ["", *counter_lines(analysis.counters, style, width)]
    return "\n".join(wrapped(in_order(analysis, [], details, style, every=transfers is None), width))


def in_order(
    analysis: Results, head: Sequence[str], details: Sequence[str], style: Style, *, every: bool = False
) -> list[str]:
    """The lines of a summary: the capture and ``head``, findings, ``details``, what is unknown.

    Where the details fill a screen, the findings are named again behind them: a terminal shows the end.
    """
    contents = analysis.capture.contents
    if contents.is_blank and not analysis.findings and analysis.journal is None:
        return [*capture_lines(analysis.capture, style), *head, *details]
    known, unknown = capture_point_lines(analysis)
    findings = [] if contents.is_blank else ["", no_findings(contents, style)]
    if analysis.findings:
        from rocekit.findings.text import finding_lines

        findings = [
            "",
            *finding_lines(analysis.findings, style, several=analysis.capture.several, every=every),
        ]
    lines = [*capture_lines(analysis.capture, style), *head, *known, *findings]
    if details:
        lines += ["", *details]
    if analysis.findings and len(details) > _SCREEN:
        lines += ["", recap(analysis, style)]
    return [*lines, "", *unknown] if unknown else lines


def no_findings(contents: Contents, style: Style = plain) -> str:
    """The line in place of findings: what it means that there are none."""
    if contents.is_blank:
        return style(NOTHING, "warning")
    if contents.notice is not None:
        return style(
            "No findings in the RoCE packets that were read; others were not read: see above.",
            "warning" if contents.mostly_unread else "good",
        )
    if contents.one_direction is not None:
        return style("No findings in the direction that was captured.", "warning")
    return style("No findings: no loss, retransmission or NAK seen.", "good")


def recap(analysis: Results, style: Style = plain) -> str:
    """One line that names the findings described above."""
    rules = Counter(f.rule for f in analysis.findings)
    names = ", ".join(rule if n == 1 else f"{rule} ({n:,})" for rule, n in rules.items())
    return style(f"{plural(len(analysis.findings), 'finding')} above: {names}", analysis.findings[0].severity)


def capture_lines(capture: CaptureSummary, style: Style = plain) -> list[str]:
    """What was read: frames, packets, duration, ICRCs, clocks, and what could not be read."""
    counts, contents = capture.counts, capture.contents
    name = safe(", ".join(capture.files) if capture.doubled is None else capture.source)
    when = ""
    if capture.first_ns is not None and capture.last_ns is not None:
        when = f", {duration(capture.last_ns - capture.first_ns)} from {moment(capture.first_ns)}"
    if contents.is_blank:
        lines = [f"{style(name, 'title')}: {style(NOTHING, 'warning')}"]
        lines += [f"  {contents.held(when)}", f"  → {contents.next_step}"]
    else:
        lines = [
            f"{style(name, 'title')}: {plural(counts.frames, 'frame')}, "
            f"{plural(counts.roce_packets - capture.copies - capture.left_out, 'RoCE packet')}{when}"
        ]
    if capture.doubled is not None:
        lines.append(style(f"  {capture.doubled.line()}", "warning"))
    for place, one in sorted(capture.twice.items()):
        lines.append(style(f"  {one.line(safe(capture.names[place]))}", "warning"))
    if contents.one_direction is not None:
        lines.append(style(f"  {contents.one_direction}", "warning"))
    if contents.notice is not None:
        lines += [style(f"  {contents.notice}", "warning"), f"  → {contents.next_step}"]
    foreign = counts.others.get(NOT_ROCE)
    if foreign and not contents.is_blank:
        lines.append(f"  not judged: {plural(foreign, 'frame')}: {NOT_ROCE}, probably another program's")
    checked = counts.roce_packets - counts.unchecked_icrc
    if counts.roce_packets:
        state = "all valid" if not counts.bad_icrc else style(f"{counts.bad_icrc} WRONG", "error")
        unchecked = f", {counts.unchecked_icrc} not checkable (truncated)" if counts.unchecked_icrc else ""
        valid = f", {state}" if checked else ""
        lines.append(f"  ICRC: {checked:,} checked{valid}{unchecked}")
    if capture.copies and capture.doubled is None:
        lines.append(f"  {plural(capture.copies, 'packet')} in more than one file, counted once")
    lines += [order_line(capture, file) for file in sorted(capture.orders)]
    lines += several_lines(capture)
    if capture.dropped:
        dropped = plural(capture.dropped, "packet")
        lines.append(
            style(f"  the capturing machine dropped {dropped}: they are not in the capture", "warning")
        )
    for linktype, count in capture.skipped.items():
        lines.append(style(f"  left out: {plural(count, 'frame')} of {linktype_name(linktype)}", "warning"))
    malformed = counts.malformed_packets - counts.cut_packets
    if malformed:
        lines.append(style(f"  {plural(malformed, 'malformed packet')}", "warning"))
    for file, message in capture.damage[:5]:
        lines.append(style(f"  damaged: {safe(file)}: {safe(message)}", "warning"))
    if len(capture.damage) > 5:
        lines.append(style(f"  … and damage at {len(capture.damage) - 5} more places", "warning"))
    lines += [style(f"  {met_words(name)}", "warning") for name in sorted(capture.limits_met)]
    if capture.interrupted:
        lines.append(style(f"  {INTERRUPTED}", "warning"))
    return lines


def several_lines(capture: CaptureSummary) -> list[str]:
    """How several captures go together, their clocks, and what happened between them."""
    names = capture.names
    lines = [] if capture.relations is None else [f"  {line}" for line in capture.relations.lines(names)]
    for alignment in capture.alignments[1:]:
        if alignment.common and capture.doubled is None:
            if alignment.bound_ns is None:
                taken, bound, unbound = "taken as ", "", "; nothing bounds it"
            else:
                taken, bound, unbound = "", f" ± {duration(alignment.bound_ns)}", ""
            drift = f", gaining {alignment.drift * 1e6:.1f} µs a second" if alignment.drift else ""
            # Its clock is told against the first one's that it has packets in common with, or others between.
            group = [a.file for a in capture.alignments if a.group == alignment.group]
            here, there = safe(capture.files[alignment.file]), safe(capture.files[group[0]])
            shared = "in both" if len(group) == 2 else "in common with one of the others"
            lines.append(
                f"  clock of {here}: {taken}{duration(alignment.offset_ns)}{bound} ahead "
                f"of the clock of {there}{drift} ({plural(alignment.common, 'packet')} {shared}{unbound})"
            )
            if alignment.step_ns:
                more = f"{duration(abs(alignment.step_ns))} {'more' if alignment.step_ns > 0 else 'less'}"
                from_then = f"from {moment(alignment.step_at_ns)} on (clock of {here}) {more}"
                lines.append(f"  one of the two clocks was set: {from_then}")
    paths = [] if capture.paths is None else capture.paths.every
    shown = sorted(paths, key=lambda p: p.clean)[:_SHOWN_PATHS]
    lines += [f"  {path.src} → {path.dst}: {path.words(names)}" for path in paths if path in shown]
    if len(paths) > len(shown):
        lines.append(f"  … and {len(paths) - len(shown)} more directions between capture points")
    for way in capture.sightings.one_way if capture.sightings is not None else ():
        bound = "" if way.bound_ns is None else f", all ± {duration(way.bound_ns)}"
        ends = [safe(capture.files[n]) for n in (way.first, way.second)]
        lines.append(
            f"  {way.src} → {way.dst}: {duration(way.took.median_ns)} from {ends[0]} to "
            f"{ends[1]} (median of {way.took.count:,}; minimum "
            f"{duration(way.took.min_ns)}, 99 % {duration(way.took.p99_ns)}{bound})"
        )
    return lines


def order_line(capture: CaptureSummary, file: int) -> str:
    """What was done about times that run back in a capture."""
    from rocekit.packets.time_order import BY_FILE, BY_TIME

    order = capture.orders[file]
    name = f" packets of {safe(capture.files[file])}" if capture.several else ""
    every = "" if capture.several else f" of {plural(capture.counts.roce_packets, 'packet')}"
    line = f"  {order.packets:,}{every}{name} stand behind a later one in the file, by up to "
    line += duration(order.furthest_ns)
    if order.by == BY_TIME:
        return f"{line}; they were put in order of time"
    if order.by == BY_FILE:
        return f"{line}; the file's order was kept, because PSNs or NAKs follow it"
    if not order.packets:
        line = "  ACKs stand before their requests"
    shifts = ", ".join(
        f"at least {duration(abs(ns))} {'added to' if ns > 0 else 'taken from'} the times of {ip}"
        for ip, ns in order.shifts_ns.items()
    )
    return f"{line}, because senders have clocks of their own: {shifts}"


def capture_point_lines(analysis: Results) -> tuple[list[str], list[str]]:
    """Where each capture was taken: the lines of what is known, and the lines of what is unknown."""
    known, unknown = [], []
    vantages = analysis.vantages()
    for file in vantages.files:
        name = f" of {safe(analysis.capture.files[file])}" if analysis.capture.several else ""
        words = _first_points(v for v in vantages.of_hosts(file, telling=True) if v.place is not None)
        known += [f"  Capture point{name}: {point}" for point in words]
        if not words:
            words = _first_points(vantages.of_hosts(file))
            unknown += [f"Capture point{name}: {point}" for point in words]
    return known, unknown


def _first_points(vantages: Iterable[Vantage]) -> list[str]:
    """Those that are shown; no more are judged."""
    words: dict[str, None] = {}
    for vantage in vantages:
        words[str(vantage)] = None
        if len(words) == _SHOWN_POINTS:
            break
    return list(words)


def connection_lines(
    connections: Sequence[Connection],
    limit: int | None = None,
    width: int | None = None,
    *,
    listed_by: str = "--all",
) -> list[str]:
    """A line for each connection; of more than ``limit``, the most troubled and busiest.

    Args:
        listed_by: the option that lists all of them.
        width: of the terminal: how they were paired, MTU, transfers and transport give way, in this order.
    """
    rows = []
    shown = connections
    if limit is not None and len(connections) > limit:
        every = list(connections)
        weights = np.empty((len(every), 2), np.int64)
        weights_of(every, weights)
        heaviest = np.lexsort((-weights[:, 1], -weights[:, 0]))[:limit].tolist()
        shown = sorted((every[n] for n in heaviest), key=lambda c: c.id)
    named = any(c.application is not None for c in shown)
    for c in shown:
        troubles = [
            f"{count:,} {word}"
            for count, word in (
                (c.retransmitted_packets, "sent again"),
                (c.naks, "NAK"),
                (c.rnr_naks, "RNR NAK"),
                (c.cut_responses, "ACK or NAK cut"),
                (c.cnps, "CNP"),
                (c.ce_marked, "CE"),
                (c.duplicates, "came twice"),
                (c.bad_icrc_count, "bad ICRC"),
            )
            if count
        ]
        if c.resent_per_loss is not None:
            troubles.insert(1, f"{c.resent_per_loss:,.1f} for each packet lost")
        rows.append(
            (
                str(c.id),
                c.transport,
                end(c.end(0)),
                "⇄" if c.transport != "UC" or None not in c.qpns else "→",
                end(c.end(1)),
                f"{'' if c.paired_surely else 'probably '}paired by {_PAIRED[c.paired_by]}"
                if c.paired_by
                else "",
                f"MTU {c.path_mtu}" if c.path_mtu else "",
                plural(c.packets, "packet"),
                plural(c.transfers, "transfer"),
                short_size(c.bytes),
                *([str(c.application or "")] if named else []),
                ", ".join([*c.encapsulation.short, *troubles]),
            )
        )
    lines = columns(rows, right=frozenset({0, 7, 8, 9}), width=width, spare=(5, 6, 8, 9, 1))
    if len(shown) < len(connections):
        more = plural(len(connections) - len(shown), "connection")
        lines.append(f"  … and {more} with less trouble or fewer packets ({listed_by} lists them)")
        lines += application_lines(connections)
    return lines


def application_lines(connections: Sequence[Connection]) -> list[str]:
    """One line that counts the connections of each application; none where none is known."""
    names = Counter(
        f"{'' if c.application.certain else 'probably '}{c.application.name}"
        for c in connections
        if c.incidents is not None and c.application is not None
    )
    unknown = len(connections) - names.total()
    counts = [f"{name} ({n:,})" for name, n in names.most_common()] + [f"unknown ({unknown:,})"] * (
        unknown > 0
    )
    return [f"  Applications: {', '.join(counts)}"] if names else []


def slowest(transfers: list[Transfer], most: int) -> list[Transfer]:
    """The most troubled and then slowest of the transfers."""
    ranks = np.empty((len(transfers), 2), np.int64)
    ranks_of(transfers, ranks)
    return [transfers[n] for n in np.lexsort((-ranks[:, 1], ranks[:, 0]))[:most].tolist()]


def transfer_lines(analysis: Results, style: Style, limit: int | None, width: int | None = None) -> list[str]:
    """A table of the transfers; of more than ``limit``, the most troubled and slowest.

    Args:
        width: of the terminal: packets, PSN, a status that all have, and bytes give way, in this order.
    """
    transfers = list(analysis.transfers)
    states = Counter(map(_STATUS, transfers)) + analysis.left_out
    title = plural(states.total(), "transfer")
    head = f"{title}: " + ", ".join(f"{n:,} {s}" for s, n in sorted(states.items(), key=lambda x: -x[1]))
    shown = transfers
    if limit is not None and states.total() > limit:
        shown = slowest(transfers, limit)
        head += f"; the {limit} {'slowest' if shown[0].clean else 'most troubled and slowest'}:"
    rows = [("", "", "", "", "bytes", "packets", "PSN", "duration", "status", "")]
    rows += [transfer_row(t) for t in shown]
    # One status of all is in the title.
    spare = (5, 6, 8, 4) if len(states) == 1 else (5, 6, 4)
    table = columns(rows, right=frozenset({0, 4, 5, 6, 7}), width=width, spare=spare)
    return [style(head, "title"), *table]


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
            (t.duplicates, "came twice"),
        )
        if count
    ]
    if t.is_short:
        troubles.append(f"{t.length:,} B announced")
    if t.wr is not None:
        troubles.insert(0, f"WR {t.wr.wr_id}" + (f" {t.wc.status}" if t.wc is not None else ""))
    return (
        str(t.id),
        t.operation + "+imm" * t.with_immediate + "+inv" * t.with_invalidate,
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
    """What the journal holds, how much of it was matched, and what was not."""
    from rocekit.correlate.matching import CONTENTS, PSN

    journal = analysis.journal
    assert journal is not None
    requests = journal.work_requests
    matched = [wr for wr in requests if journal.transfer_of(wr) is not None]
    by_psn = sum(wr.matched_by == PSN for wr in matched)
    by_contents = sum(wr.matched_by == CONTENTS for wr in matched)
    contents = f"{by_contents:,} by contents, " if by_contents else ""
    cm_matched = sum(event.record is not None for event in journal.cm_events)
    lines = [
        style("Journal", "title")
        + f": {plural(len(requests), 'work request')}, {len(matched):,} matched with transfers "
        f"({by_psn:,} by PSN, {contents}{len(matched) - by_psn - by_contents:,} by order), "
        f"{plural(len(journal.cm_events), 'CM event')}, {cm_matched} matched with messages"
    ]
    told = []
    if journal.collectives is not None:
        from rocekit.explanation.collective import collective_lines

        told = collective_lines(journal.collectives, style)
    if journal.nothing_because is not None:
        words = f"  Nothing of the journal is in this capture: {journal.nothing_because}"
        lacking = [style(f"  {line}", "warning") for line in journal.lacking]
        return [lines[0], style(words, "warning"), *lacking, *told, *_unused_lines(analysis, style)]
    lines += [style(f"  {line}", "warning") for line in journal.lacking]
    lines += (
        [style(f"  {file} is empty", "warning") for file in journal.journal.empty] if journal.journal else []
    )
    for wr in journal.unmatched[:5]:
        outcome = "post failed" if wr.refused else wr.wc.status if wr.wc else "no completion"
        why = wr.unmatched_because or "no packet in the capture"
        lines.append(f"  WR {wr.wr_id} {wr.opcode} {size(wr.length)} of {wr.qp}: {why}; {outcome}")
    if len(journal.unmatched) > 5:
        lines.append(f"  … and {len(journal.unmatched) - 5:,} more not matched")
    for clock in journal.clocks.values():
        if clock.offset_ns:
            lines.append(f"  clock of {clock.host}: {duration(clock.offset_ns)} ahead of the capture")
        if clock.crossed_ns:
            lines.append(style(f"  {clock.crossing}", "warning"))
    return lines + told + _unused_lines(analysis, style)


def _unused_lines(analysis: Results, style: Style) -> list[str]:
    """The first journal lines that could not be used."""
    problems = analysis.journal_problems
    lines = [style(f"  not used: {problem}", "warning") for problem in problems[:5]]
    if len(problems) > 5:
        lines.append(style(f"  … and {len(problems) - 5} more lines not used", "warning"))
    return lines
