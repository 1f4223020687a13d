"""Records of the interposer, made journal lines.

A record says what the program's memory said: numbers, pointers, codes. What they mean depends on what came
before (which address handle a pointer was, whether a QP signals everything), so a process's records are to be
handed over in the order of their times. Work requests and completions, of which there are many, are put into
words without detours.
"""

from __future__ import annotations

import ipaddress
import json
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rocekit import record_ring as ring
from rocekit import wire
from rocekit.psn import MASK
from rocekit.record_names import ACCESS, ASYNC_EVENTS, CALLS, QP_STATES, QP_TYPES, WC_OPCODES, WR_OPCODES
from rocekit.record_ring import Record

if TYPE_CHECKING:
    from rocekit.record_redact import Redaction

# enum ibv_send_flags and ibv_wc_flags, and the bits of enum ibv_qp_attr_mask that are told of.
_FENCE, _SIGNALED, _SOLICITED, _INLINE = 1, 2, 4, 8
_WITH_IMM, _WITH_INV = 2, 8
_STATE, _ACCESS, _PORT, _QKEY, _AV, _MTU = 1 << 0, 1 << 3, 1 << 5, 1 << 6, 1 << 7, 1 << 8
_TIMEOUT, _RETRY, _RNR_RETRY, _RQ_PSN, _RD_ATOMIC = 1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 13
_MIN_RNR, _SQ_PSN, _DEST_RD_ATOMIC, _DEST_QPN = 1 << 15, 1 << 16, 1 << 17, 1 << 20

_UNSEEN: Final = 0xFF
"""The device number of a record that has none."""


@dataclass(slots=True)
class _Qp:
    prefix: str
    transport: str
    signals_all: bool
    local_ip: str | None = None
    sq_psn: int | None = None


@dataclass(slots=True)
class Process:
    """What is known of a process from its records so far.

    Attributes:
        devices: names by number. qps: by (device, QPN). handles: (local, remote) address by address handle.
        parent: the process it was forked from, whose devices and QPs it may go on with.
    """

    host: str
    pid: int
    devices: dict[int, str] = field(default_factory=dict)
    qps: dict[tuple[int, int], _Qp] = field(default_factory=dict)
    handles: dict[int, tuple[str | None, str | None]] = field(default_factory=dict)
    parent: Process | None = None

    def device(self, number: int) -> str:
        """A device's name, ``?`` when it was opened before the recording."""
        name = self.devices.get(number)
        if name is None:
            return "?" if self.parent is None else self.parent.device(number)
        return name

    def qp(self, device: int, number: int) -> _Qp | None:
        found = self.qps.get((device, number))
        if found is None and self.parent is not None:
            return self.parent.qp(device, number)
        return found

    def addresses(self, handle: int) -> tuple[str | None, str | None]:
        """The local and the remote address of an address handle."""
        found = self.handles.get(handle)
        if found is None:
            return (None, None) if self.parent is None else self.parent.addresses(handle)
        return found


