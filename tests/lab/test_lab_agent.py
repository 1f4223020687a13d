"""The agent runs a command, passes its output on, and ends it in time."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from processes import eventually, exists

from rocekit.lab import agent, link
from rocekit.lab.net import LabError

SERVE = """
import contextlib, sys
from rocekit.lab import agent
agent.wired = lambda **netem: contextlib.nullcontext()   # no devices: the rest is what is tested
agent.GRACE_S = 0.3
sys.exit(agent.main(sys.argv[1:]))
"""


@dataclass
class Ran:
    session: link.Session
    stdout: str
    stderr: str

    @property
    def returncode(self) -> int:
        return int(self.session.said["ended"]["returncode"])


class Agent:
    """An agent in a process of its own, and the starter's end of its channel."""

    def __init__(self, folder: Path, command: Sequence[str], timeout_s: float = 240.0) -> None:
        self.timeout_s = timeout_s
        self.out = folder / "out"
        self.out.mkdir()
        order = agent.Order(
            tuple(command),
            str(folder),
            dict(os.environ),
            timeout_s,
            None,
            None,
            str(self.out),
            str(folder / "tmp"),
        )
        (folder / "order.json").write_text(order.to_json())
        self.control, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SERVE, str(folder), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    def follow(self) -> Ran:
        stdout, stderr = io.BytesIO(), io.BytesIO()
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        session = link.follow(
            control=self.control.fileno(),
            streams=(self.process.stdout.fileno(), self.process.stderr.fileno()),
            sinks=(stdout, stderr),
            alive=lambda: self.process.poll() is None,
            hello_limit_s=240.0,
            up_limit_s=240.0,
            timeout_s=self.timeout_s,
        )
        return Ran(session, stdout.getvalue().decode(), stderr.getvalue().decode())

    def close(self) -> None:
        self.control.close()
        self.process.communicate(timeout=240)


def run_agent(folder: Path, command: Sequence[str], timeout_s: float = 240.0) -> Ran:
    started = Agent(folder, command, timeout_s)
    try:
        return started.follow()
    finally:
        started.close()


@pytest.mark.parametrize(("script", "status"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137)])
def test_the_exit_status_is_the_command_s(tmp_path: Path, script: str, status: int) -> None:
    assert run_agent(tmp_path, ["sh", "-c", script]).returncode == status


def test_a_command_that_is_not_there_ends_with_127_and_says_so(tmp_path: Path) -> None:
    ran = run_agent(tmp_path, ["no-such-program-here"])
    assert ran.returncode == 127
    assert "no-such-program-here" in ran.stderr


def test_the_two_streams_arrive_whole_and_apart(tmp_path: Path) -> None:
    ran = run_agent(tmp_path, ["sh", "-c", "seq 100000; echo trouble >&2"])
    assert ran.stdout == "".join(f"{n}\n" for n in range(1, 100001))
    assert ran.stderr == "trouble\n"


def test_what_the_command_leaves_in_its_output_folder_is_handed_over(tmp_path: Path) -> None:
    script = 'cd "$ROCEKIT_LAB_OUT"; echo $ROCEKIT_LAB > a; mkdir b; echo c > b/c; ln -s a link'
    ran = run_agent(tmp_path, ["sh", "-c", script])
    assert ran.returncode == 0
    assert ran.session.handed_at is not None  # a starter hears that it goes on
    out = tmp_path / "out"
    assert (out / "a").read_text() == "1\n"
    assert (out / "b/c").read_text() == "c\n"
    assert (out / "link").readlink() == Path("a")


def test_a_command_whose_time_is_over_ends_with_124_and_its_output_still_comes(tmp_path: Path) -> None:
    script = 'trap "" TERM; echo early > "$ROCEKIT_LAB_OUT/x"; while :; do sleep 1; done'
    ran = run_agent(tmp_path, ["sh", "-c", script], timeout_s=0.5)
    assert ran.returncode == 124
    assert ran.session.said["ended"]["timed_out"] is True
    assert (tmp_path / "out/x").read_text() == "early\n"


def test_processes_that_the_command_leaves_are_ended(tmp_path: Path) -> None:
    """One in its own group with the pipes open, one that became a daemon."""
    script = "sleep 1000 & echo $!; setsid sleep 1001 </dev/null >/dev/null 2>&1 & echo $!"
    ran = run_agent(tmp_path, ["sh", "-c", script])
    pids = [int(line) for line in ran.stdout.split()]
    assert len(pids) == 2
    assert all(eventually(lambda pid=pid: not exists(pid)) for pid in pids)


def test_a_starter_that_is_gone_ends_command_and_agent(tmp_path: Path) -> None:
    started = Agent(
        tmp_path, ["sh", "-c", 'trap "" TERM; echo $$ > "$ROCEKIT_LAB_OUT/pid"; sleep 1000; sleep 1000']
    )
    pid = tmp_path / "tmp/pid"
    assert eventually(lambda: pid.exists() and pid.read_text().strip())
    started.close()
    assert started.process.returncode == 0
    assert not exists(int(pid.read_text()))


def test_ctrl_c_reaches_the_command_which_may_sum_up(tmp_path: Path) -> None:
    script = 'trap "echo summed up; exit 5" INT; touch "$ROCEKIT_LAB_OUT/ready"; while :; do sleep 0.1; done'
    started = Agent(tmp_path, ["bash", "-c", script])
    ready = tmp_path / "tmp/ready"

    def interrupt() -> None:
        eventually(ready.exists)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        ran = started.follow()
    finally:
        thread.join()
        started.close()
    assert (ran.returncode, ran.stdout) == (5, "summed up\n")


def test_a_directory_that_the_agent_cannot_see_is_named(tmp_path: Path) -> None:
    order = agent.Order(("true",), str(tmp_path / "gone"), {}, 1.0, None, None, str(tmp_path))
    with pytest.raises(LabError, match="gone"):
        agent.run_command(order, 0, (1, 2))
