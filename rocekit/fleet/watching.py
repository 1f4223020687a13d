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
    """Looks at sources again and again."""

    def __init__(self, sources: Iterable[str], point: str | None = None) -> None:
        self._sources, self._point = list(sources), point
        self._last: dict[Stream, State] = {}
        self._taken: dict[Stream, State] = {}

    def due(self) -> list[Stream]:
        """The streams that are as they were at the look before, and were not taken like this."""
        try:
            streams = find_streams(self._sources, self._point)
        except RocekitError:  # nothing is there yet
            streams = []
        now = {stream: state for stream in streams if (state := _state(stream)) is not None}
        due = [s for s, state in now.items() if self._last.get(s) == state and self._taken.get(s) != state]
        self._last = now
        self._taken |= {stream: now[stream] for stream in due}
        return due


def _state(stream: Stream) -> State | None:
    """What changes when a stream's files do; None while they cannot be looked at."""
    found: list[object] = []
    try:
        for path in paths_of(stream):
            if is_remote(path):
                found.append((str(path), *remote_state(str(path))))
            else:
                status = Path(path).stat()
                found.append((str(path), status.st_size, status.st_mtime_ns))
    except (OSError, RocekitError):
        return None
    return tuple(found)
