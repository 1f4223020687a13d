"""What test_soft_lab.py runs inside the lab: soft peers on va against rxe1's programs on vb; judges nothing.

rxe0 is removed, so that 10.9.0.1 and fd00:9::1 are the soft device's alone. Each line of facts.jsonl is one
conversation: its name, what went wrong (or null), the program's exit status and output.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rocekit.soft.fault_file import fault_from_words
from rocekit.soft.peers import perftest, pingpong, rping
from rocekit.soft.peers.party import Party

OUT = Path(os.environ["ROCEKIT_LAB_OUT"])
TMP = Path("/tmp")
SOFT, RXE = {4: "10.9.0.1", 6: "fd00:9::1"}, {4: "10.9.0.2", 6: "fd00:9::2"}
GID = {4: "1", 6: "2"}
PROGRAM_S = 40.0


def start(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def end(program: subprocess.Popen[str]) -> tuple[int | None, str]:
    try:
        said, _ = program.communicate(timeout=PROGRAM_S)
    except subprocess.TimeoutExpired:
        program.kill()
        said, _ = program.communicate()
        return None, said
    return program.returncode, said


def converse(
    name: str,
    command: list[str],
    soft: Callable[[Party], int],
    *,
    soft_serves: bool,
    ip_version: int = 4,
    faults: tuple[str, ...] = (),
) -> None:
    """Let the kernel's program and the soft peer talk; write down how it went."""
    began = time.monotonic()
    fact: dict[str, Any] = {"name": name, "error": None, "rounds": None}
    program: subprocess.Popen[str] | None = None
    try:
        if not soft_serves:
            program = start(*command)
            time.sleep(2)
        with Party(
            "va",
            SOFT[ip_version],
            capture=TMP / f"{name}.pcapng",
            faults=[fault_from_words(words) for words in faults],
            timeout_s=PROGRAM_S,
        ) as party:
            if soft_serves:
                # It tries until the server is there, which it is before the program's own set-up is done.
                program = start("sh", "-c", 'sleep 2; exec "$@"', "-", *command)
            fact["rounds"] = soft(party)
            fact["counters"] = {k: n for k, n in party.device.counters.as_dict().items() if n}
    except Exception as error:
        fact["error"] = f"{type(error).__name__}: {error}"
        fact["trace"] = traceback.format_exc()
    finally:
        if program is not None:
            fact["status"], fact["said"] = end(program)
    fact["seconds"] = round(time.monotonic() - began, 1)
    with (OUT / "facts.jsonl").open("a") as lines:
        lines.write(json.dumps(fact) + "\n")
    print(fact["name"], fact["error"], fact["status"], fact["seconds"], "s", flush=True)
    with contextlib.suppress(OSError):
        (OUT / f"{name}.pcapng").write_bytes((TMP / f"{name}.pcapng").read_bytes())


def all_rping(count: int) -> None:
    for ip in (4, 6):
        converse(
            f"rping_client_ipv{ip}",
            ["rping", "-s", "-a", RXE[ip], "-C", str(count), "-v"],
            lambda party, ip=ip: rping.call(party, RXE[ip], count=count, size=3000),  # type: ignore[misc]
            soft_serves=False,
            ip_version=ip,
        )
        converse(
            f"rping_server_ipv{ip}",
            ["rping", "-c", "-a", SOFT[ip], "-I", RXE[ip], "-C", str(count), "-S", "3000", "-v"],
            rping.serve,
            soft_serves=True,
            ip_version=ip,
        )
    for role, serves in (("client", False), ("server", True)):
        command = ["rping", "-c", "-a", SOFT[4], "-I", RXE[4]] if serves else ["rping", "-s", "-a", RXE[4]]
        converse(
            f"rping_{role}_lossy",
            [*command, "-C", str(count), "-S", "20000"],
            rping.serve if serves else lambda party: rping.call(party, RXE[4], count=count, size=20000),
            soft_serves=serves,
            faults=("drop=5%",),
        )


def all_pingpong(count: int) -> None:
    for transport in ("rc", "uc", "ud"):
        for ip in (4, 6):
            size = 1024 if transport == "ud" else 4096
            command = [f"ibv_{transport}_pingpong", "-d", "rxe1", "-g", GID[ip], "-n", str(count)]
            command += ["-s", str(size)]
            for serves in (False, True):

                def soft(
                    party: Party, transport: str = transport, size: int = size, serves: bool = serves
                ) -> int:
                    host = None if serves else RXE[4]
                    return pingpong.run(party, transport.upper(), host, count=count, size=size)

                # Their TCP side is IPv4 or IPv6 as the address says; the GID decides what RoCE takes.
                converse(
                    f"{transport}_pingpong_{'server' if serves else 'client'}_ipv{ip}",
                    [*command, SOFT[4]] if serves else command,
                    soft,
                    soft_serves=serves,
                    ip_version=ip,
                )
    for mtu in (256, 4096):
        converse(
            f"rc_pingpong_mtu{mtu}",
            ["ibv_rc_pingpong", "-d", "rxe1", "-g", "1", "-n", str(count), "-m", str(mtu), "-s", "10000"],
            lambda party, mtu=mtu: pingpong.run(  # type: ignore[misc]
                party, "RC", RXE[4], count=count, size=10000, path_mtu=mtu
            ),
            soft_serves=False,
        )


def all_perftest(count: int) -> None:
    for test in perftest.TESTS:
        command = [f"ib_{test}", "-d", "rxe1", "-x", "1", "-F", "-n", str(count), "-u", "18", "-m", "1024"]
        command += [] if test == "atomic_bw" else ["-s", "20000"]
        converse(
            f"{test}_server",
            [*command, SOFT[4]],
            lambda party, test=test: perftest.serve(party, test),  # type: ignore[misc]
            soft_serves=True,
        )
        converse(
            f"{test}_client",
            command,
            lambda party, test=test: perftest.call(  # type: ignore[misc]
                party, test, RXE[4], count=count, size=20000
            ),
            soft_serves=False,
        )
        converse(
            f"{test}_server_rdma_cm",
            [*command, "-R", SOFT[4]],
            lambda party, test=test: perftest.serve(party, test, rdma_cm=True),  # type: ignore[misc]
            soft_serves=True,
        )


def main() -> None:
    subprocess.run(["rdma", "link", "del", "rxe0"], check=True)
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    wanted = sys.argv[2] if len(sys.argv) > 2 else "all"
    if wanted in ("all", "rping"):
        all_rping(count)
    if wanted in ("all", "pingpong"):
        all_pingpong(count)
    if wanted in ("all", "perftest"):
        all_perftest(count)


if __name__ == "__main__":
    main()
