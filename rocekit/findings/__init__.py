"""Named problems: evidence in, findings out, one rule a problem.

    for finding in find(evidence):
        print(finding.severity, finding.rule, finding.title)

A cause and its effects are one finding, and what happened often on one direction of a connection is one
finding with a count and its worst case. Rules only look at `Evidence`; the tracker's events are put together
to stories once, in `stories`, and each story belongs to one rule.
"""

from __future__ import annotations

from rocekit.findings.evidence import Evidence
from rocekit.findings.finding import ERROR, INFO, SEVERITIES, WARNING, Finding, Rule

__all__ = ["Evidence", "Finding", "Rule", "find", "ERROR", "WARNING", "INFO", "SEVERITIES"]


def find(evidence: Evidence) -> list[Finding]:
    """All findings, the worst first, and among equals in order of their first frames."""
    from rocekit.findings.rules import RULES

    found = [finding for rule in RULES.values() for finding in rule.look(evidence)]
    return sorted(found, key=lambda f: (SEVERITIES.index(f.severity), f.frames[:1] or (1 << 62,)))
