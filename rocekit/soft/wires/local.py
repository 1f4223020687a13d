"""A wire between processes of one machine, without privileges: Unix datagram sockets named by IP address.

A soft device at 127.0.0.2 listens at the abstract Unix address ``rocekit-wire/127.0.0.2``. Datagrams are
whole IP packets, the same bytes as on a network. When the receiver's queue is full, the sender tries again
later, so this wire loses nothing.
"""

from __future__ import annotations

import errno
import select
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from rocekit.errors import VerbsError
from rocekit.soft.engine.packet import Datagram

_MAX_DATAGRAM: Final = 1 << 16
_ADDRESSES: Final = 254
#: The path MTU of this wire: the largest that there is.
MTU_BYTES: Final = 4096


def _name(address: str) -> str:
    return f"\0rocekit-wire/{address}"


def beside(address: str | None) -> str | None:
    """An address of the same IP version for the other side; None if any of IPv4 will do.

    Raises:
        VerbsError: it is not an IP address.
    """
    own = _parsed(address) if address is not None else None
    return str(IPv6Address(int(own) ^ 1)) if own is not None and own.version == 6 else None


def _parsed(address: str) -> IPv4Address | IPv6Address:
    try:
        return ip_address(address)
    except ValueError:
        raise VerbsError(f"{address!r} is not an IP address (--bind)", errno=errno.EINVAL) from None


class LocalLink:
    """One device's end of the wire.

    Args:
        address: its IP address; None: the first of 127.0.0.1, 127.0.0.2, … that is free.
        shift: whether another one of its IP version may be used when ``address`` is taken.

    Attributes:
        absent: destinations where there was no device the last time.

    Raises:
        VerbsError: EADDRINUSE; EINVAL if it is not an IP address.
    """

    path_mtu = MTU_BYTES
    #: For captures only.
    mac = "02:00:00:00:00:00"

    def __init__(self, address: str | None = None, *, shift: bool = False) -> None:
        own = _parsed(address) if address is not None else None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self.absent: set[str] = set()
        wanted = [str(own)] if own is not None else []
        if own is None or shift:
            net = "::{:x}" if own is not None and own.version == 6 else "127.0.0.{}"
            wanted += [net.format(n) for n in range(1, _ADDRESSES + 1)]
        for candidate in wanted:
            try:
                self._socket.bind(_name(candidate))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    self._socket.close()
                    raise VerbsError(f"no wire at {candidate}: {error.strerror}", errno=error.errno) from None
            else:
                self.address = candidate
                break
        else:
            self._socket.close()
            raise VerbsError(
                f"there is already a soft device at {address}; choose another address with --bind, or none",
                errno=errno.EADDRINUSE,
            )

    def send(self, datagram: Datagram) -> bool:
        """Send; False: the receiver's queue is full, try again later."""
        try:
            self._socket.sendto(datagram.data, _name(datagram.destination))
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno in (errno.ENOBUFS, errno.EAGAIN):
                return False
            # No device is there: the datagram is lost, as on a network.
            self.absent.add(datagram.destination)
        else:
            self.absent.discard(datagram.destination)
        return True

    def receive(self) -> list[bytes]:
        """The IP packets that have come, at most 64 at a time."""
        found: list[bytes] = []
        while len(found) < 64:
            try:
                found.append(self._socket.recv(_MAX_DATAGRAM))
            except BlockingIOError:
                break
        return found

    def wait(self, seconds: float) -> None:
        """Wait until something comes, at most ``seconds``."""
        select.select([self._socket], [], [], seconds)

    def mac_of(self, address: str) -> str:
        """A MAC address for captures, from the last byte of the IP address."""
        last = address.rsplit(".", 1)[-1].rsplit(":", 1)[-1]
        return f"02:00:00:00:00:{int(last, 16 if ':' in address else 10) & 0xFF if last else 0:02x}"

    def close(self) -> None:
        self._socket.close()
