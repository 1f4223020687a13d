"""What runs inside the lab that the test files share: their programs, one after the other.

Each has a wire that nobody used before, and a folder of its own as ``ROCEKIT_LAB_OUT``, where ``stdout.txt``,
``stderr.txt`` and ``status.json`` say how it ended, and which files belong to it. What it leaves running is
ended.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from rocekit.lab.agent import Order, run_command
from rocekit.lab.net import LabError, take_down, wired

LISTING = "parts.json"
STATUS = "status.json"
RETURNCODE = 7
"""The exit status, which no program of the lab's own gives."""


@dataclass(frozen=True)
class Task:
    """A program; ``first``: it has the wire that the lab started with."""

    name: str
    command: tuple[str, ...]
    timeout_s: float
    devices: int
    first: bool


def run(task: Task, out: Path, tools: str) -> None:
    """Run a program to its end or its time limit, on a wire of its own."""
    folder = out / task.name
    folder.mkdir()
    began = time.monotonic()
    status: dict[str, object] = {}
    python_path = os.pathsep.join(filter(None, (tools, os.environ.get("PYTHONPATH"))))
    order = Order(
        task.command,
        str(Path.cwd()),
        {**os.environ, "PYTHONPATH": python_path},
        task.timeout_s,
        None,
        None,
        str(folder),
    )
    if not task.first:
        take_down()
    ours, theirs = socket.socketpair()
    try:
        with (
            ours,
            theirs,
            (folder / "stdout.txt").open("wb") as stdout,
            (folder / "stderr.txt").open("wb") as stderr,
            nullcontext() if task.first else wired(devices=task.devices, throwaway=True),
        ):
            ended = run_command(order, theirs.fileno(), (stdout.fileno(), stderr.fileno()))
            status |= {"returncode": ended.returncode, "timed_out": ended.timed_out}
    except LabError as error:
        status |= {"returncode": 1, "timed_out": False}
        (folder / "stderr.txt").write_text(str(error))
    status["seconds"] = round(time.monotonic() - began, 1)
    # A folder may come back from the lab's machine in part only, if that is too slow.
    status["files"] = {
        str(path.relative_to(folder)): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    }
    (folder / STATUS).write_text(json.dumps(status))


def main(arguments: list[str]) -> int:
    """``lab_parts.py LISTING TOOLS``: the tasks as JSON, and a folder of modules for their programs."""
    listing, tools = arguments
    print("to standard output", flush=True)
    print("to standard error", file=sys.stderr, flush=True)
    for fields in json.loads(Path(listing).read_text()):
        task = Task(**{**fields, "command": tuple(fields["command"])})
        run(task, Path(os.environ["ROCEKIT_LAB_OUT"]), tools)
    return RETURNCODE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
