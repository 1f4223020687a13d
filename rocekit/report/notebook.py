"""What notebooks show of an analysis, an explanation and a finding: tables, words, and pictures inline."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rocekit.errors import RocekitError
from rocekit.explanation.transfer import Explanation
from rocekit.files.frame_names import frame_name
from rocekit.findings.alike import AlikeFindings, gathered
from rocekit.findings.finding import Finding
from rocekit.report.record_table import RecordTable
from rocekit.report.text import capture_lines, capture_point_lines, no_findings, slowest
from rocekit.wire.notebook_html import badge, block, escape, heading, html_table, paragraph, picture
from rocekit.wire.words import duration, plural

if TYPE_CHECKING:
    from rocekit.explanation.results import Results
    from rocekit.report.drawings import Drawings, Picture
    from rocekit.track.transfers import Transfer

#: An analysis of more packets is shown without a picture: reading its captures again takes seconds.
PICTURED: Final = 200_000
_ROWS: Final = 10
_FRAMES: Final = 12


def html_of(what: object, analysis: Results, drawings: Callable[[], Drawings]) -> str:
    """A finding or an explanation of an analysis, with pictures."""
    if isinstance(what, Finding):
        return finding_html(what, analysis, drawings)
    return explanation_html(what, drawings) if isinstance(what, Explanation) else escape(what)


def analysis_html(analysis: Results, drawings: Callable[[], Drawings]) -> str:
    """An analysis: the capture, its findings, a picture of the first, connections, transfers."""
    parts = [paragraph(line.strip()) for line in capture_lines(analysis.capture)]
    if analysis.findings:
        parts.append(heading(plural(len(analysis.findings), "finding")))
        parts += [_finding_line(f) for f in gathered(analysis.findings)]
    elif not analysis.capture.contents.is_blank:
        parts.append(paragraph(no_findings(analysis.capture.contents)))
    if analysis.connections and analysis.capture.counts.roce_packets <= PICTURED:
        parts.append(_drawn(lambda: _first_picture(analysis, drawings())))
    elif analysis.connections:
        parts.append(paragraph("The capture is large: plot() draws it, report() makes its page.", dim=True))
    for title, table, rows in (
        ("connection", analysis.connections, analysis.connections),
        ("transfer", analysis.transfers, _most_troubled(analysis)),
    ):
        if table and isinstance(table, RecordTable):
            more = len(table) - _ROWS
            parts.append(heading(plural(len(table), title)))
            parts.append(RecordTable(rows, table.kind, analysis).html(_ROWS))
            if more > 0:
                which = ", the most troubled and slowest above" if title == "transfer" else ""
                parts.append(paragraph(f"… and {more:,} more{which}", dim=True))
    known, unknown = capture_point_lines(analysis)
    parts += [paragraph(line.strip(), dim=True) for line in [*known, *unknown] if line.strip()]
    return block(*parts)


def _most_troubled(analysis: Results) -> list[Transfer]:
    if len(analysis.transfers) <= _ROWS:
        return list(analysis.transfers)
    return slowest(list(analysis.transfers), _ROWS)


def _first_picture(analysis: Results, drawings: Drawings) -> Picture | None:
    """The worst finding that has a place in a graph; else the connection where most happened."""
    for finding in analysis.findings:
        drawn = drawings.of_finding(finding)
        if drawn is not None:
            return drawn
    return drawings.plot(["psn"])


def _drawn(make: Callable[[], Picture | None]) -> str:
    """A picture, or one line that says why there is none."""
    try:
        drawn = make()
    except (RocekitError, ValueError) as error:  # no matplotlib; standard input
        return paragraph(f"No picture: {error}", dim=True)
    return "" if drawn is None else picture(drawn.svg(), drawn.words)


def _finding_line(f: Finding | AlikeFindings) -> str:
    worst = f.worst if isinstance(f, AlikeFindings) else f
    title = f.title() if isinstance(f, AlikeFindings) else f.title
    if worst.connection is None and worst is not f:
        title += f"; one of them: {worst.title}"
    advice = f"<br><span class=dim>→ {escape(worst.advice)}</span>" if worst.advice else ""
    return f"<p>{badge(worst.severity)} <b>{escape(worst.rule)}</b> {escape(title)}{advice}</p>"


def finding_html(finding: Finding, analysis: Results, drawings: Callable[[], Drawings]) -> str:
    """A finding: what, where, what to do, and the packets that it is about."""
    several = analysis.capture.several
    where = [] if finding.connection is None else [f"connection {finding.connection.id}"]
    if finding.transfer is not None:
        where.append(f"transfer {finding.transfer.id}")
    if finding.frames:
        names = ", ".join(str(frame_name(f, several=several)) for f in finding.frames[:_FRAMES])
        more = f" … ({len(finding.frames)})" if len(finding.frames) > _FRAMES else ""
        where.append(f"frames {names}{more}")
    return block(
        f"<p>{badge(finding.severity)} <b>{escape(finding.rule)}</b> {escape(finding.title)}</p>",
        paragraph(", ".join(where), dim=True) if where else "",
        paragraph(f"→ {finding.advice}") if finding.advice else "",
        _drawn(lambda: drawings().of_finding(finding)),
    )


def explanation_html(explanation: Explanation, drawings: Callable[[], Drawings]) -> str:
    """A transfer: its verdict, findings, steps with times, ladder, and PSNs over time."""
    transfer = explanation.transfer
    steps = explanation.summed_steps()
    rows = [(f"+{duration(s.time_ns - explanation.origin_ns)}", s.what, s.detail) for s in steps]
    trouble = frozenset(n for n, step in enumerate(steps) if step.trouble)
    return block(
        heading(explanation.title),
        paragraph(explanation.verdict),
        *map(_finding_line, explanation.findings),
        html_table(("after", "step", "detail"), rows, right=("after",), wide=("detail",), trouble=trouble),
        *(paragraph(note, dim=True) for note in explanation.notes),
        _drawn(lambda: drawings().plot(["ladder"], transfer=transfer)),
        _drawn(lambda: drawings().plot(["psn"], transfer=transfer)),
    )
