"""A program on a soft device on a wire in memory: it calls verbs at the wire's time and writes a journal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import IO, Any

from rocekit.errors import VerbsError
from rocekit.journal import JournalWriter
from rocekit.journal.schema import SCHEMA
from rocekit.soft.device import DeviceEvent, SoftDevice
from rocekit.soft.engine.memory import MR, PD, Sge
from rocekit.soft.engine.qp import Qp
from rocekit.soft.engine.queues import CQ
from rocekit.soft.engine.work import VERBS, WC, RecvWR, SendWR
from rocekit.soft.wires.memory import MemoryWire

_POLL_BATCH = 64
#: The attributes of a QP that are fields of a journal line.
_JOURNALED = frozenset(SCHEMA["qp_modified"].optional)


class Host:
    """Calls a device's verbs at the wire's time and polls its completion queues as they fill.

    Args:
        name: of the host in the journal.
        journal: a text file for the journal's lines, or None.
        software_ns: time that the program and its library take, from posting a request to the device, and
            from a completion to polling it.
    """

    def __init__(
        self,
        name: str,
        device: SoftDevice,
        wire: MemoryWire,
        *,
        journal: IO[str] | None = None,
        software_ns: int = 400,
    ) -> None:
        self.name = name
        self.device = device
        self.wire = wire
        self.pd: PD | None = None
        self.events: list[DeviceEvent] = []
        self._port = wire.attach(device)
        self._port.on_activity = self._active
        self._software_ns = software_ns
        self._journal = None if journal is None else JournalWriter(journal, host=name, pid=1)
        self._watched: list[tuple[CQ, Callable[[Host, WC], None]]] = []
        self._poll_planned = False

    # -- verbs

    def reg_mr(self, pd: PD, addr: int, length: int, access: Iterable[str]) -> MR:
        mr = self.device.reg_mr(pd, addr, length, access)
        self.log(
            "mr_registered",
            device=self.device.name,
            addr=mr.addr,
            length=mr.length,
            lkey=mr.lkey,
            rkey=mr.rkey,
            access=sorted(mr.access),
        )
        return mr

    def create_qp(self, pd: PD, transport: str, send_cq: CQ, recv_cq: CQ | None = None, **options: Any) -> Qp:
        qp = self.device.create_qp(pd, transport, send_cq, recv_cq, **options)
        self.log_created(qp)
        return qp

    def log_created(self, qp: Qp) -> None:
        """Write the line of a queue pair that was created."""
        self.log(
            "qp_created",
            qp,
            transport=qp.transport,
            max_send_wr=qp.max_send_wr,
            max_recv_wr=qp.rq.max_wr,
            sq_sig_all=qp.sq_sig_all,
            local_ip=qp.local_ip,
        )

    def modify_qp(self, qp: Qp, **attributes: Any) -> None:
        self.device.modify_qp(qp, self.wire.now, **attributes)
        self.log("qp_modified", qp, **{k: v for k, v in attributes.items() if k in _JOURNALED})
        self._kick()

    def post_send(self, qp: Qp, wr: SendWR) -> None:
        """Post; a request that the device refuses is in the journal with its errno, and raises PostError."""
        try:
            self.device.post_send(qp, wr, self.wire.now)
        except VerbsError as error:
            self._log_post(qp, wr, error.errno)
            raise
        self._log_post(qp, wr, None)
        self._kick()

    def post_recv(self, qp: Qp, wrs: Sequence[RecvWR]) -> None:
        for wr in wrs:
            errno = None
            try:
                self.device.post_recv(qp, wr, self.wire.now)
            except VerbsError as error:
                errno = error.errno
                raise
            finally:
                self.log(
                    "recv_posted", qp, wr_id=wr.wr_id, length=wr.length, sges=_sges(wr.sges), errno=errno
                )
        self._kick()

    def watch(self, cq: CQ, completed: Callable[[Host, WC], None]) -> None:
        """Poll a queue when it has completions; ``completed`` is called with each."""
        self._watched.append((cq, completed))

    # -- internal

    def _kick(self) -> None:
        self.wire.at(self.wire.now + self._software_ns, lambda: self.wire.kick(self._port))

    def _active(self, events: list[DeviceEvent]) -> None:
        for event in events:
            self.events.append(event)
            if event.type != "COMPLETION":
                self.log(
                    "async_event", event.source if isinstance(event.source, Qp) else None, type=event.type
                )
        if not self._poll_planned and any(len(cq) for cq, _ in self._watched):
            self._poll_planned = True
            self.wire.at(self.wire.now + self._software_ns, self._poll)

    def _poll(self) -> None:
        self._poll_planned = False
        for cq, completed in self._watched:
            while wcs := cq.poll(_POLL_BATCH):
                for wc in wcs:
                    self._log_wc(wc)
                    completed(self, wc)

    def log(self, event: str, qp: Qp | None = None, **fields: Any) -> None:
        if self._journal is not None:
            which = None if qp is None else (self.device.name, qp.qpn)
            self._journal.write(event, time_ns=self.wire.now, qp=which, **fields)

    def _log_post(self, qp: Qp, wr: SendWR, errno: int | None) -> None:
        if self._journal is None:
            return
        verb = VERBS.get(wr.opcode)
        atomic = verb is not None and verb.operation in ("FETCH_ADD", "CMP_SWAP")
        addressed = verb is not None and verb.operation not in ("SEND", "")
        self.log(
            "wr_posted",
            qp,
            wr_id=wr.wr_id,
            opcode=wr.opcode,
            length=wr.flush_length or wr.length,
            sges=_sges(wr.sges),
            remote_va=wr.remote_va if addressed else None,
            rkey=wr.rkey if addressed else None,
            imm=wr.imm if verb is not None and verb.immediate else None,
            invalidate_rkey=wr.invalidate_rkey if verb is not None and verb.invalidate else None,
            compare=wr.compare if atomic else None,
            swap_add=wr.swap_add if atomic else None,
            signaled=wr.signaled or qp.sq_sig_all,
            inline=wr.inline is not None,
            fenced=wr.fenced,
            solicited=wr.solicited,
            dest_qpn=wr.dest_qpn if qp.transport == "UD" else None,
            dest_ip=wr.dest_ip if qp.transport == "UD" else None,
            qkey=wr.qkey if qp.transport == "UD" else None,
            errno=errno,
        )

    def _log_wc(self, wc: WC) -> None:
        if self._journal is None:
            return
        done = wc.status == "SUCCESS"
        self._journal.write(
            "wc_polled",
            time_ns=self.wire.now,
            qp=(self.device.name, wc.qpn),
            wr_id=wc.wr_id,
            status=wc.status,
            opcode=wc.opcode if done else None,
            byte_len=wc.byte_len if done else None,
            vendor_err=wc.vendor_err,
            imm=wc.imm,
            src_qpn=wc.src_qpn,
        )


def _sges(sges: Sequence[Sge]) -> list[dict[str, int]]:
    return [s._asdict() for s in sges]
