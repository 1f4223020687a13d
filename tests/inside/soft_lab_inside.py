"""What test_soft_lab.py runs inside the lab: soft peers on va against rxe1's programs on vb; judges nothing.

rxe0 is removed, so that 10.9.0.1 and fd00:9::1 are the soft device's alone. Each line of facts.jsonl is one
conversation: its name, what went wrong (or null), the program's exit status and output.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import Any

from lab_forks import Forks, Run

from rocekit import inject
from rocekit.endpoint import EndpointOptions, QpOptions
from rocekit.inject import Settings
from rocekit.lab import job_programs
from rocekit.scenarios import SCENARIOS
from rocekit.scenarios.scenario import Plan
from rocekit.soft.backend import soft_backend
from rocekit.soft.peers import perftest, pingpong, rping
from rocekit.soft.peers.party import Party
from rocekit.soft.wires.fault_file import fault_from_words

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
        rounds: what ``soft`` is to give; None where the network decides.
        netem: what happens to what rxe1 sends; ``faults`` to what the soft peer sends.
        hangs: the program waits for ever for what was lost; it is ended.
    """

    name: str
    command: list[str]
    soft: Callable[[Party], int]
    serves: bool
    rounds: int | None = COUNT
    ip: int = 4
    faults: tuple[str, ...] = ()
    netem: str | None = None
    hangs: bool = False


def _rping() -> Iterator[Conversation]:
    size = ["-C", str(COUNT), "-S", str(BYTES)]
    for ip in (4, 6):
        server = ["rping", "-s", "-a", RXE[ip], *size]
        client = ["rping", "-c", "-V", "-a", SOFT[ip], "-I", RXE[ip], *size]
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
    # Every path MTU once.
    mtus = {("client", 4): 256, ("server", 4): 512, ("client", 6): 2048, ("server", 6): 4096}
    for transport in ("rc", "uc", "ud"):
        for (role, ip), mtu in mtus.items():
            size = 1024 if transport == "ud" else BYTES
            command = [f"ibv_{transport}_pingpong", "-d", "rxe1", "-g", GID[ip], "-n", str(COUNT)]
            command += ["-s", str(size), *(() if transport == "ud" else ("-m", str(mtu)))]
            # Their TCP side is IPv4 whatever the GID is.
            command += [SOFT[4]] if role == "server" else []
            soft = partial(
                pingpong.run,
                transport=transport.upper(),
                host=None if role == "server" else RXE[4],
                count=COUNT,
                size=size,
                path_mtu=mtu,
            )
            name = f"{transport}_pingpong_{role}_ipv{ip}"
            yield Conversation(name, command, soft, role == "server", ip=ip)


MESSAGES = 20
LOSS: dict[str, Any] = {"faults": ("drop=3%",), "netem": "loss 3%"}
FEW = ("-t", "4")
"""Messages outstanding under loss: as many as the soft side works off before the other's timer runs out."""
PERFTEST_RUNS: tuple[tuple[str, str, tuple[str, ...], dict[str, Any]], ...] = (
    # The test, its name here, perftest's options, and what else there is to a conversation.
    *(
        (test, "", ("-m", mtu), {})
        for test, mtu in zip(perftest.TESTS, ("256", "512", "2048", "1024"), strict=True)
    ),
    *((test, "_rdma_cm", ("-R",), {}) for test in perftest.TESTS),
    ("send_bw", "_ipv6", ("-m", "4096", "-x", "2"), {"ip": 6}),
    ("send_bw", "_uc", ("-m", "1024", "-c", "UC"), {}),
    ("write_bw", "_uc", ("-m", "1024", "-c", "UC"), {}),
    ("send_bw", "_ud", ("-m", "1024", "-c", "UD"), {}),
    ("send_bw", "_loss", ("-m", "1024", *FEW), LOSS),
    ("read_bw", "_loss", ("-m", "1024", *FEW), LOSS),
    ("write_bw", "_rdma_cm_loss", (*FEW, "-R"), LOSS),
)
"""perftest's programs, in both roles each."""


def _perftest() -> Iterator[Conversation]:
    for test, kind, options, more in PERFTEST_RUNS:
        for serves in (True, False):
            yield _perftest_run(test, kind, options, serves, **more)
    # What is lost without a word: of what rxe sends some messages come, of what it is sent all but two.
    for transport in ("UC", "UD"):
        options = ("-m", "1024", "-c", transport)
        yield _perftest_run(
            "send_bw", f"_{transport.lower()}_loss", options, True, rounds=None, netem="loss 10%"
        )
        faults = tuple(f"qpn=1,psn={psn},type=drop" for psn in (LOST_PSNS if transport == "UC" else (3, 5)))
        yield _perftest_run(
            "send_bw", f"_{transport.lower()}_loss", options, False, faults=faults, hangs=True, stay=False
        )


LOST_PSNS = (4, 13)
"""The first packets of the second and the fifth message of three packets."""
SHORT_BYTES = 3000


