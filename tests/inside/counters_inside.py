"""What test_counters_lab.py runs inside the lab: faults between two capture points, with snapshots of both
devices' counters around them.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE
from typing import Any

import trace_inside
from amount import MORE
from lab_forks import PRELOADED, Forks, read_gid_tables_once

from rocekit.journal import JournalWriter
from rocekit.journal.counters import write_snapshots
from rocekit.lab.job_programs import finish, shell, wait_until_listening
from rocekit.lab.jobs import TCPDUMP
from rocekit.lab.net import A, B, tool
from rocekit.machine.counters import CounterReader, RunningCapture

OUT = Path(os.environ.get("ROCEKIT_LAB_OUT", "."))
WORK = Path("/tmp/counters-inside")  # the output folder is slow
#: What the commands of rocekit load when they are called.
LOADS = (*PRELOADED, "rocekit.commands.counters", *trace_inside.LOADS)
LIMIT_S = 90.0
TRIES = 5
_PERFTEST = "-F -x 1 -u 16"


@dataclass(frozen=True)
class Run:
    """A server, a client, and faults: the words of tc by interface, between the capture points or before.

    Attributes:
        strikes: a counter that must have gone up; the run is repeated until it has.
    """

    server: str
    client: str
    faults: dict[str, str]
    strikes: str | None = None


def perftest(program: str, options: str, faults: dict[str, str], strikes: str | None = None) -> Run:
    common = f"{_PERFTEST} {options}"
    return Run(f"{program} -d rxe1 {common}", f"{program} -d rxe0 {common} 10.9.0.2", faults, strikes)


EVERY = {
    "write": perftest("ib_write_bw", "-n 20 -s 32768", {"vb-port": "loss 4%"}, "out_of_seq_request"),
    "read": perftest("ib_read_bw", "-n 15 -s 16384", {"va-port": "loss 4%"}, "duplicate_request"),
    "send": perftest("ib_send_bw", "-b -n 20 -s 8192", {"vb-port": "loss 3%", "va-port": "loss 3%"}),
    "rnr": perftest("ib_send_bw", "-n 60 -s 4096 -r 1 -t 32", {}, "send_rnr_err"),
    "rping": Run("rping -s -a 10.9.0.2 -C 5", "rping -c -a 10.9.0.2 -C 5", {}),
    "before": perftest("ib_write_bw", "-n 20 -s 16384", {"va": "loss 5%"}, "out_of_seq_request"),
}
#: Each takes some seconds of an emulated machine.
RUNS = {name: what for name, what in EVERY.items() if MORE or name in ("write", "rnr")}


def snapshots(name: str) -> None:
    """Append a snapshot of each device to the journal of the capture at it."""
    reader = CounterReader()
    for end in (A, B):
        places = reader.places([end.interface])
        running = RunningCapture(end.interface, f"{name}.{end.interface}.pcap")
        with JournalWriter(WORK / f"{name}.{end.interface}.journal.jsonl", append=True) as writer:
            write_snapshots(writer, [reader.snapshot(p, running) for p in places])


def struck(name: str, counter: str) -> bool:
    """Whether a counter of any of the two devices went up."""
    for end in (A, B):
        events = [
            json.loads(line)
            for line in (WORK / f"{name}.{end.interface}.journal.jsonl").read_text().splitlines()
        ]
        if events[-1]["hw_counters"][counter] > events[0]["hw_counters"][counter]:
            return True
    return False


def hit(interface: str, fault: str) -> None:
    """Let netem have the RoCE packets that leave a port, not the programs' exchange over TCP, nor ARP.

    At a device itself netem is the root queue: its counters are among those that are read there.
    """
    dev = ("dev", interface)
    if not interface.endswith("-port"):
        tool("tc", "qdisc", "add", *dev, "root", "netem", *fault.split())
        return
    tool("tc", "qdisc", "add", *dev, "root", "handle", "1:", "prio", "bands", "4")
    tool("tc", "qdisc", "add", *dev, "parent", "1:4", "handle", "40:", "netem", *fault.split())
    tool(
        *("tc", "filter", "add", *dev, "parent", "1:", "protocol", "ip", "flower"),
        *("ip_proto", "udp", "dst_port", "4791", "classid", "1:4"),
    )


def run(name: str, what: Run) -> dict[str, Any]:
    """A run, captured at both ends. A program that hangs is ended; its status then says so."""
    for end in (A, B):
        (WORK / f"{name}.{end.interface}.journal.jsonl").unlink(missing_ok=True)
    for interface, fault in what.faults.items():
        hit(interface, fault)
    dumps = []
    for end in (A, B):
        words = list(TCPDUMP)
        words[words.index("-i") + 1] = end.interface
        log = WORK / f"{name}.{end.interface}.txt"
        with log.open("w") as said:
            command = [*words, "-w", str(WORK / f"{name}.{end.interface}.pcap"), "udp port 4791"]
            dumps.append(subprocess.Popen(command, stderr=said))
        limit = time.monotonic() + 30
        while "listening" not in log.read_text() and time.monotonic() < limit:
            time.sleep(0.05)
    snapshots(name)
    texts = {side: WORK / f"{name}.{side}.txt" for side in ("client", "server")}
    with texts["server"].open("wb") as of_server, texts["client"].open("wb") as of_client:
        server = shell(what.server, dict(os.environ), of_server)
        wait_until_listening(server, 5)
        client_end = finish(shell(what.client, dict(os.environ), of_client), LIMIT_S)
        server_end = finish(server, 20)
    time.sleep(0.5)  # the last packets
    snapshots(name)
    time.sleep(0.7)
    for dump in dumps:
        dump.send_signal(signal.SIGINT)
        dump.wait(20)
    for interface in what.faults:
        subprocess.run(f"tc qdisc del dev {interface} root".split(), check=True)
    return {
        "client": client_end["returncode"],
        "server": server_end["returncode"],
        "said": "".join(texts[side].read_text() for side in ("client", "server")),
        "tcpdump": [(WORK / f"{name}.{end.interface}.txt").read_text() for end in (A, B)],
    }


def commands() -> dict[str, Any]:
    """rocekit's own commands: each takes its snapshots itself."""
    facts = {}
    with Forks(*LOADS) as forks:

        def rocekit(name: str, *words: str) -> None:
            done = forks.start(*words, stdout=PIPE, stderr=PIPE)
            said = done.communicate(LIMIT_S)
            facts[name] = {"status": done.returncode, "stdout": said[0], "stderr": said[1]}

        tracing = forks.start(
            *("trace", "va", "--counters", "--quiet", "--write", str(WORK / "traced.pcapng")),
            stdout=PIPE,
            stderr=PIPE,
        )
        limit = time.monotonic() + LIMIT_S
        while not (WORK / "traced.pcapng").exists() and time.monotonic() < limit:
            time.sleep(0.1)
        time.sleep(3.0)
        journal = str(WORK / "inject.journal.jsonl")
        rocekit(
            "inject", "inject", "ping-write", "--both", "-n", "3", "--timeout", "60", "--journal", journal
        )
        time.sleep(0.5)
        tracing.send_signal(signal.SIGINT)
        said = tracing.communicate(LIMIT_S)
        facts["trace"] = {"status": tracing.returncode, "stdout": said[0], "stderr": said[1]}
        rocekit("counters", "counters", "rxe0", "va-port", "--for", "0.1", "--format", "json")
        rocekit("unknown", "counters", "rxe7")
        if not MORE:
            return facts
        own = ("rping", "-s", "-a", "10.9.0.2", "-C", "3")
        server = subprocess.Popen(own)
        time.sleep(1.5)
        rocekit(
            *("record", "record", "-i", "va", "-w", str(WORK / "recorded.pcapng"), "--"),
            *("rping", "-c", "-a", "10.9.0.2", "-C", "3"),
        )
        server.wait(LIMIT_S)
        rocekit("failing", "record", "-o", str(WORK / "failing.journal.jsonl"), "--", "sh", "-c", "exit 7")
    return facts


def main() -> None:
    WORK.mkdir(parents=True, exist_ok=True)
    for module in ("sch_prio", "sch_netem", "cls_flower"):
        tool("modprobe", module)
    read_gid_tables_once()
    facts: dict[str, Any] = {}
    for name, what in RUNS.items():
        for _ in range(TRIES):
            facts[name] = run(name, what)
            if facts[name]["client"] or facts[name]["server"]:
                continue
            if what.strikes is None or struck(name, what.strikes):
                break
    facts["commands"] = commands()
    (WORK / "facts.json").write_text(json.dumps(facts))
    for path in WORK.iterdir():
        shutil.copy(path, OUT)


if __name__ == "__main__":
    main()
