"""Signals within long compiled loops.

Python runs the handlers of signals between steps of Python's own code only. A compiled loop has none, so
Ctrl-C would wait until it is over: seconds, where a capture has a million connections.
"""

from __future__ import annotations

from typing import Final

OFTEN: Final = 4096
"""After how many connections a compiled loop takes signals: some ten milliseconds."""


def take_signals() -> None:
    """Run the handlers of the signals that came.

    This module is never compiled, and Python looks for them wherever it enters a function of its own.
    """