def _perftest_run(
    test: str, kind: str, options: tuple[str, ...], serves: bool, *, stay: bool = True, **more: Any
) -> Conversation:
    words = dict(zip(options[::2], options[1::2], strict=False))
    transport, by_cm = words.get("-c", "RC"), "-R" in options
    size = 1000 if transport == "UD" else SHORT_BYTES if transport == "UC" else BYTES
    gid = () if "-x" in options else ("-x", "1")
    timeout = "16" if "netem" in more else "18"
    command = [f"ib_{test}", "-d", "rxe1", "-F", "-n", str(MESSAGES), "-u", timeout, *gid, *options]
    command += [] if test == "atomic_bw" else ["-s", str(size)]
    role = "server" if serves else "client"
    soft: Callable[[Party], int]
    if serves:
        command.append(SOFT[4])
        counted = MESSAGES if test in ("send_bw", "atomic_bw") else 0
        soft = partial(perftest.serve, test=test, rdma_cm=by_cm, transport=transport)
    else:
        counted = MESSAGES
        mtu = int(words.get("-m", "4096"))
        soft = partial(
            perftest.call,
            test=test,
            host=RXE[4],
            count=MESSAGES,
            size=size,
            path_mtu=mtu,
            rdma_cm=by_cm,
            transport=transport,
            stay=stay,
        )
    return Conversation(f"{test}_{role}{kind}", command, soft, serves, **{"rounds": counted, **more})


BOTH_ROLES = {"ping-sr": 10_000, "ping-read": 10_000}
"""Scenarios that the soft device plays in both roles on two QPs, and the bytes of their messages."""
ONE_ROLE = {
    "blast-sr": "server",
    "ping-write": "client",
    "atomic": "client",
    "uc": "client",
    "ud": "server",
    "immediate": "client",
    "invalidate": "server",
    "srq": "client",
}
INJECTS = {
    f"inject_{scenario}_{role}": (scenario, role == "server")
    for scenario, role in (
        *((scenario, role) for scenario in BOTH_ROLES for role in ("client", "server")),
        *ONE_ROLE.items(),
    )
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
    size = BOTH_ROLES.get(scenario, SCENARIOS[scenario].default_size)
    qps = 2 if scenario in BOTH_ROLES else 1
    command = ["inject", scenario, "-d", "rxe1", "-u", "18", "--timeout", str(PROGRAM_S)]
    fact: dict[str, object] = {"name": name, "error": None}
    program: Run | None = None
    try:
        if serves:

            def ready(ip: str) -> None:
                nonlocal program
                more = ("-n", str(COUNT), "-s", str(size), "-q", str(qps), ip)
                program = forks.start(*command, *more, stdout=PIPE, stderr=STDOUT)

            inject.serve(scenario, settings, ready=ready, make=over)
        else:
            program = forks.start(*command, stdout=PIPE, stderr=STDOUT)
            assert program.stdout is not None
            program.stdout.readline()  # "listening"
            inject.call(RXE[4], Plan(scenario, size, COUNT, qps=qps), settings, make=over)
    except Exception as error:
        fact |= {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
    finally:
        if program is not None:
            fact["status"], fact["said"] = end(program)
    return fact


GROUPS = {"rping": _rping, "pingpong": _pingpong, "perftest": _perftest}
CONVERSATIONS = {c.name: c for group in GROUPS.values() for c in group()}
SHORT = (
    "rping_client_ipv4",
    "rping_server_loss",
    "rping_server_ipv6",
    "rc_pingpong_server_ipv4",
    "rc_pingpong_client_ipv6",
    "uc_pingpong_server_ipv6",
    "ud_pingpong_client_ipv4",
    "ud_pingpong_server_ipv4",
    "write_bw_server",
    "read_bw_client",
    "atomic_bw_server",
    "atomic_bw_client",
    "send_bw_client_rdma_cm",
    "send_bw_server_loss",
    "read_bw_client_loss",
    "send_bw_server_uc_loss",
    "send_bw_client_uc_loss",
)
"""Of each operation, role, transport and way to connect one, with IPv6, several path MTUs and loss: what is
run when not everything is asked for."""


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


def counter(name: str) -> int:
    """One of rxe1's own counters."""
    return int(Path("/sys/class/infiniband/rxe1/ports/1/hw_counters", name).read_text())


def converse(conversation: Conversation, out: Path) -> None:
    """Let the kernel's program and the soft peer talk; write down how it went."""
    began = time.monotonic()
    name = conversation.name
    fact: dict[str, Any] = {"name": name, "error": None, "rounds": None}
    program: subprocess.Popen[str] | None = None
    capture = Path("/tmp", f"{name}.pcapng")
    received = counter("rdma_recvs")
    if conversation.netem is not None:
        subprocess.run(f"tc qdisc add dev vb root netem {conversation.netem}".split(), check=True)

    def call() -> None:
        nonlocal program
        program = start(*conversation.command)

    try:
        if not conversation.serves:
            call()
            assert program is not None
            job_programs.wait_until_listening(program, 10.0)
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
            data = max(party.regions, key=lambda region: region.length)
            fact["memory"] = hashlib.sha256(data.view[:BYTES]).hexdigest()
        if conversation.hangs and program is not None:
            time.sleep(0.5)
            program.kill()
    except Exception as error:
        fact["error"] = f"{type(error).__name__}: {error}"
        fact["trace"] = traceback.format_exc()
    finally:
        if program is not None:
            fact["status"], fact["said"] = end(program)
        fact["received_by_rxe"] = counter("rdma_recvs") - received
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
    wanted = sys.argv[1:] or [*CONVERSATIONS, *INJECTS]
    injects = [name for name in INJECTS if name in wanted]
    # Loaded while the others talk: a server does not wait for a client whose interpreter takes half a minute.
    with Forks() if injects else nullcontext() as forks:
        for name, conversation in CONVERSATIONS.items():
            if name in wanted:
                converse(conversation, out)
        if forks is not None:
            forks.start("--version", stdout=PIPE).wait()
            for name in injects:
                began = time.monotonic()
                note(inject_soft(name, out, forks), began, out)


if __name__ == "__main__":
    main()
