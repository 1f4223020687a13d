"""What was judged of captures, for programs that collect verdicts: JUnit XML, SARIF 2.1.0, JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote
from xml.etree import ElementTree

from rocekit.files.frame_names import frame_name
from rocekit.findings.finding import ERROR, INFO, SEVERITIES, WARNING

if TYPE_CHECKING:
    from rocekit.findings import Finding, Rule

_LEVELS: Final = {ERROR: "error", WARNING: "warning", INFO: "note"}
_SARIF: Final = "https://json.schemastore.org/sarif-2.1.0.json"


@dataclass(frozen=True, slots=True)
class CaptureVerdict:
    """What was found in a capture, or in several of the same traffic.

    Attributes:
        files: the names of the capture's files.
        findings: all of them; failing: those that count.
        problem: why it could not be judged, or only in part.
    """

    files: tuple[str, ...]
    findings: tuple[Finding, ...]
    failing: tuple[Finding, ...]
    problem: str | None = None
    several: bool = False

    @property
    def name(self) -> str:
        """The files' names."""
        return ", ".join(self.files)

    @property
    def holds(self) -> bool:
        """Whether the capture was judged and nothing that counts was found."""
        return not self.failing and self.problem is None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "file": self.name,
            "holds": self.holds,
            "problem": self.problem,
            "failing": [f.to_dict(several=self.several) for f in self.failing],
            "findings": [f.to_dict(several=self.several) for f in self.findings],
        }


def counting(findings: Sequence[Finding], least: str, allowed: Sequence[str]) -> tuple[Finding, ...]:
    """The findings of this severity or a worse one, without the rules that are allowed."""
    worst = SEVERITIES[: SEVERITIES.index(least) + 1]
    return tuple(f for f in findings if f.severity in worst and f.rule not in allowed)


def junit(verdicts: Sequence[CaptureVerdict], rules: Mapping[str, Rule]) -> str:
    """JUnit XML: a suite for each capture, a case for each rule."""
    top = ElementTree.Element("testsuites", name="rocekit check")
    for verdict in verdicts:
        failed = {f.rule for f in verdict.failing}
        suite = ElementTree.SubElement(
            top,
            "testsuite",
            name=_xml(verdict.name),
            tests=str(len(rules) + 1),
            failures=str(len(failed)),
            errors=str(int(verdict.problem is not None)),
        )
        case = ElementTree.SubElement(suite, "testcase", classname=_xml(verdict.name), name="is judged")
        if verdict.problem is not None:
            ElementTree.SubElement(case, "error", message=_xml(verdict.problem))
        for name in rules:
            case = ElementTree.SubElement(suite, "testcase", classname=_xml(verdict.name), name=name)
            found = [f for f in verdict.failing if f.rule == name]
            if found:
                failure = ElementTree.SubElement(case, "failure", message=_xml(found[0].title), type=name)
                failure.text = _xml("\n".join(_line(f, verdict) for f in found))
    ElementTree.indent(top)
    # Its own declaration would name the locale's encoding; the file has UTF-8.
    return f"<?xml version='1.0' encoding='utf-8'?>\n{ElementTree.tostring(top, encoding='unicode')}\n"


def _xml(text: str) -> str:
    """Text without the characters that XML has no way to write."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def sarif(verdicts: Sequence[CaptureVerdict], rules: Mapping[str, Rule], version: str) -> str:
    """SARIF 2.1.0: a result for each finding that counts; frames are its logical locations."""
    order = list(rules)
    results = [
        {
            "ruleId": finding.rule,
            "ruleIndex": order.index(finding.rule),
            "level": _LEVELS[finding.severity],
            "message": {"text": f"{finding.title}. {finding.advice}" if finding.advice else finding.title},
            "locations": _locations(finding, verdict),
        }
        for verdict in verdicts
        for finding in verdict.failing
    ]
    run = {
        "tool": {
            "driver": {
                "name": "rocekit",
                "version": version,
                "rules": [_rule(rule) for rule in rules.values()],
            }
        },
        "invocations": [
            {
                "executionSuccessful": all(v.problem is None for v in verdicts),
                "toolExecutionNotifications": [
                    {"level": "error", "message": {"text": f"{v.name}: {v.problem}"}}
                    for v in verdicts
                    if v.problem is not None
                ],
            }
        ],
        "results": results,
    }
    return json.dumps({"$schema": _SARIF, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _locations(finding: Finding, verdict: CaptureVerdict) -> list[dict[str, Any]]:
    """A location for each file, with the finding's frames in it."""
    names = _frames(finding, verdict)
    found = []
    for place, file in enumerate(verdict.files):
        frames = [name for name in names if len(verdict.files) == 1 or name.startswith(f"{place}:")]
        found.append(
            {
                # A URI reference (3.4.3): a space, a colon or a # of the name would not be one.
                "physicalLocation": {"artifactLocation": {"uri": quote(os.fsencode(file))}},
                "logicalLocations": [{"name": f"frame {name}", "kind": "frame"} for name in frames],
            }
        )
    return found


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.name,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": rule.meaning},
        "help": {"text": rule.what_to_do},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
    }


def _frames(finding: Finding, verdict: CaptureVerdict) -> list[str]:
    return [str(frame_name(frame, several=verdict.several)) for frame in finding.frames]


def _line(finding: Finding, verdict: CaptureVerdict) -> str:
    frames = ", ".join(_frames(finding, verdict))
    return f"{finding.severity}: {finding.title}" + (f" (frames {frames})" if frames else "")
