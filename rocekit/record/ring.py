"""The shared memory that a recorded program writes into: its layout, and taking records out of it.

``interposer/record.h`` has the writing side and the reasons. A file is one process; its rings are arrays of
64-byte slots; a record is one or more consecutive slots. A slot's first word shows that it is written: it
counts the ring's rounds, from 1. So nothing here locks or makes a writer wait; slots that have been read are
freed by moving the ring's tail.

Taking is done while the program runs, and may share a processor with it: slots are copied many at a time, and
only :meth:`RingFile.split` looks at each, later.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
from _thread import allocate_lock

from rocekit.errors import JournalError
from rocekit.record.lines.native import native
from rocekit.record.losses import TABLE, Loss, LossTable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Any, Final, TypeAlias

    Tagged: TypeAlias = tuple[int, int, bytes, Any, bool]
    """A record: its time, its number, its bytes, what goes with them, and whether its call returned."""

MAGIC: Final = b"ROKEREC1"
LAYOUT: Final = 6
PAGE: Final = 4096
SLOT: Final = 64
FIRST: Final = 32
"""The offset of a record's payload in its first slot."""
CONTINUED: Final = 16
"""Its offset in the other slots."""
NO_PSN: Final = (1 << 64) - 1
OVERLAPPED: Final = NO_PSN - 1
"""Instead of PSNs: another thread posted on the QP during the call, so their order is not known."""
LEFT: Final = 0x80
"""Set in a record's type if its call was left otherwise than by returning, or had not returned for long."""
FILLED: Final = 1 << 63
"""Set in a slot's first word until the recorded call returns."""

FILE = struct.Struct("<8sIIQIIQQQQ64s")
"""magic, layout, rings, slots, pid, forked from, started (real, monotonic), PID namespace, losses,
program."""
CONTROL: Final = 192
"""Bytes of a ring's control block, and the offsets in it of head, tail, and lost records of each kind."""
HEAD, TAIL, LOST = 0, 64, 128
KINDS: Final = ("sends", "receives", "completions", "others")
LOSSES_CHANGED: Final = 56
"""Where the file counts changes of its table of lost records."""

HEADER = struct.Struct("<8xBBBBIQQ")
"""type, slots, device, thread, number, monotonic time, real time; at the start of a record's first slot."""

SEND, RECV, WC = 1, 2, 3
DEVICE, QP_CREATED, QP_MODIFIED, QP_DESTROYED, MR, MR_GONE, AH, SRQ, ASYNC = range(10, 19)
CM_EVENT, CM_CALL, MW, DM, NOT_COVERED = range(19, 24)
QUEUE_LOST = 24
"""Made by the reader: what a queue has lost, at the time when that was noticed."""
QP_FOUND, DEVICE_FOUND = 25, 26
"""What was made and opened before the recorder was attached."""

SEND_BODY = struct.Struct("<QQIIIBBBB")
"""wr_id, remote_va, rkey, imm, length, opcode, flags, items, error. Of a BIND_MW: wr_id, the window's start,
its new key, its access rights, its old key; the rest is the same."""
RECV_BODY = struct.Struct("<QIBBBx")
"""wr_id, srq, items, error, cut; the first SGE follows."""
WC_BODY = struct.Struct("<QIIIIHBB")
"""wr_id, byte_len, imm, vendor_err, src_qpn, flags, status, opcode."""
SGE = struct.Struct("<QII")
"""addr, length, lkey; or ah, remote_qpn, remote_qkey."""
OPERANDS = struct.Struct("<QQ")
"""compare, swap_add."""
BOUND = struct.Struct("<QII")
"""size, mr_lkey, mr_rkey: of a BIND_MW, instead of SGEs."""
QP_BODY = struct.Struct("<7I4B")
"""type, max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline, srq; sq_sig_all, extended, error,
covered."""
MODIFY_BODY = struct.Struct("<8I8B16s16sI4B")
"""mask, state, dest_qpn, sq_psn, rq_psn, path_mtu, qkey, access; timeout, retry_cnt, rnr_retry,
min_rnr_timer, max_rd_atomic, max_dest_rd_atomic, port, sgid_index; sgid, dgid; flow_label; traffic_class,
hop_limit, sl, error."""
MR_BODY = struct.Struct("<3Q3I4x")
"""addr, length, host_addr, lkey, rkey, access."""
AH_BODY = struct.Struct("<Q16s16sI4B")
"""ah, sgid, dgid, flow_label, traffic_class, hop_limit, port, sgid_index."""
SRQ_BODY = struct.Struct("<3I4x")
"""id, max_wr, max_sge."""
ASYNC_BODY = struct.Struct("<3I4x")
"""type, port, srq."""
CM_BODY = struct.Struct("<QQiIII8B28s28s")
"""id, listen_id, status, what, remote_qpn, qkey; responder_resources, initiator_depth, retry_count,
rnr_retry_count, flow_control, srq, private_length, has_params; source, destination; private data follow."""
MW_BODY = struct.Struct("<IBB2x")
"""rkey, gone, type."""
DM_BODY = struct.Struct("<QQ")
"""dm, length."""
LOST_BODY = struct.Struct("<QQQQQ")
"""sends, receives, completions, whether of an SRQ; since when (real)."""

