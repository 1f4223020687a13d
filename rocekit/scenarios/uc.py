"""``uc``: an unreliable connection."""

from __future__ import annotations

import struct

from rocekit.endpoint import LOCAL_WRITE, REMOTE_WRITE
from rocekit.scenarios.scenario import Pattern, PeerLink, Plan, Samples, Scenario, ScenarioRun
from rocekit.scenarios.unreliable import answer_each, ask_each

RECEIVES = 16
_NOTE = struct.Struct(">QI")  # number, whether the WRITE before it arrived complete


class UnreliableConnection(Scenario):
    """WRITE and SEND over UC: in order, without ACKs, and nothing is sent again.

    1. both make a UC QP (ibv_create_qp, IBV_QPT_UC), register memory with REMOTE_WRITE (ibv_reg_mr), post
       receives (ibv_post_recv), exchange QPN, PSN, address and rkey over TCP, as ibv_uc_pingpong does,
       and move to RTR and RTS (ibv_modify_qp: no timeout, no retries, no READs);
    2. the client WRITEs message i into the server's memory and posts after it a SEND of its number
       (ibv_post_send, IBV_WR_RDMA_WRITE, IBV_WR_SEND, one list); both complete when they are sent
       (ibv_poll_cq);
    3. the SEND completes a receive of the server (ibv_poll_cq); if a packet of the WRITE was lost, the
       rest of the WRITE was dropped and the memory has other data: the server says so in its reply;
    4. it replies the same way: the message WRITTEN back, the number SENT (ibv_post_send), and posts its
       receive again (ibv_post_recv);
    5. a reply that does not come within a second (ibv_poll_cq) counts as lost, and the client continues.

    The time of an iteration is half the round trip, of messages that came back.
    """

    name = "uc"
    summary = "SEND and WRITE over an unreliable connection: in order, without ACKs."
    default_size = 4096
    transport = "UC"
    tcp = True
    access = (LOCAL_WRITE, REMOTE_WRITE)

    # Memory: data to send, data that the peer writes, the note to send, and received notes.

    def client_memory(self, plan: Plan) -> int:
        return 2 * plan.size + (1 + RECEIVES) * _NOTE.size

    server_memory = client_memory

    def receives(self, plan: Plan) -> int:
        return RECEIVES

    def prepare_client(self, plan: Plan, link: PeerLink) -> None:
        for slot in range(RECEIVES):
            link.receive(2 * plan.size + (1 + slot) * _NOTE.size, _NOTE.size)

    prepare_server = prepare_client

    def __init__(self) -> None:
        self._torn = 0
        self._whole = True

    def client(self, run: ScenarioRun) -> Samples:
        samples = ask_each(run, self._send, self._take)
        run.notes.append(f"{self._torn} WRITEs were lost though the SEND after them came")
        return samples

    def server(self, run: ScenarioRun) -> None:
        answer_each(run, self._take, self._send)

    def _send(self, run: ScenarioRun, link: PeerLink, i: int) -> None:
        size = run.plan.size
        link.region.write(0, Pattern(size)(i))
        link.region.write(2 * size, _NOTE.pack(i, self._whole))
        link.send(
            link.wr("RDMA_WRITE", 0, size, remote=size, inline=run.inline_size),
            link.wr("SEND", 2 * size, _NOTE.size, inline=run.inline_size),
        )

    def _take(self, run: ScenarioRun, link: PeerLink) -> int:
        """The number of the received message; whether its data came is noted."""
        size = run.plan.size
        _, at = link.take()
        number, whole_there = _NOTE.unpack(link.region.read(at, _NOTE.size))
        self._whole = link.region.read(size, size) == Pattern(size)(number)
        self._torn += (not whole_there) + (not self._whole)
        link.receive(at, _NOTE.size)
        return int(number)
