"""``rocekit trace --trigger``: always on, it writes only the time around a finding."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from handmade import batch_of
from test_trace import frames, live, root_only, shots

import rocekit
from rocekit import cli
from rocekit.live.flight_recorder import FlightRecorder

CLEAN = "\n".join(f"a RC_SEND_ONLY {psn} 64\n b ACK {psn}" for psn in range(5, 25))
LOST = """
a RC_SEND_ONLY 25 64  # lost behind the capture
a RC_SEND_ONLY 26 64
b NAK 25
a RC_SEND_ONLY 25 64 identification=99
a RC_SEND_ONLY 26 64
b ACK 26
"""
SECOND = 10**9


def record(folder: Path, parts: list[tuple[int, list[bytes]]], wanted: tuple[str, ...]) -> FlightRecorder:
    """Frames that came at these seconds, a µs apart."""
    recorder = FlightRecorder(folder / "x.pcapng", wanted, 2 * SECOND)
    for second, sent in parts:
        times = 10**18 + second * SECOND + 100_000 * np.arange(len(sent), dtype=np.int64)
        recorder._looked_s = -1e9  # as if the pause were over
        recorder.write_batch(replace(batch_of(sent), time_ns=times))
    recorder.close()
    return recorder


def test_only_the_time_around_the_finding_is_written(tmp_path: Path) -> None:
    clean, lost = shots(CLEAN), shots(LOST)
    parts = [(0, clean[:10]), (8, clean[10:20]), (10, clean[20:]), (11, lost), (12, []), (40, clean)]
    recorder = record(tmp_path, [part for part in parts if part[1]], ("loss",))
    (file,) = recorder.files
    kept = frames(file)
    assert set(lost) <= set(kept)
    assert kept == clean[10:] + lost
    assert "loss" in {f.rule for f in rocekit.analyze(file).findings}


def test_without_the_finding_nothing_is_written(tmp_path: Path) -> None:
    assert record(tmp_path, [(0, shots(CLEAN))], ("any",)).files == []
    assert record(tmp_path, [(0, shots(CLEAN)), (1, shots(LOST))], ("rnr",)).files == []
    assert list(tmp_path.iterdir()) == []


@root_only
def test_a_live_trace_writes_when_a_packet_is_lost_and_not_before(tmp_path: Path) -> None:
    told = live(
        tmp_path,
        """
        traced = trace("--quiet", "--write", "x.pcapng", "--trigger", "loss", "--around", "1s")
        send(0)
        time.sleep(1.5)
        assert not [name for name in os.listdir() if name.startswith("x_")]
        send(1)
        until(lambda: [name for name in os.listdir() if name.startswith("x_")])
        traced.send_signal(signal.SIGINT)
        tell(traced)
        """,
        shots(CLEAN),
        shots(LOST),
    )
    assert told["status"] == 0, told
    (file,) = tmp_path.glob("x_*.pcapng")
    assert told["err"].strip() == f"written: {file.name}"
    assert frames(file)[-6:] == shots(LOST)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--trigger", "loss"], "--trigger is for --write"),
        (["--trigger", "lost", "--write", "x.pcapng"], "no finding 'lost'"),
        (["--trigger", "loss", "--write", "x.pcapng", "--rotate", "1M"], "leave out --rotate"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: list[str], said: str) -> None:
    result = CliRunner().invoke(cli.rocekit, ["trace", "lo", *options])
    assert result.exit_code == 2
    assert said in result.output
