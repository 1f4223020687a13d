"""``ping-sr-0`` … ``ping-sr-4``: the same ping-pong in five steps of learning.

From one to the next changes how the sides agree on the work, and how they wait for connection events and for
completions.
"""

from __future__ import annotations

import struct
from dataclasses import replace

from rocekit.endpoint import Region, WaitWays
from rocekit.errors import ScenarioError
from rocekit.scenarios.ping_sr import PingSr
from rocekit.scenarios.scenario import Plan, Remote

_COUNT_AND_SIZE = struct.Struct(">II")


class PingSr0(PingSr):
    """The simplest SEND/RECV ping-pong: synchronous CM, busy polling, no private data.

    1. each side has count (-n) and size (-s) from its user (no private data in rdma_connect); a server with
       other numbers fails;
    2. the server listens (rdma_create_id, rdma_bind_addr, rdma_listen), the client resolves
       (rdma_resolve_addr, rdma_resolve_route), and each call is followed by waiting for its event
       (rdma_get_cm_event, rdma_ack_cm_event);
    3. both make a QP (ibv_create_qp), register memory (ibv_reg_mr), post a receive (ibv_post_recv);
    4. the client connects (rdma_connect), the server accepts (rdma_accept), both wait for ESTABLISHED;
    5. ping and pong as in ping-sr (ibv_post_send, ibv_poll_cq again and again); no CM events are read
       now, so a peer that leaves is noticed late or never;
    6. the client disconnects (rdma_disconnect); both take everything down in reverse order (ibv_destroy_qp,
       ibv_dereg_mr, ibv_destroy_cq, ibv_dealloc_pd, rdma_destroy_id, rdma_destroy_event_channel).
    """

    name = "ping-sr-0"
    summary = "SEND/RECV ping-pong, the plain way: synchronous CM, the CQ polled busily."
    ways = WaitWays("sync", "poll")

    def check(self, plan: Plan) -> None:
        if plan.qps != 1:
            raise ScenarioError(f"{self.name} has one QP; -q is for ping-sr")

    def request_data(self, plan: Plan, index: int, region: Region) -> bytes:
        return b""

    def read_request(self, data: bytes, own: Plan) -> tuple[Plan, int | None, Remote | None]:
        return own, None, None

    def reply_data(self, region: Region) -> bytes:
        return b""

    def read_reply(self, data: bytes) -> Remote | None:
        return None


class PingSr1(PingSr0):
    """As ping-sr-0, and the client sends the server count and size.

    1. the client puts count and size, 32 bits each in network byte order (htonl), into the private data
       of its request (rdma_conn_param.private_data of rdma_connect);
    2. the server reads them from the CONNECT_REQUEST (rdma_get_cm_event: event->param.conn.private_data),
       registers so much memory (ibv_reg_mr), posts its receive (ibv_post_recv) and accepts (rdma_accept);
    3. ping and pong as in ping-sr (ibv_post_send, ibv_poll_cq again and again);
    4. disconnect and teardown as in ping-sr-0 (rdma_disconnect, …, rdma_destroy_event_channel).
    """

    name = "ping-sr-1"
    summary = "As ping-sr-0; count and size reach the server in rdma_connect's private data."

    def request_data(self, plan: Plan, index: int, region: Region) -> bytes:
        return _COUNT_AND_SIZE.pack(plan.iterations, plan.size)

    def read_request(self, data: bytes, own: Plan) -> tuple[Plan, int | None, Remote | None]:
        if len(data) < _COUNT_AND_SIZE.size or not all(_COUNT_AND_SIZE.unpack_from(data)):
            raise ScenarioError(f"the client sent no count and size: it is not `rocekit inject {self.name}`")
        iterations, size = _COUNT_AND_SIZE.unpack_from(data)
        # The rest, such as the path MTU, both sides have from their users.
        return replace(own, scenario=self.name, size=size, iterations=iterations), None, None


class PingSr2(PingSr1):
    """As ping-sr-1, with a thread for connection events.

    1. each side makes an event channel of its own (rdma_create_event_channel) and a thread that reads it
       (rdma_get_cm_event, rdma_ack_cm_event) and hands events to the main thread;
    2. the main thread connects (rdma_connect, rdma_accept) and waits for the thread;
    3. ping and pong as in ping-sr (ibv_post_send, ibv_poll_cq again and again); between two polls the main
       thread looks whether the thread has seen DISCONNECTED: the wait then ends with ECONNRESET;
    4. disconnect (rdma_disconnect), the thread ends, teardown as in ping-sr-0.
    """

    name = "ping-sr-2"
    summary = "As ping-sr-1; a thread reads CM events, an unexpected DISCONNECTED ends with ECONNRESET."
    ways = WaitWays("thread", "poll")


class PingSr3(PingSr2):
    """As ping-sr-2, sleeping until something completes.

    1. each side makes a completion channel (ibv_create_comp_channel) and a CQ on it (ibv_create_cq);
    2. to wait, it arms the CQ (ibv_req_notify_cq), polls once more (ibv_poll_cq: earlier completions cause no
       event), sleeps in the channel (ibv_get_cq_event), and acknowledges (ibv_ack_cq_events);
    3. ping and pong as in ping-sr (ibv_post_send); the CPU is idle while it waits, and each message takes
       the time of waking up;
    4. disconnect and teardown as in ping-sr-2, the channel last (rdma_disconnect, ibv_destroy_comp_channel).
    """

    name = "ping-sr-3"
    summary = "As ping-sr-2; a completion channel: less CPU, more latency."
    ways = WaitWays("thread", "channel")


class PingSr4(PingSr3):
    """As ping-sr-3 without a thread: both channels non-blocking, one poll().

    1. the descriptors of the event channel and of the completion channel are set to O_NONBLOCK (fcntl
       on rdma_event_channel.fd and ibv_comp_channel.fd);
    2. to wait, the program arms the CQ (ibv_req_notify_cq), polls once more (ibv_poll_cq), and sleeps in
       poll() on both descriptors;
    3. what is ready is read: rdma_get_cm_event and rdma_ack_cm_event, or ibv_get_cq_event and
       ibv_ack_cq_events;
    4. ping and pong as in ping-sr (ibv_post_send); one thread sees completions and DISCONNECTED;
    5. disconnect and teardown as in ping-sr-3 (rdma_disconnect, ibv_destroy_comp_channel).
    """

    name = "ping-sr-4"
    summary = "As ping-sr-3; CM channel and completion channel non-blocking, waited on with poll()."
    ways = WaitWays("poll", "nonblocking")
