"""What soft devices carry: in memory on one core, and over loopback between two processes.

``python benchmarks/soft_wire.py [MESSAGES]`` sends that many WRITEs of 64 KiB at MTU 1024 in memory, then
runs ``rocekit inject`` over loopback and in memory. It measures processor time, of all processes of a run, so
other programs on the machine count little; and the peak memory of the largest process.

``rocekit lab --devices 8 -- python benchmarks/soft_wire.py --rxe`` does the same exchanges over soft devices
and over the kernel's, on the same machine. The kernel's work is not in the processor time of its processes.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rocekit.soft.testbed import run
from rocekit.soft.testbed.program import Post, Program, QpSetup

MESSAGE_BYTES = 65536
#: Each as a process of its own, with --backend soft.
INJECTED = (
    "blast-sr --both -n 20000 -s 1024",
    "ping-sr --both -q 1000 -n 1",
    "ping-sr --both -q 1000 -n 1 --no-rdma_cm",
    "blast-sr --both -q 1000 -n 1",
    "mesh --hosts 32 -n 1",
    "ring --hosts 64",
)
#: Each over both kinds of devices, of which the lab has eight.
BESIDE_RXE = (
    "blast-sr --both -n 20000 -s 1024",
    "ping-sr --both -n 1000 -s 64",
    "ping-sr --both -q 1000 -n 1",
    "mesh --hosts 8 -n 1",
    "ring --hosts 8 -n 1",
)
_LONGEST_S = 600

_MEASURED = """
import resource, subprocess, sys, time
start = time.monotonic()
subprocess.run(sys.argv[1:], check=True, stdout=sys.stderr)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(time.monotonic() - start, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
"""


def in_memory(messages: int) -> None:
    """Packets a second of the wire in memory, with and without a capture."""
    program = Program(
        (QpSetup(path_mtu=1024, timeout=14),),
        (Post(opcode="RDMA_WRITE", length=MESSAGE_BYTES),) * messages,
    )
    with tempfile.TemporaryDirectory() as folder:
        for capture in (None, Path(folder) / "x.pcapng"):
            start = time.process_time()
            result = run(program, seed=1, capture=capture)
            took = time.process_time() - start
            what = "without a capture" if capture is None else "with the capture written"
            print(
                f"{result.packets:,} packets in {took:.2f} s: {result.packets / took:,.0f} packets/s {what}"
            )


def injected(words: str, backend: str = "soft") -> None:
    """Real time, processor time and memory of ``rocekit inject``."""
    command = [sys.executable, "-m", "rocekit", "inject", *words.split(), "--backend", backend]
    try:
        told = subprocess.run(
            [sys.executable, "-c", _MEASURED, *command],
            check=True,
            capture_output=True,
            text=True,
            timeout=_LONGEST_S,
        )
    except subprocess.TimeoutExpired:
        print(f"{backend}: {words}: not within {_LONGEST_S} s", flush=True)
        return
    except subprocess.CalledProcessError as error:
        print(f"{backend}: {words}: {error.stderr.strip()}", flush=True)
        return
    took, cpu, peak = map(float, told.stdout.split())
    print(f"{backend}: {words}: {took:.1f} s, {cpu:.1f} s of processor time, {peak:,.0f} MB", flush=True)
    print(told.stderr.rstrip(), flush=True)


def main() -> None:
    if sys.argv[1:] == ["--rxe"]:
        for words in BESIDE_RXE:
            for backend in ("verbs", "soft"):
                injected(words, backend)
        return
    in_memory(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
    for words in INJECTED:
        injected(words)


if __name__ == "__main__":
    main()
