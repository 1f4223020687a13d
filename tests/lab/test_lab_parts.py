"""What runs the parts of the lab's tests, each as a fork of one process: here without a lab and its wire."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lab_parts
import pytest
from lab_parts import LISTING, RETURNCODE, STATUS, Task
from places import TOOLS
from processes import eventually, exists

from rocekit.lab.agent import TIMED_OUT

LEAVES = """
import os, subprocess, sys
print(sys.argv[1:], __name__, os.getsid(0) == os.getpid(), sys.path[1])
print("to standard error", file=sys.stderr)
# Two that stay: one in this session, one in its own.
for own in (False, True):
    print(subprocess.Popen(["sleep", "1000"], start_new_session=own).pid)
sys.exit(3)
"""
WAITS = "import time; print('waits', flush=True); time.sleep(1000)"
RAISES = "raise ValueError('as it happens')"


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which four parts have ended."""
    folder = tmp_path_factory.mktemp("parts")
    out = folder / "out"
    out.mkdir()
    tasks = []
    for name, script, timeout_s in (
        ("leaves", LEAVES, 60.0),
        ("waits", WAITS, 2.0),
        ("raises", RAISES, 60.0),
    ):
        path = folder / f"{name}.py"
        path.write_text(script)
        tasks.append(Task(name, (str(path), "one", "two"), timeout_s, 2, True, ("json", "no_such_module")))
    tasks.append(Task("module", ("-m", "json.tool", "--help"), 60.0, 2, True))
    listing = folder / LISTING
    listing.write_text(json.dumps([asdict(task) for task in tasks]))
    done = subprocess.run(
        [sys.executable, lab_parts.__file__, str(listing), str(TOOLS)],
        env={**os.environ, "ROCEKIT_LAB_OUT": str(out)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (RETURNCODE, "to standard error\n")
    return out


def status(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / STATUS).read_text())
    return found


def test_a_part_runs_as_a_program_of_its_own(ended: Path) -> None:
    part = ended / "leaves"
    assert (status(part)["returncode"], status(part)["timed_out"]) == (3, False)
    said = (part / "stdout.txt").read_text().splitlines()
    assert said[0] == f"['one', 'two'] __main__ True {TOOLS}"
    assert (part / "stderr.txt").read_text() == "to standard error\n"
    assert status(part)["files"]["stdout.txt"] == len((part / "stdout.txt").read_bytes())


def test_what_a_part_leaves_running_is_ended(ended: Path) -> None:
    pids = [int(line) for line in (ended / "leaves" / "stdout.txt").read_text().splitlines()[1:]]
    assert len(pids) == 2
    assert eventually(lambda: not any(exists(pid) for pid in pids))


def test_a_part_that_runs_out_of_time_is_ended_and_says_so(ended: Path) -> None:
    found = status(ended / "waits")
    assert (found["returncode"], found["timed_out"]) == (TIMED_OUT, True)
    assert (ended / "waits" / "stdout.txt").read_text() == "waits\n"


def test_a_part_that_raises_ends_with_its_traceback(ended: Path) -> None:
    assert status(ended / "raises")["returncode"] == 1
    assert (ended / "raises" / "stderr.txt").read_text().endswith("ValueError: as it happens\n")


def test_a_part_may_be_a_module(ended: Path) -> None:
    assert status(ended / "module")["returncode"] == 0
    assert "usage: " in (ended / "module" / "stdout.txt").read_text()
