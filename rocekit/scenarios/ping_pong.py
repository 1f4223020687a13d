"""The common parts of ping-pong scenarios, whose client measures round trips."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from rocekit.scenarios.scenario import PeerLink, Samples, ScenarioRun, latency


def rounds(run: ScenarioRun) -> Iterator[tuple[PeerLink, int]]:
    """(link, number) of each round, over all links in turn."""
    for i in range(run.plan.iterations):
        for link in run.links:
            yield link, i
            run.done += 1


def timed(
    run: ScenarioRun, ask: Callable[[PeerLink, int], None], check: Callable[[PeerLink, int], None]
) -> Samples:
    """The client's part: half of each round trip.

    Args:
        ask: fills the buffer of message ``i`` and sends it.
        check: checks the message that came back, when a receive has completed and nothing is outstanding.
    """
    times: list[int] = []
    started = time.perf_counter_ns()
    for link, i in rounds(run):
        start = time.perf_counter_ns()
        ask(link, i)
        run.until(lambda link=link: link.received and not link.unsent)  # type: ignore[misc]
        times.append(time.perf_counter_ns() - start)
        check(link, i)
    return latency(run.plan, times, started, one_way=True)


def answered(run: ScenarioRun, answer: Callable[[PeerLink, int], None]) -> None:
    """The server's part: ``answer`` checks message ``i``, which has arrived, and sends one back."""
    for link, i in rounds(run):
        run.until(lambda link=link: link.received and not link.unsent)  # type: ignore[misc]
        answer(link, i)
