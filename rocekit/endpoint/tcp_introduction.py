"""Two programs exchange the addresses of their QPs over TCP, without rdma_cm.

Each sends its :class:`QpAddress` in perftest's text, which :mod:`rocekit.track.pairs.handshake` reads in a
capture, and after it what would otherwise be private data. The client's ``ready`` says that its QP takes
packets; ``bye``, or the end of the TCP connection, that the connection is over.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import Final

from rocekit.endpoint.qp_address import ADDRESS_BYTES, QpAddress, read_address, write_address
from rocekit.endpoint.waiting import Deadline
from rocekit.errors import VerbsError

_ADDRESS, _REJECTED, _READY, _BYE = b"P", b"N", b"R", b"B"
#: Nothing wakes an endpoint when a message comes over TCP: it looks so often.
LOOK_S: Final = 0.005
NO_CLIENT: Final = "the peer is not `rocekit inject`"
_READS: Final = 16

Introduced = tuple[QpAddress, bytes, int]
"""What a side sends of itself: its QP's address, private data, and the path MTU that it wants."""


class TcpIntroduction:
    """The TCP connection between two programs. A message is a letter, a length and so many bytes.

    Args:
        work: lets the endpoint work for so many seconds, while this side waits.

    Attributes:
        peer_ip: the address that the connection comes from or goes to.

    Raises:
        OSError: the peer has hung up already.
    """

    def __init__(self, made: socket.socket, work: Callable[[float], None]) -> None:
        self._socket = made
        self._work = work
        self._heard = b""
        self._over = False
        self._said_goodbye = False
        self.peer_ip = str(made.getpeername()[0])
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    # The client.

    def request(self, own: Introduced, deadline: Deadline) -> Introduced:
        """Send this side's address and wait for the server's.

        Raises:
            VerbsError: the server rejected it, is gone, or does not answer in time.
        """
        self._send(_ADDRESS, write_message(*own))
        letter, said = self._await(deadline)
        if letter == _REJECTED:
            raise VerbsError(
                f"the peer rejected the connection: {said.decode('utf-8', 'replace')}",
                errno=errno.ECONNREFUSED,
            )
        if letter != _ADDRESS:
            raise VerbsError("the peer hung up before it was connected", errno=errno.ECONNRESET)
        return read_message(said)

    def ready(self) -> None:
        """Say that this side's QP takes packets."""
        self._send(_READY)

    # The server.

    def request_heard(self) -> Introduced | None:
        """What the client sends of itself; None if it has not said all of it.

        Raises:
            VerbsError: it is no such client, or has hung up.
        """
        said = self._next()
        if said is None and self._heard[:1] in (b"", _ADDRESS):
            return None
        if said is None or said[0] != _ADDRESS:
            raise VerbsError(NO_CLIENT)
        return read_message(said[1])

    def reply(self, own: Introduced, deadline: Deadline) -> None:
        """Send this side's address, whose QP is ready, and wait until the client's is.

        Raises:
            VerbsError: the client is gone, or does not answer in time.
        """
        self._send(_ADDRESS, write_message(*own))
        letter, _ = self._await(deadline)
        if letter != _READY:
            raise VerbsError("the peer hung up before it was connected", errno=errno.ECONNRESET)

    def reject(self, private_data: bytes) -> None:
        """Raises VerbsError if the client is gone."""
        self._send(_REJECTED, private_data)

    # The end.

    def peer_left(self) -> bool:
        """Whether the peer has said goodbye or hung up."""
        said = self._next()
        return said is not None and said[0] == _BYE

    def say_goodbye(self) -> None:
        """Say it, once; raises VerbsError if the peer is gone."""
        if not self._said_goodbye:
            self._said_goodbye = True
            self._send(_BYE)

    def await_goodbye(self, deadline: Deadline) -> None:
        """Wait until the peer says goodbye or hangs up.

        Raises:
            VerbsError: not in time.
        """
        while self._await(deadline)[0] != _BYE:
            pass

    def fileno(self) -> int:
        """For selectors."""
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    # Messages.

    def _send(self, letter: bytes, data: bytes = b"") -> None:
        try:
            self._socket.setblocking(True)
            self._socket.sendall(letter + len(data).to_bytes(2, "big") + data)
            self._socket.setblocking(False)
        except OSError as error:
            raise VerbsError(f"the peer hung up: {error.strerror}", errno=error.errno) from None

    def _next(self) -> tuple[bytes, bytes] | None:
        """The next message (letter, data) if it is there; ``bye`` if the peer hung up."""
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

    def _await(self, deadline: Deadline) -> tuple[bytes, bytes]:
        while True:
            said = self._next()
            if said is not None:
                return said
            if deadline.passed():
                raise VerbsError(
                    f"no answer within {deadline.seconds:g} s (--timeout)", errno=errno.ETIMEDOUT
                )
            self._work(min(LOOK_S, deadline.left()))


def write_message(address: QpAddress, private_data: bytes, path_mtu: int) -> bytes:
    """A side's address; after it the path MTU that it wants and its private data."""
    return write_address(address, _READS) + f"{path_mtu:04x}{private_data.hex()}".encode()


def read_message(said: bytes) -> Introduced:
    """(address, private data, path MTU).

    Raises:
        VerbsError: it is no such message.
    """
    try:
        rest = said[ADDRESS_BYTES:].decode("ascii")
        return read_address(said[:ADDRESS_BYTES]), bytes.fromhex(rest[4:]), int(rest[:4], 16)
    except (ValueError, UnicodeDecodeError):
        raise VerbsError(NO_CLIENT) from None
