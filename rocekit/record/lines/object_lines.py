"""Journal lines of verbs objects: devices, queue pairs, memory, address handles, events."""

from __future__ import annotations

from rocekit.record import ring
from rocekit.record.lines.line_maker import LineMaker, access_names, gid_text, ip_of_gid
from rocekit.record.verbs_names import ASYNC_EVENTS, QP_STATES, QP_TYPES
from rocekit.wire.limits import PATH_MTU_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Final

    from rocekit.record.ring import Record

# The bits of enum ibv_qp_attr_mask that the journal has.
_STATE, _ACCESS, _PORT, _QKEY, _AV, _MTU = 1 << 0, 1 << 3, 1 << 5, 1 << 6, 1 << 7, 1 << 8
_TIMEOUT, _RETRY, _RNR_RETRY, _RQ_PSN, _RD_ATOMIC = 1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 13
_MIN_RNR, _SQ_PSN, _DEST_RD_ATOMIC, _DEST_QPN = 1 << 15, 1 << 16, 1 << 17, 1 << 20
_UNSEEN: Final = 0xFF
"""The device number of a record that has none."""


class ObjectLines(LineMaker):
    """The lines of all records except work requests, completions and the connection manager."""

    def _lost(self, r: Record) -> Iterator[str]:
        """What a queue has lost."""
        sends, receives, completions, srq, since_ns = ring.LOST_BODY.unpack_from(r.payload)
        counts = {"sends": sends, "receives": receives, "completions": completions}
        place = {"device": self._name(r.device), "srq": r.number} if srq else {"qp": self._place(r)}
        yield self.event(
            r,
            "records_lost",
            **place,
            count=sum(counts.values()),
            since_ns=since_ns,
            **{kind: count for kind, count in counts.items() if count},
        )

    def _device(self, r: Record) -> Iterator[str]:
        name = r.payload.split(b"\0", 1)[0].decode(errors="replace")
        self._device_is(r.device, name)
        found = True if r.type == ring.DEVICE_FOUND else None
        # A suite of tests opens a device hundreds of times, and its addresses stay.
        opened = self._opened.get((name, found))
        if opened is None:
            gids = self._gids(name) if self._gids else None
            line = self.event(r, "device_opened", device=name, gids=gids, found=found)
            opened = line[len(self._head(r)) :]
            if gids is not None:
                self._opened[name, found] = opened
        yield self._head(r) + opened

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
        error = values[-1]
        seen = self._attributes(r, values)
        if "sq_psn" in seen and not error:
            self._qp(r).sq_psn = seen["sq_psn"]
        if error:
            # It failed: the attributes asked for are not the QP's.
            seen = {"state": seen.get("state"), "errno": error}
        yield self.event(r, "qp_modified", qp=self._place(r), **seen)

    def _qp_found(self, r: Record) -> Iterator[str]:
        """A QP that was made before the recorder was attached, in the first call on it."""
        values = ring.MODIFY_BODY.unpack_from(r.payload)
        kind, send_wr, recv_wr, send_sge, recv_sge, inline, srq, signals_all, _extended, unknown, _covered = (
            ring.QP_BODY.unpack_from(r.payload, ring.MODIFY_BODY.size)
        )
        qp = self.process.qps[r.device, r.number] = self._new_qp(r)
        qp.transport, qp.signals_all = QP_TYPES.get(kind, f"TYPE_{kind}"), bool(signals_all)
        seen: dict[str, Any] = {}
        if not unknown:
            seen = {
                "max_send_wr": send_wr,
                "max_recv_wr": recv_wr,
                "max_send_sge": send_sge,
                "max_recv_sge": recv_sge,
                "max_inline": inline,
                "sq_sig_all": bool(signals_all),
            }
        yield self.event(
            r,
            "qp_found",
            qp=self._place(r),
            transport=qp.transport,
            srq=srq or None,
            **seen,
            **self._attributes(r, values),
        )

    def _attributes(self, r: Record, values: tuple[Any, ...]) -> dict[str, Any]:
        """A QP's attributes that a record has."""
        mask, state, dest_qpn, sq_psn, rq_psn, mtu, qkey, access = values[:8]
        timeout, retry, rnr_retry, min_rnr, rd_atomic, dest_rd_atomic, port, index = values[8:16]
        sgid, dgid, flow_label, tclass, hop_limit, _sl, _error = values[16:]
        known = (
            ("state", _STATE, QP_STATES[min(state, len(QP_STATES) - 1)]),
            ("dest_qpn", _DEST_QPN, dest_qpn),
            ("sq_psn", _SQ_PSN, sq_psn),
            ("rq_psn", _RQ_PSN, rq_psn),
            ("path_mtu", _MTU, PATH_MTU_BYTES.get(mtu)),
            ("timeout", _TIMEOUT, timeout),
            ("retry_cnt", _RETRY, retry),
            ("rnr_retry", _RNR_RETRY, rnr_retry),
            ("min_rnr_timer", _MIN_RNR, min_rnr),
            ("max_rd_atomic", _RD_ATOMIC, rd_atomic),
            ("max_dest_rd_atomic", _DEST_RD_ATOMIC, dest_rd_atomic),
            ("qkey", _QKEY, self._key(qkey) if mask & _QKEY else None),
            ("access", _ACCESS, access_names(access) if mask & _ACCESS else None),
            ("port", _PORT, port),
        )
        seen: dict[str, Any] = {name: value for name, bit, value in known if mask & bit}
        if mask & _AV:
            seen["port"] = port
            local, remote = ip_of_gid(sgid), ip_of_gid(dgid)
            if remote is not None:
                seen["dest_gid"] = gid_text(dgid)
                seen |= {"dest_ip": remote, "gid_index": index, "flow_label": flow_label}
                seen |= {"traffic_class": tclass, "hop_limit": hop_limit}
            if local is not None:
                seen["local_ip"] = self._qp(r).local_ip = local
        return seen

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
            access=None if access == 0xFFFFFFFF else access_names(access),
            host_addr=None if host_addr == addr else self._address(host_addr),
        )

    def _mr_gone(self, r: Record) -> Iterator[str]:
        _addr, _length, _host_addr, lkey, rkey, _access = ring.MR_BODY.unpack_from(r.payload)
        device = self._name(r.device)
        yield self.event(r, "mr_deregistered", device=device, lkey=self._key(lkey), rkey=self._key(rkey))

    def _ah(self, r: Record) -> Iterator[str]:
        ah, sgid, dgid, flow_label, tclass, _hop, _port, _index = ring.AH_BODY.unpack_from(r.payload)
        local, remote = ip_of_gid(sgid), ip_of_gid(dgid)
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
        rkey, gone, kind = ring.MW_BODY.unpack_from(r.payload)
        device = self._name(r.device)
        if gone:
            yield self.event(r, "mw_deallocated", device=device, rkey=self._key(rkey))
        else:
            yield self.event(r, "mw_allocated", device=device, rkey=self._key(rkey), type=kind)

    def _dm(self, r: Record) -> Iterator[str]:
        _dm, length = ring.DM_BODY.unpack_from(r.payload)
        yield self.event(r, "dm_allocated", device=self._name(r.device), length=length)

    def _not_covered(self, r: Record) -> Iterator[str]:
        what = r.payload.split(b"\0", 1)[0].decode(errors="replace")
        device = None if r.device == _UNSEEN else self._name(r.device)
        yield self.event(r, "not_recorded", what=what, device=device)
