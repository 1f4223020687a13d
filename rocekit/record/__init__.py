"""Running an unchanged program and writing the journal of its verbs calls.

A library is preloaded into the program (``interposer``) and writes records into shared memory (``ring``).
Here the program is started, its rings are emptied while it runs, records become journal lines
(``journal_lines``), and its exit status is handed on. ``early`` starts it before the rest is loaded.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # to import typing, or what is named here, would delay the program
if TYPE_CHECKING:
    from typing import Any

    from rocekit.record.journal_recorder import JournalRecorder
    from rocekit.record.program import ProgramError, find_program, is_static
    from rocekit.record.recorder import ProgramRecorder
    from rocekit.record.recording import Recording
    from rocekit.record.start import DEFAULT_RINGS, DEFAULT_SLOTS, holding_signals

__all__ = [
    "DEFAULT_RINGS",
    "DEFAULT_SLOTS",
    "JournalRecorder",
    "ProgramError",
    "ProgramRecorder",
    "Recording",
    "find_program",
    "holding_signals",
    "is_static",
]

_HOMES = {
    "DEFAULT_RINGS": "start",
    "DEFAULT_SLOTS": "start",
    "JournalRecorder": "journal_recorder",
    "ProgramError": "program",
    "ProgramRecorder": "recorder",
    "Recording": "recording",
    "find_program": "program",
    "holding_signals": "start",
    "is_static": "program",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'rocekit.record' has no attribute {name!r}")
    return getattr(importlib.import_module(f"rocekit.record.{_HOMES[name]}"), name)
