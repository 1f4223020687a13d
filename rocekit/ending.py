"""How a command ends: every error as one line and an exit status, and signals within a moment."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

import click

from rocekit.dropped_signals import heard, raise_again_if_lost
from rocekit.leaving import leave, watched

EXIT_ERROR = 1
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

_DEBUG: Final = "rocekit.debug"
"""Whether --debug was given, in the context's ``meta``."""
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Without a file name these errors are of standard output: writers of files name them."""
_ALWAYS: Final = frozenset({"cli.py", "ending.py", "commands/command_line.py", "commands/sandbox.py"})
"""Modules that every error has come through."""
_LONGEST_LINE: Final = 4_000
"""Characters of an error's line: the longest of ordinary ones list all opcodes."""
_FLUSH_S: Final = 0.5
"""How long a reader of the output may take for the rest of it, after Ctrl-C."""


_last: Final[list[BaseException]] = []
"""What ended the last command: while it is here, what its frames had is not freed, which takes long of a
large capture. The process ends."""


class Terminated(BaseException):
    """SIGTERM or SIGHUP: what was begun is taken down, as after Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.number = number


def debug_option(command: Any) -> Any:
    """``--debug``, kept for :func:`ending`."""
    return click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        callback=_keep_debug,
        help="Print the traceback of an unexpected error.",
    )(command)


def _keep_debug(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[_DEBUG] = True


@contextmanager
def ending(ctx: click.Context | None = None) -> Iterator[None]:
    """Turn every error except click's own into one line and an exit status."""
    try:
        from rocekit.errors import RocekitError

        yield
        return
    except (click.ClickException, click.exceptions.Exit, click.Abort, SystemExit, GeneratorExit):
        raise
    # These may come while the import above runs.
    except KeyboardInterrupt as error:
        heard()
        _last[:] = [error]
        status = EXIT_INTERRUPTED
    except Terminated as error:
        heard()
        _last[:] = [error]
        say(str(error))
        status = EXIT_ERROR
    except RocekitError as error:
        say(str(error))
        _flush_or_drop()
        status = EXIT_ERROR
    except BrokenPipeError:
        _drop_output()
        status = EXIT_BROKEN_PIPE
    except OSError as error:
        # A full disk, or a folder that cannot be written: the message of the system, and the file.
        where = "standard output" if error.filename is None else os.fsdecode(error.filename)
        named = error.filename is not None or error.errno in _NO_ROOM
        say(f"{where}: {error.strerror}" if named else error.strerror or str(error))
        _drop_output()
        status = EXIT_ERROR
    except MemoryError:
        say("out of memory")
        status = EXIT_ERROR
    except BaseException as error:  # panics of polars are no Exception
        if (behind := _signal_behind(error)) is not None:
            raise behind from None
        _unexpected(error, debug=ctx is not None and bool(ctx.meta.get(_DEBUG)))
        _flush_or_drop()
        status = EXIT_ERROR
    raise click.exceptions.Exit(status)


def _signal_behind(error: BaseException) -> BaseException | None:
    """The signal's exception that another error came of.

    Python 3.11 wraps one that comes while a class is made, and in hypothesis one breaks an assertion.
    """
    found: BaseException | None = error
    while found is not None and not isinstance(found, KeyboardInterrupt | Terminated):
        found = found.__cause__ or found.__context__
    return found


def say(message: str) -> None:
    """Print one line on standard error, without control characters that a hostile file put into it.

    Of a line that nobody would read to its end, as where a file has a word of a megabyte, the middle is left
    out: what it is about stands at its beginning, and what to do at its end.
    """
    line = " ".join(message.split())
    if len(line) > _LONGEST_LINE:
        half = _LONGEST_LINE // 2
        left_out = len(line) - 2 * half
        line = f"{line[:half]} … ({left_out:,} characters left out) … {line[-half:]}"
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    click.echo(f"{click.style('rocekit: error:', fg='red')} {line}", err=True)


def _unexpected(error: BaseException, *, debug: bool) -> None:
    """The last resort: an error that nobody thought of is a defect, and says how to report it."""
    if debug:
        import traceback

        traceback.print_exception(error)
    what = "the traceback above" if debug else "what this command prints with --debug"
    say(f"{_defect(error)}; please report it with {what}, and with the input if you may")


