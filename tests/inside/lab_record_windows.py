"""A pyverbs program that binds memory windows in each way that there is; test_record_lab.py records it.

Both of the lab's devices in one process. rxe0's end binds three windows of 4,096 bytes to its region: one of
type 1 (``ibv_bind_mw``, work request 1), then two of type 2 (``ibv_post_send``, work request 2;
``ibv_wr_bind_mw``, work request 3). rxe1's end WRITEs 100 bytes to each (work requests 11, 12 and 13).
"""

from __future__ import annotations

from lab_record_extended import OPERATIONS, End  # isort: skip  (it finds pyverbs)

import pyverbs.enums as e
from pyverbs.mr import MW, MWBind, MWBindInfo
from pyverbs.wr import SGE, SendWR

BYTES = 4096


def main() -> None:
    a = End("rxe0", e.IBV_ACCESS_MW_BIND, OPERATIONS | e.IBV_QP_EX_WITH_BIND_MW)
    b = End("rxe1")
    a.connect(b, 0x100, 0x200)
    b.connect(a, 0x200, 0x100)
    windows = [MW(a.pd, kind) for kind in (e.IBV_MW_TYPE_1, e.IBV_MW_TYPE_2, e.IBV_MW_TYPE_2)]
    parts = [MWBindInfo(a.mr, a.mr.buf + k * BYTES, BYTES, e.IBV_ACCESS_REMOTE_WRITE) for k in range(3)]
    # The key of a type 2 window is the program's choice in its low byte (ibv_inc_rkey).
    keys = [(window.rkey & ~0xFF) | (window.rkey + 1) & 0xFF for window in windows]
    a.qp.bind_mw(windows[0], MWBind(parts[0], e.IBV_SEND_SIGNALED, 1))
    a.poll(1)
    keys[0] = windows[0].rkey
    post = SendWR(2, opcode=e.IBV_WR_BIND_MW, num_sge=1, sg=[SGE(0, 0, 0)], send_flags=e.IBV_SEND_SIGNALED)
    post.num_sge = 0
    post.set_bind_wr(windows[1], parts[1])
    a.qp.post_send(post)
    a.poll(1)
    a.qp.wr_start()
    a.qp.wr_flags, a.qp.wr_id = e.IBV_SEND_SIGNALED, 3
    a.qp.wr_bind_mw(windows[2], keys[2], parts[2])
    a.qp.wr_complete()
    a.poll(1)
    for k, key in enumerate(keys):
        b.qp.wr_start()
        b.qp.wr_flags, b.qp.wr_id = e.IBV_SEND_SIGNALED, 11 + k
        b.qp.wr_rdma_write(key, a.mr.buf + k * BYTES)
        b.qp.wr_set_sge(b.sge(100))
        b.qp.wr_complete()
        b.poll(1)
    print("done")


if __name__ == "__main__":
    main()
