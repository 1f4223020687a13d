"""Two soft devices on a wire in memory, a program, faults and a seed: a run whose truth is known.

``run(program, faults=…, seed=…, capture="x.pcapng", journal="x.journal.jsonl")`` gives a :class:`ProgramRun`:
what was sent and why (``transfers()``), and the completions (``completions``). :func:`check_run` checks that
the data arrived. The same arguments give the same run and the same files, byte for byte.
"""

from __future__ import annotations

from rocekit.soft.testbed.check import check_run
from rocekit.soft.testbed.result import Posted, ProgramRun, Received
from rocekit.soft.testbed.runner import ADDRESSES, QKEY, REMOTE_ACCESS, connect, run

__all__ = [
    "run",
    "check_run",
    "ProgramRun",
    "Posted",
    "Received",
    "connect",
    "ADDRESSES",
    "QKEY",
    "REMOTE_ACCESS",
]
