"""``sge``: scatter-gather lists, a fixed header and a variable body in buffers of their own."""

from __future__ import annotations

import struct

from rocekit.errors import ScenarioError
from rocekit.scenarios.ping_pong import answered, timed
from rocekit.scenarios.scenario import Pattern, PeerLink, Plan, Samples, Scenario, ScenarioRun

_HEADER = struct.Struct(">4sIQ")
_MAGIC = b"sge\0"


class ScatterGather(Scenario):
    """A fixed header and a variable body, gathered from two buffers and scattered into two.

    1. both post a receive of two elements (ibv_post_recv, ibv_recv_wr.num_sge = 2): 16 bytes for the header,
       `--size` for the body; their QPs allow two (ibv_qp_cap.max_send_sge, max_recv_sge);
    2. the client fills the header (kind, length of the body, number) and a body of 1 to `--size` bytes, and
       posts one SEND of both (ibv_post_send, ibv_send_wr.sg_list): the device gathers one message;
    3. the server's device scatters it: the header fills the first element, the body goes to the second; the
       completion (ibv_poll_cq, wc.byte_len) has their total length;
    4. the server reads the header, compares length and body, posts the next receive (ibv_post_recv), and
       sends both back the same way; the client compares.

    The time of an iteration is half the round trip.
    """

    name = "sge"
    summary = "Scatter-gather: a fixed header and a variable body, two buffers on either side."
    default_size = 4096
    sges = 2

    def client_memory(self, plan: Plan) -> int:
        return 2 * (_HEADER.size + plan.size)

    server_memory = client_memory

    def prepare_client(self, plan: Plan, link: PeerLink) -> None:
        self._receive(plan, link)

    prepare_server = prepare_client

    def _receive(self, plan: Plan, link: PeerLink) -> None:
        # Headers first, bodies after them: the elements of a message are far apart.
        link.receive(_HEADER.size, _HEADER.size, more=((2 * _HEADER.size + plan.size, plan.size),))

    def client(self, run: ScenarioRun) -> Samples:
        return timed(run, lambda link, i: self._send(run, link, i), lambda link, i: self._take(run, link, i))

    def server(self, run: ScenarioRun) -> None:
        def answer(link: PeerLink, i: int) -> None:
            self._take(run, link, i)
            self._send(run, link, i)

        answered(run, answer)

    def _send(self, run: ScenarioRun, link: PeerLink, i: int) -> None:
        length = body_length(run.plan.size, i)
        link.region.write(0, _HEADER.pack(_MAGIC, length, i))
        link.region.write(2 * _HEADER.size, Pattern(length)(i))
        link.send(
            link.wr("SEND", 0, _HEADER.size, more=((2 * _HEADER.size, length),), inline=run.inline_size)
        )

    def _take(self, run: ScenarioRun, link: PeerLink, i: int) -> None:
        size = run.plan.size
        done = link.received.popleft()
        magic, length, number = _HEADER.unpack(link.region.read(_HEADER.size, _HEADER.size))
        if (magic, number, done.byte_len) != (_MAGIC, i, _HEADER.size + length):
            raise ScenarioError(f"message {i} has the header {magic!r}, {number} and {done.byte_len} bytes")
        Pattern(length).check(i, link.region.read(2 * _HEADER.size + size, length))
        if i + 1 < run.plan.iterations:
            self._receive(run.plan, link)


def body_length(size: int, i: int) -> int:
    """The length of message ``i``'s body: 1 to ``size`` bytes, the longest first."""
    return size - i * 37 % size
