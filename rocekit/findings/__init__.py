"""Findings: named problems in a capture. Each rule makes findings of one kind from the evidence.

    from rocekit.findings.rules import find

    for finding in find(evidence):
        print(finding.severity, finding.rule, finding.title)

A cause and its effects are one finding. What happened several times in one direction of a connection is one
finding with a count and its worst case. Rules look only at `Evidence`. `stories` puts the tracker's events
together once, and each story belongs to one rule.
"""

from __future__ import annotations

from rocekit.findings.evidence import Evidence
from rocekit.findings.finding import ERROR, INFO, SEVERITIES, WARNING, Finding, Rule, draw_with

__all__ = ["Evidence", "Finding", "Rule", "draw_with", "ERROR", "WARNING", "INFO", "SEVERITIES"]
