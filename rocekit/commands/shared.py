"""What the analysing commands share; unlike ``rocekit.commands`` it imports the stages."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rocekit.commands import load_numpy
from rocekit.commands.interrupting import stopping
from rocekit.commands.screen import Doing

load_numpy()  # before anything else does

from rocekit.analysis import Analysis, analyze, find_journals  # noqa: E402
from rocekit.errors import CaptureError, JournalError  # noqa: E402
from rocekit.findings.own_rules import rules_of_file  # noqa: E402
from rocekit.machine.memory import keep_freed_memory  # noqa: E402

if TYPE_CHECKING:
    from rocekit.feeding import Progress, Watch
    from rocekit.files.reader import CaptureReader
    from rocekit.findings import Rule

_COLOURS: dict[str, dict[str, Any]] = {
    "error": {"fg": "red", "bold": True},
    "warning": {"fg": "yellow"},
    "info": {"fg": "cyan"},
    "good": {"fg": "green"},
    "dim": {"dim": True},
    "title": {"bold": True},
}
_SLOW_BYTES = 2_000_000
"""Smaller files are read in no time without compiled loops, too."""
_LARGE_BYTES = 1 << 20
"""From these bytes of captures on, memory that is freed is kept."""
_RESERVED_BYTES = 256 << 20
_LONG_BYTES = 20_000_000
"""Smaller files are read too fast for a progress line."""


def coloured(text: str, kind: str) -> str:
    """A style for ``report.text``; click removes the colours if standard output is not a terminal."""
    return click.style(text, **_COLOURS.get(kind, {}))


def emit(document: Any) -> None:
    """Print one JSON document on standard output; in ASCII on a terminal, which obeys what is not."""
    from rocekit.report import json_text

    json_text.indented(document, sys.stdout.write, ascii=sys.stdout.isatty())
    sys.stdout.write("\n")


def inputs_of(files: Sequence[Path], journals: Sequence[Path]) -> list[Path]:
    """All files that ``load`` reads: captures, and their journals, named or found beside them."""
    found = [] if journals else [journal for file in files for journal in find_journals(file)]
    return [*files, *journals, *found]


def load(
    files: Sequence[Path],
    journals: Sequence[Path],
    *,
    check_icrc: bool = True,
    plain: int | None = None,
    watch: Watch | None = None,
    rules: Sequence[Path] = (),
    own_rules: Sequence[Rule] = (),
    whole: bool = False,
) -> Analysis:
    """Analyse files, with its progress for large ones; Ctrl-C only ends the reading.

    Args:
        whole: what is made of a part of the captures would be wrong: Ctrl-C ends the command.
    """
    say_if_slow(files)
    if _bytes_of(files) >= _LARGE_BYTES or Path("-") in files:
        keep_freed_memory(_RESERVED_BYTES)
    stoppable = nullcontext() if whole else stopping(again=all(path.is_file() for path in files))
    with _phases(files) as progress, without_garbage(), stoppable as stop:
        return analyze(
            *files,
            journals=journals or None,
            progress=progress,
            check_icrc=check_icrc,
            plain=plain,
            watch=watch,
            stop=stop,
            rules=[*own_rules, *(rule for path in rules for rule in rules_of_file(path))],
        )


@contextmanager
def without_garbage() -> Iterator[None]:
    """Stop the garbage collector: what an analysis makes stays until the process ends."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def need_packets(analysis: Analysis, purpose: str) -> None:
    """Raise that a capture has no RoCE packets to do something with, what it has, and what to do.

    Args:
        purpose: a verb, such as ``export``.

    Raises:
        CaptureError: no RoCE packet can be read.
    """
    refusal = analysis.capture.contents.refusal(purpose)
    if refusal is not None:
        raise CaptureError(refusal, file=", ".join(analysis.capture.files))


