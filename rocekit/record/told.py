"""What recorded processes tell apart from their rings: in files of their own beside them."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Final

_FAILED: Final = ".failed"
TELLING: Final = (_FAILED, ".told")
"""How names of such files end: of a process that could not make its rings, and of what it does not record."""


def process_of(path: Path | str) -> int | None:
    """The process that made a file of these folders; None: no process gives its file such a name."""
    number = os.path.basename(path).split(".")[0]  # noqa: PTH119
    return int(number) if number.isascii() and number.isdigit() else None


def told_in(path: Path | str) -> tuple[int, str] | None:
    """The process that wrote such a file, and what is not recorded; None if nobody can read it."""
    pid = process_of(path)
    if pid is None:
        return None
    try:
        with open(path, errors="replace") as file:  # noqa: PTH123
            words = file.read()
        if not os.fspath(path).endswith(_FAILED):
            return pid, words
        reason = os.strerror(int(words or 0))
    except (OSError, ValueError):
        return None
    return pid, f"process {pid}: no room for its rings ({reason}); a smaller --ring-size may fit"
