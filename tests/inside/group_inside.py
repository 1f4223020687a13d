"""What test_inject_group_lab.py runs inside the lab: a mesh and a ring over three rxe devices, captured."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from lab_forks import read_gid_tables_once

from rocekit.cli import rocekit
from rocekit.commands.inject_group import text
from rocekit.endpoint import LOCAL_WRITE, REMOTE_WRITE, EndpointOptions, QpOptions, RecvWr, Sge
from rocekit.endpoint.qp_address import QpAddress
from rocekit.errors import RocekitError
from rocekit.inject import make_endpoint
from rocekit.lab.jobs import TCPDUMP
from rocekit.lab.net import BRIDGE, A, ends, set_netem
from rocekit.scenarios.group_run import verbs_group
from rocekit.scenarios.group_scenario import GroupPlan

OUT = Path(os.environ.get("ROCEKIT_LAB_OUT", "."))
WORK = Path("/tmp/group-inside")  # the output folder is slow
HOSTS = 3
RUNS: dict[str, tuple[GroupPlan, str | None]] = {
    "mesh": (GroupPlan("mesh", HOSTS, 3000, 2), None),
    "ring": (GroupPlan("ring", HOSTS, 3000, 2), None),
    "mesh-loss": (GroupPlan("mesh", HOSTS, 20_000, 2), "loss 10%"),
    "ring-loss": (GroupPlan("ring", HOSTS, 10_000, 2), "loss 10%"),
}
"""By name: the plan, and what happens to packets that the first device sends."""


def run(name: str, plan: GroupPlan, netem: str | None) -> dict[str, Any]:
    """A scenario, captured on the bridge, where everything passes once that was not lost before."""
    pcap, journal, log = (WORK / f"{name}{end}" for end in (".pcap", ".journal.jsonl", ".txt"))
    set_netem(A, netem)
    with log.open("w") as words:
        dump = subprocess.Popen([*_tcpdump(), "-w", pcap, "udp port 4791"], stderr=words)
        limit = time.monotonic() + 40
        while "listening" not in log.read_text() and time.monotonic() < limit:
            time.sleep(0.1)
    fact: dict[str, Any] = {}
    devices = [EndpointOptions(device=end.device) for end in ends(HOSTS)]
    try:
        # On a slow emulated machine nothing may be taken for lost that is only late, where nothing is.
        # Where packets are lost, rxe sends again without end: it does not give up on a slow host.
        options = QpOptions(timeout=16, retry_cnt=7) if netem else QpOptions(timeout=18)
        outcome = verbs_group(plan, devices, options=options, timeout_s=60, journal=journal)
        fact["outcome"], fact["text"] = outcome.to_dict(), text(outcome)
    except RocekitError as error:
        fact["error"] = str(error)
    time.sleep(1.0)
    dump.send_signal(signal.SIGINT)
    dump.wait(20)
    set_netem(A, None)
    fact["tcpdump"] = log.read_text()
    for path in (pcap, journal):
        shutil.copy(path, OUT)
    return fact


def _tcpdump() -> list[str]:
    """The lab's way to capture, on the bridge."""
    words = list(TCPDUMP)
    words[words.index("-i") + 1] = BRIDGE
    return words


CRAFTED = """
packets:
  - {{op: RC_SEND_ONLY, payload: "text:wrong", psn: 100, icrc: bad}}
  - {{op: RC_SEND_ONLY, payload: "text:right", psn: 100}}
  - {{op: RC_RDMA_WRITE_FIRST, payload: 1024, rkey: {rkey}, remote_va: {va}}}
  - {{op: RC_RDMA_WRITE_LAST_WITH_IMMEDIATE, payload: 5, immediate: 77}}
"""


def crafted() -> dict[str, Any]:
    """Packets made by hand, sent to a QP of the second device, which never heard of rocekit."""
    there, here = ends(HOSTS)[1], ends(HOSTS)[0]
    with make_endpoint(EndpointOptions(device=there.device), None) as endpoint:
        region = endpoint.register(4096, (LOCAL_WRITE, REMOTE_WRITE))
        connection = endpoint.queue_pair(QpOptions())
        connection.start(QpAddress(0x99, 100, 0, 0, here.ipv4), 200, 1024)
        for number in range(3):
            connection.post_recv(RecvWr(number, (Sge(region, 64 * number, 64),)))
        path = WORK / "crafted.yaml"
        path.write_text(CRAFTED.format(rkey=region.rkey, va=region.addr + 1024))
        words = [
            "craft",
            str(path),
            "--send",
            here.interface,
            "--dst",
            there.ipv4,
            "--qpn",
            str(connection.qpn),
        ]
        done = CliRunner().invoke(rocekit, words)
        found: list[dict[str, Any]] = []
        limit = time.monotonic() + 20
        while len(found) < 2 and time.monotonic() < limit:
            found += [asdict(completion) for completion in endpoint.poll()]
            time.sleep(0.01)
        time.sleep(0.5)
        found += [asdict(completion) for completion in endpoint.poll()]
        return {
            "printed": done.output,
            "status": done.exit_code,
            "completions": found,
            "sent": region.read(0, 5).decode("latin-1"),
            "written": region.read(1024, 1029).hex(),
        }


def main() -> int:
    WORK.mkdir()
    read_gid_tables_once()
    facts: dict[str, Any] = {}
    try:
        for name, (plan, netem) in RUNS.items():
            facts[name] = run(name, plan, netem)
        facts["crafted"] = crafted()
    finally:
        (OUT / "facts.json").write_text(json.dumps(facts, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
