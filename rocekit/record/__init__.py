"""Running an unchanged program and writing the journal of its verbs calls.

A library is preloaded into the program (``interposer``) and writes records into shared memory (``ring``).
Here the program is started, its rings are emptied while it runs, records become journal lines
(``journal_lines``), and its exit status is handed on.
"""

from __future__ import annotations

from rocekit.record.journal_recorder import DEFAULT_RINGS, DEFAULT_SLOTS, JournalRecorder, holding_signals
from rocekit.record.program import ProgramError, find_program, is_static
from rocekit.record.recorder import ProgramRecorder
from rocekit.record.recording import Recording

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
