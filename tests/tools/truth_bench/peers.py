"""Experiments of the truth bench with programs that others wrote on verbs: UCX, libfabric, qperf, rsockets.

Each chooses its own QPs, timers, sizes of packets and order of requests: UCX and rsockets send in pieces as
their credits allow, libfabric in turns, qperf as much as it can for a second.
"""

from __future__ import annotations

from random import Random
from typing import Final

from truth_bench.experiments import TO, Experiment, Fault

PEERS: Final = "peers-"
_UCX: Final = ("tag_bw", "tag_lat", "ucp_put_bw", "ucp_get", "ucp_fadd", "stream_bw", "ucp_am_bw")
_QPERF: Final = ("rc_bw", "rc_bi_bw", "rc_rdma_read_bw", "rc_rdma_write_bw", "rc_compare_swap_mr", "uc_bw")
#: A lost request of UCX is sent again after a second.
LIMIT_S: Final = 60.0


def peers(name: str, chance: Random, faults: list[Fault]) -> Experiment:
    """One of the programs, as chance draws it."""
    kind = chance.choice(["ucx", "ucx", "ucx", "fabric", "fabric", "qperf", "rsockets", "rsockets"])
    size = chance.choice([8, 512, 4096, 16384, 65536])
    n = min(60, max(8, 300_000 // size))
    if kind == "ucx":
        test = chance.choice(_UCX)
        size = 8 if test == "ucp_fadd" else size
        words = f"-t {test} -n {n} -w 0 -s {size} -p 13337"
        transports = "UCX_TLS=rc_verbs,ud_verbs:aux UCX_IB_GID_INDEX=1"
        server = f"env {transports} UCX_NET_DEVICES=rxe1:1 ucx_perftest {words}"
        client = f"env {transports} UCX_NET_DEVICES=rxe0:1 ucx_perftest {words} {TO}"
    elif kind == "fabric":
        words = f"-p verbs -e {chance.choice(['msg', 'rdm'])} -I {n} -S {size}"
        server, client = f"fi_pingpong {words} -d rxe1", f"fi_pingpong {words} -d rxe0 {TO}"
    elif kind == "qperf":
        test = chance.choice(_QPERF)
        words = "--use_cm 1 --time 1 --timeout 50"
        sized = "" if test.endswith("_mr") else f"--msg_size {size}"
        server, client = "qperf", f"qperf {TO} {words} {sized} {test}"
    else:
        words = f"-S {size} -C {n}"
        server, client = f"rstream -b {TO} {words}", f"rstream -s {TO} {words}"
    told = {"program": kind, "count": n, "bytes": size, "options": client}
    return Experiment(name, client=client, server=server, faults=tuple(faults), limit_s=LIMIT_S, told=told)
