"""``ping-sr``: SEND and RECV, back and forth."""

from __future__ import annotations

import time

from rocekit.scenarios.scenario import Pattern, PeerLink, Plan, Samples, Scenario, ScenarioRun, latency


class PingSr(Scenario):
    """SEND/RECV ping-pong.

    The client has two buffers, the server one:

    1. both post a receive before the connection is made (ibv_post_recv);
    2. the client fills `ping` and posts a SEND of it (ibv_post_send);
    3. the server's receive completes (ibv_poll_cq, busy polling); it posts the next one into the same buffer,
       and then a SEND of the message. In this order: the next ping follows that SEND, and must find a
       receive;
    4. the client's receive into `pong` completes (ibv_poll_cq); it compares pong with ping, and starts again.

    The time of an iteration is half the round trip.
    """

    name = "ping-sr"
    summary = "SEND/RECV ping-pong: the client compares what comes back with what it sent."

    def client_memory(self, plan: Plan) -> int:
        return 2 * plan.size  # ping, then pong

    def server_memory(self, plan: Plan) -> int:
        return plan.size

    def prepare_client(self, plan: Plan, link: PeerLink) -> None:
        link.receive(plan.size, plan.size)

    def prepare_server(self, plan: Plan, link: PeerLink) -> None:
        link.receive(0, plan.size)

    def client(self, run: ScenarioRun) -> Samples:
        size, pattern = run.plan.size, Pattern(run.plan.size)
        times: list[int] = []
        started = time.perf_counter_ns()
        for i in range(run.plan.iterations):
            for link in run.links:
                link.region.write(0, pattern(i))
                start = time.perf_counter_ns()
                link.send(link.wr("SEND", 0, size, inline=run.inline_size))
                run.until(lambda link=link: link.received and not link.unsent)  # type: ignore[misc]
                times.append(time.perf_counter_ns() - start)
                link.received.popleft()
                pattern.check(i, link.region.read(size, size))
                run.done += 1
                if i + 1 < run.plan.iterations:
                    link.receive(size, size)
        return latency(run.plan, times, started, one_way=True)

    def server(self, run: ScenarioRun) -> None:
        size, pattern = run.plan.size, Pattern(run.plan.size)
        for i in range(run.plan.iterations):
            for link in run.links:
                run.until(lambda link=link: link.received)  # type: ignore[misc]
                link.received.popleft()
                pattern.check(i, link.region.read(0, size))
                if i + 1 < run.plan.iterations:
                    link.receive(0, size)
                link.send(link.wr("SEND", 0, size, inline=run.inline_size))
                run.done += 1
