"""The entry point of the command line, and how its errors end.

Exit status: 0 done; 1 an error, one line on standard error; 2 a wrong command line; 130 interrupted; 141 the
reader of the output has gone. ``rocekit lab`` returns its command's own status.

Little is imported here: ``rocekit record`` starts its program before the rest is loaded.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # to import typing takes longer than all of this
if TYPE_CHECKING:
    from typing import Any

    from rocekit.commands.command_line import COMMANDS, GROUPS, Commands, rocekit

__all__ = ["COMMANDS", "GROUPS", "Commands", "main", "rocekit"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'rocekit.cli' has no attribute {name!r}")
    from rocekit.commands import command_line

    return getattr(command_line, name)


def main() -> None:
    """The entry point ``rocekit``."""
    program = _program
    if sys.argv[1:2] == ["record"]:
        from rocekit.record import early

        early.start_early(sys.argv[2:])
        program = _begun if early.started() else program
    else:
        import signal

        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            # Until there is somebody to handle it, Ctrl-C just ends the process.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        from rocekit.machine.large_pages import objects_in_large_pages

        objects_in_large_pages()
    import atexit
    import gc
    import io

    from rocekit.standard_output import write_whole

    # Most objects stay until the process ends.
    gc.set_threshold(100_000)
    atexit.register(gc.freeze)
    write_whole()
    for stream in (sys.stdout, sys.stderr):
        # If the encoding has no µ or ✓, a ? is better than no output.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    program()


def _begun() -> None:
    """The program of ``rocekit record`` runs: nothing is loaded that its recording does not need."""
    try:
        from rocekit.leaving import leave, watched
        from rocekit.record import early
        from rocekit.record.begun import record_begun

        record_begun(early.begun())
    except SystemExit as end:
        if watched() or not isinstance(end.code, int):
            raise
        leave(end.code)
    except BaseException as error:
        from rocekit.ending import end_with

        end_with(error)


def _program() -> None:
    from rocekit.ending import guarded

    guarded(_run)


def _run() -> None:
    from rocekit.commands.command_line import run

    run()


if __name__ == "__main__":
    main()
