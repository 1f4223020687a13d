"""What test_inject_lab.py runs inside the lab: traffic and mistakes, and what came of them in facts.json."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from subprocess import PIPE
from typing import Any

from amount import EVERYTHING, MORE
from lab_forks import Forks, read_gid_tables_once

from rocekit.endpoint import (
    LOCAL_WRITE,
    REMOTE_WRITE,
    Deadline,
    EndpointOptions,
    QpOptions,
    SendWr,
    Sge,
    WaitWays,
)
from rocekit.endpoint.qp_address import QpAddress
from rocekit.endpoint.waiting import CM_WAYS, CQ_WAYS
from rocekit.errors import RocekitError
from rocekit.inject import Settings
from rocekit.lab.jobs import TCPDUMP
from rocekit.lab.net import A, B, set_netem, tool
from rocekit.scenarios.both_sides import both, terminated_cleanly
from rocekit.scenarios.scenario import Plan
from rocekit.verbs import VerbsEndpoint

OUT = Path(os.environ.get("ROCEKIT_LAB_OUT", "."))
WORK = Path("/tmp/inject-inside")  # the output folder is slow
LIMIT_S = 180.0
PATIENCE = ("--timeout", "100")
"""An emulated machine under load takes half a minute to start a program."""

ONE_IN, BY_CHANCE = 7, 9
"""Of the RoCE packets that rxe0 sends one in so many is lost by chance, behind the capture, and of the others
every so manyth, so that there is a loss. By counting alone it would be the same packet again and again where
what is sent again is as many packets as are counted to.
"""
CUT_SCENARIO = "blast-write"
"""During which the wire is cut: only its client sends, and so learns of it."""
QUICK = QpOptions(timeout=12)
ENOUGH = 100
"""Round trips to tell how busy the processor was. 25 are over in 0.3 s of an emulated machine, and a moment
in which that machine itself had no processor counts as the program's.
"""


def _plan(name: str, **more: Any) -> Plan:
    return Plan(name, more.pop("size", 5000), more.pop("iterations", 5), **more)


#: Each scenario as it is run twice: clean, and with losses.
SCENARIO_PLANS: dict[str, Plan] = {
    **{f"ping-sr-{n}": _plan(f"ping-sr-{n}") for n in range(5)},
    "ping-sr": _plan("ping-sr"),
    "blast-sr": _plan("blast-sr", size=9000, iterations=24, window=16, cq_mod=4, post_list=4),
    "ping-write": _plan("ping-write", size=10_000),
    "ping-read": _plan("ping-read", size=20_000, iterations=10),
    "blast-write": _plan("blast-write", size=9000, iterations=16, window=8, cq_mod=4),
    "blast-read": _plan("blast-read", size=9000, iterations=16),
    "atomic": _plan("atomic", size=8, iterations=10, qps=2),
    "ud": _plan("ud", size=2000, iterations=8),
    "uc": _plan("uc", size=2000, iterations=12),  # with every fourth packet lost, some still come through
    "immediate": _plan("immediate"),
    "invalidate": _plan("invalidate"),
    "sge": _plan("sge"),
    "wr-list": _plan("wr-list", iterations=8),
    "srq": _plan("srq", iterations=6, qps=3, receives=9),
    "cq-ex": _plan("cq-ex", iterations=10, qps=4),
}
#: rxe has extended CQs, but without timestamps.
OPTIONS: dict[str, dict[str, Any]] = {"cq-ex": {"timestamps": False}}
#: Lost packets mean timeouts, of seconds where they were the CM's: only when everything runs.
LOSSY = tuple(SCENARIO_PLANS) if EVERYTHING else ()
EVERY_WAY = tuple(itertools.product(CM_WAYS, CQ_WAYS))
#: Ways to wait that run: of each kind something, unless more is asked for.
WAYS = tuple(
    way
    for way in EVERY_WAY
    if MORE or way[0] == "sync" or way in (("thread", "channel"), ("poll", "nonblocking"))
)
RUNS: dict[str, tuple[Plan, dict[str, Any]]] = {
    **{name: (plan, OPTIONS.get(name, {})) for name, plan in SCENARIO_PLANS.items()},
    **{
        f"{name}-loss": (SCENARIO_PLANS[name], {"lossy": True, "qp": QUICK} | OPTIONS.get(name, {}))
        for name in LOSSY
    },
    "ping-sr-4qp": (Plan("ping-sr", 64, 5, qps=4), {}),
    "ping-sr-ipv6": (_plan("ping-sr"), {"ips": ("fd00:9::2", "fd00:9::1")}),
    "ping-sr-inline": (Plan("ping-sr", 100, 5), {"qp": QpOptions(inline_size=128)}),
    "ping-sr-mtu": (_plan("ping-sr", path_mtu=1024), {}),
    "ping-sr-tcp": (_plan("ping-sr"), {"tcp": True}),
    "atomic-tcp": (_plan("atomic", size=8, qps=2), {"tcp": True}),
    "atomic-cmp": (_plan("atomic", size=8, qps=2, atomic="CMP_AND_SWAP"), {}),
    **{f"ping-sr-{cm}-{cq}": (Plan("ping-sr", 64, ENOUGH), {"ways": WaitWays(cm, cq)}) for cm, cq in WAYS},
}


class Capture:
    """One tcpdump for all runs: starting and ending one takes longer than most runs."""

    def __init__(self) -> None:
        self.pcap, self._log = WORK / "all.pcap", WORK / "tcpdump.txt"
        with self._log.open("w") as log:
            self._dump = subprocess.Popen(
                [*TCPDUMP, "-w", self.pcap, "udp port 4791 or tcp port 18515"], stderr=log
            )
        wait_for(lambda: "listening" in self._log.read_text())

    def end(self) -> str:
        """What tcpdump said."""
        time.sleep(1.0)
        self._dump.send_signal(signal.SIGINT)
        self._dump.wait(20)
        shutil.copy(self.pcap, OUT)
        return self._log.read_text()


def lose() -> None:
    """Lose packets on their way into rxe1, from now on, but for the CM's.

    A lost RTU comes again after seconds, while the client, which has had its REP, runs out of retries.
    """
    tool("tc", "qdisc", "add", "dev", B.interface, "ingress")
    where = ("tc", "filter", "add", "dev", B.interface, "ingress", "protocol", "ip", "prio")
    # The BTH's destination QP, behind 20 bytes of IP and 8 of UDP.
    tool(*where, "1", "u32", "match", "u32", "1", "0xffffff", "at", "32", "action", "pass")
    for prio, (rest, how) in enumerate(
        (("continue", f"netrand drop {BY_CHANCE}"), ("pass", f"determ drop {ONE_IN}")), start=2
    ):
        tool(*where, f"{prio}", *f"flower ip_proto udp dst_port 4791 action {rest} random {how}".split())


def run(name: str, plan: Plan, more: dict[str, Any]) -> dict[str, Any]:
    """A scenario; ``span_ns`` is when it was, for the packets to be found by."""
    qp = more.get("qp", QpOptions())
    sides = [
        Settings(
            EndpointOptions(
                ip=ip,
                tcp=more.get("tcp", False),
                ways=more.get("ways", WaitWays()),
                timestamps=more.get("timestamps", True),
            ),
            qp,
            timeout_s=100,
            journal=WORK / f"{name}.{role}.jsonl",
            own_plan=plan,
        )
        for role, ip in zip(("server", "client"), more.get("ips", ("10.9.0.2", "10.9.0.1")), strict=True)
    ]
    if "lossy" in more:
        lose()
    fact: dict[str, Any] = {"plan": asdict(plan), "span_ns": [time.time_ns(), 0]}
    try:
        fact["outcome"] = both(plan, *sides).to_dict()
    except RocekitError as error:
        fact["error"] = str(error)
    finally:
        if "lossy" in more:
            tool("tc", "qdisc", "del", "dev", B.interface, "ingress")
    time.sleep(0.2)
    fact["span_ns"][1] = time.time_ns()
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

    def __init__(self, forks: Forks, *arguments: str) -> None:
        self.process = forks.start("inject", *arguments, stdout=PIPE, stderr=PIPE)

    def end(self) -> dict[str, Any]:
        try:
            stdout, stderr = self.process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            stdout, stderr = self.process.communicate()
            stderr += "hung"
        return {"returncode": self.process.returncode, "stdout": stdout, "stderr": stderr}


def server(forks: Forks, *arguments: str) -> Side:
    """A server that listens."""
    side = Side(forks, *arguments)
    assert side.process.stderr is not None
    side.process.stderr.readline()
    return side


def one(forks: Forks, *arguments: str) -> dict[str, Any]:
    return Side(forks, *arguments).end()


def resources() -> dict[str, int]:
    """The QPs, CQs, MRs, PDs and identifiers that programs have; of contexts see :func:`contexts`."""
    kinds = ("pd", "cq", "qp", "mr", "cm_id")
    return {kind: sum(device.get(kind, 0) for device in _listed("show")) for kind in kinds}


def contexts() -> dict[str, dict[str, int]]:
    """How many contexts this process and all others have on each device, and what this one holds open of
    RDMA, by what it is."""
    found: dict[str, dict[str, int]] = {"own": {}, "others": {}, "open": {}}
    for context in _listed("show", "ctx"):
        whose = found["own" if context["pid"] == os.getpid() else "others"]
        whose[context["ifname"]] = whose.get(context["ifname"], 0) + 1
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the listing itself is closed by now
            target = str(link.readlink())
            if "infiniband" in target:
                found["open"][target] = found["open"].get(target, 0) + 1
    return found


def _listed(*words: str) -> list[dict[str, Any]]:
    done = subprocess.run(["rdma", "-j", "resource", *words], capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout or "[]"))


def mistakes(forks: Forks) -> dict[str, Any]:
    """Everything that can go wrong at the start."""
    facts: dict[str, Any] = {}
    facts["no listener"] = one(forks, "ping-sr", "10.9.0.2", "-n", "1")
    facts["wrong GID index"] = one(forks, "ping-sr", "10.9.0.2", "-d", "rxe0", "-x", "77")
    facts["no client"] = one(forks, "ping-sr", "-d", "rxe1", "--timeout", "1")
    first = server(forks, "ping-sr", "-d", "rxe1", *PATIENCE)
    facts["port taken"] = one(forks, "ping-sr", "-d", "rxe1")
    facts["other scenario"] = one(forks, "ping-read", "10.9.0.2", "-n", "1")
    facts["other scenario, server"] = first.end()
    subprocess.run(["ip", "link", "set", "va", "mtu", "1500"], check=True)
    facts["MTU too large"] = one(forks, "ping-sr", "10.9.0.2", "-m", "4096", "-n", "1")
    subprocess.run(["ip", "link", "set", "va", "mtu", "4200"], check=True)
    facts["no timestamps"] = one(forks, "cq-ex", "--both", "-n", "1")
    facts["no device memory"] = one(forks, "device-memory", "--both", "-n", "1")
    facts["no TCP listener"] = one(forks, "uc", "10.9.0.2", "-n", "1")
    return facts


def sent() -> int:
    """Packets that rxe0 has sent, by its own counter."""
    return int(Path("/sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts").read_text())


def cut_the_wire() -> None:
    """Lose what either end sends, from one moment on.

    One program cuts both: between two of them a busy machine lets a second pass.
    """
    cuts = (f"qdisc replace dev {end.interface} root netem loss 100%\n" for end in (A, B))
    tool("tc", "-batch", "-", given="".join(cuts))


def interrupted(forks: Forks) -> dict[str, Any]:
    """Everything that can go wrong in the middle. 1,000,000 iterations do not end by themselves.

    Of ping-sr a cut wire would be told by the one whose turn it was, while the other waits for a message.
    """
    facts: dict[str, Any] = {}
    endings: dict[str, Callable[[Side, Side], None]] = {
        "server killed": lambda server, client: server.process.kill(),
        "server terminated": lambda server, client: server.process.terminate(),
        "client interrupted": lambda server, client: client.process.send_signal(signal.SIGINT),
        "wire cut": lambda server, client: cut_the_wire(),
    }
    for name, ending in endings.items():
        stem = name.replace(" ", "-")
        scenario = CUT_SCENARIO if name == "wire cut" else "ping-sr"
        paths = {role: WORK / f"{stem}.{role}.jsonl" for role in ("server", "client")}
        patient = ("--retry", "2", "-u", "12", *PATIENCE)
        before = sent()
        left = server(forks, scenario, "-d", "rxe1", *patient, "--journal", str(paths["server"]))
        endless = ("-n", "1000000", "-s", "1024")
        right = Side(forks, scenario, "10.9.0.2", *endless, *patient, "--journal", str(paths["client"]))
        # A journal is written a megabyte at a time, which takes most of a minute here.
        began = wait_for(lambda before=before: sent() > before + 60, 100)  # type: ignore[misc]
        ending(left, right)
        facts[name] = {"began": began, "client": right.end()}
        if name == "wire cut":
            left.process.terminate()  # it waits for the client until its time is over
        facts[name]["server"] = left.end()
        for end in (A, B):
            set_netem(end, None)
        for path in paths.values():
            if path.exists():
                shutil.copy(path, OUT)
    return facts


def quick_to_leave() -> dict[str, Any]:
    """What a server hears of a client that leaves at once, its RTU being lost: the DREQ is all."""
    tool("tc", "qdisc", "add", "dev", B.interface, "ingress")
    try:
        # Behind 20 bytes of IP, 8 of UDP, 12 of BTH and 8 of DETH: the MAD's attribute, behind 16 more.
        rtu = ("u32", "match", "u16", "0x0014", "0xffff", "at", "64", "action", "drop")
        tool("tc", "filter", "add", "dev", B.interface, "ingress", "protocol", "ip", "prio", "1", *rtu)
        sides = [VerbsEndpoint(EndpointOptions(device=end.device)) for end in (A, B)]
        with sides[0] as client, sides[1] as server, ThreadPoolExecutor(1) as thread:
            server.listen(18519, backlog=1)

            def serve() -> list[Any]:
                link = server.request(Deadline(LIMIT_S)).connection(QpOptions())
                link.accept(b"as you like", Deadline(LIMIT_S))
                found = [link.disconnected, [news.type for news in server.heard_of]]
                link.disconnect(Deadline(LIMIT_S))
                return found

            served = thread.submit(serve)
            link = client.dial(server.ip, 18519, QpOptions(), Deadline(LIMIT_S))
            said = link.connect(b"", Deadline(LIMIT_S))
            link.disconnect(Deadline(LIMIT_S))
            disconnected, heard = served.result(LIMIT_S)
            return {"said": said.rstrip(b"\0").decode(), "disconnected": disconnected, "heard": heard}
    finally:
        tool("tc", "qdisc", "del", "dev", B.interface, "ingress")


def extended() -> dict[str, Any]:
    """Turns at an extended CQ that has so many completions, taken one by one and walked through."""
    facts: dict[str, Any] = {}
    ends = [
        VerbsEndpoint(EndpointOptions(device=end.device, extended=True, timestamps=False)) for end in (A, B)
    ]
    with ends[0] as client, ends[1] as other:
        completions = ends[0].completions
        facts["walks"] = completions.walks
        links = [end.queue_pair(QpOptions()) for end in (client, other)]
        regions = [end.register(4096, (LOCAL_WRITE, REMOTE_WRITE)) for end in (client, other)]
        places = [
            QpAddress(link.qpn, 100, region.rkey, region.addr, end.ip)
            for link, region, end in zip(links, regions, ends, strict=True)
        ]
        for link, place in zip(links, reversed(places), strict=True):
            link.start(place, 100, 1024)
        numbers = itertools.count(1)

        def write(count: int, rkey: int = regions[1].rkey) -> None:
            sge, where = Sge(regions[0], 0, 64), regions[1].addr
            links[0].post_send(
                *(
                    SendWr(next(numbers), "RDMA_WRITE", (sge,), remote_va=where, rkey=rkey)
                    for _ in range(count)
                )
            )
            time.sleep(2.0)  # polling would be what is to be tested

        def turn(most: int, walks: bool) -> list[list[Any]]:
            completions.walks = walks
            return [[c.qpn, c.wr_id, c.status, c.opcode, c.timestamp] for c in client.poll(most)]

        facts["qpn"] = links[0].qpn
        write(6)
        facts["one by one"] = [turn(4, walks=False), turn(4, walks=False), turn(4, walks=False)]
        write(5)
        # As many as there are: the walk ends before it finds no more.
        facts["walked"] = [turn(5, walks=True), turn(5, walks=False)]
        write(2, rkey=regions[1].rkey ^ 0x5A00)
        facts["failed"] = [turn(4, walks=False)]
    return facts


def failures() -> dict[str, Any]:
    """What the device says to each mistake; the journal of both sides in one."""
    plan = Plan("failures", 4096, 1)
    return run("failures", plan, {})


def main(wanted: list[str]) -> int:
    """All of it; or, by their names, some runs and parts."""
    WORK.mkdir()
    facts: dict[str, Any] = {"runs": {}, "took_s": {}}

    def timed(into: dict[str, Any], name: str, part: Callable[[], Any]) -> None:
        if wanted and name not in wanted:
            return
        began = time.monotonic()
        into[name] = part()
        facts["took_s"][name] = took = round(time.monotonic() - began, 1)
        print(f"{name}: {into[name].get('error', 'done')}, {took} s", flush=True)

    # A lab whose time is over says so by SIGTERM.
    read_gid_tables_once()
    with terminated_cleanly(), Forks() as forks:
        told = forks.start("devices", "--format", "json", stdout=PIPE, stderr=PIPE).communicate(LIMIT_S)
        facts["devices"] = json.loads(told[0])
        facts["before"], facts["contexts before"] = resources(), contexts()
        try:
            capture = Capture()
            for name, (plan, more) in RUNS.items():
                timed(facts["runs"], name, partial(run, name, plan, more))
            timed(facts, "failures", failures)
            timed(facts, "extended", extended)
            facts["tcpdump"] = capture.end()
            with tarfile.open(OUT / "journals.tar", "w") as tar:  # one file: the folder is slow
                for journal in sorted(WORK.glob("*.jsonl")):
                    tar.add(journal, journal.name)
            timed(facts, "mistakes", partial(mistakes, forks))
            timed(facts, "interrupted", partial(interrupted, forks))
            wait_for(lambda: resources() == facts["before"])
            facts["after"], facts["contexts after"] = resources(), contexts()
            timed(facts, "quick to leave", quick_to_leave)  # its server's context stays: librdmacm keeps it
        finally:
            # What is known so far is worth more than nothing, after minutes in an emulated machine.
            (OUT / "facts.json").write_text(json.dumps(facts, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
