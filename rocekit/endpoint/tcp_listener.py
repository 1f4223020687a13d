"""QPs that are introduced over TCP: the server that listens, and the client that connects to it."""

from __future__ import annotations

import contextlib
import errno
import socket
from typing import Final, Protocol

from rocekit.endpoint.connection import Connection, Request
from rocekit.endpoint.errors import check_version, port_taken
from rocekit.endpoint.options import QpOptions
from rocekit.endpoint.tcp_introduction import Introduced, TcpIntroduction
from rocekit.endpoint.waiting import Deadline
from rocekit.errors import RocekitError, VerbsError


class QpMaker(Protocol):
    """What an introduction over TCP needs of an endpoint."""

    @property
    def device(self) -> str: ...

    @property
    def ip(self) -> str: ...

    @property
    def resources(self) -> contextlib.ExitStack: ...

    def hear(self, wait_s: float = 0.0) -> None: ...

    def queue_pair(self, options: QpOptions) -> Connection: ...


def connect_tcp(
    endpoint: QpMaker, host: str, port: int, options: QpOptions, deadline: Deadline
) -> Connection:
    """A QP that has a TCP connection to a listener.

    Raises:
        VerbsError: nobody listens.
    """
    check_version(endpoint.device, endpoint.ip, host)
    try:
        made = socket.create_connection((host, port), max(0.01, deadline.left()), (endpoint.ip, 0))
    except OSError as error:
        hint = "; is its server running?" if error.errno == errno.ECONNREFUSED else ""
        raise VerbsError(
            f"no TCP connection to {host} port {port}: {error.strerror or error}{hint}", errno=error.errno
        ) from None
    introduction = TcpIntroduction(made, endpoint.hear)
    endpoint.resources.callback(introduction.close)
    connection = endpoint.queue_pair(options)
    connection.introduction = introduction
    return connection


class TcpRequest(Request):
    """A client that asks over TCP to connect."""

    def __init__(self, endpoint: QpMaker, introduction: TcpIntroduction, client: Introduced) -> None:
        self._endpoint = endpoint
        self._introduction = introduction
        self._peer, self.private_data, self._path_mtu = client

    def connection(self, options: QpOptions) -> Connection:
        made = self._endpoint.queue_pair(options)
        made.introduction = self._introduction
        made.peer, made.peer_data, made.peer_mtu = self._peer, self.private_data, self._path_mtu
        return made

    def reject(self, private_data: bytes) -> None:
        with contextlib.suppress(VerbsError):
            self._introduction.reject(private_data)


#: How long a client may take to say who it is, and how many may be at it at a time.
_PATIENCE_S: Final = 10.0
_MOST_SILENT: Final = 64


class TcpListener:
    """Where a server listens. A client that says nothing keeps no other one waiting.

    Raises:
        VerbsError: the port is taken.
    """

    def __init__(self, ip: str, port: int, backlog: int) -> None:
        family = socket.AF_INET6 if ":" in ip else socket.AF_INET
        try:
            self._socket = socket.create_server((ip, port), family=family, backlog=backlog)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise port_taken(ip, port) from None
            raise VerbsError(f"cannot listen on {ip} port {port}: {error.strerror}") from None
        self._socket.setblocking(False)
        self._silent: list[tuple[TcpIntroduction, Deadline]] = []

    def request(self, endpoint: QpMaker) -> TcpRequest | None:
        """The next client, if it is there; hangs up on any other program."""
        self._take(endpoint)
        for waiting in list(self._silent):
            introduction, patience = waiting
            try:
                client = introduction.request_heard()
            except RocekitError:
                client, patience = None, Deadline(0)
            if client is not None or patience.passed():
                self._silent.remove(waiting)
            if client is not None:
                endpoint.resources.callback(introduction.close)
                return TcpRequest(endpoint, introduction, client)
            if patience.passed():
                introduction.close()
        return None

    def _take(self, endpoint: QpMaker) -> None:
        """Take the clients that connected; of too many, the oldest that said nothing go."""
        while True:
            try:
                made, _ = self._socket.accept()
            except OSError:  # nobody is there, or has gone again
                break
            try:
                self._silent.append((TcpIntroduction(made, endpoint.hear), Deadline(_PATIENCE_S)))
            except OSError:
                made.close()
        for introduction, _ in self._silent[:-_MOST_SILENT]:
            introduction.close()
        del self._silent[:-_MOST_SILENT]

    def close(self) -> None:
        self._socket.close()
        for introduction, _ in self._silent:
            introduction.close()
