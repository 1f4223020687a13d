"""Reads a pipe in a process of its own, so that the pipe's writer does not wait while this process works.

A pipe holds a megabyte, some milliseconds of a busy link, and a capturing program that must wait drops
packets. A thread would need the interpreter, which is busy. The reader fills a ring of memory that both
processes share; two eventfds count the bytes that came and the bytes that were taken. It ends with the pipe,
or with the process that started it.

This file is also the reader's program, so it imports nothing of rocekit.
"""

from __future__ import annotations

import mmap
import os
import select
import sys
import time
from pathlib import Path

RING_BYTES = 32 << 20
_LITTLE = 1 << 18  # after fewer bytes at once than this, wait for more
_NAP_S = 0.001
_READY = b"r"


class PipeReader:
    """The ring of a pipe that another process reads.

    Args:
        descriptor: the pipe's; the caller goes on reading it until :meth:`takes_over` is true.

    Raises:
        OSError: no process or memory is available, or the system has no eventfds.
    """

    def __init__(self, descriptor: int) -> None:
        import subprocess  # slow to import, and few captures are pipes

        if not hasattr(os, "eventfd") or not Path(__file__).is_file() or not sys.executable:
            raise OSError("no process can be started here that reads a pipe")
        self._descriptors: list[int] = []
        try:
            pipe, memory, self._news, self._room = (
                self._keep(one) for one in (os.dup(descriptor), *self._made())
            )
            os.ftruncate(memory, RING_BYTES)
            self._ring = memoryview(mmap.mmap(memory, RING_BYTES))
            numbers = (pipe, memory, self._news, self._room)
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, *map(str, numbers)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                pass_fds=numbers,
                start_new_session=True,  # Ctrl-C is for the pipe's writer, not for the reader
            )
        except OSError:
            self._forget()
            raise
        os.close(pipe)
        os.close(memory)
        self._descriptors = [self._news, self._room]
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._orders, self._answers = self._process.stdin, self._process.stdout
        self._poll = select.poll()
        self._poll.register(self._news, select.POLLIN)
        self._poll.register(self._answers, select.POLLIN)
        self._place = 0
        self._held = 0
        self._ended = False

    @staticmethod
    def _made() -> tuple[int, int, int]:
        kind = os.EFD_CLOEXEC | os.EFD_NONBLOCK
        return os.memfd_create("rocekit-pipe"), os.eventfd(0, kind), os.eventfd(0, kind)

    def _keep(self, descriptor: int) -> int:
        self._descriptors.append(descriptor)
        return descriptor

    def _forget(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []

    def takes_over(self) -> bool:
        """Whether the reader is ready; from then on only it may read the pipe."""
        ready = select.poll()
        ready.register(self._answers, select.POLLIN)
        if not ready.poll(0) or self._answers.read(1) != _READY:
            return False
        self._orders.write(_READY)
        return True

    def wait(self, timeout_s: float) -> bool:
        """Wait until there are bytes in the ring or the pipe has ended; whether that is so."""
        if not self._held and not self._ended:
            events = dict(self._poll.poll(timeout_s * 1000))
            # In this order, so that bytes before the end are not missed.
            self._ended = self._answers.fileno() in events
            self._held += self._sum()
        return bool(self._held) or self._ended

    def _sum(self) -> int:
        try:
            return os.eventfd_read(self._news)
        except BlockingIOError:
            return 0

    def readinto(self, target: memoryview) -> int:
        """Take bytes from the ring, as many as fit; 0: it is empty.

        Raises:
            OSError: the reader could not read.
        """
        self._held += self._sum()
        got = 0
        while got < len(target) and self._held:
            size = min(self._held, len(target) - got, RING_BYTES - self._place)
            target[got : got + size] = self._ring[self._place : self._place + size]
            self._place = (self._place + size) % RING_BYTES
            self._held -= size
            got += size
        if got:
            os.eventfd_write(self._room, got)
        elif self._ended:
            self._judge()
        return got

    @property
    def ended(self) -> bool:
        """Whether the pipe has ended and the ring is empty."""
        return self._ended and not self._held

    def _judge(self) -> None:
        status = self._process.wait()
        if status:
            # The reader exits with an errno; Python itself with 1, or a negative number after a signal.
            known = status > 1
            words = os.strerror(status) if known else "the process that read the pipe was ended"
            raise OSError(status if known else 0, words)

    def close(self) -> None:
        """End the reader."""
        if not self._descriptors:
            return
        self._process.kill()
        self._process.wait()
        self._orders.close()
        self._answers.close()
        self._ring.release()
        self._forget()


def read_on(pipe: int, memory: int, news: int, room: int) -> int:
    """The reader: from the pipe to the ring, until the pipe ends; returns an errno or 0."""
    ring = memoryview(mmap.mmap(memory, RING_BYTES))
    starter, answers = 0, 1
    os.write(answers, _READY)
    if os.read(starter, 1) != _READY:
        return 0
    # The starter writes nothing more: from now on an event there is its end.
    hungry, full = select.poll(), select.poll()
    hungry.register(pipe, select.POLLIN)
    full.register(room, select.POLLIN)
    for poll in (hungry, full):
        poll.register(starter, select.POLLIN)
    place, free = 0, RING_BYTES
    while True:
        if not free and not full.poll():
            continue
        try:
            free += os.eventfd_read(room)
        except BlockingIOError:
            pass
        if starter in dict((hungry if free else full).poll()):
            return 0
        if not free:
            continue
        try:
            got = os.readv(pipe, [ring[place : place + min(free, RING_BYTES - place)]])
        except OSError as error:
            return error.errno or 1
        if not got:
            return 0
        os.eventfd_write(news, got)
        place = (place + got) % RING_BYTES
        free -= got
        if got < _LITTLE:
            time.sleep(_NAP_S)


if __name__ == "__main__":
    sys.exit(read_on(*map(int, sys.argv[1:])))
