"""The verbs of a soft device: what is legal, which errno an illegal call gets, and events (IBA 10, 11)."""

from __future__ import annotations

import ast
import errno
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from rocekit import soft
from rocekit.errors import VerbsError
from rocekit.soft import PostError, RecvWR, SendWR, Sge, SoftDevice
from rocekit.soft.device import Limits
from rocekit.soft.engine.prng import Prng
from rocekit.soft.engine.qp import Qp
from rocekit.soft.engine.qp_state import STATES, TRANSITIONS
from rocekit.soft.wires.memory import MemoryWire

INIT = {"state": "INIT", "access": ["REMOTE_WRITE", "REMOTE_READ", "REMOTE_ATOMIC"]}
RTR = {
    "state": "RTR",
    "dest_ip": "10.0.0.2",
    "dest_qpn": 17,
    "path_mtu": 1024,
    "rq_psn": 0,
    "max_dest_rd_atomic": 4,
    "min_rnr_timer": 1,
}
RTS = {"state": "RTS", "sq_psn": 0, "timeout": 10, "retry_cnt": 7, "rnr_retry": 7, "max_rd_atomic": 4}


class Pair:
    """Two connected RC queue pairs on a wire in memory, and 4 KiB of memory on each side."""

    def __init__(self, *, capacity: int = 64, srq: bool = False, **options: Any) -> None:
        self.wire = MemoryWire()
        self.devices = [SoftDevice("a", ["10.0.0.1"]), SoftDevice("b", ["10.0.0.2"])]
        self.ports = [self.wire.attach(device) for device in self.devices]
        self.cqs = [device.create_cq(capacity) for device in self.devices]
        self.pds = [device.alloc_pd() for device in self.devices]
        self.srq = self.devices[1].create_srq(self.pds[1], 8, limit=2) if srq else None
        self.qps: list[Qp] = []
        for i, (device, pd, cq) in enumerate(zip(self.devices, self.pds, self.cqs, strict=True)):
            qp = device.create_qp(pd, "RC", cq, srq=self.srq if i else None, **options)
            device.modify_qp(qp, 0, **INIT)
            device.modify_qp(qp, 0, **{**RTR, "dest_ip": f"10.0.0.{2 - i}"})
            device.modify_qp(qp, 0, **RTS)
            self.qps.append(qp)
        rights = ["LOCAL_WRITE", "REMOTE_WRITE", "REMOTE_READ", "REMOTE_ATOMIC"]
        self.mrs = [
            device.reg_mr(pd, device.memory.alloc(4096), 4096, rights)
            for device, pd in zip(self.devices, self.pds, strict=True)
        ]

    def sge(self, side: int, offset: int = 0, length: int = 64) -> Sge:
        return Sge(self.mrs[side].addr + offset, length, self.mrs[side].lkey)

    def write(self, wr_id: int, **fields: Any) -> SendWR:
        usual: dict[str, Any] = {
            "remote_va": self.mrs[1].addr,
            "rkey": self.mrs[1].rkey,
            "sges": (self.sge(0),),
        }
        return SendWR(wr_id, "RDMA_WRITE", **(usual | fields))

    def post(self, *wrs: SendWR) -> None:
        self.devices[0].post_send(self.qps[0], wrs, self.wire.now)
        self.wire.kick(self.ports[0])

    def statuses(self, side: int = 0) -> list[str]:
        return [wc.status for wc in self.devices[side].poll_cq(self.cqs[side], 99)]


# -- states


