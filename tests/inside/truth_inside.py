"""What the truth bench runs inside the lab: experiments one after the other, each a folder with its truth.

``truth_inside.py NAME…``, on a wire of three devices. A folder has ``va.pcap`` and ``vb.pcap`` (captured at
the same time), journals of some, what the programs said, and ``truth.json``: tc's counters of each fault,
what rxe's hw_counters went up by, how the programs ended, and over IPv6 each packet's number.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import nullcontext
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tools"), str(HERE.parents[1])]

import truth_marks  # noqa: E402
from lab_forks import Forks, Run  # noqa: E402
from truth_bench.drawn import experiment_of  # noqa: E402
from truth_bench.experiments import BEFORE, BEHIND, BETWEEN, CM_ATTRIBUTES, LARGE, OPCODES, Experiment, Fault  # noqa: E402
from truth_bench.packets import HEADER_BYTES  # noqa: E402

from rocekit.lab.job_programs import finish, shell, wait_until_listening  # noqa: E402
from rocekit.lab.net import A, B, LabError, tool  # noqa: E402

OUT = Path(os.environ.get("ROCEKIT_LAB_OUT", "."))
POINTS = (A.interface, B.interface)
INTERFACES = (*POINTS, "va-port", "vb-port")
READY_LIMIT_S = 20.0
SETTLE_S = 4.0
START_S = 60.0
"""How long programs may need before they send."""
QUIET_S = 0.4
"""How long no packet comes before the captures end."""
#: tc's words for the IP versions.
PROTOCOLS = {4: "ip", 6: "ipv6"}

#: The preference of a fault's first filter; those below let the connection manager's packets pass.
FIRST_OF_FAULT = 3

Program = subprocess.Popen[bytes] | Run


def hook(fault: Fault) -> tuple[str, str]:
    """The interface and the direction in which a fault acts."""
    here, there = POINTS if fault.sender == "a" else POINTS[::-1]
    return {BEFORE: (here, "egress"), BETWEEN: (f"{there}-port", "egress"), BEHIND: (there, "ingress")}[
        fault.where
    ]


def u32(size: int, value: int | str, mask: int | str, at: int, version: int) -> tuple[str, ...]:
    """tc's words for a match at a place behind a header of IPv4, or of the version that there is."""
    return (
        "match",
        f"u{size}",
        str(value),
        str(mask),
        "at",
        str(at - HEADER_BYTES[4] + HEADER_BYTES[version]),
    )


def of_roce(version: int) -> tuple[str, ...]:
    protocol = "9" if version == 4 else "6"
    return ("match", "u8", "17", "0xff", "at", protocol, *u32(16, 4791, "0xffff", 22, version))


def of_cm(version: int) -> tuple[str, ...]:
    """QP 1 is the connection manager's: behind the IP header and 8 bytes of UDP."""
    return u32(32, 1, "0xffffff", 32, version)


def matches(fault: Fault, version: int = 4) -> list[tuple[str, ...]]:
    """tc's u32 matches of the packets that a fault is for."""
    roce = of_roce(version)
    if fault.of == "odd-qpns":
        return [(*roce, *u32(8, 1, "1", 35, version))]
    if fault.of == "large":
        at = "2" if version == 4 else "4"  # IPv6's length is without its header
        return [(*roce, "match", "u16", f"{value:#x}", f"{mask:#x}", "at", at) for value, mask in LARGE]
    if is_of_cm(fault):
        if fault.of == "cm":
            return [(*roce, *of_cm(version))]
        attribute = f"{CM_ATTRIBUTES[fault.of]:#x}"
        return [(*roce, *of_cm(version), *u32(16, attribute, "0xffff", 64, version))]
    masks = OPCODES[fault.of]
    if not masks:
        return [roce]
    return [(*roce, *u32(8, f"{value:#x}", f"{mask:#x}", 28, version)) for value, mask in masks]


