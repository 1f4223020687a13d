"""What test_paths_lab.py runs in the lab: programs with a fault between two captures, and tc's counters."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rocekit.lab.job_programs import finish, shell, wait_until_listening
from rocekit.lab.jobs import stop_capture, wait_for_capture
from rocekit.lab.net import tool

OUT = Path(os.environ["ROCEKIT_LAB_OUT"])
WORK = Path("/tmp/paths-inside")
TRACEFS = Path("/sys/kernel/tracing")
#: A fault of some per cent may hit nothing by chance, and perftest fails at times by itself.
TRIES = 5
TAPS = ("va", "vb")
#: By name: the program, the port with the fault (on the way to b or to a), and netem's words.
RUNS = {
    "requests": ("ib_write_bw -m 1024 -s 16384 -n 30", "vb-port", "loss 4%"),
    "responses": ("ib_read_bw -m 1024 -s 16384 -n 20", "va-port", "loss 4%"),
    "duplicate": ("ib_send_bw -m 1024 -s 16384 -n 20", "vb-port", "duplicate 8%"),
    "reorder": ("ib_write_bw -m 1024 -s 16384 -n 10", "vb-port", "delay 3ms reorder 95%"),
}


def fault(port: str, words: str) -> None:
    """Hit RoCE packets that leave a port, and nothing else: not the programs' own exchange on TCP."""
    tool("tc", "qdisc", "add", "dev", port, "root", "handle", "1:", "prio", "bands", "4")
    tool("tc", "qdisc", "add", "dev", port, "parent", "1:4", "handle", "40:", "netem", *shlex.split(words))
    tool(
        *("tc", "filter", "add", "dev", port, "parent", "1:", "protocol", "ip", "flower"),
        *("ip_proto", "udp", "dst_port", "4791", "classid", "1:4"),
    )


def counters(port: str) -> dict[str, int]:
    """What netem counted, and what the devices did."""
    said = subprocess.check_output(["tc", "-s", "qdisc", "show", "dev", port], text=True)
    netem = said[said.index("netem") :]
    found = re.search(r"Sent \d+ bytes (\d+) pkt \(dropped (\d+)", netem)
    assert found, said
    return {"sent": int(found[1]), "dropped": int(found[2])}


def packets() -> dict[str, dict[str, int]]:
    folder = "/sys/class/infiniband/{}/ports/1/hw_counters/{}"
    names = ("sent_pkts", "rcvd_pkts")
    return {d: {n: int(Path(folder.format(d, n)).read_text()) for n in names} for d in ("rxe0", "rxe1")}


class Refused:
    """Counts the packets that a device dropped before it counted them, as those for a QP that is gone.

    On a slow machine a requester may repeat what is acknowledged at that moment, and the responder's program
    ends. The kernel says of each packet that it drops in which function it does.
    """

    def __init__(self) -> None:
        if not (TRACEFS / "instances").is_dir():
            subprocess.run(["mount", "-t", "tracefs", "nodev", str(TRACEFS)], check=True)
        self._instance = TRACEFS / "instances" / "rocekit-paths"
        self._instance.mkdir(exist_ok=True)
        (self._instance / "events/skb/kfree_skb/enable").write_text("1")
        self.begin()

    def begin(self) -> None:
        (self._instance / "trace").write_text("")

    def count(self) -> int:
        """Since it began, of both devices together."""
        return (self._instance / "trace").read_text().count("location=rxe_rcv+")


def run(name: str, refused: Refused) -> dict[str, Any]:
    program, port, words = RUNS[name]
    with ExitStack() as stack:
        taps = []
        for tap in TAPS:
            said = WORK / f"{tap}.txt"
            log = stack.enter_context(said.open("w+b"))
            command = f"exec tcpdump -i {tap} --time-stamp-precision=nano --immediate-mode -U -B 65536 -s 128"
            taps.append(shell(f"{command} -w {WORK}/{name}.{tap}.pcap udp port 4791", dict(os.environ), log))
            wait_for_capture(taps[-1], said)
        fault(port, words)
        refused.begin()
        before = packets()
        quiet = stack.enter_context((WORK / f"{name}.txt").open("wb"))
        server = shell(f"{program} -F -x 1 -u 16 -d rxe1", dict(os.environ), quiet)
        wait_until_listening(server, 5)
        client = finish(shell(f"{program} -F -x 1 -u 16 -d rxe0 10.9.0.2", dict(os.environ), quiet), 40)
        finish(server, 5)
        for tap, capture in zip(TAPS, taps, strict=True):
            stop_capture(capture, WORK / f"{name}.{tap}.pcap")
        after, gone = packets(), refused.count()
        counted = counters(port)
        tool("tc", "qdisc", "del", "dev", port, "root")
    told = [(WORK / f"{tap}.txt").read_text() for tap in TAPS]
    return {
        "port": port,
        "client": client,
        "tc": counted,
        "hw": {d: {n: after[d][n] - before[d][n] for n in v} for d, v in after.items()},
        "refused": gone,
        "dropped_by_kernel": [int(re.findall(r"(\d+) packets? dropped by kernel", s)[0]) for s in told],
    }


def struck(name: str, facts: dict[str, Any]) -> bool:
    """Whether the program ended well, and its fault hit something that is counted."""
    if facts["client"]["returncode"] != 0:
        return False
    if "loss" in RUNS[name][2]:
        return bool(facts["tc"]["dropped"])
    if "duplicate" in RUNS[name][2]:
        return bool(facts["hw"]["rxe1"]["rcvd_pkts"] > facts["hw"]["rxe0"]["sent_pkts"])
    return True


def tried(name: str, refused: Refused) -> dict[str, Any]:
    """The first run that its fault struck, or else the last one."""
    for _ in range(TRIES):
        facts = run(name, refused)
        if struck(name, facts):
            break
    return facts


def main() -> int:
    WORK.mkdir()
    for module in ("sch_prio", "sch_netem", "cls_flower"):
        tool("modprobe", module)
    refused = Refused()
    found = {name: tried(name, refused) for name in RUNS}
    for capture in WORK.glob("*.pcap"):
        (OUT / capture.name).write_bytes(capture.read_bytes())
    (OUT / "facts.json").write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
