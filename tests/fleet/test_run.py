"""The LAKE is the same to the byte, whatever the number of workers and whatever was killed in between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fleet_lake import contents

from rocekit.cli import rocekit as cli
from rocekit.errors import RocekitError
from rocekit.fleet.judgement import summarize
from rocekit.fleet.lake import Lake
from rocekit.fleet.run import FleetProgress, add_streams, cluster
from rocekit.fleet.stream_tables import LakeSettings
from rocekit.fleet.streams import find_streams
from rocekit.fleet.witnesses import add_conversations

#: As a group: the processes of a cluster at a time are enough for a small machine.
pytestmark = pytest.mark.xdist_group("fleet")


def test_two_workers_of_which_one_is_killed_make_the_lake_of_one_process(
    captures: Path, lake: Path, tmp_path: Path
) -> None:
    own = Lake(tmp_path / "lake")
    own.make(LakeSettings())
    streams = find_streams([captures])
    killed: list[int] = []
    with own.alone(), cluster(None, 2, "auto") as client:
        pids = list(client.run(os.getpid).values())
        assert len(set(pids)) == 2

        def kill(progress: FleetProgress) -> None:
            if not killed:
                killed.append(pids[0])
                os.kill(pids[0], signal.SIGKILL)

        progress = add_streams(client, own, streams, LakeSettings(), kill)
        together = add_conversations(client, own)
        summarize(own)
    assert killed
    assert progress.failed == together.failed == []
    assert (progress.done, progress.unreadable) == (len(streams), 1)
    assert contents(own.folder) == contents(lake)


def test_a_run_whose_client_was_killed_goes_on_where_it_was(
    captures: Path, lake: Path, tmp_path: Path
) -> None:
    own = tmp_path / "lake"
    command = [sys.executable, "-m", "rocekit", "fleet", "analyze", str(captures), "-o", str(own)]
    command += ["--workers", "1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        end = time.monotonic() + 120
        while not list(own.glob("day=*/point=*/*/captures.parquet")):
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.01)
        process.kill()
    complete = {path.parent for path in own.glob("day=*/point=*/*/captures.parquet")}
    assert all(list(folder.iterdir()) for folder in complete)
    done = _run(captures, own)
    assert "were there" in done.output
    assert contents(own) == contents(lake)


def _run(*arguments: Any) -> Any:
    result = CliRunner().invoke(
        cli, ["fleet", "analyze", str(arguments[0]), "-o", str(arguments[1]), "--workers", "1"]
    )
    assert result.exit_code == 0, result.output
    return result


def test_a_scheduler_that_does_not_answer_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocekit.fleet.run.ANSWER_S", 1)
    with (
        pytest.raises(RocekitError, match=r"tcp://127.0.0.1:9: the scheduler does not answer"),
        cluster("tcp://127.0.0.1:9", None, "auto"),
    ):
        pass


def test_two_runs_do_not_add_to_one_lake_at_once(lake: Path) -> None:
    with Lake(lake).alone(), pytest.raises(RocekitError, match="another"), Lake(lake).alone():
        pass


def test_progress_says_what_is_done_and_what_is_left() -> None:
    progress = FleetProgress(4, workers=2, done=1, packets=10, unreadable=1)
    assert progress.words().startswith("1 of 4 captures, ")
    assert "2 workers, 1 unreadable, about " in progress.words()
