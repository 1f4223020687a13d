"""A soft device on a wire in memory, used as over any other link: time passes only while somebody waits."""

from __future__ import annotations

from rocekit.soft.device import Device
from rocekit.soft.wires.memory import MemoryWire


class MemoryShell:
    """One device's place on a :class:`MemoryWire`, with the methods of :class:`rocekit.soft.realtime.Shell`.

    All devices of a wire have its clock: who waits lets time pass for all.
    """

    def __init__(self, device: Device, wire: MemoryWire) -> None:
        self.device = device
        self._wire = wire
        self._port = wire.attach(device)

    def now(self) -> int:
        """Nanoseconds since the epoch, on the wire's clock."""
        return self._wire.now

    def pump(self) -> bool:
        """Send what can be sent now. Nothing comes while no time passes, so nothing happened."""
        self._wire.kick(self._port)
        return False

    def wait(self, seconds: float) -> None:
        """Until anything happens on the wire, at most so long."""
        until = self._wire.now + round(seconds * 1e9)
        if self._wire.run(until, stop=lambda: True):
            self._wire.now = max(self._wire.now, until)

    def close(self) -> None:
        """The wire stays."""
