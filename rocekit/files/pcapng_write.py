"""Writes pcapng with nanosecond times and packet comments (draft-ietf-opsawg-pcapng)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from struct import Struct
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from rocekit._version import VERSION
from rocekit.files.frames import LARGEST_FRAME, LINKTYPE_ETHERNET, SECTION_HEADER, FrameBatch
from rocekit.files.growing import GrowingFile
from rocekit.files.new_file import not_written
from rocekit.files.outputs import Together, is_stdout, name_of, writing
from rocekit.files.pcapng import (
    BYTE_ORDER_MAGIC,
    IF_NAME,
    IF_TSRESOL,
    INTERFACE,
    INTERFACE_STATISTICS,
    ISB_OSDROP,
    OPT_COMMENT,
)
from rocekit.files.record_loops import ENHANCED_PACKET, ENHANCED_PACKET_LEAST, copy_frames
from rocekit.standard_output import standard_output

_NANOSECONDS = 9  # if_tsresol: 10^-9 s
_LARGEST_COUNT = (1 << 64) - 1
_SHB_USERAPPL, _ISB_IFRECV = 4, 4

_EPB = Struct("<IIIIIII")
_U32 = Struct("<I")


class PcapngWriter:
    """Writes frames to a pcapng file: one section, with an interface for each link type.

    Args:
        path_or_file: a path (see :class:`~rocekit.files.growing.GrowingFile`), ``-`` for standard output, or
            a file open for writing bytes (not closed here).
        linktype: LINKTYPE of frames given to :meth:`write`.
        snaplen: the limit in the interface's description, bytes.
        interface_name: the name in the interface's description.
        comments: on the capture as a whole.

    Raises:
        CaptureError: the file cannot be written (also from every method).
        BrokenPipeError: the reader of standard output is gone.
    """

    def __init__(
        self,
        path_or_file: str | Path | BinaryIO,
        linktype: int = LINKTYPE_ETHERNET,
        *,
        snaplen: int = LARGEST_FRAME,
        interface_name: str | None = None,
        comments: Sequence[str] = (),
    ) -> None:
        self._snaplen = snaplen
        self._interface_name = interface_name
        self._growing: GrowingFile | None = None
        self._file: Any = path_or_file
        self.name = name_of(path_or_file)
        if is_stdout(path_or_file):
            self._file = standard_output()
        elif isinstance(path_or_file, str | Path):
            self._growing = GrowingFile(path_or_file)
            self._file = self._growing.file
        self._interfaces: dict[int, int] = {}
        self._linktype = linktype
        self.frames = 0
        """Frames written so far."""
        self.size = 0
        """Bytes written so far."""
        options = _option(_SHB_USERAPPL, _application().encode())
        options += b"".join(_option(OPT_COMMENT, _text(comment)) for comment in comments)
        self._block(SECTION_HEADER, Struct("<IHHq").pack(BYTE_ORDER_MAGIC, 1, 0, -1) + options + _END)
        self._interface(linktype)

    def write(
        self, frame: bytes, time_ns: int, *, wirelen: int | None = None, comment: str | None = None
    ) -> None:
        """Writes one frame, captured at ``time_ns`` since the epoch, of ``wirelen`` bytes on the wire."""
        if not 0 <= time_ns < 1 << 64:
            raise ValueError(f"time_ns must fit 64 bits without a sign, not {time_ns}")
        size = len(frame)
        body = Struct("<IIIII").pack(
            self._interface(self._linktype),
            time_ns >> 32,
            time_ns & 0xFFFFFFFF,
            size,
            size if wirelen is None else wirelen,
        )
        body += frame + bytes(-size % 4)
        if comment is not None:
            body += _comments([comment])
        self._block(ENHANCED_PACKET, body)
        self.frames += 1

    def write_batch(self, batch: FrameBatch, comments: Sequence[Sequence[str]] | None = None) -> None:
        """Writes every frame of a batch, in order. Times before the epoch, which pcapng has not, become 0.

        Args:
            comments: those of each frame.
        """
        count = len(batch)
        if not count:
            return
        padded = batch.caplen + 3 & ~3
        total = padded + ENHANCED_PACKET_LEAST
        options: list[bytes] = []
        if comments is not None:
            options = [_comments(texts) for texts in comments]
            sizes = np.array([len(option) for option in options], np.int64)
            total = total + sizes
        after = np.cumsum(total)
        place = after - total
        kinds = {kind: self._interface(kind) for kind in np.unique(batch.linktype).tolist()}
        interface = np.zeros(count, np.int64)
        for kind, number in kinds.items():
            interface[batch.linktype == kind] = number
        stamp = np.maximum(batch.time_ns, 0)
        head = np.empty((count, 7), "<u4")
        columns = (
            ENHANCED_PACKET,
            total,
            interface,
            stamp >> 32,
            stamp & 0xFFFFFFFF,
            batch.caplen,
            batch.wirelen,
        )
        for index, column in enumerate(columns):
            head[:, index] = column
        out = np.zeros(int(after[-1]), np.uint8)
        # Blocks are multiples of four bytes, so that every header word stands at a word of the output.
        words = out.view("<u4")
        words[(place // 4)[:, None] + np.arange(7)] = head
        words[after // 4 - 1] = total
        copy_frames(
            batch.buffer.data,
            batch.offset.tolist(),
            batch.caplen.tolist(),
            out.data,
            (place + _EPB.size).tolist(),
        )
        if options:
            copy_frames(
                memoryview(b"".join(options)),
                (np.cumsum(sizes) - sizes).tolist(),
                sizes.tolist(),
                out.data,
                (place + _EPB.size + padded).tolist(),
            )
        self._put(out.data)
        self.frames += count

    def write_statistics(self, received: int, dropped: int) -> None:
        """Writes the kernel's counts until now: frames that its filter passed, and frames that it dropped.

        May be called again; readers take the last one.
        """
        stamp = time.time_ns()
        options = b""
        for code, count in ((_ISB_IFRECV, received), (ISB_OSDROP, dropped)):
            options += _option(code, Struct("<Q").pack(min(count, _LARGEST_COUNT)))  # sums of a file's counts
        self._block(
            INTERFACE_STATISTICS, Struct("<III").pack(0, stamp >> 32, stamp & 0xFFFFFFFF) + options + _END
        )

    def flush(self) -> None:
        """Writes out what is in memory, for readers of the growing file."""
        with self._named():
            self._file.flush()

    def close(self) -> None:
        """Flushes, and closes the file when it was opened here."""
        if self._growing is not None:
            self._growing.close()
        elif not getattr(self._file, "closed", False):
            self.flush()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Errors name the file; what a growing file has by then stays."""
        try:
            yield
        except OSError as error:
            if self._growing is not None:
                raise self._growing.failed(error) from None
            raise not_written(error, self.name) from None

    def _interface(self, linktype: int) -> int:
        """The number of a link type's interface; writes its description if it is new."""
        number = self._interfaces.get(linktype)
        if number is None:
            number = self._interfaces[linktype] = len(self._interfaces)
            options = _option(IF_TSRESOL, bytes([_NANOSECONDS]))
            if self._interface_name is not None:
                options = _option(IF_NAME, self._interface_name.encode()) + options
            self._block(INTERFACE, Struct("<HHI").pack(linktype, 0, self._snaplen) + options + _END)
        return number

    def _block(self, kind: int, body: bytes) -> None:
        length = _U32.pack(len(body) + 12)
        self._put(_U32.pack(kind) + length + body + length)

    def _put(self, data: bytes | memoryview) -> None:
        with self._named():
            self._file.write(data)
            self.size += len(data)

    def __enter__(self) -> PcapngWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After Ctrl-C a reader that does not read is not waited for: whoever ends the command flushes.
        if kind is None or self._growing is not None:
            self.close()


@contextmanager
def whole_pcapng(files: Together, out: str | Path, comments: Sequence[str] = ()) -> Iterator[PcapngWriter]:
    """A :class:`PcapngWriter` whose file becomes ``out`` when all of ``files`` are complete.

    Raises:
        CaptureError: it cannot be written.
    """
    with writing(out), PcapngWriter(files.open(out), comments=comments) as writer:
        yield writer


_END = bytes(4)  # opt_endofopt


def _option(code: int, value: bytes) -> bytes:
    return Struct("<HH").pack(code, len(value)) + value + bytes(-len(value) % 4)


def _comments(texts: Sequence[str]) -> bytes:
    """The options of a packet with these comments; none without any."""
    return b"".join(_option(OPT_COMMENT, _text(text)) for text in texts) + _END if texts else b""


def _text(comment: str) -> bytes:
    """A comment's bytes, cut to what an option can hold."""
    text = comment.encode(errors="replace")
    return text if len(text) <= 0xFFFF else text[:0xFFFF].decode(errors="ignore").encode()


def _application() -> str:
    return f"rocekit {VERSION}"
