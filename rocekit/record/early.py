"""Starting the program of ``rocekit record`` before the command line is loaded.

To load the command line takes longer than many programs run. Most command lines of ``rocekit record`` need
nothing of it: a program, an output, a switch. Of those the program is started here, and what records it is
loaded while it runs (``begun``). In all other cases nothing is done here: where something is not as it should
be, what says so is the command itself.
"""

from __future__ import annotations

import atexit
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Final

    from rocekit.files.new_file import NewFile
    from rocekit.machine.counter_files import FolderRead
    from rocekit.record.rank import Rank

_SWITCHES: Final[Mapping[str, Mapping[str, bool]]] = {
    "-q": {"quiet": True},
    "--quiet": {"quiet": True},
    "--redact": {"redact": True},
    "--counters": {"counters": True},
    "--no-counters": {"counters": False},
    "--follow-children": {"children": True},
    "--no-follow-children": {"children": False},
}
"""Options without a value, and what they set."""
_SLOTS: Final = range(64, (1 << 24) + 1)


class EarlyLine:
    """What a command line says.

    Attributes:
        command: the program and its arguments.
        output: the journal, or None.
        slots: of a ring, a power of two; None: the default.
        counters, children, quiet, redact: as the options.
    """

    __slots__ = ("children", "command", "counters", "output", "quiet", "redact", "slots")

    def __init__(self) -> None:
        self.command: list[str] = []
        self.output: str | None = None
        self.slots: int | None = None
        self.counters = self.children = True
        self.quiet = self.redact = False


class Begun:
    """A program that runs, and what was prepared for its recording.

    Attributes:
        line: the command line.
        program: its path.
        journal: the file, open.
        mask: the signal mask as it was; signals are held.
        time_ns, mono_ns: when it was started.
        counters: gives what a folder of counters had before; None: they are not wanted.
        taken: whether a recorder has it.
    """

    def __init__(self, line: EarlyLine, program: str, library: str, output: str, rank: Rank | None) -> None:
        from rocekit.files.new_file import NewFile
        from rocekit.record import start

        self.line, self.program, self.library, self.output = line, program, library, output
        self.rank, self.taken = rank, False
        self.counters: Callable[[str], FolderRead | None] | None = None
        self.folders: list[str] = []
        journal: NewFile | None = None
        self.mask = start.hold_signals()
        try:
            journal = NewFile(output, growing=True)
            self.folders = start.ring_folders(output)
            if line.counters:
                from rocekit.machine.counter_files import read_all

                self.counters = read_all()
                if self.counters is None:
                    raise NotEarlyError
            self.time_ns, self.mono_ns = time.time_ns(), time.monotonic_ns()
            self.pid = start.spawn(program, line.command, self._variables(line), self.mask)
        except BaseException:
            if journal is not None:
                journal.remove()
            self.clean_up()
            raise
        self.journal = journal  # nothing may fail from here on: the command would start the program again

    def _variables(self, line: EarlyLine) -> dict[str, str]:
        from rocekit.record.program import environment
        from rocekit.record.start import DEFAULT_RINGS, DEFAULT_SLOTS

        return environment(
            os.environ,
            self.library,
            self.folders[0],
            spill=self.folders[1] if len(self.folders) > 1 else None,
            slots=line.slots or DEFAULT_SLOTS,
            rings=DEFAULT_RINGS,
            children=line.children,
        )

    def clean_up(self) -> None:
        """Remove the folders, and let signals come."""
        import signal

        from rocekit.record.start import remove_folder

        for folder in self.folders:
            remove_folder(folder)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)


class NotEarlyError(Exception):
    """The command itself is to start the program."""


_begun: list[Begun] = []


def start_early(arguments: Sequence[str]) -> None:
    """Start the program of ``rocekit record ARGUMENTS``, if nothing is out of the ordinary.

    Args:
        arguments: those of the command.
    """
    line = early_line(arguments)
    # A file that is opened would get the number of a stream that was closed; completion runs no command.
    if line is None or None in (sys.stdin, sys.stdout, sys.stderr) or "_ROCEKIT_COMPLETE" in os.environ:
        return
    try:
        _begun.append(_begin(line))
    except Exception:  # the command finds it again, and says what is wrong
        return
    atexit.register(_let_go)
    from rocekit.record import start

    start.give_way(start.NICER)


def _let_go() -> None:
    """Where nobody took the program, for which there must have been a defect: it goes on to its end."""
    for one in _begun:
        if not one.taken:
            os.waitpid(one.pid, 0)
            one.clean_up()
    _begun.clear()


def started() -> bool:
    """Whether the program was started."""
    return bool(_begun)


def begun() -> Begun:
    """The program that was started; a recorder takes it."""
    return _begun[-1]


def early_line(arguments: Sequence[str]) -> EarlyLine | None:
    """A command line that says no more than the start can do alone; None: it may say more."""
    line = EarlyLine()
    words = iter(arguments)
    for word in words:
        if word == "--":
            line.command = list(words)
        elif not word.startswith("-"):
            line.command = [word, *words]
        elif word in _SWITCHES:
            for name, chosen in _SWITCHES[word].items():
                setattr(line, name, chosen)
        else:
            name, given, value = word.partition("=")
            if name not in ("--output", "-o", "--ring-size") or (name == "-o" and given):
                return None
            text = value if given else next(words, "")
            if name == "--ring-size":
                if not (text.isascii() and text.isdigit() and len(text) < 9 and int(text) in _SLOTS):
                    return None
                line.slots = 1 << (int(text) - 1).bit_length()
            else:
                line.output = text
    if not line.command or not line.command[0]:
        return None
    if line.output is not None and (not line.output.endswith(".jsonl") or "\0" in line.output):
        return None
    return line


def _begin(line: EarlyLine) -> Begun:
    """Start the program.

    Raises:
        NotEarlyError: not everything is as usual. (So does any other error: the command itself finds it.)
    """
    from rocekit.record.built import built_library
    from rocekit.record.program import find_program, has_own_privileges
    from rocekit.record.rank import default_journal, find_rank

    program = find_program(line.command[0])
    if has_own_privileges(program):
        raise NotEarlyError
    rank = find_rank(os.environ)
    if line.output is None:
        named = default_journal(line.command[0], rank)
    else:
        named = line.output if rank is None else rank.text(line.output)
    folder = os.path.dirname(named) or "."  # noqa: PTH120
    if os.path.lexists(named) or not os.access(folder, os.W_OK | os.X_OK):
        raise NotEarlyError  # what is there must not be the program, or what it reads
    library = built_library()
    if library is None:
        raise NotEarlyError
    return Begun(line, program, library, named, rank)
