"""A pyverbs program that posts and polls by the extended calls only; test_record_lab.py records it.

Both of the lab's devices in one process. rxe0's end posts five times four work requests, the last signaled:
WRITE of 3,000 bytes, READ of 2,500 bytes into two SGEs, FETCH_ADD, SEND with immediate of 40 bytes.
"""

from __future__ import annotations

import sys
from typing import Any

sys.path.append("/usr/lib/python3/dist-packages")

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQEX, CqInitAttrEx, PollCqAttr
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QPAttr, QPCap, QPEx, QPInitAttrEx
from pyverbs.wr import SGE, RecvWR

OPERATIONS = (
    e.IBV_QP_EX_WITH_SEND_WITH_IMM
    | e.IBV_QP_EX_WITH_RDMA_WRITE
    | e.IBV_QP_EX_WITH_RDMA_READ
    | e.IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
)
ACCESS = (
    e.IBV_ACCESS_LOCAL_WRITE
    | e.IBV_ACCESS_REMOTE_WRITE
    | e.IBV_ACCESS_REMOTE_READ
    | e.IBV_ACCESS_REMOTE_ATOMIC
)
TURNS = 5


class End:
    """A device with an extended QP and CQ, and a region that grants ``more`` rights than its QP."""

    def __init__(self, device: str, more: int = 0, operations: int = OPERATIONS) -> None:
        self.context = Context(name=device)
        self.pd = PD(self.context)
        # No flags: the QP's number is not among what this program asks of a completion.
        self.cq = CQEX(self.context, CqInitAttrEx(cqe=64, wc_flags=0))
        self.mr = MR(self.pd, 65536, ACCESS | more)
        attributes = QPInitAttrEx(
            qp_type=e.IBV_QPT_RC,
            scq=self.cq,
            rcq=self.cq,
            cap=QPCap(max_send_wr=32, max_recv_wr=32, max_send_sge=4, max_recv_sge=4),
            pd=self.pd,
            comp_mask=e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            send_ops_flags=operations,
        )
        self.qp = QPEx(self.context, attributes)
        self.gid = self.context.query_gid(1, 1)

    def connect(self, other: End, sq_psn: int, rq_psn: int) -> None:
        attributes = QPAttr(port_num=1)
        attributes.qp_access_flags = ACCESS
        attributes.path_mtu = e.IBV_MTU_1024
        attributes.max_rd_atomic = attributes.max_dest_rd_atomic = 4
        attributes.min_rnr_timer = 12
        attributes.timeout = 18
        attributes.retry_cnt = attributes.rnr_retry = 7
        attributes.dest_qp_num = other.qp.qp_num
        attributes.sq_psn, attributes.rq_psn = sq_psn, rq_psn
        route = GlobalRoute(dgid=other.gid, sgid_index=1)
        attributes.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
        self.qp.to_rts(attributes)

    def sge(self, length: int, offset: int = 0) -> Any:
        return SGE(self.mr.buf + offset, length, self.mr.lkey)

    def poll(self, count: int) -> None:
        got = 0
        while got < count:
            if self.cq.start_poll(PollCqAttr()):
                continue
            while True:
                assert self.cq.status == e.IBV_WC_SUCCESS
                got += 1
                if got == count or self.cq.poll_next():
                    break
            self.cq.end_poll()


def main() -> None:
    a, b = End("rxe0"), End("rxe1")
    # PSNs that wrap after 16 packets.
    a.connect(b, 0xFFFFF0, 0x1000)
    b.connect(a, 0x1000, 0xFFFFF0)
    for turn in range(TURNS):
        b.qp.post_recv(RecvWR(100 + turn, 1, [b.sge(4096)]))
    qp = a.qp
    for turn in range(TURNS):
        qp.wr_start()
        qp.wr_flags = 0
        qp.wr_id = 10 * turn
        qp.wr_rdma_write(b.mr.rkey, b.mr.buf)
        qp.wr_set_sge(a.sge(3000))
        qp.wr_id = 10 * turn + 1
        qp.wr_rdma_read(b.mr.rkey, b.mr.buf)
        # Of equal lengths: rdma-core 44's rxe takes the first one's for all of them.
        qp.wr_set_sge_list(2, [a.sge(1250), a.sge(1250, 1250)])
        qp.wr_id = 10 * turn + 2
        qp.wr_atomic_fetch_add(b.mr.rkey, b.mr.buf, 1)
        qp.wr_set_sge(a.sge(8))
        qp.wr_flags = e.IBV_SEND_SIGNALED
        qp.wr_id = 10 * turn + 3
        qp.wr_send_imm(turn)
        qp.wr_set_sge(a.sge(40))
        qp.wr_complete()
        a.poll(1)
    b.poll(TURNS)
    print("done")


if __name__ == "__main__":
    main()
