"""What stands in for `rocekit` inside the lab is a process like the one that it stands in for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE, STDOUT

import pytest
from lab_forks import Forks
from places import INSIDE, PCAPS


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks() as made:
        yield made


COMMANDS = (("rules", "rnr"), ("--version",), ("inject", "no-such-scenario"), ("analyze", "/no/such/file"))
#: A process that has loaded everything forks what answers, rather than start it.
LOADED = """
import json, signal, sys
from subprocess import PIPE
import lab_forks
lab_forks.load(*lab_forks.PRELOADED)
lab_forks.subprocess.Popen = None  # nothing is started
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(77))
with lab_forks.Forks() as forks:
    for arguments in json.loads(sys.argv[1]):
        fork = forks.start(*arguments, stdout=PIPE, stderr=PIPE)
        print(json.dumps([*fork.communicate(timeout=240), fork.returncode]))
    fork = forks.start("inject", "ping-sr", "--backend", "soft", "--timeout", "100", stderr=PIPE)
    fork.stderr.readline()
    fork.terminate()
    print(fork.wait(60))
"""


def really(arguments: tuple[str, ...], stdin: int | None = None) -> tuple[str, str, int]:
    """What the program itself says, and how it ends."""
    program = [sys.executable, "-c", "from rocekit.cli import main; main()", *arguments]
    done = subprocess.run(program, stdin=stdin, capture_output=True, text=True, check=False)
    return done.stdout, done.stderr, done.returncode


def test_what_a_process_that_has_loaded_it_forks_does_the_same() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED, json.dumps(COMMANDS)],
        env={**os.environ, "PYTHONPATH": str(INSIDE)},
        capture_output=True,
        text=True,
        check=True,
    )
    *found, last = done.stdout.splitlines()
    assert [tuple(json.loads(line)) for line in found] == [really(arguments) for arguments in COMMANDS]
    assert (last, done.stderr) == ("1", "")


@pytest.mark.parametrize("arguments", COMMANDS)
def test_it_says_and_ends_as_the_program_does(forks: Forks, arguments: tuple[str, ...]) -> None:
    fork = forks.start(*arguments, stdout=PIPE, stderr=PIPE)
    assert (*fork.communicate(timeout=240), fork.returncode) == really(arguments)


def test_it_reads_the_input_that_it_is_given(forks: Forks) -> None:
    words, capture = ("decode", "-", "-c", "3"), PCAPS / "rping-clean.pcap"
    with capture.open("rb", 0) as one, capture.open("rb", 0) as other:
        fork = forks.start(*words, stdin=one.fileno(), stdout=PIPE, stderr=PIPE)
        assert (*fork.communicate(timeout=240), fork.returncode) == really(words, other.fileno())
    assert fork.returncode == 0


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
    said, _ = fork.communicate(timeout=240)
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
