"""The LAKE is the same to the byte, whatever the number of workers and whatever was killed in between."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from amount import MORE
from click.testing import CliRunner, Result
from fleet_cluster import WORKERS, dask_cluster
from fleet_lake import contents, made
from places import ROOT
from processes import status_of

from rocekit.cli import rocekit as cli
from rocekit.commands import fleet_analyze
from rocekit.errors import RocekitError
from rocekit.fleet.judgement import summarize
from rocekit.fleet.lake import Lake
from rocekit.fleet.query import connect, dicts
from rocekit.fleet.run import FleetProgress, add_streams, cluster
from rocekit.fleet.stream_tables import LakeSettings
from rocekit.fleet.streams import find_streams
from rocekit.fleet.witnesses import add_conversations

#: As a group: the processes of a cluster at a time are enough for a small machine.
pytestmark = pytest.mark.xdist_group("fleet")


@pytest.fixture(scope="module")
def dask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with dask_cluster(tmp_path_factory.mktemp("dask")) as running:
        yield running


def analyze_command(captures: Path, lake: Path, dask: str, *more: str) -> list[str]:
    return ["fleet", "analyze", str(captures), "-o", str(lake), "--scheduler", dask, *more]


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(cli, list(arguments))
    assert result.exit_code == 0, result.output
    return result


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
        # Ctrl-C of a terminal reaches them, too: they end with the process that handles it.
        for pid in pids:
            assert all(int(one["SigBlk"], 16) >> (signal.SIGINT - 1) & 1 for one in status_of(pid))

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


@pytest.mark.skipif(not MORE, reason="scripts/test --more starts a cluster of its own for it")
def test_ctrl_c_in_a_terminal_ends_a_run_and_its_workers_without_a_word(
    captures: Path, tmp_path: Path
) -> None:
    words = "import sys; sys.argv[0] = 'rocekit'; from rocekit.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", words, "fleet", "analyze", captures, "-o", tmp_path / "lake", "--watch"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stderr is not None
    assert b"dashboard" in process.stderr.readline()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    assert process.communicate(timeout=240) == (b"", b"")  # and nobody has the other ends any more
    assert process.returncode == 130


class Few(NamedTuple):
    """Three captures, one of them unreadable and two split, and the LAKE that one process makes of them."""

    captures: Path
    split: str
    lake: Path


@pytest.fixture(scope="module")
def few(captures: Path, tmp_path_factory: pytest.TempPathFactory) -> Few:
    folder = tmp_path_factory.mktemp("few")
    sources = folder / "captures"
    sources.mkdir()
    for name in ("broken.pcap", "host0006.pcap", "host0007.pcap"):
        shutil.copy(captures / name, sources)
    size = max(path.stat().st_size for path in sources.iterdir()) * 2 // 3
    lake = made(folder / "lake", sources, settings=LakeSettings(split_bytes=size))
    return Few(sources, str(size), lake)


def test_workers_of_an_external_scheduler_make_the_lake_of_one_process(
    few: Few, dask: str, tmp_path: Path
) -> None:
    """Large captures are split, too: the parts are the same whoever analyzes them."""
    lake = tmp_path / "lake"
    done = run(*analyze_command(few.captures, lake, dask, "--split", few.split))
    assert "Dask's dashboard" in done.output
    assert f"unreadable: {few.captures / 'broken.pcap'}: not a capture" in done.stderr
    assert f"{lake}: 5 captures analyzed, 1 unreadable" in done.output
    assert contents(lake) == contents(few.lake)
    again = run(*analyze_command(few.captures, lake, dask, "--split", few.split))
    assert "0 captures analyzed, 3 were there, 1 unreadable" in again.output
    assert contents(lake) == contents(few.lake)


def test_a_run_whose_client_was_killed_goes_on_where_it_was(
    captures: Path, lake: Path, dask: str, tmp_path: Path
) -> None:
    own = tmp_path / "lake"
    command = [sys.executable, "-m", "rocekit", *analyze_command(captures, own, dask)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        end = time.monotonic() + 120
        while not list(own.glob("day=*/point=*/*/captures.parquet")):
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.01)
        process.kill()
    complete = {path.parent for path in own.glob("day=*/point=*/*/captures.parquet")}
    assert all(list(folder.iterdir()) for folder in complete)
    assert not Lake(own).judged
    done = run(*analyze_command(captures, own, dask))
    assert "were there" in done.output
    assert contents(own) == contents(lake)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.97] if MORE else [0.5])
def test_after_a_full_disk_the_same_command_completes_the_lake(
    share: float, few: Few, tmp_path: Path
) -> None:
    """The disk is a small one in memory; it is full before the first capture, among them, or at the end."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare (util-linux) to mount a small file system")
    mounted, out = tmp_path / "disk", tmp_path / "out"
    mounted.mkdir()
    need = sum(-(-path.stat().st_size // 4096) * 4 for path in few.lake.rglob("*.parquet"))
    program = ROOT / "tests" / "tools" / "fleet_disk_full.py"
    command = ["unshare", "--mount", sys.executable, *map(str, (program, few.captures, mounted))]
    done = subprocess.run(
        [*command, str(max(4, int(need * share))), str(out), few.split],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no mount namespace here: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    (status, said, _), (status_again, said_again, _) = told["runs"]
    assert status == 1, told
    (line,) = [line for line in said.splitlines() if line.startswith("rocekit: error: ")]
    assert "No space left on device" in line
    assert told["left"] == told["whole"]  # complete captures only
    assert told["staged"] == []
    assert bool(told["left"]) == (share > 0)
    assert status_again == 0, said_again
    assert contents(out) == contents(few.lake)


def test_watch_adds_what_is_new_and_what_has_grown_until_ctrl_c(
    captures: Path, dask: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_analyze, "LOOK_S", 0.05)
    sources, lake = tmp_path / "captures", tmp_path / "lake"
    sources.mkdir()
    whole = (captures / "host0000.pcap").read_bytes()
    steps = [  # what is written, and the points of the LAKE then
        ("a.pcap", whole[: len(whole) // 2], {"a"}),
        ("b.pcap", (captures / "host0001.pcap").read_bytes(), {"a", "b"}),
        ("a.pcap", whole, {"a", "b"}),
        ("b.pcap1", (captures / "host0002.pcap").read_bytes(), {"a", "b"}),
    ]
    seen: list[dict[str, int]] = []

    def act() -> None:
        """Do each step once the one before is in the LAKE; then press Ctrl-C."""
        judged = 0
        try:
            for name, data, points in steps:
                (sources / name).write_bytes(data)
                end = time.monotonic() + 120
                while time.monotonic() < end:
                    rows, last = _frames(lake), _judged(lake)
                    if set(rows) == points and rows not in seen and last > judged:
                        judged = last
                        seen.append(rows)
                        break
                    time.sleep(0.05)
        finally:
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGINT)

    actor = threading.Thread(target=act)
    actor.start()
    result = CliRunner().invoke(cli, analyze_command(sources, lake, dask, "--watch"))
    actor.join()
    assert len(seen) == len(steps), (seen, result.output)
    assert seen[2]["a"] > seen[1]["a"]
    assert seen[3]["b"] > seen[2]["b"]
    assert (result.exit_code, "1 older replaced" in result.output) == (130, True), result.output
    assert "Traceback" not in result.output
    assert contents(lake) == contents(made(tmp_path / "alone", sources))


def _judged(lake: Path) -> int:
    """When the last of the tables of the whole LAKE was written."""
    path = lake / "summary" / "links.parquet"
    return path.stat().st_mtime_ns if path.exists() else 0


def _frames(lake: Path) -> dict[str, int]:
    """By capture point, frames; none while a capture that has grown is there twice, or the LAKE is not."""
    try:
        rows = dicts(connect(Lake(lake)), "SELECT point, frames FROM captures")
    except RocekitError:
        return {}
    found = {row["point"]: row["frames"] for row in rows}
    return found if len(found) == len(rows) else {}


def test_a_scheduler_that_does_not_answer_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocekit.fleet.run.ANSWER_S", 0.2)
    with (
        pytest.raises(RocekitError, match=r"tcp://127.0.0.1:9: the scheduler does not answer"),
        cluster("tcp://127.0.0.1:9", None, "auto"),
    ):
        pass


@pytest.mark.parametrize("address", ["nowhere", "tcp://", "http://127.0.0.1:1", "tcp://127.0.0.1"])
def test_what_is_no_scheduler_is_one_line(
    address: str, captures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocekit.fleet.run.ANSWER_S", 0.2)
    result = CliRunner().invoke(
        cli, ["fleet", "analyze", str(captures), "-o", str(tmp_path / "lake"), "--scheduler", address]
    )
    assert result.exit_code == 1
    assert result.output.startswith(f"rocekit: error: {address}: "), result.output
    assert result.output.count("\n") == 1


@pytest.mark.parametrize("memory", ["lots", "0", "-1GiB", "0.5", "100MB"])
def test_a_memory_in_which_no_worker_can_be_is_a_wrong_command_line(
    memory: str, captures: Path, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    result = CliRunner().invoke(
        cli, ["fleet", "analyze", str(captures), "-o", str(lake), f"--memory={memory}"]
    )
    assert result.exit_code == 2
    assert f"'{memory}' is neither auto nor at least 256 MiB" in result.output
    assert not lake.exists()


def test_two_runs_do_not_add_to_one_lake_at_once(lake: Path) -> None:
    with Lake(lake).alone(), pytest.raises(RocekitError, match="another"), Lake(lake).alone():
        pass


def test_progress_says_what_is_done_and_what_is_left() -> None:
    progress = FleetProgress(4, workers=WORKERS, done=1, packets=10, unreadable=1)
    assert progress.words().startswith("1 of 4 captures, ")
    assert "2 workers, 1 unreadable, about " in progress.words()
    assert "waiting for a worker" in FleetProgress(4).words()
    # Where a run goes on, what was there says nothing of the time that the rest takes.
    progress = FleetProgress(1000, done=500, new=10, began=time.monotonic() - 10)
    assert progress.left_s == pytest.approx(500, rel=0.1)


def test_progress_on_a_terminal_is_one_line_and_what_fails_stays(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "30")
    line = fleet_analyze._Line()
    progress = FleetProgress(3, workers=2, what="conversation")
    line(progress)
    for number in range(fleet_analyze.SHOWN + 3):
        progress.troubles.append(f"unreadable: {number}\x1b[31m")
    progress.done = 3
    line(progress)
    shown = [part.removeprefix("\x1b[2K") for part in capsys.readouterr().err.split("\r")]
    assert [part for part in shown if part.startswith("3 of 3")] == ["3 of 3 conversations, 2 worke\n"]
    assert sum(part.startswith("unreadable: ") for part in shown) == fleet_analyze.SHOWN
    assert "more fail: see the end, and captures.error for the unreadable\n" in shown
    assert not any("\x1b" in part for part in shown)
