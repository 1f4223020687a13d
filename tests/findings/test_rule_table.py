"""A rule whose row says that it is not needed finds nothing, so that its module need not be imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocekit import analyze
from rocekit.findings.rules import RULES, TABLE

PCAPS = Path(__file__).parents[2] / "pcaps"
CAPTURES = (
    *("ping-write-clean.pcap", "ib_send_bw-uc-clean.pcap", "ib_send_bw-ud-clean.pcap"),
    *("blast-sr-loss.pcap", "blast-sr-rnr.pcap", "blast-sr-corruption.pcap", "blast-sr-reordering.pcap"),
    *("failures-each.pcap", "ping-read-response-loss.pcap", "rping-clean.pcap"),
)


@pytest.mark.parametrize("capture", CAPTURES)
def test_what_is_not_needed_finds_nothing(capture: str) -> None:
    evidence = analyze(PCAPS / capture).evidence
    assert evidence is not None
    idle = [name for row in TABLE if not row.needed(evidence) for name in row.names]
    assert idle
    assert {name: list(RULES[name].look(evidence)) for name in idle} == {name: [] for name in idle}


def test_every_rule_has_its_module_and_no_name_is_there_twice() -> None:
    names = [name for row in TABLE for name in row.names]
    assert [RULES[name].name for name in names] == names == list(RULES)
