"""Several pairs of programs in one lab, each captured, for tests and the captures that come with rocekit.

Booting the lab's VM takes far longer than running a program in it, so all jobs share one lab:

    run_jobs([Job("send", server="ib_send_bw -d rxe1 -x 1", client="ib_send_bw -d rxe0 -x 1 10.9.0.2")], out)

leaves in ``out``, for each job, ``NAME.pcap`` (captured at rxe0's end, nanoseconds), ``NAME.server.txt`` and
``NAME.client.txt`` (what the programs printed), and one ``manifest.json`` with how each ended.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocekit.lab.job_programs import finish, shell, wait_until_listening
from rocekit.lab.net import MTU, A, B, End, LabError, set_netem

if TYPE_CHECKING:
    from rocekit.lab.front import LabResult

READY_LIMIT_S = 20.0
TCPDUMP = (
    *("tcpdump", "-i", A.interface, "--time-stamp-precision=nano", "--immediate-mode", "-U"),
    *("-B", "65536", "-s", str(MTU + 100), "-Z", "root"),
)
"""Immediate mode: else the kernel delivers packets up to a second late, and a capture lacks its last ones.
Each packet then takes a slot of the snaplen in the buffer, so the snaplen is short: 8,000 slots, not 250.
"""


_netem: dict[End, str | None] = {}
"""What this process has last put on an end: a start of tc to take away what is not there costs time."""


@dataclass(frozen=True, slots=True)
class Job:
    """A server, a client, and what happens to their packets.

    ``server`` and ``client`` are shell commands; $OUT is the output folder and $NAME the job's name. The
    client starts when the server listens, on a TCP port or with the connection manager, or after ``settle_s``
    if it does neither. A job without a server has only a client. ``limit_s`` limits the client; a server that
    still runs ``linger_s`` after the client's end is ended: no error for receivers of lost datagrams.

    netem is random, and so is which side is slow: a job is run up to ``tries`` times, until its client ends
    well and rxe's counter ``strikes``, if one is named, has moved. The manifest has the last run, and in
    ``tried`` how many there were.
    """

    name: str
    client: str
    server: str | None = None
    netem: str | None = None
    netem_b: str | None = None
    limit_s: float = 60.0
    linger_s: float = 5.0
    settle_s: float = 3.0
    capture_filter: str = "udp port 4791"
    tries: int = 1
    strikes: str | None = None
    truth: dict[str, Any] = field(default_factory=dict)
    """What the programs are asked to do, for readers of the manifest."""


def run_jobs(jobs: Sequence[Job], out: Path, *, timeout_s: float | None = None, **options: Any) -> LabResult:
    """Run the jobs in one lab and bring back captures, outputs and manifest.

    Args:
        jobs: with names that differ.
        out: the folder for all files.
        timeout_s: for all jobs together; by default the sum of the jobs' own limits.
        options: passed on to ``rocekit.lab.run``.

    Raises:
        LabError: no lab, or not all jobs ended in time.
    """
    import tempfile

    from rocekit.lab.front import run

    names = [job.name for job in jobs]
    if len(set(names)) != len(names) or not all(re.fullmatch(r"[\w.+-]+", name) for name in names):
        raise ValueError("jobs need names that differ and can be file names")
    limit = timeout_s or sum(job.limit_s + job.linger_s + READY_LIMIT_S + 15 for job in jobs)
    # The VM has /tmp; it may not have a temporary folder elsewhere.
    with tempfile.NamedTemporaryFile("w", suffix=".json", prefix="rocekit-jobs-") as listing:
        json.dump([asdict(job) for job in jobs], listing)
        listing.flush()
        command = (sys.executable, "-m", "rocekit.lab.jobs", listing.name)
        result = run(command, out=out, timeout_s=limit, **options)
    if result.returncode:
        raise LabError(f"the lab's jobs ended with status {result.returncode} (124: out of time)")
    return result


def load_manifest(out: Path) -> dict[str, dict[str, Any]]:
    """The manifest's entries by job name."""
    return {entry["name"]: entry for entry in json.loads((out / "manifest.json").read_text())["jobs"]}


