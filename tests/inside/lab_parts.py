"""What runs inside the lab that the test files share: their programs, one after the other.

Each has a wire that nobody used before, and a folder of its own as ``ROCEKIT_LAB_OUT``, where ``stdout.txt``,
``stderr.txt`` and ``status.json`` say how it ended, and which files belong to it. What it leaves running is
ended. Each is a fork of this process, which has loaded what they need: inside the lab an interpreter takes
seconds to start.
"""

from __future__ import annotations

import json
import os
import runpy
import select
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from lab_forks import end_as_a_program, load

from rocekit.lab.agent import TIMED_OUT, adopt_orphans, end_orphans
from rocekit.lab.link import end_group
from rocekit.lab.net import LabError, take_down, wired

LISTING = "parts.json"
STATUS = "status.json"
RETURNCODE = 7
"""The exit status, which no program of the lab's own gives."""


@dataclass(frozen=True)
class Task:
    """A program; ``first``: it has the wire that the lab started with.

    ``words`` are arguments of Python: a script or ``-m`` and a module, then the program's own. ``loads`` are
    modules that it needs.
    """

    name: str
    words: tuple[str, ...]
    timeout_s: float
    devices: int
    first: bool
    loads: tuple[str, ...] = ()


def run(task: Task, out: Path, tools: str) -> None:
    """Run a program to its end or its time limit, on a wire of its own."""
    folder = out / task.name
    folder.mkdir()
    began = time.monotonic()
    status: dict[str, object] = {}
    if not task.first:
        take_down()
    try:
        with nullcontext() if task.first else wired(devices=task.devices, throwaway=True):
            returncode, timed_out = _ended(_start(task, folder, tools), task.timeout_s)
            status |= {"returncode": returncode, "timed_out": timed_out}
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


def _start(task: Task, folder: Path, tools: str) -> int:
    """Fork a process that becomes the program; its number."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        end_as_a_program(lambda: _become(task, folder, tools))
    return pid


def _become(task: Task, folder: Path, tools: str) -> None:
    """Run the program as ``python WORDS…`` would, in a session of its own."""
    os.setsid()
    for number, name in ((1, "stdout.txt"), (2, "stderr.txt")):
        descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ["ROCEKIT_LAB_OUT"] = str(folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (tools, os.environ.get("PYTHONPATH"))))
    sys.path.insert(1, tools)
    if task.words[0] == "-m":
        sys.argv = list(task.words[1:])
        # It is run, not imported: were it there already, runpy would warn.
        sys.modules.pop(task.words[1], None)
        runpy.run_module(task.words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(task.words)
        runpy.run_path(task.words[0], run_name="__main__")


def _ended(pid: int, timeout_s: float) -> tuple[int, bool]:
    """Wait for a program, end what is left of its process group and of what it started, and say how it ended:
    the exit status, and whether its time was over."""
    process = os.pidfd_open(pid)
    timed_out = not select.select([process], [], [], timeout_s)[0]
    found: list[int] = []

    def reap(seconds: float) -> bool:
        if not found and select.select([process], [], [], seconds)[0]:
            found.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        return bool(found)

    if not timed_out:
        reap(0)
    end_group(pid, reap)
    os.close(process)
    end_orphans()
    code = found[0] if found else TIMED_OUT
    return TIMED_OUT if timed_out else code if code >= 0 else 128 - code, timed_out


def main(arguments: list[str]) -> int:
    """``lab_parts.py LISTING TOOLS``: the tasks as JSON, and a folder of modules for their programs."""
    listing, tools = arguments
    print("to standard output", flush=True)
    print("to standard error", file=sys.stderr, flush=True)
    tasks = [
        Task(**{**fields, "words": tuple(fields["words"]), "loads": tuple(fields["loads"])})
        for fields in json.loads(Path(listing).read_text())
    ]
    load(*(name for task in tasks for name in task.loads))
    adopt_orphans()
    for task in tasks:
        run(task, Path(os.environ["ROCEKIT_LAB_OUT"]), tools)
    return RETURNCODE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
