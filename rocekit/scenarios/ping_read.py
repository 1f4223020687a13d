"""``ping-read``: RDMA READs; the server's program does nothing."""

from __future__ import annotations

import time

from rocekit.endpoint import LOCAL_WRITE, REMOTE_READ
from rocekit.scenarios.scenario import Pattern, PeerLink, Plan, Samples, Scenario, ScenarioRun, latency

SLOTS = 16


class PingRead(Scenario):
    """RDMA READ, one at a time.

    1. the server fills its memory with up to 16 messages, registers it with REMOTE_READ (ibv_reg_mr), and
       sends its address and rkey in the private data of its reply;
    2. the client READs one message after the other (ibv_post_send, IBV_WR_RDMA_READ) and compares; its own
       memory needs LOCAL_WRITE, because the responses are written there;
    3. the server's device responds; the server's program waits for the client to disconnect
       (rdma_get_cm_event).

    The time of an iteration is the whole round trip.
    """

    name = "ping-read"
    summary = "RDMA READ, one at a time, from memory that the server filled before."
    access = (LOCAL_WRITE, REMOTE_READ)
    server_sees = "nothing"

    def client_memory(self, plan: Plan) -> int:
        return plan.size

    def server_memory(self, plan: Plan) -> int:
        return SLOTS * plan.size

    def prepare_server(self, plan: Plan, link: PeerLink) -> None:
        pattern = Pattern(plan.size)
        for slot in range(SLOTS):
            link.region.write(slot * plan.size, pattern(slot))

    def client(self, run: ScenarioRun) -> Samples:
        size, pattern = run.plan.size, Pattern(run.plan.size)
        times: list[int] = []
        started = time.perf_counter_ns()
        for i in range(run.plan.iterations):
            for link in run.links:
                start = time.perf_counter_ns()
                link.send(link.wr("RDMA_READ", 0, size, remote=i % SLOTS * size))
                run.until(lambda link=link: not link.unsent)  # type: ignore[misc]
                times.append(time.perf_counter_ns() - start)
                pattern.check(i % SLOTS, link.region.read(0, size))
                run.done += 1
        return latency(run.plan, times, started, one_way=False)

    def server(self, run: ScenarioRun) -> None:
        """Its device responds; its program waits for the disconnect."""