def run_job(job: Job, out: Path) -> dict[str, Any]:
    """One job, inside the lab; returns its entry of the manifest."""
    put_netem(job)
    pcap = out / f"{job.name}.pcap"
    began = time.monotonic()
    with (out / f"{job.name}.tcpdump.txt").open("w+") as log:
        capture = subprocess.Popen(
            [*TCPDUMP, "-w", str(pcap), job.capture_filter],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            wait_for_capture(capture, Path(log.name))
            before = _counters()
            programs = _run_programs(job, out)
            after = _counters()
        finally:
            stop_capture(capture, pcap)
    said = (out / f"{job.name}.tcpdump.txt").read_text()
    (out / f"{job.name}.tcpdump.txt").unlink()
    return {
        **asdict(job),
        **programs,
        "pcap": pcap.name,
        "captured": _number(r"(\d+) packets? captured", said),
        "dropped_by_kernel": _number(r"(\d+) packets? dropped by kernel", said),
        "counters": {
            device: {
                name: n - before[device].get(name, 0)
                for name, n in values.items()
                if n != before[device].get(name)
            }
            for device, values in after.items()
        },
        "seconds": round(time.monotonic() - began, 3),
    }


def put_netem(job: Job) -> None:
    """Put a job's netem on both ends, in place of the one before."""
    for end, words in ((A, job.netem), (B, job.netem_b)):
        if words is not None or _netem.get(end, "unknown") is not None:
            set_netem(end, words)
        _netem[end] = words


def run_until_meant(job: Job, out: Path) -> dict[str, Any]:
    """One job, inside the lab, run again while its outcome is not the intended one and it has tries left."""
    entry, tried = run_job(job, out), 1
    while tried < job.tries and not as_meant(entry):
        entry, tried = run_job(job, out), tried + 1
    return {**entry, "tried": tried}


def as_meant(entry: dict[str, Any]) -> bool:
    """Whether a run's client ended well, and the intended fault happened."""
    moved = any(entry["strikes"] in counts for counts in entry["counters"].values())
    return entry["client_result"]["returncode"] == 0 and (entry["strikes"] is None or moved)


def _number(pattern: str, text: str) -> int | None:
    found = re.search(pattern, text)
    return int(found[1]) if found else None


def wait_for_capture(capture: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until tcpdump, whose messages are in ``log``, captures.

    Raises:
        LabError: it does not start.
    """
    end = time.monotonic() + READY_LIMIT_S
    while "listening on" not in log.read_text():
        if capture.poll() is not None or time.monotonic() > end:
            raise LabError(f"tcpdump did not start: {log.read_text().strip() or 'it printed nothing'}")
        time.sleep(0.02)


def stop_capture(capture: subprocess.Popen[bytes], pcap: Path) -> None:
    """Stop tcpdump when the file no longer grows, so that the last packets are in it."""
    size = -1
    for _ in range(20):
        time.sleep(0.3)
        now = pcap.stat().st_size if pcap.exists() else 0
        if now == size:
            break
        size = now
    capture.send_signal(signal.SIGINT)
    try:
        capture.wait(10)
    except subprocess.TimeoutExpired:
        capture.kill()
        capture.wait()


def _run_programs(job: Job, out: Path) -> dict[str, Any]:
    environment = {**os.environ, "OUT": str(out), "NAME": job.name}
    result: dict[str, Any] = {"server_result": None, "client_result": None}
    server: subprocess.Popen[bytes] | None = None
    with (
        (out / f"{job.name}.server.txt").open("wb") as server_text,
        (out / f"{job.name}.client.txt").open("wb") as client_text,
    ):
        try:
            if job.server is not None:
                server = shell(job.server, environment, server_text)
                wait_until_listening(server, job.settle_s)
            client = shell(job.client, environment, client_text)
            result["client_result"] = finish(client, job.limit_s)
        finally:
            if server is not None:
                result["server_result"] = finish(server, job.linger_s)
    if job.server is None:
        (out / f"{job.name}.server.txt").unlink()
    return result


def _counters() -> dict[str, dict[str, int]]:
    """rxe's own counters, by device."""
    counts: dict[str, dict[str, int]] = {}
    for end in (A, B):
        folder = Path("/sys/class/infiniband", end.device, "ports/1/hw_counters")
        counts[end.device] = {}
        for path in folder.glob("*"):
            try:
                counts[end.device][path.name] = int(path.read_text())
            except (OSError, ValueError):
                continue
    return counts


def main(arguments: Sequence[str]) -> int:
    """``python -m rocekit.lab.jobs JOBS.json``, inside the lab."""
    out = Path(os.environ["ROCEKIT_LAB_OUT"])
    jobs = [Job(**entry) for entry in json.loads(Path(arguments[0]).read_text())]
    entries = []
    for number, job in enumerate(jobs, 1):
        entry = run_until_meant(job, out)
        entries.append(entry)
        status = [entry[key] and entry[key]["returncode"] for key in ("server_result", "client_result")]
        print(
            f"{number}/{len(jobs)} {job.name}: server {status[0]}, client {status[1]}, "
            f"{entry['captured']} packets, {entry['seconds']:.1f} s"
            + f", run {entry['tried']}"
            * (entry["tried"] > 1),
            flush=True,
        )
        # After each job, so that a lab that dies leaves the jobs before.
        manifest = {"kernel": os.uname().release, "tcpdump": shlex.join(TCPDUMP), "jobs": entries}
        (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
