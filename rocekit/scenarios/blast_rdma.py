"""``blast-write`` and ``blast-read``: streams of RDMA WRITEs and READs; the server's program does nothing."""

from __future__ import annotations

from rocekit.endpoint import LOCAL_WRITE, REMOTE_READ, REMOTE_WRITE
from rocekit.endpoint.work import SendWr
from rocekit.scenarios.scenario import Pattern, PeerLink, Plan, Samples, Scenario, ScenarioRun
from rocekit.scenarios.streaming import stream

READ_SLOTS = 16


class BlastWrite(Scenario):
    """One-way stream of RDMA WRITEs with many outstanding.

    1. the server registers as many buffers as may be outstanding with REMOTE_WRITE and LOCAL_WRITE
       (ibv_reg_mr), and sends address and rkey when they connect;
    2. the client fills a free buffer and WRITEs it to the same place in the server's memory (ibv_post_send,
       IBV_WR_RDMA_WRITE), with `--post_list`, `--tx-depth` and `--cq-mod` as in blast-sr;
    3. the client polls (ibv_poll_cq) until its last WRITE is acknowledged: then all data has arrived;
    4. after the disconnect (rdma_disconnect) the server, which got no completion, checks the last message in
       each buffer.
    """

    name = "blast-write"
    summary = "A one-way stream of RDMA WRITEs with many outstanding; the server checks at the end."
    default_size = 65536
    access = (LOCAL_WRITE, REMOTE_WRITE)
    server_sees = "end"

    def _slots(self, plan: Plan) -> int:
        return min(plan.window, plan.iterations)

    def client_memory(self, plan: Plan) -> int:
        return self._slots(plan) * plan.size

    server_memory = client_memory

    def client(self, run: ScenarioRun) -> Samples:
        size, pattern = run.plan.size, Pattern(run.plan.size)

        def make(link: PeerLink, i: int, slot: int, signaled: bool) -> SendWr:
            at = slot * size
            link.region.write(at, pattern(i))
            return link.wr("RDMA_WRITE", at, size, remote=at, inline=run.inline_size, signaled=signaled)

        return stream(run, make)

    def server(self, run: ScenarioRun) -> None:
        """Its device takes the WRITEs; its program waits for the disconnect."""

    def verify(self, run: ScenarioRun) -> None:
        plan, pattern = run.plan, Pattern(run.plan.size)
        slots = self._slots(plan)
        for link in run.links:
            for i in range(plan.iterations - slots, plan.iterations):
                pattern.check(i, link.region.read(i % slots * plan.size, plan.size))


class BlastRead(Scenario):
    """Stream of RDMA READs, `--outs` of them outstanding.

    1. the server fills 16 messages, registers them with REMOTE_READ (ibv_reg_mr), and sends address and rkey
       when they connect; both agree how many READs may be outstanding (rdma_conn_param.initiator_depth and
       responder_resources, ibv_qp_attr.max_rd_atomic and max_dest_rd_atomic);
    2. the client posts READs (ibv_post_send, IBV_WR_RDMA_READ) until so many are outstanding; a READ beyond
       that would wait in the device;
    3. it polls (ibv_poll_cq), checks each message, and READs into the buffer again;
    4. the server's device responds; its program waits for the client to disconnect
       (rdma_get_cm_event).
    """

    name = "blast-read"
    summary = "A stream of RDMA READs, --outs of them outstanding; the client checks each."
    default_size = 65536
    access = (LOCAL_WRITE, REMOTE_READ)
    server_sees = "nothing"

    def client_memory(self, plan: Plan) -> int:
        return min(plan.window, plan.iterations) * plan.size

    def server_memory(self, plan: Plan) -> int:
        return READ_SLOTS * plan.size

    def prepare_server(self, plan: Plan, link: PeerLink) -> None:
        pattern = Pattern(plan.size)
        for slot in range(READ_SLOTS):
            link.region.write(slot * plan.size, pattern(slot))

    def client(self, run: ScenarioRun) -> Samples:
        size, pattern = run.plan.size, Pattern(run.plan.size)

        def make(link: PeerLink, i: int, slot: int, signaled: bool) -> SendWr:
            return link.wr("RDMA_READ", slot * size, size, remote=i % READ_SLOTS * size, signaled=signaled)

        def finished(link: PeerLink, i: int, slot: int) -> None:
            pattern.check(i % READ_SLOTS, link.region.read(slot * size, size))

        return stream(run, make, finished, most=min(run.options.reads, run.endpoint.max_reads))

    def server(self, run: ScenarioRun) -> None:
        """Its device responds; its program waits for the disconnect."""
