"""Ending the process without taking it apart."""

from __future__ import annotations

import atexit
import os
import sys
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

EXIT_UNFLUSHED = 120


def watched() -> bool:
    """Whether a profiler or a debugger waits for the interpreter's own end."""
    return sys.gettrace() is not None or sys.getprofile() is not None or bool(sys.flags.inspect)


def leave(status: int) -> NoReturn:
    """End as the interpreter does, but let modules and objects be: the process's memory goes as a whole.

    To take them apart is a tenth of the time of a short command, and more where an analysis is large.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as the interpreter calls it
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            status = status or EXIT_UNFLUSHED
    os._exit(status)
