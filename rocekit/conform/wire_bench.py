"""A bench on an interface: the packet side is a raw socket there, the device any that verbs can drive."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import deque
from typing import Final

from rocekit.conform.bench import Bench, Frame, Playing
from rocekit.conform.device import ConformDevice
from rocekit.conform.orders import AwaitPacket, BenchReply, Call, Command, LetPass, Transmit
from rocekit.craft.sender import Sender, interface_address, mac_of
from rocekit.errors import ScenarioError
from rocekit.wire.build import ethernet
from rocekit.wire.network import ETHERTYPE_IPV4, ETHERTYPE_IPV6

_ETH_P_ALL: Final = 0x0003
_OUTGOING: Final = 4  # PACKET_OUTGOING
_SO_TIMESTAMPNS: Final = 35
_BUFFER_BYTES: Final = 1 << 23
_ETHERNET_BYTES: Final = 14
_LARGEST: Final = 1 << 16
_SETTLE_S: Final = 0.001
_OLDEST_NS: Final = 10_000_000_000
_COARSE: Final = 6
"""Linux' CLOCK_MONOTONIC_COARSE, for which Python has no name: the time of the kernel's last tick."""


class WireBench(Bench):
    """The packet side on an interface.

    Args:
        interface: where the packet side is, such as the other end of the device's veth pair.
        peer_ip: its address; by default the interface's first.
        allowed: addresses of other machines that the user named.

    Raises:
        ScenarioError: no such interface, no right to send there, or the guard refuses the device's address.
    """

    def __init__(
        self,
        device: ConformDevice,
        interface: str,
        peer_ip: str | None = None,
        allowed: tuple[str, ...] = (),
    ) -> None:
        self._device = device
        self._sender = Sender(interface, [device.ip], allowed)
        own = peer_ip or interface_address(interface)
        if own is None:
            raise ScenarioError(f"{interface} has no address: give the packet side one (--peer-ip)")
        self.peer_ip = own
        kind = ETHERTYPE_IPV6 if ":" in own else ETHERTYPE_IPV4
        mac = mac_of(device.ip, interface)
        self._header = ethernet(kind, src_mac=self._sender.mac, dst_mac=mac)
        self._kind = kind.to_bytes(2, "big")
        self._inbox: deque[tuple[int, bytes]] = deque()
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._socket.bind((interface, 0))
        self._socket.setblocking(False)

    @property
    def device(self) -> ConformDevice:
        return self._device

    def begin(self) -> None:
        time.sleep(_SETTLE_S)
        self._collect(None)
        self._inbox.clear()

    def do(self, command: Command, playing: Playing) -> BenchReply:
        playing.behind_ns = max(playing.behind_ns, _behind_ns())
        reply = self._done(command, playing)
        playing.behind_ns = max(playing.behind_ns, _behind_ns())
        return reply

    def _done(self, command: Command, playing: Playing) -> BenchReply:
        if isinstance(command, Transmit):
            self._collect(playing)
            stamp = time.time_ns()
            for data in command.data:
                # Stamped before: what it draws may come while send() still runs.
                stamp = time.time_ns()
                playing.frames.append(Frame(stamp, data, sent=True))
                self._sender.send(self._header + data)
            return BenchReply(stamp)
        if isinstance(command, Call):
            result = self.call(command)
            return BenchReply(time.time_ns(), result)
        until = command.until_ns
        if isinstance(command, LetPass):
            while (left := until - time.time_ns()) > 0:
                self._wait(left)
                self._collect(playing)
        else:
            assert isinstance(command, AwaitPacket)
            self._collect(playing)
            while not self._inbox and (left := until - time.time_ns()) > 0:
                self._wait(left)
                self._collect(playing)
        now = time.time_ns()
        if not self._inbox:
            playing.late_ns = max(playing.late_ns, now - until)
        found = self._inbox.popleft() if isinstance(command, AwaitPacket) and self._inbox else None
        return BenchReply(now, found)

    def _wait(self, left_ns: int) -> None:
        select.select([self._socket], [], [], left_ns / 1e9)

    def _collect(self, playing: Playing | None) -> None:
        """Take the frames that have come."""
        while True:
            try:
                frame, ancillary, _flags, address = self._socket.recvmsg(_LARGEST, 64)
            except BlockingIOError:
                return
            if address[2] == _OUTGOING or frame[12:14] != self._kind:
                continue
            stamp = now = time.time_ns()
            for level, kind, data in ancillary:
                if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS and len(data) >= 16:
                    seconds, nanoseconds = struct.unpack("qq", data[:16])
                    said = seconds * 1_000_000_000 + nanoseconds
                    # Newer kernels give some packets of a veth pair a stamp of the monotonic clock.
                    stamp = said if 0 <= now - said < _OLDEST_NS else now
            data = frame[_ETHERNET_BYTES:]
            self._inbox.append((stamp, data))
            if playing is not None:
                playing.frames.append(Frame(stamp, data, sent=False))

    def close(self) -> None:
        self._socket.close()
        self._sender.__exit__(None, None, None)


def _behind_ns() -> int:
    """By how much this kernel's clock tick is late.

    rxe counts a wait in ticks from the last one on: where that is long ago, it ends that much too early.
    """
    since = time.monotonic_ns() - time.clock_gettime_ns(_COARSE)
    return max(0, since - int(time.clock_getres(_COARSE) * 1e9))
