"""More experiments of the truth bench: what is seldom met, and easily told wrong.

PSNs that begin again at 0 during losses, memory that is taken away under load, QP numbers used again, UD,
captures with few packets or none, timers of microseconds, small path MTUs, shared receive queues, no retries,
links that are down for a while, several faults at once.
"""

from __future__ import annotations

from typing import Final

from truth_bench.experiments import (
    ATOMIC,
    BEFORE,
    BEHIND,
    BETWEEN,
    EXPERIMENTS,
    READ,
    SEND,
    TO,
    WRITE,
    Experiment,
    Fault,
    Killed,
    inject,
    perftest,
    pingpong,
    rping,
)
from truth_bench.mixed import MIXED
from truth_bench.rarer import RARER

_NEAR_END: Final = 0xFFFFA0
_RESPONSES: Final = "read-responses"


def _wraps(
    name: str, program: str, n: int, size: int, *faults: Fault, options: str = "", first: int = _NEAR_END
) -> Experiment:
    """PSNs come around while packets are lost."""
    return perftest(name, program, n, size, *faults, options=options, first_psn=first)


def _again(name: str, waits: str) -> Experiment:
    """The server is killed, its device made anew, and its QP number is a new server's.

    Args:
        waits: how long the killed server's client is waited for before.
    """
    words = "-F -x 1 -m 1024 -s 4096"
    make = "rdma link delete rxe1; rdma link add rxe1 type rxe netdev vb; sleep 1"
    steps = (
        make,
        f"ib_write_bw -d rxe1 {words} -u 14 -n 100000 & S=$!; sleep 1.5",
        f"ib_write_bw -d rxe0 {words} -u 14 -n 100000 {TO} & C=$!; sleep 2",
        f"kill -9 $S; {waits}",
        make,
        f"ib_write_bw -d rxe1 {words} -u 16 -n 60 -p 18600 & S=$!; sleep 1.5",
        f"ib_write_bw -d rxe0 {words} -u 16 -n 60 -p 18600 {TO}; wait $C",
    )
    return Experiment(name, client=f"sh -c '{'; '.join(steps)}'", limit_s=25.0)


