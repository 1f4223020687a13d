"""The terminal that output goes to: its width, a pager for what is longer than it, and what is being done.

Into a pipe or a file everything goes as it is: programs read it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import IO, TYPE_CHECKING

import click

from rocekit.commands.interrupting import is_reported
from rocekit.dropped_signals import heard
from rocekit.standard_output import standard_output
from rocekit.wire.text_table import wrapped

if TYPE_CHECKING:
    import subprocess

_LESS = "FRX"
"""As git sets it: end if the text fits, show colours, leave the text on the screen."""
_TOGETHER = 256
"""Texts that are printed at once."""


def width() -> int | None:
    """The terminal's width; None if standard output is none."""
    return _size()[0] if sys.stdout.isatty() else None


def _size() -> tuple[int, int]:
    """The terminal's columns and lines."""
    import shutil

    return shutil.get_terminal_size()


def pager() -> list[str] | None:
    """The pager's command: $ROCEKIT_PAGER, $PAGER, else less; None: there is none, or it is not wanted."""
    ctx = click.get_current_context(silent=True)
    if ctx is not None and ctx.find_root().params.get("no_pager"):
        return None
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM", "dumb") == "dumb":
        return None
    named = next((os.environ[n] for n in ("ROCEKIT_PAGER", "PAGER") if n in os.environ), "less")
    if named.strip() in ("", "cat"):
        return None
    import shlex
    import shutil

    words = shlex.split(named)
    return words if shutil.which(words[0]) else None


class Screen:
    """Prints lines that fit the terminal; once they are more than it has rows, through the pager."""

    def __init__(self) -> None:
        self._pager = pager()
        self._width = width()
        self._rows = _size()[1] - 1 if self._pager else 0
        self._held: list[str] = []
        self._process: subprocess.Popen[str] | None = None

    def print(self, lines: Iterable[str]) -> None:
        """Print lines; they wait until it is clear whether the pager is needed.

        Raises:
            BrokenPipeError: the user has left the pager: the rest is not wanted.
        """
        fit = wrapped(lines, self._width)
        if self._pager is None:
            if fitting := list(fit):
                click.echo("\n".join(fitting))
            return
        self._held += fit
        if self._process is None and len(self._held) > self._rows:
            import subprocess

            environment = {"LESS": _LESS, "LV": "-c", **os.environ}
            self._process = subprocess.Popen(
                self._pager, stdin=subprocess.PIPE, env=environment, text=True, errors="replace"
            )
        if self._process is not None:
            self._send(self._process)

    def _send(self, process: subprocess.Popen[str]) -> None:
        text = "".join(f"{line}\n" for line in self._held)
        self._held.clear()
        assert process.stdin is not None
        process.stdin.write(text if colours(sys.stdout) else click.unstyle(text))
        process.stdin.flush()

    def close(self) -> None:
        """Print what waits, and wait for the pager."""
        if self._process is None:
            held, self._held = self._held, []
            if held:
                click.echo("\n".join(held))
            return
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        while True:
            try:
                self._process.wait()
                return
            except KeyboardInterrupt:  # it is the pager's: less stops a search with it
                heard()


@contextmanager
def screen() -> Iterator[Screen]:
    """A screen for what a command prints. To leave its pager early is no error."""
    out = Screen()
    try:
        yield out
    except BrokenPipeError:
        if out._process is None:
            raise
    finally:
        out.close()


def print_pieces(pieces: Iterable[bytes | memoryview]) -> None:
    """Print lines that are UTF-8 already, with their newlines, as ``click.echo`` would."""
    is_utf8 = (sys.stdout.encoding or "").lower() in ("utf-8", "utf8")
    for piece in pieces:
        if is_utf8:
            standard_output().write(piece)
        else:
            click.echo(bytes(piece).decode(), nl=False)
    sys.stdout.flush()


def show(text: str) -> None:
    """Print a text on the screen."""
    show_all([text])


def show_all(texts: Iterable[str]) -> None:
    """Print texts, each on lines of its own. Many are printed while the next ones are made."""
    is_reported()
    rest = iter(texts)
    with screen() as out:
        while some := list(islice(rest, _TOGETHER)):
            out.print(some)


def say(text: str, *, error: bool = False) -> None:
    """Print lines at once, without a pager, wrapped where the stream is a terminal."""
    stream = sys.stderr if error else sys.stdout
    click.echo("\n".join(wrapped([text], _size()[0] if stream.isatty() else None)), err=error)


def colours(stream: IO[str]) -> bool:
    """Whether colours go there: NO_COLOR and CLICOLOR_FORCE decide, else whether it is a terminal."""
    ctx = click.get_current_context(silent=True)
    wanted = None if ctx is None else ctx.color
    return stream.isatty() if wanted is None else wanted


class Doing:
    """One line on standard error that says what is being done; gone when it is done."""

    def __init__(self, shown: bool) -> None:
        self._shown = shown
        self._last = ""

    def say(self, what: str, share: float | None = None) -> None:
        """``reading  42%``."""
        words = what if share is None else f"{what} {share:4.0%}"
        if self._shown and words != self._last:
            self._last = words
            sys.stderr.write(f"\r\x1b[K{words}")
            sys.stderr.flush()

    def end(self) -> None:
        if self._last:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._last = ""
