"""The send queue of all transports: posting and completing (10.8.3, 11.4.1)."""

from __future__ import annotations

import errno
from collections import deque

from rocekit.soft.engine import qp_state
from rocekit.soft.engine.errors import PostError
from rocekit.soft.engine.parts import QueuePair
from rocekit.soft.engine.segment import SendWqe
from rocekit.soft.engine.windows import BindError
from rocekit.soft.engine.work import VERBS, WC, SendWR
from rocekit.wire import MAX_MESSAGE_BYTES


class SendQueue:
    """The send requests of a queue pair that are not over."""

    def __init__(self, qp: QueuePair) -> None:
        self.qp = qp
        self.queue: deque[SendWqe] = deque()

    def post(self, wr: SendWR) -> None:
        """Append a request.

        Raises:
            PostError: as ``ibv_post_send``: EINVAL (wrong state or opcode, too many SGEs, wrong length),
                EMSGSIZE, ENOMEM (queue full).
        """
        qp = self.qp
        verb = VERBS.get(wr.opcode)
        if qp.state in qp_state.NO_POST_SEND:
            raise PostError(errno.EINVAL, f"nothing can be sent on a QP in {qp.state}")
        if verb is None or qp.transport not in verb.transports:
            raise PostError(errno.EINVAL, f"a {qp.transport} QP has no {wr.opcode}")
        if len(wr.sges) > qp.max_send_sge:
            raise PostError(errno.EINVAL, f"{len(wr.sges)} SGEs; the QP takes {qp.max_send_sge}")
        if wr.inline is not None and (len(wr.inline) > qp.max_inline or verb.reads_back):
            raise PostError(errno.EINVAL, f"no inline {wr.opcode} of {len(wr.inline)} bytes")
        if wr.opcode == "BIND_MW" and wr.binding is None:
            raise PostError(errno.EINVAL, "a BIND_MW needs a binding")
        if verb.fixed_length is not None and wr.length != verb.fixed_length:
            raise PostError(errno.EINVAL, f"{wr.opcode} takes {verb.fixed_length} bytes, not {wr.length}")
        if wr.length > MAX_MESSAGE_BYTES:
            raise PostError(errno.EMSGSIZE, f"a message has at most {MAX_MESSAGE_BYTES} bytes")
        if len(self.queue) >= qp.max_send_wr:
            raise PostError(errno.ENOMEM, f"all {qp.max_send_wr} send requests are in use")
        self.queue.append(SendWqe(wr, qp.transport, qp.path_mtu))
        qp.device.counters.count("rdma_sends")

    def complete(self, wqe: SendWqe, status: str, now: int) -> None:
        """Complete a request; a successful unsignaled one has no completion."""
        qp = self.qp
        if wqe.record is not None:
            wqe.record.completed_ns = now
            wqe.record.wc_status = status
        if status != "SUCCESS" or wqe.wr.signaled or qp.sq_sig_all:
            length = wqe.length if wqe.verb.reads_back else 0
            qp.complete_send(WC(wqe.wr.wr_id, qp.qpn, status, wqe.verb.wc_opcode, length))

    def flush(self, now: int) -> None:
        """Flush all requests (10.3.1.7): the QP is in error."""
        while self.queue:
            self.complete(self.queue.popleft(), "WR_FLUSH_ERR", now)

    def do_local(self, wr: SendWR) -> None:
        """Do a request that needs no packet.

        Raises:
            BindError: it is not allowed.
        """
        qp = self.qp
        if wr.binding is not None:
            qp.device.keys.bind(wr.binding, qp.pd, qp.qpn, wr.rkey)
        elif not qp.device.keys.invalidate(qp.pd, qp.qpn, wr.invalidate_rkey):
            raise BindError

    def prepare(self, wqe: SendWqe) -> None:
        """Gather the payload, or find where the response is written.

        Raises:
            LocalProtectionError: an L_Key does not allow it.
        """
        keys, pd, wr = self.qp.device.keys, self.qp.pd, wqe.wr
        if wqe.verb.reads_back:
            wqe.scatter = keys.scatter(pd, wr.sges, write=True)
        elif wqe.carries:
            wqe.data = wr.inline if wr.inline is not None else keys.scatter(pd, wr.sges, write=False).gather()