def test_a_qp_that_was_interrupted_while_it_made_a_packet_can_be_destroyed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    pair = Pair()
    pair.devices[0].post_send(pair.qps[0], pair.write(1), 0)
    monkeypatch.setattr(Qp, "next_packet", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pair.devices[0].datagrams_to_send(0)
    monkeypatch.undo()
    pair.devices[0].destroy_qp(pair.qps[0])
    assert pair.devices[0].datagrams_to_send(0) == []


@pytest.mark.parametrize("transport", ["RC", "UC", "UD"])
def test_every_transition_that_the_table_has_not_is_refused(transport: str) -> None:
    device = SoftDevice("a", ["10.0.0.1"])
    for before, after in product(STATES, STATES):
        qp = device.create_qp(device.alloc_pd(), transport, device.create_cq(4))
        qp.state = before
        if (before, after) in TRANSITIONS[transport] or after in ("RESET", "ERR"):
            continue
        with pytest.raises(VerbsError, match=f"EINVAL: a {transport} QP goes from {before} to") as raised:
            device.modify_qp(qp, 0, state=after)
        assert raised.value.errno == errno.EINVAL


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({k: v for k, v in RTR.items() if k != "path_mtu"}, "INIT to RTR needs path_mtu"),
        (RTR | {"sq_psn": 1}, "INIT to RTR takes no sq_psn"),
        (RTR | {"path_mtu": 1500}, "a path MTU is 256, 512, 1024, 2048, 4096 bytes, not 1500"),
        (RTR | {"min_rnr_timer": 32}, "min_rnr_timer is 0 to 31, not 32"),
        (RTR | {"dest_ip": "fd00::2"}, "not of one IP version"),
        (RTR | {"local_ip": "10.0.0.9"}, "a has no address 10.0.0.9"),
        ({"state": "READY"}, "no QP state 'READY'"),
    ],
)
def test_a_wrong_attribute_is_named(attributes: dict[str, Any], words: str) -> None:
    device = SoftDevice("a", ["10.0.0.1"])
    qp = device.create_qp(device.alloc_pd(), "RC", device.create_cq(4))
    device.modify_qp(qp, 0, **INIT)
    with pytest.raises(VerbsError, match=words):
        device.modify_qp(qp, 0, **attributes)


@pytest.mark.parametrize("state", ["RESET", "INIT", "RTR"])
def test_nothing_is_sent_before_rts(state: str) -> None:
    device = SoftDevice("a", ["10.0.0.1"])
    qp = device.create_qp(device.alloc_pd(), "RC", device.create_cq(4))
    for name, attributes in (("INIT", INIT), ("RTR", RTR)):
        if state != "RESET" and qp.state != state:
            device.modify_qp(qp, 0, **attributes)
        assert name
    with pytest.raises(PostError, match=f"EINVAL: nothing can be sent on a QP in {state}"):
        device.post_send(qp, SendWR(1, "SEND"), 0)


def test_nothing_is_received_in_reset() -> None:
    device = SoftDevice("a", ["10.0.0.1"])
    qp = device.create_qp(device.alloc_pd(), "RC", device.create_cq(4))
    with pytest.raises(PostError, match="EINVAL"):
        device.post_recv(qp, RecvWR(1), 0)


def test_what_is_posted_in_err_is_flushed() -> None:
    pair = Pair()
    pair.devices[0].modify_qp(pair.qps[0], 0, state="ERR")
    pair.post(pair.write(1))
    pair.devices[0].post_recv(pair.qps[0], RecvWR(2), 0)
    assert pair.statuses() == ["WR_FLUSH_ERR", "WR_FLUSH_ERR"]


def test_reset_forgets_everything() -> None:
    pair = Pair()
    pair.post(pair.write(1))
    pair.devices[0].modify_qp(pair.qps[0], 0, state="RESET")
    pair.wire.run()
    assert pair.statuses() == []
    pair.devices[0].modify_qp(pair.qps[0], 0, **INIT)
    assert pair.qps[0].dest_ip is None


def test_sqd_finishes_what_is_begun_and_begins_nothing() -> None:
    pair = Pair()
    device, qp = pair.devices[0], pair.qps[0]
    pair.post(pair.write(1, sges=(pair.sge(0, 0, 4096),)), pair.write(2))
    device.modify_qp(qp, pair.wire.now, state="SQD")
    device.post_send(qp, pair.write(3), pair.wire.now)
    pair.wire.run()
    assert [wc.wr_id for wc in device.poll_cq(pair.cqs[0], 9)] == [1]
    assert "SQ_DRAINED" in [event.type for event in pair.ports[0].device.events()]
    device.modify_qp(qp, pair.wire.now, state="RTS")
    pair.wire.kick(pair.ports[0])
    pair.wire.run()
    assert [wc.wr_id for wc in device.poll_cq(pair.cqs[0], 9)] == [2, 3]


