"""The programs of a job are started in order and ended in time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rocekit.lab import job_programs, jobs


@pytest.mark.parametrize("names", [["a", "a"], ["../a"], ["a b"], [""]])
def test_jobs_have_names_of_their_own_that_can_be_file_names(names: list[str], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="names"):
        jobs.run_jobs([jobs.Job(name, "true") for name in names], tmp_path)


def test_a_job_has_its_own_netem_and_none_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever was here before may have left some; what this process took away is not taken away again."""
    done: list[tuple[str, str | None]] = []
    monkeypatch.setattr(jobs, "_netem", {})
    monkeypatch.setattr(jobs, "set_netem", lambda end, words: done.append((end.interface, words)))
    expected: tuple[tuple[str | None, list[tuple[str, str | None]]], ...] = (
        (None, [("va", None), ("vb", None)]),
        (None, []),
        ("loss 2%", [("va", "loss 2%")]),
        ("loss 2%", [("va", "loss 2%")]),
        (None, [("va", None)]),
        (None, []),
    )
    for words, calls in expected:
        jobs.put_netem(jobs.Job("x", "true", netem=words))
        assert done == calls
        done.clear()


def test_a_client_waits_until_its_server_listens() -> None:
    script = """import socket, time; time.sleep(0.4); s = socket.socket(); s.bind(('127.0.0.1', 0));
s.listen(); time.sleep(1000)"""
    server = subprocess.Popen(["sh", "-c", f'{sys.executable} -c "{script}"; true'], start_new_session=True)
    try:
        job_programs.wait_until_listening(server, 20.0)
        assert job_programs._listens_tcp(job_programs._family(server.pid))
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.communicate()


def test_a_program_that_outlives_its_limit_is_ended_and_noted() -> None:
    endless = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    assert job_programs.finish(endless, 0.1) == {"returncode": -signal.SIGINT, "killed": True}
    short = subprocess.Popen(["sh", "-c", "exit 4"], start_new_session=True)
    assert job_programs.finish(short, 20.0) == {"returncode": 4, "killed": False}
