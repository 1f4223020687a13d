"""Conversion of work requests and completions between ``rocekit.endpoint`` and a soft device."""

from __future__ import annotations

import errno
from collections.abc import Callable

from rocekit.endpoint import Completion, RecvWr, SendWr
from rocekit.soft.engine.errors import PostError
from rocekit.soft.engine.memory import Sge
from rocekit.soft.engine.work import WC, SendWR


def sges_of(wr: SendWr | RecvWr) -> tuple[Sge, ...]:
    """The scatter-gather list of a request."""
    return tuple(Sge(s.addr, s.length, s.region.lkey) for s in wr.sges)


def send_wr(wr: SendWr) -> SendWR:
    """The send request for the device; inline data is copied."""
    inline = None
    if wr.inline:
        inline = b"".join(s.region.read(s.offset, s.length) for s in wr.sges)
    return SendWR(
        wr.wr_id,
        wr.opcode,
        sges_of(wr),
        inline,
        wr.signaled,
        wr.solicited,
        wr.fenced,
        wr.remote_va or 0,
        wr.rkey or 0,
        wr.imm or 0,
        wr.invalidate_rkey or 0,
        wr.compare or 0,
        wr.swap_add or 0,
        dest_ip=None if wr.to is None else wr.to.ip,
        dest_qpn=0 if wr.to is None else wr.to.qpn,
        qkey=0 if wr.to is None else wr.to.qkey,
    )


def completion(wc: WC) -> Completion:
    """The completion for the scenario; a failed one has neither opcode nor length."""
    done = wc.status == "SUCCESS"
    return Completion(
        wc.qpn,
        wc.wr_id,
        wc.status,
        wc.opcode if done else None,
        wc.byte_len if done else None,
        wc.vendor_err,
        wc.imm,
        wc.src_qpn,
        wc.timestamp,
    )


def refused(post: Callable[[], None]) -> tuple[int, int]:
    """Post; (index of the request that was refused, errno), or (0, 0)."""
    try:
        post()
    except PostError as error:
        return error.bad_wr, error.errno or errno.EINVAL
    return 0, 0
