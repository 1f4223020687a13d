"""Signals whose exception was dropped: they come again.

Code in C may drop the exception that a signal's handler raises, without a word. Of 360 commands that got
Ctrl-C while NumPy's random numbers were loaded, 23 went on.
"""

from __future__ import annotations

import signal
import sys

TYPE_CHECKING = False  # to import typing takes longer than all of this
if TYPE_CHECKING:
    from types import FrameType
    from typing import Final

_LOST_S: Final = 0.5
"""How long after a signal its exception is looked for."""


def raise_again_if_lost(error: BaseException) -> None:
    """Raise a signal's exception once more where it was dropped: nobody handles it then.

    Until :func:`heard`, or until the process ends.
    """

    def look(_number: int, _frame: FrameType | None) -> None:
        handled = sys.exception()
        while handled is not None and handled is not error:
            handled = handled.__context__
        if handled is None:
            raise error

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, _LOST_S, _LOST_S)


def heard() -> None:
    """Say that a signal's exception was caught, and what comes after it is to go on."""
    signal.setitimer(signal.ITIMER_REAL, 0)
