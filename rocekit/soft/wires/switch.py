"""A wire in memory whose switch has queues: it marks (ECN), pauses (PFC) and drops, and tells an observer.

Each device's link ends at a port of one output-queued switch. A packet that arrives waits in the queue of its
priority (a DSCP's upper three bits) at the port it leaves by; the highest priority goes first. The switch
does three things, each of which can be turned off:

- It marks packets that say they are ECN capable (RFC 3168), as DCQCN's congestion point does (Zhu et al.,
  SIGCOMM 2015, figure 5): never below ``kmin`` bytes in the queue, with a chance that grows to ``pmax`` at
  ``kmax``, and always above.
- It pauses a link's sender for one priority (802.1Qbb PFC) while more than ``xoff`` bytes that came over that
  link wait in the switch, and releases it at ``xon``.
- It drops what does not fit into its ``buffer``.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from rocekit.soft.device import SoftDevice
from rocekit.soft.engine.packet import Datagram, mark_ce
from rocekit.soft.engine.prng import Prng
from rocekit.soft.wires.memory import FRAME_OVERHEAD, MemoryWire, WirePort, mac_address
from rocekit.wire.build import ethernet
from rocekit.wire.network import ETHERTYPE_MAC_CONTROL

_PRIORITIES: Final = 8
_PAUSE_MAC: Final = "01:80:c2:00:00:01"  # 802.3 annex 31B: of all MAC control frames
_PFC_OPCODE: Final = 0x0101
_LONGEST_PAUSE: Final = 0xFFFF  # quanta
QUANTUM_BITS: Final = 512
_LEAST_FRAME: Final = 60
#: How many packets of paused priorities a sender may have taken from its device: others can pass them.
_MOST_HELD: Final = 16
#: The shortest time between two samples of a queue's length.
_SAMPLE_NS: Final = 5_000


@dataclass(frozen=True, slots=True)
class SwitchSettings:
    """What the switch does; the defaults for marking are the paper's for 40 Gb/s.

    Attributes:
        kmin_bytes, kmax_bytes, pmax: when packets are marked; ``ecn`` False: never.
        buffer_bytes: of the whole switch.
        xoff_bytes, xon_bytes: when a link is paused and released.
        lossless: the priorities that are paused; none: no PFC.

    Raises:
        ValueError: thresholds in an order that makes no sense.
    """

    ecn: bool = True
    kmin_bytes: int = 5_000
    kmax_bytes: int = 200_000
    pmax: float = 0.01
    buffer_bytes: int = 12_000_000
    xoff_bytes: int = 256_000
    xon_bytes: int = 224_000
    lossless: frozenset[int] = frozenset({3})

    def __post_init__(self) -> None:
        if not 0 <= self.kmin_bytes <= self.kmax_bytes:
            raise ValueError(f"kmin is 0 to kmax, {self.kmax_bytes}, not {self.kmin_bytes}")
        if not 0 <= self.pmax <= 1:
            raise ValueError(f"pmax is a chance from 0 to 1, not {self.pmax}")
        if self.buffer_bytes < 1:
            raise ValueError(f"a buffer has at least 1 byte, not {self.buffer_bytes}")
        if not 0 <= self.xon_bytes <= self.xoff_bytes:
            raise ValueError(f"xon is 0 to xoff, {self.xoff_bytes}, not {self.xon_bytes}")
        if not all(0 <= p < _PRIORITIES for p in self.lossless):
            raise ValueError(f"a priority is 0 to {_PRIORITIES - 1}")


class WireObserver(Protocol):
    """Is told what happens on the wire. ``data`` is a datagram, ``port`` the name of the device at it."""

    def packet_sent(self, time_ns: int, port: str, data: bytes) -> None: ...

    def packet_delivered(self, time_ns: int, port: str, data: bytes, sent_ns: int) -> None: ...

    def packet_lost(self, time_ns: int, port: str, data: bytes, reason: str, queue_bytes: int) -> None: ...

    def packet_marked(self, time_ns: int, port: str, data: bytes, queue_bytes: int) -> None: ...

    def packet_held(self, time_ns: int, port: str, priority: int, data: bytes, held_ns: int) -> None: ...

    def link_paused(self, time_ns: int, port: str, priority: int, quanta: int, buffered: int) -> None: ...

    def queue_length(self, time_ns: int, port: str, priority: int, queue_bytes: int) -> None: ...


class _Waiting(NamedTuple):
    """A packet in the switch."""

    data: bytes
    source: WirePort
    sent_ns: int


@dataclass(slots=True)
class _Link:
    """A device's link and the switch's port at its end.

    Attributes:
        rate_bps: in each direction.
        queues, queued: what waits to go to the device, by priority, and its bytes.
        busy: whether a packet is on its way out of the switch.
        buffered: bytes that came over this link and wait in the switch, by priority.
        asked: priorities whose sender the switch has paused, and since when.
        until: when the pause of a priority ends at the device, by priority.
        held: packets of paused priorities that the device has sent and its NIC has not, and since when.
        sampled: when the length of each queue was last told.
    """

    rate_bps: int
    queues: list[deque[_Waiting]] = field(default_factory=lambda: [deque() for _ in range(_PRIORITIES)])
    queued: list[int] = field(default_factory=lambda: [0] * _PRIORITIES)
    busy: bool = False
    buffered: list[int] = field(default_factory=lambda: [0] * _PRIORITIES)
    asked: dict[int, int] = field(default_factory=dict)
    until: dict[int, int] = field(default_factory=dict)
    held: deque[tuple[Datagram, int]] = field(default_factory=deque)
    sampled: dict[int, int] = field(default_factory=dict)


class SwitchWire(MemoryWire):
    """A :class:`MemoryWire` whose devices are connected by a switch with queues.

    Args:
        settings: of the switch.
        observer: is told what happens.
        dress: changes a datagram of a device before it is sent, such as its DSCP.
        delay_ns: of each link, from the last bit sent to its arrival; a packet passes two links.
        rates: of the links of some devices, by name, in bit/s; others have ``rate_bps``.

    Attributes:
        buffered: bytes in the switch.
    """

    def __init__(
        self,
        *,
        settings: SwitchSettings | None = None,
        observer: WireObserver | None = None,
        dress: Callable[[str, bytes], bytes] | None = None,
        rates: Mapping[str, int] | None = None,
        seed: int = 0,
        **of_wire: Any,
    ) -> None:
        super().__init__(seed=seed, **of_wire)
        self.settings = settings or SwitchSettings()
        self.buffered = 0
        self._observer = observer
        self._dress = dress
        self._red = Prng(seed, "red")
        self._rates = rates or {}
        self._links: dict[str, _Link] = {}

    def attach(self, device: SoftDevice) -> WirePort:
        port = super().attach(device)
        self._links[device.name] = _Link(self._rates.get(device.name, self._rate))
        return port

    # -- the device's end

    def _next_of(self, port: WirePort) -> Datagram | None:
        link = self._links[port.device.name]
        for at, (datagram, since) in enumerate(link.held):
            priority = _priority(datagram.data)
            if link.until.get(priority, 0) <= self.now:
                del link.held[at]
                if self._observer is not None:
                    self._observer.packet_held(
                        self.now, port.device.name, priority, datagram.data, self.now - since
                    )
                return datagram
        while len(link.held) < _MOST_HELD:
            taken = super()._next_of(port)
            if taken is None:
                return None
            if self._dress is not None:
                taken = taken._replace(data=self._dress(port.device.name, taken.data))
            if link.until.get(_priority(taken.data), 0) <= self.now:
                return taken
            link.held.append((taken, self.now))
        return None

    def _send(self, port: WirePort, datagram: Datagram) -> None:
        self.packets += 1
        name = port.device.name
        link = self._links[name]
        port.free_at = self.now + _time_ns(len(datagram.data), link.rate_bps)
        self.at(port.free_at, lambda: self._serve(port))
        target = self._by_address.get(datagram.destination)
        if self._capture is not None and self._tap in ("sent", name):
            self._write(datagram.data, target, port)
        if self._observer is not None:
            self._observer.packet_sent(self.now, name, datagram.data)
        if target is None:
            port.device.counters.count("drop_loopback")
            if self._observer is not None:
                self._observer.packet_lost(self.now, name, datagram.data, "no_such_address", 0)
            return
        arrives, sent_ns = port.free_at + self._delay, self.now
        deliveries = self.faults.apply(datagram, port.device, [p.device for p in self.ports])
        if not deliveries and self._observer is not None:
            self._observer.packet_lost(self.now, name, datagram.data, "fault", 0)
        for delivery in deliveries:
            waiting = _Waiting(delivery.data, port, sent_ns)
            self.at(arrives + delivery.delay_ns, lambda w=waiting: self._arrive(w, target))  # type: ignore[misc]

    def _stop(self, port: WirePort, priority: int, quanta: int, frame: bytes) -> None:
        """A pause frame of the switch arrives at a device."""
        link = self._links[port.device.name]
        if self._capture is not None and self._tap in ("delivered", port.device.name):
            self._capture.write(frame, self.now)
        link.until[priority] = self.now + quanta * QUANTUM_BITS * 1_000_000_000 // link.rate_bps
        if quanta:
            self.at(link.until[priority], lambda: self._serve(port))
        else:
            self._serve(port)

    # -- the switch

    def _arrive(self, packet: _Waiting, target: WirePort) -> None:
        settings, link = self.settings, self._links[target.device.name]
        size, priority = len(packet.data) + FRAME_OVERHEAD, _priority(packet.data)
        queued = link.queued[priority]
        if self.buffered + size > settings.buffer_bytes:
            if self._observer is not None:
                self._observer.packet_lost(self.now, target.device.name, packet.data, "buffer_full", queued)
            return
        if settings.ecn and _can_mark(packet.data) and self._marks(queued):
            packet = packet._replace(data=mark_ce(packet.data))
            if self._observer is not None:
                self._observer.packet_marked(self.now, target.device.name, packet.data, queued)
        link.queues[priority].append(packet)
        link.queued[priority] += size
        self.buffered += size
        self._sample(target, priority)
        source = self._links[packet.source.device.name]
        source.buffered[priority] += size
        pausable = priority in settings.lossless and priority not in source.asked
        if pausable and source.buffered[priority] > settings.xoff_bytes:
            source.asked[priority] = self.now
            self._pause(packet.source, priority)
        if not link.busy:
            self._leave(target)

    def _marks(self, queued: int) -> bool:
        s = self.settings
        if queued <= s.kmin_bytes:
            return False
        if queued > s.kmax_bytes:
            return True
        return self._red.chance(s.pmax * (queued - s.kmin_bytes) / (s.kmax_bytes - s.kmin_bytes))

    def _leave(self, target: WirePort) -> None:
        """Send the next packet to a device, the highest priority first."""
        link = self._links[target.device.name]
        priority = next((p for p in reversed(range(_PRIORITIES)) if link.queues[p]), None)
        link.busy = priority is not None
        if priority is None:
            return
        packet = link.queues[priority].popleft()
        end = self.now + _time_ns(len(packet.data), link.rate_bps)

        def left() -> None:
            size = len(packet.data) + FRAME_OVERHEAD
            link.queued[priority] -= size
            self.buffered -= size
            self._sample(target, priority)
            source = self._links[packet.source.device.name]
            source.buffered[priority] -= size
            if priority in source.asked and source.buffered[priority] <= self.settings.xon_bytes:
                del source.asked[priority]
                self._pause(packet.source, priority)
            self._leave(target)

        self.at(end, left)
        self.at(end + self._delay, lambda: self._deliver(packet, target))

    def _deliver(self, packet: _Waiting, target: WirePort) -> None:
        if self._capture is not None and self._tap in ("delivered", target.device.name):
            self._write(packet.data, target)
        if self._observer is not None:
            self._observer.packet_delivered(self.now, target.device.name, packet.data, packet.sent_ns)
        target.device.receive(packet.data, self.now)
        self._serve(target)

    def _pause(self, port: WirePort, priority: int) -> None:
        """Tell the sender at a link to stop or, if it may go on, to go on; a lasting pause is renewed."""
        link = self._links[port.device.name]
        quanta = _LONGEST_PAUSE if priority in link.asked else 0
        if self._observer is not None:
            self._observer.link_paused(self.now, port.device.name, priority, quanta, link.buffered[priority])
        frame = _pfc_frame(self.ports.index(port), priority, quanta)
        arrives = self.now + _time_ns(len(frame) - 14, link.rate_bps) + self._delay
        self.at(arrives, lambda: self._stop(port, priority, quanta, frame))
        if quanta:
            since = link.asked[priority]
            again = self.now + quanta * QUANTUM_BITS * 1_000_000_000 // link.rate_bps // 2
            self.at(again, lambda: self._renew(port, priority, since))

    def _renew(self, port: WirePort, priority: int, since: int) -> None:
        if self._links[port.device.name].asked.get(priority) == since:
            self._pause(port, priority)

    def _sample(self, target: WirePort, priority: int) -> None:
        """Tell the length of a queue, not too often; that it is empty, always."""
        if self._observer is None:
            return
        link = self._links[target.device.name]
        if link.queued[priority] and self.now - link.sampled.get(priority, -_SAMPLE_NS) < _SAMPLE_NS:
            return
        link.sampled[priority] = self.now
        self._observer.queue_length(self.now, target.device.name, priority, link.queued[priority])


def _priority(data: bytes) -> int:
    """An IP packet's priority: the upper three bits of its DSCP, as switches map it by default."""
    return data[1] >> 5 if data[0] >> 4 == 4 else data[0] >> 1 & 7


def _can_mark(data: bytes) -> bool:
    """Whether the packet is ECN capable (RFC 3168): ECT(0), ECT(1), or marked before."""
    return bool((data[1] if data[0] >> 4 == 4 else data[1] >> 4) & 3)


def _time_ns(datagram_bytes: int, rate_bps: int) -> int:
    """How long a datagram takes on a link."""
    return (datagram_bytes + FRAME_OVERHEAD) * 8 * 1_000_000_000 // rate_bps


def _pfc_frame(port: int, priority: int, quanta: int) -> bytes:
    """A PFC frame of the switch's port, which has a MAC address of its own (802.1Q clause 36)."""
    times = [quanta if p == priority else 0 for p in range(_PRIORITIES)]
    header = ethernet(ETHERTYPE_MAC_CONTROL, src_mac=mac_address(1, port + 1), dst_mac=_PAUSE_MAC)
    return (header + struct.pack("!HH8H", _PFC_OPCODE, 1 << priority, *times)).ljust(_LEAST_FRAME, b"\0")
