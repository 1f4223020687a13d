"""What test_record_lab.py runs inside the lab: programs nobody here wrote, both ends recorded and captured.

One Python starts them all: it would take longer to load under emulation than they run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

from rocekit.lab import jobs
from rocekit.lab.jobs import Job
from rocekit.record import Recorder
from rocekit.record_build import interposer

TIMEOUT = "-u 18"
"""perftest's local ACK timeout, 1 s: under emulation a shorter one asks again for what is on its way."""


def perftest(name: str, program: str, options: str, **truth: Any) -> Job:
    """``truth``: transport, operation, count (work requests of the client), bytes of each."""
    common = f"-F -x 1 {TIMEOUT} {options}"
    return Job(
        name,
        server=f"{program} -d rxe1 {common}",
        client=f"{program} -d rxe0 {common} 10.9.0.2",
        truth={"program": program, "transport": "RC", **truth},
    )


def pingpong(name: str, options: str, **truth: Any) -> Job:
    program = f"ibv_{name}_pingpong"
    return Job(
        program,
        server=f"{program} -d rxe1 -g 1 {options}",
        client=f"{program} -d rxe0 -g 1 {options} 10.9.0.2",
        truth={"program": program, **truth},
    )


JOBS = [
    perftest("send", "ib_send_bw", "-n 20 -s 8192", operation="SEND", count=20, bytes=8192),
    perftest("write_q4", "ib_write_bw", "-q 4 -n 10 -s 4096", operation="WRITE", count=40, bytes=4096),
    perftest(
        "write_list", "ib_write_bw", "-l 8 -n 40 -t 64 -s 2048", operation="WRITE", count=40, bytes=2048
    ),
    perftest(
        "write_Q16", "ib_write_bw", "-Q 16 -n 64 -t 64 -s 1024", operation="WRITE", count=64, bytes=1024
    ),
    perftest("read", "ib_read_bw", "-n 20 -s 8192", operation="READ", count=20, bytes=8192),
    perftest("fetch_add", "ib_atomic_bw", "-A FETCH_AND_ADD -n 20", operation="FETCH_ADD", count=20, bytes=8),
    perftest("cmp_swp", "ib_atomic_lat", "-A CMP_AND_SWAP -n 10", operation="CMP_SWAP", count=10, bytes=8),
    perftest(
        "send_uc", "ib_send_bw", "-c UC -n 20 -s 2048", transport="UC", operation="SEND", count=20, bytes=2048
    ),
    perftest(
        "write_uc",
        "ib_write_bw",
        "-c UC -n 20 -s 2048",
        transport="UC",
        operation="WRITE",
        count=20,
        bytes=2048,
    ),
    perftest(
        "send_ud", "ib_send_bw", "-c UD -n 20 -s 1024", transport="UD", operation="SEND", count=20, bytes=1024
    ),
    perftest("send_events", "ib_send_bw", "-e -n 20 -s 1024", operation="SEND", count=20, bytes=1024),
    perftest("send_inline", "ib_send_lat", "-I 64 -n 10 -s 32", operation="SEND", count=10, bytes=32),
    perftest("send_srq", "ib_send_bw", "--use-srq -n 20 -s 1024", operation="SEND", count=20, bytes=1024),
    perftest("write_cm", "ib_write_bw", "-R -n 20 -s 4096", operation="WRITE", count=20, bytes=4096),
    pingpong("rc", "-n 20 -s 4096", transport="RC", count=20, bytes=4096),
    pingpong("uc", "-n 20 -s 2048", transport="UC", count=20, bytes=2048),
    pingpong("ud", "-n 20 -s 1024", transport="UD", count=20, bytes=1024),
    pingpong("srq", "-n 40 -q 4 -s 1024", transport="RC", count=40, bytes=1024),
    Job(
        "rping",
        server="rping -s -a 10.9.0.2 -C 5",
        client="rping -c -a 10.9.0.2 -C 5",
        truth={"program": "rping", "count": 5},
    ),
    Job(
        "ucmatose",
        server="ucmatose -c 2 -C 3 -S 100",
        client="ucmatose -s 10.9.0.2 -c 2 -C 3 -S 100",
        truth={"program": "ucmatose", "connections": 2, "count": 3},
    ),
    Job("refused", client="rping -c -a 10.9.0.2 -C 5", truth={"program": "rping"}),
    Job(
        "extended",
        client=f"{sys.executable} {Path(__file__).parent / 'lab_record_extended.py'}",
        truth={"program": "pyverbs", "count": 20},
        limit_s=120,
    ),
    Job(
        "lossy",
        server=f"ib_send_bw -d rxe1 -F -x 1 {TIMEOUT} -n 30 -s 8192",
        client=f"ib_send_bw -d rxe0 -F -x 1 {TIMEOUT} -n 30 -s 8192 10.9.0.2",
        netem="loss 5%",
        truth={"program": "ib_send_bw", "transport": "RC", "operation": "SEND", "count": 30, "bytes": 8192},
    ),
    Job(
        "killed",
        server=f"ib_write_bw -d rxe1 -F -x 1 {TIMEOUT} -n 100000 -s 1024",
        client=f"timeout -s KILL 5 ib_write_bw -d rxe0 -F -x 1 {TIMEOUT} -n 100000 -s 1024 10.9.0.2",
        truth={"program": "ib_write_bw", "transport": "RC", "operation": "WRITE", "bytes": 1024},
        linger_s=2.0,
    ),
]


class Recorded:
    """A shell command under the recorder, in a process of its own; as much of Popen as the jobs use."""

    def __init__(self, command: str, environment: dict[str, str], sink: IO[bytes]) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            status = 70
            try:
                os.setsid()
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(sink.fileno(), 1)
                os.dup2(sink.fileno(), 2)
                os.environ.update(environment)
                journal = Path(sink.name).with_suffix(".journal.jsonl")
                result = Recorder(["/bin/bash", "-c", command], journal, interposer(), nicer=5).run()
                status = 128 + result.signal if result.signal else result.status or 0
            except BaseException as error:
                os.write(2, f"recorder: {error!r}\n".encode())
            finally:
                os._exit(status)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, seconds: float | None = None) -> int:
        end = None if seconds is None else time.monotonic() + seconds
        while self.poll() is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired("recorded", seconds or 0)
            time.sleep(0.05)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)


def main(arguments: list[str]) -> int:
    vars(jobs)["_shell"] = Recorded
    interposer()
    return jobs.main(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
