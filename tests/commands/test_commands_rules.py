"""``rocekit rules``: every problem by name, and each explained."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from rocekit import cli
from rocekit.findings import SEVERITIES
from rocekit.findings.rules import RULES

#: The names that the JSON promises, and their usual severities.
PROMISED = {
    "peer-silent": "error",
    "tail-loss": "warning",
    "loss": "warning",
    "reordering": "warning",
    "ack-loss": "warning",
    "duplicate": "info",
    "implied-nak": "warning",
    "rnr": "warning",
    "mtu-mismatch": "error",
    "remote-access-error": "error",
    "remote-operational-error": "error",
    "invalid-request": "error",
    "dscp-mismatch": "warning",
    "ecn-unanswered": "warning",
    "cnp-storm": "warning",
    "pause-stall": "warning",
    "incast": "info",
    "low-entropy": "info",
    "multipath": "info",
    "vendor-opcode": "info",
    "icrc-bad": "error",
    "cm-rejected": "error",
    "cm-unanswered": "error",
    "dead-qp": "error",
    "read-depth": "warning",
    "retry-exceeded": "error",
    "capture-gap": "info",
    "capture-truncated": "info",
}


def test_every_promised_rule_is_there_with_its_severity() -> None:
    assert {name: rule.severity for name, rule in RULES.items() if name in PROMISED} == PROMISED


def test_the_listing_has_a_line_for_each() -> None:
    result = CliRunner().invoke(cli.rocekit, ["rules"])
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert [line.split()[0] for line in lines] == list(RULES)
    assert all(line.split()[1] in SEVERITIES for line in lines)
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize("name", RULES)
def test_each_rule_explains_itself(name: str) -> None:
    result = CliRunner().invoke(cli.rocekit, ["rules", name])
    assert result.exit_code == 0
    assert result.output.startswith(name)
    for title in ("What it means", "How it is seen", "What it may be confused with", "What to do"):
        assert title in result.output


def test_the_json_has_the_same_words() -> None:
    result = CliRunner().invoke(cli.rocekit, ["rules", "--format", "json"])
    assert [rule["rule"] for rule in json.loads(result.output)] == list(RULES)
    one = json.loads(CliRunner().invoke(cli.rocekit, ["rules", "loss", "--format", "json"]).output)
    assert one == RULES["loss"].to_dict()


def test_a_name_that_is_none_is_a_wrong_command_line() -> None:
    result = CliRunner().invoke(cli.rocekit, ["rules", "tail-los"])
    assert result.exit_code == 2
    assert "Did you mean 'tail-loss'?" in result.output
