"""Journal lines of the interposer's records.

A record has numbers, pointers and codes from the program's memory. Their meaning depends on earlier records
(the address handle of a pointer, whether a QP signals everything), so a process's records must come in the
order of their times. Work requests and completions, of which there are many, are formatted directly as text.
"""

from __future__ import annotations

import json
import struct

from rocekit.record import ring
from rocekit.record.lines.direct_lines import DirectLines
from rocekit.record.lines.line_maker import access_names
from rocekit.record.lines.object_lines import ObjectLines
from rocekit.record.verbs_names import CALLS, WC_OPCODES, WR_OPCODES
from rocekit.wire.psn import MASK
from rocekit.wire.verbs_names import CM_EVENTS, WC_STATUSES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from rocekit.journal.redaction import Redaction
    from rocekit.record.losses import Loss
    from rocekit.record.process import Process, RecordedQp
    from rocekit.record.ring import Record

# enum ibv_send_flags and ibv_wc_flags.
_FENCE, _SIGNALED, _SOLICITED, _INLINE = 1, 2, 4, 8
_WITH_IMM, _WITH_INV = 2, 8
# Families of socket addresses: AF_INET and AF_INET6 of Linux.
_INET, _INET6 = 2, 10
_IMMEDIATE = frozenset({"SEND_WITH_IMM", "RDMA_WRITE_WITH_IMM"})
_INVALIDATING = frozenset({"SEND_WITH_INV", "LOCAL_INV"})


