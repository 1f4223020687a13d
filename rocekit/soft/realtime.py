"""A soft device in real time: its datagrams over a link, its timers by the clock, its packets in a capture.

Only this module connects the engine with the clock. Nothing runs in the background: the program calls
:meth:`Shell.pump` often, and :meth:`Shell.wait` when there is nothing to do.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from rocekit.soft.device import SoftDevice
from rocekit.soft.engine.packet import Datagram, address_text
from rocekit.soft.wires.faults import Fault, FaultInjector
from rocekit.soft.wires.memory import FrameSink
from rocekit.wire.build import ethernet
from rocekit.wire.network import ETHERTYPE_IPV4, ETHERTYPE_IPV6

#: Packets sent before the link is read again: responses do not wait for the end of a long message.
_BURST: Final = 16


class DatagramLink(Protocol):
    """One device's end of a wire, as ``InterfaceLink`` and ``LocalLink``."""

    address: str
    path_mtu: int

    def send(self, datagram: Datagram) -> bool: ...
    def receive(self) -> list[bytes]: ...
    def wait(self, seconds: float) -> None: ...
    def mac_of(self, address: str) -> str: ...
    def close(self) -> None: ...


class Shell:
    """Runs a device over a link.

    Args:
        capture: gets every packet that the device sends (before faults) and receives.
        faults: applied to the packets that it sends; in the capture, a comment names those that hit.
        told: called with each fault that hits, the device and the datagram as it was sent.
    """

    def __init__(
        self,
        device: SoftDevice,
        link: DatagramLink,
        *,
        capture: FrameSink | None = None,
        faults: Iterable[Fault] = (),
        seed: int = 0,
        told: Callable[[Fault, SoftDevice, Datagram], None] | None = None,
    ) -> None:
        self.device = device
        self.link = link
        self._capture = capture
        self._faults = FaultInjector(faults, seed, default_sender="client", told=told)
        self._late: list[tuple[int, int, Datagram]] = []
        self._order = 0
        self._unsent: deque[Datagram] = deque()
        self._last = 0

    def now(self) -> int:
        """Nanoseconds since the epoch, never going back."""
        self._last = max(self._last + 1, time.time_ns())
        return self._last

    def pump(self) -> bool:
        """Receive, handle timers and send; whether anything happened."""
        came = self.link.receive()
        for data in came:
            now = self.now()
            self._write(data, now)
            self.device.receive(data, now)
        busy = bool(came)
        due = self.device.next_timer()
        # While there is more to read, no timer expires: the awaited response may be there.
        if not came and due is not None and due <= self.now():
            self.device.handle_timer(self._last)
            busy = True
        return self._send() or busy

    def wait(self, seconds: float) -> None:
        """Wait until something comes or a timer expires, at most ``seconds``; not while a QP can send."""
        if self._unsent:
            seconds = min(seconds, 0.0002)
        elif self.device.may_send():
            return
        due = [
            t for t in (self.device.next_timer(), self._late[0][0] if self._late else None) if t is not None
        ]
        if due:
            seconds = min(seconds, max(0.0, (min(due) - self.now()) / 1e9))
        self.link.wait(seconds)

    def close(self) -> None:
        self.link.close()

    def _send(self) -> bool:
        busy = False
        while self._late and self._late[0][0] <= self.now():
            self._unsent.append(heapq.heappop(self._late)[2])
        while self._unsent:
            if not self.link.send(self._unsent[0]):
                return busy  # back-pressure: the device sends more when this is sent
            self._unsent.popleft()
            busy = True
        for _ in range(_BURST):
            now = self.now()
            for datagram in self.device.datagrams_to_send(now, 1):
                busy = True
                if self._faults:
                    self._put_faulty(datagram, now)
                else:
                    self._write(datagram.data, now)
                    if not self.link.send(datagram):
                        self._unsent.append(datagram)
                break
            else:
                break
            if self._unsent:
                break
        return busy

    def _put_faulty(self, datagram: Datagram, now: int) -> None:
        deliveries = self._faults.apply(datagram, self.device, [self.device])
        self._write(datagram.data, now, self._faults.comment)
        for delivery in deliveries:
            changed = datagram._replace(data=delivery.data)
            if delivery.delay_ns:
                self._order += 1
                heapq.heappush(self._late, (now + delivery.delay_ns, self._order, changed))
            elif not self.link.send(changed):
                self._unsent.append(changed)

    def _write(self, data: bytes, now: int, comment: str | None = None) -> None:
        if self._capture is None:
            return
        if data[0] >> 4 == 4:
            kind, source, target = ETHERTYPE_IPV4, data[12:16], data[16:20]
        else:
            kind, source, target = ETHERTYPE_IPV6, data[8:24], data[24:40]
        macs = (self.link.mac_of(address_text(source)), self.link.mac_of(address_text(target)))
        self._capture.write(ethernet(kind, src_mac=macs[0], dst_mac=macs[1]) + data, now, comment=comment)
