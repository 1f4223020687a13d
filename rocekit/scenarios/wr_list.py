"""``wr-list``: several work requests in one post, a bad one among them."""

from __future__ import annotations

import time
from dataclasses import replace

from rocekit.endpoint.errors import RefusedPost
from rocekit.errors import ScenarioError
from rocekit.scenarios.blast_sr import BlastSr
from rocekit.scenarios.scenario import Pattern, PeerLink, Plan, Samples, ScenarioRun

LIST = 4
BAD = 2


class WrList(BlastSr):
    """Lists of four SENDs in one post, the third of them bad, the rest posted again; few are signaled.

    1. the server posts its receives (ibv_post_recv, one list of all of them);
    2. the client chains four SENDs (ibv_send_wr.next) and posts them in one call (ibv_post_send). The third
       has more elements than its QP allows (num_sge above max_send_sge): the call fails with an errno and
       sets bad_wr to it. The two before it are posted; the fourth is not;
    3. the client corrects the bad one and posts the rest, in one call (ibv_post_send). Of the four only
       the last is signaled (IBV_SEND_SIGNALED): its completion (ibv_poll_cq) covers all four, and frees their
       places in the send queue;
    4. the server polls (ibv_poll_cq) and checks: every message came once, in order, none twice.
    """

    name = "wr-list"
    summary = "Four WRs in a post, a bad one in the middle, only the last signaled."
    default_size = 64
    default_iterations = 100

    def check(self, plan: Plan) -> None:
        if plan.iterations % LIST:
            raise ScenarioError(f"{self.name} posts {LIST} at a time; -n {plan.iterations} is no multiple")
        if plan.window < LIST:
            raise ScenarioError(f"{self.name} has {LIST} outstanding; -t {plan.window} is less")

    def client_memory(self, plan: Plan) -> int:
        return LIST * plan.size

    def client(self, run: ScenarioRun) -> Samples:
        plan, pattern = run.plan, Pattern(run.plan.size)
        started = time.perf_counter_ns()
        refusals = 0
        for first in range(0, plan.iterations, LIST):
            for link in run.links:
                for at in range(LIST):
                    link.region.write(at * plan.size, pattern(first + at))
                refusals += self._post(run, link)
                run.until(lambda link=link: not link.unsent)  # type: ignore[misc]
                run.done += LIST
        total = time.perf_counter_ns() - started
        run.notes.append(
            f"{refusals} bad WRs refused: those before them were posted, those after them were not"
        )
        messages = plan.iterations * plan.qps
        return Samples("bandwidth", (), total, messages * plan.size, messages)

    def _post(self, run: ScenarioRun, link: PeerLink) -> int:
        """Post a list with a bad WR, then the rest of it; how many were refused."""
        size = run.plan.size
        wrs = [link.wr("SEND", at * size, size, signaled=at == LIST - 1) for at in range(LIST)]
        bad = replace(wrs[BAD], sges=wrs[BAD].sges * (most_sges(run) + 1))
        try:
            link.send(*wrs[:BAD], bad, *wrs[BAD + 1 :])
        except RefusedPost as refused:
            if refused.place != BAD:
                raise ScenarioError(f"the device names WR {refused.place} of the list, not {BAD}") from None
        else:
            raise ScenarioError("the device took a WR with too many elements")
        link.send(*wrs[BAD:])
        return 1


def most_sges(run: ScenarioRun) -> int:
    """The most elements that a WR may have: the device may have rounded up the requested number to this."""
    return max(run.options.sges, 64)
