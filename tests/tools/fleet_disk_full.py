"""Runs ``rocekit fleet analyze`` on a file system that becomes full, and again when there is room.

    unshare --mount python fleet_disk_full.py CAPTURES MOUNT KILOBYTES OUT SPLIT

MOUNT becomes a file system in memory, which only this process and its children see. OUT gets a copy of the
LAKE, and what was printed is printed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from distributed import Client

import rocekit.fleet.run
from rocekit.cli import rocekit as cli


@contextmanager
def threads(*_: object) -> Iterator[Any]:
    """Dask in this process: what is tried here is the disk."""
    with Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=None) as client:
        yield client


def mount(place: str, kilobytes: int, *options: str) -> None:
    size = ",".join([*options, f"size={kilobytes}k"])
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", place], check=True)


def main(captures: str, place: str, kilobytes: str, out: str, split: str) -> None:
    rocekit.fleet.run.cluster = threads  # type: ignore[assignment]
    lake = f"{place}/lake"
    command = ["fleet", "analyze", captures, "-o", lake, "--split", split]
    mount(place, int(kilobytes))
    full = CliRunner().invoke(cli, command)
    left = [p.name for p in Path(lake).glob("day=*/point=*/*")]
    whole = [p.name for p in Path(lake).glob("day=*/point=*/*") if (p / "captures.parquet").exists()]
    staged = [str(p) for p in Path(lake).glob(".staging/*")]
    mount(place, 1 << 16, "remount")
    done = CliRunner().invoke(cli, command)
    shutil.copytree(lake, out)
    results = [[r.exit_code, r.output, repr(r.exception)] for r in (full, done)]
    print(json.dumps({"runs": results, "left": left, "whole": whole, "staged": staged}))


if __name__ == "__main__":
    main(*sys.argv[1:])