def is_of_cm(fault: Fault) -> bool:
    """Whether a fault is for the connection manager's packets, which all others spare."""
    return fault.of.startswith("cm")


def is_filter(fault: Fault) -> bool:
    """Whether a fault is a filter that drops, rather than a qdisc."""
    return fault.how.split()[0] in ("drop", "cut")


def prepare(fault: Fault, version: int) -> None:
    """What a filter needs, so that it starts with one command."""
    interface, direction = hook(fault)
    need_clsact(interface)
    if is_of_cm(fault):
        return
    where = ("dev", interface, direction, "protocol", PROTOCOLS[version], "prio", "2")
    tool("tc", "filter", "add", *where, "u32", *of_cm(version), "action", "pass")


def need_clsact(interface: str) -> None:
    """What filters hang on."""
    if "clsact" not in tool("tc", "qdisc", "show", "dev", interface):
        tool("tc", "qdisc", "add", "dev", interface, "clsact")


def put(fault: Fault, version: int) -> None:
    """Start a fault."""
    interface, direction = hook(fault)
    first, *rest = fault.how.split()
    protocol = PROTOCOLS[version]
    add: tuple[str, ...]
    if is_filter(fault):
        add = ("tc", "filter", "add", "dev", interface, direction, "protocol", protocol, "prio")
        how = ["action", "drop"]
        if first == "drop":
            kind = "netrand" if rest[1:] == ["at", "random"] else "determ"
            how = ["action", "gact", "pass", "random", kind, "drop", rest[0]]
        for prio, match in enumerate(matches(fault, version), start=FIRST_OF_FAULT):
            tool(*add, str(prio), "u32", *match, *how)
        return
    tool("tc", "qdisc", "add", "dev", interface, "root", "handle", "1:", "prio", "priomap", *["0"] * 16)
    tool("tc", "qdisc", "add", "dev", interface, "parent", "1:3", "handle", "30:", *shlex.split(fault.how))
    add = ("tc", "filter", "add", "dev", interface, "parent", "1:", "protocol", protocol, "prio")
    if not is_of_cm(fault):
        tool(*add, "1", "u32", *of_cm(version), "flowid", "1:1")
    for prio, match in enumerate(matches(fault, version), start=2):
        tool(*add, str(prio), "u32", *match, "flowid", "1:3")


def counted(fault: Fault) -> dict[str, int]:
    """What tc counted of a fault."""
    interface, direction = hook(fault)
    if is_filter(fault):
        shown = json.loads(tool("tc", "-s", "-j", "filter", "show", "dev", interface, direction) or "[]")
        return _filters(shown)
    return _qdisc(json.loads(tool("tc", "-s", "-j", "qdisc", "show", "dev", interface)))


def remove(fault: Fault, version: int) -> dict[str, int]:
    """End a fault; what tc counted. First nothing more is dropped, so that nothing is after the count."""
    interface, direction = hook(fault)
    if is_filter(fault):
        protocol = PROTOCOLS[version]
        stop = (
            f"filter add dev {interface} {direction} protocol {protocol} prio 1 u32 match u32 0 0 action pass"
        )
        show, end = f"filter show dev {interface} {direction}", f"filter del dev {interface} {direction}"
    else:
        stop = f"qdisc change dev {interface} parent 1:3 handle 30: netem loss 0%"
        show, end = f"qdisc show dev {interface}", f"qdisc del dev {interface} root"
    shown = tool("tc", "-s", "-j", "-batch", "-", given=f"{stop}\n{show}\n{end}\n")
    counters = json.JSONDecoder().raw_decode(shown[shown.index("[") :])[0]
    return _filters(counters) if is_filter(fault) else _qdisc(counters)


def _filters(shown: list[dict[str, Any]]) -> dict[str, int]:
    sums = {"packets": 0, "drops": 0}
    for entry in shown:
        for action in entry.get("options", {}).get("actions", ()):
            if entry.get("pref", 0) >= FIRST_OF_FAULT and "stats" in action:
                sums["packets"] += int(action["stats"]["packets"])
                sums["drops"] += int(action["stats"]["drops"])
    return sums


