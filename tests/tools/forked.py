"""Commands of rocekit as processes of their own, forked from one Python that has loaded what they need.

Each gets signals and leaves an exit status like any other; only its start takes no time.
"""

from __future__ import annotations

import atexit
import functools
from collections.abc import Mapping
from pathlib import Path
from subprocess import PIPE
from typing import IO, Any, NamedTuple

from lab_forks import Forks

#: What the commands that tests run so load.
LOADS = tuple(
    f"rocekit.commands.{name}"
    for name in ("analyze", "annotate", "decode", "explain", "export", "report", "slice", "stats", "topology")
)


class Ended(NamedTuple):
    """How a command ended, and what it printed."""

    status: int
    printed: str
    said: str


@functools.cache
def forks() -> Forks:
    """The Python that this process of the tests forks commands from."""
    made = Forks(*LOADS)
    atexit.register(made.close)
    return made


def forked(
    *words: str | Path,
    stdin: int | None = None,
    stdout: int | IO[Any] = PIPE,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float = 120,
) -> Ended:
    """Run ``rocekit`` with these words to its end; without ``stdin`` its input is empty."""
    process = forks().start(*map(str, words), stdin=stdin, stdout=stdout, stderr=PIPE, env=env, cwd=cwd)
    try:
        printed, said = process.communicate(timeout=timeout)
    finally:
        process.kill()
    assert process.returncode is not None
    return Ended(process.returncode, printed, said)