def _in_package(file: str) -> str | None:
    """A file's path within rocekit; None for others, which may lie in a folder of that name, too."""
    for folder in (os.path.dirname(__file__), "rocekit"):  # noqa: PTH120 the latter where it is compiled
        if file.startswith(folder + os.sep):
            return file[len(folder) + 1 :]
    return None


def _defect(error: BaseException) -> str:
    """The kind of an error, what it says, and the last line of rocekit on its way."""
    place, trace = "", error.__traceback__
    while trace is not None:
        path = _in_package(trace.tb_frame.f_code.co_filename)
        if path is not None and path not in _ALWAYS:
            place = f" at {path}:{trace.tb_lineno}"
        trace = trace.tb_next
    text = str(error)
    said = f": {text if len(text) <= 200 else text[:200] + '…'}" if text else ""
    return f"a defect of rocekit: {type(error).__name__}{said}{place}"


def _flush_or_drop() -> None:
    """Flush standard output; if that fails, it may be the cause of the error."""
    try:
        sys.stdout.flush()
    except OSError:
        _drop_output()


def _drop_output() -> None:
    """Point standard output at /dev/null, so that the interpreter's last flush does not fail again."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        pass


def _take_signals() -> None:
    """Make exceptions of signals, which may come as soon as one of them is taken."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(number, _terminate)
    # Jobs of shells in the background ignore it.
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, signal.SIG_DFL):
        signal.signal(signal.SIGINT, _interrupt)


def guarded(program: Callable[[], Any]) -> None:
    """Run the program with SIGTERM and SIGHUP as exceptions, and end the process without taking it apart."""
    threading.excepthook = _thread_failed
    sys.unraisablehook = _unheard
    status: int | None = None
    try:
        _take_signals()
        program()
    except SystemExit as end:
        if end.code != EXIT_INTERRUPTED and not _signalled:
            if watched() or not isinstance(end.code, int):
                raise
            leave(end.code)
        status = end.code if isinstance(end.code, int) else EXIT_ERROR
    except KeyboardInterrupt:
        status = EXIT_INTERRUPTED
    except Terminated as error:
        say(str(error))
        status = EXIT_ERROR
    if status is not None:
        # All is taken down. What is left are threads in the middle of something, which nobody waits for.
        _flush_soon()
        os._exit(status)


def end_with(error: BaseException) -> None:
    """End the process with an error, as a command that failed."""

    def fail() -> None:
        try:
            with ending():
                raise error
        except click.exceptions.Exit as end:
            sys.exit(end.exit_code)

    guarded(fail)


_signalled: list[int] = []
"""The signals that came."""


def _terminate(number: int, _frame: FrameType | None) -> None:
    _signalled.append(number)
    error = Terminated(number)
    raise_again_if_lost(error)
    raise error


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    error = KeyboardInterrupt()
    raise_again_if_lost(error)
    raise error


def _flush_soon() -> None:
    """Flush standard output, unless its reader does not read."""

    def give_up(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError

    try:
        signal.signal(signal.SIGALRM, give_up)
        signal.setitimer(signal.ITIMER_REAL, _FLUSH_S)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except (OSError, ValueError, AttributeError, TimeoutError):
        pass


def _unheard(arguments: Any) -> None:
    """A signal whose exception came where Python drops exceptions, as in a callback, comes again soon."""
    error = arguments.exc_value
    if not isinstance(error, KeyboardInterrupt | Terminated):
        sys.__unraisablehook__(arguments)
        return

    def again(_number: int, _frame: FrameType | None) -> None:
        raise_again_if_lost(error)
        raise error

    signal.signal(signal.SIGALRM, again)
    signal.setitimer(signal.ITIMER_REAL, 0.01)


def _thread_failed(arguments: threading.ExceptHookArgs) -> None:
    """An error of a thread that nobody waits for is one line, too."""
    error = arguments.exc_value
    if error is not None and not isinstance(error, SystemExit):
        say(f"{_defect(error)}; please report it")
