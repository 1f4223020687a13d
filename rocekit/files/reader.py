"""Where frames come from: pcap and pcapng files, pipes, standard input, a live interface.

    with open_capture("x.pcapng") as capture:
        for batch in capture:
            ...

A reader yields batch after batch, in file order, in one buffer that it reuses. What cannot be read is noted
in ``damage``, and everything else is yielded; only a file that is no capture, or whose link type cannot have
RoCE, is a :class:`rocekit.errors.CaptureError`. The formats are in :mod:`rocekit.files.pcap` and
:mod:`rocekit.files.pcapng`, live interfaces in :mod:`rocekit.files.interface`, writing in
:mod:`rocekit.files.pcapng_write`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, cast

from rocekit.errors import CaptureError
from rocekit.files.frames import (
    SECTION_HEADER,
    DamageLog,
    FrameBatch,
)
from rocekit.files.joined import (
    Growing,
    JoinedReader,
    PartReader,
    is_joined,
    is_part,
    joined_files,
    split_part,
)
from rocekit.files.pcap import MAGICS, PcapFrames
from rocekit.files.source import RawSource
from rocekit.files.window import CHUNK, Window, open_source

if TYPE_CHECKING:
    from rocekit.files.pcapng import PcapngFrames
    from rocekit.files.read_ahead import ReadAhead
    from rocekit.files.spool import Spool

# Other files with packets, by their first bytes.
_OTHERS = {
    b"\xa1\xb2\xcd\x34": "a pcap file of Kuznetzov's modified format",
    b"\x34\xcd\xb2\xa1": "a pcap file of Kuznetzov's modified format",
    b"snoop\0\0\0": "a Solaris snoop file",
    b"RTSS": "a Microsoft Network Monitor 1 file",
    b"GMBU": "a Microsoft Network Monitor 2 file",
    b"TRSNIFF data": "a Sniffer file",
    b"XCP\0": "a NetXRay file",
}
_PACKED = {b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"PK\x03\x04": "zip", b"\x04\x22\x4d\x18": "lz4"}


class CaptureReader:
    """One capture being read; iterate it once for its batches.

    Made by :func:`open_capture`. While it is iterated:

    - ``name``, ``format`` ("pcap" or "pcapng"), ``size`` in bytes (None: a pipe, a growing file);
    - ``bytes_read`` of those, before any unpacking, for a progress bar;
    - ``frames`` so far, with those of unsupported link types (``skipped``: link type to count);
    - ``comments``: frame number to that frame's comments;
    - ``dropped``: frames that the capturing program says it dropped; None if it does not say;
    - ``damage``: what could not be read, in file order; ``damage.total`` also counts what is not in the list.
    """

    def __init__(
        self, raw: RawSource, window: Window, *, file: int, follow: bool, batch_frames: int, comments: bool
    ) -> None:
        self.name = raw.name
        self.file = file
        self.damage = DamageLog()
        self._raw = raw
        self._window = window
        while window.end - window.start < 12 and (window.more() or not window.ended):
            pass
        head = bytes(window.view[window.start : min(window.end, window.start + 16)])
        arguments = (window, self.name, file, self.damage, batch_frames, follow)
        self._frames: PcapFrames | PcapngFrames
        if head[:4] in MAGICS:
            self.format = "pcap"
            self._frames = PcapFrames(*arguments)
        elif head[:4] == SECTION_HEADER.to_bytes(4, "big") and head[8:12] in _ORDERS:
            from rocekit.files.pcapng import PcapngFrames

            self.format = "pcapng"
            self._frames = PcapngFrames(*arguments)
            self._frames.reads_comments = comments
        else:
            raise CaptureError(_no_capture(head, window), file=self.name)
        self._batches = iter(self._frames)

    @property
    def size(self) -> int | None:
        return self._raw.size

    @property
    def bytes_read(self) -> int:
        return self._raw.bytes_read

    @property
    def frames(self) -> int:
        return self._frames.frames

    @property
    def comments(self) -> Mapping[int, tuple[str, ...]]:
        return self._frames.comments

    @property
    def skipped(self) -> Mapping[int, int]:
        return self._frames.skipped

    @property
    def dropped(self) -> int | None:
        return self._frames.dropped

    def __iter__(self) -> Iterator[FrameBatch]:
        return self._batches

    @property
    def ahead(self) -> ReadAhead | None:
        """The thread that reads the file, if it is large."""
        return self._window.ahead

    def stop(self) -> None:
        """End a reader that follows a growing file or a pipe, after what is there now."""
        self._raw.stop()

    def close(self) -> None:
        self._window.close()
        self._raw.close()

    def __enter__(self) -> CaptureReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_ORDERS = (b"\x4d\x3c\x2b\x1a", b"\x1a\x2b\x3c\x4d")


def open_capture(
    source: str | Path | BinaryIO | Growing,
    *,
    file: int = 0,
    follow: bool = False,
    batch_frames: int = 65536,
    chunk_bytes: int = CHUNK,
    spool: Spool | None = None,
    comments: bool = True,
) -> CaptureReader:
    """Open a pcap or pcapng capture, also in gzip or zstd; the first bytes decide, not the name.

    Args:
        source: a path, a URL (see ``remote``), ``rotated:FIRST..LAST`` (see ``joined``),
            ``part:K/N:FILE`` (see ``joined``), ``-`` for standard input, an open binary file, or a rotation
            that grows.
        file: the capture's place among those analysed together; it is in every batch.
        follow: the file may still grow: wait at its end, giving empty batches, until ``stop()``.
        batch_frames: the most frames in a batch.
        chunk_bytes: bytes read at once.
        spool: gets every byte that is read, for a second reading of a stream.
        comments: whether frames' comments are read.

    Raises:
        CaptureError: no such file, not a capture, or a link type that cannot have RoCE.
        ValueError: ``batch_frames`` or ``chunk_bytes`` too small.
    """
    if batch_frames < 1 or chunk_bytes < 64:
        raise ValueError("batch_frames must be at least 1 and chunk_bytes at least 64")
    if isinstance(source, str | Path) and is_part(source):
        part, whole = split_part(str(source))
        reader = open_capture(
            whole,
            file=file,
            batch_frames=batch_frames,
            chunk_bytes=chunk_bytes,
            spool=spool,
            comments=comments,
        )
        return cast("CaptureReader", PartReader(str(source), reader, part))

    def opens(name: str) -> CaptureReader:
        return open_capture(
            name,
            file=file,
            batch_frames=batch_frames,
            chunk_bytes=chunk_bytes,
            spool=spool,
            comments=comments,
        )

    if isinstance(source, Growing):
        return cast("CaptureReader", source.open(opens, file))
    if isinstance(source, str | Path) and is_joined(source):
        return cast("CaptureReader", JoinedReader(opens, joined_files(str(source)), file=file))
    raw, window = None, None
    try:
        raw, window = open_source(source, follow=follow, chunk=chunk_bytes, spool=spool)
        return CaptureReader(
            raw, window, file=file, follow=follow, batch_frames=batch_frames, comments=comments
        )
    except BaseException:
        if window is not None:
            window.close()
        if raw is not None:
            raw.close()
        raise


def _no_capture(head: bytes, window: Window) -> str:
    """Why these first bytes are no capture, and what to do."""
    if not head:
        return window.problem or "the file is empty: nothing was captured, so there is nothing to judge"
    for magic, what in _OTHERS.items():
        if head.startswith(magic):
            return f"this is {what}, which rocekit does not read: convert it with `editcap -F pcapng IN OUT`"
    for magic, what in _PACKED.items():
        if head.startswith(magic):
            return f"packed with {what}; rocekit unpacks gzip and zstd only: unpack it first"
    if window.ended and len(head) < 12:
        return f"not a capture: its {len(head)} bytes are neither pcap nor pcapng"
    return "not a capture: it begins neither as pcap nor as pcapng"
