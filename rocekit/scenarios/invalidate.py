"""``invalidate``: a key that the peer invalidates with SEND WITH INVALIDATE."""

from __future__ import annotations

import struct
import time

from rocekit.endpoint import LOCAL_WRITE, MW_BIND, REMOTE_WRITE
from rocekit.scenarios.ping_pong import rounds
from rocekit.scenarios.scenario import Pattern, PeerLink, Plan, Samples, Scenario, ScenarioRun, latency

_OFFER = struct.Struct(">QI")
_DONE = 8
_CONTROL = 64  # bytes of the area for offers and dones, before the data


class Invalidate(Scenario):
    """The server gives the client a key for each message, and the client's last SEND invalidates it.

    1. for each message the server makes a new key for its buffer: a memory window of type 2
       (ibv_alloc_mw, IBV_MW_TYPE_2), bound by a WR with REMOTE_WRITE (ibv_post_send, IBV_WR_BIND_MW);
    2. it SENDs address and key to the client (ibv_post_send, IBV_WR_SEND), whose receive was posted
       before (ibv_post_recv);
    3. the client WRITEs the message with this key (ibv_post_send, IBV_WR_RDMA_WRITE), and after it posts
       a SEND with invalidate that names the key (IBV_WR_SEND_WITH_INV, ibv_send_wr.invalidate_rkey);
    4. the server's device invalidates the key before the receive completes (ibv_poll_cq, IBV_WC_WITH_INV):
       the client can no longer write there, and the server compares the message.

    The time of an iteration is that from the offer to the acknowledgement of the last SEND.
    """

    name = "invalidate"
    summary = "SEND with invalidate: the client invalidates the key that it got for a message."
    default_size = 4096
    default_iterations = 10
    access = (LOCAL_WRITE, REMOTE_WRITE, MW_BIND)

    def client_memory(self, plan: Plan) -> int:
        return _CONTROL + plan.size

    server_memory = client_memory

    def prepare_client(self, plan: Plan, link: PeerLink) -> None:
        link.receive(0, _OFFER.size)

    def prepare_server(self, plan: Plan, link: PeerLink) -> None:
        link.receive(_CONTROL // 2, _DONE)

    def client(self, run: ScenarioRun) -> Samples:
        size, pattern = run.plan.size, Pattern(run.plan.size)
        times: list[int] = []
        started = time.perf_counter_ns()
        for link, i in rounds(run):
            run.until(lambda link=link: link.received)  # type: ignore[misc]
            start = time.perf_counter_ns()
            link.received.popleft()
            address, rkey = _OFFER.unpack(link.region.read(0, _OFFER.size))
            if i + 1 < run.plan.iterations:
                link.receive(0, _OFFER.size)
            link.region.write(_CONTROL, pattern(i))
            link.region.write(_CONTROL // 2, i.to_bytes(_DONE, "big"))
            link.send(
                link.wr("RDMA_WRITE", _CONTROL, size, at=(address, rkey), signaled=False),
                link.wr("SEND_WITH_INV", _CONTROL // 2, _DONE, invalidate_rkey=rkey),
            )
            run.until(lambda link=link: not link.unsent)  # type: ignore[misc]
            times.append(time.perf_counter_ns() - start)
        return latency(run.plan, times, started, one_way=False)

    def server(self, run: ScenarioRun) -> None:
        size, pattern = run.plan.size, Pattern(run.plan.size)
        for link, i in rounds(run):
            run.until(lambda link=link: not link.unsent)  # type: ignore[misc]
            rkey = link.connection.grant(link.region, _CONTROL, size, (LOCAL_WRITE, REMOTE_WRITE))
            link.region.write(0, _OFFER.pack(link.region.addr + _CONTROL, rkey))
            link.send(link.wr("SEND", 0, _OFFER.size))
            # What comes shows that the offer was taken; its acknowledgement may be lost, and the client done.
            run.until(lambda link=link: link.received)  # type: ignore[misc]
            link.received.popleft()
            pattern.check(i, link.region.read(_CONTROL, size))
            if i + 1 < run.plan.iterations:
                link.receive(_CONTROL // 2, _DONE)
