"""Reads a file in a thread while the caller works: the kernel copies without the interpreter's lock.

The chunks are small where that costs nothing: what is made of them takes as much memory again and again, and
a kernel takes longer to hand out memory than to clear it where a hypervisor must find it first.
"""

from __future__ import annotations

from queue import SimpleQueue
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rocekit.files.source import ByteSource

HEADROOM: Final = 1 << 18  # before each chunk: room for the unused end of the chunk before, mostly a frame
_FIRST: Final = 2 << 20  # bytes asked for at first
_FRAMES: Final = 12_000  # a batch takes a time of its own, which is little beside that of so many frames
_OF_A_FLOW: Final = 8  # each flow in a batch does, too, beside so many frames of it
_BUFFERS: Final = 3  # one in use, one that is full or being decoded, one that is being filled

Bytes = NDArray[np.uint8]


class ReadAhead:
    """Chunks of a source, each in a buffer after ``HEADROOM`` free bytes.

    Args:
        source: only the thread reads it from now on; it must wait for nothing but a disk.
        chunk: the most bytes to ask for at once.
    """

    def __init__(self, source: ByteSource, chunk: int) -> None:
        self._source = source
        self._most, self._ask = chunk, min(_FIRST, chunk)
        self._free: SimpleQueue[tuple[Bytes, int] | None] = SimpleQueue()
        self._full: SimpleQueue[tuple[Bytes, int] | BaseException] = SimpleQueue()
        self._over = Event()
        for _ in range(_BUFFERS):
            self._free.put((np.empty(HEADROOM + self._ask, np.uint8), self._ask))
        self._held: Bytes | None = None
        self._passed: SimpleQueue[tuple[Bytes, int]] = SimpleQueue()
        self.keeps = False
        """Whether chunks behind the current one are kept until ``let_go``, because they are still in use."""
        self._thread = Thread(target=self._read, name="rocekit read-ahead", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while (free := self._free.get()) is not None and not self._over.is_set():
            array, ask = free
            if len(array) < HEADROOM + ask:
                array = np.empty(HEADROOM + ask, np.uint8)
            try:
                got = self._source.readinto(array.data[HEADROOM : HEADROOM + ask]) or 0
            except BaseException as error:  # raised where this chunk is taken
                self._full.put(error)
                return
            self._full.put((array, got))
            if not got:
                return

    def take(self) -> tuple[Bytes, int]:
        """The next chunk's buffer and its bytes (0: the end). The one before is reused (see ``keeps``)."""
        if self._held is not None:
            self._passed.put((self._held, self._ask))
            self._held = None
            if not self.keeps:
                self.let_go()
        chunk = self._full.get()
        if isinstance(chunk, BaseException):
            raise chunk
        self._held = chunk[0]
        return chunk

    def let_go(self) -> None:
        """Reuse the buffers of the chunks before the current one."""
        while not self._passed.empty():
            self._free.put(self._passed.get())

    def fit(self, frames: int, flows: int = 0) -> None:
        """Ask for more bytes from now on if the current chunk has few frames, or few of each flow."""
        if self._held is not None and frames < max(_FRAMES, _OF_A_FLOW * flows):
            self._ask = min(2 * self._ask, self._most)

    def close(self) -> None:
        """End the thread, which then no longer reads the source."""
        self._over.set()
        self._free.put(None)
        self._thread.join()