def _qdisc(shown: list[dict[str, Any]]) -> dict[str, int]:
    for entry in shown:
        if entry.get("handle") == "30:":
            return {
                name: int(entry.get(name, 0))
                for name in ("packets", "drops", "overlimits", "requeues", "backlog", "qlen")
            }
    raise LabError("tc shows no qdisc of the fault")


def clear() -> None:
    """Take all faults away."""
    for interface in INTERFACES:
        for kind in ("root", "clsact"):
            subprocess.run(
                ("tc", "qdisc", "del", "dev", interface, kind), stderr=subprocess.DEVNULL, check=False
            )


def hw_counters() -> dict[str, dict[str, int]]:
    """rxe's own counters, by device."""
    return {
        end.device: {
            path.name: int(path.read_text())
            for path in Path("/sys/class/infiniband", end.device, "ports/1/hw_counters").iterdir()
            if path.name != "lifespan"
        }
        for end in (A, B)
    }


def elsewhere() -> dict[str, int]:
    """Drops of the interfaces and of the processors' backlogs, which no experiment wants."""
    drops = {
        f"{name} {path.name}": int(path.read_text())
        for name in (*INTERFACES, "vlab")
        for path in Path("/sys/class/net", name, "statistics").glob("*dropped")
    }
    lines = Path("/proc/net/softnet_stat").read_text().splitlines()
    return {**drops, "softnet": sum(int(line.split()[1], 16) for line in lines)}


def moved(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: n - before.get(name, 0) for name, n in after.items() if n != before.get(name, 0)}


def arrived(device: str) -> int:
    return int(Path("/sys/class/infiniband", device, "ports/1/hw_counters/rcvd_pkts").read_text())


@cache
def preload() -> str:
    """The library of truth_preload.c, made here."""
    made = Path(tempfile.mkdtemp()) / "truth_preload.so"
    tool("gcc", "-shared", "-fPIC", "-O1", "-pthread", "-o", str(made), str(HERE / "truth_preload.c"), "-ldl")
    return str(made)


class Captures:
    """tcpdump at both ends."""

    def __init__(self, folder: Path, snaplen: int) -> None:
        self.folder = folder
        self._dumps = []
        for point in POINTS:
            words = ["tcpdump", "-i", point, "--time-stamp-precision=nano", "--immediate-mode", "-U"]
            words += ["-B", "32768", "-s", str(snaplen), "-Z", "root", "-w", str(folder / f"{point}.pcap")]
            with (folder / f"{point}.tcpdump.txt").open("w") as log:
                self._dumps.append(
                    subprocess.Popen([*words, "udp port 4791 or tcp"], stderr=log, stdin=subprocess.DEVNULL)
                )
        end = time.monotonic() + READY_LIMIT_S
        while not all("listening on" in self._said(point) for point in POINTS):
            if time.monotonic() > end:
                raise LabError("tcpdump did not start")
            time.sleep(0.02)

    def _said(self, point: str) -> str:
        return (self.folder / f"{point}.tcpdump.txt").read_text()

    def end(self) -> dict[str, dict[str, int]]:
        """Stop when the files no longer grow; what tcpdump says of them."""
        sizes: list[int] = []
        for _ in range(20):
            time.sleep(QUIET_S)
            now = [(self.folder / f"{point}.pcap").stat().st_size for point in POINTS]
            if now == sizes:
                break
            sizes = now
        for dump in self._dumps:
            dump.send_signal(signal.SIGINT)
        for dump in self._dumps:
            try:
                dump.wait(10)
            except subprocess.TimeoutExpired:
                dump.kill()
                dump.wait()
        facts = {}
        for point in POINTS:
            said = self._said(point)
            facts[point] = {
                name: int(found[1]) if (found := re.search(pattern, said)) else -1
                for name, pattern in (
                    ("captured", r"(\d+) packets? captured"),
                    ("dropped", r"(\d+) packets? dropped by kernel"),
                )
            }
            (self.folder / f"{point}.tcpdump.txt").unlink()
        return facts


