"""A bench of a soft device and a simulated clock: nothing waits, and a drill gives the same every time."""

from __future__ import annotations

from collections import deque
from typing import Final

from rocekit.conform.bench import Bench, Frame, Playing
from rocekit.conform.device import ConformDevice
from rocekit.conform.orders import AwaitPacket, BenchReply, Call, Command, LetPass, Transmit
from rocekit.conform.soft_device import SoftConformDevice

DEVICE_IP: Final = "10.9.0.1"
PEER_IP: Final = "10.9.0.2"
_MOST_PACKETS: Final = 20_000
_START_NS: Final = 1_700_000_000_000_000_000


class SoftBench(Bench):
    """A soft device, and packets that take no time."""

    peer_ip = PEER_IP

    def __init__(self) -> None:
        self.now = _START_NS
        self._soft = SoftConformDevice(DEVICE_IP, lambda: self.now)
        self._inbox: deque[tuple[int, bytes]] = deque()

    @property
    def device(self) -> ConformDevice:
        return self._soft

    def begin(self) -> None:
        self._inbox.clear()

    def do(self, command: Command, playing: Playing) -> BenchReply:
        if isinstance(command, Transmit):
            for data in command.data:
                playing.frames.append(Frame(self.now, data, sent=True))
                self._soft.device.receive(data, self.now)
            self._serve(playing)
            return BenchReply(self.now)
        if isinstance(command, Call):
            result = self.call(command)
            self._serve(playing)
            return BenchReply(self.now, result)
        if isinstance(command, LetPass):
            self._run(command.until_ns, playing, first=False)
            return BenchReply(self.now)
        assert isinstance(command, AwaitPacket)
        if not self._inbox:
            self._run(command.until_ns, playing, first=True)
        return BenchReply(self.now, self._inbox.popleft() if self._inbox else None)

    def _run(self, until_ns: int, playing: Playing, *, first: bool) -> None:
        """Let timers expire until a time; ``first``: until the first packet."""
        device = self._soft.device
        self._serve(playing)
        while not (first and self._inbox):
            due = device.next_timer()
            if due is None or due > until_ns:
                self.now = max(self.now, until_ns)
                device.handle_timer(self.now)
                self._serve(playing)
                return
            self.now = max(self.now, due)
            device.handle_timer(self.now)
            self._serve(playing)

    def _serve(self, playing: Playing) -> None:
        """Take what the device sends now."""
        device = self._soft.device
        self._soft.heard(device.events())
        while datagrams := device.datagrams_to_send(self.now):
            for datagram in datagrams:
                self._inbox.append((self.now, datagram.data))
                playing.frames.append(Frame(self.now, datagram.data, sent=False))
            if len(self._inbox) > _MOST_PACKETS:
                raise RuntimeError("the soft device does not stop sending")
