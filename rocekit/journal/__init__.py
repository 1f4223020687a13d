"""The journal: what a program did with verbs and what verbs returned, beside a capture of the packets.

A journal is JSON Lines, one event a line, in the spirit of qlog. Every line has ``time_ns`` (whole
nanoseconds since the epoch), ``clock``, ``host``, ``pid`` and ``event``; :mod:`rocekit.journal.schema` says
which further keys an event must and may have. The reader is forgiving: a bad line is reported, the others are
used, unknown keys are kept. The writer is strict: an unknown event or key is a mistake of the caller.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # to import typing takes longer than to write a short program's journal
if TYPE_CHECKING:
    from typing import Any

    from rocekit.journal.reading import read_journal
    from rocekit.journal.records import Journal, JournalEvent, Problem, merge, parse_event
    from rocekit.journal.writing import JournalWriter

__all__ = [
    "Journal",
    "JournalEvent",
    "JournalWriter",
    "Problem",
    "merge",
    "parse_event",
    "read_journal",
]

_HOMES = {"read_journal": "reading", "JournalWriter": "writing"}


def __getattr__(name: str) -> Any:
    # Loaded when it is used: who only writes one does not need what reads it.
    if name not in __all__:
        raise AttributeError(f"module 'rocekit.journal' has no attribute {name!r}")
    return getattr(importlib.import_module(f"rocekit.journal.{_HOMES.get(name, 'records')}"), name)