_FIRST: Final = (
    _wraps("wrap-write-between", WRITE, 40, 16384, Fault(BETWEEN, "a", "netem loss 3%")),
    _wraps("wrap-write-before", WRITE, 40, 16384, Fault(BEFORE, "a", "netem loss 3%")),
    _wraps("wrap-send-behind", SEND, 40, 16384, Fault(BEHIND, "a", "drop 31 at random")),
    _wraps("wrap-write-acks-between", WRITE, 100, 4096, Fault(BETWEEN, "b", "drop 5 at random", "acks")),
    _wraps(
        "wrap-read-responses-between", READ, 40, 16384, Fault(BETWEEN, "b", "drop 31 at random", _RESPONSES)
    ),
    _wraps("wrap-read-responses-before", READ, 40, 16384, Fault(BEFORE, "b", "netem loss 3%", _RESPONSES)),
    _wraps(
        "wrap-read-responses-behind", READ, 40, 16384, Fault(BEHIND, "b", "drop 31 at random", _RESPONSES)
    ),
    _wraps(
        "wrap-read-requests-between", READ, 60, 4096, Fault(BETWEEN, "a", "drop 9 at random", "read-requests")
    ),
    _wraps(
        "wrap-atomic-both-between",
        ATOMIC,
        160,
        8,
        Fault(BETWEEN, "a", "drop 11 at random", "atomic-requests"),
        Fault(BETWEEN, "b", "drop 11 at random", "atomic-responses"),
    ),
    _wraps(
        "wrap-write-lasts-between",
        WRITE,
        80,
        4096,
        Fault(BETWEEN, "a", "drop 7 at random", "lasts"),
        options="-t 1",
    ),
    perftest("revoked-write", WRITE, 2000, 4096, revoke_after=300, limit_s=12.0),
    perftest(
        "revoked-write-between",
        WRITE,
        2000,
        4096,
        Fault(BETWEEN, "a", "netem loss 2%"),
        revoke_after=300,
        limit_s=12.0,
    ),
    perftest(
        "revoked-2qp-acks",
        WRITE,
        2000,
        4096,
        Fault(BETWEEN, "b", "drop 9 at random", "acks"),
        options="-q 2",
        revoke_after=300,
        limit_s=12.0,
    ),
    perftest("revoked-read", READ, 2000, 4096, revoke_after=100, limit_s=12.0),
    perftest(
        "revoked-read-between",
        READ,
        2000,
        4096,
        Fault(BETWEEN, "b", "netem loss 2%"),
        revoke_after=100,
        limit_s=12.0,
    ),
    perftest("revoked-atomic", ATOMIC, 2000, 8, revoke_after=100, limit_s=12.0),
    _again("again-gave-up", "wait $C"),
    _again("again-still-trying", "sleep 0.1"),
    perftest(
        "ud-between", SEND, 200, 1024, Fault(BETWEEN, "a", "netem loss 4%"), options="-c UD", limit_s=4.0
    ),
    perftest("ud-before", SEND, 200, 1024, Fault(BEFORE, "a", "netem loss 4%"), options="-c UD", limit_s=4.0),
    perftest(
        "ud-behind", SEND, 200, 1024, Fault(BEHIND, "a", "drop 29 at random"), options="-c UD", limit_s=4.0
    ),
    perftest(
        "ud-reorder-duplicate",
        SEND,
        200,
        1024,
        Fault(BETWEEN, "a", "netem delay 3ms reorder 95% duplicate 3% loss 2%"),
        options="-c UD",
        limit_s=4.0,
    ),
    inject(
        "inject-ud-between",
        "ud",
        40,
        1024,
        Fault(BETWEEN, "a", "netem loss 4%"),
        Fault(BETWEEN, "b", "netem loss 4%"),
        limit_s=12.0,
    ),
    Experiment("nothing", client="true"),
    pingpong("pingpong-one", 1, 64),
    pingpong("pingpong-one-cut", 1, 64, Fault(BETWEEN, "a", "cut"), limit_s=4.0),
    pingpong("pingpong-one-no-acks", 1, 4096, Fault(BETWEEN, "b", "cut", "acks"), limit_s=4.0),
    perftest(
        "odd-write-between",
        WRITE,
        30,
        16384,
        Fault(BETWEEN, "a", "drop 29 at random", "odd-qpns"),
        options="-q 2",
    ),
    perftest(
        "odd-write-before", WRITE, 16, 16384, Fault(BEFORE, "a", "netem loss 3%", "odd-qpns"), options="-q 4"
    ),
    perftest(
        "odd-read-behind",
        READ,
        24,
        16384,
        Fault(BEHIND, "b", "drop 29 at random", "odd-qpns"),
        options="-q 2",
    ),
    perftest(
        "odd-write-acks-between",
        WRITE,
        60,
        4096,
        Fault(BETWEEN, "b", "drop 5 at random", "odd-qpns"),
        options="-q 2",
    ),
)

