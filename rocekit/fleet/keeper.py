"""A process that keeps the analysis of a growing rotation, so that none of its files is read again and again.

It reads the files behind which there are others, and waits. For each wish a copy of it (fork) reads the last
file, ends the analysis and writes the rows, as ``add_stream`` would write them. What needs the files from the
beginning, such as times that run back, ends the process: the worker then analyses the stream as any other.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from rocekit.analysis import analyze
from rocekit.files.joined import CannotGoOn, Growing
from rocekit.fleet.lake import Lake
from rocekit.fleet.rates import Meter
from rocekit.fleet.stream_tables import LakeSettings, tables_of
from rocekit.fleet.streams import Stream
from rocekit.fleet.work import Added, StreamId, keep_memory


class Wish(NamedTuple):
    """A rotation as it is now, to be added to a LAKE."""

    folder: str
    stream: Stream
    own: StreamId
    settings: LakeSettings


class Keeper:
    """What the process has: where wishes come from, where what came of them goes, and the latest."""

    def __init__(self, wishes: BinaryIO, answers: BinaryIO) -> None:
        self._wishes, self._answers = wishes, answers
        self.wish = self._next()

    def _next(self) -> Wish:
        try:
            wish: Wish = pickle.load(self._wishes)
        except EOFError:  # it has ended, or needs this no more
            os._exit(0)
        return wish

    def files(self) -> Iterator[str]:
        """The files to read; in a copy that ends the analysis they end."""
        done = 0
        while True:
            finished = self.wish.stream.files[:-1]
            yield from finished[done:]
            done = len(finished)
            if _threads() > 1:  # a copy has only the one that makes it
                raise CannotGoOn("there are threads")
            copy = os.fork()
            if not copy:
                yield self.wish.stream.files[-1]
                return
            _, status = os.waitpid(copy, 0)
            if status:
                self.answer(None)
            self.wish = self._next()

    def answer(self, done: Added | None) -> None:
        """Say what came of the wish; None: nothing did."""
        pickle.dump(done, self._answers)
        self._answers.flush()


def _threads() -> int:
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.is_dir() else threading.active_count()


def main() -> None:
    """Serve wishes from standard input. What copies come to goes to standard output."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what others print must not be among the answers
    keeper = Keeper(sys.stdin.buffer, answers)
    keep_memory()
    itself = os.getpid()
    try:
        settings = keeper.wish.settings
        meter = Meter()
        analysis = analyze(
            Growing(keeper.files()),
            journals=(),
            check_icrc=settings.check_icrc,
            plain=settings.transfers,
            watch=meter,
        )
        folder, stream, own, _ = keeper.wish
        result = tables_of(analysis, meter, stream, own.capture, own.size, ())
        lake = Lake(Path(folder))
        ids = frozenset({own.capture})
        done = Added(stream, ids, True, result.packets, own.size)
        try:
            lake.write(lake.entry(stream, own.capture, result.first_ns), result.tables)
        except OSError as error:
            done = Added(stream, frozenset(), new=False, full=error.strerror or str(error))
        keeper.answer(done)
    except BaseException:
        if os.getpid() == itself:
            keeper.answer(None)
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()
