"""The lines of the commonest records, made straight from their bytes: a third of the time, the same text.

A recorder of a busy program makes hundreds of thousands a second of them: posts and receives with one SGE,
and completions that succeeded. All others go the long way (``JournalLines.of``), and so does what is not
alike in any respect.
"""

from __future__ import annotations

import struct

from rocekit.record import ring
from rocekit.record.lines.line_maker import TIME_BITS, LineMaker
from rocekit.record.lines.native import native
from rocekit.record.verbs_names import WC_OPCODES, WR_OPCODES
from rocekit.wire.psn import MASK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Final, TypeAlias

    from rocekit.journal.redaction import Redaction
    from rocekit.record.process import Addresses, Process, RecordedQp

    _LineInC: TypeAlias = Callable[
        [bytes, dict[tuple[int, int], RecordedQp], str, dict[int, Addresses]], str | None
    ]

_WC: Final = struct.Struct("<8xBBBBIQQQIIIIHBB4x")
"""A completion's slot: that of ``HEADER``, then that of ``WC_BODY``."""
_RECEIVE: Final = struct.Struct("<8xBBBBIQQQIBBBxQII")
"""The slot of a receive with one SGE: ``HEADER``, ``RECV_BODY``, the SGE."""
_SEND: Final = struct.Struct("<8xBBBBIQQQQIIIBBBB8xQQIIQQ16x")
"""A send's two slots: ``HEADER``, ``SEND_BODY``, the PSNs before, two items."""
_SIGNALED, _INLINE = 2, 8
_KNOWN_FLAGS: Final = _SIGNALED | _INLINE | ring.SEND_EXTENDED
_RECV, _WITH_IMM, _WITH_INV = 128, 2, 8
_POSTS: Final = {code: WR_OPCODES[code] for code in range(7)}
"""RDMA_WRITE and SEND, with and without immediate, RDMA_READ, and the atomics."""
_REMOTE: Final = frozenset({0, 1, 4, 5, 6})
_WITH_IMMEDIATE: Final = frozenset({1, 3})
_COMPARES: Final = 5
_DONE: Final = {code: WC_OPCODES[code] for code in (*range(6), _RECV, _RECV + 1)}
_WITH_LENGTH: Final = frozenset({2, 3, 4, _RECV, _RECV + 1})
_END: Final = 1 << TIME_BITS
_THREAD: Final = '"thread":'


def _line_in_c() -> _LineInC | None:
    """What makes most of these lines in C, if it was compiled."""
    if (found := native()) is None:
        return None
    found.names(_POSTS, _DONE)
    line: _LineInC = found.line
    return line


line_in_c = _line_in_c()


