"""The processes that a recorded program starts and that are not recorded, because nothing was preloaded.

A set-uid program is loaded without LD_PRELOAD, one in a container does not have the library, one with
another environment is not told of it. Which processes there are is looked up now and then, so one that
lives shorter than that is not seen.
"""

from __future__ import annotations

import os
import struct
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from typing import Final

_FIRST_S: Final = 0.1
_MOST_S: Final = 2.0
"""How long between two looks: twice as long each time, because programs start others at their start."""
_AT_SECURE: Final = 23
"""The entry of the auxiliary vector that says whether the linker ignores LD_PRELOAD (getauxval(3))."""
_VERBS: Final = "libibverbs"
_NAME: Final = 15
"""The longest name of a process that the kernel keeps (prctl(2), PR_SET_NAME)."""
_NOT_LOADED: Final = "the recorder's library was not loaded into it"


class UnseenProcesses:
    """Looks for the descendants of a process that use verbs without the recorder.

    Args:
        pid: the recorded program.
        library: the interposer.
    """

    def __init__(self, pid: int, library: Path | str) -> None:
        self._pid, self._library = pid, os.path.basename(library)  # noqa: PTH119
        self._told: set[int] = set()
        self._recorded: dict[int, str] = {}
        self._next = time.monotonic() + _FIRST_S
        self._pause_s = _FIRST_S

    def look(self, recorded: Mapping[int, str]) -> list[tuple[int, str]]:
        """Those that were not there before: their numbers, and what is not recorded and why.

        Args:
            recorded: the processes of which there are rings, and their programs' names.
        """
        if time.monotonic() < self._next:
            return []
        self._pause_s = min(2 * self._pause_s, _MOST_S)
        found = []
        for pid in self._descendants(self._pid):
            if pid not in self._told and (what := self._unseen(pid, recorded.get(pid))) is not None:
                self._told.add(pid)
                found.append((pid, what))
        self._next = time.monotonic() + self._pause_s
        return found

    def _descendants(self, pid: int) -> Iterator[int]:
        """A process and all that it and its children started, unless their parent has ended."""
        waiting = [pid]
        while waiting:
            pid = waiting.pop()
            yield pid
            try:
                for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
                    waiting += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
            except OSError:
                continue

    def _unseen(self, pid: int, recorded: str | None) -> str | None:
        """Why a process is not recorded; None if it is, or does not use verbs."""
        folder = f"/proc/{pid}"
        try:
            name = _read(f"{folder}/comm").decode(errors="replace").strip()
        except OSError:
            return None
        try:
            program = os.readlink(f"{folder}/exe")  # noqa: PTH115
            if recorded is not None and recorded[:_NAME] == name:
                self._recorded[pid] = program  # to read what is mapped takes longer than all else
            if self._recorded.get(pid) == program:
                return None
            maps = _read(f"{folder}/maps").decode(errors="replace")
        except PermissionError:
            # One that is recorded may forbid it later (PR_SET_DUMPABLE).
            if pid in self._recorded:
                return None
            return (
                f"process {pid} ({name}): the recorder may not look into it, so whether it uses verbs is "
                "unknown (into a program that is set-uid or has capabilities nothing is preloaded)"
            )
        except OSError:
            return None
        if self._library in maps:
            self._recorded[pid] = program
        if self._library in maps or _VERBS not in maps:
            return None
        return f"process {pid} ({name}), which uses verbs: {self._why(folder)}"

    def _why(self, folder: str) -> str:
        try:
            if os.stat(f"{folder}/ns/mnt").st_ino != os.stat("/proc/self/ns/mnt").st_ino:  # noqa: PTH116
                return "it is in another mount namespace, and the recorder's library was not loaded there"
            vector = struct.iter_unpack("@LL", _read(f"{folder}/auxv"))
            if any(kind == _AT_SECURE and value for kind, value in vector):
                return (
                    "it has privileges of its own (set-uid or capabilities), so nothing was preloaded into it"
                )
            named = self._library.encode() in _read(f"{folder}/environ")
        except (OSError, struct.error):
            return _NOT_LOADED
        return f"{_NOT_LOADED} ({'though LD_PRELOAD names it' if named else 'LD_PRELOAD does not name it'})"


def _read(path: str) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123
        return file.read()
