"""``atomic``: FETCH_ADD or CMP_SWAP on one counter that all QPs share."""

from __future__ import annotations

import sys
import time

from rocekit.endpoint import LOCAL_WRITE, REMOTE_ATOMIC, SendWr
from rocekit.errors import ScenarioError
from rocekit.scenarios.scenario import PeerLink, Plan, Samples, Scenario, ScenarioRun, latency

WORD = 8


class Atomic(Scenario):
    """Atomics on a shared counter.

    1. the server registers a counter of 8 bytes with REMOTE_ATOMIC (ibv_reg_mr); every QP gets the same
       address and rkey;
    2. the client counts up on every QP at once, by FETCH_ADD of 1 (ibv_post_send,
       IBV_WR_ATOMIC_FETCH_AND_ADD, ibv_send_wr.wr.atomic.compare_add), or by CMP_SWAP of what it last saw
       with one more (`--atomic_type`; IBV_WR_ATOMIC_CMP_AND_SWP); the old value is returned into its
       own memory;
    3. when it has completed (ibv_poll_cq), a FETCH_ADD has always counted; a CMP_SWAP only if no other QP was
       faster, else it is tried again with the returned value;
    4. at the end (rdma_disconnect) every value must have been found exactly once, and the server's counter
       must be their number.

    The time of an iteration is the whole round trip.
    """

    name = "atomic"
    summary = "FETCH_ADD or CMP_SWAP on one counter from several QPs; no count may be lost."
    default_size = WORD
    access = (LOCAL_WRITE, REMOTE_ATOMIC)
    shared = True
    server_sees = "end"

    def check(self, plan: Plan) -> None:
        if plan.size != WORD:
            raise ScenarioError(f"an atomic has {WORD} bytes; -s {plan.size} is not possible")

    def client_memory(self, plan: Plan) -> int:
        return WORD

    server_memory = client_memory

    def client(self, run: ScenarioRun) -> Samples:
        compare = run.plan.atomic == "CMP_AND_SWAP"
        expected = dict.fromkeys(run.links, 0)
        counted = dict.fromkeys(run.links, 0)
        found: list[int] = []
        times: list[int] = []
        started = time.perf_counter_ns()
        while min(counted.values()) < run.plan.iterations:
            asked = [link for link in run.links if counted[link] < run.plan.iterations]
            start = time.perf_counter_ns()
            for link in asked:
                link.send(compare_swap(link, expected[link]) if compare else fetch_add(link))
            run.until(lambda asked=asked: not any(link.unsent for link in asked))  # type: ignore[misc]
            times += [time.perf_counter_ns() - start] * len(asked)
            for link in asked:
                original = int.from_bytes(link.region.read(0, WORD), sys.byteorder)
                if compare and original != expected[link]:
                    expected[link] = original
                    continue
                expected[link] = original + 1
                found.append(original)
                counted[link] += 1
                run.done += 1
        if sorted(found) != list(range(run.plan.iterations * run.plan.qps)):
            raise ScenarioError(
                "the counter gave a value twice, or left one out: the device's atomics are not atomic"
            )
        return latency(run.plan, times, started, one_way=False)

    def server(self, run: ScenarioRun) -> None:
        """Its device counts; its program waits for the goodbye."""

    def verify(self, run: ScenarioRun) -> None:
        count = int.from_bytes(run.links[0].region.read(0, WORD), sys.byteorder)
        if count != run.plan.iterations * run.plan.qps:
            raise ScenarioError(f"the counter is {count} after {run.plan.iterations * run.plan.qps} counts")


def fetch_add(link: PeerLink) -> SendWr:
    """Add 1 to the peer's counter."""
    return link.wr("ATOMIC_FETCH_AND_ADD", 0, WORD, remote=0, swap_add=1)


def compare_swap(link: PeerLink, expected: int) -> SendWr:
    """Count the peer's counter up if it still has the expected value."""
    return link.wr("ATOMIC_CMP_AND_SWP", 0, WORD, remote=0, compare=expected, swap_add=expected + 1)
