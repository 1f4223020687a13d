"""rocekit beside other programs that read captures: the same files, the same run, medians.

    .venv/bin/python benchmarks/run.py
    .venv/bin/python benchmarks/run.py --captures snaplen-128 --works analyze,cat --repeats 3

Every work is a whole process, start-up included, its output going to /dev/null, its capture read once before
so that it stands in the page cache. Prints a Markdown table: packets a second by the clock, processor seconds
(user and system) and peak memory. The captures are made once by `rocekit generate` and kept in --folder.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROCEKIT = str(Path(sys.executable).parent / "rocekit")
SIX_FIELDS = ("frame.number", "frame.time_epoch", "ip.src", "ip.dst", "infiniband.bth.psn",
              "infiniband.bth.destqp")  # fmt: skip

#: Captures by name: what `rocekit generate` is asked for besides the packets.
CAPTURES: dict[str, tuple[str, ...]] = {
    "snaplen-128": ("--snaplen", "128"),
    "full": (),
    "loss-1%": ("--snaplen", "128", "--loss", "0.01"),
    "reads-sends": ("--snaplen", "128", "--operation", "read", "--operation", "send"),
    "10k-pairs": ("--snaplen", "128", "--pairs", "10000"),
}
WORKS: dict[str, tuple[str, ...]] = {
    "analyze": (ROCEKIT, "analyze", "{}"),
    "analyze-json": (ROCEKIT, "analyze", "{}", "--format", "json"),
    "cat": ("cat", "{}"),
    "tcpdump": ("tcpdump", "-r", "{}", "-w", "/dev/null"),
    "tshark-stat": ("tshark", "-r", "{}", "-q", "-z", "io,stat,0"),
    "tshark-fields": ("tshark", "-r", "{}", "-T", "fields", *(x for f in SIX_FIELDS for x in ("-e", f))),
}


@dataclass(frozen=True)
class Run:
    """One process: seconds by the clock, processor seconds, peak memory in bytes."""

    wall_s: float
    cpu_s: float
    peak_bytes: int


def run(command: Sequence[str]) -> Run:
    """Run a command to its end.

    Raises:
        RuntimeError: it failed.
    """
    began = time.perf_counter()
    with Path(os.devnull).open("wb") as nowhere:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=nowhere, stderr=nowhere)
        _, status, used = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return Run(wall_s, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)


def median(runs: Sequence[Run]) -> Run:
    """The medians of each number."""
    return Run(
        statistics.median(r.wall_s for r in runs),
        statistics.median(r.cpu_s for r in runs),
        int(statistics.median(r.peak_bytes for r in runs)),
    )


def capture(folder: Path, name: str, packets: int) -> tuple[Path, int]:
    """The capture ``name`` and its number of packets; made unless it is there."""
    path = folder / f"{name.replace('%', '')}-{packets}.pcap"
    count = path.with_suffix(".packets")
    if not count.exists():
        words = (ROCEKIT, "generate", str(path), "--packets", str(packets), *CAPTURES[name])
        told = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        count.write_text(told.split(": ", 1)[1].split(" packets")[0].replace(",", ""))
    return path, int(count.read_text())


def warm(path: Path) -> None:
    with path.open("rb") as file:
        while file.read(1 << 22):
            pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/rocekit-benchmarks"))
    parser.add_argument("--packets", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--captures", default=",".join(CAPTURES))
    parser.add_argument("--works", default=",".join(WORKS))
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    works = []
    for name in arguments.works.split(","):
        program = WORKS[name][0]
        if shutil.which(program) is None:
            print(f"left out: {name}, there is no {program}", file=sys.stderr)
        else:
            works.append(name)
    print(f"{platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}, "
          f"load {os.getloadavg()[0]:.1f}, medians of {arguments.repeats}\n")  # fmt: skip
    print("| capture | work | packets/s | CPU s per million | packets per CPU s | peak MB |")
    print("|---|---|--:|--:|--:|--:|")
    for name in arguments.captures.split(","):
        path, packets = capture(arguments.folder, name, arguments.packets)
        warm(path)
        runs: dict[str, list[Run]] = {work: [] for work in works}
        for _ in range(arguments.repeats):  # in turns, so that all suffer alike from what else runs here
            for work in works:
                runs[work].append(run([word.replace("{}", str(path)) for word in WORKS[work]]))
        for work in works:
            m = median(runs[work])
            per_cpu = packets / m.cpu_s if m.cpu_s else float("inf")
            print(
                f"| {name} | {work} | {packets / m.wall_s:,.0f} | {m.cpu_s / packets * 1e6:.2f} | "
                f"{per_cpu:,.0f} | {m.peak_bytes / 1e6:,.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
