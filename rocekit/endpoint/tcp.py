"""Without rdma_cm: two programs tell each other over TCP where their QPs and memory are, and connect them.

Each says its place in perftest's words (:mod:`rocekit.endpoint.tcp_words`), which a capture can be read by
(:mod:`rocekit.track.handshake`), and behind it what would else be private data. The client's ``ready`` says
that its QP takes packets; ``bye``, or the end of the TCP connection, that it is over.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from typing import TYPE_CHECKING, Final

from rocekit.endpoint.connection import Request
from rocekit.endpoint.tcp_words import PLACE_BYTES, Place, read_place, write_place
from rocekit.endpoint.waiting import Deadline
from rocekit.errors import RocekitError, VerbsError

if TYPE_CHECKING:
    from rocekit.endpoint import Endpoint
    from rocekit.endpoint.connection import Connection, QpOptions

_PLACE, _REFUSED, _READY, _BYE = b"P", b"N", b"R", b"B"
_LOOK_S: Final = 0.005
_READS: Final = 16


class TcpTalk:
    """The TCP connection between two programs. A message is a letter, a length and so many bytes."""

    def __init__(self, made: socket.socket) -> None:
        self._socket = made
        self._heard = b""
        self._over = False
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def say(self, letter: bytes, data: bytes = b"") -> None:
        """Raises VerbsError when the peer is gone."""
        try:
            self._socket.setblocking(True)
            self._socket.sendall(letter + len(data).to_bytes(2, "big") + data)
            self._socket.setblocking(False)
        except OSError as error:
            raise VerbsError(f"the peer hung up: {error.strerror}", errno=error.errno) from None

    def heard(self) -> tuple[bytes, bytes] | None:
        """The next message (letter, data) if it is there; ``bye`` when the peer hung up."""
        try:
            more = self._socket.recv(4096)
            self._over = self._over or not more
            self._heard += more
        except BlockingIOError:
            pass
        except OSError:
            self._over = True
        if len(self._heard) >= 3:
            length = 3 + int.from_bytes(self._heard[1:3], "big")
            if len(self._heard) >= length:
                said, self._heard = self._heard[:length], self._heard[length:]
                return said[:1], said[3:]
        return (_BYE, b"") if self._over else None

    def await_message(self, endpoint: Endpoint, deadline: Deadline) -> tuple[bytes, bytes]:
        """The next message; the endpoint works on meanwhile.

        Raises:
            VerbsError: not in time.
        """
        while True:
            said = self.heard()
            if said is not None:
                return said
            if deadline.passed():
                raise VerbsError(
                    f"no answer within {deadline.seconds:g} s (--timeout)", errno=errno.ETIMEDOUT
                )
            endpoint.hear(min(_LOOK_S, deadline.left()))

    def close(self) -> None:
        self._socket.close()

    # What a connection does through it.

    def connect(self, connection: Connection, private_data: bytes, deadline: Deadline) -> None:
        """The client's part."""
        own = self._tell(connection, private_data)
        letter, said = self.await_message(connection.endpoint, deadline)
        if letter == _REFUSED:
            raise VerbsError(
                f"the peer rejected the connection: {said.decode('utf-8', 'replace')}",
                errno=errno.ECONNREFUSED,
            )
        if letter != _PLACE:
            raise VerbsError("the peer hung up before it was connected", errno=errno.ECONNRESET)
        connection.peer, connection.peer_data, mtu = read_message(said)
        connection.start(connection.peer, own, min(mtu, connection.usual_mtu))
        self.say(_READY)

    def accept(self, connection: Connection, private_data: bytes, deadline: Deadline) -> None:
        """The server's part: its QP is ready before the client hears of it."""
        assert connection.peer is not None
        psn = connection.endpoint.draw_psn()
        connection.start(connection.peer, psn, min(connection.peer_mtu, connection.usual_mtu))
        self._tell(connection, private_data, psn)
        letter, _ = self.await_message(connection.endpoint, deadline)
        if letter != _READY:
            raise VerbsError("the peer hung up before it was connected", errno=errno.ECONNRESET)

    def look(self, connection: Connection) -> None:
        """Notice a peer that said goodbye or hung up."""
        said = self.heard() if connection.connected and not connection.disconnected else None
        if said is not None and said[0] == _BYE:
            connection.disconnected = True

    def goodbye(self, connection: Connection, deadline: Deadline) -> None:
        """Say it, and wait until the peer did."""
        with contextlib.suppress(VerbsError):
            self.say(_BYE)
            while not connection.disconnected:
                connection.disconnected = self.await_message(connection.endpoint, deadline)[0] == _BYE

    def _tell(self, connection: Connection, private_data: bytes, psn: int | None = None) -> int:
        first = connection.endpoint.draw_psn() if psn is None else psn
        shown = connection.shown
        place = Place(
            connection.qpn,
            first,
            0 if shown is None else shown.rkey,
            0 if shown is None else shown.addr,
            connection.endpoint.ip,
        )
        self.say(_PLACE, write_message(place, private_data, connection.usual_mtu))
        return first