@pytest.mark.parametrize("transport", ["UC", "UD"])
def test_what_cannot_be_sent_unreliably_stops_the_send_queue_until_it_is_made_ready_again(
    transport: str,
) -> None:
    """SQE: the send queue only; what is posted there is flushed, and receives go on (10.3.1.6)."""
    wire, devices = MemoryWire(), [SoftDevice("a", ["10.0.0.1"]), SoftDevice("b", ["10.0.0.2"])]
    ports = [wire.attach(device) for device in devices]
    ends = []
    for i, device in enumerate(devices):
        pd, cq = device.alloc_pd(), device.create_cq(16)
        qp = device.create_qp(pd, transport, cq)
        init: dict[str, Any] = {"qkey": 7} if transport == "UD" else {"access": []}
        device.modify_qp(qp, 0, state="INIT", **init)
        to = {"dest_ip": f"10.0.0.{2 - i}", "dest_qpn": 17, "path_mtu": 1024, "rq_psn": 0}
        device.modify_qp(qp, 0, state="RTR", **(to if transport == "UC" else {}))
        device.modify_qp(qp, 0, state="RTS", sq_psn=0)
        mr = device.reg_mr(pd, device.memory.alloc(256), 256, ["LOCAL_WRITE"])
        device.post_recv(qp, RecvWR(9, (Sge(mr.addr, 256, mr.lkey),)), 0)
        ends.append((device, qp, cq, mr))

    def send(i: int, wr_id: int, lkey: int = 0) -> None:
        device, qp, _, mr = ends[i]
        sges = (Sge(mr.addr, 8, mr.lkey ^ lkey),)
        wr = SendWR(wr_id, "SEND", sges, dest_ip=f"10.0.0.{2 - i}", dest_qpn=17, qkey=7)
        device.post_send(qp, wr, wire.now)
        wire.kick(ports[i])
        wire.run()

    def told(i: int) -> list[tuple[int, str]]:
        return [(wc.wr_id, wc.status) for wc in ends[i][0].poll_cq(ends[i][2], 9)]

    device, qp, _, _ = ends[0]
    send(0, 1, lkey=0xFF00)
    assert (qp.state, told(0)) == ("SQE", [(1, "LOC_PROT_ERR")])
    send(0, 2)
    assert told(0) == [(2, "WR_FLUSH_ERR")]
    send(1, 3)
    assert told(0) == [(9, "SUCCESS")]
    device.modify_qp(qp, wire.now, state="RTS")
    send(0, 4)
    assert told(0) == [(4, "SUCCESS")]
    assert told(1) == [(3, "SUCCESS"), (9, "SUCCESS")]


# -- posting


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"opcode": "SEND", "sges": (Sge(0, 0, 0),) * 5}, errno.EINVAL, "5 SGEs; the QP takes 4"),
        ({"opcode": "ATOMIC_FETCH_AND_ADD"}, errno.EINVAL, "takes 8 bytes, not 0"),
        ({"opcode": "RDMA_READ", "inline": b""}, errno.EINVAL, "no inline RDMA_READ"),
        ({"opcode": "SEND", "inline": bytes(257)}, errno.EINVAL, "no inline SEND of 257 bytes"),
        ({"opcode": "TELEPORT"}, errno.EINVAL, "a RC QP has no TELEPORT"),
        (
            {"opcode": "SEND", "sges": (Sge(0, 1 << 31, 0), Sge(0, 1, 0))},
            errno.EMSGSIZE,
            "at most 2147483648",
        ),
    ],
)
def test_a_request_that_cannot_be_is_refused_at_once(fields: dict[str, Any], code: int, words: str) -> None:
    pair = Pair()
    with pytest.raises(PostError, match=words) as raised:
        pair.post(SendWR(1, **fields))
    assert raised.value.errno == code
    assert str(raised.value).startswith(errno.errorcode[code])


