"""What test_record_attach_lab.py runs inside the lab: perftest as ever, recorded in its middle."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import STDOUT, Popen
from typing import IO

from lab_forks import Forks, Run

from rocekit.lab import job_programs, jobs
from rocekit.lab.jobs import Job
from rocekit.record.build import interposer

COUNT, BYTES = 8_000, 512
_COMMON = f"-F -x 1 -u 18 -n {COUNT} -s {BYTES} -t 16 -Q 4"
_SLOWLY = "--rate_limit 400 --rate_units p --rate_limit_type SW --burst_size 1"
"""So that it runs for 20 seconds at least."""
SETTLE_S, RECORDED_S = 3.0, 4.0

JOBS = [
    Job(
        "attached",
        server=f"exec ib_send_bw -d rxe1 {_COMMON}",
        client=f"exec ib_send_bw -d rxe0 {_COMMON} {_SLOWLY} 10.9.0.2",
        limit_s=240,
        settle_s=15.0,
        truth={"program": "ib_send_bw", "count": COUNT, "bytes": BYTES},
    )
]


def _uses_verbs(pid: int) -> bool:
    try:
        return "libibverbs" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


def _attach(forks: Forks, pid: int, journal: Path, until: float) -> None:
    """Record a program for some seconds in its middle."""
    log = journal.with_suffix(".txt")
    with log.open("wb") as sink:
        time.sleep(max(0.0, until - time.monotonic()))
        run: Run = forks.start(
            *("record", "--attach", str(pid), "--no-counters", "-o", str(journal)), stdout=sink, stderr=STDOUT
        )
        while run.poll() is None and b"attached to process" not in log.read_bytes():
            time.sleep(0.02)
        time.sleep(RECORDED_S)
        run.send_signal(signal.SIGINT)
        run.wait(60)
        sink.write(
            f"ended with {run.returncode}; {_functions_of_the_recorder(pid)} functions left\n".encode()
        )


def _functions_of_the_recorder(pid: int) -> int:
    """How many functions of its open devices are the recorder's."""
    from rocekit.record.attach.target import RunningProgram
    from rocekit.record.attach.verbs_objects import Search

    program = RunningProgram(pid)
    ours = [m for m in program.mappings() if "interposer" in m.path or ("x" in m.rights and not m.path)]
    found = Search(program).contexts()
    assert found
    calls = [address for context in found for address in context.calls.values()]
    program.close()
    return sum(any(m.start <= address < m.end for m in ours) for address in calls)


def attached(
    forks: Forks, threads: list[threading.Thread]
) -> Callable[[str, dict[str, str], IO[bytes]], Popen[bytes]]:
    """Starts a shell command as ever, and attaches a recorder to it once both ends run."""

    def start(command: str, environment: dict[str, str], sink: IO[bytes]) -> Popen[bytes]:
        process = job_programs.shell(command, environment, sink)
        journal = Path(sink.name).with_suffix(".journal.jsonl")

        def watch() -> None:
            while not _uses_verbs(process.pid) and process.poll() is None:
                time.sleep(0.05)
            if "client" in journal.name:
                server = next(p for p in processes if p is not process)
                until = time.monotonic() + SETTLE_S
                for pid, name in ((server.pid, "server"), (process.pid, "client")):
                    other = journal.with_name(journal.name.replace("client", name))
                    threads.append(threading.Thread(target=_attach, args=(forks, pid, other, until)))
                    threads[-1].start()

        processes.append(process)
        threads.append(threading.Thread(target=watch))
        threads[-1].start()
        return process

    processes: list[Popen[bytes]] = []
    return start


def main(arguments: list[str]) -> int:
    interposer()
    threads: list[threading.Thread] = []
    with Forks() as forks:
        vars(jobs)["shell"] = attached(forks, threads)
        status = jobs.main(arguments)
        for thread in threads:
            thread.join()
    return status


if __name__ == "__main__":
    os.environ.setdefault("LC_ALL", "C")
    sys.exit(main(sys.argv[1:]))
