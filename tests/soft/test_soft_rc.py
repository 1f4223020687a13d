"""Reliable connections between soft devices: packet loss and recovery (IBA 9.7).

Each test runs a program over a wire in memory and reads the record as a transcript: what was sent, in which
round, and why. PSNs in faults count from 1; those in the record are the ones of the packets.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rocekit.soft.testbed import ProgramRun, check_run, run
from rocekit.soft.testbed.program import Post, Program, QpSetup, Receive, random_program
from rocekit.soft.wires.faults import Fault, at_random

MTU = 1024


def one(*posts: Post, receives: int = 0, length: int = 8192, **connection: Any) -> Program:
    given = (Receive(count=receives, length=length),) if receives else ()
    return Program((QpSetup(**{"path_mtu": MTU, "timeout": 6} | connection),), posts, given)


def sent(result: ProgramRun, transfer: int = 0) -> list[tuple[int, int, str | None]]:
    """(PSN from the start, round, cause) of a transfer's request packets."""
    record = result.transfers()[transfer].request
    start = result.program.connections[0].a_psn
    return [(s.psn - start, s.round, s.cause) for s in record.requests]


def statuses(result: ProgramRun, device: str = "soft_a") -> list[str]:
    return [wc.status for (name, _), wcs in result.completions.items() for wc in wcs if name == device]


def test_a_message_takes_a_psn_for_each_path_mtu_and_one_when_empty() -> None:
    result = run(one(Post(length=0), Post(length=MTU), Post(length=MTU + 1), receives=3))
    assert [(t["bytes"], t["packets"], t["first_psn"]) for t in result.transfer_dicts()] == [
        (0, 1, 0),
        (MTU, 1, 1),
        (MTU + 1, 2, 2),
    ]
    assert statuses(result) == ["SUCCESS"] * 3
    assert check_run(result) == []


def test_a_lost_packet_is_named_by_one_nak_and_sent_again_with_all_behind_it() -> None:
    result = run(one(Post(opcode="RDMA_WRITE", length=8 * MTU)), [Fault("drop", psn=3)])
    packets = sent(result)
    back = packets.index((2, 1, "nak"))
    assert packets[:back] == [(n, 0, None) for n in range(back)]
    assert packets[back:] == [(n, 1, "nak") for n in range(2, back)] + [(n, 0, None) for n in range(back, 8)]
    transfer = result.transfer_dicts()[0]
    assert (transfer["naks"], transfer["timeouts"], transfer["retransmitted_packets"]) == (1, 0, back - 2)
    assert check_run(result) == []


def test_nobody_can_nak_the_loss_of_the_last_packet_so_the_timer_repeats_it() -> None:
    result = run(one(Post(length=3 * MTU), receives=1), [Fault("drop", psn=3)])
    assert sent(result) == [
        (0, 0, None),
        (1, 0, None),
        (2, 0, None),
        (0, 1, "timeout"),
        (1, 1, "timeout"),
        (2, 1, "timeout"),
    ]
    assert result.transfer_dicts()[0]["timeouts"] == 1
    assert len(statuses(result, "soft_b")) == 1


def test_a_retransmission_can_be_lost_too() -> None:
    faults = [Fault("drop", psn=2, iter=1), Fault("drop", psn=2, iter=2)]
    result = run(one(Post(opcode="RDMA_WRITE", length=4 * MTU)), faults)
    assert [p for p in sent(result) if p[0] == 1] == [(1, 0, None), (1, 1, "nak"), (1, 2, "timeout")]
    assert check_run(result) == []


def test_a_read_asks_again_from_the_lost_response_on() -> None:
    result = run(one(Post(opcode="RDMA_READ", length=8 * MTU)), [Fault("drop", psn=4, of="response")])
    truth = result.transfers()[0]
    assert sent(result) == [(0, 0, None), (3, 1, "implied_nak")]
    rounds = {n: [r.round for r in truth.responses if r.psn == n] for n in range(8)}
    assert rounds == {n: [0] if n < 3 else [0, 1] for n in range(8)}
    assert check_run(result) == []


def test_an_atomic_whose_answer_was_lost_is_answered_again_and_not_done_again() -> None:
    result = run(
        one(Post(opcode="ATOMIC_FETCH_AND_ADD", length=8, swap_add=5)), [Fault("drop", psn=1, of="response")]
    )
    posted = result.posted[0]
    before = int.from_bytes(posted.content, "little")
    after = int.from_bytes(result.hosts[1].device.memory.read(posted.remote, 8), "little")
    assert after == (before + 5) % 2**64
    assert [r.round for r in result.transfers()[0].responses] == [0, 1]
    assert check_run(result) == []