def test_a_full_queue_refuses_and_says_which_request_of_the_list() -> None:
    pair = Pair(max_send_wr=3, max_recv_wr=2)
    with pytest.raises(PostError, match="ENOMEM: all 3 send requests are in use") as raised:
        pair.post(*(pair.write(n) for n in range(5)))
    assert (raised.value.errno, raised.value.bad_wr) == (errno.ENOMEM, 3)
    pair.wire.kick(pair.ports[0])
    pair.wire.run()
    assert pair.statuses() == ["SUCCESS"] * 3  # those before it were posted
    with pytest.raises(PostError, match="ENOMEM: all 2 receive requests") as raised:
        pair.devices[1].post_recv(pair.qps[1], [RecvWR(n) for n in range(3)], 0)
    assert raised.value.bad_wr == 2


@pytest.mark.parametrize(
    "sge",
    [
        lambda pair: Sge(pair.mrs[0].addr, 8, pair.mrs[0].lkey + 0x100),
        lambda pair: Sge(pair.mrs[0].addr + 4090, 8, pair.mrs[0].lkey),
        lambda pair: Sge(pair.mrs[0].addr - 1, 8, pair.mrs[0].lkey),
    ],
)
def test_a_bad_lkey_is_a_local_protection_error(sge: Any) -> None:
    pair = Pair()
    pair.post(pair.write(1, sges=(sge(pair),)))
    pair.wire.run()
    assert pair.statuses() == ["LOC_PROT_ERR"]
    assert pair.qps[0].state == "ERR"


def test_an_unsignaled_request_ends_in_silence_unless_it_fails() -> None:
    pair = Pair()
    pair.post(pair.write(1, signaled=False), pair.write(2))
    pair.wire.run()
    assert [wc.wr_id for wc in pair.devices[0].poll_cq(pair.cqs[0], 9)] == [2]
    pair.post(pair.write(3, signaled=False, rkey=1))
    pair.wire.run()
    assert pair.statuses() == ["REM_ACCESS_ERR"]


def test_inline_data_is_taken_when_it_is_posted() -> None:
    pair = Pair()
    pair.mrs[0].view[:5] = b"later"
    pair.post(pair.write(1, sges=(), inline=b"first"))
    pair.wire.run()
    assert bytes(pair.mrs[1].view[:5]) == b"first"


def test_scattered_bytes_arrive_in_the_order_of_their_elements() -> None:
    pair = Pair()
    pair.mrs[0].view[:12] = b"worldhello, "
    receive = RecvWR(9, (pair.sge(1, 100, 3), pair.sge(1, 0, 0), pair.sge(1, 200, 50)))
    pair.devices[1].post_recv(pair.qps[1], receive, 0)
    pair.post(SendWR(1, "SEND", (pair.sge(0, 5, 7), pair.sge(0, 0, 5))))
    pair.wire.run()
    assert bytes(pair.mrs[1].view[100:103]) + bytes(pair.mrs[1].view[200:209]) == b"hello, world"


# -- completions and events


def test_a_notification_comes_once_for_each_request_for_it() -> None:
    pair = Pair()
    device, cq = pair.devices[0], pair.cqs[0]
    told: list[str] = []
    pair.ports[0].on_activity = lambda events: told.extend(e.type for e in events)
    device.request_notify(cq)
    pair.post(pair.write(1), pair.write(2))
    pair.wire.run()
    assert told.count("COMPLETION") == 1
    device.request_notify(cq)
    pair.post(pair.write(3))
    pair.wire.run()
    assert told.count("COMPLETION") == 2


def test_a_solicited_notification_waits_for_a_solicited_message() -> None:
    pair = Pair()
    told: list[str] = []
    pair.ports[1].on_activity = lambda events: told.extend(e.type for e in events)
    pair.devices[1].post_recv(pair.qps[1], [RecvWR(n, (pair.sge(1),)) for n in range(2)], 0)
    pair.devices[1].request_notify(pair.cqs[1], solicited_only=True)
    pair.post(SendWR(1, "SEND", (pair.sge(0),)))
    pair.wire.run()
    assert "COMPLETION" not in told
    pair.post(SendWR(2, "SEND", (pair.sge(0),), solicited=True))
    pair.wire.run()
    assert told.count("COMPLETION") == 1


