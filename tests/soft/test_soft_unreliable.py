"""UC, UD and congestion notification between soft endpoints (IBA 9.8, A17.9)."""

from __future__ import annotations

import pytest

from rocekit.soft import RecvWR, SendWR, Sge, SoftDevice
from rocekit.soft.engine.congestion import Dcqcn, DcqcnParameters
from rocekit.soft.testbed import QKEY, ProgramRun, check_run, run
from rocekit.soft.testbed.program import Post, Program, QpSetup, Receive, random_program
from rocekit.soft.wires.faults import Fault, at_random
from rocekit.soft.wires.memory import MemoryWire


def program(transport: str, *posts: Post, receives: int = 8, length: int = 8192) -> Program:
    return Program(
        (QpSetup(transport=transport, path_mtu=1024),), posts, (Receive(count=receives, length=length),)
    )


def received(result: ProgramRun) -> list[int]:
    """Bytes of each message that b received."""
    return [wc.byte_len for (name, _), wcs in result.completions.items() for wc in wcs if name == "soft_b"]


def test_uc_is_never_acknowledged() -> None:
    result = run(program("UC", Post(length=3000), Post(opcode="RDMA_WRITE_WITH_IMM", length=5000, imm=7)))
    assert received(result) == [3000, 5000]
    assert [t["status"] for t in result.transfer_dicts()] == ["sent", "sent"]
    assert result.packets == 3 + 5
    assert check_run(result) == []


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_uc_loses_the_whole_message_and_only_that(lost: int) -> None:
    result = run(
        program("UC", Post(length=3000), Post(length=2000), Post(length=10)), [Fault("drop", psn=lost)]
    )
    assert received(result) == [2000, 10]
    assert check_run(result) == []
    # The next message used the receive of the lost one.
    assert [wc.wr_id for wc in result.completions["soft_b", 17]] == [1, 2]


def test_a_datagram_arrives_behind_forty_bytes_of_network_header() -> None:
    result = run(program("UD", Post(length=100), Post(opcode="SEND_WITH_IMM", length=0, imm=3)))
    assert received(result) == [140, 40]
    wc = result.completions["soft_b", 17][0]
    assert (wc.grh, wc.src_qpn, wc.src_ip) == (True, 17, "10.9.0.1")
    entry = result.received[0]
    area = result.hosts[1].device.memory.read(entry.address, 40)
    assert area[20] == 0x45
    assert area[32:36] == bytes([10, 9, 0, 1])
    assert check_run(result) == []


def two_devices() -> tuple[MemoryWire, SoftDevice, SoftDevice]:
    wire = MemoryWire()
    a, b = SoftDevice("a", ["10.0.0.1"]), SoftDevice("b", ["10.0.0.2"])
    wire.attach(a)
    wire.attach(b)
    return wire, a, b


@pytest.mark.parametrize(
    ("qkey", "length", "counter"),
    [(QKEY + 1, 100, "drop_qkey"), (QKEY, 1000, "drop_too_long"), (QKEY, 100, "rdma_recvs")],
)
def test_a_datagram_needs_the_q_key_and_room(qkey: int, length: int, counter: str) -> None:
    wire, a, b = two_devices()
    qps = []
    for device in (a, b):
        qp = device.create_qp(device.alloc_pd(), "UD", device.create_cq(8))
        device.modify_qp(qp, wire.now, state="INIT", qkey=QKEY)
        device.modify_qp(qp, wire.now, state="RTR")
        device.modify_qp(qp, wire.now, state="RTS", sq_psn=5)
        qps.append(qp)
    mr = b.reg_mr(qps[1].pd, b.memory.alloc(512), 512, ["LOCAL_WRITE"])
    b.post_recv(qps[1], RecvWR(1, (Sge(mr.addr, 512, mr.lkey),)), wire.now)
    source = a.reg_mr(qps[0].pd, a.memory.alloc(1024), 1024, [])
    wr = SendWR(
        1,
        "SEND",
        (Sge(source.addr, length, source.lkey),),
        dest_ip="10.0.0.2",
        dest_qpn=qps[1].qpn,
        qkey=qkey,
    )
    a.post_send(qps[0], wr, wire.now)
    wire.kick(wire.ports[0])
    wire.run()
    assert b.counters[counter] == 1
    assert len(b.poll_cq(qps[1].recv_cq, 8)) == (counter == "rdma_recvs")
    # Its sender gets no response.
    assert [wc.status for wc in a.poll_cq(qps[0].send_cq, 8)] == ["SUCCESS"]


def test_marked_packets_are_answered_by_paced_cnps() -> None:
    marked = [Fault("ecn", psn=n) for n in range(1, 65)]
    result = run(Program((QpSetup(path_mtu=1024),), (Post(opcode="RDMA_WRITE", length=65536),)), marked)
    b = result.hosts[1].device
    assert b.counters["rcvd_ecn_marked"] == 64
    times = [time for time, source, _ in result.recorder.cnps if source.ip == "10.9.0.2"]
    assert len(times) == b.counters["cnp_sent"] == result.hosts[0].device.counters["cnp_handled"]
    # 64 packets take 57 µs: one CNP at once, one more after 50 µs.
    assert len(times) == 2
    assert times[1] - times[0] >= 50_000


@pytest.mark.parametrize("opcode", ["RDMA_WRITE", "RDMA_READ"])
def test_a_sender_that_is_told_of_congestion_slows_down_and_still_finishes(opcode: str) -> None:
    # One marked data packet, from whichever side the data comes.
    of = "response" if opcode == "RDMA_READ" else "request"
    marked = [Fault("ecn", psn=5, of=of)]
    posts = (Post(opcode=opcode, length=1 << 18),)
    took = []
    for dcqcn in (None, DcqcnParameters()):
        result = run(Program((QpSetup(path_mtu=1024),), posts), marked, dcqcn=dcqcn)
        transfer = result.transfer_dicts()[0]
        assert (transfer["status"], transfer["retransmitted_packets"]) == ("acked", 0)
        assert check_run(result) == []
        took.append(transfer["acked_ns"] - transfer["first_ns"])
    # Half the rate for 55 µs, three quarters for the next 55 µs, and so on: 55 µs longer in total.
    assert 30_000 < took[1] - took[0] < 60_000


def test_dcqcn_halves_at_the_first_cnp_and_comes_back() -> None:
    parameters = DcqcnParameters(line_rate_bps=10_000_000_000)
    flow = Dcqcn(parameters)
    flow.on_cnp(0)
    assert flow.rate_bps == 5_000_000_000
    flow.on_send(1250, 0)
    assert flow.ready_ns == 2000  # 10,000 bits at 5 Gb/s
    rates = []
    for now in range(0, 2_000_000, 55_000):
        flow.on_send(1, now)
        rates.append(flow.rate_bps)
    assert rates == sorted(rates)
    assert rates[-1] == parameters.line_rate_bps
    assert not flow.limited


def test_dcqcn_never_falls_below_its_least_rate() -> None:
    flow = Dcqcn(DcqcnParameters(min_rate_bps=1_000_000))
    for now in range(100):
        flow.on_cnp(now)
    assert flow.rate_bps == 1_000_000


@pytest.mark.parametrize("seed", range(20))
def test_what_arrives_unreliably_is_what_was_sent(seed: int) -> None:
    faults = at_random({"drop": 0.1, "reorder": 0.05, "duplicate": 0.05, "bit-error": 0.05})
    result = run(random_program(seed, transports=("UC", "UD")), faults, seed)
    assert result.finished
    assert check_run(result) == []
