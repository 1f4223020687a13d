"""The program to record: finding it, and its environment, which preloads the interposer."""

from __future__ import annotations

import os

from rocekit.errors import RocekitError

TYPE_CHECKING = False  # what is not needed for it would delay the program
if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Final

_PT_INTERP: Final = 3
"""The program header that names the dynamic linker (elf(5))."""


class ProgramError(RocekitError):
    """The program cannot be started. ``status`` is what a shell would exit with: 127 or 126."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def is_static(path: str) -> bool:
    """Whether a program is linked statically: then no library can be preloaded into it."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            head = file.read(64)
            if head[:5] != b"\x7fELF\x02":
                return False
            offset, size, count = (
                int.from_bytes(head[32:40], "little"),
                int.from_bytes(head[54:56], "little"),
                int.from_bytes(head[56:58], "little"),
            )
            file.seek(offset)
            table = file.read(size * count)
    except OSError:
        return False
    kinds = [int.from_bytes(table[k : k + 4], "little") for k in range(0, len(table), size or 1)]
    return _PT_INTERP not in kinds


def which(name: str) -> str | None:
    """The path of a program, as the shell would find it, or None.

    As ``shutil.which``, whose module loads several libraries for archives.
    """
    if os.sep in name:
        return name if _runs(name) else None
    folders = os.environ.get("PATH", os.confstr("CS_PATH") or os.defpath)
    paths = (os.path.join(folder, name) for folder in folders.split(os.pathsep))  # noqa: PTH118
    return next(filter(_runs, paths), None) if folders else None


def _runs(path: str) -> bool:
    return os.access(path, os.X_OK) and not os.path.isdir(path)  # noqa: PTH112


def find_program(name: str) -> str:
    """The program's path, as the shell would find it.

    Raises:
        ProgramError: there is none, or the file cannot be run.
    """
    path = which(name)
    if path is not None:
        return path
    if os.sep in name and os.path.exists(name):  # noqa: PTH110
        raise ProgramError(f"{name}: cannot be run", 126)
    raise ProgramError(f"{name}: no such program", 127)


def has_own_privileges(path: str) -> bool:
    """Whether the dynamic linker will ignore LD_PRELOAD (ld.so(8), secure-execution mode)."""
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116
        if mode & 0o6000 and os.geteuid() != 0:
            return True
        return "security.capability" in os.listxattr(path) and os.geteuid() != 0
    except OSError:
        return False


def environment(
    caller: Mapping[str, str],
    library: Path | str,
    folder: Path | str,
    *,
    spill: Path | str | None = None,
    slots: int,
    rings: int,
    children: bool,
) -> dict[str, str]:
    """The program's environment: the caller's, with the variables that preload the interposer.

    Args:
        spill: a folder for rings that do not fit into ``folder``.
    """
    preload = [str(library), *caller.get("LD_PRELOAD", "").replace(":", " ").split()]
    new = {
        **caller,
        "LD_PRELOAD": ":".join(preload),
        "ROCEKIT_RECORD_FOLDER": str(folder),
        "ROCEKIT_RECORD_SLOTS": str(slots),
        "ROCEKIT_RECORD_RINGS": str(rings),
    }
    for name in ("ROCEKIT_RECORD_PARENT", "ROCEKIT_RECORD_SPILL"):
        new.pop(name, None)
    if spill is not None:
        new["ROCEKIT_RECORD_SPILL"] = str(spill)
    # AddressSanitizer ends a program that has another library before its own. What it must replace, this one
    # does not have. The user's own options come last: then they count.
    new["ASAN_OPTIONS"] = ":".join(filter(None, ("verify_asan_link_order=0", caller.get("ASAN_OPTIONS"))))
    if not children:
        new["ROCEKIT_RECORD_PARENT"] = str(os.getpid())
    return new