_SECOND: Final = (
    perftest("quick-1-write-clean", WRITE, 30, 8192, timeout=1),
    perftest("quick-1-write-between", WRITE, 30, 8192, Fault(BETWEEN, "a", "netem loss 3%"), timeout=1),
    perftest("quick-2-write-before", WRITE, 30, 8192, Fault(BEFORE, "a", "netem loss 3%"), timeout=2),
    perftest(
        "quick-3-read-between",
        READ,
        30,
        8192,
        Fault(BETWEEN, "b", "drop 31 at random", _RESPONSES),
        timeout=3,
    ),
    perftest(
        "quick-4-read-behind", READ, 30, 8192, Fault(BEHIND, "b", "drop 31 at random", _RESPONSES), timeout=4
    ),
    perftest(
        "quick-5-send-acks-between",
        SEND,
        60,
        4096,
        Fault(BETWEEN, "b", "drop 5 at random", "acks"),
        timeout=5,
    ),
    perftest(
        "quick-3-atomic-between",
        ATOMIC,
        80,
        8,
        Fault(BETWEEN, "a", "drop 11 at random", "atomic-requests"),
        timeout=3,
    ),
    perftest("quick-5-lat-between", "ib_write_lat", 120, 64, Fault(BETWEEN, "a", "netem loss 3%"), timeout=5),
    perftest("quick-5-send-behind", SEND, 40, 8192, Fault(BEHIND, "a", "drop 31 at random"), timeout=5),
    perftest(
        "small-write-firsts-between",
        WRITE,
        60,
        2048,
        Fault(BETWEEN, "a", "drop 9 at random", "firsts"),
        mtu=256,
    ),
    perftest(
        "small-write-lasts-behind", WRITE, 60, 2048, Fault(BEHIND, "a", "drop 9 at random", "lasts"), mtu=256
    ),
    perftest(
        "small-send-firsts-behind", SEND, 60, 2048, Fault(BEHIND, "a", "drop 9 at random", "firsts"), mtu=256
    ),
    perftest(
        "small-send-lasts-before", SEND, 60, 2048, Fault(BEFORE, "a", "netem loss 11%", "lasts"), mtu=256
    ),
    perftest(
        "small-read-firsts-before",
        READ,
        40,
        2048,
        Fault(BEFORE, "b", "netem loss 8%", "first-responses"),
        mtu=256,
    ),
    perftest("small-read-between", READ, 40, 4096, Fault(BETWEEN, "b", "netem loss 2%"), mtu=256),
    Experiment(
        "srq-pingpong-between",
        client=f"ibv_srq_pingpong -d rxe0 -g 1 -m 1024 -s 4096 -q 4 -n 100 {TO}",
        server="ibv_srq_pingpong -d rxe1 -g 1 -m 1024 -s 4096 -q 4 -n 100",
        faults=(Fault(BETWEEN, "a", "netem loss 3%"),),
    ),
    perftest(
        "srq-send-between",
        SEND,
        60,
        4096,
        Fault(BETWEEN, "a", "netem loss 3%"),
        options="-q 4 --use-srq -r 128",
    ),
    perftest(
        "srq-send-rnr-before",
        SEND,
        400,
        2048,
        Fault(BEFORE, "a", "netem loss 2%"),
        options="-q 2 --use-srq -r 32",
        killed=Killed("server", 100, stopped_s=0.3),
    ),
    inject("inject-srq-between", "srq", 30, 4096, Fault(BETWEEN, "a", "netem loss 3%"), options="-q 3"),
    inject(
        "no-retry-write",
        "blast-write",
        200,
        4096,
        Fault(BETWEEN, "a", "drop 61 at random"),
        options="-u 14 --retry 0",
        limit_s=15.0,
    ),
    inject(
        "no-retry-write-behind",
        "blast-write",
        200,
        4096,
        Fault(BEHIND, "a", "drop 61 at random"),
        options="-u 14 --retry 0",
        limit_s=15.0,
    ),
    inject(
        "no-retry-acks",
        "blast-write",
        200,
        4096,
        Fault(BETWEEN, "b", "drop 5 at random", "acks"),
        options="-u 14 --retry 0 -t 1 -Q 1",
        limit_s=15.0,
    ),
    inject(
        "no-retry-read",
        "blast-read",
        60,
        4096,
        Fault(BETWEEN, "b", "drop 41 at random", _RESPONSES),
        options="-u 14 --retry 0",
        limit_s=15.0,
    ),
    perftest(
        "quick-read-duplicate-loss",
        READ,
        30,
        8192,
        Fault(BETWEEN, "b", "netem duplicate 4% loss 3%"),
        timeout=8,
    ),
    perftest(
        "read-duplicate-loss", READ, 30, 8192, Fault(BETWEEN, "b", "netem duplicate 4% loss 3%"), timeout=12
    ),
    perftest(
        "read-requests-duplicate-loss",
        READ,
        60,
        4096,
        Fault(BETWEEN, "a", "netem duplicate 6% loss 6%"),
        timeout=11,
    ),
    perftest(
        "write-duplicate-loss",
        WRITE,
        40,
        16384,
        Fault(BETWEEN, "a", "netem duplicate 3% loss 2%"),
        timeout=12,
    ),
    perftest(
        "atomic-duplicate-loss", ATOMIC, 80, 8, Fault(BETWEEN, "b", "netem duplicate 8% loss 6%"), timeout=10
    ),
    perftest("send-acks-corrupt", SEND, 60, 4096, Fault(BETWEEN, "b", "netem corrupt 10%"), snaplen=1300),
    perftest("read-jitter", READ, 16, 8192, Fault(BETWEEN, "b", "netem delay 2ms 40us")),
    perftest("write-jitter-loss", WRITE, 16, 8192, Fault(BETWEEN, "a", "netem delay 2ms 40us loss 2%")),
    perftest("write-acks-delayed", WRITE, 60, 4096, Fault(BETWEEN, "b", "netem delay 30ms 25ms"), timeout=12),
    perftest("send-killed", "ib_send_lat", 30000, 64, killed=Killed("server", 150), limit_s=6.0),
    perftest("read-killed", "ib_read_lat", 30000, 2048, killed=Killed("server", 150), limit_s=6.0),
    perftest("write-client-killed", WRITE, 100000, 4096, killed=Killed("client", 300), limit_s=6.0),
    perftest(
        "write-killed-lossy",
        WRITE,
        100000,
        4096,
        Fault(BETWEEN, "a", "netem loss 2%"),
        killed=Killed("server", 300),
        limit_s=6.0,
    ),
)

