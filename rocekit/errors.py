"""The errors that rocekit raises. The CLI prints one as a single line and exits with 1.

A caller's mistake (a wrong argument) is a ``ValueError``. A malformed *packet* is never an error: it is
counted, or a finding names its frame.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # to import typing or pathlib takes longer than all of this
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Final

#: Where the Debian package has rocekit and the packages that it needs.
_DEBIAN: Final = "/usr/lib/rocekit"
_HERE: Final = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))  # noqa: PTH120


class RocekitError(Exception):
    """What went wrong and what to do about it, in one line."""


def needs_extra(what: str, package: str | None, extra: str) -> RocekitError:
    """The error for a package that an extra of rocekit installs; the command installs it for this rocekit."""
    return RocekitError(f"{what} {package}: {installing(extra)}")


def installing(*extras: str, folder: str | Path = _HERE, python: str | Path = sys.executable) -> str:
    """The command that adds what extras need; ``folder`` is where the package lies."""
    pip = f"{python} -m pip install"
    if str(folder) != _DEBIAN:
        return f"{pip} 'rocekit[{','.join(extras)}]'"
    # The Debian package: pip does not know rocekit there, and leaves the system's own packages alone.
    from importlib.metadata import requires

    wanted = [
        line.partition(";")[0].strip()
        for line in requires("rocekit") or ()
        for extra in extras
        if line.replace("'", '"').endswith(f'extra == "{extra}"')
    ]
    return f"sudo {pip} --target {folder} {' '.join(map(repr, dict.fromkeys(wanted)))}"


def check_number(number: int, count: int, what: str) -> None:
    """Check that there is a connection or transfer with a number that the user gave.

    Raises:
        RocekitError: there is none; says which there are.
    """
    if not 0 <= number < count:
        have = f"there are {count}, counted from 0" if count else "there is none"
        raise RocekitError(f"no {what} {number}: {have}; `rocekit analyze --all` lists them")


class CaptureError(RocekitError):
    """A file or interface that cannot be read as a capture.

    Args:
        message: what is wrong and what to do.
        file: the file or interface, if there is one.
        offset: the byte of the file at which reading stopped.
    """

    def __init__(self, message: str, *, file: str | Path | None = None, offset: int | None = None) -> None:
        self.file = None if file is None else str(file)
        self.offset = offset
        where = "" if self.file is None else f"{self.file}: "
        at = "" if offset is None else f" (at byte {offset})"
        super().__init__(f"{where}{message}{at}")


class JournalError(RocekitError):
    """A journal, or a line of one, that cannot be used.

    Args:
        message: what was expected.
        file: the journal.
        line: the line, counted from 1.
    """

    def __init__(self, message: str, *, file: str | Path | None = None, line: int | None = None) -> None:
        self.file = None if file is None else str(file)
        self.line = line
        where = "" if self.file is None else f"{self.file}: "
        at = "" if line is None else f"line {line}: "
        super().__init__(f"{where}{at}{message}")


class VerbsError(RocekitError):
    """The verbs library, the kernel or a device refused; ``errno`` says why, if it is known."""

    def __init__(self, message: str, *, errno: int | None = None) -> None:
        self.errno = errno
        super().__init__(message)


class ScenarioError(RocekitError):
    """A scenario of ``rocekit inject`` or a command of ``rocekit lab`` that did not run to its end."""