SEND_EXTENDED, SEND_UD, SEND_ATOMIC = 1 << 5, 1 << 6, 1 << 7


class Record:
    """One record.

    Attributes:
        payload: without the slots' own words.
        finished: whether the recorded call returned.
        before: of a send, the PSNs that its QP's earlier sends took, ``NO_PSN`` or ``OVERLAPPED``.
        left: whether the program went on after the call though it did not return; else it ended in the call.
    """

    __slots__ = (
        *("before", "device", "finished", "left", "mono_ns"),
        *("number", "payload", "real_ns", "thread", "type"),
    )

    def __init__(
        self,
        type: int,
        device: int,
        thread: int,
        number: int,
        mono_ns: int,
        real_ns: int,
        payload: bytes,
        finished: bool = True,
        before: int = NO_PSN,
        left: bool = False,
    ) -> None:
        self.type, self.device, self.thread, self.number = type, device, thread, number
        self.mono_ns, self.real_ns, self.payload = mono_ns, real_ns, payload
        self.finished, self.before, self.left = finished, before, left


_LARGE: Final = 64 << 10
_AT_ONCE: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE


class RingFile:
    """One process's rings.

    Attributes:
        pid: the process; ``forked_from``: the one that it was forked from with devices open, 0 for none.
        program: its name.
        started_ns, started_mono_ns: when it opened its first device.
        pid_namespace: in which ``pid`` counts, 0 if unknown.
        slots: of each ring.
    """

    def __init__(self, path: Path | str) -> None:
        """Map a file.

        Raises:
            JournalError: it is no ring file, or not complete yet.
        """
        self.path = os.fspath(path)
        try:
            with open(path, "r+b") as file:  # noqa: PTH123
                self._map = mmap.mmap(file.fileno(), 0)
        except (OSError, ValueError) as error:
            raise JournalError(f"cannot be mapped: {error}", file=path) from None
        if len(self._map) < PAGE:
            raise JournalError("no ring file", file=path)
        head = FILE.unpack_from(self._map)
        magic, layout, rings, slots, pid, forked_from, real, mono, namespace, _losses, program = head
        start = PAGE + -(-rings * CONTROL // PAGE) * PAGE
        fits = 0 < rings <= 1025 and slots > 0 and slots & (slots - 1) == 0
        if (
            magic != MAGIC
            or layout != LAYOUT
            or not fits
            or len(self._map) < start + rings * slots * SLOT + TABLE
        ):
            raise JournalError("no ring file of this version", file=path)
        self.pid, self.forked_from, self.pid_namespace = pid, forked_from, namespace
        self.started_ns, self.started_mono_ns = real, mono
        self.program = program.rstrip(b"\0").decode(errors="replace")
        self.slots = self._slots = slots
        self._bits = slots.bit_length() - 1
        # Words of 8 bytes, without NumPy: loading it takes longer than many programs run.
        self._bytes = memoryview(self._map)
        self._words = self._bytes.cast("Q")
        self._controls = [(PAGE + i * CONTROL) // 8 for i in range(rings)]
        self._rings = [start + i * slots * SLOT for i in range(rings)]
        self._rest = [b""] * rings
        self._lost = [0] * len(KINDS)
        self._losses = LossTable(start + rings * slots * SLOT)
        # Taking and releasing a lock is Python's memory barrier: the words are read before the slots.
        self._barrier = allocate_lock()

    def most_waiting(self) -> int:
        """Slots that wait to be taken, in the ring that has the most."""
        words = self._words
        return max([words[at + HEAD // 8] - words[at + TAIL // 8] for at in self._controls])

    def drain(self) -> list[bytes]:
        """The complete records since the last time, raw, oldest first within each ring."""
        return [b"".join(whole) for i, raw in self.take() if (whole := self.split(i, raw))]

    def take(self) -> list[tuple[int, bytes | memoryview]]:
        """The slots written since the last time, by the number of their ring, for :meth:`split`."""
        return [(i, raw) for i in range(len(self._rings)) for raw in self._take(i)]

    def _take(self, i: int) -> list[bytes | memoryview]:
        control, ring = self._controls[i], self._rings[i]
        head, tail = self._words[control + HEAD // 8], self._words[control + TAIL // 8]
        if tail == head:
            return []
        parts = []
        while tail < head:
            at = tail & (self._slots - 1)
            n = min(head - tail, self._slots - at)
            first = (ring + at * SLOT) // 8
            # The first word of each slot: views are compared where they are, in a fifth of a copy's time.
            words = self._words[first : first + n * SLOT // 8 : SLOT // 8]
            turn = ((tail >> self._bits) + 1).to_bytes(8, sys.byteorder)
            done = _same(words, memoryview(turn * n).cast("Q"))
            with self._barrier:
                parts.append(_copied(self._bytes[ring + at * SLOT : ring + (at + done) * SLOT]))
            tail += done
            if done < n:
                break
        with self._barrier:
            self._words[control + TAIL // 8] = tail
        return [part for part in parts if part]

    def step_over(self) -> tuple[list[bytes], int]:
        """Give up waiting, in each ring that is half full: a thread may have left a call without returning.

        A call that returns later does not write into its slots any more.

        Returns:
            The first record that is waited for in each of these rings, marked as left; the number of slots
            that were skipped because they were never written.
        """
        found = []
        holes = 0
        for i, control in enumerate(self._controls):
            head, tail = self._words[control + HEAD // 8], self._words[control + TAIL // 8]
            if head - tail < self._slots // 2:
                continue
            holes += len(self._rest[i]) // SLOT
            self._rest[i] = b""
            slots, finished = self._written(i, tail, head)
            if finished:
                continue
            if slots:
                raw = bytearray().join(self._slot(i, tail + k) for k in range(slots))
                raw[8] |= LEFT
                found.append(bytes(raw))
            while not slots and tail < head and not self._written(i, tail, head)[0]:
                holes += 1
                tail += 1
            self._words[control + TAIL // 8] = tail + slots
        return found, holes

    def split(self, i: int, raw: bytes | memoryview) -> list[bytes]:
        """The records in slots taken from a ring, in order; an incomplete one waits for its other slots."""
        raw = self._rest[i] + raw
        found = []
        at, size = 0, len(raw)
        while at < size:
            after = at + SLOT * (raw[at + 9] or 1)
            if after > size:
                break
            found.append(raw[at:after])
            at = after
        self._rest[i] = raw[at:]
        return found

    def tagged(self, i: int, raw: bytes | memoryview, count: int, lines: Any) -> list[Tagged]:
        """The records in slots taken from a ring, as :func:`tagged` gives them; see :meth:`split`."""
        raw = self._rest[i] + raw
        found, size = _tagged(raw, count, lines)
        self._rest[i] = raw[size:]
        return found

    def finish(self) -> tuple[list[bytes], list[bytes], int]:
        """The last records, when the process has ended or writes no more, and all taken slots are split.

        Returns:
            Records; records of calls that never returned; the number of slots that were reserved and never
            written.
        """
        whole = [record for i, raw in self.take() for record in self.split(i, raw)]
        unfinished: list[bytes] = []
        holes = 0
        for i, control in enumerate(self._controls):
            head, tail = self._words[control + HEAD // 8], self._words[control + TAIL // 8]
            head = min(head, tail + self._slots)
            holes += len(self._rest[i]) // SLOT  # of a record whose later slots were never written
            self._rest[i] = b""
            while tail < head:
                slots, finished = self._written(i, tail, head)
                if not slots:
                    holes += 1
                    tail += 1
                    continue
                raw = b"".join(self._slot(i, tail + k) for k in range(slots))
                (whole if finished else unfinished).append(raw)
                tail += slots
            self._words[control + TAIL // 8] = tail
        return whole, unfinished, holes

    def _slot(self, i: int, number: int) -> bytes:
        at = self._rings[i] + (number & (self._slots - 1)) * SLOT
        return bytes(self._bytes[at : at + SLOT])

    def _written(self, i: int, at: int, head: int) -> tuple[int, bool]:
        """How many slots the record at ``at`` has, 0 if it is incomplete, and whether its call returned."""
        slots = self._slot(i, at)[9] or 1
        if at + slots > head:
            return 0, False
        words = [int.from_bytes(self._slot(i, at + k)[:8], "little") for k in range(slots)]
        if any(word & ~FILLED != (at + k >> self._bits) + 1 for k, word in enumerate(words)):
            return 0, False
        return slots, not any(word & FILLED for word in words)

    def lost(self) -> dict[str, int]:
        """Records of no queue lost since the last call because the rings were full, by kind."""
        now = [
            sum(self._words[control + LOST // 8 + k] for control in self._controls) for k in range(len(KINDS))
        ]
        new = {kind: now[k] - self._lost[k] for k, kind in enumerate(KINDS) if now[k] != self._lost[k]}
        self._lost = now
        return new

    def lost_of_queues(self) -> list[Loss]:
        """What queues have lost since the last call."""
        return self._losses.look(self._bytes, self._words[LOSSES_CHANGED // 8])

    def close(self) -> None:
        """Unmap it."""
        self._words.release()
        self._bytes.release()
        self._map.close()


def tagged(raw: bytes, count: int, lines: Any) -> tuple[list[Tagged], int]:
    """Records in slots, whole ones, and how many bytes they take.

    Args:
        count: the first one's number is the next.
        lines: goes with each.
    """
    found = []
    at, size = 0, len(raw)
    while at + SLOT <= size:
        after = at + SLOT * (raw[at + 9] or 1)
        if after > size:
            break
        count += 1
        found.append((int.from_bytes(raw[at + 16 : at + 24], "little"), count, raw[at:after], lines, True))
        at = after
    return found, at


_native = native()
_tagged: Final[Callable[[bytes, int, Any], tuple[list[Tagged], int]]] = (
    tagged if _native is None else _native.tagged
)


def lost_record(loss: Loss, since_ns: int, until: tuple[int, int]) -> bytes:
    """A record of what a queue lost up to a time (by the monotonic and the real clock)."""
    head = HEADER.pack(QUEUE_LOST, 2, loss.device, 0, loss.number, *until)
    body = LOST_BODY.pack(loss.sends, loss.receives, loss.completions, loss.srq, since_ns)
    first = SLOT - FIRST
    return (head + body[:first] + bytes(CONTINUED) + body[first:]).ljust(2 * SLOT, b"\0")


class LossCounts:
    """What is lost of records that were taken and are not written, by queue."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, int, bool], list[int]] = {}

    def add(self, record: Record) -> bool:
        """Count a work request or completion; False if the record is neither."""
        if record.type not in (SEND, RECV, WC):
            return False
        srq = RECV_BODY.unpack_from(record.payload)[1] if record.type == RECV else 0
        key = (record.device, srq or record.number, bool(srq))
        self._counts.setdefault(key, [0, 0, 0])[record.type - SEND] += 1
        return True

    def losses(self) -> list[Loss]:
        return [Loss(*key, *counts) for key, counts in self._counts.items()]


def _copied(slots: memoryview) -> bytes | memoryview:
    """A copy. The memory of a large one is asked for at once: faults of its pages take half as long again."""
    if len(slots) < _LARGE:
        return bytes(slots)
    copy = memoryview(mmap.mmap(-1, len(slots), flags=_AT_ONCE))
    copy[:] = slots
    return copy.toreadonly()


def _same(one: memoryview, other: memoryview) -> int:
    """How many words at the start are equal in two of the same length."""
    if one == other:
        return len(one)
    alike, apart = 0, len(one)
    while apart - alike > 1:
        middle = (alike + apart) // 2
        if one[alike:middle] == other[alike:middle]:
            alike = middle
        else:
            apart = middle
    return alike


def records(chunk: bytes, *, finished: bool = True) -> Iterator[Record]:
    """The records of a chunk that :meth:`RingFile.drain` gave."""
    at = 0
    while at + SLOT <= len(chunk):
        end = at + SLOT * (chunk[at + 9] or 1)
        yield record_of(chunk[at:end], finished)
        at = end


def record_of(raw: bytes, finished: bool = True) -> Record:
    """The record in these slots, which are its own.

    Raises:
        ValueError: they are fewer, or more, than it says.
    """
    kind, slots, device, thread, number, mono, real = HEADER.unpack_from(raw)
    if SLOT * (slots or 1) != len(raw):
        raise ValueError("a record with another number of slots")
    payload = raw[FIRST:SLOT]
    for k in range(SLOT, len(raw), SLOT):
        payload += raw[k + CONTINUED : k + SLOT]
    left = kind >= LEFT
    kind &= ~LEFT
    before = NO_PSN
    if kind == SEND and len(raw) > SLOT:
        before = int.from_bytes(raw[SLOT + 8 : SLOT + 16], "little")
    return Record(kind, device, thread, number, mono, real, payload, finished and not left, before, left)