class Programs:
    """The server and the client of an experiment."""

    def __init__(self, experiment: Experiment, folder: Path, forks: Forks | None) -> None:
        self._experiment, self._folder, self._forks = experiment, folder, forks
        self.running: dict[str, Program] = {}
        self.ended: dict[str, dict[str, Any]] = {}

    def start(self, role: str, command: str) -> Program:
        command = command.replace("$OUT", str(self._folder))
        environment = {**os.environ, "OUT": str(self._folder), "PYTHON": sys.executable, "INSIDE": str(HERE)}
        environment |= self._loaded(role) | self._experiment.environment
        with (self._folder / f"{role}.txt").open("wb") as sink:
            words = shlex.split(command)
            if words[0] == "rocekit":
                words = words[1:]
            elif self._experiment.journal:
                words = ["record", "-q", "-o", str(self._folder / f"{role}.journal.jsonl"), "--", *words]
            else:
                self.running[role] = shell(f"exec {command}", environment, sink)
                return self.running[role]
            assert self._forks is not None
            self.running[role] = self._forks.start(
                *words, stdout=sink, stderr=sink, env=environment, cwd="/tmp", start_new_session=True
            )
            return self.running[role]

    def _loaded(self, role: str) -> dict[str, str]:
        """What makes a program begin at a PSN, or take its memory away."""
        wanted = {}
        if self._experiment.first_psn is not None:
            wanted["FIRST_PSN"] = str(self._experiment.first_psn)
        if self._experiment.revoke_after and role == "server":
            wanted["REVOKE_AFTER"] = str(self._experiment.revoke_after)
        if self._experiment.server_mtu_code and role == "server":
            wanted["PATH_MTU_CODE"] = str(self._experiment.server_mtu_code)
        return {**wanted, "LD_PRELOAD": preload()} if wanted else {}

    def run(self) -> None:
        if self._experiment.server is not None:
            server = self.start("server", self._experiment.server)
            wait_until_listening(server, READY_LIMIT_S if self._experiment.journal else SETTLE_S)  # type: ignore[arg-type]
        client = self.start("client", self._experiment.client)
        self.ended["client"] = finish(client, self._experiment.limit_s)  # type: ignore[arg-type]
        if "server" in self.running:
            self.ended["server"] = finish(self.running["server"], 2.0)  # type: ignore[arg-type]

    def signal(self, role: str, number: int) -> None:
        os.killpg(self.running[role].pid, number)


def wait_for_packets(device: str, start: int, after: int, limit_s: float) -> bool:
    end = time.monotonic() + limit_s
    while arrived(device) - start < after:
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True


def later(
    experiment: Experiment, programs: Programs, start: dict[str, int], log: list[dict[str, Any]]
) -> None:
    """Faults that begin in the middle, and killed programs."""
    limit_s = experiment.limit_s + START_S
    for fault in experiment.faults:
        if fault.after:
            device = B.device if fault.sender == "a" else A.device
            if not wait_for_packets(device, start[device], fault.after, limit_s):
                return
            log.append({"time_ns": time.time_ns(), "what": "fault begins", "fault": asdict(fault)})
            put(fault, experiment.ip_version)
            if fault.seconds:
                time.sleep(fault.seconds)
                counters = remove(fault, experiment.ip_version)
                log.append({"time_ns": time.time_ns(), "what": "fault ends", "counters": counters})
    if experiment.killed is not None and wait_for_packets(
        B.device, start[B.device], experiment.killed.after, limit_s
    ):
        program, stopped_s = experiment.killed.program, experiment.killed.stopped_s
        programs.signal(program, signal.SIGSTOP if stopped_s else signal.SIGKILL)
        log.append({"time_ns": time.time_ns(), "what": f"{program} {'stopped' if stopped_s else 'killed'}"})
        if stopped_s:
            time.sleep(stopped_s)
            programs.signal(program, signal.SIGCONT)


