"""Names that stand for several files, or for a part of what is in one.

``rotated:FIRST..LAST`` are files into which one capture was written, one after the other, read as one.
``LAST`` is in the folder of ``FIRST``. The files are those of the rotation from the one to the other, as
their names order them (see ``capture_names.rotation``). Frames are numbered through.

``part:K/N:FILE`` has the packets of every N-th pair of hosts. The pairs are counted as they first appear in
FILE, so all packets between two hosts are in one part, with the frame numbers that they have in FILE. Frames
that are no RoCE packets are in every part. The decoder, which reads addresses, decides what is in a part.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Final

from rocekit.errors import CaptureError, RocekitError
from rocekit.files.capture_names import rotation
from rocekit.files.frames import CapturePart, DamageLog, FrameBatch
from rocekit.files.remote import beside, is_remote

PREFIX: Final = "rotated:"
_TO: Final = ".."
_PART: Final = re.compile(r"part:(\d{1,6})/(\d{1,6}):(.+)", re.DOTALL)


def join_name(files: Sequence[str]) -> str:
    """The name of the files of one rotation, in order; of one file its own."""
    if len(files) == 1:
        return files[0]
    return f"{PREFIX}{files[0]}{_TO}{files[-1].rpartition('/')[2]}"


def is_joined(name: object) -> bool:
    """Whether a name stands for the files of a rotation."""
    return str(name).startswith(PREFIX) and _TO in str(name) and not Path(str(name)).exists()


def joined_files(name: str) -> list[str]:
    """The files that a name stands for, in order; one name without ``rotated:`` stands for itself.

    Raises:
        CaptureError: they are not there, or not of one rotation.
    """
    if not is_joined(name):
        return [name]
    first, _, last = name.removeprefix(PREFIX).rpartition(_TO)
    folder, slash, begin = first.rpartition("/")
    low, high = rotation(begin), rotation(last)
    if low.base != high.base:
        raise CaptureError(f"{begin} and {last} are not files of one rotation", file=name)
    if is_remote(first):
        names = [url.rpartition("/")[2] for url in beside(first)]
    else:
        try:
            names = [path.name for path in Path(folder or ("/" if slash else ".")).iterdir()]
        except OSError as error:
            raise CaptureError(f"cannot be read: {error.strerror}", file=name) from None
    own = {n: r for n in names if (r := rotation(n)).base == low.base and r.suffix == low.suffix}
    for wanted in (begin, last):
        if wanted not in own:
            raise CaptureError(f"there is no file {wanted}", file=name)
    chosen = sorted((r, n) for n, r in own.items() if low <= r <= high)
    if not chosen:
        raise CaptureError(f"{begin} was written after {last}: name the first file first", file=name)
    return [f"{folder}{slash}{n}" for _, n in chosen]


class JoinedReader:
    """The files of a rotation as one capture; has what ``CaptureReader`` has.

    Args:
        opens: opens one file as a ``CaptureReader``.
        names: the files, in order, at least one; unless it is a list, they are asked for one after the other.
    """

    def __init__(self, opens: Callable[[str], Any], names: Iterable[str], *, file: int) -> None:
        self.file = file
        self.files: list[str] = []
        self._every_file = names if isinstance(names, list) else None
        self.damage = DamageLog()
        self.comments: dict[int, tuple[str, ...]] = {}
        self.skipped: Mapping[int, int] = {}
        self.dropped: int | None = None
        self.frames = 0
        self.bytes_read = 0
        self.ahead = None
        self._opens = opens
        self._stopped = False
        self._names = iter(names)
        self.files.append(next(self._names))
        self._now = opens(self.files[0])
        self.format = self._now.format
        self._batches = self._every()

    @property
    def name(self) -> str:
        return join_name(self._every_file or self.files)

    @property
    def size(self) -> int | None:
        files = self._every_file or []
        sizes = [Path(f).stat().st_size for f in files if Path(f).is_file()]
        return sum(sizes) if files and len(sizes) == len(files) else None

    def _every(self) -> Iterator[FrameBatch]:
        base = read = 0
        for number, name in enumerate(chain(self.files[:1], self._names)):
            if number:
                self.files.append(name)
                try:
                    self._now = self._opens(name)
                except CaptureError as error:
                    self.damage.note(0, str(error))  # one bad file does not end the others
                    continue
            with self._now as reader:
                for batch in reader:
                    self.frames = base + reader.frames
                    self.bytes_read = read + reader.bytes_read
                    yield replace(batch, number=batch.number + base) if base and len(batch) else batch
                    if self._stopped:
                        return
                self._conclude(reader, name, base)
                base += reader.frames
                read += reader.bytes_read
                self.frames, self.bytes_read = base, read

    def _conclude(self, reader: Any, name: str, base: int) -> None:
        for damage in reader.damage:
            self.damage.note(damage.offset, f"{name.rpartition('/')[2]}: {damage.message}")
        self.damage.total += reader.damage.total - len(reader.damage)
        self.comments.update((base + n, words) for n, words in reader.comments.items())
        self.skipped = {**self.skipped, **{k: self.skipped.get(k, 0) + n for k, n in reader.skipped.items()}}
        if reader.dropped is not None:
            self.dropped = (self.dropped or 0) + reader.dropped

    def __iter__(self) -> Iterator[FrameBatch]:
        return self._batches

    def stop(self) -> None:
        """End after the batch that is read now."""
        self._stopped = True
        self._now.stop()

    def close(self) -> None:
        self._now.close()

    def __enter__(self) -> JoinedReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def part_name(part: CapturePart, file: str) -> str:
    """The name of a part of a capture."""
    return f"part:{part.number}/{part.of}:{file}"


def is_part(name: object) -> bool:
    """Whether a name stands for a part of a capture."""
    text = str(name)
    return text.startswith("part:") and _PART.fullmatch(text) is not None and not Path(text).exists()


def split_part(name: str) -> tuple[CapturePart, str]:
    """The part that a name stands for, and the name of the whole capture.

    Raises:
        CaptureError: there is no such part.
    """
    found = _PART.fullmatch(name)
    if found is None:
        raise CaptureError("this is no name of a part: write part:1/4:FILE", file=name)
    part = CapturePart(int(found[1]), int(found[2]))
    if not 1 <= part.number <= part.of:
        raise CaptureError(f"there is no part {part.number} of {part.of}: they count from 1", file=name)
    return part, found[3]


def whole_name(name: str) -> str:
    """The name of the capture of which a name is a part; any other name stays."""
    return split_part(name)[1] if is_part(name) else name


class PartReader:
    """A reader whose batches say which part of the capture is wanted; has what ``CaptureReader`` has."""

    def __init__(self, name: str, reader: Any, part: CapturePart) -> None:
        self.name = name
        self._reader, self._part = reader, part
        self._batches = self._every()

    def _every(self) -> Iterator[FrameBatch]:
        for batch in self._reader:
            yield replace(batch, part=self._part)

    def __iter__(self) -> Iterator[FrameBatch]:
        return self._batches

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def __enter__(self) -> PartReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()


class CannotGoOn(RocekitError):
    """What was read of a rotation is needed again, and more of it is to come."""


class Growing:
    """Stands for the files of a rotation as ``rotated:FIRST..LAST`` does; ``str()`` is that name, until now.

    Args:
        names: the files, in their order. It ends when no more are to be read.
    """

    def __init__(self, names: Iterator[str]) -> None:
        self._files: list[str] = []
        self._names = names
        self._begun = self._ended = False

    def __str__(self) -> str:
        return join_name(self._files or ["a rotation"])

    def open(self, opens: Callable[[str], Any], file: int) -> JoinedReader:
        """A reader of the files; of all of them once they have ended.

        Raises:
            CannotGoOn: they are read a second time before their end.
        """
        if self._begun and not self._ended:
            raise CannotGoOn(f"{self}: is to be read again before its end")
        again, self._begun = self._begun, True
        return JoinedReader(opens, list(self._files) if again else self._every(), file=file)

    def _every(self) -> Iterator[str]:
        for name in self._names:
            self._files.append(name)
            yield name
        self._ended = True
