"""A shell for a soft device on a wire in memory, where time passes only while a program waits."""

from __future__ import annotations

from rocekit.soft.device import SoftDevice
from rocekit.soft.wires.memory import MemoryWire


class MemoryShell:
    """Runs a device on a :class:`MemoryWire`, with the methods of :class:`rocekit.soft.realtime.Shell`.

    All devices have the wire's clock: when one program waits, time passes for all.
    """

    def __init__(self, device: SoftDevice, wire: MemoryWire) -> None:
        self.device = device
        self._wire = wire
        self._port = wire.attach(device)

    def now(self) -> int:
        """Nanoseconds since the epoch, on the wire's clock."""
        return self._wire.now

    def pump(self) -> bool:
        """Send what can be sent now; False, as nothing is received while no time passes."""
        self._wire.kick(self._port)
        return False

    def wait(self, seconds: float) -> None:
        """Wait until anything happens on the wire, at most ``seconds``."""
        until = self._wire.now + round(seconds * 1e9)
        if self._wire.run(until, stop=lambda: True):
            self._wire.now = max(self._wire.now, until)

    def close(self) -> None:
        """Nothing to close: the wire stays."""
