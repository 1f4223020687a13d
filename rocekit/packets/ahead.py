"""Batches of a capture and the packets in them; those of a large file are decoded in a thread of its own.

What takes most of the time there, taking headers apart and computing ICRCs, needs no lock of the interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rocekit.files.frames import FrameBatch
    from rocekit.files.read_ahead import ReadAhead
    from rocekit.files.reader import CaptureReader
    from rocekit.packets import Packets
    from rocekit.packets.decoder import Decoder

    #: A batch of frames, its packets, and which of its frames are none (``Decoder.others``).
    Decoded = tuple[FrameBatch, Packets, Any]


_MOMENT_S: Final = 0.01


def decoded(
    reader: CaptureReader, decoder: Decoder, is_over: Callable[[], bool] = lambda: False
) -> Iterator[Decoded]:
    """The batches of a capture, decoded; each holds until the next one is asked for.

    Args:
        is_over: asked between batches; once it says yes, no more are read, and what is decoded by then comes.
    """
    if reader.ahead is None:
        for batch in reader:
            yield batch, decoder.decode(batch), decoder.others
            if is_over():
                return
        return
    ahead = _Ahead(reader, reader.ahead, decoder)
    try:
        yield from ahead.batches(is_over)
    finally:
        ahead.close()


class _Ahead:
    """Decodes one batch while the one before is looked at."""

    def __init__(self, reader: CaptureReader, chunks: ReadAhead, decoder: Decoder) -> None:
        self._batches, self._decoder = iter(reader), decoder
        self._chunks = chunks
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
                self._done.put((batch, self._decoder.decode(batch), self._decoder.others))
        except BaseException as error:  # it belongs to whoever asks for this batch
            self._done.put(error)

    def batches(self, is_over: Callable[[], bool]) -> Iterator[Decoded]:
        """What ``decoded`` gives."""
        self._asked.put(True)
        last = False
        while not last:
            self._chunks.let_go()  # what was given before is looked at no more
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
            self._chunks.let_go()  # it may wait for one of them
            self._thread.join(_MOMENT_S)