def not_judged(analysis: Analysis) -> list[str]:
    """Lines to print first where there are no RoCE packets, others that were not read, or a part only was."""
    from rocekit.report.text import INTERRUPTED, capture_lines

    contents = analysis.capture.contents
    if contents.is_blank:
        return capture_lines(analysis.capture, coloured)
    lines = []
    if analysis.capture.doubled is not None:
        lines = [coloured(analysis.capture.doubled.line(), "warning"), ""]
    if contents.one_direction is not None:
        lines = [coloured(contents.one_direction, "warning"), ""]
    if contents.notice is not None:
        lines = [coloured(contents.notice, "warning"), f"→ {contents.next_step}", *(lines or [""])]
    if analysis.capture.interrupted:
        lines = [coloured(INTERRUPTED, "warning"), *(lines or [""])]
    return lines


def fail_on_damage(analysis: Analysis) -> None:
    """Raise what was wrong with the input: interrupted, or the first damage. Called after the output."""
    if analysis.capture.interrupted:
        raise KeyboardInterrupt
    damage = analysis.capture.damage
    if damage:
        file, message = damage[0]
        more = f", and damage at {len(damage) - 1} more places" if len(damage) > 1 else ""
        raise CaptureError(f"{message}{more}; what could be read is reported", file=file)
    problems = analysis.journal_problems
    if problems:
        more = f", and {len(problems) - 1} more lines" if len(problems) > 1 else ""
        empty = analysis.journal is not None and analysis.journal.is_empty
        raise JournalError(f"{problems[0]}{more}; {'no line is' if empty else 'the other lines are'} used")


def capture_time(text: str | None, option: str, analysis: Analysis) -> int | None:
    """A time on the capture's clock: seconds since its first frame, with or without a unit, or UTC."""
    from datetime import UTC, datetime

    if text is None:
        return None
    units = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9}
    number, unit = text, 10**9
    for name, ns in units.items():
        if text.endswith(name):
            number, unit = text.removesuffix(name), ns
            break
    try:
        return (analysis.capture.first_ns or 0) + round(float(number) * unit)
    except (ValueError, OverflowError):
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a time: use seconds since the first frame (1.5, 250ms) or UTC "
            "(2026-11-20T16:08:43.9)",
            param_hint=option,
        ) from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    whole = moment.replace(microsecond=0)
    return int(whole.timestamp()) * 10**9 + moment.microsecond * 1000


def say_if_slow(files: Sequence[Path]) -> None:
    """One line on standard error if the loops over a large capture run as plain Python."""
    if _bytes_of(files) < _SLOW_BYTES:
        return
    from rocekit import _compiled

    if _compiled.state(_compiled.PACKAGE) != _compiled.COMPILED:
        click.echo(
            "rocekit is not compiled here: the results are the same, slower (`rocekit doctor`)", err=True
        )


@contextmanager
def drawing(files: Sequence[Path]) -> Iterator[None]:
    """Say on standard error that something is drawn, if the files are large."""
    doing = Doing(_are_large(files))
    doing.say("drawing …")
    try:
        yield
    finally:
        doing.end()


def _bytes_of(files: Sequence[Path]) -> int:
    return sum(path.stat().st_size for path in files if path.is_file())


def _are_large(files: Sequence[Path]) -> bool:
    return sys.stderr.isatty() and _bytes_of(files) >= _LONG_BYTES


@contextmanager
def _phases(files: Sequence[Path]) -> Iterator[Progress | None]:
    """What an analysis does, on standard error: how much is read, and then that it judges."""
    if not _are_large(files):
        yield None
        return
    total = sum(p.stat().st_size for p in files if p.is_file())
    doing, done = Doing(True), dict[str, int]()

    def progress(reader: CaptureReader) -> None:
        done[reader.name] = reader.bytes_read
        share = sum(done.values()) / total
        if share < 1:
            doing.say("reading", share)
        else:
            doing.say("judging …")

    try:
        yield progress
    finally:
        doing.end()
