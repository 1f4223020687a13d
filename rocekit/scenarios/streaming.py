"""A one-way stream of work requests: as many outstanding as the queue holds, few of them signaled."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import chain

from rocekit.endpoint.work import SendWr
from rocekit.scenarios.measures import peak_ns
from rocekit.scenarios.scenario import PeerLink, Samples, ScenarioRun


def stream(
    run: ScenarioRun,
    make: Callable[[PeerLink, int, int, bool], SendWr],
    finished: Callable[[PeerLink, int, int], None] = lambda link, i, slot: None,
    *,
    most: int | None = None,
) -> Samples:
    """Post ``plan.iterations`` WRs on every link and wait until they are done.

    Each post has ``plan.post_list`` of them; every ``plan.cq_mod``th and the last are signaled: their
    completions cover those before.

    Args:
        make: (link, number, slot of the buffer, whether it is signaled) to a WR.
        finished: called with (link, number, slot) when a WR is known to be done, in order.
        most: outstanding on a link, if not ``plan.window``.
    """
    plan = run.plan
    slots = min(plan.window if most is None else min(most, plan.window), plan.iterations)
    batch = min(plan.post_list, slots)
    # When there is no room for the next batch, one of the outstanding WRs must be signaled.
    every = min(plan.cq_mod, slots - batch + 1)
    posted: dict[PeerLink, list[int]] = {link: [] for link in run.links}
    completed: dict[PeerLink, list[int]] = {link: [] for link in run.links}

    def due(link: PeerLink) -> int:
        """How many WRs the next post of a link has; 0 if it must wait, or is done."""
        count = min(batch, plan.iterations - len(posted[link]))
        return count if link.unsent + count <= slots else 0

    def settle() -> None:
        now = time.perf_counter_ns()
        for link in run.links:
            for i in range(len(completed[link]), len(posted[link]) - link.unsent):
                completed[link].append(now)
                finished(link, i, i % slots)
                run.done += 1

    started = time.perf_counter_ns()
    while min(map(len, posted.values())) < plan.iterations:
        run.until(lambda: any(due(link) for link in run.links))
        settle()
        for link in run.links:
            wrs = []
            for i in range(len(posted[link]), len(posted[link]) + due(link)):
                wrs.append(make(link, i, i % slots, (i + 1) % every == 0 or i + 1 == plan.iterations))
            if wrs:
                posted[link] += [time.perf_counter_ns()] * len(wrs)
                link.send(*wrs)
    while any(link.unsent for link in run.links):
        left = sum(link.unsent for link in run.links)
        run.until(lambda left=left: sum(link.unsent for link in run.links) < left)  # type: ignore[misc]
        settle()
    settle()
    total = time.perf_counter_ns() - started
    messages = plan.iterations * plan.qps
    peak = peak_ns(sorted(chain(*posted.values())), sorted(chain(*completed.values())))
    return Samples("bandwidth", (), total, messages * plan.size, messages, peak)
