"""``srq``: several QPs, one shared receive queue."""

from __future__ import annotations

from rocekit.endpoint import RecvWr, Region, Sge, SharedReceives
from rocekit.scenarios.blast_sr import BlastSr
from rocekit.scenarios.scenario import Pattern, PeerLink, Plan, Samples, ScenarioRun
from rocekit.wire.words import plural


class SharedReceiveQueue(BlastSr):
    """A stream of SENDs on each of several QPs, which take their receives from one queue.

    1. the server makes a shared receive queue (ibv_create_srq) and posts `--rx-depth` receives to it
       (ibv_post_srq_recv); each of its QPs is made with it (ibv_qp_init_attr.srq), and has no receives of
       its own;
    2. the client SENDs on all its QPs as in blast-sr (ibv_post_send, ibv_poll_cq);
    3. a message takes the next receive, whichever QP it comes for; the completion (ibv_poll_cq) has the
       buffer in its wr_id and the QP in wc.qp_num;
    4. the server compares the message with the next one due on this QP, and posts the buffer again
       (ibv_post_srq_recv): busy and idle QPs share one pool.
    """

    name = "srq"
    summary = "SENDs on several QPs (-q), which take their receives from one shared queue."
    default_size = 4096
    shares_receives = True
    shared = True

    def receives(self, plan: Plan) -> int:
        return min(plan.receives, plan.iterations * plan.qps)

    def prepare_shared(self, plan: Plan, shared: SharedReceives, region: Region) -> None:
        shared.post(*(self._buffer(plan, region, slot) for slot in range(self.receives(plan))))

    def prepare_server(self, plan: Plan, link: PeerLink) -> None:
        """Its QPs have no receives of their own."""

    def _buffer(self, plan: Plan, region: Region, slot: int) -> RecvWr:
        return RecvWr(slot, (Sge(region, slot * plan.size, plan.size),))

    def client(self, run: ScenarioRun) -> Samples:
        samples = super().client(run)
        run.notes.append(f"{plural(len(run.links), 'QP')}, one shared receive queue")
        return samples

    def server(self, run: ScenarioRun) -> None:
        assert run.shared is not None
        plan, pattern = run.plan, Pattern(run.plan.size)
        region = run.links[0].region
        got = dict.fromkeys(run.links, 0)
        left = plan.iterations * plan.qps - self.receives(plan)
        while min(got.values()) < plan.iterations:
            run.until(lambda: any(link.received for link in run.links))
            for link in run.links:
                while link.received:
                    slot = link.received.popleft().wr_id
                    pattern.check(got[link], region.read(slot * plan.size, plan.size))
                    if left > 0:
                        run.shared.post(self._buffer(plan, region, slot))
                        left -= 1
                    got[link] += 1
                    run.done += 1