def test_a_completion_queue_that_runs_over_is_dead_and_so_is_its_queue_pair() -> None:
    pair = Pair(capacity=2)
    told: list[str] = []
    pair.ports[0].on_activity = lambda events: told.extend(e.type for e in events)
    pair.post(*(pair.write(n) for n in range(4)))
    pair.wire.run()
    assert "CQ_ERR" in told
    assert pair.qps[0].state == "ERR"
    assert len(pair.statuses()) == 2
    with pytest.raises(VerbsError, match="EIO"):
        pair.devices[0].poll_cq(pair.cqs[0])


def test_a_shared_receive_queue_serves_and_tells_when_it_runs_low() -> None:
    pair = Pair(srq=True)
    assert pair.srq is not None
    told: list[str] = []
    pair.ports[1].on_activity = lambda events: told.extend(e.type for e in events)
    pair.devices[1].post_srq_recv(pair.srq, [RecvWR(n, (pair.sge(1),)) for n in range(3)])
    pair.post(*(SendWR(n, "SEND", (pair.sge(0),)) for n in range(2)))
    pair.wire.run()
    assert told.count("SRQ_LIMIT_REACHED") == 1
    with pytest.raises(PostError, match="shared queue"):
        pair.devices[1].post_recv(pair.qps[1], RecvWR(7), 0)


def test_invalidate_takes_the_key_away() -> None:
    pair = Pair()
    device = pair.devices[1]
    victim = device.reg_mr(pair.pds[1], device.memory.alloc(64), 64, ["LOCAL_WRITE", "REMOTE_WRITE"])
    device.post_recv(pair.qps[1], RecvWR(5, (pair.sge(1),)), 0)
    pair.post(SendWR(1, "SEND_WITH_INV", (pair.sge(0),), invalidate_rkey=victim.rkey))
    pair.wire.run()
    assert device.poll_cq(pair.cqs[1], 1)[0].invalidated_rkey == victim.rkey
    pair.post(pair.write(2, remote_va=victim.addr, rkey=victim.rkey))
    pair.wire.run()
    assert pair.statuses() == ["SUCCESS", "REM_ACCESS_ERR"]


@pytest.mark.parametrize(
    ("opcode", "right"),
    [("RDMA_WRITE", "REMOTE_WRITE"), ("RDMA_READ", "REMOTE_READ"), ("ATOMIC_FETCH_AND_ADD", "REMOTE_ATOMIC")],
)
def test_a_region_gives_only_the_rights_that_it_was_registered_with(opcode: str, right: str) -> None:
    for rights, status in ((["LOCAL_WRITE", right], "SUCCESS"), (["LOCAL_WRITE"], "REM_ACCESS_ERR")):
        pair = Pair()
        device = pair.devices[1]
        mr = device.reg_mr(pair.pds[1], device.memory.alloc(64), 64, rights)
        pair.post(SendWR(1, opcode, (pair.sge(0, 0, 8),), remote_va=mr.addr, rkey=mr.rkey))
        pair.wire.run()
        assert pair.statuses() == [status]


def test_a_region_of_another_protection_domain_is_nobodys() -> None:
    pair = Pair()
    device = pair.devices[1]
    mr = device.reg_mr(device.alloc_pd(), device.memory.alloc(64), 64, ["LOCAL_WRITE", "REMOTE_WRITE"])
    pair.post(pair.write(1, remote_va=mr.addr, rkey=mr.rkey))
    pair.wire.run()
    assert pair.statuses() == ["REM_ACCESS_ERR"]


def test_an_atomic_must_be_aligned() -> None:
    pair = Pair()
    wr = SendWR(
        1, "ATOMIC_FETCH_AND_ADD", (pair.sge(0, 0, 8),), remote_va=pair.mrs[1].addr + 4, rkey=pair.mrs[1].rkey
    )
    pair.post(wr)
    pair.wire.run()
    assert pair.statuses() == ["REM_INV_REQ_ERR"]


# -- memory and limits