class DirectLines(LineMaker):
    """Makes the line of a record at once, if it is one of the common ones.

    Attributes:
        alike: what lines of such records need, where they can be made in C without asking; None: not so.
    """

    def __init__(self, process: Process, redaction: Redaction | None = None, *, gids: Any = None) -> None:
        super().__init__(process, redaction, gids=gids)
        self.alike = None if redaction is not None else (process.qps, self._tail, process.handles)

    def direct(self, raw: bytes) -> str | None:
        """The one line of a finished record; None if it is to go the long way."""
        if self._redact is not None:
            return None
        if line_in_c is not None:
            line = line_in_c(raw, self.process.qps, self._tail, self.process.handles)
            if line is not None:
                return line
        kind = raw[8]
        if kind == ring.WC and len(raw) == ring.SLOT:
            return self._direct_wc(raw)
        if kind == ring.SEND and len(raw) == 2 * ring.SLOT:
            return self._direct_send(raw)
        if kind == ring.RECV and len(raw) == ring.SLOT:
            return self._direct_recv(raw)
        if kind == ring.DEVICE and len(raw) >= ring.SLOT:
            return self._direct_device(raw)
        return None

    def _direct_device(self, raw: bytes) -> str | None:
        """A device that was opened before. A suite of tests opens one hundreds of times."""
        end = raw.find(0, ring.FIRST, ring.SLOT)  # a name that goes on in the next slot goes the long way
        name = raw[ring.FIRST : end].decode(errors="replace")
        opened = self._opened.get((name, None))
        _, _, device, thread, _, mono, real = ring.HEADER.unpack_from(raw)
        if end < 0 or opened is None or real >= _END or mono >= _END:
            return None
        self._device_is(device, name)
        named = f",{_THREAD}{thread}" if thread else ""
        return f'{{"time_ns":{real},"mono_ns":{mono}{self._tail}{named}{opened}'

    def _direct_wc(self, raw: bytes) -> str | None:
        _, _, device, thread, number, mono, real, wr_id, length, imm, _, source, flags, status, opcode = (
            _WC.unpack(raw)
        )
        qp = self.process.qps.get((device, number))
        name = _DONE.get(opcode)
        if status or qp is None or name is None or real >= _END or mono >= _END:
            return None
        more = f',"byte_len":{length}' if opcode in _WITH_LENGTH else ""
        if opcode >= _RECV:
            if flags & _WITH_IMM:
                more += f',"imm":{imm}'
            elif flags & _WITH_INV:
                return None
            if source and qp.transport == "UD":
                more += f',"src_qpn":{source}'
        return (
            f'{{"time_ns":{real},"mono_ns":{mono}{self._tail}{f",{_THREAD}{thread}" if thread else ""}'
            f',"event":"wc_polled"{qp.prefix},"wr_id":{wr_id},"status":"SUCCESS","opcode":"{name}"{more}}}'
        )

    def _direct_recv(self, raw: bytes) -> str | None:
        _, _, device, thread, number, mono, real, wr_id, srq, items, error, cut, addr, length, lkey = (
            _RECEIVE.unpack(raw)
        )
        qp = self.process.qps.get((device, number))
        if srq or error or cut or items != 1 or qp is None or real >= _END or mono >= _END:
            return None
        return (
            f'{{"time_ns":{real},"mono_ns":{mono}{self._tail}{f",{_THREAD}{thread}" if thread else ""}'
            f',"event":"recv_posted"{qp.prefix},"wr_id":{wr_id},"length":{length}'
            f',"sges":[{{"addr":{addr},"length":{length},"lkey":{lkey}}}]}}'
        )

    def _direct_send(self, raw: bytes) -> str | None:
        (
            _,
            _,
            device,
            thread,
            number,
            mono,
            real,
            wr_id,
            va,
            rkey,
            imm,
            length,
            opcode,
            flags,
            items,
            error,
            before,
            addr,
            sge_length,
            lkey,
            word,
            other_word,
        ) = _SEND.unpack(raw)
        qp = self.process.qps.get((device, number))
        name = _POSTS.get(opcode)
        if qp is None or name is None or error or before == ring.OVERLAPPED or real >= _END or mono >= _END:
            return None
        more = ""
        if flags & ~_KNOWN_FLAGS or items != 1:
            if items != 2:
                return None
            special = flags & ~_KNOWN_FLAGS
            if special == ring.SEND_UD:
                local, remote = self.process.addresses(addr)
                if local is not None and qp.local_ip != local:
                    return None
                more = f',"dest_qpn":{sge_length},"qkey":{lkey}'
                if remote is not None:
                    more += f',"dest_ip":"{remote}"'
            elif special == ring.SEND_ATOMIC:
                swap_add = sge_length | lkey << 32
                more = f',"swap_add":{swap_add}'
                if opcode == _COMPARES:
                    more = f',"compare":{addr}{more}'
            else:
                return None
            addr, sge_length, lkey = word, other_word & 0xFFFFFFFF, other_word >> 32
        elif opcode >= _COMPARES:
            return None
        if sge_length != length:
            return None
        if mono > qp.last_post_ns:
            qp.last_post_ns = mono
        if opcode in _WITH_IMMEDIATE:
            more += f',"imm":{imm}'
        if opcode in _REMOTE:
            more += f',"remote_va":{va},"rkey":{rkey}'
        if flags & _INLINE:
            more += ',"inline":true'
        if qp.sq_psn is not None and before != ring.NO_PSN:
            more += f',"psn":{(qp.sq_psn + before) & MASK}'
        signaled = "true" if flags & _SIGNALED or qp.signals_all else "false"
        return (
            f'{{"time_ns":{real},"mono_ns":{mono}{self._tail}{f",{_THREAD}{thread}" if thread else ""}'
            f',"event":"wr_posted"{qp.prefix},"wr_id":{wr_id},"opcode":"{name}","length":{length}'
            f',"signaled":{signaled},"sges":[{{"addr":{addr},"length":{sge_length},"lkey":{lkey}}}]{more}}}'
        )
