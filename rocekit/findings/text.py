"""Findings in text: what, where, what to do."""

from __future__ import annotations

from collections.abc import Sequence

from rocekit.files.frame_names import frame_name
from rocekit.findings.finding import Finding
from rocekit.wire.text_table import Style, plain
from rocekit.wire.words import plural


def finding_lines(findings: Sequence[Finding], style: Style = plain, *, several: bool = False) -> list[str]:
    """All findings, the most severe first; there is at least one."""
    lines = [style(plural(len(findings), "finding"), "title")]
    for f in findings:
        lines += finding(f, style, several=several)
    return lines


def finding(f: Finding, style: Style = plain, *, several: bool = False) -> list[str]:
    """One finding: what, where, what to do."""
    place = [] if f.connection is None else [f"connection {f.connection.id}"]
    if f.transfer is not None:
        place.append(f"transfer {f.transfer.id}")
    if f.frames:
        names = [str(frame_name(r, several=several)) for r in f.frames[:6]]
        more = f" … ({len(f.frames)} frames)" if len(f.frames) > 6 else ""
        place.append(f"frame{'s' if len(f.frames) > 1 else ''} {', '.join(names)}{more}")
    return [
        f"  {style(f.severity.ljust(7), f.severity)} {style(f.rule, 'title')}: {f.title}",
        *([f"          {', '.join(place)}"] if place else []),
        *([f"          → {f.advice}"] if f.advice else []),
    ]
