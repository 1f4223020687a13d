"""``rocekit inject`` with one scenario more, for the truth bench: a stream of WRITEs with immediate data.

``truth_immediate.py inject blast-immediate …``. Each WRITE takes a receive of the server, as a SEND does:
where there is none, an RNR NAK answers its last packet.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import MappingProxyType

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

from rocekit import scenarios  # noqa: E402
from rocekit.endpoint import LOCAL_WRITE, REMOTE_WRITE  # noqa: E402
from rocekit.endpoint.work import SendWr  # noqa: E402
from rocekit.scenarios.blast_sr import BlastSr  # noqa: E402
from rocekit.scenarios.scenario import PeerLink, Samples, ScenarioRun  # noqa: E402
from rocekit.scenarios.streaming import stream  # noqa: E402


class BlastImmediate(BlastSr):
    """A one-way stream of WRITEs with immediate data; the server counts them."""

    name = "blast-immediate"
    access = (LOCAL_WRITE, REMOTE_WRITE)

    def client(self, run: ScenarioRun) -> Samples:
        size, slots = run.plan.size, self.receives(run.plan)

        def make(link: PeerLink, i: int, slot: int, signaled: bool) -> SendWr:
            remote = i % slots * size
            return link.wr("RDMA_WRITE_WITH_IMM", slot * size, size, remote=remote, imm=i, signaled=signaled)

        return stream(run, make)

    def server(self, run: ScenarioRun) -> None:
        plan = run.plan
        slots = self.receives(plan)
        got = [0] * len(run.links)
        while min(got) < plan.iterations:
            run.until(lambda: any(link.received for link in run.links))
            for at, link in enumerate(run.links):
                while link.received:
                    link.received.popleft()
                    if got[at] + slots < plan.iterations:
                        link.receive(got[at] % slots * plan.size, plan.size)
                    got[at] += 1
                    run.done += 1


if __name__ == "__main__":
    scenarios.SCENARIOS = MappingProxyType({**scenarios.SCENARIOS, BlastImmediate.name: BlastImmediate})
    from rocekit.cli import main

    main()
