"""What test_soft_lab.py runs inside the lab: soft peers on va against rxe1's programs on vb; judges nothing.

rxe0 is removed, so that 10.9.0.1 and fd00:9::1 are the soft device's alone. Each line of facts.jsonl is one
conversation: its name, what went wrong (or null), the program's exit status and output.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import Any

from lab_forks import Forks, Run

from rocekit import inject
from rocekit.endpoint import EndpointOptions, QpOptions
from rocekit.inject import Settings
from rocekit.lab import jobs
from rocekit.scenarios import SCENARIOS
from rocekit.scenarios.base import Plan
from rocekit.soft.backend import soft_backend
from rocekit.soft.fault_file import fault_from_words
from rocekit.soft.peers import perftest, pingpong, rping
from rocekit.soft.peers.party import Party

SOFT, RXE = {4: "10.9.0.1", 6: "fd00:9::1"}, {4: "10.9.0.2", 6: "fd00:9::2"}
GID = {4: "1", 6: "2"}
COUNT = 4
PROGRAM_S = 45.0
BYTES = 20_000


@dataclass(frozen=True)
class Conversation:
    """A kernel's program and a soft peer.

    Attributes:
        command: the program's.
        soft: the peer's part; gives what ``rounds`` is to be.
        serves: whether the soft peer is the server.
        netem: what happens to what rxe1 sends; ``faults`` to what the soft peer sends.
    """

    name: str
    command: list[str]
    soft: Callable[[Party], int]
    serves: bool
    rounds: int = COUNT
    ip: int = 4
    faults: tuple[str, ...] = ()
    netem: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)


def _rping() -> Iterator[Conversation]:
    size = ["-C", str(COUNT), "-S", str(BYTES)]
    for ip in (4, 6):
        server = ["rping", "-s", "-a", RXE[ip], *size]
        client = ["rping", "-c", "-a", SOFT[ip], "-I", RXE[ip], *size]
        call = partial(rping.call, host=RXE[ip], count=COUNT, size=BYTES)
        yield Conversation(f"rping_client_ipv{ip}", server, call, False, ip=ip)
        yield Conversation(f"rping_server_ipv{ip}", client, rping.serve, True, ip=ip)
        if ip == 4:
            for kind in ("loss", "reorder", "duplicate"):
                netem = {"loss": "loss 5%", "reorder": "delay 5ms reorder 75%", "duplicate": "duplicate 10%"}
                fault = {"loss": "drop=5%", "reorder": "reorder=10%", "duplicate": "duplicate=10%"}
                lossy: dict[str, Any] = {"faults": (fault[kind],), "netem": netem[kind]}
                yield Conversation(f"rping_client_{kind}", server, call, False, **lossy)
                yield Conversation(f"rping_server_{kind}", client, rping.serve, True, **lossy)


def _pingpong() -> Iterator[Conversation]:
    for transport in ("rc", "uc", "ud"):
        for ip in (4, 6):
            size = 1024 if transport == "ud" else 4096
            command = [f"ibv_{transport}_pingpong", "-d", "rxe1", "-g", GID[ip], "-n", str(COUNT)]
            command += ["-s", str(size)]
            for serves in (False, True):
                # Their TCP side is IPv4 whatever the GID is.
                soft = partial(
                    pingpong.run,
                    transport=transport.upper(),
                    host=None if serves else RXE[4],
                    count=COUNT,
                    size=size,
                )
                role = "server" if serves else "client"
                whole = [*command, SOFT[4]] if serves else command
                yield Conversation(f"{transport}_pingpong_{role}_ipv{ip}", whole, soft, serves, ip=ip)
    for mtu in (256, 512, 2048, 4096):
        command = ["ibv_rc_pingpong", "-d", "rxe1", "-g", "1", "-n", str(COUNT), "-m", str(mtu)]
        soft = partial(pingpong.run, transport="RC", host=RXE[4], count=COUNT, size=BYTES, path_mtu=mtu)
        yield Conversation(f"rc_pingpong_mtu{mtu}", [*command, "-s", str(BYTES)], soft, False)


def _perftest() -> Iterator[Conversation]:
    for test in perftest.TESTS:
        count = 20
        command = [f"ib_{test}", "-d", "rxe1", "-x", "1", "-F", "-n", str(count), "-u", "18"]
        command += [] if test == "atomic_bw" else ["-s", str(BYTES)]
        received = count if test == "send_bw" else 0
        serve = partial(perftest.serve, test=test)
        yield Conversation(f"{test}_server", [*command, "-m", "1024", SOFT[4]], serve, True, received)
        call = partial(perftest.call, test=test, host=RXE[4], count=count, size=BYTES)
        yield Conversation(f"{test}_client", [*command, "-m", "1024"], call, False, count)
        by_cm = partial(perftest.serve, test=test, rdma_cm=True)
        yield Conversation(f"{test}_server_rdma_cm", [*command, "-R", SOFT[4]], by_cm, True, received)


SCENARIO_BYTES = 10_000
INJECTS = {
    f"inject_{scenario}_{role}": (scenario, role == "server")
    for scenario in SCENARIOS
    for role in ("client", "server")
}


def inject_soft(name: str, out: Path, forks: Forks) -> dict[str, object]:
    """A scenario between a soft device and rxe1, the soft one as ``INJECTS`` says."""
    scenario, serves = INJECTS[name]
    over = soft_backend(capture=f"/tmp/{name}.pcapng")
    settings = Settings(
        endpoint=EndpointOptions(device="va", ip=SOFT[4]),
        qp=QpOptions(timeout=18),
        timeout_s=PROGRAM_S,
        journal=out / f"{name}.journal.jsonl",
    )
    size = 8 if scenario == "atomic" else SCENARIO_BYTES
    command = ["inject", scenario, "-d", "rxe1", "-u", "18", "--timeout", str(PROGRAM_S)]
    fact: dict[str, object] = {"name": name, "error": None}
    program: Run | None = None
    try:
        if serves:

            def ready(ip: str) -> None:
                nonlocal program
                more = ("-n", str(COUNT), "-s", str(size), "-q", "2", ip)
                program = forks.start(*command, *more, stdout=PIPE, stderr=STDOUT)

            inject.serve(scenario, settings, ready=ready, make=over)
        else:
            program = forks.start(*command, stdout=PIPE, stderr=STDOUT)
            assert program.stdout is not None
            program.stdout.readline()  # "listening"
            inject.call(RXE[4], Plan(scenario, size, COUNT, qps=2), settings, make=over)
    except Exception as error:
        fact |= {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
    finally:
        if program is not None:
            fact["status"], fact["said"] = end(program)
    return fact


GROUPS = {"rping": _rping, "pingpong": _pingpong, "perftest": _perftest}
CONVERSATIONS = {c.name: c for group in GROUPS.values() for c in group()}


def start(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdout=PIPE, stderr=STDOUT, text=True, start_new_session=True)


def end(program: subprocess.Popen[str] | Run) -> tuple[int | None, str]:
    try:
        said, _ = program.communicate(timeout=PROGRAM_S)
    except subprocess.TimeoutExpired:
        program.kill()
        said, _ = program.communicate()
        return None, said
    return program.returncode, said


def converse(conversation: Conversation, out: Path) -> None:
    """Let the kernel's program and the soft peer talk; write down how it went."""
    began = time.monotonic()
    name = conversation.name
    fact: dict[str, Any] = {"name": name, "error": None, "rounds": None}
    program: subprocess.Popen[str] | None = None
    capture = Path("/tmp", f"{name}.pcapng")
    if conversation.netem is not None:
        subprocess.run(f"tc qdisc add dev vb root netem {conversation.netem}".split(), check=True)

    def call() -> None:
        nonlocal program
        program = start(*conversation.command)

    try:
        if not conversation.serves:
            call()
            vars(jobs)["_wait_until_listening"](program, 10.0)
        with Party(
            "va",
            SOFT[conversation.ip],
            capture=capture,
            faults=[fault_from_words(words) for words in conversation.faults],
            timeout_s=PROGRAM_S,
            listening=call,
        ) as party:
            fact["rounds"] = conversation.soft(party)
            fact["counters"] = {k: n for k, n in party.device.counters.as_dict().items() if n}
    except Exception as error:
        fact["error"] = f"{type(error).__name__}: {error}"
        fact["trace"] = traceback.format_exc()
    finally:
        if program is not None:
            fact["status"], fact["said"] = end(program)
        if conversation.netem is not None:
            subprocess.run(["tc", "qdisc", "del", "dev", "vb", "root"], check=False)
    note(fact, began, out)


def note(fact: dict[str, Any], began: float, out: Path) -> None:
    """Write a fact down, and its capture."""
    name = fact["name"]
    fact["seconds"] = round(time.monotonic() - began, 1)
    with (out / "facts.jsonl").open("a") as lines:
        lines.write(json.dumps(fact) + "\n")
    print(name, fact["error"], fact.get("rounds"), fact.get("status"), fact["seconds"], "s", flush=True)
    capture = Path("/tmp", f"{name}.pcapng")
    if capture.exists():
        (out / capture.name).write_bytes(capture.read_bytes())


def main() -> None:
    out = Path(os.environ["ROCEKIT_LAB_OUT"])
    subprocess.run(["rdma", "link", "del", "rxe0"], check=True)
    wanted = sys.argv[1:]
    for name, conversation in CONVERSATIONS.items():
        if not wanted or any(name.startswith(word) for word in wanted):
            converse(conversation, out)
    with Forks() as forks:
        for name in INJECTS:
            if not wanted or any(name.startswith(word) for word in wanted):
                began = time.monotonic()
                note(inject_soft(name, out, forks), began, out)


if __name__ == "__main__":
    main()
