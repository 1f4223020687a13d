"""``immediate``: SEND and RDMA WRITE with immediate data."""

from __future__ import annotations

from rocekit.endpoint import LOCAL_WRITE, REMOTE_WRITE
from rocekit.errors import ScenarioError
from rocekit.scenarios.ping_pong import answered, timed
from rocekit.scenarios.scenario import Pattern, PeerLink, Plan, Samples, Scenario, ScenarioRun

OPCODES = ("SEND_WITH_IMM", "RDMA_WRITE_WITH_IMM")


class Immediate(Scenario):
    """SEND with immediate and WRITE with immediate in turns, back and forth.

    1. both post a receive (ibv_post_recv): each operation takes one, a WRITE only for its number;
    2. the client SENDs message 0, 2, 4 … with its number as immediate data (ibv_post_send,
       IBV_WR_SEND_WITH_IMM, ibv_send_wr.imm_data = htonl(number)), and WRITEs message 1, 3, 5 … into the
       server's memory with its number (IBV_WR_RDMA_WRITE_WITH_IMM);
    3. the server's receive completes (ibv_poll_cq) as IBV_WC_RECV with the data in its buffer, or as
       IBV_WC_RECV_RDMA_WITH_IMM with the data at the WRITE's address; the completion has the number
       (IBV_WC_WITH_IMM, ntohl(wc.imm_data));
    4. it compares data and number, posts the next receive (ibv_post_recv), and sends the message back the
       same way (ibv_post_send); the client compares too.

    The time of an iteration is half the round trip.
    """

    name = "immediate"
    summary = "SEND and WRITE with immediate data in turns: the completion carries the message's number."
    access = (LOCAL_WRITE, REMOTE_WRITE)

    # Three buffers: data to send, data of the peer's SENDs, data of the peer's WRITEs.

    def client_memory(self, plan: Plan) -> int:
        return 3 * plan.size

    server_memory = client_memory

    def prepare_client(self, plan: Plan, link: PeerLink) -> None:
        link.receive(plan.size, plan.size)

    prepare_server = prepare_client

    def client(self, run: ScenarioRun) -> Samples:
        return timed(run, lambda link, i: self._send(run, link, i), lambda link, i: self._take(run, link, i))

    def server(self, run: ScenarioRun) -> None:
        def answer(link: PeerLink, i: int) -> None:
            self._take(run, link, i)
            self._send(run, link, i)

        answered(run, answer)

    def _send(self, run: ScenarioRun, link: PeerLink, i: int) -> None:
        size = run.plan.size
        link.region.write(0, Pattern(size)(i))
        opcode = OPCODES[i % 2]
        remote = 2 * size if opcode.startswith("RDMA") else None
        link.send(link.wr(opcode, 0, size, remote=remote, inline=run.inline_size, imm=i))

    def _take(self, run: ScenarioRun, link: PeerLink, i: int) -> None:
        """Check message ``i``, which has arrived, and post the next receive."""
        size = run.plan.size
        done = link.received.popleft()
        written = i % 2 == 1
        wanted = ("RECV_RDMA_WITH_IMM" if written else "RECV", i)
        if (done.opcode, done.imm) != wanted:
            raise ScenarioError(f"message {i} completed as {done.opcode} with immediate {done.imm}")
        Pattern(size).check(i, link.region.read(2 * size if written else size, size))
        if i + 1 < run.plan.iterations:
            link.receive(size, size)
