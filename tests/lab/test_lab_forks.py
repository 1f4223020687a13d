"""What stands in for `rocekit` inside the lab is a process like the one that it stands in for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE, STDOUT

import pytest
from lab_forks import Forks


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks() as made:
        yield made


@pytest.mark.parametrize(
    "arguments",
    [("rules", "rnr"), ("--version",), ("inject", "no-such-scenario"), ("analyze", "/no/such/file")],
)
def test_it_says_and_ends_as_the_program_does(forks: Forks, arguments: tuple[str, ...]) -> None:
    program = [sys.executable, "-c", "from rocekit.cli import main; main()", *arguments]
    real = subprocess.run(program, capture_output=True, text=True, check=False)
    fork = forks.start(*arguments, stdout=PIPE, stderr=PIPE)
    assert fork.communicate(timeout=60) == (real.stdout, real.stderr)
    assert fork.returncode == real.returncode


def test_it_has_its_own_environment_folder_and_session(forks: Forks, tmp_path: Path) -> None:
    script = 'echo $ROCEKIT_HERE; pwd; ps -o sid= -p $$ | tr -d " "'
    fork = forks.start(
        *("record", "-q", "-o", "x.journal.jsonl", "--", "sh", "-c", script),
        stdout=PIPE,
        stderr=STDOUT,
        env=os.environ | {"ROCEKIT_HERE": "this is it"},
        cwd=tmp_path,
        start_new_session=True,
    )
    said, _ = fork.communicate(timeout=60)
    assert said.splitlines() == ["this is it", str(tmp_path), str(fork.pid)]
    assert fork.returncode == 0
    assert (tmp_path / "x.journal.jsonl").exists()


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 1), (signal.SIGKILL, -9)]
)
def test_a_signal_reaches_it(forks: Forks, number: int, status: int) -> None:
    # The wire within this machine: a server that waits for a client for long.
    fork = forks.start("inject", "ping-sr", "--backend", "soft", "--timeout", "100", stderr=PIPE)
    assert fork.stderr is not None
    assert "listening" in fork.stderr.readline()
    assert fork.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        fork.wait(0.01)
    fork.send_signal(number)
    assert fork.wait(60) == status
    assert not Path(f"/proc/{fork.pid}").exists()
