"""What Ctrl-C does to a command that reads captures: what was read is reported, if that does not take long.

A stream cannot be read again, so what came of it is reported, however long that takes: Ctrl-C is how a
capture that runs is ended. Of files, which stay, nothing is reported that would take longer than a moment.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

import click

_ANSWER_S: Final = 0.5
"""What takes longer after Ctrl-C is explained."""
_REPORT_S: Final = 0.7
"""How long a report of a part of files may take after Ctrl-C."""
_TOO_LONG: Final = f"interrupted: a report of what was read was not ready {_REPORT_S} s later: left out"


@contextmanager
def stopping(again: bool) -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed. A second one, or one before anything was read, ends immediately.

    Args:
        again: whether the captures can be read again. If so, the command ends where what was read until
            Ctrl-C is not reported (see ``is_reported``) a moment later.
    """
    begun = pressed = False
    answer = answer_later("what was read until now is being analyzed")

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        signal.signal(number, before)
        if not begun:
            if callable(before):
                before(number, frame)
            raise KeyboardInterrupt
        pressed = True
        if again:
            _end_soon()
        else:
            answer.start()

    def stop() -> bool:
        nonlocal begun
        begun = True
        return pressed

    try:
        before = signal.signal(signal.SIGINT, press)
    except ValueError:  # not the main thread: no signals
        yield stop
        return
    try:
        yield stop
    finally:
        answer.cancel()
        signal.signal(signal.SIGINT, before)


_waiting: list[bool] = []
"""Whether a report is waited for; a list, because handlers of signals look at it."""


def _end_soon() -> None:
    """End the command in a moment, as a second Ctrl-C would, if its report is not there by then."""

    def end(_number: int, _frame: FrameType | None) -> None:
        if _waiting:
            _waiting.clear()
            click.echo(_TOO_LONG, err=True)
            signal.raise_signal(signal.SIGINT)

    _waiting.append(True)
    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, _REPORT_S)
    context = click.get_current_context(silent=True)
    if context is not None:
        context.call_on_close(is_reported)


def is_reported() -> None:
    """The report is there, and a user may look at it: Ctrl-C before does not end it any more."""
    _waiting.clear()


def answer_later(doing: str) -> threading.Timer:
    """A timer that tells a user at a terminal what takes long after Ctrl-C; to be started by Ctrl-C."""

    def answer() -> None:
        if sys.stderr.isatty():
            click.echo(f"\ninterrupted: {doing}; Ctrl-C again ends at once", err=True)

    timer = threading.Timer(_ANSWER_S, answer)
    timer.daemon = True
    return timer
