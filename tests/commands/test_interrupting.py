"""Ctrl-C while captures are read: what was read is reported as a part, or nothing is."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocekit.commands import interrupting
from rocekit.commands.interrupting import is_reported, stopping
from rocekit.commands.screen import show
from rocekit.report.text import INTERRUPTED
from rocekit.wire.build import build_frame

FOREVER_S = 60


@pytest.fixture(autouse=True)
def _handlers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ctrl-C as a terminal has it, and a deadline that is soon over."""
    monkeypatch.setattr(interrupting, "_REPORT_S", 0.01)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    is_reported()
    signal.signal(signal.SIGINT, before)


def work() -> None:
    """Something that takes long."""
    until = time.monotonic() + FOREVER_S
    while time.monotonic() < until:
        pass


def pressed(*, again: bool) -> bool:
    with stopping(again=again) as stop:
        assert not stop()
        signal.raise_signal(signal.SIGINT)
        return stop()


def test_a_report_of_a_part_of_files_that_takes_long_is_given_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert pressed(again=True)
    with pytest.raises(KeyboardInterrupt):
        work()
    assert "was not ready 0.7 s later" in capsys.readouterr().err


def test_a_report_that_is_there_is_not_ended_while_it_is_looked_at(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert pressed(again=True)
    show("what was read")
    signal.sigtimedwait([], 0.1)
    signal.raise_signal(signal.SIGALRM)  # the deadline
    assert capsys.readouterr() == ("what was read\n", "")


def test_a_stream_cannot_be_read_again_and_is_reported_however_long_that_takes() -> None:
    assert pressed(again=False)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_ctrl_c_before_anything_was_read_ends_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), stopping(again=True):
        signal.raise_signal(signal.SIGINT)


# ---------------------------------------------------------------------- commands


@pytest.fixture(scope="module")
def traffic(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """More than is read at once and than a pipe holds."""
    from capture_bytes import Frame, pcap

    return pcap(
        [
            Frame(build_frame("RC_SEND_ONLY", src="10.0.0.1", dst="10.0.0.2", dest_qpn=5, psn=n), n * 1000)
            for n in range(40_000)
        ]
    )


def interrupted(words: list[str], data: bytes, folder: Path) -> str:
    """What a command says of the part of its standard input that it had read when Ctrl-C came."""
    told = folder / "told"
    command = [sys.executable, "-m", "rocekit.cli", words[0], "-", *words[1:]]
    with told.open("wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT)
    with process:
        assert process.stdin is not None
        process.stdin.write(data[:-20_000])
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        assert process.wait(FOREVER_S) == 130
    return told.read_text()


@pytest.mark.parametrize("command", ["stats", "topology", "analyze"])
def test_a_text_of_a_part_says_so(command: str, traffic: bytes, tmp_path: Path) -> None:
    assert INTERRUPTED in interrupted([command], traffic, tmp_path)


@pytest.mark.parametrize("command", ["stats", "topology", "analyze"])
def test_json_of_a_part_says_so(command: str, traffic: bytes, tmp_path: Path) -> None:
    document = json.loads(interrupted([command, "--format", "json"], traffic, tmp_path))
    assert document["capture"]["interrupted"] is True


@pytest.mark.parametrize("words", [["explain"], ["explain", "--transfer", "39000"], ["check"]])
def test_what_would_be_wrong_of_a_part_is_not_said(words: list[str], traffic: bytes, tmp_path: Path) -> None:
    """Nothing tells which transfers the rest has, nor whether it holds."""
    assert interrupted(words, traffic, tmp_path) == ""
