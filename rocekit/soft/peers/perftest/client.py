"""The client of perftest's bandwidth tests.

It checks that atomics count one by one, and that each READ reads the same bytes as the one before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rocekit.endpoint import Deadline
from rocekit.endpoint.qp_address import ADDRESS_BYTES, QpAddress
from rocekit.errors import ScenarioError
from rocekit.soft.backend.qp import cm_error
from rocekit.soft.cm.ids import CmId, ConnParam
from rocekit.soft.engine.memory import Sge
from rocekit.soft.engine.qp import Qp
from rocekit.soft.engine.work import WC, SendWR
from rocekit.soft.peers.party import Party
from rocekit.soft.peers.perftest.bandwidth import (
    FIRST_PSN,
    PORT,
    QKEY,
    RECEIVES,
    TESTS,
    check_test,
    move_to_rts,
    pattern,
)
from rocekit.soft.peers.perftest.exchange import (
    NUMBER_BYTES,
    NUMBERS,
    READS,
    PerftestExchange,
    QpExchange,
    TcpExchange,
    preamble,
    receive_all,
)
from rocekit.wire import ATOMIC_BYTES

_TX_DEPTH: Final = 128
_NO_LISTENER: Final = 8  # reason of a REJ: invalid service ID (12.6.7.2)
_RETRY_S: Final = 0.1


def call(
    party: Party,
    test: str,
    host: str,
    *,
    port: int = PORT,
    count: int = 100,
    size: int = 65536,
    path_mtu: int = 1024,
    rdma_cm: bool = False,
    transport: str = "RC",
    stay: bool = True,
) -> int:
    """Run the client: post ``count`` requests of ``size`` bytes, up to 128 at a time.

    Args:
        rdma_cm: the server was started with ``-R``.
        stay: wait for the server's report after the test; on UC and UD it sends none if messages are missing.

    Returns:
        how many succeeded.

    Raises:
        ScenarioError: a request failed, the server does not follow the protocol, or its data is wrong.
    """
    check_test(test, transport, rdma_cm)
    if transport == "UD":
        party.check_datagram(size)
    work = _Requests(party, test, transport, count, ATOMIC_BYTES if test == "atomic_bw" else size)
    if rdma_cm:
        _call_by_cm(work, host, port, path_mtu)
        return count
    exchange = TcpExchange(party, party.tcp(host, port))
    _send_preamble(exchange, path_mtu)
    for _ in range(TESTS[test].greetings):
        peer = _exchange_addresses(exchange, work)
        if work.qp.state == "INIT":
            move_to_rts(party, work.qp, path_mtu, peer)
    work.run(peer)
    if stay:
        _report(exchange, work)
    else:
        party.linger(0.2)
    return count


class _Requests:
    """A client's QP, memory and requests."""

    def __init__(self, party: Party, test: str, transport: str, count: int, size: int) -> None:
        self.party, self.test, self.count, self.size = party, test, count, size
        # Results are written to different places, so that they can be checked.
        self._places = {"atomic_bw": count, "read_bw": 2}.get(test, 1)
        self.mr = party.memory(self._places * size)
        if test in ("write_bw", "send_bw"):
            self.mr.view[:] = pattern(size)
        self.qp = party.qp(transport, max_send_wr=_TX_DEPTH, max_recv_wr=RECEIVES)

    def address(self) -> QpAddress:
        """The address of the QP and its memory, for the server."""
        psn = self.qp.sq_psn if self.qp.state == "RTS" else FIRST_PSN
        return QpAddress(self.qp.qpn, psn, self.mr.rkey, self.mr.addr, self.party.ip)

    def run(self, peer: QpAddress) -> None:
        """Post all requests, and check their results."""
        party, posted = self.party, 0
        done = 0
        while done < self.count:
            while posted < self.count and posted - done < _TX_DEPTH:
                party.post(self.qp, self._request(posted, peer))
                posted += 1
            party.until(lambda: bool(self._completions()), f"no completion {done} of {self.count}")
            for wc in self._completions():
                party.completions.remove(wc)
                done += 1
        self._check()

    def _completions(self) -> list[WC]:
        return [wc for wc in self.party.completions if wc.qpn == self.qp.qpn]

    def _request(self, number: int, peer: QpAddress) -> SendWR:
        at = self.mr.addr + number % self._places * self.size
        sges = (Sge(at, self.size, self.mr.lkey),)
        ud = self.qp.transport == "UD"
        return SendWR(
            number,
            TESTS[self.test].opcode,
            sges,
            remote_va=peer.address,
            rkey=peer.rkey,
            swap_add=1,
            dest_ip=peer.ip if ud else None,
            dest_qpn=peer.qpn if ud else 0,
            qkey=QKEY if ud else 0,
        )

    def _check(self) -> None:
        results = [bytes(self.mr.view[n * self.size : (n + 1) * self.size]) for n in range(self._places)]
        if self.test == "atomic_bw":
            values = [int.from_bytes(value, "little") for value in results]
            if values != [(values[0] + n) % (1 << 64) for n in range(self.count)]:
                raise ScenarioError(f"atomics did not count one by one: {values[:8]}")
        elif self.test == "read_bw" and (results[0] != results[-1] or not any(results[0])):
            raise ScenarioError("two READs of the same bytes differ, or read nothing")


