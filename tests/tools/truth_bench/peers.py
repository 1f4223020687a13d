"""Experiments of the truth bench with programs that others wrote on verbs: libfabric, qperf and rsockets.

Each chooses its own QPs, timers, sizes of packets and order of requests: rsockets sends in pieces as its
credits allow, libfabric in turns, qperf as much as it can for a second.
"""

from __future__ import annotations

from random import Random
from typing import Final

from truth_bench.experiments import TO, Experiment, Fault

PEERS: Final = "peers-"
_QPERF: Final = ("rc_bw", "rc_bi_bw", "rc_rdma_read_bw", "rc_rdma_write_bw", "rc_compare_swap_mr", "uc_bw")
LIMIT_S: Final = 60.0


def peers(name: str, chance: Random, faults: list[Fault]) -> Experiment:
    """One of the programs, as chance draws it."""
    kind = chance.choice(["fabric", "fabric", "qperf", "rsockets", "rsockets"])
    size = chance.choice([8, 512, 4096, 16384, 65536])
    n = min(60, max(8, 300_000 // size))
    if kind == "fabric":
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