def test_device_memory_is_copied_to_and_registered() -> None:
    pair = Pair()
    device = pair.devices[1]
    dm = device.alloc_dm(128)
    mr = device.reg_dm_mr(pair.pds[1], dm, 0, 128, ["LOCAL_WRITE", "REMOTE_WRITE", "REMOTE_READ"])
    dm.copy_to(64, b"on the device")
    pair.post(SendWR(1, "RDMA_READ", (pair.sge(0, 0, 13),), remote_va=mr.addr + 64, rkey=mr.rkey))
    pair.wire.run()
    assert bytes(pair.mrs[0].view[:13]) == b"on the device"
    with pytest.raises(VerbsError, match="EINVAL: 13 bytes at 120 reach past the 128"):
        dm.copy_to(120, b"on the device")
    with pytest.raises(VerbsError, match="ENOMEM"):
        device.alloc_dm(1 << 30)


@pytest.mark.parametrize(
    ("rights", "words"),
    [(["REMOTE_WRITE"], "EINVAL: .*need LOCAL_WRITE"), (["FLY"], "EINVAL: no access right FLY")],
)
def test_a_region_with_impossible_rights_is_refused(rights: list[str], words: str) -> None:
    device = SoftDevice("a", ["10.0.0.1"])
    with pytest.raises(VerbsError, match=words):
        device.reg_mr(device.alloc_pd(), device.memory.alloc(8), 8, rights)


def test_memory_that_is_not_there_is_a_bad_address() -> None:
    device = SoftDevice("a", ["10.0.0.1"])
    with pytest.raises(VerbsError, match="EFAULT"):
        device.reg_mr(device.alloc_pd(), 0x1000, 8, [])


def test_what_is_in_use_cannot_be_destroyed() -> None:
    pair = Pair()
    device = pair.devices[0]
    with pytest.raises(VerbsError, match="EBUSY"):
        device.destroy_cq(pair.cqs[0])
    with pytest.raises(VerbsError, match="EBUSY"):
        device.dealloc_pd(pair.pds[0])
    device.destroy_qp(pair.qps[0])
    device.dereg_mr(pair.mrs[0])
    device.destroy_cq(pair.cqs[0])
    device.dealloc_pd(pair.pds[0])


def test_limits_are_kept() -> None:
    device = SoftDevice(
        "a", ["10.0.0.1"], limits=Limits(max_qp=1, max_qp_wr=10, max_sge=2, max_cqe=5, max_mr=1)
    )
    pd, cq = device.alloc_pd(), device.create_cq(5)
    with pytest.raises(VerbsError, match="EINVAL: a completion queue has 1 to 5 entries, not 6"):
        device.create_cq(6)
    with pytest.raises(VerbsError, match="EINVAL: max_send_wr is at most 10, not 11"):
        device.create_qp(pd, "RC", cq, max_send_wr=11, max_recv_wr=1)
    with pytest.raises(VerbsError, match="EINVAL: a QP is RC, UC, UD, not XRC"):
        device.create_qp(pd, "XRC", cq)
    device.create_qp(pd, "RC", cq, max_send_wr=1, max_recv_wr=1, max_send_sge=1, max_recv_sge=1)
    with pytest.raises(VerbsError, match="ENOMEM: all 1 QPs are in use"):
        device.create_qp(pd, "RC", cq, max_send_wr=1, max_recv_wr=1, max_send_sge=1, max_recv_sge=1)
    device.reg_mr(pd, device.memory.alloc(8), 8, [])
    with pytest.raises(VerbsError, match="ENOMEM: all 1 memory regions are in use"):
        device.reg_mr(pd, device.memory.alloc(8), 8, [])


def test_the_engine_knows_no_clock_no_socket_and_no_chance() -> None:
    folder = Path(soft.__file__).parent
    modules = [folder / "device.py", *(folder / "engine").glob("*.py"), *(folder / "cm").glob("*.py")]
    assert len(modules) > 20
    for path in modules:
        imported = {
            name.split(".")[0]
            for node in ast.walk(ast.parse(path.read_text()))
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
        }
        assert not imported & {"socket", "time", "random", "os", "select", "datetime", "secrets"}, path.name


def test_the_generator_is_splitmix64() -> None:
    # The reference outputs of seed 1234567, as published with the algorithm.
    draw = Prng(1234567)
    assert [draw.bits(64) for _ in range(3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]
