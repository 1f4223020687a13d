"""Having a running program load the interposer itself, in one of its verbs calls, and letting go of it.

Nothing is called in a thread that was stopped: it might hold the lock of the allocator or of the dynamic
linker. A thread of the program is stopped only to map memory and to exchange pointers, a few
instructions, and the program's next post or poll goes through the way in (``way_in.S``), which loads the
library as the program itself might.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from rocekit.record.attach import way_in
from rocekit.record.attach.stopped_thread import StoppedThread
from rocekit.record.attach.symbols import function
from rocekit.record.attach.target import AttachError, RunningProgram
from rocekit.record.attach.verbs_objects import CALLS, ExtendedObject, OpenContext, Search
from rocekit.record.attach.way_in import Place, WayLayout

_MMAP, _MPROTECT, _MUNMAP = 9, 10, 11
_READ_WRITE, _READ_EXECUTE = 3, 5
_PRIVATE_ANONYMOUS: Final = 0x22
_SYSCALL: Final = b"\x0f\x05"
_MOST: Final = way_in.MOST_ENTRIES // 2
"""Places for ways in; as many again for detaching."""
_ROOM: Final = 512
"""Work requests between wr_start and wr_complete that are kept of a QP that was made before."""
_MOST_CONTEXTS: Final = 255
_LONGEST_PATH: Final = 1024 - 64
_LIBRARY: Final = "interposer"
"""In the name of every build of the library."""
_REFUSED: Final = {
    1: "the library is of another version of rocekit",
    2: "it is recorded already, or there is no room for its rings",
    3: "its devices were closed meanwhile",
}


class Attachment:
    """A way into a process.

    Args:
        target: the process.
        library: the interposer.
        folders: where its rings go.
        slots: of each ring. rings: how many.

    Raises:
        AttachError: it uses no verbs now, or is recorded already.
    """

    def __init__(
        self, target: RunningProgram, library: Path, folders: Sequence[Path], slots: int, rings: int
    ) -> None:
        self._target = target
        self._library, self._folders, self._slots, self._rings = library, list(folders), slots, rings
        self._layout: WayLayout | None = None
        self._places: list[Place] = []
        self._ending = False
        self._verbs = target.library("libibverbs")
        if not target.alive():
            raise AttachError(f"process {target.pid} ended before it was attached to")
        if self._verbs is None:
            raise AttachError(
                f"process {target.pid} ({target.exe}) has not loaded libibverbs, whose calls are recorded"
            )
        loaded = {
            mapping.path for mapping in target.mappings() if _LIBRARY in mapping.path.rpartition("/")[2]
        }
        if loaded and target.variable("ROCEKIT_RECORD_FOLDER") is not None:
            raise AttachError(f"process {target.pid} is recorded already")
        self._contexts, self._qps, self._cqs = self._objects()
        if not self._contexts:
            raise AttachError(f"process {target.pid} ({target.exe}) has no verbs device open now")
        if len(self._contexts) > _MOST_CONTEXTS:
            raise AttachError(f"process {target.pid} has more than {_MOST_CONTEXTS} verbs devices open")
        if any(self._in_library(address) for context in self._contexts for address in context.calls.values()):
            raise AttachError(f"process {target.pid} is recorded already")
        self._functions = self._find_functions()
        self._system_call = self._find_system_call()

    def _objects(self) -> tuple[list[OpenContext], list[ExtendedObject], list[ExtendedObject]]:
        search = Search(self._target)
        contexts = search.contexts()
        return (contexts, *(search.extended(contexts) if contexts else ([], [])))

    def _in_library(self, address: int) -> bool:
        return any(
            mapping.start <= address < mapping.end and _LIBRARY in mapping.path.rpartition("/")[2]
            for mapping in self._target.mappings()
        )

    def _find_functions(self) -> list[int]:
        """__errno_location, dlopen, dlsym and dlerror in the process."""
        bases = [
            found.start for name in ("libc", "libdl") if (found := self._target.library(name)) is not None
        ]
        addresses = []
        for name in ("__errno_location", "dlopen", "dlsym", "dlerror"):
            address = next((at for base in bases if (at := function(self._target, base, name))), 0)
            if not address:
                raise AttachError(
                    f"process {self._target.pid}: there is no {name} in its C library: glibc is needed"
                )
            addresses.append(address)
        return addresses

    def _find_system_call(self) -> int:
        """The address of an instruction that makes a system call."""
        for mapping in self._target.mappings():
            if mapping.code and mapping.path.rpartition("/")[2].startswith("libc"):
                at = self._target.read(mapping.start, mapping.end - mapping.start).find(_SYSCALL)
                if at >= 0:
                    return mapping.start + at
        raise AttachError(f"process {self._target.pid}: there is no C library in it")

    # ------------------------------------------------------------------ in

    def begin(self) -> None:
        """Put the ways in; the program's next post or poll goes through one.

        Raises:
            AttachError: it cannot be done; the program is as it was.
        """
        request = self._request_bytes()
        size = WayLayout(0, len(request)).end
        with StoppedThread(self._target) as thread:
            base = thread.call_kernel(
                self._system_call, _MMAP, 0, size, _READ_WRITE, _PRIVATE_ANONYMOUS, (1 << 64) - 1, 0
            )
        layout = WayLayout(base, len(request))
        # A program needs no more than one that it uses.
        self._places = [*self._of_contexts(CALLS), *self._of_extended()][:_MOST]
        ways = [(place.at, place.own, layout.entry(k)) for k, place in enumerate(self._places)]
        self._fill(layout, request)
        with StoppedThread(self._target) as thread:
            try:
                thread.call_kernel(
                    self._system_call, _MPROTECT, layout.code, layout.code_end - layout.code, _READ_EXECUTE
                )
            except AttachError:
                thread.call_kernel(self._system_call, _MUNMAP, base, size)
                raise
            self._layout = layout
            self._exchange(thread, layout, ways)

    def _of_contexts(self, calls: Iterable[str]) -> list[Place]:
        return [Place(c.place(call), c.calls[call]) for c in self._contexts for call in calls]

    def _of_extended(self) -> list[Place]:
        return [Place(found.place, found.own) for found in (*self._cqs, *self._qps)]

    def _request_bytes(self) -> bytes:
        # A path that is too long for the interposer is as none.
        spill, folder = (
            path if len(path) < _LONGEST_PATH else b""
            for path in (
                os.fsencode(self._folders[1]) if len(self._folders) > 1 else b"",
                os.fsencode(self._folders[0]),
            )
        )
        head = way_in.REQUEST.pack(
            *(way_in.LAYOUT, len(self._contexts), len(self._qps), len(self._cqs)),
            *(self._slots, self._rings, 0, 0, 0, self._verbs.start if self._verbs else 0),
            *([0] * 7),
            *(folder, spill),
        )
        contexts = b"".join(
            way_in.CONTEXT.pack(c.address, *(c.calls[call] for call in CALLS)) for c in self._contexts
        )
        extended = b"".join(
            way_in.EXTENDED.pack(found.address, found.own, found.number, _ROOM)
            for found in (*self._qps, *self._cqs)
        )
        return head + contexts + extended

    def _fill(self, layout: WayLayout, request: bytes) -> None:
        raw = bytearray(request)
        raw[32:48] = layout.code.to_bytes(8, "little") + layout.code_end.to_bytes(8, "little")
        texts = os.fsencode(self._library) + b"\0", b"record_attach\0"
        path = layout.base + way_in.DOOR.size
        door = way_in.DOOR.pack(
            *(way_in.MARK, way_in.OPEN, 0, 0, 0, 0, layout.end, *self._functions),
            *(path, path + len(texts[0]), layout.request),
        )
        self._target.write(layout.base, door + b"".join(texts))
        self._target.write(layout.request, bytes(raw))
        self._target.write(layout.rows, way_in.rows_of(layout, self._places))
        self._target.write(layout.code, way_in.code_of(layout))

    def _exchange(
        self, thread: StoppedThread, layout: WayLayout, pointers: Iterable[tuple[int, int, int]]
    ) -> None:
        """Exchange pointers that are still what they were thought to be: each by one instruction."""
        for at, before, after in pointers:
            # An object that is gone by now must not be looked for.
            if self._target.word(at) == before:
                thread.step(layout.swap, rdi=at, rax=before, rcx=after)

    @property
    def attached(self) -> bool:
        """Whether the program has loaded the library.

        Raises:
            AttachError: it could not; the program is as it was.
        """
        if self._layout is None:
            return False
        state = self._state()
        result = self._target.word(self._layout.base + way_in.RESULT)
        if state not in (way_in.DONE, way_in.FAILED) or (state == way_in.DONE and not result):
            return state == way_in.DONE
        why = _REFUSED.get(result, f"error {result}")
        if state == way_in.FAILED:
            why = (
                self._target.text(self._target.word(self._layout.base + way_in.ERROR)) or "no reason is known"
            )
        self._take_back()
        self._layout = None
        raise AttachError(f"process {self._target.pid} could not load the recorder: {why}")

    def _state(self) -> int:
        assert self._layout is not None
        return int.from_bytes(self._target.read(self._layout.base + way_in.STATE, 4), "little")

    def _take_back(self) -> None:
        layout = self._layout
        assert layout is not None
        back = [(place.at, layout.entry(k), place.own) for k, place in enumerate(self._places)]
        with StoppedThread(self._target) as thread:
            self._exchange(thread, layout, back)

    # ------------------------------------------------------------------ out

    def end(self) -> None:
        """Begin to let go of the program; its next post or poll does it.

        Raises:
            AttachError: no thread of it could be stopped: the recorder stays in, and records are lost.
        """
        layout = self._layout
        if layout is None or self._ending or not self._target.alive():
            return
        self._ending = True
        if self._state() == way_in.OPEN:
            self._take_back()
            if self._state() == way_in.OPEN:
                self._layout = None
                return
        while self._state() == way_in.INSIDE:
            os.sched_yield()
        answer = layout.request + way_in.ANSWER
        detach, *functions = (self._target.word(answer + 8 * k) for k in range(7))
        if not detach or self._target.word(layout.base) != way_in.MARK:
            self._layout = None
            return
        ours = dict(zip((*CALLS, "start_poll", "wr_start"), functions, strict=True))
        self._contexts, self._qps, self._cqs = self._objects()
        places = [
            place for place in (*self._of_contexts(CALLS), *self._of_extended()) if place.own in ours.values()
        ][:_MOST]
        self._target.write(layout.base + way_in.CALL, detach.to_bytes(8, "little"))
        self._target.write(layout.rows + _MOST * way_in.ROW.size, way_in.rows_of(layout, places, _MOST))
        self._target.write(layout.base + way_in.STATE, way_in.OPEN.to_bytes(4, "little"))
        ways = [(place.at, place.own, layout.entry(_MOST + k)) for k, place in enumerate(places)]
        with StoppedThread(self._target) as thread:
            self._exchange(thread, layout, ways)

    @property
    def ended(self) -> bool:
        """Whether the program is let go."""
        return self._layout is None or not self._target.alive() or self._state() == way_in.DONE
