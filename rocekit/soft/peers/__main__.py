"""``python -m rocekit.soft.peers PROGRAM …``: one side of rping, a ping-pong or perftest, over a soft
device.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rocekit.errors import RocekitError
from rocekit.soft.fault_file import fault_from_words
from rocekit.soft.peers import perftest
from rocekit.soft.peers.party import Party
from rocekit.soft.peers.programs import PROGRAMS, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m rocekit.soft.peers", description=__doc__)
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("host", nargs="?", help="the server; without it, be the server")
    parser.add_argument("-d", "--device", metavar="INTERFACE", help="default: the wire within this machine")
    parser.add_argument("--ip", help="default: the interface's first address")
    parser.add_argument("-n", "--count", type=int, default=10)
    parser.add_argument("-s", "--size", type=int, default=4096)
    parser.add_argument("-m", "--mtu", type=int, default=1024)
    parser.add_argument("-p", "--port", type=int)
    parser.add_argument("-R", "--rdma-cm", action="store_true", help="perftest: the other side has -R")
    parser.add_argument(
        "-c", "--connection", choices=list(perftest.TRANSPORTS), default="RC", help="perftest"
    )
    parser.add_argument("--capture", type=Path)
    parser.add_argument("--fault", action="append", default=[], help="qpn=1,psn=4,type=drop or drop=2%%")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=30.0)
    given = parser.parse_intermixed_args()
    try:
        faults = [fault_from_words(words) for words in given.fault]
        with Party(
            given.device,
            given.ip,
            capture=given.capture,
            faults=faults,
            seed=given.seed,
            timeout_s=given.timeout,
            listening=lambda: print(f"{given.program} on {party.ip}", flush=True),
        ) as party:
            rounds = run(
                party,
                given.program,
                given.host,
                port=given.port,
                count=given.count,
                size=given.size,
                path_mtu=given.mtu,
                rdma_cm=given.rdma_cm,
                transport=given.connection,
            )
            counters = {name: n for name, n in party.device.counters.as_dict().items() if n}
            print(f"{rounds} rounds; {counters}")
    except RocekitError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
