"""Named problems: evidence in, findings out, one rule a problem.

    from rocekit.findings.rules import find

    for finding in find(evidence):
        print(finding.severity, finding.rule, finding.title)

A cause and its effects are one finding, and what happened often on one direction of a connection is one
finding with a count and its worst case. Rules only look at `Evidence`; the tracker's events are put together
to stories once, in `stories`, and each story belongs to one rule.
"""

from __future__ import annotations

from rocekit.findings.evidence import Evidence
from rocekit.findings.finding import ERROR, INFO, SEVERITIES, WARNING, Finding, Rule

__all__ = ["Evidence", "Finding", "Rule", "ERROR", "WARNING", "INFO", "SEVERITIES"]
