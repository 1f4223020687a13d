"""Findings in text: what, where, what to do."""

from __future__ import annotations

from collections.abc import Sequence

from rocekit.files.frame_names import frame_name
from rocekit.findings.alike import AlikeFindings, gathered
from rocekit.findings.finding import Finding
from rocekit.wire.text_table import Style, plain
from rocekit.wire.words import plural

#: So many frames or connections of a finding are listed.
_LISTED = 6


def finding_lines(
    findings: Sequence[Finding], style: Style = plain, *, several: bool = False, every: bool = False
) -> list[str]:
    """All findings, the most severe first; there is at least one.

    Args:
        every: print each finding; else many alike ones as one.
    """
    shown: Sequence[Finding | AlikeFindings] = findings if every else gathered(findings)
    title = plural(len(findings), "finding")
    if len(shown) < len(findings):
        title += ", alike ones summed up (--all lists each)"
    lines = [style(title, "title")]
    for f in shown:
        if isinstance(f, AlikeFindings):
            lines += _alike(f, style, several=several)
        else:
            lines += finding(f, style, several=several)
    return lines


def finding(f: Finding, style: Style = plain, *, several: bool = False) -> list[str]:
    """One finding: what, where, what to do."""
    return [
        f"  {style(f.severity.ljust(7), f.severity)} {style(f.rule, 'title')}: {f.title}",
        *_place(f, several),
        *_advice(f),
    ]


def _alike(alike: AlikeFindings, style: Style, *, several: bool) -> list[str]:
    """AlikeFindings findings: how many and where, the worst of them, what to do."""
    f = alike.worst
    ids = [str(c.id) for c in alike.connections]
    more = f" … ({len(ids):,} connections)" if len(ids) > _LISTED else ""
    where = [f"          connections {', '.join(ids[:_LISTED])}{more}"] if ids else []
    return [
        f"  {style(f.severity.ljust(7), f.severity)} {style(f.rule, 'title')} {alike.title()}",
        *where,
        f"          {'worst' if ids else 'one of them'}: {f.title}",
        *_place(f, several),
        *_advice(f),
    ]


def _place(f: Finding, several: bool) -> list[str]:
    """The line that says where a finding is."""
    place = [] if f.connection is None else [f"connection {f.connection.id}"]
    if f.transfer is not None:
        place.append(f"transfer {f.transfer.id}")
    if f.frames:
        names = [str(frame_name(r, several=several)) for r in f.frames[:_LISTED]]
        more = f" … ({len(f.frames)} frames)" if len(f.frames) > _LISTED else ""
        place.append(f"frame{'s' if len(f.frames) > 1 else ''} {', '.join(names)}{more}")
    return [f"          {', '.join(place)}"] if place else []


def _advice(f: Finding) -> list[str]:
    return [f"          → {f.advice}"] if f.advice else []
