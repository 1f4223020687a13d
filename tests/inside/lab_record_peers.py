"""What test_record_peers_lab.py runs inside the lab: the rest of the programs that others made, recorded.

Those of test_record_lab.py are chosen by what they call. These are the others of rdma-core, perftest, qperf
that run on rxe (udpong does not: its client's connect fails there, recorded or not).
"""

from __future__ import annotations

import sys
from dataclasses import replace

import lab_record_inside
from lab_record_inside import TIMEOUT

from rocekit.lab.jobs import Job

A, B = "10.9.0.1", "10.9.0.2"
_COMMON = f"-F -x 1 {TIMEOUT}"
_STREAM = "-S 512 -I 5 -C 4"
SETTLE_S = 30.0
"""A slow machine's server may take so long until it listens; most are waited for no longer than a second."""
QPERF_TESTS = (
    *("rc_lat", "rc_bw", "rc_rdma_read_lat", "rc_rdma_read_bw", "rc_rdma_write_lat", "rc_rdma_write_bw"),
    *("rc_compare_swap_mr", "rc_fetch_add_mr"),
)
"""Those that use the connection manager; without it qperf leaves out the GRH, which RoCE needs."""


def _perftest(name: str, program: str, options: str) -> Job:
    return Job(
        name,
        server=f"{program} -d rxe1 {_COMMON} {options}",
        client=f"{program} -d rxe0 {_COMMON} {options} {B}",
        settle_s=SETTLE_S,
        tries=lab_record_inside.TRIES if "-R" in options.split() else 1,
        truth={"program": program},
    )


def _pair(name: str, program: str, options: str = "", *, server: str = "", **more: object) -> Job:
    """A program that asks for its server with -s.

    ``more``, of its truth: ``messages``, how many both sides send; ``serves_on``: its server does not end
    by itself.
    """
    return Job(
        name,
        server=f"{program} {server or options}",
        client=f"{program} -s {B} {options}",
        settle_s=SETTLE_S,
        truth={"program": program, **more},
    )


JOBS = [
    *(
        _perftest(name, program, options)
        for name, program, options in (
            ("send_bw_both", "ib_send_bw", "-b -n 20 -s 4096"),
            ("send_lat_uc", "ib_send_lat", "-c UC -n 10 -s 512"),
            ("send_lat_ud", "ib_send_lat", "-c UD -n 10 -s 512"),
            ("write_lat", "ib_write_lat", "-n 10 -s 2048"),
            ("write_lat_uc", "ib_write_lat", "-c UC -n 10 -s 2048"),
            ("write_bw_both", "ib_write_bw", "-b -n 20 -s 4096"),
            ("read_lat", "ib_read_lat", "-n 10 -s 4096"),
            ("read_bw_q4", "ib_read_bw", "-q 4 -n 10 -s 4096"),
            ("atomic_lat_fa", "ib_atomic_lat", "-A FETCH_AND_ADD -n 10"),
            ("atomic_bw_cs", "ib_atomic_bw", "-A CMP_AND_SWAP -n 20"),
            ("read_lat_cm", "ib_read_lat", "-R -n 10 -s 4096"),
        )
    ),
    _pair("udaddy", "udaddy", "-c 2 -C 5 -S 200", messages=2 * 2 * 5),
    _pair("rstream", "rstream", _STREAM, server=_STREAM),
    # It ends with 16 now and then, recorded or not (3 of 8 runs that were not, 2 of 8 that were).
    replace(_pair("rstream_async", "rstream", f"{_STREAM} -T a"), tries=2 * lab_record_inside.TRIES),
    _pair("riostream", "riostream", _STREAM),
    _pair("riostream_async", "riostream", f"{_STREAM} -T a"),
    _pair("cmtime", "cmtime", "-c 5", messages=0, serves_on=True),
    replace(
        _pair("mckey", "mckey", messages=5),
        server=f"mckey -m 239.1.1.1 -b {B} -C 5 -S 200",
        client=f"sleep 1; mckey -m 239.1.1.1 -s -b {A} -C 5 -S 200",
        limit_s=40,
    ),
    Job(
        "rcopy",
        server="rcopy",
        settle_s=SETTLE_S,
        client=f"seq 1 20000 > $OUT/$NAME.sent && rcopy $OUT/$NAME.sent {B}:$OUT/$NAME.received"
        " && cmp $OUT/$NAME.sent $OUT/$NAME.received",
        truth={"program": "rcopy", "serves_on": True},
    ),
    Job(
        "rdma_client",
        server="rdma_server",
        client=f"rdma_client -s {B}",
        settle_s=SETTLE_S,
        truth={"program": "rdma_client", "messages": 2},
    ),
    *(
        Job(
            f"qperf_{test}",
            server="qperf",
            client=f"qperf {B} --use_cm 1 --time 1 --timeout 60 --msg_size 1024 {test}",
            settle_s=SETTLE_S,
            truth={"program": "qperf", "serves_on": True, "stops_posting": test.endswith("_bw")},
        )
        for test in QPERF_TESTS
    ),
]


if __name__ == "__main__":
    sys.exit(lab_record_inside.main(sys.argv[1:]))
