"""What recording costs: `python benchmarks/record_overhead.py [stub|share|lines|hours|counted|lab]`.

stub: how many nanoseconds longer a posted work request and its polled completion take, on a device that does
nothing (tests/tools/stub), so that nothing else hides the cost. Rounds with and without recording alternate.

share: how much processor time the recorder's own process uses while a program on that device posts and polls
at a given rate, as the scheduler counts it.

lines: how much processor time a record takes until it is a line, or is left out by a filter.

hours [SECONDS [all | --every | --summary]]: a program on that device posts and polls 100,000 times a second;
how much of it is in the journal, and whether what is not there is counted exactly.

counted: perftest's own latency and message rate, and rdma-core's ping-pong, on rxe in a VM whose clock counts
instructions (one a nanosecond, whatever else this machine does). Runs with and without `rocekit record`
alternate; the result is a ratio with its spread. There is one processor, and both ends sleep until a
completion arrives (-e), so everything that recording does, in the recorder's own process too, delays the
programs. First it measures the instructions of a pair on the device that does nothing.

lab: the same programs polling, in the usual lab: two processors, measured in real time. Under emulation on a
busy machine the spread is wide.
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
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "tools"), str(ROOT / "tests" / "inside")]

STUB_ROUNDS = 11
SHARE_RATES = (0, 300, 3000, 30000)
SHARE_ROUNDS = 7
ROUNDS = int(os.environ.get("ROUNDS", "8"))


@dataclass(frozen=True)
class Program:
    """A program that both ends run, and the numbers in what the client prints at its end."""

    command: str
    says: str
    numbers: tuple[str, ...]
    """The names of the groups of ``says``."""


LATENCY = r"^ *64 +\d+ +\S+ +\S+ +(\S+)\s+(\S+)"
"""perftest's row of a size: bytes, iterations, least, most, median, mean. In cycles (-C), because for
microseconds perftest measures the processor's frequency, which is meaningless under emulation."""
SOON = "-F -x 1 -u 18 -s 64"
"""A local ACK timeout of one second: emulation is slow, and a shorter one would cause retransmissions."""
COUNTED = (
    Program(f"ib_send_lat {SOON} -n 3000 -C -e", LATENCY, ("median, cycles", "mean, cycles")),
    Program("ibv_rc_pingpong -g 1 -n 3000 -s 64 -e", r"= (\S+) usec/iter", ("mean of both ways, µs",)),
    Program(f"ib_write_bw {SOON} -D 1 -f 0 -t 16", r"^ *64 +(\d+) ", ("work requests in a second",)),
)
POLLING = (
    Program(f"ib_send_lat {SOON} -n 3000 -C", LATENCY, ("median, cycles", "mean, cycles")),
    Program(f"ib_write_bw {SOON} -D 2 -f 0 -t 16", r"^ *64 +(\d+) ", ("work requests in two seconds",)),
    Program("ibv_rc_pingpong -g 1 -n 3000 -s 64", r"= (\S+) usec/iter", ("mean of both ways, µs",)),
)
"""The rate is counted over a time (-D), so again no frequency is needed. With -D it must poll. The target of
the WRITEs does nothing meanwhile, so one processor is enough."""


PAIRS = Program("a pair of WR and WC on the stub device", "", ("instructions",))


def stub() -> None:
    from recorded import build_stub

    with tempfile.TemporaryDirectory() as folder:
        program = build_stub(Path(folder))
        memory = Path("/dev/shm") / f"rocekit-bench-{os.getpid()}"
        plain, recorded = [], []
        try:
            for _ in range(STUB_ROUNDS):
                plain.append(_pairs(program, {}))
                recorded.append(_pairs(program, _library_only(memory)))
                shutil.rmtree(memory)
        finally:
            shutil.rmtree(memory, ignore_errors=True)
    more = [b - a for a, b in zip(plain, recorded, strict=True)]
    print(f"without: {statistics.median(plain):.1f} ns a pair of WR and WC")
    print(f"with:    {statistics.median(recorded):.1f} ns")
    print(f"cost:    {statistics.median(more):.1f} ns ({min(more):.1f} to {max(more):.1f})")


def _library_only(memory: Path, rings: int = 1, slots: int = 1 << 20) -> dict[str, str]:
    """The environment that loads the interposer without a recorder: its rings hold the whole round."""
    from rocekit.record.build import interposer

    memory.mkdir(parents=True, exist_ok=True)
    return {
        "LD_PRELOAD": str(interposer()),
        "ROCEKIT_RECORD_FOLDER": str(memory),
        "ROCEKIT_RECORD_SLOTS": str(slots),
        "ROCEKIT_RECORD_RINGS": str(rings),
    }


