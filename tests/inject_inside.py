"""What test_inject_lab.py runs inside the lab: traffic and mistakes, and what came of them in facts.json."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rocekit.endpoint import EndpointOptions, QpOptions
from rocekit.errors import RocekitError
from rocekit.inject import Settings
from rocekit.inject_both import both
from rocekit.lab.jobs import TCPDUMP
from rocekit.lab.net import A, B, set_netem
from rocekit.scenarios.base import Plan

OUT = Path(os.environ.get("ROCEKIT_LAB_OUT", "."))
WORK = Path("/tmp/inject-inside")  # the output folder is slow
ROCEKIT = [sys.executable, "-c", "import sys; from rocekit.cli import main; sys.exit(main())", "inject"]
LIMIT_S = 180.0
PATIENCE = ("--timeout", "100")
"""An emulated machine under load takes half a minute to start a program."""

RUNS: dict[str, tuple[Plan, dict[str, Any]]] = {
    "ping-sr": (Plan("ping-sr", 5000, 10), {}),
    "ping-sr-4qp": (Plan("ping-sr", 64, 5, qps=4), {}),
    "ping-sr-ipv6": (Plan("ping-sr", 5000, 5), {"ips": ("fd00:9::2", "fd00:9::1")}),
    "ping-sr-inline": (Plan("ping-sr", 100, 5), {"qp": QpOptions(inline_size=128)}),
    "ping-sr-mtu": (Plan("ping-sr", 5000, 5, path_mtu=1024), {}),
    "blast-sr": (Plan("blast-sr", 9000, 40, window=16, cq_mod=4, post_list=4), {}),
    "ping-write": (Plan("ping-write", 10_000, 10), {}),
    "ping-read": (Plan("ping-read", 20_000, 10), {}),
    "atomic": (Plan("atomic", 8, 10, qps=2), {}),
    "atomic-cmp": (Plan("atomic", 8, 10, qps=2, atomic="CMP_AND_SWAP"), {}),
    "ping-sr-loss": (Plan("ping-sr", 9000, 20), {"netem": "loss 10%", "qp": QpOptions(timeout=12)}),
    "blast-sr-loss": (Plan("blast-sr", 9000, 30), {"netem": "loss 10%", "qp": QpOptions(timeout=12)}),
}


def run(name: str, plan: Plan, more: dict[str, Any]) -> dict[str, Any]:
    """A scenario, captured."""
    qp = more.get("qp", QpOptions())
    server_ip, client_ip = more.get("ips", ("10.9.0.2", "10.9.0.1"))
    for end in (A, B):
        set_netem(end, more.get("netem"))
    files = {
        kind: WORK / f"{name}.{kind}" for kind in ("pcap", "server.jsonl", "client.jsonl", "tcpdump.txt")
    }
    with files["tcpdump.txt"].open("w") as log:
        dump = subprocess.Popen([*TCPDUMP, "-w", files["pcap"], "udp port 4791"], stderr=log)
        wait_for(lambda: "listening" in files["tcpdump.txt"].read_text())
    fact: dict[str, Any] = {"plan": asdict(plan)}
    try:
        outcome = both(
            plan,
            Settings(EndpointOptions(ip=server_ip), qp, journal=files["server.jsonl"]),
            Settings(EndpointOptions(ip=client_ip), qp, journal=files["client.jsonl"]),
        )
        fact["outcome"] = outcome.to_dict()
    except RocekitError as error:
        fact["error"] = str(error)
    time.sleep(1.0)
    dump.send_signal(signal.SIGINT)
    dump.wait(20)
    fact["tcpdump"] = files["tcpdump.txt"].read_text()
    for end in (A, B):
        set_netem(end, None)
    for path in files.values():
        shutil.copy(path, OUT)
    return fact


def wait_for(condition: Callable[[], bool], limit_s: float = 40.0) -> bool:
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


class Side:
    """``rocekit inject``, running."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*ROCEKIT, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def end(self) -> dict[str, Any]:
        try:
            stdout, stderr = self.process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            stdout, stderr = self.process.communicate()
            stderr += "hung"
        return {"returncode": self.process.returncode, "stdout": stdout, "stderr": stderr}


