"""The captures in pcaps/field: each says what its source says, whatever is around the packets."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from places import PCAPS

import rocekit

FIELD = PCAPS / "field"
CAPTURES: list[dict[str, Any]] = json.loads((FIELD / "manifest.json").read_text())["captures"]
NAMES = [entry["file"] for entry in CAPTURES]
MOST_BYTES = 20_000


def told(analysis: rocekit.Analysis, cut: bool = False) -> list[str]:
    """What is known of each connection, without its number, and of its transfers (``cut``: only these)."""
    found = []
    for connection in analysis.connections:
        document = {k: v for k, v in connection.to_dict().items() if k not in ("id", "vlan", "encapsulation")}
        mine = [t for t in analysis.transfers if t.connection is connection]
        document.pop("application")  # its ground depends on how often the CM messages are there
        if cut:
            document = {}
        found.append(f"{document} {[(t.operation, t.bytes, t.first_psn, t.status) for t in mine]}")
    return sorted(found)


@cache
def source(name: str, cut: bool) -> list[str]:
    return told(rocekit.analyze(PCAPS / name), cut)


@pytest.mark.parametrize("entry", CAPTURES, ids=NAMES)
def test_the_analysis_is_that_of_the_source(entry: dict[str, Any]) -> None:
    analysis = rocekit.analyze(FIELD / entry["file"])
    cut = "cut to" in entry["about"]
    assert told(analysis, cut) == sorted(source(entry["source"], cut) * entry["copies"])
    assert not [finding for finding in analysis.findings if finding.severity == "error"]
    assert (analysis.capture.counts.cut_by_mirror > 0) == cut
    assert (analysis.capture.doubled is not None) == ("twice" in entry["about"])
    assert analysis.capture.counts.bad_icrc == 0
    assert analysis.capture.counts.non_roce == 0


@pytest.mark.parametrize("name", [*NAMES, "manifest.json", "README.md"])
def test_they_are_small(name: str) -> None:
    assert (FIELD / name).stat().st_size < MOST_BYTES
