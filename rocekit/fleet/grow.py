"""A worker's rotations that grow: each has a process that keeps its analysis (see ``keeper``)."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from functools import cache
from typing import TYPE_CHECKING, Final

from rocekit.errors import RocekitError
from rocekit.fleet.keeper import Wish
from rocekit.fleet.lake import Lake
from rocekit.fleet.stream_tables import paths_of
from rocekit.fleet.watching import state_of_file
from rocekit.fleet.work import Added, FileDigest, add_stream, digest_of, identity

if TYPE_CHECKING:
    from rocekit.fleet.stream_tables import LakeSettings
    from rocekit.fleet.streams import Stream

#: Rotations whose analysis a worker keeps; that which grew longest ago gives way to another.
MOST_KEPT: Final = 8


def grow_stream(folder: str, stream: Stream, settings: LakeSettings) -> Added:
    """Add a rotation that has grown to a LAKE, as ``add_stream`` does, but from what was read before."""
    done = _keepers().add(folder, stream, settings)
    return add_stream(folder, stream, settings) if done is None else done


@cache
def _keepers() -> Keepers:
    """Those of this process."""
    return Keepers()


class Keepers:
    """Rotations, with the digests of their finished files and the process that has read these."""

    def __init__(self, most: int = MOST_KEPT) -> None:
        self._most = most
        self._kept: dict[tuple[str, str, LakeSettings], _Kept] = {}
        self._refused: set[tuple[str, str, LakeSettings]] = set()

    def add(self, folder: str, stream: Stream, settings: LakeSettings) -> Added | None:
        """Add a stream; None: it cannot be gone on with, and is to be analysed from its beginning."""
        key = stream.point, stream.key, settings  # other settings make other rows
        if key in self._refused or not _can_be_kept(stream):
            return None
        kept = self._kept.pop(key, None)
        if kept is not None and not kept.goes_on_to(stream):
            kept.end()
            kept = None
        if kept is None:
            kept = _Kept()
        done = kept.add(folder, stream, settings)
        if done is None or not kept.lives:
            kept.end()
            if done is None:
                self._refused.add(key)
            return done
        self._kept[key] = kept
        while len(self._kept) > self._most:
            self._kept.pop(next(iter(self._kept))).end()
        return done._replace(keeper=_own_address())

    def end(self) -> None:
        """End all processes."""
        for kept in self._kept.values():
            kept.end()
        self._kept.clear()


class _Kept:
    """The process of one rotation."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[object, FileDigest]] = {}
        self._process: subprocess.Popen[bytes] | None = None

    def goes_on_to(self, stream: Stream) -> bool:
        """Whether the finished files are still the first of the stream's, as they were."""
        finished = stream.files[:-1]
        known = list(self._files)
        return known == list(finished[: len(known)]) and all(
            state_of_file(name) == state for name, (state, _) in self._files.items()
        )

    @property
    def lives(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def add(self, folder: str, stream: Stream, settings: LakeSettings) -> Added | None:
        """Have the process add the stream; None: it cannot."""
        own = identity(stream, settings, lambda name: self._digest(name, stream))
        if own.size > settings.split_bytes:
            return None
        lake, ids = Lake(folder), frozenset({own.capture})
        if lake.has(stream, own.capture):
            error = lake.error_of(stream, own.capture)
            return Added(stream, ids, new=False, bytes=own.size, error=error)
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rocekit.fleet.keeper"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"},
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            pickle.dump(Wish(folder, stream, own, settings), self._process.stdin)
            self._process.stdin.flush()
            done: Added | None = pickle.load(self._process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError):
            return None
        return done

    def _digest(self, name: str, stream: Stream) -> FileDigest:
        """A file's digest; that of a finished one is kept with the state that it had."""
        if name in self._files:
            return self._files[name][1]
        state = state_of_file(name)
        digest = digest_of(name)
        if name != stream.files[-1]:
            self._files[name] = state, digest
        return digest

    def end(self) -> None:
        """End the process."""
        if self._process is None:
            return
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except OSError:  # what it was told last did not reach it
                pass
        self._process.wait()


def _can_be_kept(stream: Stream) -> bool:
    """Whether a stream is a rotation without journals, which are needed from the beginning."""
    try:
        return len(stream.files) > 1 and len(paths_of(stream)) == len(stream.files)
    except RocekitError:
        return False


def _own_address() -> str | None:
    """This worker's address; None outside of a cluster."""
    from distributed import get_worker

    try:
        address: str = get_worker().address
    except ValueError:
        return None
    return address
