"""Reading a file on in a thread, while what was read is looked at: the kernel's copying needs no lock."""

from __future__ import annotations

from queue import SimpleQueue
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rocekit.files.source import ByteSource

HEADROOM: Final = 1 << 18  # in front of each chunk: for what is left of the one before, a frame mostly
_BUFFERS: Final = 3  # one that is looked at, one that is full or taken apart, one that is being filled

Bytes = NDArray[np.uint8]


class ReadAhead:
    """Chunks of a source, each in a buffer behind ``HEADROOM`` bytes of room.

    Args:
        source: asked from the thread alone from now on; it must not wait for anything but a disk.
        chunk: bytes to ask for at once.
    """

    def __init__(self, source: ByteSource, chunk: int) -> None:
        self._source = source
        self._free: SimpleQueue[Bytes | None] = SimpleQueue()
        self._full: SimpleQueue[tuple[Bytes, int] | BaseException] = SimpleQueue()
        self._over = Event()
        for _ in range(_BUFFERS):
            self._free.put(np.empty(HEADROOM + chunk, np.uint8))
        self._held: Bytes | None = None
        self._passed: SimpleQueue[Bytes] = SimpleQueue()
        self.keeps = False
        """Whether chunks that were passed are kept until ``let_go``, for one who still looks at them."""
        self._thread = Thread(target=self._read, name="rocekit read-ahead", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while (array := self._free.get()) is not None and not self._over.is_set():
            try:
                got = self._source.readinto(array.data[HEADROOM:]) or 0
            except BaseException as error:  # it belongs to whoever asks for this chunk
                self._full.put(error)
                return
            self._full.put((array, got))
            if not got:
                return

    def take(self) -> tuple[Bytes, int]:
        """The next chunk's buffer, and how many bytes it has (0: the end). The one before is used again."""
        if self._held is not None:
            self._passed.put(self._held)
            self._held = None
            if not self.keeps:
                self.let_go()
        chunk = self._full.get()
        if isinstance(chunk, BaseException):
            raise chunk
        self._held = chunk[0]
        return chunk

    def let_go(self) -> None:
        """Use the chunks again that were passed."""
        while not self._passed.empty():
            self._free.put(self._passed.get())

    def close(self) -> None:
        """End the thread; the source is nobody's then."""
        self._over.set()
        self._free.put(None)
        self._thread.join()
