"""Servers survive strangers, and send nothing to an address that a peer merely names."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from rocekit import inject
from rocekit.endpoint import Deadline, EndpointOptions, QpOptions
from rocekit.endpoint.qp_address import QpAddress
from rocekit.endpoint.tcp_introduction import write_message
from rocekit.errors import ScenarioError, VerbsError
from rocekit.scenarios.client_server import Outcome, Settings
from rocekit.scenarios.scenario import Plan
from rocekit.soft import Datagram, SoftDevice
from rocekit.soft.backend import SoftEndpoint, soft_backend
from rocekit.soft.cm.ids import BACKLOG, ConnParam
from rocekit.soft.peers import pingpong
from rocekit.soft.peers.party import Party
from rocekit.soft.realtime import Shell

PATIENCE_S = 20.0
PLAN = Plan("ping-sr", 8, 3)
#: An address of nobody (RFC 5737): nothing may go there.
ELSEWHERE = "192.0.2.7"
At = tuple[str, int, list[Outcome | Exception]]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def _server(
    *, tcp: bool, timeout_s: float = PATIENCE_S
) -> Iterator[tuple[str, int, list[Outcome | Exception]]]:
    """A server of ping-sr in a thread: (address, port, what it came to)."""
    port = _free_port()
    address: list[str] = []
    listens = threading.Event()
    ended: list[Outcome | Exception] = []

    def ready(ip: str) -> None:
        address.append(ip)
        listens.set()

    def serve() -> None:
        try:
            options = EndpointOptions(tcp=tcp)
            settings = Settings(endpoint=options, port=port, timeout_s=timeout_s, counters=False)
            ended.append(inject.serve("ping-sr", settings, ready=ready, make=soft_backend()))
        except Exception as error:
            ended.append(error)
        finally:
            listens.set()

    thread = threading.Thread(target=serve)
    thread.start()
    assert listens.wait(PATIENCE_S)
    try:
        yield address[0], port, ended
    finally:
        thread.join(3 * PATIENCE_S)


def _serves(at: At, *, tcp: bool) -> None:
    """The right client is served."""
    settings = Settings(endpoint=EndpointOptions(tcp=tcp), port=at[1], timeout_s=PATIENCE_S, counters=False)
    assert inject.call(at[0], PLAN, settings, make=soft_backend()).role == "client"


def test_a_server_survives_a_stray_req() -> None:
    with _server(tcp=False) as at:
        with SoftEndpoint(EndpointOptions()) as stranger:
            connection = stranger.dial(at[0], at[1], QpOptions(), Deadline(PATIENCE_S))
            with pytest.raises(VerbsError, match="reject"):
                connection.connect(b"hello?", Deadline(PATIENCE_S))
        _serves(at, tcp=False)
    assert isinstance(at[2][0], Outcome)


def test_a_server_survives_a_req_whose_sender_is_gone() -> None:
    with _server(tcp=False, timeout_s=9) as at:
        with SoftEndpoint(EndpointOptions()) as stranger:
            connection = stranger.dial(at[0], at[1], QpOptions(), Deadline(PATIENCE_S))
            request = PLAN.pack(0, stranger.register(64, ["LOCAL_WRITE"]))
            with pytest.raises(VerbsError):
                connection.connect(request, Deadline(0))
        _serves(at, tcp=False)
    assert isinstance(at[2][0], Outcome)


@pytest.mark.parametrize("words", [b"", b"GET / HTTP/1.1\r\n\r\n", b"P\xff\xff", b"P\0\4oops"])
def test_a_tcp_client_that_is_none_keeps_nobody_waiting(words: bytes) -> None:
    with _server(tcp=True) as at, socket.create_connection((at[0], at[1]), PATIENCE_S) as stranger:
        stranger.sendall(words)
        _serves(at, tcp=True)
    assert isinstance(at[2][0], Outcome)


def test_many_silent_tcp_clients_keep_nobody_waiting() -> None:
    with _server(tcp=True) as at, contextlib.ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(socket.create_connection((at[0], at[1]), PATIENCE_S))
        _serves(at, tcp=True)
    assert isinstance(at[2][0], Outcome)


def _reqs(client: SoftDevice, count: int) -> list[Datagram]:
    for _ in range(count):
        cm_id = client.cm.create_id()
        client.cm.resolve_addr(cm_id, "10.9.0.2", 18515)
        client.cm.resolve_route(cm_id)
        client.cm.connect(cm_id, ConnParam(), 0)
    return client.datagrams_to_send(0)


def test_of_4000_reqs_a_listener_keeps_as_many_as_its_backlog() -> None:
    server, client = SoftDevice("server", ["10.9.0.2"]), SoftDevice("client", ["10.9.0.1"])
    server.cm.listen(server.cm.create_id(), 18515)
    for datagram in _reqs(client, 4000):
        server.receive(datagram.data, 0)
    asked = server.cm.events()
    assert len(asked) == BACKLOG
    assert len(server.cm.ids) == BACKLOG + 1
    for event in asked:
        server.cm.reject(event.id, b"", 0)
    assert len(server.cm.ids) == 1
    for datagram in _reqs(client, 1):
        server.receive(datagram.data, 0)
    assert len(server.cm.events()) == 1


def test_reqs_for_nobody_leave_nothing() -> None:
    server, client = SoftDevice("server", ["10.9.0.2"]), SoftDevice("client", ["10.9.0.1"])
    for datagram in _reqs(client, 100):
        server.receive(datagram.data, 0)
    assert not server.cm.ids


# -- addresses that are not the peer's


def _introduce(at: tuple[str, int], own: QpAddress) -> None:
    """A TCP client that names an address."""
    said = write_message(own, b"", 1024)
    with socket.create_connection(at, PATIENCE_S) as client:
        client.sendall(b"P" + len(said).to_bytes(2, "big") + said)
        client.settimeout(PATIENCE_S)
        with contextlib.suppress(OSError):
            client.recv(4096)


@pytest.mark.parametrize(
    ("named", "allowed", "refused"),
    [(ELSEWHERE, (), True), (ELSEWHERE, (ELSEWHERE,), False), ("127.0.0.1", (), False)],
)
def test_no_frames_go_to_an_address_that_a_tcp_client_merely_names(
    named: str, allowed: tuple[str, ...], refused: bool
) -> None:
    port = _free_port()
    with SoftEndpoint(
        EndpointOptions(ip="127.0.0.1", any_ip=True, tcp=True, allow_remote=allowed)
    ) as endpoint:
        endpoint.leaves_machine = True
        endpoint.listen(port, backlog=4)
        at = (endpoint.ip, port)
        client = threading.Thread(target=_introduce, args=(at, QpAddress(9, 1, 2, 3, named)))
        client.start()
        connection = endpoint.request(Deadline(PATIENCE_S)).connection(QpOptions())
        expected = ScenarioError if refused else VerbsError  # allowed, it waits for the client's word
        with pytest.raises(expected, match=named if refused else "no answer|hung up"):
            connection.accept(b"", Deadline(0.1))
        assert isinstance(endpoint, SoftEndpoint)
        state = endpoint.adapter.device.qps[connection.qpn].state
        assert state == ("INIT" if refused else "RTS")
    client.join(PATIENCE_S)


def test_a_pingpong_sends_nothing_to_an_address_that_its_client_merely_names() -> None:
    port = _free_port()
    listens = threading.Event()
    greeting = (
        f"0000:000009:000001:00000000000000000000ffff{socket.inet_aton(ELSEWHERE).hex()}".encode() + b"\0"
    )

    def client() -> None:
        assert listens.wait(PATIENCE_S)
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as made:
            made.sendall(greeting)
            made.settimeout(PATIENCE_S)
            made.recv(64)

    thread = threading.Thread(target=client)
    thread.start()
    with Party(None, None, timeout_s=PATIENCE_S, listening=listens.set) as party:
        party._leaves_machine = True
        with pytest.raises(ScenarioError, match=ELSEWHERE):
            pingpong.run(party, "RC", None, port=port, count=1, size=8)
        assert party.device.counters["sent_pkts"] == 0
    thread.join(PATIENCE_S)


# -- the shell


class _Link:
    """A link that notes how often it was waited on."""

    address = "10.9.0.1"
    path_mtu = 1024

    def __init__(self, takes: Callable[[], bool] = lambda: True) -> None:
        self.waits: list[float] = []
        self.sent = 0
        self._takes = takes

    def send(self, datagram: Datagram) -> bool:
        self.sent += 1
        return self._takes()

    def receive(self) -> list[bytes]:
        return []

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)

    def mac_of(self, address: str) -> str:
        return "02:00:00:00:00:00"

    def close(self) -> None:
        """Nothing to close."""


@pytest.mark.parametrize("packets", [1, 15, 16, 17, 32, 33, 48, 64, 100])
def test_a_shell_does_not_wait_while_a_queue_pair_can_send(packets: int) -> None:
    from rocekit.soft import SendWR, Sge

    link = _Link()
    device = SoftDevice("one", ["10.9.0.1"], seed=1)
    shell = Shell(device, link)
    pd = device.alloc_pd()
    mr = device.reg_mr(pd, device.memory.alloc(packets * 256), packets * 256, ["LOCAL_WRITE"])
    qp = device.create_qp(pd, "UC", device.create_cq(8))
    device.modify_qp(qp, 0, state="INIT", access=[])
    device.modify_qp(qp, 0, state="RTR", dest_ip="10.9.0.2", dest_qpn=1, path_mtu=256, rq_psn=0)
    device.modify_qp(qp, 0, state="RTS", sq_psn=0)
    device.post_send(qp, SendWR(1, "SEND", (Sge(mr.addr, mr.length, mr.lkey),)), 0)
    while link.sent < packets:
        shell.pump()
        if link.sent < packets:
            shell.wait(5)
            assert link.waits == []
    while not link.waits:  # all is sent: the shell waits, after it has looked once more
        shell.pump()
        shell.wait(5)
    assert link.waits == [5]
