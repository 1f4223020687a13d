"""What test_record_lab.py runs inside the lab: programs nobody here wrote, both ends recorded and captured.

One Python starts them all: it would take longer to load under emulation than they run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import STDOUT
from typing import IO, Any

from lab_forks import Forks, Run

from rocekit.lab import jobs
from rocekit.lab.jobs import Job
from rocekit.record.build import interposer

TIMEOUT = "-u 18"
"""perftest's local ACK timeout, 1 s: under emulation a shorter one asks again for what is on its way."""


UCX = "UCX_TLS=rc_verbs,ud_verbs:aux UCX_IB_GID_INDEX=1 ucx_perftest -t tag_lat -n 10 -w 0 -s 64"


TRIES = 3
"""With -R perftest connects twice, the second time perhaps before its server listens: then it crashes."""


def perftest(name: str, program: str, options: str, **truth: Any) -> Job:
    """``truth``: transport, operation, count (work requests of the client), bytes of each."""
    common = f"-F -x 1 {TIMEOUT} {options}"
    return Job(
        name,
        server=f"{program} -d rxe1 {common}",
        client=f"{program} -d rxe0 {common} 10.9.0.2",
        tries=TRIES if "-R" in options.split() else 1,
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
    Job(
        "explained",
        server=f"ib_write_bw -d rxe1 -F -x 1 {TIMEOUT} -n 5 -s 4096",
        client=f"ib_write_bw -d rxe0 -F -x 1 {TIMEOUT} -n 5 -s 4096 10.9.0.2",
        truth={"program": "ib_write_bw", "transport": "RC", "operation": "WRITE", "count": 5, "bytes": 4096},
    ),
    # Both of these load libibverbs, or what loads it, while they run.
    Job(
        "ucx",
        server=f"UCX_NET_DEVICES=rxe1:1 {UCX}",
        client=f"UCX_NET_DEVICES=rxe0:1 {UCX} 10.9.0.2",
        truth={"program": "ucx_perftest", "count": 10, "bytes": 64},
    ),
    Job(
        "libfabric",
        server="fi_pingpong -p verbs -e msg -d rxe1 -I 10 -S 64",
        client="fi_pingpong -p verbs -e msg -d rxe0 -I 10 -S 64 10.9.0.2",
        truth={"program": "fi_pingpong", "count": 10, "bytes": 64},
    ),
    Job("refused", client="rping -c -a 10.9.0.2 -C 5", truth={"program": "rping"}),
    Job(
        "extended",
        client=f"{sys.executable} {Path(__file__).parent / 'lab_record_extended.py'}",
        truth={"program": "pyverbs", "count": 20},
        limit_s=120,
    ),
    Job(
        "windows",
        client=f"{sys.executable} {Path(__file__).parent / 'lab_record_windows.py'}",
        truth={"program": "pyverbs", "count": 3},
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
        settle_s=15.0,  # its client connects once, and is not tried again
    ),
]


OPTIONS: dict[str, tuple[str, ...]] = {
    "rping.client": ("--attach-cm",),
    "refused.client": ("--attach-cm",),
    "explained.client": ("--interface", "va"),
}
"""Options of ``rocekit record`` for a side of a job; with --interface it says what it found."""


def recorded(forks: Forks) -> Callable[[str, dict[str, str], IO[bytes]], Run]:
    """Starts a shell command under the recorder; its journal goes beside what it prints."""

    def start(command: str, environment: dict[str, str], sink: IO[bytes]) -> Run:
        journal = Path(sink.name).with_suffix(".journal.jsonl")
        options = OPTIONS.get(Path(sink.name).stem, ())
        if "--interface" in options:
            options = (*options, "--write", str(journal.with_name(f"{Path(sink.name).stem}.pcapng")))
        else:
            options = (*options, "--quiet")
        return forks.start(
            *("record", *options, "--output", str(journal), "--", "/bin/bash", "-c", command),
            stdout=sink,
            stderr=STDOUT,
            env=environment,
            start_new_session=True,
        )

    return start


def main(arguments: list[str]) -> int:
    interposer()
    with Forks() as forks:
        vars(jobs)["shell"] = recorded(forks)
        return jobs.main(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
