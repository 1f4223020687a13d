"""Following queues by the bytes of the commonest records: a fifth of the time, the same lines and counts.

``Selection`` follows what each queue has open, so that a completion stays with its work request. Here this is
done for posts and completions that succeeded: a line is only made of what was chosen, or fails later.
Everything else goes the long way, through the same queues.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import Any, Final

from rocekit.record import ring
from rocekit.record.lines.journal_lines import JournalLines
from rocekit.record.lines.selection import (
    MOST_OPEN,
    RECEIVES,
    Entry,
    Held,
    RecordFilter,
    Seen,
    Selection,
    with_index,
)

_SEND: Final = struct.Struct("<16xQ8xQ16xIBBxB8xQ48x")
"""Of a send's first two slots: monotonic time, wr_id, length, opcode, flags, error, the PSNs before."""
_RECEIVE: Final = struct.Struct("<16xQ8xQI1xB18x")
"""Of a receive's slot: monotonic time, wr_id, its shared queue, error."""
_WC: Final = struct.Struct("<16xQ8xQ18xBB4x")
"""Of a completion's slot: monotonic time, wr_id, status, opcode."""
_NUMBERED: Final = slice(10, 16)
"""The bytes of a record that name its QP: device, thread and number."""
_DEVICE: Final = slice(10, 11)
_SRQ: Final = slice(40, 44)
_RECV: Final = 128
_SIGNALED: Final = 2
_BIND_MW: Final = 8
_IN_SIGHT: Final = 4096
"""Among so many work requests a completion's own is looked for from the oldest on."""
_new: Final = tuple.__new__
"""Makes a named tuple in half the time of calling its class."""


class ChosenDirect(JournalLines):
    """Makes the lines of common records that were chosen, and adds up the others.

    Attributes:
        shared: the shared receive queue of a QP, by device and number.
    """

    def __init__(self, choice: RecordFilter, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.selection = Selection(choice, self._line_of_bytes)
        self.shared: dict[tuple[int, int], int] = {}
        self.alike = None
        self._seen = self.selection.seen
        # Those before a failure are followed the long way.
        self._short = not choice.errors
        self._sums = choice.summary
        self._every = 0 if not choice.samples(0) else choice.every or 1

    def direct(self, raw: bytes) -> str | None:
        """A record's line, empty if it has none; None if it is to go the long way."""
        if not self._short:
            return None
        kind = raw[8]
        if kind == ring.WC:
            return self._follow_completion(raw)
        if kind == ring.SEND:
            return self._follow_send(raw) if len(raw) > ring.SLOT else None
        return self._follow_receive(raw) if kind == ring.RECV else None

    def _line_of_bytes(self, raw: bytes, sq_psn: int | None) -> str:
        """The line of a work request that was not chosen when it was posted."""
        raise NotImplementedError

    def _see(self, raw: bytes) -> Seen | None:
        """A record's queues; None where its QP is not known, or its parent process's."""
        device, number = raw[10], int.from_bytes(raw[12:16], "little")
        qp = self.process.qps.get((device, number))
        if qp is None:
            return None
        srq = self.shared.get((device, number))
        seen = self.selection.see((device, number, False), (device, srq, True) if srq else None, qp)
        self._seen[raw[_NUMBERED]] = seen
        return seen

    def _follow_send(self, raw: bytes) -> str | None:
        seen = self._seen.get(raw[_NUMBERED]) or self._see(raw)
        if seen is None or seen.qp is None:
            return None
        mono, wr_id, length, opcode, flags, error, before = _SEND.unpack_from(raw)
        queue, qp = seen.sends, seen.qp
        if error or opcode >= RECEIVES or opcode == _BIND_MW or before == ring.OVERLAPPED:
            return None
        if queue.ids is not None or len(queue.open) >= MOST_OPEN:
            return None
        taken = seen.takes[opcode]
        chosen = taken and self._every and not queue.count % self._every
        line: str | None = ""
        held: Held | bytes | None = raw if taken and not chosen else None
        if chosen or flags & ring.SEND_UD:
            line = super().direct(raw)
            if line is None:
                return None
            if not chosen:
                # What an address handle stands for may be another later.
                held, line = Held(partial(str, line)) if taken else None, ""
        index = queue.count
        queue.count = index + 1
        if mono > qp.last_post_ns:
            qp.last_post_ns = mono
        counts = seen.counts
        if taken and self._sums:
            counts.posts[opcode] += 1
            counts.sent_bytes += length
        if not chosen:
            counts.sends_left += 1
        if seen.lossy:
            return line
        signaled = bool(flags & _SIGNALED or qp.signals_all)
        queue.open.append(_new(Entry, (wr_id, signaled, mono, index, taken, chosen, held, qp.sq_psn)))
        return with_index(line, index) if line else ""

    def _follow_receive(self, raw: bytes) -> str | None:
        mono, wr_id, srq, error = _RECEIVE.unpack_from(raw)
        if error:
            return None
        if srq:
            key = raw[_DEVICE] + raw[_SRQ]
            seen = self._seen.get(key)
            if seen is None:
                seen = self._seen[key] = self.selection.see((raw[10], srq, True), None, None)
        else:
            seen = self._seen.get(raw[_NUMBERED]) or self._see(raw)
        if seen is None:
            return None
        # A QP with a shared queue may have receives in its own, if a program does so by mistake.
        queue = seen.receives
        if queue.ids is not None or len(queue.open) >= MOST_OPEN or (seen.of_shared and not srq):
            return None
        taken = seen.takes[RECEIVES]
        chosen = taken and self._every and not queue.count % self._every
        line = super().direct(raw) if chosen else ""
        if line is None:
            return None
        index = queue.count
        queue.count = index + 1
        counts = seen.counts
        if taken and self._sums:
            counts.posts[RECEIVES] += 1
        if not chosen:
            counts.receives_left += 1
        if not seen.lossy:
            held = raw if taken and not chosen else None
            queue.open.append(_new(Entry, (wr_id, True, mono, index, taken, chosen, held, None)))
        return line

    def _follow_completion(self, raw: bytes) -> str | None:
        seen = self._seen.get(raw[_NUMBERED]) or self._see(raw)
        if seen is None:
            return None
        mono, wr_id, status, opcode = _WC.unpack_from(raw)
        if status:
            return None
        received = opcode == _RECV or opcode == _RECV + 1
        queue, counts = seen.receives if received else seen.sends, seen.counts
        if queue.ids is not None:
            return None
        if not queue.open:
            if self._sums and (seen.takes[RECEIVES] if received else seen.takes_unknown):
                counts.completions += 1
            counts.completions_left += 1
            return ""
        own = queue.open[0]
        ends, chosen = 1, own[5]
        if own[0] != wr_id or not own[1]:
            if received:
                return None
            ends, chosen = 0, False
            for own in queue.open:
                ends += 1
                chosen = chosen or own[5]
                if own[0] == wr_id and own[1]:
                    break
                if ends > _IN_SIGHT:
                    return None
            else:
                return None
        line = super().direct(raw) if chosen else ""
        if line is None:
            return None
        if ends == 1:
            queue.open.popleft()
        else:
            for _ in range(ends):
                queue.open.popleft()
        if self._sums and own[4]:
            counts.completions += 1
            counts.timed += 1
            took = mono - own[2]
            if took > 0:
                counts.total_ns += took
                if took > counts.most_ns:
                    counts.most_ns = took
        if line:
            return line if received else with_index(line, own[3])
        counts.completions_left += 1
        return ""
