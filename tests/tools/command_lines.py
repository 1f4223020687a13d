"""Lines of a shell, run as they stand; ``rocekit`` at their head without a process, which takes longer."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from click.testing import CliRunner, Result
from places import ROOT

from rocekit.cli import rocekit

#: What makes a line the shell's business: expansions, pipes, and files that it opens.
_SHELL = frozenset("$`*?[]{}~\\!|<>&;()#\n")
#: What stays with a process: limits, clusters and signal handlers.
_PROCESSES = frozenset({"--limit", "fleet", "record", "trace", "top", "lab", "sandbox", "--sandbox"})
#: A command with nothing but words, where its errors go, and what follows it.
_HEAD = re.compile(
    r"""((?:[^'"|;&<>]|'[^']*'|"[^"]*")+?)\s*(2>&1|2>/dev/null)?\s*(\||;|&&)\s+(.*)""", re.DOTALL
)


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
    """Run a line in ``folder``: ``rocekit`` at its head in this process where it can be, all else by Bash.

    Output is that into a pipe, and standard input is empty. What ``rocekit`` prints here is read to its end,
    though a filter behind it may need less.
    """
    words = words_of(line)
    if words is not None:
        result = _called(words, folder)
        return Shown(result.exit_code, result.stderr, result.output)
    head = _HEAD.fullmatch(line)
    words = None if head is None or "$?" in line or "PIPESTATUS" in line else words_of(head[1])
    if head is None or words is None:
        return _by_bash(line, folder)
    _, errors, then, rest = head.groups()
    result = _called(words, folder)
    said = "" if errors == "2>/dev/null" else result.stderr
    if then == "|":
        both = errors == "2>&1"
        after = _by_bash(rest, folder, (result.output if both else result.stdout).encode())
        said = "" if both else said
        return Shown(after.status or result.exit_code, said + after.errors, said + after.printed)
    printed = result.stdout if errors == "2>/dev/null" else result.output
    if then == "&&" and result.exit_code:
        return Shown(result.exit_code, said, printed)
    after = run_line(rest, folder)
    return Shown(after.status, said + after.errors, printed + after.printed)


def _called(words: list[str], folder: Path) -> Result:
    """What ``rocekit`` with these arguments does in this process."""
    with contextlib.chdir(folder):
        result = CliRunner().invoke(rocekit, words, prog_name="rocekit")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def _by_bash(line: str, folder: Path, given: bytes = b"") -> Shown:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("LC_")}
    environment |= {"LANG": "C.UTF-8", "PYTHONIOENCODING": "utf-8", "PYTHONPATH": str(ROOT)}
    # The interpreter that runs the tests, whether or not its environment is active.
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        ["/bin/bash", "-o", "pipefail", "-c", line],
        cwd=folder,
        env=environment,
        input=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=300,
        check=False,
    )
    told = done.stdout.decode()
    return Shown(done.returncode, told, told)
