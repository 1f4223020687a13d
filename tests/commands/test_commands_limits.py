"""``--limit``: a limit that a line names can be raised, before or behind the command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from capture_bytes import Frame, pcap
from click.testing import CliRunner, Result
from places import PCAPS, ROOT

from rocekit import cli
from rocekit.machine.limits import LIMITS, usual_limits
from rocekit.wire.build import build_frame

CLEAN = str(PCAPS / "rping-clean.pcap")


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    yield
    usual_limits()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.rocekit, arguments)


@pytest.mark.parametrize("behind", [False, True])
def test_a_limit_that_is_met_is_named_and_can_be_raised(tmp_path: Path, behind: bool) -> None:
    long = tmp_path / "x.yaml"
    long.write_text("packets: [" + "{op: RC_SEND_ONLY, dest_qpn: 2}, " * 10 + "]")
    out = str(tmp_path / "x.pcap")

    def craft(limit: int) -> Result:
        usual_limits()
        option = ("--limit", f"yaml-values={limit}")
        return (
            run("craft", str(long), "-w", out, *option)
            if behind
            else run(*option, "craft", str(long), "-w", out)
        )

    met = craft(20)
    assert met.exit_code == 1
    assert "more than 20 values, with those of aliases; --limit yaml-values=N raises that" in met.stderr
    assert craft(1000).exit_code == 0


def test_an_analysis_that_met_a_limit_says_so_in_text_and_json(tmp_path: Path) -> None:
    """Forty requests of one PSN between two hosts, and as many responses: each may be to any of them."""
    ways = (("RC_SEND_ONLY", "10.0.0.1", "10.0.0.2", 2), ("RC_ACKNOWLEDGE", "10.0.0.2", "10.0.0.1", 100))
    frames = [
        build_frame(opcode, src=src, dst=dst, dest_qpn=first + n, psn=7)
        for opcode, src, dst, first in ways
        for n in range(40)
    ]
    capture = tmp_path / "x.pcap"
    capture.write_bytes(pcap([Frame(frame, n) for n, frame in enumerate(frames)]))

    def told(*option: str) -> tuple[str, list[str]]:
        usual_limits()
        document = json.loads(run("analyze", str(capture), "--format", "json", *option).stdout)
        return run("analyze", str(capture), *option).stdout, [
            met["limit"] for met in document["capture"]["limits_met"]
        ]

    text, named = told("--limit", "pairing-looks=10")
    assert "limit pairing-looks (10) met: some responses were not compared with all flows" in text
    assert "--limit pairing-looks=N raises that" in text
    assert named == ["pairing-looks"]
    text, named = told()
    assert "pairing-looks" not in text
    assert named == []


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("coffee=1", "no limit is called 'coffee'; there are "),
        ("yaml-values", "'yaml-values' is not NAME=N"),
        ("yaml-values=many", "'yaml-values=many' is not NAME=N"),
        ("yaml-values=²", "'yaml-values=²' is not NAME=N"),
        ("yaml-values=" + "9" * 5000, "is not NAME=N"),
        ("yaml-values=0", "yaml-values takes a number from 1"),
    ],
)
def test_what_is_no_limit_is_a_wrong_command_line(option: str, words: str) -> None:
    result = run("--limit", option, "analyze", CLEAN)
    assert (result.exit_code, words in " ".join(result.stderr.split())) == (2, True)


def test_the_guide_has_every_limit_and_its_usual_value() -> None:
    guide = (ROOT / "docs" / "guide" / "limits.md").read_text()
    for name, limit in LIMITS.items():
        assert f"| `{name}` | {limit.usual:,} | {limit.words} |" in guide
