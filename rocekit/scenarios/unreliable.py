"""Ping-pong with messages that may be lost: the client waits for each to come back, for a limited time."""

from __future__ import annotations

import time
from collections.abc import Callable

from rocekit.errors import ScenarioError
from rocekit.scenarios.ping_pong import rounds
from rocekit.scenarios.scenario import PeerLink, Samples, ScenarioRun, latency

PATIENCE_S = 1.0

Send = Callable[[ScenarioRun, PeerLink, int], None]
Take = Callable[[ScenarioRun, PeerLink], int | None]


def ask_each(run: ScenarioRun, send: Send, take: Take) -> Samples:
    """The client's part.

    Args:
        send: sends message ``i``.
        take: gives the number of the message that came back; None if it does not count.
    """
    times: list[int] = []
    lost = 0
    started = time.perf_counter_ns()
    for link, i in rounds(run):
        start = time.perf_counter_ns()
        send(run, link, i)
        if _answer(run, link, i, take):
            times.append(time.perf_counter_ns() - start)
        else:
            lost += 1
        run.flush()
    run.notes.append(f"{lost} of {run.plan.iterations * run.plan.qps} round trips were lost")
    if not times:
        raise ScenarioError("no message came back")
    return latency(run.plan, times, started, one_way=True)


def _answer(run: ScenarioRun, link: PeerLink, i: int, take: Take) -> bool:
    """Whether message ``i`` comes back in time; earlier ones are late and do not count."""
    while run.within(lambda: bool(link.received), PATIENCE_S):
        if take(run, link) == i:
            return True
    return False


def answer_each(run: ScenarioRun, take: Take, send: Send) -> None:
    """The server's part, until the last message or the client's disconnect: some may be lost."""
    last = dict.fromkeys(run.links, -1)

    def over() -> bool:
        return any(link.connection.disconnected for link in run.links)

    while min(last.values()) < run.plan.iterations - 1:
        run.until(lambda: over() or any(link.received for link in run.links))
        for link in run.links:
            while link.received:
                number = take(run, link)
                if number is None:
                    continue
                last[link] = number
                send(run, link, number)
                run.until(lambda link=link: not link.unsent)  # type: ignore[misc]
                run.done += 1
        if over():
            return