class Lines:
    """Journal lines out of the records of one process.

    Args:
        process: what is known of it; kept up to date.
        redaction: what becomes of keys and addresses.
        gids: a device's GIDs by its name, told when it is opened.
    """

    def __init__(self, process: Process, redaction: Redaction | None = None, *, gids: Any = None) -> None:
        self.process = process
        self._redact = redaction
        self._gids = gids
        self._tail = f',"clock":"realtime","host":{json.dumps(process.host)},"pid":{process.pid}'
        self._handlers = {
            ring.DEVICE: self._device,
            ring.QP_CREATED: self._qp_created,
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
        }

    # ------------------------------------------------------------------ putting together

    def of(self, record: Record) -> Iterator[str]:
        """The lines that a record becomes."""
        if record.type == ring.WC:
            yield self._wc(record)
        elif record.type == ring.SEND:
            yield from self._send(record)
        elif record.type == ring.RECV:
            yield self._recv(record)
        elif record.type in self._handlers:
            yield from self._handlers[record.type](record)

    def _head(self, r: Record) -> str:
        thread = f',"thread":{r.thread}' if r.thread else ""
        return f'{{"time_ns":{r.real_ns},"mono_ns":{r.mono_ns}{self._tail}{thread}'

    def event(self, r: Record, event: str, **fields: Any) -> str:
        """A line of any event; a field that is None is left out."""
        values = {key: value for key, value in fields.items() if value is not None}
        more = json.dumps(values, separators=(",", ":"))[1:-1]
        return f'{self._head(r)},"event":"{event}"{"," if more else ""}{more}}}'

    def _name(self, device: int) -> str:
        return self.process.device(device)

    def _place(self, r: Record) -> dict[str, Any] | None:
        return {"device": self._name(r.device), "qpn": r.number} if r.number else None

    def _qp(self, r: Record) -> _Qp:
        qp = self.process.qp(r.device, r.number)
        if qp is None:  # it was there before the recording
            qp = self.process.qps[r.device, r.number] = self._new_qp(r)
        return qp

    def _new_qp(self, r: Record) -> _Qp:
        return _Qp(f',"qp":{{"device":{json.dumps(self._name(r.device))},"qpn":{r.number}}}', "", False)

    def _key(self, key: int) -> int:
        return key if self._redact is None else self._redact.key(key)

    def _address(self, address: int) -> int:
        return address if self._redact is None else self._redact.address(address)

    def _sges(self, payload: bytes, at: int, count: int) -> tuple[str, int]:
        """A list of SGEs in JSON, and their bytes in all."""
        total = 0
        parts = []
        for k in range(count):
            addr, length, lkey = ring.SGE.unpack_from(payload, at + 16 * k)
            total += length
            addr, lkey = self._address(addr), self._key(lkey)
            parts.append(f'{{"addr":{addr},"length":{length},"lkey":{lkey}}}')
        return f"[{','.join(parts)}]", total

    # ------------------------------------------------------------------ the data path

    def _send(self, r: Record) -> Iterator[str]:
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
        sges, _ = self._sges(r.payload, at, items)
        if name in ("SEND_WITH_IMM", "RDMA_WRITE_WITH_IMM"):
            more += f',"imm":{imm}'
        elif name in ("SEND_WITH_INV", "LOCAL_INV"):
            more += f',"invalidate_rkey":{self._key(imm)}'
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
        if r.before != ring.NO_PSN and qp.sq_psn is not None and not error:
            more += f',"psn":{(qp.sq_psn + r.before) & MASK}'
        signaled = "true" if flags & _SIGNALED or qp.signals_all else "false"
        if name.startswith("ATOMIC_") and not length:
            length = 8
        yield (
            f'{self._head(r)},"event":"wr_posted"{qp.prefix},"wr_id":{wr_id},"opcode":"{name}"'
            f',"length":{length},"signaled":{signaled},"sges":{sges}{more}}}'
        )
        if name == "BIND_MW" and not error:
            addr, size, lkey = ring.SGE.unpack_from(r.payload, at) if items else (va, length, 0)
            yield self.event(
                r,
                "mw_bound",
                qp=self._place(r),
                wr_id=wr_id,
                rkey=self._key(rkey),
                addr=self._address(addr),
                length=size,
                mr_lkey=self._key(lkey),
                access=_access(imm),
            )

    def _recv(self, r: Record) -> str:
        wr_id, srq, items, error, _cut = ring.RECV_BODY.unpack_from(r.payload)
        sges, length = self._sges(r.payload, 16, items)
        if srq:
            place = f',"device":{json.dumps(self._name(r.device))},"srq":{srq}'
        else:
            place = self._qp(r).prefix
        more = f',"errno":{error}' if error else ""
        if not r.finished:
            more += ',"unfinished":true'
        what = f'"event":"recv_posted"{place},"wr_id":{wr_id},"length":{length},"sges":{sges}'
        return f"{self._head(r)},{what}{more}}}"

    def _wc(self, r: Record) -> str:
        wr_id, byte_len, imm, vendor_err, src_qpn, flags, status, opcode = ring.WC_BODY.unpack_from(r.payload)
        qp = self._qp(r)
        if status:
            more = f',"vendor_err":{vendor_err}'
        else:
            more = f',"opcode":"{WC_OPCODES.get(opcode, f"OPCODE_{opcode}")}"'
            if opcode >= 128 or opcode in (2, 3, 4):
                more += f',"byte_len":{byte_len}'
            # rxe sets the flags for what was sent as well, where they tell nothing.
            if opcode >= 128 and flags & _WITH_IMM:
                more += f',"imm":{imm}'
            elif opcode >= 128 and flags & _WITH_INV:
                more += f',"invalidate_rkey":{self._key(imm)}'
            if opcode >= 128 and qp.transport == "UD" and src_qpn:
                more += f',"src_qpn":{src_qpn}'
        name = wire.WC_STATUSES.get(status, f"STATUS_{status}")
        return f'{self._head(r)},"event":"wc_polled"{qp.prefix},"wr_id":{wr_id},"status":"{name}"{more}}}'

    # ------------------------------------------------------------------ objects

    def _device(self, r: Record) -> Iterator[str]:
        name = r.payload.split(b"\0", 1)[0].decode(errors="replace")
        self.process.devices[r.device] = name
        yield self.event(r, "device_opened", device=name, gids=self._gids(name) if self._gids else None)

    def _qp_created(self, r: Record) -> Iterator[str]:
        kind, send_wr, recv_wr, send_sge, recv_sge, inline, srq, signals_all, extended, _error, covered = (
            ring.QP_BODY.unpack_from(r.payload)
        )
        transport = QP_TYPES.get(kind, f"TYPE_{kind}")
        qp = self.process.qps[r.device, r.number] = self._new_qp(r)
        qp.transport, qp.signals_all = transport, bool(signals_all)
        yield self.event(
            r,
            "qp_created",
            qp=self._place(r),
            transport=transport,
            max_send_wr=send_wr,
            max_recv_wr=recv_wr,
            max_send_sge=send_sge,
            max_recv_sge=recv_sge,
            max_inline=inline,
            sq_sig_all=bool(signals_all),
            srq=srq or None,
            extended=bool(extended),
        )
        if not covered:
            yield self.event(
                r, "not_recorded", what="work requests posted by the ibv_wr_* calls", qp=self._place(r)
            )

    def _qp_modified(self, r: Record) -> Iterator[str]:
        values = ring.MODIFY_BODY.unpack_from(r.payload)
        mask, state, dest_qpn, sq_psn, rq_psn, mtu, qkey, access = values[:8]
        timeout, retry, rnr_retry, min_rnr, rd_atomic, dest_rd_atomic, port, index = values[8:16]
        sgid, dgid, flow_label, tclass, hop_limit, _sl, error = values[16:]
        seen: dict[str, Any] = {}
        told = {
            "state": (_STATE, QP_STATES[min(state, len(QP_STATES) - 1)]),
            "dest_qpn": (_DEST_QPN, dest_qpn),
            "sq_psn": (_SQ_PSN, sq_psn),
            "rq_psn": (_RQ_PSN, rq_psn),
            "path_mtu": (_MTU, wire.PATH_MTU_BYTES.get(mtu)),
            "timeout": (_TIMEOUT, timeout),
            "retry_cnt": (_RETRY, retry),
            "rnr_retry": (_RNR_RETRY, rnr_retry),
            "min_rnr_timer": (_MIN_RNR, min_rnr),
            "max_rd_atomic": (_RD_ATOMIC, rd_atomic),
            "max_dest_rd_atomic": (_DEST_RD_ATOMIC, dest_rd_atomic),
            "qkey": (_QKEY, self._key(qkey)),
            "access": (_ACCESS, _access(access)),
            "port": (_PORT, port),
        }
        seen = {name: value for name, (bit, value) in told.items() if mask & bit}
        if mask & _AV:
            seen["port"] = port
            local, remote = _ip(sgid), _ip(dgid)
            if remote is not None:
                seen["dest_gid"] = str(ipaddress.IPv6Address(dgid))
                seen |= {"dest_ip": remote, "gid_index": index, "flow_label": flow_label}
                seen |= {"traffic_class": tclass, "hop_limit": hop_limit}
            if local is not None:
                seen["local_ip"] = self._qp(r).local_ip = local
        if mask & _SQ_PSN and not error:
            self._qp(r).sq_psn = sq_psn
        if error:
            # It did not come to pass: what was asked for must not be taken for what is.
            seen = {"state": seen.get("state"), "errno": error}
        yield self.event(r, "qp_modified", qp=self._place(r), **seen)

    def _qp_destroyed(self, r: Record) -> Iterator[str]:
        self.process.qps.pop((r.device, r.number), None)
        yield self.event(r, "qp_destroyed", qp=self._place(r))

    def _mr(self, r: Record) -> Iterator[str]:
        addr, length, host_addr, lkey, rkey, access = ring.MR_BODY.unpack_from(r.payload)
        yield self.event(
            r,
            "mr_registered",
            device=self._name(r.device),
            addr=self._address(addr),
            length=length,
            lkey=self._key(lkey),
            rkey=self._key(rkey),
            access=None if access == 0xFFFFFFFF else _access(access),
            host_addr=None if host_addr == addr else self._address(host_addr),
        )

    def _mr_gone(self, r: Record) -> Iterator[str]:
        _addr, _length, _host_addr, lkey, rkey, _access = ring.MR_BODY.unpack_from(r.payload)
        device = self._name(r.device)
        yield self.event(r, "mr_deregistered", device=device, lkey=self._key(lkey), rkey=self._key(rkey))

    def _ah(self, r: Record) -> Iterator[str]:
        ah, sgid, dgid, flow_label, tclass, _hop, _port, _index = ring.AH_BODY.unpack_from(r.payload)
        local, remote = _ip(sgid), _ip(dgid)
        self.process.handles[ah] = (local, remote)
        yield self.event(
            r,
            "ah_created",
            device=self._name(r.device),
            dest_ip=remote,
            local_ip=local,
            flow_label=flow_label,
            traffic_class=tclass,
        )

    def _srq(self, r: Record) -> Iterator[str]:
        number, max_wr, max_sge = ring.SRQ_BODY.unpack_from(r.payload)
        device = self._name(r.device)
        yield self.event(r, "srq_created", device=device, srq=number, max_wr=max_wr, max_sge=max_sge)

    def _async(self, r: Record) -> Iterator[str]:
        kind, port, srq = ring.ASYNC_BODY.unpack_from(r.payload)
        name = ASYNC_EVENTS[kind] if kind < len(ASYNC_EVENTS) else f"EVENT_{kind}"
        yield self.event(
            r,
            "async_event",
            type=name,
            qp=self._place(r),
            device=self._name(r.device),
            port=port or None,
            srq=srq or None,
        )

    def _mw(self, r: Record) -> Iterator[str]:
        wr_id, addr, length, old_rkey, rkey, mr_rkey, access, what, kind, error, flags = (
            ring.MW_BODY.unpack_from(r.payload)
        )
        device = self._name(r.device)
        if what == 0:
            yield self.event(r, "mw_allocated", device=device, rkey=self._key(rkey), type=kind)
        elif what == 2:
            yield self.event(r, "mw_deallocated", device=device, rkey=self._key(rkey))
        else:
            signaled = bool(flags & _SIGNALED) or self._qp(r).signals_all
            yield self.event(
                r,
                "wr_posted",
                qp=self._place(r),
                wr_id=wr_id,
                opcode="BIND_MW",
                length=length,
                signaled=signaled,
                errno=error or None,
            )
            yield self.event(
                r,
                "mw_bound",
                qp=self._place(r),
                wr_id=wr_id,
                rkey=self._key(rkey),
                addr=self._address(addr),
                length=length,
                old_rkey=self._key(old_rkey),
                mr_rkey=self._key(mr_rkey),
                access=_access(access),
                errno=error or None,
            )

    def _dm(self, r: Record) -> Iterator[str]:
        _dm, length = ring.DM_BODY.unpack_from(r.payload)
        yield self.event(r, "dm_allocated", device=self._name(r.device), length=length)

    def _not_covered(self, r: Record) -> Iterator[str]:
        what = r.payload.split(b"\0", 1)[0].decode(errors="replace")
        device = None if r.device == _UNSEEN else self._name(r.device)
        yield self.event(r, "not_recorded", what=what, device=device)

    # ------------------------------------------------------------------ the connection manager

    def _cm(self, r: Record) -> tuple[int, int, dict[str, Any]]:
        """An event's or call's code, its status, and the fields that both have."""
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
            fields["private_data"] = data.hex()
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
            type=wire.CM_EVENTS[what] if what < len(wire.CM_EVENTS) else f"EVENT_{what}",
            status=status,
            **fields,
        )

    def _cm_call(self, r: Record) -> Iterator[str]:
        what, errno, fields = self._cm(r)
        call = CALLS[what] if what < len(CALLS) else f"CALL_{what}"
        yield self.event(r, "cm_called", call=call, errno=errno or None, **fields)


def _access(flags: int) -> list[str]:
    names = [name for bit, name in ACCESS.items() if flags & bit]
    rest = flags & ~sum(ACCESS)
    return [*names, hex(rest)] if rest else names


def _ip(gid: bytes) -> str | None:
    """A GID as an address, as packets carry it: an IPv4-mapped one as IPv4 (A17.4.5)."""
    if not any(gid):
        return None
    address = ipaddress.IPv6Address(gid)
    return str(address.ipv4_mapped or address)


def _sockaddr(raw: bytes) -> tuple[str | None, int | None]:
    family = struct.unpack_from("=H", raw)[0]
    port = struct.unpack_from(">H", raw, 2)[0]
    if family == socket.AF_INET:
        return str(ipaddress.IPv4Address(raw[4:8])), port
    if family == socket.AF_INET6:
        address = ipaddress.IPv6Address(raw[8:24])
        return str(address.ipv4_mapped or address), port
    return None, None
