"""Lines of a shell, run as they stand; a plain line of ``rocekit`` without a process, which takes longer."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from click.testing import CliRunner
from places import ROOT

from rocekit.cli import rocekit

#: What makes a line the shell's business: expansions, pipes, and files that it opens.
_SHELL = frozenset("$`*?[]{}~\\!|<>&;()#\n")
#: What stays with a process: limits, clusters and signal handlers.
_PROCESSES = frozenset({"--limit", "fleet", "record", "trace", "top", "lab", "sandbox", "--sandbox"})


class Shown(NamedTuple):
    """How a line ended, and what it printed: the errors apart, and beside all else."""

    status: int
    errors: str
    printed: str


def words_of(line: str) -> list[str] | None:
    """The arguments of ``rocekit``, if the line is nothing but that and needs no shell and no process."""
    outside = "".join(line.split("'")[::2])  # a quoted piece is a word as it stands
    if not line.startswith("rocekit ") or set(outside) & _SHELL or ('"' in line and "'" in line):
        return None
    words = shlex.split(line)[1:]
    return None if set(words) & _PROCESSES else words


def run_line(line: str, folder: Path) -> Shown:
    """Run a line in ``folder``, by Bash unless it is a plain one of ``rocekit``.

    Output is that into a pipe, and standard input is empty.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith("LC_")}
    environment |= {"LANG": "C.UTF-8", "PYTHONIOENCODING": "utf-8", "PYTHONPATH": str(ROOT)}
    # The interpreter that runs the tests, whether or not its environment is active.
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    words = words_of(line)
    if words is not None:
        with contextlib.chdir(folder):
            result = CliRunner().invoke(rocekit, words, prog_name="rocekit")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Shown(result.exit_code, result.stderr, result.output)
    done = subprocess.run(
        ["/bin/bash", "-o", "pipefail", "-c", line],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    return Shown(done.returncode, done.stdout, done.stdout)
