"""What recorded processes tell apart from their rings: in files of their own beside them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_FAILED: Final = ".failed"
TELLING: Final = (_FAILED, ".told")
"""How names of such files end: of a process that could not make its rings, and of what it does not record."""


def told_in(path: Path) -> tuple[int, str] | None:
    """The process that wrote such a file, and what is not recorded; None if nobody can read it."""
    try:
        pid, words = int(path.name.split(".")[0]), path.read_text(errors="replace")
        if path.suffix != _FAILED:
            return pid, words
        reason = os.strerror(int(words or 0))
    except (OSError, ValueError):
        return None
    return pid, f"process {pid}: no room for its rings ({reason}); a smaller --ring-size may fit"