def _send_preamble(exchange: PerftestExchange, path_mtu: int) -> None:
    for data in preamble(path_mtu):
        exchange.send(data)
        receive_all(exchange, len(data))


def _exchange_addresses(exchange: PerftestExchange, work: _Requests) -> QpAddress:
    exchange.send_address(work.address())
    return exchange.receive_address()


def _report(exchange: PerftestExchange, work: _Requests) -> None:
    """Send size, count, and zeros in place of the rates."""
    numbers: Sequence[int] = (work.size, work.count, 0, 0, 0)[: TESTS[work.test].numbers]
    _exchange_addresses(exchange, work)
    for number in numbers:
        exchange.send(number.to_bytes(NUMBER_BYTES, "big"))
        receive_all(exchange, NUMBER_BYTES)
    if numbers:
        exchange.send_address(work.address())
        # The server may close the connection instead of answering.
        exchange.receive(ADDRESS_BYTES if isinstance(exchange, TcpExchange) else NUMBERS.size)


def _connect(party: Party, qp: Qp, host: str, port: int, path_mtu: int, *, retry: bool) -> CmId:
    """Connect a QP to a server; ``retry``: it may not listen yet, as between its two connections."""
    depth = READS if qp.transport == "RC" else 0
    deadline = Deadline(party.timeout_s)
    while True:
        cm_id = party.dial(host, port, qp.transport)
        cm_id.qp, cm_id.path_mtu = qp, path_mtu
        param = ConnParam(responder_resources=depth, initiator_depth=depth)
        party.device.cm.connect(cm_id, param, party.now)
        event = party.event("ESTABLISHED", "REJECTED")
        if event.type == "ESTABLISHED":
            return cm_id
        if not retry or event.status != _NO_LISTENER or deadline.passed():
            raise cm_error(event)
        party.linger(_RETRY_S)


def _call_by_cm(work: _Requests, host: str, port: int, path_mtu: int) -> None:
    party, cm = work.party, work.party.device.cm
    exchange = QpExchange(party)
    ids = []
    for qp in (exchange.qp, work.qp):
        ids.append(_connect(party, qp, host, port, path_mtu, retry=qp is work.qp))
        if qp is exchange.qp:
            _send_preamble(exchange, path_mtu)
        # An empty address: at first the second QP does not exist, and later its address is not used.
        exchange.send(bytes(NUMBERS.size))
        exchange.receive(NUMBERS.size)
    for _ in range(TESTS[work.test].greetings):
        peer = _exchange_addresses(exchange, work)
    work.run(peer)
    _report(exchange, work)
    party.ending = True
    # The server ends the connection of the test, the client that of the exchange.
    party.event("DISCONNECTED")
    cm.disconnect(ids[1], party.now)
    cm.disconnect(ids[0], party.now)
    party.event("DISCONNECTED")