class JournalLines(ObjectLines, DirectLines):
    """The journal lines of one process's records; see ``LineMaker`` for the arguments."""

    def __init__(self, process: Process, redaction: Redaction | None = None, *, gids: Any = None) -> None:
        super().__init__(process, redaction, gids=gids)
        self._handlers = {
            ring.DEVICE: self._device,
            ring.DEVICE_FOUND: self._device,
            ring.QP_CREATED: self._qp_created,
            ring.QP_FOUND: self._qp_found,
            ring.QP_MODIFIED: self._qp_modified,
            ring.QP_DESTROYED: self._qp_destroyed,
            ring.MR: self._mr,
            ring.MR_GONE: self._mr_gone,
            ring.AH: self._ah,
            ring.SRQ: self._srq,
            ring.ASYNC: self._async,
            ring.CM_EVENT: self._cm_event,
            ring.CM_CALL: self._cm_call,
            ring.MW: self._mw,
            ring.DM: self._dm,
            ring.NOT_COVERED: self._not_covered,
            ring.QUEUE_LOST: self._lost,
        }

    def of(self, record: Record) -> Iterator[str]:
        """The lines of a record."""
        if record.type == ring.WC:
            yield self._wc(record)
        elif record.type == ring.SEND:
            yield from self._send(record)
        elif record.type == ring.RECV:
            yield self._recv(record)
        elif record.type in self._handlers:
            yield from self._handlers[record.type](record)

    # ------------------------------------------------------------------ the data path

    left_out_records = 0
    """How many records ``left_out`` has told of."""

    def lose(self, loss: Loss | None) -> None:
        """Records of a queue were lost, or of nobody knows which."""

    def left_out(self) -> Iterator[str]:
        """Lines that say what was left out since the last time."""
        return iter(())

    def _send(self, r: Record, psn: str | None = None) -> Iterator[str]:
        wr_id, va, rkey, imm, length, opcode, flags, items, error = ring.SEND_BODY.unpack_from(r.payload)
        qp = self._qp(r)
        name = WR_OPCODES.get(opcode, f"OPCODE_{opcode}")
        more = ""
        at = 32
        if flags & ring.SEND_ATOMIC:
            compare, swap_add = ring.OPERANDS.unpack_from(r.payload, at)
            if name == "ATOMIC_CMP_AND_SWP":
                more += f',"compare":{compare}'
            more += f',"swap_add":{swap_add}'
            at, items = at + 16, items - 1
        if flags & ring.SEND_UD:
            ah, remote_qpn, qkey = ring.SGE.unpack_from(r.payload, at)
            more += f',"dest_qpn":{remote_qpn},"qkey":{self._key(qkey)}'
            local, remote = self.process.addresses(ah)
            if remote is not None:
                more += f',"dest_ip":"{remote}"'
            if local is not None and qp.local_ip != local:
                qp.local_ip = local
                yield self.event(r, "qp_modified", qp=self._place(r), local_ip=local)
            at, items = at + 16, items - 1
        old_rkey, mr_lkey, mr_rkey = length, 0, 0
        if name == "BIND_MW":
            length, mr_lkey, mr_rkey = ring.BOUND.unpack_from(r.payload, at)
            items = 0
        sges, total = self._sges(r.payload, at, items)
        # If a record has not all SGEs, the line has none.
        more = ("" if 0 < total < length else f',"sges":{sges}') + more
        more += self._carried(imm, name in _IMMEDIATE, name in _INVALIDATING)
        if name.startswith(("RDMA_", "ATOMIC_", "FLUSH")):
            more += f',"remote_va":{self._address(va)},"rkey":{self._key(rkey)}'
        if flags & _INLINE:
            more += ',"inline":true'
        if flags & _FENCE:
            more += ',"fenced":true'
        if flags & _SOLICITED:
            more += ',"solicited":true'
        if error:
            more += f',"errno":{error}'
        if not r.finished:
            more += ',"unfinished":true'
        more += self._psn(r, qp, error) if psn is None else psn
        signaled = "true" if flags & _SIGNALED or qp.signals_all else "false"
        if name.startswith("ATOMIC_") and not length:
            length = 8
        yield (
            f'{self._head(r)},"event":"wr_posted"{qp.prefix},"wr_id":{wr_id},"opcode":"{name}"'
            f',"length":{length},"signaled":{signaled}{more}}}'
        )
        if name == "BIND_MW" and r.finished and not error:
            yield self.event(
                r,
                "mw_bound",
                qp=self._place(r),
                wr_id=wr_id,
                rkey=self._key(rkey),
                addr=self._address(va),
                length=length,
                old_rkey=self._key(old_rkey),
                mr_rkey=self._key(mr_rkey),
                mr_lkey=self._key(mr_lkey),
                access=access_names(imm),
            )

    def _psn(self, r: Record, qp: RecordedQp, error: int) -> str:
        """A send's first PSN in JSON, where it is certain."""
        if qp is not self.process.qps.get((r.device, r.number)):
            # A forked child posts on its parent's QP: neither knows what the other posts.
            qp.sq_psn = None
        last, qp.last_post_ns = qp.last_post_ns, max(qp.last_post_ns, r.mono_ns)
        if error:
            return ""
        if r.before == ring.OVERLAPPED:
            return ',"overlapped":true'
        # What came after a call that never returned may have come before it at the provider.
        if r.before == ring.NO_PSN or qp.sq_psn is None or r.left or (not r.finished and last > r.mono_ns):
            return ""
        return f',"psn":{(qp.sq_psn + r.before) & MASK}'

    def _recv(self, r: Record) -> str:
        wr_id, srq, items, error, cut = ring.RECV_BODY.unpack_from(r.payload)
        sges, length = self._sges(r.payload, 16, items)
        if srq:
            place = f',"device":{json.dumps(self._name(r.device))},"srq":{srq}'
        else:
            place = self._qp(r).prefix
        more = f',"errno":{error}' if error else ""
        if not r.finished:
            more += ',"unfinished":true'
        if not cut:
            more = f',"length":{length},"sges":{sges}{more}'
        return f'{self._head(r)},"event":"recv_posted"{place},"wr_id":{wr_id}{more}}}'

    def _wc(self, r: Record) -> str:
        wr_id, byte_len, imm, vendor_err, src_qpn, flags, status, opcode = ring.WC_BODY.unpack_from(r.payload)
        qp = self._qp(r)
        if status:
            more = f',"vendor_err":{vendor_err}'
        else:
            more = f',"opcode":"{WC_OPCODES.get(opcode, f"OPCODE_{opcode}")}"'
            if opcode >= 128 or opcode in (2, 3, 4):
                more += f',"byte_len":{byte_len}'
            # rxe sets the flags for sends as well, where they mean nothing.
            if opcode >= 128:
                more += self._carried(imm, bool(flags & _WITH_IMM), bool(flags & _WITH_INV))
                if qp.transport == "UD" and src_qpn:
                    more += f',"src_qpn":{src_qpn}'
        name = WC_STATUSES.get(status, f"STATUS_{status}")
        return f'{self._head(r)},"event":"wc_polled"{qp.prefix},"wr_id":{wr_id},"status":"{name}"{more}}}'

    def _carried(self, imm: int, immediate: bool, invalidates: bool) -> str:
        """A message's immediate or key to invalidate, in JSON."""
        if immediate:
            return f',"imm":{imm}'
        return f',"invalidate_rkey":{self._key(imm)}' if invalidates else ""

    def _sges(self, payload: bytes, at: int, count: int) -> tuple[str, int]:
        """A list of SGEs in JSON, and their total bytes."""
        total = 0
        parts = []
        for k in range(count):
            addr, length, lkey = ring.SGE.unpack_from(payload, at + 16 * k)
            total += length
            addr, lkey = self._address(addr), self._key(lkey)
            parts.append(f'{{"addr":{addr},"length":{length},"lkey":{lkey}}}')
        return f"[{','.join(parts)}]", total

    # ------------------------------------------------------------------ the connection manager

    def _cm(self, r: Record) -> tuple[int, int, dict[str, Any]]:
        """The code of an event or call, its status, and the other fields."""
        values = ring.CM_BODY.unpack_from(r.payload)
        cm_id, listen_id, status, what, remote_qpn, qkey = values[:6]
        resources, depth, retry, rnr_retry, flow, srq, length, has_params = values[6:14]
        src, dst = values[14:]
        data = r.payload[ring.CM_BODY.size : ring.CM_BODY.size + length]
        fields: dict[str, Any] = {"qp": self._place(r), "cm_id": self._address(cm_id)}
        if listen_id:
            fields["listen_id"] = self._address(listen_id)
        for side, raw in (("local", src), ("remote", dst)):
            ip, port = _sockaddr(raw)
            if ip is not None:
                fields |= {f"{side}_ip": ip, f"{side}_port": port}
        if length:
            fields["private_data"] = (data if self._redact is None else self._redact.data(data)).hex()
        if remote_qpn:
            fields["remote_qpn"] = remote_qpn
        if qkey:
            fields["qkey"] = self._key(qkey)
        if has_params:
            fields |= {"responder_resources": resources, "initiator_depth": depth, "flow_control": flow}
            fields |= {"retry_count": retry, "rnr_retry_count": rnr_retry, "srq": srq or None}
        return what, status, fields

    def _cm_event(self, r: Record) -> Iterator[str]:
        what, status, fields = self._cm(r)
        yield self.event(
            r,
            "cm_event",
            type=CM_EVENTS[what] if what < len(CM_EVENTS) else f"EVENT_{what}",
            status=status,
            **fields,
        )

    def _cm_call(self, r: Record) -> Iterator[str]:
        what, errno, fields = self._cm(r)
        call = CALLS[what] if what < len(CALLS) else f"CALL_{what}"
        yield self.event(r, "cm_called", call=call, errno=errno or None, **fields)


def _sockaddr(raw: bytes) -> tuple[str | None, int | None]:
    import ipaddress

    family = struct.unpack_from("=H", raw)[0]
    port = struct.unpack_from(">H", raw, 2)[0]
    if family == _INET:
        return str(ipaddress.IPv4Address(raw[4:8])), port
    if family == _INET6:
        address = ipaddress.IPv6Address(raw[8:24])
        return str(address.ipv4_mapped or address), port
    return None, None
