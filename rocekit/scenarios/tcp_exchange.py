"""The exchanges of some scenarios over a TCP connection, to be compared with them."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import signal
import socket
import struct
import time
from dataclasses import dataclass
from typing import Any, Final

from rocekit.errors import ScenarioError
from rocekit.scenarios.ping_read import SLOTS
from rocekit.scenarios.plan import Pattern, Plan
from rocekit.scenarios.scenario import Samples, latency
from rocekit.scenarios.usage import Usage, UsageMeter

#: Scenarios whose exchange there is over TCP.
EXCHANGES: Final = ("ping-sr", "blast-sr", "ping-read")
#: How a side waits for data: it asks again and again, or sleeps in the kernel.
WAYS: Final = ("busy", "blocking")
_REQUEST: Final = struct.Struct(">Q")
_DONE: Final = b"\x01"
_SPINS: Final = 4096
_GRACE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class TcpOutcome:
    """What was measured over TCP.

    Attributes:
        way: one of :data:`WAYS`.
        client, server: the cost of the exchange at each end.
    """

    way: str
    samples: Samples
    client: Usage
    server: Usage


class _Channel:
    """A connection with one way of waiting."""

    def __init__(self, sock: socket.socket, way: str, timeout_s: float) -> None:
        self._sock = sock
        self._busy = way == "busy"
        self._timeout_s = timeout_s
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(not self._busy)
        if not self._busy:
            # A timeout of Python's would ask before each call whether it would block.
            seconds = int(timeout_s)
            limit = struct.pack("@ll", seconds, int((timeout_s - seconds) * 1_000_000))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def send(self, data: bytes) -> None:
        """Send all of it."""
        view = memoryview(data)
        while view:
            view = view[self._retried(lambda view=view: self._sock.send(view)) :]

    def receive(self, into: memoryview) -> None:
        """Receive as many bytes as there is room."""
        while into:
            count = self._retried(lambda into=into: self._sock.recv_into(into))
            if not count:
                raise ScenarioError("the TCP connection ended early")
            into = into[count:]

    def _retried(self, call: Any) -> int:
        if not self._busy:
            try:
                return int(call())
            except BlockingIOError:
                raise self._late() from None
        deadline, spins = 0.0, 0
        while True:
            try:
                return int(call())
            except BlockingIOError:
                spins += 1
                if spins % _SPINS == 0:
                    now = time.monotonic()
                    deadline = deadline or now + self._timeout_s
                    if now > deadline:
                        raise self._late() from None

    def _late(self) -> ScenarioError:
        return ScenarioError(f"nothing came over TCP for {self._timeout_s:g} s")


# ---------------------------------------------------------------------- the exchanges


def _ping_client(plan: Plan, channel: _Channel) -> Samples:
    pattern, pong = Pattern(plan.size), memoryview(bytearray(plan.size))
    times: list[int] = []
    started = time.perf_counter_ns()
    for i in range(plan.iterations):
        ping = pattern(i)
        start = time.perf_counter_ns()
        channel.send(ping)
        channel.receive(pong)
        times.append(time.perf_counter_ns() - start)
        pattern.check(i, bytes(pong))
    return latency(plan, times, started, one_way=True)


def _ping_server(plan: Plan, channel: _Channel) -> None:
    pattern, message = Pattern(plan.size), memoryview(bytearray(plan.size))
    for i in range(plan.iterations):
        channel.receive(message)
        pattern.check(i, bytes(message))
        channel.send(bytes(message))


def _stream_client(plan: Plan, channel: _Channel) -> Samples:
    pattern, done = Pattern(plan.size), memoryview(bytearray(1))
    started = time.perf_counter_ns()
    for i in range(plan.iterations):
        channel.send(pattern(i))
    channel.receive(done)
    total = time.perf_counter_ns() - started
    return Samples("bandwidth", (), total, plan.size * plan.iterations, plan.iterations)


def _stream_server(plan: Plan, channel: _Channel) -> None:
    pattern, message = Pattern(plan.size), memoryview(bytearray(plan.size))
    for i in range(plan.iterations):
        channel.receive(message)
        pattern.check(i, bytes(message))
    channel.send(_DONE)


def _fetch_client(plan: Plan, channel: _Channel) -> Samples:
    pattern, message = Pattern(plan.size), memoryview(bytearray(plan.size))
    times: list[int] = []
    started = time.perf_counter_ns()
    for i in range(plan.iterations):
        start = time.perf_counter_ns()
        channel.send(_REQUEST.pack(i % SLOTS))
        channel.receive(message)
        times.append(time.perf_counter_ns() - start)
        pattern.check(i % SLOTS, bytes(message))
    return latency(plan, times, started, one_way=False)


def _fetch_server(plan: Plan, channel: _Channel) -> None:
    pattern, request = Pattern(plan.size), memoryview(bytearray(_REQUEST.size))
    slots = [pattern(slot) for slot in range(SLOTS)]
    for _ in range(plan.iterations):
        channel.receive(request)
        (slot,) = _REQUEST.unpack(request)
        channel.send(slots[slot])


_CLIENTS: Final = {"ping-sr": _ping_client, "blast-sr": _stream_client, "ping-read": _fetch_client}
_SERVERS: Final = {"ping-sr": _ping_server, "blast-sr": _stream_server, "ping-read": _fetch_server}


# ---------------------------------------------------------------------- both sides


def exchange(plan: Plan, server_ip: str, client_ip: str, way: str, timeout_s: float) -> TcpOutcome:
    """Do a scenario's exchange over TCP between two addresses of this machine; the server is a process.

    Raises:
        ScenarioError: there is no such exchange, or it failed at either side.
    """
    if plan.scenario not in EXCHANGES or plan.qps != 1:
        raise ScenarioError(f"--beside tcp is for {', '.join(EXCHANGES)} on one QP")
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(plan, server_ip, way, timeout_s, theirs))
    process.start()
    theirs.close()
    try:
        port = _hear(ours, timeout_s)
        with socket.socket(_family(server_ip), socket.SOCK_STREAM) as sock:
            sock.settimeout(timeout_s)
            sock.bind((client_ip, 0))
            sock.connect((server_ip, port))
            channel = _Channel(sock, way, timeout_s)
            meter = UsageMeter()
            samples = _CLIENTS[plan.scenario](plan, channel)
            client = meter.stop()
            return TcpOutcome(way, samples, client, _hear(ours, timeout_s))
    except OSError as error:
        raise ScenarioError(f"TCP from {client_ip} to {server_ip}: {error.strerror or error}") from None
    finally:
        process.join(_GRACE_S)
        if process.is_alive():
            process.kill()
            process.join()
        ours.close()


def _family(ip: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in ip else socket.AF_INET


def _serve(
    plan: Plan, ip: str, way: str, timeout_s: float, pipe: multiprocessing.connection.Connection
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    try:
        with socket.socket(_family(ip), socket.SOCK_STREAM) as listener:
            listener.settimeout(timeout_s)
            listener.bind((ip, 0))
            listener.listen(1)
            pipe.send(listener.getsockname()[1])
            sock, _ = listener.accept()
        with sock:
            channel = _Channel(sock, way, timeout_s)
            meter = UsageMeter()
            _SERVERS[plan.scenario](plan, channel)
            pipe.send(meter.stop())
    except (OSError, ScenarioError) as error:
        pipe.send(str(error))


def _hear(pipe: multiprocessing.connection.Connection, timeout_s: float) -> Any:
    """What the server's process says; a text is its error."""
    try:
        said = pipe.recv() if pipe.poll(timeout_s + _GRACE_S) else "its process sent no message"
    except EOFError:
        said = "its process ended"
    if isinstance(said, str):
        raise ScenarioError(f"TCP server: {said}")
    return said