def write_message(place: Place, private_data: bytes, path_mtu: int) -> bytes:
    """A side's place; the path MTU that it wants and its private data behind it."""
    return write_place(place, _READS) + f"{path_mtu:04x}{private_data.hex()}".encode()


def read_message(said: bytes) -> tuple[Place, bytes, int]:
    """(place, private data, path MTU).

    Raises:
        VerbsError: it is no such message.
    """
    try:
        rest = said[PLACE_BYTES:].decode("ascii")
        return read_place(said[:PLACE_BYTES]), bytes.fromhex(rest[4:]), int(rest[:4], 16)
    except (ValueError, UnicodeDecodeError):
        raise VerbsError("the peer is not `rocekit inject`") from None


def check_version(endpoint: Endpoint, host: str) -> None:
    """Raises VerbsError where the endpoint's address is of the other IP version than the peer's."""
    if (":" in host) != (":" in endpoint.ip):
        raise VerbsError(
            f"{host} and {endpoint.ip} of {endpoint.device} are not of one IP version: "
            "name this side's other address with --bind, or -x",
            errno=errno.EAFNOSUPPORT,
        )


def knock(endpoint: Endpoint, host: str, port: int, options: QpOptions, deadline: Deadline) -> Connection:
    """A QP whose TCP connection to a listener is there.

    Raises:
        VerbsError: nobody listens.
    """
    check_version(endpoint, host)
    try:
        made = socket.create_connection((host, port), max(0.01, deadline.left()), (endpoint.ip, 0))
    except OSError as error:
        hint = "; is its server running?" if error.errno == errno.ECONNREFUSED else ""
        raise VerbsError(
            f"no TCP connection to {host} port {port}: {error.strerror or error}{hint}", errno=error.errno
        ) from None
    talk = TcpTalk(made)
    endpoint.resources.callback(talk.close)
    connection = endpoint.queue_pair(options)
    connection.talk = talk
    return connection


class TcpRequest(Request):
    """A peer that asked over TCP."""

    def __init__(
        self, endpoint: Endpoint, talk: TcpTalk, peer: Place, private_data: bytes, path_mtu: int
    ) -> None:
        self._endpoint = endpoint
        self._talk = talk
        self._peer = peer
        self._path_mtu = path_mtu
        self.private_data = private_data

    def connection(self, options: QpOptions) -> Connection:
        made = self._endpoint.queue_pair(options)
        made.talk = self._talk
        made.peer, made.peer_data, made.peer_mtu = self._peer, self.private_data, self._path_mtu
        return made

    def reject(self, private_data: bytes) -> None:
        with contextlib.suppress(VerbsError):
            self._talk.say(_REFUSED, private_data)


class TcpDoor:
    """Where a server listens.

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

    def asked(self, endpoint: Endpoint, deadline: Deadline) -> TcpRequest | None:
        """The next client, when it is there; what is no client of ours is hung up on."""
        try:
            made, _ = self._socket.accept()
        except BlockingIOError:
            return None
        talk = TcpTalk(made)
        endpoint.resources.callback(talk.close)
        try:
            letter, said = talk.await_message(endpoint, deadline)
            if letter == _PLACE:
                return TcpRequest(endpoint, talk, *read_message(said))
        except RocekitError:
            talk.close()
        return None

    def close(self) -> None:
        self._socket.close()


def port_taken(ip: str, port: int) -> VerbsError:
    """The error of a server that is not the first."""
    return VerbsError(
        f"port {port} of {ip} is taken; another server? choose another with -p", errno=errno.EADDRINUSE
    )
