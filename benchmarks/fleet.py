"""How fast a fleet's captures are analysed, how much memory a worker takes, and whom the LAKE blames.

    .venv/bin/python benchmarks/fleet.py                                  # a small one, some minutes
    .venv/bin/python benchmarks/fleet.py --hosts 1000 --faulty 64 --packets 100000 --folder /big/disk

Makes a capture for each host of a fleet (each talks to four others; a faulty one loses 1 % of what arrives).
Measured: `analyze` on some of them, one after the other; `rocekit fleet` with 1 and with 2 workers, whose
LAKEs are compared byte by byte; whether all faulty hosts are found and no others; and a query over a million
findings. On a busy machine only the time of the processor says anything. What more workers would give is
simulated from the task stream of the run with one (benchmarks/fleet_model.py says how).
"""

from __future__ import annotations

import argparse
import filecmp
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "tools"))

from fleet_captures import Fleet
from fleet_model import run_on_one_worker

from rocekit.fleet.lake import Lake, write_parquet
from rocekit.fleet.query import connect, dicts

ROCEKIT = [sys.executable, "-m", "rocekit"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=48)
    parser.add_argument("--faulty", type=int, default=3)
    parser.add_argument("--packets", type=int, default=100_000)
    parser.add_argument("--singles", type=int, default=8, help="captures analysed one by one, to compare")
    parser.add_argument("--folder", type=Path, help="for captures and LAKEs; default: a temporary one")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        run(given, given.folder or Path(temporary))


def run(given: argparse.Namespace, folder: Path) -> None:
    captures = folder / "captures"
    captures.mkdir(parents=True, exist_ok=True)
    step = given.hosts // given.faulty
    faulty = frozenset(k * step + 1 for k in range(given.faulty))
    fleet = Fleet(given.hosts, faulty, packets=given.packets)
    began = time.monotonic()
    for number in range(given.hosts):
        path = captures / f"host{number:04}.pcap"
        if not path.exists():
            fleet.write_one(path, number)
    size = sum(path.stat().st_size for path in captures.iterdir())
    print(f"{given.hosts} captures, {size / 1e9:.2f} GB, made in {time.monotonic() - began:.0f} s")

    some = sorted(captures.iterdir())[: given.singles]
    clock, packets = Clock(), 0
    for path in some:
        done = subprocess.run([*ROCEKIT, "analyze", path], stdout=subprocess.PIPE, text=True, check=True)
        packets += int(done.stdout.partition(" frames")[0].rpartition(" ")[2].replace(",", ""))
    single, single_cpu = packets / clock.wall, packets / clock.cpu
    print(f"single analyze runs: {single:,.0f} packets/s, {single_cpu:,.0f} a second of processor")

    took = {}
    for workers in (1, 2):
        lake = folder / f"lake{workers}"
        shutil.rmtree(lake, ignore_errors=True)
        clock = Clock()
        command = [*ROCEKIT, "fleet", "analyze", str(captures), "-o", str(lake)]
        if workers == 1:
            said, model = run_on_one_worker(command)
        else:
            said = subprocess.run(
                [*command, "--workers", str(workers)],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True,
            ).stdout  # fmt: skip
        took[workers], cpu = clock.wall, clock.cpu
        every = sum(r["n"] for r in ask(lake, "SELECT sum(roce_packets)::BIGINT AS n FROM captures"))
        first = said.splitlines()[0]
        print(f"fleet, workers {workers}: {took[workers]:.1f} s, processor {cpu:.1f} s: {first}")
        speed = every / took[workers]
        print(f"  {speed:,.0f} packets/s, {speed / single / workers:.0%} of single runs a worker")
        print(f"  {every / cpu:,.0f} a second of processor, {every / cpu / single_cpu:.0%} of single runs")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"largest process of all runs: {peak:,.0f} MB")
    print(f"model: {model.words()}")
    times = ", ".join(f"{n} workers {model.predict(n):.1f} s" for n in (1, 2, 4, 16, 64))
    print(f"model: {times}; measured {took[1]:.1f} and {took[2]:.1f} s")
    alike = same(folder / "lake1", folder / "lake2")
    print(f"the LAKEs of 1 and 2 workers are {'the same' if alike else 'DIFFERENT'}")
    found = {row["host"] for row in ask(folder / "lake2", "SELECT host FROM hosts")}
    truth = {fleet.addresses[number] for number in faulty}
    print(f"faulty hosts: {len(truth)}, found {len(found & truth)}, missed {len(truth - found)}, "
          f"wrongly blamed {len(found - truth)}")  # fmt: skip
    million(folder / "million", folder / "lake2")


class Clock:
    """Time since it was made: of the wall, and of the processors by programs that have ended."""

    def __init__(self) -> None:
        self._began, self._used = time.monotonic(), self._processor()

    @staticmethod
    def _processor() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    @property
    def wall(self) -> float:
        return time.monotonic() - self._began

    @property
    def cpu(self) -> float:
        return self._processor() - self._used


def ask(lake: Path, sql: str) -> list[dict[str, object]]:
    return dicts(connect(Lake(lake)), sql)


def same(one: Path, other: Path) -> bool:
    """Whether two folders have the same files with the same bytes."""
    names = {p.relative_to(one) for p in one.rglob("*") if p.is_file()}
    if names != {p.relative_to(other) for p in other.rglob("*") if p.is_file()}:
        return False
    return not filecmp.cmpfiles(one, other, [str(name) for name in names], shallow=False)[1]


def million(lake: Path, like: Path) -> None:
    """Time a query over a million findings in a thousand captures' files."""
    import polars as pl

    rows = pl.from_dicts(ask(like, "SELECT * EXCLUDE (day, point) FROM findings"), infer_schema_length=None)
    shutil.rmtree(lake, ignore_errors=True)
    lake.mkdir()
    (lake / "manifest.json").write_text((like / "manifest.json").read_text())
    for number in range(1000):
        folder = lake / "day=2026-11-20" / f"point=host{number:04}" / f"{number:08x}-{number:024x}"
        folder.mkdir(parents=True)
        own = pl.concat([rows] * (1000 // len(rows) + 1)).head(1000)
        write_parquet(
            own.with_columns(pl.lit(f"{number:024x}").alias("capture")), folder / "findings.parquet"
        )
    connection = connect(Lake(lake))
    sql = "SELECT point, rule, count(*) AS n, sum(lost_packets) FROM findings GROUP BY ALL ORDER BY n DESC"
    times = []
    for _ in range(3):
        began = time.monotonic()
        dicts(connection, sql)
        times.append(time.monotonic() - began)
    total = ask(lake, "SELECT count(*) AS n FROM findings")[0]["n"]
    print(f"{total:,} findings in 1,000 files: {json.dumps([round(t, 2) for t in times])} s a query")


if __name__ == "__main__":
    main()
