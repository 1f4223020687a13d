"""A scenario more of ``rocekit inject``, for the truth bench: operations of several kinds on one QP.

To import it adds ``blast-medley``. The environment's ``MEDLEY`` names what is done in turn, each with
its bytes: ``WRITE:3000,READ:8192,SEND:0,IMM:1,FETCH,SWAP``. SENDs and WRITEs with immediate data take a
receive of the server.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import MappingProxyType

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

from rocekit import scenarios  # noqa: E402
from rocekit.endpoint import LOCAL_WRITE, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE  # noqa: E402
from rocekit.endpoint.work import SendWr  # noqa: E402
from rocekit.scenarios.blast_sr import BlastSr  # noqa: E402
from rocekit.scenarios.scenario import PeerLink, Plan, Samples, ScenarioRun  # noqa: E402
from rocekit.scenarios.streaming import stream  # noqa: E402

_WORD = 8
_OPCODES = {
    "WRITE": "RDMA_WRITE",
    "READ": "RDMA_READ",
    "SEND": "SEND",
    "IMM": "RDMA_WRITE_WITH_IMM",
    "FETCH": "ATOMIC_FETCH_AND_ADD",
    "SWAP": "ATOMIC_CMP_AND_SWP",
}


def turns() -> list[tuple[str, int]]:
    """What is done in turn: the kind, and its bytes."""
    said = os.environ.get("MEDLEY", "WRITE:3000,READ:8192,SEND:2000,IMM:1500,FETCH,SWAP")
    parts = (turn.partition(":") for turn in said.split(","))
    return [(kind, int(size) if size else _WORD) for kind, _, size in parts]


class BlastMedley(BlastSr):
    """A one-way stream of operations of several kinds; the server counts what takes a receive."""

    name = "blast-medley"
    access = (LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC)

    def server_memory(self, plan: Plan) -> int:
        return max(1, plan.window, self.receives(plan)) * plan.size

    def client(self, run: ScenarioRun) -> Samples:
        size, kinds = run.plan.size, turns()

        def make(link: PeerLink, i: int, slot: int, signaled: bool) -> SendWr:
            kind, length = kinds[i % len(kinds)]
            at, opcode = slot * size, _OPCODES[kind]
            if kind == "SEND":
                return link.wr(opcode, at, length, signaled=signaled)
            if kind == "IMM":
                return link.wr(opcode, at, length, remote=at, imm=i, signaled=signaled)
            if kind == "FETCH":
                return link.wr(opcode, at, length, remote=0, swap_add=1, signaled=signaled)
            if kind == "SWAP":
                return link.wr(opcode, at, length, remote=0, compare=i, swap_add=i + 1, signaled=signaled)
            return link.wr(opcode, at, length, remote=at, signaled=signaled)

        return stream(run, make)

    def server(self, run: ScenarioRun) -> None:
        plan, kinds = run.plan, [kind for kind, _ in turns()]
        wanted = sum(kinds[i % len(kinds)] in ("SEND", "IMM") for i in range(plan.iterations))
        slots = self.receives(plan)
        got = [0] * len(run.links)
        while min(got) < wanted:
            run.until(lambda: any(link.received for link in run.links))
            for at, link in enumerate(run.links):
                while link.received:
                    link.received.popleft()
                    if got[at] + slots < wanted:
                        link.receive(got[at] % slots * plan.size, plan.size)
                    got[at] += 1
                    run.done += 1


scenarios.SCENARIOS = MappingProxyType({**scenarios.SCENARIOS, BlastMedley.name: BlastMedley})
