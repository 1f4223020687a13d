"""The story of packets as fields in Wireshark: a sidecar and a Lua post-dissector, read by tshark."""

from __future__ import annotations

import shlex
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest
from click.testing import CliRunner
from places import PCAPS

import rocekit
from rocekit.cli import rocekit as cli
from rocekit.errors import RocekitError
from rocekit.report.wireshark import lua_script, write_sidecar

LOSS = PCAPS / "ping-write-loss-behind.pcap"
FIELDS = (
    "frame.number",
    "rocekit.transfer",
    "rocekit.round",
    "rocekit.cause",
    "rocekit.finding",
    "rocekit.role",
)


def asked(
    tshark: str, capture: Path, sidecar: Path | str, fields: tuple[str, ...], wanted: str = ""
) -> list[list[str]]:
    command = [tshark, "-n", "-X", f"lua_script:{lua_script()}", "-o", f"rocekit.sidecar:{sidecar}"]
    command += ["-r", str(capture), "-T", "fields", *(["-Y", wanted] if wanted else [])]
    for field in fields:
        command += ["-e", field]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    if "Lua" in done.stderr and "not" in done.stderr:
        pytest.skip("this tshark has no Lua")
    return [line.split("\t") for line in done.stdout.splitlines()]


def sidecar_of(capture: Path, folder: Path) -> Path:
    path = folder / "x.rocekit.tsv"
    result = CliRunner().invoke(
        cli, ["annotate", str(capture), str(folder / "out.pcapng"), "--sidecar", str(path)]
    )
    assert result.exit_code == 0, result.output
    return path


def test_annotate_prints_a_command_that_shows_the_fields(tshark: str, tmp_path: Path) -> None:
    path, out = tmp_path / "x y.rocekit.tsv", tmp_path / "out.pcapng"
    result = CliRunner().invoke(cli, ["annotate", str(LOSS), str(out), "--sidecar", str(path)])
    command = shlex.split(result.output.partition("shown by ")[2])
    fields = ["-Y", "rocekit.round > 1", "-T", "fields", "-e", "frame.number"]
    done = subprocess.run(
        [tshark, *command[1:], *fields], capture_output=True, text=True, timeout=120, check=False
    )
    if "Lua" in done.stderr and "not" in done.stderr:
        pytest.skip("this tshark has no Lua")
    stories = rocekit.packet_stories(rocekit.analyze(LOSS))
    again = stories.packets.frame[stories.round > 1].tolist()
    assert len(again) == 30
    assert [int(n) for n in done.stdout.split()] == again


@pytest.mark.parametrize(
    "name", ["ping-write-loss-behind.pcap", "ping-read-response-loss.pcap", "rping-clean.pcap"]
)
def test_tshark_has_each_packets_transfer_round_and_findings(tshark: str, name: str, tmp_path: Path) -> None:
    capture = PCAPS / name
    told = asked(tshark, capture, sidecar_of(capture, tmp_path), FIELDS, "rocekit")
    analysis = rocekit.analyze(capture)
    stories = rocekit.packet_stories(analysis)
    found: dict[int, set[str]] = defaultdict(set)
    for finding in analysis.findings:
        for frame in finding.frames:
            found[frame].add(finding.rule)
    assert len(told) == len(stories)
    for row, (number, transfer, sent, _, rules, _) in enumerate(told):
        assert int(number) == stories.packets.frame[row]
        assert transfer == ("" if stories.transfer[row] < 0 else str(stories.transfer[row]))
        assert sent == ("" if stories.round[row] < 1 else str(stories.round[row]))
        assert set(rules.split(",")) - {""} == found[int(number)]


def test_fields_filter_and_stand_in_annotated_copies_too(tshark: str, tmp_path: Path) -> None:
    sidecar = sidecar_of(LOSS, tmp_path)
    for capture in (LOSS, tmp_path / "out.pcapng"):
        again = asked(tshark, capture, sidecar, FIELDS, 'rocekit.round > 1 && rocekit.finding == "loss"')
        assert [int(row[0]) for row in again] == [26, 49, 72, 124, 147, 199, 222]
        assert {tuple(row[2:4]) for row in again} == {("2", "nak")}


def test_a_sidecar_of_another_capture_is_noticed(tshark: str, tmp_path: Path) -> None:
    other = PCAPS / "ping-read-loss.pcap"
    told = asked(
        tshark, other, sidecar_of(LOSS, tmp_path), ("rocekit.transfer", "rocekit.problem"), "rocekit"
    )
    assert {tuple(row) for row in told} == {("", "the sidecar is of another capture")}


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "cannot be opened"), ("frame\n1\n", "not a sidecar of this version"), ("", "not a sidecar")],
)
def test_what_is_no_sidecar_is_said(tshark: str, text: str | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "x.tsv"
    if text is not None:
        path.write_text(text)
    told = asked(tshark, LOSS, path, ("rocekit.transfer", "rocekit.problem"), "frame.number == 1")
    assert len(told) == 1
    assert said in told[0][1]


def test_no_sidecar_shows_nothing(tshark: str) -> None:
    assert asked(tshark, LOSS, "", ("frame.number",), "rocekit") == []


def test_a_sidecar_is_for_one_capture_and_no_file_that_is_read(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        cli, ["annotate", str(LOSS), str(LOSS), str(tmp_path / "both"), "--sidecar", str(tmp_path / "x")]
    )
    assert result.exit_code == 2
    assert "--sidecar is for one capture" in result.output
    with pytest.raises(RocekitError, match="this is the file that is read"):
        write_sidecar(rocekit.analyze(LOSS), LOSS)
