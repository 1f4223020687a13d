"""What recording costs: `python benchmarks/record_overhead.py [stub|lab]`.

stub: nanoseconds that a posted work request and its polled completion take more, on a device that does
nothing (tests/stub), where nothing hides them. Rounds with and without in turn.

lab: perftest's own latency and message rate on rxe, with and without `rocekit record`, in turn in the same
lab, as a ratio with its spread. Under emulation the spread is wide; the ratio of medians is what to look at.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

STUB_ROUNDS = 11
LAB_ROUNDS = int(os.environ.get("ROUNDS", "8"))
PROGRAMS = {
    "perftest latency, cycles": (
        "ib_send_lat -F -x 1 -u 18 -n 1000 -s 64 -C",
        r"^ *64 +\d+ +\S+ +\S+ +(\S+)",
    ),
    "perftest rate, M/s": (
        "ib_write_bw -F -x 1 -u 18 -n 2000 -s 64 -t 16",
        r"^ *64 +\d+ +\S+ +\S+ +(\S+)",
    ),
    "ping-pong, µs": ("ibv_rc_pingpong -g 1 -n 500 -s 64", r"= (\S+) usec/iter"),
}
"""A program and where its result is: the median of the latency, the mean of the rate. To tell microseconds
perftest measures the processor's frequency, which mostly fails under emulation (it prints inf, or 0): hence
latency in cycles (-C), and a rate that is asked for again until there is one."""
TRIES = 5


def stub() -> None:
    from recorded import build_stub

    from rocekit.record_build import interposer

    library = interposer()
    with tempfile.TemporaryDirectory() as folder:
        program = build_stub(Path(folder))
        memory = Path("/dev/shm") / f"rocekit-bench-{os.getpid()}"
        plain, recorded = [], []
        try:
            for _ in range(STUB_ROUNDS):
                plain.append(_pairs(program, {}))
                memory.mkdir()
                # Room for the whole round: nothing is lost, nobody reads meanwhile.
                recorded.append(
                    _pairs(
                        program,
                        {
                            "LD_PRELOAD": str(library),
                            "ROCEKIT_RECORD_FOLDER": str(memory),
                            "ROCEKIT_RECORD_SLOTS": str(1 << 20),
                            "ROCEKIT_RECORD_RINGS": "1",
                        },
                    )
                )
                shutil.rmtree(memory)
        finally:
            shutil.rmtree(memory, ignore_errors=True)
    more = [b - a for a, b in zip(plain, recorded, strict=True)]
    print(f"without: {statistics.median(plain):.1f} ns a pair of WR and WC")
    print(f"with:    {statistics.median(recorded):.1f} ns")
    print(f"cost:    {statistics.median(more):.1f} ns ({min(more):.1f} to {max(more):.1f})")


def _pairs(program: Path, variables: dict[str, str]) -> float:
    said = subprocess.run(
        [str(program), "pairs", "300"], env=os.environ | variables, capture_output=True, text=True, check=True
    ).stdout
    return float(said.split()[1])


def inside() -> None:
    """In the lab: run, and write what was measured to result.json."""
    result: dict[str, dict[str, list[float]]] = {name: {"plain": [], "recorded": []} for name in PROGRAMS}
    out = Path(os.environ["ROCEKIT_LAB_OUT"])
    work = Path(tempfile.mkdtemp())
    from lab_forks import Forks
    from lab_record_inside import recorded

    from rocekit.lab import jobs

    starters = {"plain": vars(jobs)["_shell"], "recorded": recorded(Forks())}
    for turn in range(LAB_ROUNDS):
        for name, (command, pattern) in PROGRAMS.items():
            ways = ["plain", "recorded"] if turn % 2 == 0 else ["recorded", "plain"]
            measured = {way: _measure(command, pattern, starters[way], work) for way in ways}
            print(turn, name, measured, flush=True)
            if None not in measured.values():
                for way, value in measured.items():
                    result[name][way].append(value or 0.0)
        (out / "result.json").write_text(json.dumps(result))


def _measure(command: str, pattern: str, start: Callable[..., Any], work: Path) -> float | None:
    for _ in range(TRIES):
        found = re.search(pattern, _run_pair(command, start, work), re.MULTILINE)
        if found and math.isfinite(float(found[1])) and float(found[1]):
            return float(found[1])
    return None


def _run_pair(command: str, start: Callable[..., Any], work: Path) -> str:
    """A server and a client; what the client printed."""
    from rocekit.lab import jobs

    server = None
    with (work / "server.txt").open("wb") as server_text, (work / "client.txt").open("wb") as client_text:
        try:
            server = start(f"{command} -d rxe1", dict(os.environ), server_text)
            vars(jobs)["_wait_until_listening"](server, 20.0)
            client = start(f"{command} -d rxe0 10.9.0.2", dict(os.environ), client_text)
            vars(jobs)["_finish"](client, 90.0)
        finally:
            if server is not None:
                vars(jobs)["_finish"](server, 5.0)
    return (work / "client.txt").read_text()


def lab() -> None:
    from rocekit.lab import run

    with tempfile.TemporaryDirectory() as folder:
        run([sys.executable, __file__, "inside"], out=folder, timeout_s=1500)
        result = json.loads(Path(folder, "result.json").read_text())
    report(result)


def report(result: dict[str, dict[str, list[float]]]) -> None:
    for name, ways in result.items():
        plain, recorded = ways["plain"], ways["recorded"]
        if not plain or not recorded:
            print(f"{name}: nothing measured")
            continue
        ratios = sorted(b / a for a, b in zip(plain, recorded, strict=True))
        middle = statistics.median(recorded) / statistics.median(plain)
        print(
            f"{name}: without {statistics.median(plain):.6g}, with {statistics.median(recorded):.6g}: ratio "
            f"{middle:.3f}; of neighbouring runs {statistics.median(ratios):.3f} "
            f"({ratios[0]:.3f} to {ratios[-1]:.3f}, {len(ratios)} pairs)"
        )


if __name__ == "__main__":
    what = sys.argv[1] if len(sys.argv) > 1 else "stub"
    {"stub": stub, "lab": lab, "inside": inside}[what]()