def server(*arguments: str) -> Side:
    """A server that listens."""
    side = Side(*arguments)
    assert side.process.stderr is not None
    side.process.stderr.readline()
    return side


def one(*arguments: str) -> dict[str, Any]:
    return Side(*arguments).end()


def resources() -> dict[str, int]:
    """The QPs, CQs, MRs, PDs and identifiers that programs have.

    Not their contexts: librdmacm keeps one for each device until its process ends, and this one goes on.
    """
    listed = subprocess.run(
        ["rdma", "-j", "resource", "show"], capture_output=True, text=True, check=True
    ).stdout
    kinds = ("pd", "cq", "qp", "mr", "cm_id")
    return {kind: sum(device.get(kind, 0) for device in json.loads(listed)) for kind in kinds}


def mistakes() -> dict[str, Any]:
    """Everything that can go wrong at the start."""
    facts: dict[str, Any] = {}
    facts["no listener"] = one("ping-sr", "10.9.0.2", "-n", "1")
    facts["wrong GID index"] = one("ping-sr", "10.9.0.2", "-d", "rxe0", "-x", "77")
    facts["no client"] = one("ping-sr", "-d", "rxe1", "--timeout", "1")
    first = server("ping-sr", "-d", "rxe1", *PATIENCE)
    facts["port taken"] = one("ping-sr", "-d", "rxe1")
    facts["other scenario"] = one("ping-read", "10.9.0.2", "-n", "1")
    facts["other scenario, server"] = first.end()
    subprocess.run(["ip", "link", "set", "va", "mtu", "1500"], check=True)
    facts["MTU too large"] = one("ping-sr", "10.9.0.2", "-m", "4096", "-n", "1")
    subprocess.run(["ip", "link", "set", "va", "mtu", "4200"], check=True)
    return facts


def both_ends(netem: str | None) -> None:
    """Cut one way only, the server, whose SENDs go unanswered, may give up first and tell the client so."""
    for end in (A, B):
        set_netem(end, netem)


def interrupted() -> dict[str, Any]:
    """Everything that can go wrong in the middle. 1,000,000 iterations do not end by themselves."""
    facts: dict[str, Any] = {}
    endings: dict[str, Callable[[Side, Side], None]] = {
        "server killed": lambda server, client: server.process.kill(),
        "server terminated": lambda server, client: server.process.terminate(),
        "client interrupted": lambda server, client: client.process.send_signal(signal.SIGINT),
        "wire cut": lambda server, client: both_ends("loss 100%"),
    }
    for name, ending in endings.items():
        stem = name.replace(" ", "-")
        paths = {role: WORK / f"{stem}.{role}.jsonl" for role in ("server", "client")}
        patient = ("--retry", "2", "-u", "12", *PATIENCE)
        left = server("ping-sr", "-d", "rxe1", *patient, "--journal", str(paths["server"]))
        right = Side("ping-sr", "10.9.0.2", "-n", "1000000", *patient, "--journal", str(paths["client"]))
        began = wait_for(lambda path=paths["client"]: path.exists() and path.stat().st_size > 20_000, 100)  # type: ignore[misc]
        ending(left, right)
        facts[name] = {"began": began, "client": right.end(), "server": left.end()}
        both_ends(None)
        for path in paths.values():
            if path.exists():
                shutil.copy(path, OUT)
    return facts


def main() -> int:
    WORK.mkdir()
    devices = [*ROCEKIT[:-1], "devices", "--format", "json"]
    facts: dict[str, Any] = {
        "devices": json.loads(subprocess.run(devices, capture_output=True, check=True).stdout),
        "before": resources(),
        "runs": {},
    }
    try:
        for name, (plan, more) in RUNS.items():
            facts["runs"][name] = run(name, plan, more)
        facts["mistakes"] = mistakes()
        facts["interrupted"] = interrupted()
        wait_for(lambda: resources() == facts["before"])
        facts["after"] = resources()
    finally:
        # What is known so far is worth more than nothing, after minutes in an emulated machine.
        (OUT / "facts.json").write_text(json.dumps(facts, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
