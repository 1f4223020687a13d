"""``ping-write``: RDMA WRITEs back and forth, without a receive anywhere."""

from __future__ import annotations

import time
from collections.abc import Callable

from rocekit.endpoint import LOCAL_WRITE, REMOTE_WRITE
from rocekit.scenarios.scenario import Pattern, PeerLink, Plan, Samples, Scenario, ScenarioRun, latency


class PingWrite(Scenario):
    """RDMA WRITE ping-pong.

    1. both register memory (ibv_reg_mr) with REMOTE_WRITE (and LOCAL_WRITE, which that requires), and
       send each other its address and rkey in the private data of the handshake;
    2. the client WRITEs its ping into the server's memory (ibv_post_send, IBV_WR_RDMA_WRITE);
    3. the server gets no completion (ibv_poll_cq finds none): it watches the last byte, which counts up with
       each message; devices write it last, though the specification promises no order within a WRITE;
    4. the server WRITEs the message back (ibv_post_send); the client watches its own last byte and compares.

    The time of an iteration is half the round trip.
    """

    name = "ping-write"
    summary = "RDMA WRITE ping-pong: each side watches its memory for the other's message."
    access = (LOCAL_WRITE, REMOTE_WRITE)

    def client_memory(self, plan: Plan) -> int:
        return 2 * plan.size  # data to send, then data that the peer writes

    server_memory = client_memory

    def client(self, run: ScenarioRun) -> Samples:
        size, pattern = run.plan.size, Pattern(run.plan.size)
        times: list[int] = []
        started = time.perf_counter_ns()
        for i in range(run.plan.iterations):
            for link in run.links:
                link.region.write(0, numbered(pattern, i))
                start = time.perf_counter_ns()
                link.send(link.wr("RDMA_WRITE", 0, size, remote=size, inline=run.inline_size))
                run.until(answered(link, size, i))
                times.append(time.perf_counter_ns() - start)
                check(pattern, i, link.region.read(size, size))
                run.done += 1
        return latency(run.plan, times, started, one_way=True)

    def server(self, run: ScenarioRun) -> None:
        size, pattern = run.plan.size, Pattern(run.plan.size)
        for i in range(run.plan.iterations):
            for link in run.links:
                run.until(answered(link, size, i))
                message = link.region.read(size, size)
                check(pattern, i, message)
                link.region.write(0, message)
                link.send(link.wr("RDMA_WRITE", 0, size, remote=size, inline=run.inline_size))
                run.done += 1


def numbered(pattern: Pattern, i: int) -> bytes:
    """Message ``i`` with its number in the last byte: never 0, and different from the one before."""
    return pattern(i)[:-1] + bytes([i % 255 + 1])


def answered(link: PeerLink, size: int, i: int) -> Callable[[], bool]:
    """Whether message ``i`` has arrived and this side's WRITE has completed, so that its buffer is free."""
    number = i % 255 + 1
    return lambda: link.region.read(2 * size - 1, 1)[0] == number and not link.unsent


def check(pattern: Pattern, i: int, message: bytes) -> None:
    pattern.check(i, message[:-1] + pattern(i)[-1:])
