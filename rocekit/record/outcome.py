"""What a recording says at its end, and ending like its program."""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Final

    from rocekit.record.recording import Recording

_STYLES: Final = {"dim": "\x1b[2m", "yellow": "\x1b[33m", "red": "\x1b[31m"}
_PLAIN: Final = "\x1b[0m"


def failures(result: Recording) -> Iterator[tuple[str, str]]:
    """What could not be written, and the style of each line."""
    for what in result.failed:
        yield f"record: {what}: what was recorded is incomplete", "red"


def outcome(result: Recording) -> Iterator[tuple[str, str]]:
    """What was recorded, and what was not: lines and their styles."""
    counts = f"{result.sends:,} sends, {result.receives:,} receives, {result.completions:,} completions"
    journal = "" if result.unwritten else f"; journal {result.name}"
    yield f"record: {counts}{journal}", "dim"
    if result.left_out:
        yield f"record: {result.left_out:,} of these left out, as asked", "dim"
    for words in _shortcomings(result):
        yield f"record: {words}", "yellow"


def _shortcomings(result: Recording) -> list[str]:
    """What is missing in the journal, and why."""
    words = []
    if not result.processes and not result.not_recorded:
        words.append(
            "no process was seen to open a verbs device: it uses none, is statically linked, or has "
            "privileges of its own"
        )
    if result.total_lost:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in result.lost.items())
        words.append(f"{result.total_lost:,} records did not fit ({kinds}): use a larger --ring-size")
    words += [f"not recorded: {what}" for what in dict.fromkeys(result.not_recorded)]
    if result.going_on:
        words.append(
            f"these processes continue without being recorded: {', '.join(map(str, result.going_on))}"
        )
    return words


def say(words: str, style: str) -> None:
    """Print a line on standard error, as click does where the command line is loaded."""
    if os.environ.get("NO_COLOR"):
        styled = False
    else:
        styled = os.environ.get("CLICOLOR_FORCE", "0") not in ("", "0") or sys.stderr.isatty()
    sys.stderr.write(f"{_STYLES[style]}{words}{_PLAIN}\n" if styled else f"{words}\n")
    sys.stderr.flush()


def end_as(result: Recording) -> None:
    """End like the program: with its status, or by its signal."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # it may have been closed at the start
            stream.flush()
    if result.signal is None:
        raise SystemExit(result.status)
    import resource

    # The program has already written its core file.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if result.signal not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(result.signal, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {result.signal})
    os.kill(os.getpid(), result.signal)
    raise SystemExit(128 + result.signal)
