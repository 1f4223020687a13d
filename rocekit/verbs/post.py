"""Work requests as pyverbs wants them, and posting a list of them."""

from __future__ import annotations

import errno
import itertools
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from rocekit.endpoint.work import ATOMICS, RecvWr, SendWr, Target

_NO_WR = (1 << 64) - 1


def network_order(immediate: int) -> int:
    """A 32-bit number whose bytes in this machine's memory are in network order, or back."""
    return int.from_bytes(immediate.to_bytes(4, "big"), sys.byteorder)


def post(pyverbs: SimpleNamespace, call: Callable[[Any, Any], None], made: list[Any]) -> tuple[int, int]:
    """Post a list; (index of the WR that was refused, errno) as libibverbs reports it, or (0, 0)."""
    for wr, following in itertools.pairwise(made):
        wr.next_wr = following
    empty = pyverbs.wr.SGE(0, 0, 0)
    bad = type(made[0])(wr_id=_NO_WR, num_sge=1, sg=[empty])
    empty.close()
    try:
        call(made[0], bad)
    except pyverbs.pyverbs_error.PyverbsRDMAError as error:
        ids = [wr.wr_id for wr in made]
        return ids.index(bad.wr_id) if bad.wr_id in ids else 0, abs(error.error_code) or errno.EINVAL
    finally:
        # pyverbs frees nothing by itself here, and a second close would free twice. After a refusal,
        # `bad` shares its list with the WR that was refused.
        if bad.wr_id == _NO_WR:
            bad.close()
        for wr in made:
            wr.close()
    return 0, 0


def recv_wr(pyverbs: SimpleNamespace, wr: RecvWr) -> Any:
    """``struct ibv_recv_wr``."""
    sges = _sges(pyverbs, wr)
    made = pyverbs.wr.RecvWR(wr_id=wr.wr_id, num_sge=len(sges), sg=sges)
    made.num_sge = len(wr.sges)
    for sge in sges:
        sge.close()
    return made


def send_wr(pyverbs: SimpleNamespace, wr: SendWr, address_handle: Callable[[Target], Any]) -> Any:
    """``struct ibv_send_wr``."""
    enums = pyverbs.enums
    flags = enums.IBV_SEND_SIGNALED if wr.signaled else 0
    flags |= enums.IBV_SEND_INLINE if wr.inline else 0
    flags |= enums.IBV_SEND_FENCE if wr.fenced else 0
    flags |= enums.IBV_SEND_SOLICITED if wr.solicited else 0
    sges = _sges(pyverbs, wr)
    # Immediate data, in network order, and the key to invalidate, in the machine's, share a field.
    word = wr.invalidate_rkey or 0 if wr.imm is None else network_order(wr.imm)
    made = pyverbs.wr.SendWR(
        wr_id=wr.wr_id,
        opcode=getattr(enums, f"IBV_WR_{wr.opcode}"),
        num_sge=len(sges),
        sg=sges,
        send_flags=flags,
        imm_data=word,
    )
    made.num_sge = len(wr.sges)
    for sge in sges:
        sge.close()
    if wr.opcode in ATOMICS:
        add = wr.opcode == "ATOMIC_FETCH_AND_ADD"
        # ibv_send_wr's compare_add is the value to add, or the value to compare with.
        first, second = (wr.swap_add, 0) if add else (wr.compare, wr.swap_add)
        made.set_wr_atomic(wr.rkey, wr.remote_va, first, second)
    elif wr.rkey is not None:
        made.set_wr_rdma(wr.rkey, wr.remote_va)
    elif wr.to is not None:
        made.set_wr_ud(address_handle(wr.to), wr.to.qpn, wr.to.qkey)
    return made


def _sges(pyverbs: SimpleNamespace, wr: SendWr | RecvWr) -> list[Any]:
    sge = pyverbs.wr.SGE
    # pyverbs wants one at least; a WR without data has its number of elements set to 0 afterwards.
    return [sge(part.addr, part.length, part.region.lkey) for part in wr.sges] or [sge(0, 0, 0)]
