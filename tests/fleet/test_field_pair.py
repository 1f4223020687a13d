"""Two captures of one wire that nobody names together: the LAKE says of places what ``analyze A B`` does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fleet_lake import made
from places import OTHERS

from rocekit import analyze
from rocekit.fleet.lake import Lake
from rocekit.fleet.query import connect, dicts

NAME = "A1-write-mid-loss"


def test_a_pair_from_the_field_is_found_and_judged_as_by_analyze(tmp_path: Path) -> None:
    captures = [OTHERS / "field" / f"{NAME}.{point}.pcap.gz" for point in ("va", "vb")]
    if not all(path.is_file() for path in captures):
        pytest.skip("no ../shared/captures/field: captures that others made")
    lake = connect(Lake(made(tmp_path / "lake", *captures)))
    found = dicts(lake, "SELECT rule, severity, title, evidence FROM placed_findings")
    alone = analyze(*captures)
    assert [(row["rule"], row["severity"], row["title"]) for row in found] == [
        (finding.rule, finding.severity, finding.title) for finding in alone.findings
    ]
    own = [finding.to_dict(several=True)["evidence"] for finding in alone.findings]
    assert [json.loads(row["evidence"]) for row in found] == json.loads(json.dumps(own))
    # What the queue between the two points counted (tc -s).
    dropped = json.loads((OTHERS / "field" / f"{NAME}.truth.json").read_text())["tc"]["vb-port netem"][
        "drops"
    ]
    [missing] = dicts(lake, "SELECT sum(missing) AS n FROM paths")
    assert missing["n"] == dropped == 17
