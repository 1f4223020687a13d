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
_SOON_NS: Final = 5_000_000_000
_PAUSE_NS: Final = 100_000_000
"""A file that is not complete for so long (the first) is looked at only so often (the second)."""
_NEVER_NS: Final = 1 << 62
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
        self._again_ns = 0

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
        changed, now_ns = [ns for ns, _ in found], time.time_ns()
        if last or changed != self._looked or time.monotonic_ns() >= self._again_ns:
            pause_ns = yield from self._look(last)
            self._again_ns = time.monotonic_ns() + pause_ns
            self._looked = changed if now_ns - max(changed) > _TICKS_NS else []

    def _look(self, last: bool) -> Generator[RingFile | NotRecorded, None, int]:
        """New files; returns after how long those that are not complete are looked at again."""
        pause_ns = _NEVER_NS
        names = [f"{folder}/{name}" for folder in self.folders for name in os.listdir(folder)]  # noqa: PTH208
        for path in names:
            if path in self._found:
                continue
            if path.endswith(".ring"):
                try:
                    file = RingFile(path)
                except JournalError:
                    if not last:
                        pause_ns = min(pause_ns, _pause_ns(path))
                    elif (pid := process_of(path)) is not None and os.path.exists(path):  # noqa: PTH110
                        yield pid, f"process {pid}: its rings were not complete when the recording ended"
                    continue
                self._found.add(path)
                yield file
            elif path.endswith(TELLING):
                self._found.add(path)
                if (told := told_in(path)) is not None:
                    yield told
        return pause_ns


def _pause_ns(path: str) -> int:
    """After how long a file that is not complete is looked at again.

    A process that a machine without free memory lets wait may take seconds to make it; one that was killed
    meanwhile leaves it so for ever.
    """
    try:
        age_ns = time.time_ns() - os.stat(path).st_mtime_ns  # noqa: PTH116
    except FileNotFoundError:
        return _NEVER_NS  # there was no room for it, and its process has taken it away again
    return _PAUSE_NS if age_ns > _SOON_NS else 0
