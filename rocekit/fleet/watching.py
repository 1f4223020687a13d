"""Sources that are still written to: which streams are new or have grown, and rest now."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rocekit.errors import RocekitError
from rocekit.files.remote import is_remote, remote_state
from rocekit.fleet.stream_tables import paths_of
from rocekit.fleet.streams import Stream, find_streams

State = tuple[object, ...]


class Watcher:
    """Looks at sources again and again.

    Attributes:
        grown: of the streams that were due last, rotations that were due before with fewer files.
    """

    def __init__(self, sources: Iterable[str], point: str | None = None) -> None:
        self._sources, self._point = list(sources), point
        self._last: dict[str, State] = {}
        self._taken: dict[tuple[str, str], tuple[Stream, list[State]]] = {}
        self.grown: frozenset[Stream] = frozenset()

    def due(self) -> list[Stream]:
        """The streams that are as they were at the look before, and were not taken like this.

        Of a rotation whose last file is still written to, the files before it are due.
        """
        try:
            streams = find_streams(self._sources, self._point)
        except RocekitError:  # nothing is there yet
            streams = []
        now: dict[str, State] = {}
        due, grown = [], set()
        for stream in streams:
            paths = _paths(stream)
            states = {path: state for path in paths if (state := state_of_file(path)) is not None}
            now |= states
            rests = [path for path in paths if path in states and self._last.get(path) == states[path]]
            if len(rests) < len(paths) and paths == list(stream.files) and rests == paths[:-1] and rests:
                stream, paths = stream._replace(files=tuple(rests)), rests
            if not paths or len(rests) < len(paths):
                continue
            key, own = (stream.point, stream.key), [states[path] for path in paths]
            before = self._taken.get(key)
            if (
                before is not None
                and before[1][: len(own)] == own
                and before[0].files[: len(own)] == stream.files
            ):
                continue  # as it is, or with a last file that is written to again
            if before is not None and len(before[0].files) < len(stream.files):
                grown.add(stream)
            self._taken[key] = stream, own
            due.append(stream)
        self._last, self.grown = now, frozenset(grown)
        return due


def _paths(stream: Stream) -> list[str]:
    """A stream's files and journals; none while they cannot be listed."""
    try:
        return [str(path) for path in paths_of(stream)]
    except RocekitError:
        return []


def state_of_file(path: str) -> State | None:
    """What changes when a file does; None while it cannot be looked at."""
    try:
        if is_remote(path):
            return remote_state(path)
        status = Path(path).stat()
    except (OSError, RocekitError):
        return None
    return status.st_size, status.st_mtime_ns
