"""A network interface as a wire: packet sockets, for loopback, veth pairs and real networks (packet(7)).

Whole frames are sent and received, with the IP and UDP headers of the engine. The address must be one of the
interface's, because the kernel answers ARP and neighbour discovery for it. An open UDP socket on port 4791,
which is never read, keeps the kernel from answering the peer's packets with "port unreachable".
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import select
import socket
import sys
from pathlib import Path
from struct import Struct
from typing import Final

from rocekit.errors import VerbsError
from rocekit.files.interface_filter import pack, roce_filter
from rocekit.machine.iproute import first_address, neighbour
from rocekit.soft.engine.packet import Datagram
from rocekit.wire import BTH, ICRC_BYTES, PATH_MTU_CODES, ROCE_UDP_PORT
from rocekit.wire.build import ethernet
from rocekit.wire.network import ETHERTYPE_IPV4, ETHERTYPE_IPV6

_SOL_PACKET, _IGNORE_OUTGOING, _SO_ATTACH_FILTER = 263, 23, 26
_ETH_P_ALL: Final = 3
_SIOCGIFHWADDR, _SIOCGIFMTU = 0x8927, 0x8921
_ETHERNET_BYTES: Final = 14
_MAX_FRAME: Final = 1 << 16
_BUFFER_BYTES: Final = 4 << 20
#: IPv6, UDP, BTH, the longest extended headers, ICRC: rxe subtracts the same from an interface's MTU.
_HEADERS: Final = 40 + 8 + BTH.length + 28 + ICRC_BYTES
_BROADCAST: Final = "ff:ff:ff:ff:ff:ff"


def interfaces() -> list[str]:
    """The names of this machine's interfaces."""
    return [name for _, name in socket.if_nameindex()]


class InterfaceLink:
    """A device's end of the wire on an interface.

    Args:
        address: the interface's address to use; None: its first.

    Raises:
        VerbsError: no such interface or address, or no right to open a packet socket (the message says how to
            get it).
    """

    def __init__(self, interface: str, address: str | None = None) -> None:
        if interface not in interfaces():
            raise VerbsError(
                f"no interface {interface}; there is {', '.join(interfaces())}", errno=errno.ENODEV
            )
        self.interface = interface
        self.address = address or ""
        try:
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        except PermissionError:
            python = Path(sys.executable).resolve()
            raise VerbsError(
                f"no right to send on {interface}: run with sudo, or once "
                f"`sudo setcap cap_net_raw+ep {python}`",
                errno=errno.EPERM,
            ) from None
        self._macs: dict[str, str] = {}
        self._guard: socket.socket | None = None
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        code = ctypes.create_string_buffer(pack(program := roce_filter(_MAX_FRAME)))
        sock_fprog = Struct("@HP").pack(len(program), ctypes.addressof(code))
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, sock_fprog)
        self._socket.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        self._socket.bind((self.interface, _ETH_P_ALL))
        self._socket.setblocking(False)
        self.mac = ":".join(f"{byte:02x}" for byte in self._ask(_SIOCGIFHWADDR)[18:24])
        self._loopback = self.mac == "00:00:00:00:00:00"
        mtu = int.from_bytes(self._ask(_SIOCGIFMTU)[16:20], sys.byteorder)
        fitting = [size for size in PATH_MTU_CODES if size + _HEADERS <= mtu]
        if not fitting:
            raise VerbsError(f"the MTU of {self.interface} is {mtu}: too small for RoCE", errno=errno.EINVAL)
        self.path_mtu = max(fitting)
        if self._loopback and not self.address:
            self._take_loopback_address()
        else:
            self.address = self.address or _first_address(self.interface)
            self._guard = _guard(self.address)

    def _take_loopback_address(self) -> None:
        """Take the first address of loopback that no other device has."""
        for last in range(1, 255):
            self.address = f"127.0.0.{last}"
            self._guard = _guard(self.address)
            if self._guard is not None:
                return
        raise VerbsError("all addresses from 127.0.0.1 on are taken", errno=errno.EADDRINUSE)

    def _ask(self, request: int) -> bytes:
        return fcntl.ioctl(self._socket, request, Struct("16s24x").pack(self.interface.encode()))

    def send(self, datagram: Datagram) -> bool:
        """Send; False: the interface's queue is full, try again later."""
        kind = ETHERTYPE_IPV6 if ":" in datagram.destination else ETHERTYPE_IPV4
        header = ethernet(kind, src_mac=self.mac, dst_mac=self.mac_of(datagram.destination))
        try:
            self._socket.send(header + datagram.data)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.ENOBUFS):
                return False
            if error.errno in (errno.ENETDOWN, errno.ENXIO, errno.ENODEV):
                raise VerbsError(f"{self.interface} is gone or down", errno=error.errno) from None
            # The frame is too long, for example: it is lost, as on any network.
        return True

    def receive(self) -> list[bytes]:
        """The IP packets that have come, at most 64 at a time."""
        found: list[bytes] = []
        while len(found) < 64:
            try:
                frame = self._socket.recv(_MAX_FRAME)
            except BlockingIOError:
                break
            except OSError as error:
                raise VerbsError(f"{self.interface} is gone or down", errno=error.errno) from None
            packet = self._ip_packet(frame)
            if packet is not None:
                found.append(packet)
        return found

    def _ip_packet(self, frame: bytes) -> bytes | None:
        """The IP packet in a frame if it is for this address; the kernel has removed VLAN tags."""
        kind = frame[12] << 8 | frame[13]
        if kind == ETHERTYPE_IPV4:
            source, target = frame[26:30], frame[30:34]
            family = socket.AF_INET
        elif kind == ETHERTYPE_IPV6:
            source, target = frame[22:38], frame[38:54]
            family = socket.AF_INET6
        else:
            return None
        try:
            if socket.inet_ntop(family, target) != self.address:
                return None
        except ValueError:
            return None
        peer = socket.inet_ntop(family, source)
        if peer not in self._macs and not self._loopback:
            self._macs[peer] = ":".join(f"{byte:02x}" for byte in frame[6:12])
        return frame[_ETHERNET_BYTES:]

    def wait(self, seconds: float) -> None:
        """Wait until something comes, at most ``seconds``."""
        select.select([self._socket], [], [], seconds)

    def mac_of(self, address: str) -> str:
        """The MAC address of a peer, or of the router on the way to it; broadcast if it is unknown."""
        if self._loopback:
            return self.mac
        if address == self.address:
            return self.mac
        found = self._macs.get(address)
        if found is None:
            found = self._macs[address] = neighbour(address, self.interface) or _BROADCAST
        return found

    def close(self) -> None:
        self._socket.close()
        if self._guard is not None:
            self._guard.close()


def _guard(address: str) -> socket.socket | None:
    """A UDP socket that keeps the kernel from answering; None when another program, as rxe, has the port."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    guard = socket.socket(family, socket.SOCK_DGRAM)
    try:
        guard.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        guard.bind((address, ROCE_UDP_PORT))
    except OSError as error:
        guard.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise VerbsError(f"this machine has no address {address}", errno=error.errno) from None
        return None
    return guard


def _first_address(interface: str) -> str:
    found = first_address(interface)
    if found is None:
        raise VerbsError(
            f"{interface} has no IP address: ip addr add 10.9.0.1/24 dev {interface}",
            errno=errno.EADDRNOTAVAIL,
        )
    return found