def run(experiment: Experiment, forks: Forks | None) -> dict[str, Any]:
    """One experiment; returns its truth, which is in its folder too."""
    folder = OUT / experiment.name
    folder.mkdir()
    began = time.monotonic()
    clear()
    for fault in experiment.faults:
        if is_filter(fault):
            prepare(fault, experiment.ip_version)
        if not fault.after:
            put(fault, experiment.ip_version)
    if experiment.ip_version == 6:
        for point in POINTS:
            need_clsact(point)
        truth_marks.number(POINTS)
    captures = Captures(folder, experiment.snaplen)
    counters, others = hw_counters(), elsewhere()
    log: list[dict[str, Any]] = []
    programs = Programs(experiment, folder, forks)
    start = {device: values["rcvd_pkts"] for device, values in counters.items()}
    thread = threading.Thread(target=later, args=(experiment, programs, start, log), daemon=True)
    if experiment.killed is not None or any(fault.after for fault in experiment.faults):
        thread.start()
    programs.run()
    captured = captures.end()
    truth: dict[str, Any] = {
        "name": experiment.name,
        "kernel": os.uname().release,
        "experiment": asdict(experiment),
        "faults": [
            {
                **asdict(fault),
                "on": " ".join(hook(fault)),
                "counters": _counters(fault, log),
            }
            for fault in experiment.faults
        ],
        "hw_counters": {device: moved(counters[device], values) for device, values in hw_counters().items()},
        "drops_elsewhere": moved(others, elsewhere()),
        "programs": programs.ended,
        "captured": captured,
        "log": log,
        "hosts": {
            name: {"ip": end.ipv4 if experiment.ip_version == 4 else end.ipv6, "device": end.device}
            for name, end in (("a", A), ("b", B))
        },
    }
    if experiment.ip_version == 6:
        truth["marks"] = {point: truth_marks.take(folder / f"{point}.pcap") for point in POINTS}
    clear()
    truth["seconds"] = round(time.monotonic() - began, 1)
    (folder / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")
    return truth


def _counters(fault: Fault, log: list[dict[str, Any]]) -> dict[str, int]:
    """What tc counted of a fault: read when it ended, else now."""
    said = {entry["what"]: entry for entry in log}
    if fault.after and "fault begins" not in said:
        return {}
    if fault.seconds and "fault ends" in said:
        return dict(said["fault ends"]["counters"])
    return counted(fault)


def main(names: list[str]) -> int:
    """Run the named experiments; one that fails does not keep the others from running."""
    Path("/proc/sys/net/core/netdev_max_backlog").write_text("20000")
    subprocess.run(("modprobe", "-a", "-q", "sch_prio", "sch_tbf", "sch_netem"), check=False)
    failed = []
    experiments = [experiment_of(name) for name in names]
    rocekit = any(each.journal or each.client.startswith("rocekit") for each in experiments)
    with Forks("truth_medley") if rocekit else nullcontext() as forks:
        for name, each in zip(names, experiments, strict=True):
            try:
                truth = run(each, forks)
            except (LabError, OSError) as error:
                failed.append(name)
                print(f"{name}: FAILED: {error}", flush=True)
                shutil.rmtree(OUT / name, ignore_errors=True)
                continue
            ended = {role: how["returncode"] for role, how in truth["programs"].items()}
            drops = [fault["counters"].get("drops") for fault in truth["faults"]]
            print(
                f"{name}: {ended}, captured {[c['captured'] for c in truth['captured'].values()]}, "
                f"drops {drops}, elsewhere {truth['drops_elsewhere']}, {truth['seconds']} s",
                flush=True,
            )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