#: Several faults at once, links that are down for a while, and what only one kind of packet suffers from.
_THIRD: Final = (
    perftest("down-write", WRITE, 200, 8192, Fault(BETWEEN, "a", "cut", after=300, seconds=1.5), timeout=14),
    perftest(
        "down-read-responses", READ, 300, 8192, Fault(BETWEEN, "b", "cut", after=100, seconds=1.5), timeout=14
    ),
    inject(
        "down-gives-up",
        "blast-write",
        600,
        4096,
        Fault(BETWEEN, "a", "cut", after=400, seconds=3.0),
        options="-u 14 --retry 2",
        limit_s=20.0,
    ),
    perftest(
        "rnr-acks-between",
        SEND,
        400,
        2048,
        Fault(BETWEEN, "b", "drop 5 at random", "acks"),
        options="-r 16",
        killed=Killed("server", 100, stopped_s=0.3),
    ),
    perftest(
        "rnr-acks-behind",
        SEND,
        400,
        2048,
        Fault(BEHIND, "b", "drop 5 at random", "acks"),
        options="-r 16",
        killed=Killed("server", 100, stopped_s=0.3),
    ),
    rping("rping-acks-between", 60, 4096, Fault(BETWEEN, "b", "drop 5 at random", "acks")),
    perftest(
        "read-middles-behind", READ, 40, 16384, Fault(BEHIND, "b", "drop 29 at random", "middle-responses")
    ),
    perftest(
        "read-4qp-middles-between",
        READ,
        12,
        16384,
        Fault(BETWEEN, "b", "drop 29 at random", "middle-responses"),
        options="-q 4",
    ),
    perftest(
        "write-all-at-once",
        WRITE,
        40,
        8192,
        Fault(BETWEEN, "a", "netem delay 1ms 30us loss 2% duplicate 2%"),
        Fault(BETWEEN, "b", "netem delay 1ms 30us loss 4% duplicate 4%"),
        timeout=14,
    ),
    perftest(
        "read-all-at-once",
        READ,
        30,
        8192,
        Fault(BETWEEN, "a", "netem loss 4% duplicate 4%"),
        Fault(BETWEEN, "b", "netem delay 2ms reorder 97% loss 1% duplicate 1%"),
        timeout=14,
    ),
    perftest(
        "atomic-2qp-both-between",
        ATOMIC,
        60,
        8,
        Fault(BETWEEN, "a", "netem loss 6%"),
        Fault(BETWEEN, "b", "netem loss 6%"),
        options="-q 2",
    ),
    perftest(
        "send-reorder-acks-lost",
        SEND,
        40,
        8192,
        Fault(BETWEEN, "a", "netem delay 3ms reorder 97%"),
        Fault(BETWEEN, "b", "drop 5 at random", "acks"),
    ),
    perftest(
        "write-before-and-behind",
        WRITE,
        40,
        8192,
        Fault(BEFORE, "a", "netem loss 2%"),
        Fault(BEHIND, "a", "drop 41 at random"),
    ),
    perftest(
        "read-bursts",
        READ,
        30,
        16384,
        Fault(BETWEEN, "b", "tbf rate 20mbit burst 40000 limit 60000"),
        options="-q 2",
    ),
)

UNUSUAL: Final = {experiment.name: experiment for experiment in (*_FIRST, *_SECOND, *_THIRD)} | RARER | MIXED
ALL: Final = {**EXPERIMENTS, **UNUSUAL}
