"""How many packets a second the wire in memory carries on one core, with and without writing a capture.

``python benchmarks/soft_wire.py [MESSAGES]`` sends that many WRITEs of 64 KiB at path MTU 1024. It measures
processor time, so other programs on the machine do not count.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from rocekit.soft.testbed import run
from rocekit.soft.testbed.program import Post, Program, QpSetup

MESSAGE_BYTES = 65536


def main() -> None:
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    program = Program(
        (QpSetup(path_mtu=1024, timeout=14),),
        (Post(opcode="RDMA_WRITE", length=MESSAGE_BYTES),) * messages,
    )
    with tempfile.TemporaryDirectory() as folder:
        for capture in (None, Path(folder) / "x.pcapng"):
            start = time.process_time()
            result = run(program, seed=1, capture=capture)
            took = time.process_time() - start
            what = "without a capture" if capture is None else "with the capture written"
            print(
                f"{result.packets:,} packets in {took:.2f} s: {result.packets / took:,.0f} packets/s {what}"
            )


if __name__ == "__main__":
    main()
