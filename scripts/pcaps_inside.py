"""The part of make_pcaps.py that runs inside the lab: it makes each capture of a listing in turn.

`rocekit` commands run in forks of this process, as two hosts, because in an emulated VM starting Python for
each would take most of the time. Other programs run as the lab's jobs do.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rocekit.commands.inject
import rocekit.commands.trace
import rocekit.live.tracing
import rocekit.verbs  # noqa: F401  -- loaded here once, for all forks
from rocekit.cli import rocekit as command_line
from rocekit.lab.jobs import TCPDUMP, Job, run_job
from rocekit.lab.net import BRIDGE, A, B, ends, set_netem, tool

OUT = Path(os.environ["ROCEKIT_LAB_OUT"])
CLONE_NEWUTS = 0x04000000


def fork(host: str, command: str, says: Path) -> int:
    """Fork a child with the host name `host` that runs a `rocekit` command line; returns its process id."""
    pid = os.fork()
    if pid:
        return pid
    status = 70
    try:
        ctypes.CDLL(None).unshare(CLONE_NEWUTS)
        socket.sethostname(host)
        sink = os.open(says, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        command_line.main(shlex.split(command)[1:], prog_name="rocekit")
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def wait(pid: int, limit_s: float) -> int:
    """Wait for a child and return its exit status; a child that does not end in time is stopped."""
    for seconds, number in ((limit_s, signal.SIGTERM), (15.0, signal.SIGKILL), (15.0, signal.SIGKILL)):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.05)
        os.kill(pid, number)
    return -9


class Late(Exception):
    """Something did not start in time, so the capture would be useless."""


def until(condition: Callable[[], bool], what: str, limit_s: float = 60.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise Late(f"{what} within {limit_s:g} s")
        time.sleep(0.05)


def wait_for_start(pid: int, condition: Callable[[], bool], what: str) -> None:
    """Wait until a child has started; one that does not start in time is stopped."""
    try:
        until(condition, what)
    except Late:
        wait(pid, 0.0)
        raise


def counters(devices: int) -> dict[str, dict[str, int]]:
    there = [end.device for end in ends(devices)]
    folders = {device: Path("/sys/class/infiniband", device, "ports/1/hw_counters") for device in there}
    return {
        device: {path.name: int(path.read_text()) for path in folder.iterdir() if path.name != "lifespan"}
        for device, folder in folders.items()
    }


def number_before(words: str, text: str) -> int:
    found = re.search(rf"(\d+) {words}", text)
    return int(found[1]) if found else 0


def packet_sockets() -> int:
    return len(Path("/proc/net/packet").read_text().splitlines()) - 1


def run_inject(job: dict[str, Any]) -> dict[str, Any]:
    """Run `rocekit inject` as two hosts, captured by tcpdump and, where asked for, by `rocekit trace`."""
    name, pcap = job["name"], OUT / f"{job['name']}.pcap"
    for end, words in ((A, job["netem"]), (B, job["netem_b"])):
        set_netem(end, words)
    if job["ingress"]:
        tool("tc", "qdisc", "add", "dev", B.interface, "ingress")
        tool(*f"tc filter add dev {B.interface} ingress protocol ip {job['ingress']}".split())
    log = OUT / f"{name}.tcpdump.txt"
    with log.open("w") as sink:
        words = list(TCPDUMP)
        if job["devices"] > 2:  # every packet crosses the bridge once
            words[words.index("-i") + 1] = BRIDGE
        dump = subprocess.Popen([*words, "-w", str(pcap), job["capture_filter"]], stderr=sink)
    try:
        until(lambda: "listening on" in log.read_text(), "tcpdump did not listen")
        entry = _beside(job, pcap.stem)
    finally:
        dump.send_signal(signal.SIGINT)
        dump.wait(30)
        if job["ingress"]:
            tool("tc", "qdisc", "del", "dev", B.interface, "ingress")
        for end in (A, B):
            set_netem(end, None)
    words = log.read_text()
    entry["packets_captured"] = number_before("packets? captured", words)
    entry["dropped_by_kernel"] = number_before("packets? dropped by kernel", words)
    if entry["packets_captured"]:  # else make_pcaps.py prints it
        log.unlink()
    return entry


def _beside(job: dict[str, Any], name: str) -> dict[str, Any]:
    """Run both programs, and `rocekit trace` where asked for, while tcpdump captures."""
    trace = None
    if job["traced"]:
        before = packet_sockets()
        trace = fork(
            "trace",
            f"rocekit trace {A.interface} --write {OUT / name}.pcapng",
            OUT / f"{name}.trace.txt",
        )
        wait_for_start(trace, lambda: packet_sockets() > before, "rocekit trace did not start")
    counted = counters(job["devices"])
    server = None
    journal = f"--journal {OUT / name}.%s.journal.jsonl"
    if job["server"]:
        said = OUT / f"{name}.server.txt"
        server = fork("server", f"{job['server']} {journal % 'server'}", said)
        wait_for_start(
            server,
            lambda: said.exists() and "listening on" in said.read_text(),
            "the server did not listen",
        )
    client = fork("client", f"{job['client']} {journal % 'client'}", OUT / f"{name}.client.txt")
    entry: dict[str, Any] = {"name": name, "client_status": wait(client, 150.0), "server_status": None}
    if server is not None:
        entry["server_status"] = wait(server, 45.0)
    after = counters(job["devices"])
    entry["counters"] = {
        device: {key: n - counted[device][key] for key, n in values.items() if n != counted[device][key]}
        for device, values in after.items()
    }
    entry["dropped_by_tc"] = dropped(job)
    time.sleep(1.0)
    if trace is not None:
        os.kill(trace, signal.SIGINT)
        entry["trace_status"] = wait(trace, 30.0)
    return entry


def run_program(job: dict[str, Any]) -> dict[str, Any]:
    """Run a program that is not part of rocekit."""
    names = ("name", "client", "server", "netem", "netem_b", "capture_filter")
    made = run_job(Job(**{key: job[key] for key in names}, limit_s=90.0, settle_s=15.0), OUT)
    return {
        "name": job["name"],
        "client_status": made["client_result"]["returncode"],
        "server_status": made["server_result"] and made["server_result"]["returncode"],
        "counters": made["counters"],
        "dropped_by_tc": {},
        "packets_captured": made["captured"],
        "dropped_by_kernel": made["dropped_by_kernel"],
    }


def dropped(job: dict[str, Any]) -> dict[str, int]:
    """The packets that tc dropped: of those that rxe0 and rxe1 sent, and on arrival at rxe1."""
    found = {}
    for end, words in ((A, job["netem"]), (B, job["netem_b"])):
        if words:
            shown = json.loads(tool("tc", "-s", "-j", "qdisc", "show", "dev", end.interface))
            found[f"sent by {end.device}"] = sum(q["drops"] for q in shown if q["kind"] == "netem")
    if job["ingress"]:
        text = tool("tc", "-s", "filter", "show", "dev", B.interface, "ingress")
        counts = [int(part.split()[0].rstrip(",")) for part in text.split("dropped ")[1:]]
        found[f"sent to {B.device}"] = max(counts, default=0)
    return found


def main() -> int:
    jobs = json.loads(Path(sys.argv[1]).read_text())
    entries = []
    for number, job in enumerate(jobs, 1):
        began = time.monotonic()
        try:
            entry = run_inject(job) if job["client"].startswith("rocekit ") else run_program(job)
        except Late as late:
            print(f"{number}/{len(jobs)} {job['name']}: {late}", flush=True)
            entries.append({"name": job["name"], "late": str(late)})
            continue
        entries.append(entry)
        ended = f"client {entry['client_status']}, server {entry['server_status']}"
        took = f"{entry['packets_captured']} packets, {time.monotonic() - began:.1f} s"
        print(f"{number}/{len(jobs)} {job['name']}: {ended}, {took}", flush=True)
        result = {"kernel": os.uname().release, "captures": entries}
        (OUT / "results.json").write_text(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
