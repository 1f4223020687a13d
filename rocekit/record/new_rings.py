"""The files that recorded processes make in the folders for rings: which of them are new.

A look at a folder takes longer than its time of change, so a folder is looked at again when that differs.
Before Linux 6.13 the kernel takes this time from a clock that goes on once a tick (of 10 ms at most), and two
files of one tick leave the same one: as long as a change is that young, the next look is due anyway.
"""

from __future__ import annotations

import os
import time

from rocekit.errors import JournalError
from rocekit.record.ring import RingFile
from rocekit.record.start import changed_ns
from rocekit.record.told import TELLING, process_of, told_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence
    from pathlib import Path
    from typing import Final, TypeAlias

    NotRecorded: TypeAlias = tuple[int, str]
    """A process, and what is not recorded of it."""

_TICKS_NS: Final = 50_000_000
_UNFINISHED_NS: Final = 5_000_000_000
"""A file that is not complete for so long is looked at again only with others, and at the end."""
_REMOVED: Final = "programs that had just opened their first device may not be in the journal"


class NewRings:
    """Finds the files of new processes.

    Args:
        folders: where processes make their files; the first one is known to them by its name.
    """

    def __init__(self, folders: Sequence[Path | str]) -> None:
        self.folders = [os.fspath(folder) for folder in folders]
        self._found: set[str] = set()
        self._looked: list[int] = []

    def look(self, *, last: bool = False) -> Iterator[RingFile | NotRecorded]:
        """What is new in the folders; done a hundred times a second.

        Args:
            last: no look follows, so the folders are looked at whatever their times say.

        Raises:
            JournalError: a folder was replaced by somebody.
        """
        found = [changed_ns(folder) for folder in self.folders]
        for folder, (_, gone) in zip(self.folders, found, strict=True):
            if gone:
                yield os.getpid(), f"{folder} was removed by somebody: {_REMOVED}"
        changed = [ns for ns, _ in found]
        if last or changed != self._looked:
            began_ns = time.time_ns()
            # A file that is not complete yet is looked at again.
            whole = yield from self._look(last)
            self._looked = changed if whole and began_ns - max(changed) > _TICKS_NS else []

    def _look(self, last: bool) -> Generator[RingFile | NotRecorded, None, bool]:
        """New files; returns whether all of them are complete."""
        whole = True
        names = [f"{folder}/{name}" for folder in self.folders for name in os.listdir(folder)]  # noqa: PTH208
        for path in names:
            if path in self._found:
                continue
            if path.endswith(".ring"):
                try:
                    file = RingFile(path)
                except JournalError as error:
                    if not last:
                        whole = _is_old_or_gone(path) and whole
                    elif os.path.exists(path):  # noqa: PTH110
                        pid = process_of(path)
                        yield pid, f"process {pid}: its rings cannot be read ({error})"
                    continue
                self._found.add(path)
                yield file
            elif path.endswith(TELLING):
                self._found.add(path)
                if (told := told_in(path)) is not None:
                    yield told
        return whole


def _is_old_or_gone(path: str) -> bool:
    """Whether a file that is not complete has been so for long, or was taken away: it had no room."""
    try:
        return time.time_ns() - os.stat(path).st_mtime_ns > _UNFINISHED_NS  # noqa: PTH116
    except FileNotFoundError:
        return True
