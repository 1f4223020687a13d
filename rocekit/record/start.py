"""What the start of a recorded program takes: signals that wait, folders for its rings, and priorities.

The program waits for this module, so it imports little.
"""

from __future__ import annotations

import os
import signal
import stat
from contextlib import contextmanager, suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Final

DEFAULT_SLOTS: Final = 1 << 15
"""Slots of a ring: 2 MiB. A work request usually takes two, a receive and a completion one."""
DEFAULT_RINGS: Final = 8
NICER: Final = 5
"""How much lower a priority than the program's a command's recorder takes."""
PASSED_ON: Final = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2),
    *(signal.SIGWINCH, signal.SIGCONT, signal.SIGALRM, signal.SIGTSTP),
)
ENDING: Final = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
"""After the program's end, these end the writing of what is left."""
HELD: Final = frozenset({*PASSED_ON, signal.SIGCHLD})
SI_USER_AT_MOST: Final = 0
"""A signal's si_code: at most 0 if a process sent it, above if the kernel did (sigaction(2))."""
_MEMORY: Final = "/dev/shm"


def hold_signals() -> set[int]:
    """Block the signals that are to be passed on to a program; gives the mask as it was, for the program.

    Threads that are started from now on block them too: else one of them would get a signal instead.
    """
    return {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, HELD)}


@contextmanager
def holding_signals(before: set[int] | None = None) -> Iterator[set[int]]:
    """Signals are held in it (:func:`hold_signals`); ``before`` is the mask where they are already."""
    mask = hold_signals() if before is None else before
    try:
        yield mask
    finally:
        # Signals after the program's end were meant for it, too.
        while signal.sigtimedwait(HELD, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def ring_folders(journal: Path | str) -> list[str]:
    """Folders for ring files: in memory, and beside the journal for those that find no room there.

    Docker gives a container 64 MiB of /dev/shm, enough for the rings of three processes.
    """
    found = [_folder(_memory(), "rocekit-record-")]
    try:
        found.append(_folder(os.path.dirname(os.path.abspath(journal)), ".rocekit-record-"))  # noqa: PTH100, PTH120
    except OSError:
        pass
    return found


def _memory() -> str:
    """Where ring files are in memory, if possible."""
    if os.access(_MEMORY, os.W_OK | os.X_OK):
        return _MEMORY
    import tempfile

    return tempfile.gettempdir()


def _folder(base: str, prefix: str) -> str:
    """A new folder for ring files, of this user alone; leftovers of dead recorders are removed."""
    # In a container that shares this memory, a number says nothing of a recorder outside.
    here = pid_namespace() if _proc_is_ours() else 0
    for name in os.listdir(base):  # noqa: PTH208
        if not name.startswith(prefix):
            continue
        old = os.path.join(base, name)  # noqa: PTH118
        try:
            pid, namespace, _ = map(int, name.removeprefix(prefix).split("-"))
            if here and namespace == here and os.stat(old).st_uid == os.geteuid() and not alive(pid):  # noqa: PTH116
                remove_folder(old)
        except (OSError, ValueError):
            continue
    while True:
        dice = int.from_bytes(os.urandom(6), "big")
        folder = os.path.join(base, f"{prefix}{os.getpid()}-{here}-{dice}")  # noqa: PTH118
        try:
            _make_folder(folder)
            return folder
        except FileExistsError:
            continue


def _make_folder(folder: str) -> None:
    os.mkdir(folder, 0o700)  # noqa: PTH102
    if os.geteuid() == 0:
        # A program that starts as root may be another user when it opens a device.
        os.chmod(folder, 0o1733)  # noqa: PTH101


def changed_ns(folder: Path | str) -> tuple[int, bool]:
    """When a folder for ring files last changed, and whether somebody had removed it: then it is made again.

    Cleaners of temporary files do that. Rings that are in use stay mapped, and new processes need the folder.

    Raises:
        JournalError: something else stands there now, or another user's folder, whose rings would be read.
    """
    gone = False
    try:
        found = os.lstat(folder)
    except FileNotFoundError:
        gone = True
        _make_folder(os.fspath(folder))
        found = os.lstat(folder)
    if found.st_uid != os.geteuid() or not stat.S_ISDIR(found.st_mode):
        from rocekit.errors import JournalError

        raise JournalError(f"{os.fspath(folder)} was replaced by somebody: recording ends")
    return found.st_mtime_ns, gone


def remove_folder(folder: Path | str) -> None:
    """Remove a folder of ring files, as far as possible."""
    try:
        for name in os.listdir(folder):  # noqa: PTH208
            os.unlink(os.path.join(folder, name))  # noqa: PTH108, PTH118
        os.rmdir(folder)  # noqa: PTH106
    except OSError:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)


def pid_namespace() -> int:
    """The PID namespace of this process, 0 if the kernel has none."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116
    except OSError:
        return 0


def _proc_is_ours() -> bool:
    """Whether /proc has the numbers that processes have here."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())  # noqa: PTH115
    except OSError:
        return False


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            state = file.read().rsplit(b")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return False
    except OSError:
        return True  # nobody may look, or no file can be opened now: a process that may run is not dead
    return state not in (b"Z", b"X")


def spawn(program: str, command: list[str], variables: dict[str, str], mask: set[int]) -> int:
    """Start a program; its number.

    Raises:
        OSError: it cannot be started.
    """
    # Python ignores these two, and an ignored signal stays ignored after exec.
    ignored = [signal.SIGPIPE, signal.SIGXFSZ]
    return os.posix_spawn(program, command, variables, setsigmask=mask, setsigdef=ignored)


def give_way(nicer: int) -> None:
    """Let the program go first if processors are few; SCHED_BATCH does not interrupt it on waking.

    A sandbox may forbid it: the program runs by then, and is recorded all the same.
    """
    if nicer:
        with suppress(OSError):
            os.nice(nicer)
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
