"""Memory windows of a soft device: what each key allows, and from when to when (IBA 10.6.7)."""

from __future__ import annotations

from typing import Any

import pytest
from test_soft_verbs import Pair

from rocekit.errors import VerbsError
from rocekit.soft import PostError, RecvWR, SendWR
from rocekit.soft.engine.requester import Requester
from rocekit.soft.engine.windows import MW, Binding, next_key

RIGHTS = ("LOCAL_WRITE", "REMOTE_WRITE", "REMOTE_READ", "MW_BIND")
START, LENGTH = 1024, 512


class Lent(Pair):
    """Two connected queue pairs; side 1 has a region that windows may be bound to."""

    def __init__(self, *rights: str, **options: Any) -> None:
        super().__init__(**options)
        device = self.devices[1]
        self.region = device.reg_mr(self.pds[1], device.memory.alloc(4096), 4096, rights or RIGHTS)

    def window(self, kind: int = 2) -> MW:
        return self.devices[1].alloc_mw(self.pds[1], kind)

    def binding(self, mw: MW, *rights: str, length: int = LENGTH) -> Binding:
        return Binding.to(mw, self.region, self.region.addr + START, length, rights or ("REMOTE_WRITE",))

    def bind(self, mw: MW, *rights: str, wr_id: int = 70) -> int:
        """Post a BIND_MW; the new key."""
        rkey = next_key(mw.rkey)
        wr = SendWR(wr_id, "BIND_MW", rkey=rkey, binding=self.binding(mw, *rights))
        self.ask(wr)
        return rkey

    def ask(self, *wrs: SendWR) -> None:
        self.devices[1].post_send(self.qps[1], wrs, self.wire.now)
        self.wire.kick(self.ports[1])
        self.wire.run()

    def reach(self, rkey: int, offset: int = START, opcode: str = "RDMA_WRITE") -> str:
        """The status of side 0's request for 64 bytes there."""
        wr = SendWR(1, opcode, (self.sge(0),), remote_va=self.region.addr + offset, rkey=rkey)
        self.post(wr)
        self.wire.run()
        (status,) = self.statuses(0)
        return status


def test_a_window_opens_its_part_of_the_region_for_its_rights_only() -> None:
    assert Lent().reach(Lent().window().rkey) == "REM_ACCESS_ERR", "not bound to anything"
    for offset, opcode, status in (
        (START, "RDMA_WRITE", "SUCCESS"),
        (START + LENGTH - 64, "RDMA_WRITE", "SUCCESS"),
        (START - 1, "RDMA_WRITE", "REM_ACCESS_ERR"),
        (START + LENGTH - 63, "RDMA_WRITE", "REM_ACCESS_ERR"),
        (START, "RDMA_READ", "REM_ACCESS_ERR"),
    ):
        pair = Lent()
        rkey = pair.bind(pair.window())
        assert pair.statuses(1) == ["SUCCESS"]
        assert pair.reach(rkey, offset, opcode) == status


def test_what_is_written_through_a_window_is_in_the_region() -> None:
    pair = Lent()
    pair.mrs[0].view[:64] = bytes(range(64))
    assert pair.reach(pair.bind(pair.window())) == "SUCCESS"
    assert bytes(pair.region.view[START : START + 64]) == bytes(range(64))


def test_a_peer_gives_a_key_back_and_cannot_use_it_any_more() -> None:
    pair = Lent()
    mw = pair.window()
    rkey = pair.bind(mw)
    pair.statuses(1)
    receive = RecvWR(5, (pair.sge(1),))
    pair.devices[1].post_recv(pair.qps[1], [receive], 0)
    pair.post(SendWR(2, "SEND_WITH_INV", (pair.sge(0),), invalidate_rkey=rkey))
    pair.wire.run()
    assert pair.statuses(0) == ["SUCCESS"]
    (wc,) = pair.devices[1].poll_cq(pair.cqs[1], 9)
    assert (wc.wr_id, wc.invalidated_rkey) == (5, rkey)
    again = pair.bind(mw)
    assert again != rkey
    assert pair.statuses(1) == ["SUCCESS"]
    assert pair.reach(rkey) == "REM_ACCESS_ERR", "the old key is another one"


def test_local_invalidation_takes_effect_where_it_stands_in_the_queue() -> None:
    pair = Lent()
    mw = pair.window()
    rkey = pair.bind(mw)
    pair.statuses(1)
    assert pair.reach(rkey) == "SUCCESS"
    pair.ask(SendWR(71, "LOCAL_INV", invalidate_rkey=rkey))
    (wc,) = pair.devices[1].poll_cq(pair.cqs[1], 9)
    assert (wc.wr_id, wc.status, wc.opcode) == (71, "SUCCESS", "LOCAL_INV")
    assert pair.reach(rkey) == "REM_ACCESS_ERR"


