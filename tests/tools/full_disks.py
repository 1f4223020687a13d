"""Runs commands one after the other in this process, each on a full file system of its own.

    unshare --mount python full_disks.py <CASES

CASES are JSON: {"disk": folder, "kilobytes": of the file system, "old": {name: text of a file that is there},
"words": [...], "fail": whether drills of `conform` fail}. Printed is a JSON list of what came of each.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from click.testing import CliRunner

import rocekit.conform.suite as suite
from rocekit.cli import rocekit as cli
from rocekit.conform.verdict import FAIL

played = suite.run


def failing(*arguments: Any) -> Iterator[suite.DrillResult]:
    """Drills that the device does not pass."""
    for result in played(*arguments):
        result.playing.verdict = replace(result.playing.verdict, outcome=FAIL, reason="a test wants it")
        yield result


def ran(disk: str, kilobytes: int, old: dict[str, str], words: list[str], fail: bool) -> dict[str, Any]:
    """What a command said and left."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", disk], check=True)
    for name, text in old.items():
        (Path(disk) / name).parent.mkdir(parents=True, exist_ok=True)
        (Path(disk) / name).write_text(text)
    suite.run = failing if fail else played  # type: ignore[assignment]
    done = CliRunner().invoke(cli, words)
    left = {str(path.relative_to(disk)): path for path in Path(disk).rglob("*") if path.is_file()}
    return {
        "status": done.exit_code,
        "out": done.stdout,
        "err": done.stderr,
        "left": {name: path.read_text() if name in old else None for name, path in left.items()},
    }


if __name__ == "__main__":
    print(json.dumps([ran(**case) for case in json.load(sys.stdin)]))
