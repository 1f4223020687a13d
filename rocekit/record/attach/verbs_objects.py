"""The verbs objects of a running program, found in its memory while it runs.

libibverbs keeps no list of open devices. Their contexts are known by what the public structures of
``infiniband/verbs.h`` say of them: the mark of an extended context, a device with a name, functions in
loaded libraries. A QP and a CQ begin with the address of their context, and so does what they refer to.
The offsets are those of x86-64 with glibc; tests/record/test_record_attach.py compares them with the
compiler's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from rocekit.record.attach.target import Mapping, RunningProgram

OFFSETS: Final = {
    ("ibv_context", "ops.poll_cq"): 96,
    ("ibv_context", "ops.post_srq_recv"): 168,
    ("ibv_context", "ops.post_send"): 208,
    ("ibv_context", "ops.post_recv"): 216,
    ("ibv_context", "abi_compat"): 320,
    ("ibv_device", "name"): 24,
    ("ibv_device", "dev_name"): 88,
    ("ibv_qp", "pd"): 16,
    ("ibv_qp", "send_cq"): 24,
    ("ibv_qp", "qp_num"): 52,
    ("ibv_qp", "state"): 56,
    ("ibv_qp", "qp_type"): 60,
    ("ibv_qp_ex", "wr_start"): 320,
    ("ibv_qp_ex", "wr_complete"): 328,
    ("ibv_qp_ex", "wr_abort"): 336,
    ("ibv_cq_ex", "start_poll"): 144,
    ("ibv_cq_ex", "next_poll"): 152,
    ("ibv_cq_ex", "end_poll"): 160,
}
CALLS: Final = ("post_send", "post_recv", "post_srq_recv", "poll_cq")
"""The functions of a context by which programs post and poll."""
_EXTENDED: Final = (1 << 64) - 1
"""abi_compat of a context that has the newer functions: every one since 2013."""
_QP_TYPES: Final = frozenset({2, 3, 4, 8, 9, 10, 0xFF})
_MOST_STATE: Final = 6
_PAGE: Final = 4096
_PART: Final = 4096
"""Pages that are read at a time."""
_REACH: Final = 336 + 8
"""Bytes of the largest structure that is looked at; parts overlap by it."""


@dataclass(frozen=True, slots=True)
class OpenContext:
    """An open device: where its context is, its name, and the functions that stand in it."""

    address: int
    name: str
    calls: dict[str, int]

    def place(self, call: str) -> int:
        """Where the pointer to a function is."""
        return self.address + OFFSETS["ibv_context", f"ops.{call}"]


@dataclass(frozen=True, slots=True)
class ExtendedObject:
    """A QP or CQ with functions of its own: where it is, where the first of them is, and which it is."""

    address: int
    place: int
    own: int
    number: int = 0


class Search:
    """Looks through the memory of a process.

    Args:
        target: the process, which goes on running.
    """

    def __init__(self, target: RunningProgram) -> None:
        self._target = target
        mappings = target.mappings()
        self._data = [mapping for mapping in mappings if mapping.data]
        self._code = [(mapping.start, mapping.end) for mapping in mappings if mapping.code]

    def _is_code(self, address: int) -> bool:
        return any(start <= address < end for start, end in self._code)

    def contexts(self) -> list[OpenContext]:
        """The open devices."""
        mark, poll = OFFSETS["ibv_context", "abi_compat"] // 8, OFFSETS["ibv_context", "ops.poll_cq"] // 8
        low = min((start for start, _ in self._code), default=0)
        high = max((end for _, end in self._code), default=0)
        found: dict[int, OpenContext] = {}
        for start, words in self._parts():
            if len(words) <= mark:
                continue
            calls = words[poll : len(words) - mark + poll]
            at = np.flatnonzero((words[mark:] == _EXTENDED) & (calls >= low) & (calls < high))
            for index in at.tolist():
                context = self._context(start + 8 * index)
                if context is not None:
                    found[context.address] = context
        return list(found.values())

    def _context(self, address: int) -> OpenContext | None:
        read = self._target.word
        calls = {call: read(address + OFFSETS["ibv_context", f"ops.{call}"]) for call in CALLS}
        if not all(map(self._is_code, calls.values())):
            return None
        device = read(address)
        name, dev_name = (
            self._target.read(device + OFFSETS["ibv_device", key], 64) for key in ("name", "dev_name")
        )
        text = name.split(b"\0", 1)[0]
        if not text or len(name) != len(dev_name) or b"\0" not in name or not text.isascii():
            return None
        return OpenContext(address, text.decode(), calls) if text.decode().isprintable() else None

    def extended(self, contexts: Iterable[OpenContext]) -> tuple[list[ExtendedObject], list[ExtendedObject]]:
        """The QPs and CQs of these contexts that have functions of their own."""
        wanted = np.array(sorted(context.address for context in contexts), dtype=np.uint64)
        qps: dict[int, ExtendedObject] = {}
        cqs: dict[int, ExtendedObject] = {}
        for start, words in self._parts():
            for index in np.flatnonzero(np.isin(words, wanted)).tolist():
                address = start + 8 * index
                if (qp := self._qp(address)) is not None:
                    qps[address] = qp
                elif (cq := self._cq(address)) is not None:
                    cqs[address] = cq
        return list(qps.values()), list(cqs.values())

    def _functions(self, address: int, structure: str, *names: str) -> bool:
        words = (self._target.word(address + OFFSETS[structure, name]) for name in names)
        return all(map(self._is_code, words))

    def _qp(self, address: int) -> ExtendedObject | None:
        if not self._functions(address, "ibv_qp_ex", "wr_start", "wr_complete", "wr_abort"):
            return None
        read = self._target.word
        context = read(address)
        if any(read(read(address + OFFSETS["ibv_qp", name])) != context for name in ("pd", "send_cq")):
            return None
        number, state, kind = struct.unpack(
            "<III", self._target.read(address + OFFSETS["ibv_qp", "qp_num"], 12)
        )
        if number >> 24 or state > _MOST_STATE or kind not in _QP_TYPES:
            return None
        place = address + OFFSETS["ibv_qp_ex", "wr_start"]
        return ExtendedObject(address, place, read(place), number)

    def _cq(self, address: int) -> ExtendedObject | None:
        if not self._functions(address, "ibv_cq_ex", "start_poll", "next_poll", "end_poll"):
            return None
        place = address + OFFSETS["ibv_cq_ex", "start_poll"]
        return ExtendedObject(address, place, self._target.word(place))

    # ------------------------------------------------------------------ memory

    def _parts(self) -> Iterator[tuple[int, np.ndarray]]:
        """All allocated memory, as words, in parts that overlap by the largest structure."""
        for mapping in self._data:
            for start, end in self._present(mapping):
                at = start
                while at < end:
                    raw = self._target.read(at, min(_PART * _PAGE + _REACH, end - at))
                    if len(raw) >= 8:
                        yield at, np.frombuffer(raw[: len(raw) & ~7], dtype=np.uint64)
                    at += _PART * _PAGE

    def _present(self, mapping: Mapping) -> Iterator[tuple[int, int]]:
        """The parts of a mapping that have memory: to read the others would give them some."""
        try:
            with open(f"/proc/{self._target.pid}/pagemap", "rb", buffering=0) as file:  # noqa: PTH123
                first, last = mapping.start // _PAGE, mapping.end // _PAGE
                while first < last:
                    count = min(last - first, 1 << 20)
                    file.seek(8 * first)
                    entries = np.frombuffer(file.read(8 * count), dtype=np.uint64)
                    there = np.concatenate(([False], (entries >> np.uint64(62)) != 0, [False]))
                    edges = np.flatnonzero(there[1:] != there[:-1]).tolist()
                    for start, end in zip(edges[::2], edges[1::2], strict=True):
                        yield (first + start) * _PAGE, (first + end) * _PAGE
                    first += count
        except OSError:
            yield mapping.start, mapping.end
