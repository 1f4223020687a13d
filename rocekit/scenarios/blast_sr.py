"""``blast-sr``: SENDs one way, as many at once as the queue holds."""

from __future__ import annotations

import time

from rocekit.scenarios.base import Link, Pattern, Plan, Run, Samples, Scenario


class BlastSr(Scenario):
    """One-way stream of SENDs with many outstanding.

    1. the server posts as many receives as it has buffers, before the connection is there;
    2. the client fills a free buffer and posts a SEND, `--post_list` of them in one call, until
       `--tx-depth` are outstanding; only every `--cq-mod`th is signaled, and its completion stands for
       those before it;
    3. the server checks each message and posts its buffer again;
    4. the client is done when its last SEND is acknowledged.
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

    def prepare_server(self, plan: Plan, link: Link) -> None:
        for slot in range(self.receives(plan)):
            link.receive(slot * plan.size, plan.size)

    def client(self, run: Run) -> Samples:
        plan, pattern = run.plan, Pattern(run.plan.size)
        slots = min(plan.window, plan.iterations)
        batch = min(plan.post_list, slots)
        # A signaled WR must be among those outstanding whenever there is no room for the next batch.
        every = min(plan.cq_mod, slots - batch + 1)
        posted = dict.fromkeys(run.links, 0)

        def due(link: Link) -> int:
            """How many WRs the next post of a link has; 0 when it must wait, or is done."""
            count = min(batch, plan.iterations - posted[link])
            return count if link.unsent + count <= slots else 0

        started = time.perf_counter_ns()
        while min(posted.values()) < plan.iterations:
            run.until(lambda: any(due(link) for link in run.links))
            for link in run.links:
                wrs = []
                for i in range(posted[link], posted[link] + due(link)):
                    offset = i % slots * plan.size
                    link.region.write(offset, pattern(i))
                    signaled = (i + 1) % every == 0 or i + 1 == plan.iterations
                    wrs.append(link.wr("SEND", offset, plan.size, inline=run.inline_size, signaled=signaled))
                if wrs:
                    link.send(*wrs)
                    posted[link] += len(wrs)
                    run.done += len(wrs)
        run.flush()
        total = time.perf_counter_ns() - started
        messages = plan.iterations * plan.qps
        return Samples("bandwidth", (), total, messages * plan.size, messages)

    def server(self, run: Run) -> None:
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
