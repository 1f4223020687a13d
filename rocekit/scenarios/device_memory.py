"""``device-memory``: messages into memory on the server's device."""

from __future__ import annotations

import time

from rocekit.endpoint import LOCAL_WRITE, REMOTE_READ, REMOTE_WRITE, Endpoint, Region
from rocekit.scenarios.ping_pong import rounds
from rocekit.scenarios.scenario import Pattern, PeerLink, Plan, Samples, Scenario, ScenarioRun, latency


class DeviceMemoryScenario(Scenario):
    """WRITEs into and READs from memory on the server's device itself.

    1. the server allocates memory on the device (ibv_alloc_dm; a device without any refuses) and
       registers it (ibv_reg_dm_mr with IBV_ACCESS_ZERO_BASED, REMOTE_WRITE and REMOTE_READ): its addresses
       start at 0;
    2. it copies a first message there (ibv_memcpy_to_dm);
    3. the client READs it (ibv_post_send, IBV_WR_RDMA_READ, remote_addr 0) and compares; then it WRITEs the
       next one (IBV_WR_RDMA_WRITE), READs that back, and so on, without the server's memory bus;
    4. after the disconnect the server copies the last message from the device (ibv_memcpy_from_dm) and
       compares.

    The time of an iteration is that of a WRITE and a READ.
    """

    name = "device-memory"
    summary = "WRITE and READ of memory on the server's device itself (ibv_dm), where it has any."
    default_size = 4096
    default_iterations = 100
    access = (LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ)
    server_sees = "end"

    def client_memory(self, plan: Plan) -> int:
        return 2 * plan.size

    def server_memory(self, plan: Plan) -> int:
        return plan.size

    def server_region(self, endpoint: Endpoint, plan: Plan) -> Region:
        return endpoint.device_memory(self.server_memory(plan), self.access)

    def prepare_server(self, plan: Plan, link: PeerLink) -> None:
        link.region.write(0, Pattern(plan.size)(0))

    def client(self, run: ScenarioRun) -> Samples:
        size, pattern = run.plan.size, Pattern(run.plan.size)
        times: list[int] = []
        started = time.perf_counter_ns()
        for link, i in rounds(run):
            start = time.perf_counter_ns()
            if i:
                link.region.write(0, pattern(i))
                link.send(link.wr("RDMA_WRITE", 0, size, remote=0))
            link.send(link.wr("RDMA_READ", size, size, remote=0))
            run.until(lambda link=link: not link.unsent)  # type: ignore[misc]
            times.append(time.perf_counter_ns() - start)
            pattern.check(i, link.region.read(size, size))
        return latency(run.plan, times, started, one_way=False)

    def server(self, run: ScenarioRun) -> None:
        """Its device does all; its program waits for the disconnect."""

    def verify(self, run: ScenarioRun) -> None:
        for link in run.links:
            last = run.plan.iterations - 1
            Pattern(run.plan.size).check(last, link.region.read(0, run.plan.size))
