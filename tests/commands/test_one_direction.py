"""A capture of one direction says so first, and judges that direction."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from capture_bytes import Frame, pcap
from click.testing import CliRunner
from places import PCAPS

import rocekit
from rocekit.cli import rocekit as command
from rocekit.files.reader import open_capture
from rocekit.packets.decoder import Decoder

SOURCE = PCAPS / "ping-write-loss-behind.pcap"
A, B = "10.9.0.1", "10.9.0.2"


def run(*words: object) -> str:
    result = CliRunner().invoke(command, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.output


def only_from(sender: str, path: Path) -> Path:
    """The frames of the source that one host sent."""
    decoder, frames = Decoder(), []
    with open_capture(SOURCE) as capture:
        for batch in capture:
            packets = decoder.decode(batch)
            own = [packets.addresses[i] == sender for i in packets.src]
            every = zip(batch.time_ns.tolist(), batch.frames(), own, strict=True)
            frames += [Frame(frame, time_ns) for time_ns, frame, mine in every if mine]
    path.write_bytes(pcap(frames, unit="ns"))
    return path


@pytest.mark.parametrize(("sender", "silent"), [(A, B), (B, A)])
def test_it_is_said_first(tmp_path: Path, sender: str, silent: str) -> None:
    path = only_from(sender, tmp_path / "x.pcap")
    said = f"One direction only: no packet from {silent} to {sender}."
    assert run("analyze", path).splitlines()[1].strip().startswith(said)
    assert run("explain", path).startswith(said)
    assert said in run("report", path, "-o", tmp_path / "x.html")
    capture = json.loads(run("analyze", path, "--format", "json"))["capture"]
    assert capture["one_direction"] == [{"src": silent, "dst": sender}]


def test_a_direction_without_trouble_is_no_all_clear(tmp_path: Path) -> None:
    analysis = rocekit.analyze(only_from(B, tmp_path / "x.pcap"))
    assert not analysis.findings
    assert "No findings in the direction that was captured." in str(analysis)
    assert "no loss" not in str(analysis)


def test_captures_of_both_directions_do_not_say_it() -> None:
    for name in ("ping-write-loss-behind.pcap", "ping-write-dead.pcap", "ud-clean.pcap"):
        assert not rocekit.analyze(PCAPS / name).capture.silent
