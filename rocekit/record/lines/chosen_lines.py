"""The journal lines of a process of which only some work requests are to be recorded."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from rocekit.record import ring
from rocekit.record.lines.chosen_direct import ChosenDirect
from rocekit.record.lines.selection import Place, RecordFilter, opcode_name
from rocekit.record.losses import Loss
from rocekit.record.ring import Record, records
from rocekit.record.verbs_names import WC_OPCODES
from rocekit.wire.psn import MASK

_SIGNALED: Final = 2
_BIND_MW: Final = 8


class ChosenLines(ChosenDirect):
    """The lines of what was chosen (see ``Selection``), and all others."""

    def __init__(self, choice: RecordFilter, *arguments: Any, **more: Any) -> None:
        super().__init__(choice, *arguments, **more)
        self._since_ns = time.time_ns()

    def of(self, record: Record) -> Iterator[str]:
        if record.type == ring.SEND:
            yield from self._chosen_send(record)
        elif record.type == ring.RECV:
            wr_id, srq, _items, error, _cut = ring.RECV_BODY.unpack_from(record.payload)
            place = (record.device, srq or record.number, bool(srq))
            line = partial(self._recv, record)
            yield from self.selection.post(
                place, "RECV", wr_id, line, posted_ns=record.mono_ns, failed=bool(error)
            )
        elif record.type == ring.WC:
            yield from self._chosen_wc(record)
        else:
            # What is known of a queue may change with it.
            self.selection.seen.clear()
            if record.type in (ring.QP_CREATED, ring.QP_FOUND):
                self.selection.forget((record.device, record.number, False))
                at = ring.MODIFY_BODY.size if record.type == ring.QP_FOUND else 0
                self.shared[record.device, record.number] = ring.QP_BODY.unpack_from(record.payload, at)[6]
            yield from super().of(record)

    def _chosen_send(self, r: Record) -> Iterator[str]:
        wr_id, _va, _rkey, _imm, length, opcode, flags, _items, error = ring.SEND_BODY.unpack_from(r.payload)
        qp = self._qp(r)
        if flags & ring.SEND_UD or opcode == _BIND_MW:
            # What an address handle stands for, or a window, may be another later: the line is made now.
            *setting, line_now = self._posted_last(r)
            line = partial(str, line_now)
            yield from setting
        else:
            line = partial(self._send_line, r, self._psn(r, qp, error))
        yield from self.selection.post(
            (r.device, r.number, False),
            opcode_name(opcode),
            wr_id,
            line,
            length=length,
            signaled=bool(flags & _SIGNALED or qp.signals_all),
            posted_ns=r.mono_ns,
            failed=bool(error),
        )

    def _line_of_bytes(self, raw: bytes, sq_psn: int | None) -> str:
        (r,) = records(raw)
        if r.type == ring.RECV:
            return self._recv(r)
        if sq_psn is None or r.before == ring.NO_PSN:
            return self._send_line(r, "")
        return self._send_line(r, f',"psn":{(sq_psn + r.before) & MASK}')

    def _posted_last(self, r: Record) -> list[str]:
        """The lines of a send, with that of the work request last."""
        return sorted(self._send(r), key=lambda line: '"event":"wr_posted"' in line)

    def _send_line(self, r: Record, psn: str) -> str:
        return next(self._send(r, psn))

    def _chosen_wc(self, r: Record) -> Iterator[str]:
        wr_id, *_, status, opcode = ring.WC_BODY.unpack_from(r.payload)
        srq = self.shared.get((r.device, r.number))
        yield from self.selection.complete(
            (r.device, r.number, False),
            (r.device, srq, True) if srq else None,
            None if status else WC_OPCODES.get(opcode, f"OPCODE_{opcode}"),
            wr_id,
            partial(self._wc, r),
            polled_ns=r.mono_ns,
        )

    def lose(self, loss: Loss | None) -> None:
        if loss is None:
            self.selection.lose_all()
        else:
            self.selection.lose((loss.device, loss.number, loss.srq))

    def left_out(self) -> Iterator[str]:
        now, since_ns = time.time_ns(), self._since_ns
        self._since_ns = now
        for place, counts in self.selection.counts.items():
            counts.settle()
            r = Record(ring.QUEUE_LOST, place[0], 0, place[1], time.monotonic_ns(), now, b"")
            new = {kind: count for kind, count in counts.left_out.items() if count > 0}
            for kind in new:
                del counts.left_out[kind]
            if new:
                named = self._named(r, place)
                new["count"] = sum(new.values())
                self.left_out_records += new["count"]
                yield self.event(r, "records_filtered", **named, **new, since_ns=since_ns)
            totals = {name: count for name, count in counts.totals.items() if count}
            counts.totals.clear()
            if totals and not place[2]:
                yield self.event(r, "qp_totals", qp=self._place(r), totals=totals, since_ns=since_ns)

    def _named(self, r: Record, place: Place) -> dict[str, Any]:
        return {"device": self._name(r.device), "srq": r.number} if place[2] else {"qp": self._place(r)}