def _pairs(program: Path, variables: dict[str, str], rounds: int = 300) -> float:
    """Nanoseconds a pair: the median of ``rounds`` rounds of a thousand pairs."""
    said = subprocess.run(
        [str(program), "pairs", str(rounds)],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return float(said.split()[1])


def share() -> None:
    from recorded import build_stub, record

    with tempfile.TemporaryDirectory() as folder:
        program = build_stub(Path(folder))
        for rate in SHARE_RATES:
            taken = [
                float(record(Path(folder, "x.jsonl"), [str(program), "paced", str(rate)]).stdout)
                for _ in range(SHARE_ROUNDS)
            ]
            middle = statistics.median(taken)
            print(f"{rate:6} pairs a second: {middle:.2f} % ({min(taken):.2f} to {max(taken):.2f})")


HOURS_RATE = 100_000
HOURS: tuple[tuple[str, ...], ...] = ((), ("--every", "1000"), ("--summary",))


def lines() -> None:
    from rocekit.record import ring
    from rocekit.record.lines.chosen_lines import ChosenLines
    from rocekit.record.lines.journal_lines import JournalLines
    from rocekit.record.lines.selection import RecordFilter
    from rocekit.record.process import Process

    def send(n: int) -> bytes:
        head = ring.HEADER.pack(ring.SEND, 2, 1, 0, 17, 1000 + n, 10**18 + n)
        more = n.to_bytes(8, "little") + ring.SGE.pack(4096, 8, 5)
        return (head + ring.SEND_BODY.pack(n, 0, 0, 0, 8, 2, 2, 1, 0) + bytes(8) + more).ljust(128, b"\0")

    def completion(n: int) -> bytes:
        head = ring.HEADER.pack(ring.WC, 1, 1, 0, 17, 1000 + n, 10**18 + n)
        return (head + ring.WC_BODY.pack(n, 8, 0, 0, 0, 0, 0, 0)).ljust(64, b"\0")

    raws = [raw for n in range(20_000) for raw in (send(n), completion(n))]
    makers: dict[str, Callable[[], JournalLines]] = {
        "all": lambda: JournalLines(Process("a", 1)),
        "--every 1000": lambda: ChosenLines(RecordFilter(every=1000), Process("a", 1)),
        "--summary": lambda: ChosenLines(RecordFilter(summary=True), Process("a", 1)),
    }
    for name, maker in makers.items():
        taken = []
        for _ in range(STUB_ROUNDS):
            made, began = maker(), time.process_time()
            for raw in raws:
                if made.direct(raw) is None:
                    for record in ring.records(raw):
                        list(made.of(record))
            taken.append((time.process_time() - began) / len(raws) * 1e6)
        print(f"{name}: {statistics.median(taken):.2f} µs a record ({min(taken):.2f} to {max(taken):.2f})")


def hours() -> None:
    from recorded import build_stub, recorder

    seconds = sys.argv[2] if len(sys.argv) > 2 else "60"
    asked = sys.argv[3:]
    for options in HOURS:
        if asked and (options[0] if options else "all") not in asked:
            continue
        with tempfile.TemporaryDirectory() as folder:
            program = build_stub(Path(folder))
            out = Path(folder, "x.journal.jsonl")
            command = recorder(out, "--ring-size", "256k", "--rotate", "100M", "--keep", "1G", *options)
            done = subprocess.run(
                [*command, str(program), "paced", str(HOURS_RATE), seconds],
                capture_output=True,
                text=True,
                check=True,
            )
            size = sum(path.stat().st_size for path in Path(folder).glob("*.jsonl"))
        said = done.stderr.replace(",", "")
        posted = int(re.findall(r"(\d+) posted", said)[0])
        sends, completions = (int(re.findall(rf"(\d+) {kind}", said)[0]) for kind in ("sends", "completions"))
        lost = re.search(r"did not fit \((\d+) sends (\d+) completions\)", said)
        lost_sends, lost_completions = (int(lost[1]), int(lost[2])) if lost else (0, 0)
        exact = sends + lost_sends == completions + lost_completions == posted
        print(
            f"{' '.join(options) or 'all'}: {posted:,} posted, {sends:,} recorded, "
            f"{lost_sends:,} counted as lost ({'exact' if exact else 'NOT EXACT'}), {size >> 20} MiB on disk"
        )


def inside(programs: tuple[Program, ...]) -> None:
    """In the lab: run the programs, and write the measurements to result.json."""
    result: dict[str, dict[str, list[list[float]]]] = {}
    out = Path(os.environ["ROCEKIT_LAB_OUT"])
    work = Path(tempfile.mkdtemp())
    from lab_forks import Forks
    from lab_record_inside import recorded

    from rocekit.lab import job_programs

    if "ROCEKIT_STUB" in os.environ:
        program = Path(os.environ["ROCEKIT_STUB"])
        pairs = {
            "plain": [[_pairs(program, {}, 40)]],
            "library": [[_pairs(program, _library_only(Path("/dev/shm/rocekit-pairs")), 40)]],
        }
        (out / "pairs.json").write_text(json.dumps(pairs))
    ways = {"plain": job_programs.shell, "library": library_alone(), "recorded": recorded(Forks())}
    for turn in range(ROUNDS):
        for program in programs:
            order = list(ways) if turn % 2 == 0 else list(reversed(ways))
            measured = {way: _measure(program, ways[way], work) for way in order}
            print(turn, program.command, measured, flush=True)
            if all(measured.values()):
                for way, values in measured.items():
                    result.setdefault(program.command, {}).setdefault(way, []).append(values)
        (out / "result.json").write_text(json.dumps(result))


def library_alone() -> Callable[..., Any]:
    """Starts a shell command with the interposer in it and nobody who empties its rings."""
    from rocekit.lab import job_programs

    def start(command: str, environment: dict[str, str], sink: Any) -> Any:
        shutil.rmtree(memory := Path("/dev/shm/rocekit-bench") / Path(sink.name).stem, ignore_errors=True)
        return job_programs.shell(command, environment | _library_only(memory, 2, 1 << 19), sink)

    return start


def _measure(program: Program, start: Callable[..., Any], work: Path) -> list[float]:
    """The numbers that the client printed, or none."""
    found = re.search(program.says, _run_pair(program.command, start, work), re.MULTILINE)
    values = [float(group) for group in found.groups()] if found else []
    return values if all(math.isfinite(value) and value for value in values) else []


def _run_pair(command: str, start: Callable[..., Any], work: Path) -> str:
    """A server and a client; what the client printed."""
    from rocekit.lab import job_programs

    server = None
    with (work / "server.txt").open("wb") as server_text, (work / "client.txt").open("wb") as client_text:
        try:
            server = start(f"{command} -d rxe1", dict(os.environ), server_text)
            job_programs.wait_until_listening(server, 20.0)
            client = start(f"{command} -d rxe0 10.9.0.2", dict(os.environ), client_text)
            job_programs.finish(client, 90.0)
        finally:
            if server is not None:
                job_programs.finish(server, 5.0)
    return (work / "client.txt").read_text()


def lab(way: str) -> None:
    from recorded import build_stub

    from rocekit.lab import run

    counted = way == "counted"
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as stubs:
        if counted:
            os.environ["ROCEKIT_STUB"] = str(build_stub(Path(stubs)))
        run(
            [sys.executable, __file__, f"inside-{way}"],
            out=folder,
            timeout_s=2400,
            counted=counted,
            cpus=1 if counted else 2,
            boot_timeout_s=600,
        )
        result = json.loads(Path(folder, "result.json").read_text())
        if counted:
            report(PAIRS, json.loads(Path(folder, "pairs.json").read_text()))
    for program in COUNTED if counted else POLLING:
        report(program, result.get(program.command, {}))


def report(program: Program, ways: dict[str, list[list[float]]]) -> None:
    print(program.command)
    if not ways:
        print("  nothing measured")
        return
    for k, number in enumerate(program.numbers):
        plain = [values[k] for values in ways["plain"]]
        print(f"  {number}: without {_spread(plain)}")
        for way, name in (("library", "the library alone"), ("recorded", "recorded")):
            if way not in ways:
                continue
            values = [turn[k] for turn in ways[way]]
            ratios = sorted(b / a for a, b in zip(plain, values, strict=True))
            print(
                f"    {name} {_spread(values)}: ratio of medians "
                f"{statistics.median(values) / statistics.median(plain):.3f}; in turn "
                f"{statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}, {len(ratios)} rounds)"
            )


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.6g} ({min(values):.6g} to {max(values):.6g})"


if __name__ == "__main__":
    what = sys.argv[1] if len(sys.argv) > 1 else "stub"
    {
        "stub": stub,
        "share": share,
        "lines": lines,
        "hours": hours,
        "lab": lambda: lab("lab"),
        "counted": lambda: lab("counted"),
        "inside-lab": lambda: inside(POLLING),
        "inside-counted": lambda: inside(COUNTED),
    }[what]()