def test_a_binding_completes_in_its_turn_and_takes_no_psn() -> None:
    pair = Lent()
    mw, address, key = pair.window(), pair.mrs[0].addr, pair.mrs[0].rkey
    write: dict[str, Any] = {"sges": (pair.sge(1, length=3000),), "remote_va": address, "rkey": key}
    rkey = next_key(mw.rkey)
    pair.ask(
        SendWR(1, "RDMA_WRITE", **write),
        SendWR(2, "BIND_MW", rkey=rkey, binding=pair.binding(mw)),
        SendWR(3, "RDMA_READ", **write),
    )
    completions = pair.devices[1].poll_cq(pair.cqs[1], 9)
    assert [(wc.wr_id, wc.status) for wc in completions] == [(n, "SUCCESS") for n in (1, 2, 3)]
    requester = pair.qps[1].requester
    assert isinstance(requester, Requester)
    assert requester.next_psn == 3 + 3
    assert pair.reach(rkey) == "SUCCESS"


@pytest.mark.parametrize(
    ("rights", "asked"),
    [(("LOCAL_WRITE", "REMOTE_WRITE"), "REMOTE_WRITE"), (("REMOTE_READ", "MW_BIND"), "REMOTE_WRITE")],
    ids=["a region without MW_BIND", "writing, where the owner itself may not"],
)
def test_what_must_not_be_bound_ends_the_queue_pair(rights: tuple[str, ...], asked: str) -> None:
    pair = Lent(*rights)
    pair.bind(pair.window(), asked)
    assert pair.statuses(1) == ["MW_BIND_ERR"]
    assert pair.qps[1].state == "ERR"


def test_a_binding_that_is_not_allowed_waits_for_the_requests_before_it_to_end() -> None:
    pair = Lent("LOCAL_WRITE", "REMOTE_WRITE")  # without MW_BIND
    mw, region = pair.window(), pair.mrs[0]
    write: dict[str, Any] = {
        "sges": (pair.sge(1, length=3000),),
        "remote_va": region.addr,
        "rkey": region.rkey,
    }
    pair.ask(
        SendWR(1, "RDMA_WRITE", **write),
        SendWR(2, "BIND_MW", rkey=next_key(mw.rkey), binding=pair.binding(mw)),
        SendWR(3, "RDMA_WRITE", **write),
    )
    assert pair.statuses(1) == ["SUCCESS", "MW_BIND_ERR", "WR_FLUSH_ERR"]


def test_a_bound_window_of_type_2_is_not_bound_again() -> None:
    pair = Lent()
    mw = pair.window()
    pair.bind(mw)
    pair.bind(mw)
    assert pair.statuses(1) == ["SUCCESS", "MW_BIND_ERR"]


def test_a_window_of_type_1_is_bound_again_and_again_and_unbound_by_no_bytes() -> None:
    pair = Lent()
    mw, device = pair.window(1), pair.devices[1]

    def bind(length: int) -> int:
        rkey = device.bind_mw(pair.qps[1], 9, pair.binding(mw, length=length), pair.wire.now)
        pair.wire.kick(pair.ports[1])
        assert pair.statuses(1) == ["SUCCESS"]
        return rkey

    first, second = bind(LENGTH), bind(LENGTH)
    assert first != second
    assert pair.reach(second) == "SUCCESS"
    bind(0)
    assert pair.reach(mw.rkey) == "REM_ACCESS_ERR"
    with pytest.raises(VerbsError, match="by a work request"):
        device.bind_mw(pair.qps[1], 9, pair.binding(pair.window(2)), 0)


def test_a_window_of_type_2_is_its_queue_pairs_alone() -> None:
    pair = Lent()
    mw = pair.window()
    rkey = pair.bind(mw)
    assert mw.allows(pair.pds[1], pair.qps[1].qpn, mw.addr, 64, "REMOTE_WRITE")
    assert not mw.allows(pair.pds[1], pair.qps[1].qpn + 1, mw.addr, 64, "REMOTE_WRITE")
    assert not pair.devices[1].keys.windows.invalidate(pair.pds[1], pair.qps[1].qpn + 1, rkey)


def test_what_is_in_use_stays() -> None:
    pair = Lent()
    mw = pair.window()
    pair.bind(mw)
    with pytest.raises(VerbsError, match="EBUSY: 1 memory windows"):
        pair.devices[1].dereg_mr(pair.region)
    pair.devices[1].dealloc_mw(mw)
    pair.devices[1].dereg_mr(pair.region)


def test_requests_that_cannot_be_are_refused_at_once() -> None:
    pair = Lent()
    with pytest.raises(PostError, match="needs a binding"):
        pair.ask(SendWR(1, "BIND_MW"))
    with pytest.raises(VerbsError, match="gives no LOCAL_WRITE"):
        pair.binding(pair.window(), "LOCAL_WRITE")
    with pytest.raises(VerbsError, match="type 1 or 2, not 3"):
        pair.window(3)