def test_a_receiver_that_is_not_ready_is_waited_for_as_long_as_it_says() -> None:
    program = Program(
        (QpSetup(path_mtu=MTU, min_rnr_timer=2),),  # 20 µs
        (Post(length=100),),
        (Receive(count=1, at_ns=30_000),),
    )
    result = run(program)
    requests = result.transfers()[0].request.requests
    assert [(s.round, s.cause) for s in requests] == [(0, None), (1, "rnr"), (2, "rnr")]
    assert all(b.time_ns - a.time_ns >= 20_000 for a, b in pairwise(requests))
    assert result.transfer_dicts()[0]["rnr_naks"] == 2


def test_rnr_retry_counts_down_unless_it_is_seven() -> None:
    result = run(one(Post(length=100), rnr_retry=2))
    assert statuses(result) == ["RNR_RETRY_EXC_ERR"]
    assert len(sent(result)) == 3


def test_a_silent_peer_ends_in_retry_exceeded_and_the_rest_is_flushed() -> None:
    everything = [Fault("drop", psn=n, iter=0) for n in range(1, 9)]
    result = run(one(Post(opcode="RDMA_WRITE"), Post(opcode="RDMA_WRITE"), retry_cnt=3), everything)
    assert statuses(result) == ["RETRY_EXC_ERR", "WR_FLUSH_ERR"]
    assert [r for p, r, _ in sent(result) if p == 0] == [0, 1, 2, 3]


@pytest.mark.parametrize("wrong", ["rkey", "bounds"])
def test_a_wrong_key_or_address_is_refused_and_ends_the_connection(wrong: str) -> None:
    result = run(
        one(Post(opcode="RDMA_WRITE", wrong=wrong), Post(opcode="RDMA_WRITE", at_ns=50_000), receives=1)
    )
    assert result.transfer_dicts()[0]["status"] == "nak:remote_access_error"
    assert statuses(result) == ["REM_ACCESS_ERR", "WR_FLUSH_ERR"]
    assert statuses(result, "soft_b") == ["WR_FLUSH_ERR"]
    assert "QP_ACCESS_ERR" in [e.type for e in result.hosts[1].events]


def test_a_wrong_local_key_fails_after_what_was_posted_before_it() -> None:
    result = run(one(Post(opcode="RDMA_WRITE", length=5000), Post(opcode="RDMA_WRITE", wrong="lkey")))
    assert statuses(result) == ["SUCCESS", "LOC_PROT_ERR"]
    assert check_run(result) == []


def test_a_message_longer_than_the_receive_is_an_invalid_request() -> None:
    result = run(one(Post(length=2000), receives=1, length=1000))
    assert statuses(result) == ["REM_INV_REQ_ERR"]
    assert statuses(result, "soft_b") == ["LOC_LEN_ERR"]


@pytest.mark.parametrize("first", [0xFFFFFD, 0xFFFFFF])
def test_psns_wrap_in_the_middle_of_a_message(first: int) -> None:
    faults = [Fault("drop", psn=3)]
    result = run(one(Post(opcode="RDMA_WRITE", length=9 * MTU), a_psn=first), faults)
    transfer = result.transfer_dicts()[0]
    assert (transfer["first_psn"], transfer["last_psn"]) == (first, (first + 8) % 2**24)
    assert check_run(result) == []


def test_no_more_reads_are_under_way_than_the_depth_allows() -> None:
    result = run(one(*[Post(opcode="RDMA_READ", length=4 * MTU)] * 6, depth=2))
    spans = [(t.request.requests[0].time_ns, t.request.completed_ns or 0) for t in result.transfers()]
    assert max(sum(a <= start < b for a, b in spans) for start, _ in spans) == 2


def test_a_fenced_request_waits_for_the_read_before_it() -> None:
    result = run(one(Post(opcode="RDMA_READ", length=4 * MTU), Post(opcode="RDMA_WRITE", fenced=True)))
    read, write = result.transfers()
    assert write.request.requests[0].time_ns >= (read.request.completed_ns or 0)


def test_a_run_is_the_same_for_the_same_seed_byte_for_byte(tmp_path: Path) -> None:
    faults = at_random({"drop": 0.1, "reorder": 0.05, "bit-error": 0.05, "duplicate": 0.05})
    for name in ("1", "2"):
        run(
            random_program(7),
            faults,
            7,
            capture=tmp_path / f"{name}.pcapng",
            journal=tmp_path / f"{name}.journal.jsonl",
        )
    for kind in ("pcapng", "journal.jsonl"):
        one, two = ((tmp_path / f"{n}.{kind}").read_bytes() for n in "12")
        assert one == two
        assert len(one) > 1000


@pytest.mark.parametrize("seed", range(40))
def test_data_arrives_once_and_intact_or_the_completion_says_why_not(seed: int) -> None:
    rates = [
        {"drop": 0.05},
        {"drop": 0.1, "reorder": 0.1},
        {"duplicate": 0.1, "delay": 0.05},
        {"bit-error": 0.1},
    ]
    result = run(random_program(seed), at_random(rates[seed % len(rates)]), seed)
    assert result.finished
    assert check_run(result) == []
