"""The batches of a capture, decoded; those of a large file are decoded in a thread of their own.

Most of that time goes into dissecting and ICRCs, which run without the interpreter's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from queue import SimpleQueue

    from rocekit.files.frames import FrameBatch
    from rocekit.files.read_ahead import ReadAhead
    from rocekit.files.reader import CaptureReader
    from rocekit.packets import Packets
    from rocekit.packets.decoder import Decoder

    #: A batch of frames, its packets, and its frames that are no RoCE packets (``Decoder.others``).
    Decoded = tuple[FrameBatch, Packets, Any]


_TICK_S: Final = 0.01


def decoded(
    reader: CaptureReader,
    decoder: Decoder,
    is_over: Callable[[], bool] = lambda: False,
    *,
    large: bool = False,
) -> Iterator[Decoded]:
    """The batches of a capture, decoded; each holds until the next one is asked for.

    Args:
        is_over: asked between batches; after a yes no more are read, and those decoded by then are given.
        large: the caller takes long for a batch, however few packets it has: make them large.
    """
    if reader.ahead is None:
        for batch in reader:
            yield batch, decoder.decode(batch), decoder.others
            if is_over():
                return
        return
    ahead = _Ahead(reader, reader.ahead, decoder, large=large)
    try:
        yield from ahead.batches(is_over)
    finally:
        ahead.close()


class _Ahead:
    """Decodes one batch while the caller works on the one before."""

    def __init__(self, reader: CaptureReader, chunks: ReadAhead, decoder: Decoder, *, large: bool) -> None:
        from queue import SimpleQueue  # of large files only

        self._batches, self._decoder = iter(reader), decoder
        self._chunks, self._large = chunks, large
        chunks.keeps = True
        self._asked: SimpleQueue[bool] = SimpleQueue()
        self._done: SimpleQueue[Decoded | BaseException | None] = SimpleQueue()
        self._thread = Thread(target=self._decode, name="rocekit decode-ahead", daemon=True)
        self._thread.start()

    def _decode(self) -> None:
        try:
            while self._asked.get():
                batch = next(self._batches, None)
                if batch is None:
                    self._done.put(None)
                    return
                packets = self._decoder.decode(batch)
                self._chunks.fit(0 if self._large else len(batch), self._decoder.numbered)
                self._done.put((batch, packets, self._decoder.others))
        except BaseException as error:  # raised where this batch is asked for
            self._done.put(error)

    def batches(self, is_over: Callable[[], bool]) -> Iterator[Decoded]:
        """Yield what ``decoded`` does."""
        self._asked.put(True)
        last = False
        while not last:
            self._chunks.let_go()  # the caller is done with the batch before
            found = self._done.get()
            if isinstance(found, BaseException):
                raise found
            if found is None:
                return
            last = is_over()
            if not last:
                self._asked.put(True)
            yield found

    def close(self) -> None:
        """End the thread."""
        self._asked.put(False)
        while self._thread.is_alive():
            self._chunks.let_go()  # the thread may wait for one of them
            self._thread.join(_TICK_S)
