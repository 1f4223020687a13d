"""Which captures there are: from folders, globs, URLs and lists to streams, each of one capture point.

A stream is one capture, or the files into which a capture program wrote one after the other; their names tell
(``capture_names.rotation``).
"""

from __future__ import annotations

import glob
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from rocekit.errors import RocekitError
from rocekit.files.capture_names import Rotation, is_capture_name, rotation
from rocekit.files.joined import join_name, part_name
from rocekit.files.remote import is_remote, listed, split_url

if TYPE_CHECKING:
    from rocekit.files.frames import CapturePart

_WILD: Final = "*?["


class Stream(NamedTuple):
    """The files of one capture, in their order.

    Attributes:
        point: the name of the capture point.
        files: paths or URLs.
        part: the part of it that is meant, of a very large capture; None: all of it.
    """

    point: str
    files: tuple[str, ...]
    part: CapturePart | None = None

    @property
    def name(self) -> str:
        """What every command takes as its FILE."""
        name = join_name(self.files)
        return name if self.part is None else part_name(self.part, name)

    @property
    def key(self) -> str:
        """What stays when the stream grows by a file: the name of its first one."""
        return self.files[0].rpartition("/")[2]


def find_streams(sources: Iterable[str | Path], point: str | None = None) -> list[Stream]:
    """The streams of the sources, sorted.

    Args:
        sources: folders, captures, globs, URLs; ``@FILE`` has one of these a line.
        point: a regular expression; what it finds in a path (its first group, if it has one) names the point.

    Raises:
        RocekitError: a source that is not there, or a pattern that does not fit.
    """
    pattern = _compiled(point)
    places: dict[str, str] = {}
    for source in _lines(sources):
        for name, place in _files_of(source):
            places.setdefault(name, place)
    groups: dict[tuple[str, str, str], list[tuple[Rotation, str]]] = defaultdict(list)
    for name in places:
        folder, _, file = name.rpartition("/")
        turn = rotation(file)
        groups[folder, turn.base, turn.suffix].append((turn, name))
    streams = []
    for (_, base, _), members in groups.items():
        files = tuple(name for _, name in sorted(members))
        below = places[files[0]].rpartition("/")[0]
        place = f"{below}/{base}" if below else base
        streams.append(Stream(place if pattern is None else _found(pattern, files[0]), files))
    again = Counter((s.point, s.key) for s in streams)
    return sorted(s if again[s.point, s.key] == 1 else s._replace(point=_whole(s)) for s in streams)


def _compiled(point: str | None) -> re.Pattern[str] | None:
    try:
        return None if point is None else re.compile(point)
    except re.error as error:
        raise RocekitError(f"--point {point!r} is no regular expression: {error}") from None


def _found(pattern: re.Pattern[str], name: str) -> str:
    hit = pattern.search(name)
    found = "" if hit is None else (hit[1] if pattern.groups else hit[0]) or ""
    if not found:
        raise RocekitError(f"--point {pattern.pattern!r} finds no name in {name}")
    return found


def _whole(stream: Stream) -> str:
    """A point's name where another stream has the same one: with all folders."""
    name = stream.files[0]
    folder, _, file = (split_url(name)[1] if is_remote(name) else name).rpartition("/")
    return f"{folder.lstrip('/')}/{rotation(file).base}"


def _lines(sources: Iterable[str | Path]) -> Iterator[str]:
    for source in map(str, sources):
        if not source.startswith("@"):
            yield source
            continue
        try:
            text = Path(source[1:]).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            words = getattr(error, "strerror", None) or error
            raise RocekitError(f"{source[1:]}: the list cannot be read: {words}") from None
        yield from (own for line in text.splitlines() if (own := line.strip()) and own[0] != "#")


def _files_of(source: str) -> Iterator[tuple[str, str]]:
    """The captures of a source, each with its place below the folders that the source names."""
    named = source
    if is_remote(source):
        names = listed(source)
        is_folder = names != [source]
    elif Path(source := str(Path(source).absolute())).is_dir():  # workers may be in another folder
        names = sorted(str(p) for p in Path(source).rglob("*") if p.is_file())
        is_folder = True
    elif Path(source).exists():
        names, is_folder = [source], False
    elif any(c in source for c in _WILD):
        hits = [Path(hit) for hit in sorted(glob.glob(source, recursive=True))]  # noqa: PTH207 may be absolute
        names = [str(f) for p in hits for f in (sorted(p.rglob("*")) if p.is_dir() else [p]) if f.is_file()]
        is_folder = True
    else:
        raise RocekitError(f"{named}: there is no such file or folder")
    captures = [n for n in names if is_capture_name(n.rpartition("/")[2]) or not is_folder]
    if not captures:
        raise RocekitError(f"{named}: there is no capture (.pcap, .pcapng, .cap, also .gz and .zst)")
    head = _fixed(source) if is_folder else source.rpartition("/")[0]
    for name in captures:
        yield name, name.removeprefix(head).lstrip("/")


def _fixed(source: str) -> str:
    """The folders of a source before its first wildcard."""
    whole = source.rstrip("/")
    wild = min((at for c in _WILD if (at := whole.find(c)) >= 0), default=-1)
    return whole if wild < 0 else whole[:wild].rpartition("/")[0]
