"""``rocekit check``, rules of one's own and the pytest plug-in: what CI holds captures to."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result
from places import ROOT

import rocekit
from rocekit import cli
from rocekit.errors import RocekitError
from rocekit.findings.own_rules import installed_rules, rules_of_file
from rocekit.findings.rules import RULES
from rocekit.pytest_plugin import check_no

CLEAN = ROOT / "pcaps" / "rping-clean.pcap"
LOSS = ROOT / "pcaps" / "ping-write-loss-behind.pcap"
FATAL = ROOT / "pcaps" / "ping-write-dead.pcap"

OWN = """
from rocekit.findings import WARNING, Rule

MANY = 100


def _look(evidence):
    for connection in evidence.connections:
        if connection.packets > MANY:
            yield RULE.finding(
                f"{connection.packets} packets on connection {connection.id}",
                connection=connection,
                evidence={"packets": connection.packets},
            )


RULE = Rule(
    "many-packets", WARNING, "a connection has many packets", "It has.", "By counting.", "With nothing.",
    "Send fewer.", _look,
)
"""


def run(*arguments: object, status: int = 0) -> Result:
    result = CliRunner().invoke(cli.rocekit, [str(one) for one in arguments])
    assert result.exit_code == status, result.output
    assert "Traceback" not in result.output
    return result


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "my_rules.py"
    path.write_text(OWN)
    return path


def test_a_capture_without_findings_that_count_holds() -> None:
    assert f"{CLEAN}: no findings" in run("check", CLEAN).stdout
    said = run("check", LOSS, "--fail-on", "error").stdout
    assert "2 findings that do not count" in said
    run("check", LOSS, "--allow", "loss", "--allow", "tail-loss")


def test_each_file_has_its_own_verdict_and_one_that_fails_fails_all() -> None:
    said = run("check", CLEAN, LOSS, status=1).stdout
    assert f"{CLEAN}: no findings" in said
    assert f"{LOSS}: 2 findings" in said
    document = json.loads(run("check", CLEAN, LOSS, "--format", "json", status=1).stdout)
    assert [one["holds"] for one in document["captures"]] == [True, False]


def test_a_capture_that_shows_nothing_does_not_hold(tmp_path: Path) -> None:
    cut = tmp_path / "cut.pcap"
    cut.write_bytes(CLEAN.read_bytes()[:-20])
    empty = tmp_path / "empty.pcap"
    empty.write_bytes(CLEAN.read_bytes()[:24])
    for path in (cut, empty, tmp_path / "none.pcap"):
        document = json.loads(run("check", path, "--format", "json", status=1).stdout)
        assert document["captures"][0]["problem"], path


def test_junit_has_a_failure_for_each_rule_that_found_something(tmp_path: Path) -> None:
    out = tmp_path / "verdicts.xml"
    run("check", CLEAN, LOSS, "-o", out, status=1)
    clean, loss = ElementTree.parse(out).getroot()
    assert clean.attrib["failures"] == "0"
    assert len(clean) == int(clean.attrib["tests"]) == len(RULES) + 1
    assert [case.attrib["name"] for case in loss if case.find("failure") is not None] == ["tail-loss", "loss"]
    run("check", tmp_path / "none.pcap", "-o", out, status=1)
    assert ElementTree.parse(out).getroot()[0].attrib["errors"] == "1"


def test_sarif_has_a_result_for_each_finding_and_names_its_rule(tmp_path: Path) -> None:
    out = tmp_path / "verdicts.sarif"
    run("check", LOSS, "-o", out, status=1)
    document = json.loads(out.read_text())
    assert document["version"] == "2.1.0"
    (sarif,) = document["runs"]
    rules = sarif["tool"]["driver"]["rules"]
    for result in sarif["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] == "warning"
        assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == str(LOSS)
    assert sorted(result["ruleId"] for result in sarif["results"]) == ["loss", "tail-loss"]


def test_sarif_names_files_by_uri_references_and_several_of_one_traffic_apart(tmp_path: Path) -> None:
    out, odd = tmp_path / "verdicts.sarif", tmp_path / "a b#1:é%.pcap"
    odd.write_bytes(LOSS.read_bytes())
    run("check", odd, "-o", out, status=1)
    (location,) = json.loads(out.read_text())["runs"][0]["results"][0]["locations"]
    uri = location["physicalLocation"]["artifactLocation"]["uri"]
    assert (urlsplit(uri).path, unquote(uri)) == (uri, str(odd))
    run("check", "--together", LOSS, odd, "-o", out, status=1)
    for result in json.loads(out.read_text())["runs"][0]["results"]:
        assert len(result["locations"]) == 2
        for place, location in enumerate(result["locations"]):
            frames = [one["name"] for one in location["logicalLocations"]]
            assert all(frame.startswith(f"frame {place}:") for frame in frames), frames


def test_a_rule_of_a_file_finds_beside_the_built_in_ones(own: Path) -> None:
    document = json.loads(run("analyze", LOSS, "--rules", own, "--format", "json").stdout)
    assert {f["rule"] for f in document["findings"]} == {"loss", "tail-loss", "many-packets"}
    assert "231 packets on connection 0" in run("check", LOSS, "--rules", own, status=1).stdout
    run("check", CLEAN, "--rules", own)
    assert "many-packets" in run("rules", "--rules", own).stdout
    assert "Send fewer." in run("rules", "many-packets", "--rules", own).stdout
    found = rocekit.analyze(LOSS, rules=rules_of_file(own)).findings
    assert found[-1].evidence == {"packets": 231} or "many-packets" in {f.rule for f in found}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1 / 0", "cannot be run: ZeroDivisionError"),
        ("import sys; sys.exit(0)", "cannot be run: SystemExit: 0"),
        (OWN.replace("connection.packets > MANY", "exit(0)"), "the rule many-packets failed: SystemExit"),
        ("x = 3", "has no rules"),
        ("RULE = 3", "is no rocekit.findings.Rule"),
        (OWN.replace("many-packets", "loss"), "the rule loss is there twice"),
        (OWN.replace("WARNING,", "'terrible',").replace("import 'terrible',", "import WARNING,"), "severity"),
        (OWN.replace("connection.packets > MANY", "connection.nothing"), "the rule many-packets failed"),
    ],
)
def test_a_wrong_rule_is_one_line(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(text)
    said = run("analyze", CLEAN, "--rules", path, status=1).stderr
    assert words in said
    assert said.count("\n") == 1


def test_an_installed_package_adds_rules_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_findings.py").write_text(OWN)
    about = tmp_path / "my_findings-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-findings\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[rocekit.findings]\nmany = my_findings:RULE\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [rule.name for rule in installed_rules()] == ["many-packets"]
    assert "many-packets" in {f.rule for f in rocekit.analyze(LOSS).findings}
    (about / "entry_points.txt").write_text("[rocekit.findings]\nmany = my_findings:NOTHING\n")
    with pytest.raises(RocekitError, match="my_findings:NOTHING"):
        installed_rules()


def test_assert_no_holds_a_capture_to_its_claim() -> None:
    assert len(check_no(CLEAN).transfers) > 0
    check_no(LOSS, "rnr", "icrc-bad")
    check_no(LOSS, at_least="error")
    for claim in ((), ("tail-loss",)):
        with pytest.raises(pytest.fail.Exception, match="tail-loss: 2 losses"):
            check_no(LOSS, *claim)
    with pytest.raises(ValueError, match="did you mean 'tail-loss'"):
        check_no(LOSS, "tail-los")


def test_a_claim_about_a_capture_without_packets_fails(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pcap"
    empty.write_bytes(CLEAN.read_bytes()[:24])
    with pytest.raises(pytest.fail.Exception, match="No RoCE"):
        check_no(empty, "loss")


def test_a_claim_about_a_capture_that_is_not_there_fails_in_a_line() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"^no-such\.pcap: there is no such file$"):
        check_no("no-such.pcap")


def test_the_fixture_works_in_the_tests_of_another_project(tmp_path: Path) -> None:
    test = tmp_path / "test_theirs.py"
    test.write_text(
        f"def test_clean(assert_no):\n    assert_no({str(CLEAN)!r})\n\n"
        f"def test_loss(assert_no):\n    assert_no({str(LOSS)!r}, 'loss')\n"
    )
    plugin = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", plugin["rocekit"], "-p", "no:cacheprovider", test],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    assert "1 failed, 1 passed" in done.stdout
    assert "At least 7 packets lost" in done.stdout
