"""``blast-sr``: SENDs one way, as many at once as the queue holds."""

from __future__ import annotations

from rocekit.endpoint.work import SendWr
from rocekit.scenarios.scenario import Pattern, PeerLink, Plan, Samples, Scenario, ScenarioRun
from rocekit.scenarios.streaming import stream


class BlastSr(Scenario):
    """One-way stream of SENDs with many outstanding.

    1. the server posts as many receives as it has buffers (ibv_post_recv), before the connection is made;
    2. the client fills a free buffer and posts a SEND (ibv_post_send, IBV_WR_SEND), `--post_list` of them in
       one call, until `--tx-depth` are outstanding; only every `--cq-mod`th is signaled (IBV_SEND_SIGNALED),
       and its completion (ibv_poll_cq) covers those before it;
    3. the server polls its receives (ibv_poll_cq), checks each message and posts its buffer again
       (ibv_post_recv);
    4. the client is done when its last SEND is acknowledged (ibv_poll_cq).
    """

    name = "blast-sr"
    summary = "A one-way stream of SENDs with many outstanding; the server checks each."
    default_size = 65536

    def client_memory(self, plan: Plan) -> int:
        return min(plan.window, plan.iterations) * plan.size

    def server_memory(self, plan: Plan) -> int:
        return self.receives(plan) * plan.size

    def receives(self, plan: Plan) -> int:
        return min(plan.receives, plan.iterations)

    def prepare_server(self, plan: Plan, link: PeerLink) -> None:
        for slot in range(self.receives(plan)):
            link.receive(slot * plan.size, plan.size)

    def client(self, run: ScenarioRun) -> Samples:
        size, pattern = run.plan.size, Pattern(run.plan.size)

        def make(link: PeerLink, i: int, slot: int, signaled: bool) -> SendWr:
            link.region.write(slot * size, pattern(i))
            return link.wr("SEND", slot * size, size, inline=run.inline_size, signaled=signaled)

        return stream(run, make)

    def server(self, run: ScenarioRun) -> None:
        plan, pattern = run.plan, Pattern(run.plan.size)
        slots = self.receives(plan)
        got = [0] * len(run.links)
        while min(got) < plan.iterations:
            run.until(lambda: any(link.received for link in run.links))
            for at, link in enumerate(run.links):
                while link.received:
                    link.received.popleft()
                    i, offset = got[at], got[at] % slots * plan.size
                    pattern.check(i, link.region.read(offset, plan.size))
                    if i + slots < plan.iterations:
                        link.receive(offset, plan.size)
                    got[at] += 1
                    run.done += 1
