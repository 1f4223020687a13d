"""Frames that come now, written as pcapng with the story of each packet as its comments, for Wireshark."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from rocekit.errors import CaptureError
from rocekit.files.frames import LINKTYPE_ETHERNET, FrameBatch, empty_batch
from rocekit.files.pcapng_write import PcapngWriter
from rocekit.live.frame_stories import FrameStories

#: How long a stream may be silent before packets that are held back are given.
_TICK_S: Final = 0.1
#: Batches that wait for their story: then the stream's writer waits.
_WAITING: Final = 16


class Source(Protocol):
    """Frames as they come, with empty batches when nothing comes."""

    def __iter__(self) -> Iterator[FrameBatch]: ...


class StreamSource:
    """The batches of a capture that is being written, such as another program's output, with a tick.

    Reading it blocks, so a thread does it.

    Args:
        batches: of a capture reader.
    """

    def __init__(self, batches: Iterable[FrameBatch]) -> None:
        self._batches = batches
        self._waiting: queue.Queue[FrameBatch | CaptureError | None] = queue.Queue(_WAITING)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            for batch in self._batches:
                self._waiting.put(batch.copied())
            self._waiting.put(None)
        except CaptureError as error:
            self._waiting.put(error)

    def __iter__(self) -> Iterator[FrameBatch]:
        while True:
            try:
                item = self._waiting.get(timeout=_TICK_S)
            except queue.Empty:
                yield empty_batch()
                continue
            if item is None:
                return
            if isinstance(item, CaptureError):
                raise item
            yield item


def write_commented(
    source: Source,
    out: str | Path | BinaryIO,
    *,
    linktype: int = LINKTYPE_ETHERNET,
    interface_name: str | None = None,
    stories: bool = True,
) -> int:
    """Write frames as they come, each batch at once.

    A batch waits only while a packet of it may have been sent after one that comes later.

    Args:
        out: a file open for writing, such as a FIFO.
        stories: whether packets get comments.

    Returns:
        how many frames were written.

    Raises:
        CaptureError: the source ends with an error, or ``out`` cannot be written. What came before is
            written.
        BrokenPipeError: the reader of ``out`` is gone.
    """
    tells = FrameStories() if stories else None
    held: list[FrameBatch] = []
    writer = PcapngWriter(out, linktype, interface_name=interface_name)
    writer.flush()  # so that the reader sees at once that something captures

    def write(batches: Iterable[FrameBatch]) -> None:
        for batch in batches:
            writer.write_batch(batch, None if tells is None else tells.of(batch))
        writer.flush()

    try:
        for batch in source:
            if tells is None:
                write([batch])
            elif not len(batch):
                tells.rest()
                write(held)
                held.clear()
            else:
                tells.take(batch)
                if tells.holds:
                    held.append(batch.copied())
                else:
                    write([*held, batch])
                    held.clear()
    finally:
        if tells is not None and held:
            tells.rest()
            write(held)
    return writer.frames
