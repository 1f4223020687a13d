"""Sends frames on an interface as they are (packet(7)), only to addresses that the guard allows."""

from __future__ import annotations

import errno
import fcntl
import select
import socket
import sys
from collections.abc import Iterable
from pathlib import Path
from struct import Struct
from types import TracebackType
from typing import Final

from rocekit.errors import ScenarioError
from rocekit.machine import guard
from rocekit.machine.iproute import first_address, neighbour

_SIOCGIFHWADDR, _SIOCGIFMTU = 0x8927, 0x8921
_NO_MAC: Final = "00:00:00:00:00:00"
_PATIENCE_S: Final = 5.0


class Sender:
    """An interface to send on.

    Args:
        interface: its name.
        destinations: every address that frames will be sent to.
        allowed: other machines' addresses that the user named.

    Attributes:
        mac: the interface's MAC address; loopback: whether it is the loopback interface.
        frames: how many were sent.

    Raises:
        ScenarioError: there is no such interface, no right to send on it, or the guard refuses a destination.
    """

    def __init__(self, interface: str, destinations: Iterable[str], allowed: Iterable[str] = ()) -> None:
        check_interface(interface)
        guard.check(destinations, allowed)
        self.interface = interface
        self.frames = 0
        try:
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        except PermissionError:
            python = Path(sys.executable).resolve()
            raise ScenarioError(
                f"no right to send on {interface}: run with sudo, or once "
                f"`sudo setcap cap_net_raw+ep {python}`"
            ) from None
        try:
            self._socket.bind((interface, 0))
            self._socket.setblocking(False)
            self.mac = ":".join(f"{byte:02x}" for byte in self._ask(_SIOCGIFHWADDR)[18:24])
            self.mtu = int.from_bytes(self._ask(_SIOCGIFMTU)[16:20], sys.byteorder)
        except OSError as error:
            self._socket.close()
            raise ScenarioError(f"{interface}: {error.strerror}") from None

    def _ask(self, request: int) -> bytes:
        return fcntl.ioctl(self._socket, request, Struct("16s24x").pack(self.interface.encode()))

    def send(self, frame: bytes) -> None:
        """Send one frame; waits while the interface's queue is full.

        Raises:
            ScenarioError: the interface refuses it.
        """
        while True:
            try:
                self._socket.send(frame)
                self.frames += 1
                return
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.ENOBUFS):
                    if select.select([], [self._socket], [], _PATIENCE_S)[1]:
                        continue
                    raise ScenarioError(
                        f"{self.interface} takes no frames for {_PATIENCE_S:g} s; {self.frames:,} were sent"
                    ) from None
                if error.errno == errno.EMSGSIZE:
                    raise ScenarioError(
                        f"a frame of {len(frame):,} bytes is too long for {self.interface}, whose MTU is "
                        f"{self.mtu:,}; {self.frames:,} were sent before it"
                    ) from None
                raise ScenarioError(
                    f"{self.interface}: {error.strerror}; {self.frames:,} frames were sent"
                ) from None

    def __enter__(self) -> Sender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()


def check_interface(interface: str) -> None:
    """Raises :class:`ScenarioError` if there is no such interface."""
    names = [name for _, name in socket.if_nameindex()]
    if interface not in names:
        raise ScenarioError(f"no interface {interface}; there is {', '.join(names)}")


def interface_mac(interface: str) -> str | None:
    """The MAC address of an interface, None if there is no such interface."""
    try:
        return Path("/sys/class/net", interface, "address").read_text().strip() or None
    except OSError:
        return None


def interface_address(interface: str) -> str | None:
    """The address to send from on an interface: its first, or 127.0.0.1 on loopback."""
    return "127.0.0.1" if interface_mac(interface) == _NO_MAC else first_address(interface)


def mac_of(address: str, interface: str) -> str:
    """The MAC address of an IP address on an interface.

    Raises:
        ScenarioError: nobody answers for the address.
    """
    own = interface_mac(interface)
    if own == _NO_MAC:
        return _NO_MAC
    found = neighbour(address, interface)
    if found is None:
        raise ScenarioError(f"nobody on {interface} answers for {address}: give its MAC address (dst_mac)")
    return found
