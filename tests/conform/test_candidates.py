"""What docs/conformance.md names as candidates for upstream has captures, which show it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner
from places import ROOT

from rocekit.cli import rocekit
from rocekit.conform.known import read_known
from rocekit.conform.language import read_drill
from rocekit.conform.soft_bench import SoftBench
from rocekit.conform.verdict import PASS

CAPTURES = ROOT / "docs" / "captures" / "conformance"
FOUND = sorted((CAPTURES / "random").glob("*.yaml"))
CANDIDATES = sorted(read_known().candidates())


def packets_of(drill: str) -> list[dict[str, Any]]:
    """The packets of a candidate's capture."""
    path = CAPTURES / f"{drill.replace('/', '-')}.pcapng"
    done = CliRunner().invoke(rocekit, ["decode", str(path), "--format", "json"])
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.output.splitlines()]


def from_the_device(drill: str) -> list[dict[str, Any]]:
    """Those that rxe sent."""
    return [packet for packet in packets_of(drill) if packet["src"] == "10.9.0.1"]


@pytest.mark.parametrize("drill", CANDIDATES)
def test_a_candidate_has_a_capture_and_stands_on_the_page(drill: str) -> None:
    assert packets_of(drill)
    page = (ROOT / "docs" / "conformance.md").read_text().partition("## Random drills")[0]
    assert f"`{drill}`" in page or f"`{drill.rpartition('/')[2]}`" in page


#: Of drills whose fault packets show: how the last packet of rxe differs from what the drill demands.
SHOWN: dict[str, dict[str, Any]] = {
    "responder/duplicates/before_first_covers_nothing": {"opcode": "RC_ACKNOWLEDGE", "psn": 0xFFFFFF},
    "responder/length/send_over_receive": {"opcode": "RC_ACKNOWLEDGE", "syndrome": 0x63},
    "responder/length/write_ends_early": {"opcode": "RC_ACKNOWLEDGE", "syndrome": 0x1F, "msn": 1},
    "responder/windows/outside": {"opcode": "RC_ACKNOWLEDGE", "syndrome": 0x1F},
    "responder/windows/read_outside": {"opcode": "RC_RDMA_READ_RESPONSE_ONLY"},
}


@pytest.mark.parametrize("drill", SHOWN)
def test_the_capture_shows_what_is_wrong(drill: str) -> None:
    last = from_the_device(drill)[-1]
    assert {key: last[key] for key in SHOWN[drill]} == SHOWN[drill]


def test_with_retry_count_7_a_request_was_sent_more_than_eight_times() -> None:
    sent = [packet["psn"] for packet in from_the_device("requester/timeout/count_7")]
    assert sent == [5000] * len(sent)
    assert len(sent) > 8


def test_the_shortest_drills_of_random_ones_say_what_the_soft_device_does_and_stand_on_the_page() -> None:
    page = (ROOT / "docs" / "conformance.md").read_text().partition("## Random drills")[2]
    assert len(FOUND) >= 7
    for path in FOUND:
        assert SoftBench().play(read_drill(path)).verdict.outcome == PASS
        assert f"`{path.stem}`" in page
