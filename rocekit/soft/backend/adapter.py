"""What all queue pairs of a soft endpoint share: the device, the shell that runs it, its PD and CQs."""

from __future__ import annotations

from dataclasses import dataclass, field

from rocekit.endpoint import Connection
from rocekit.soft.backend.memory_shell import MemoryShell
from rocekit.soft.device import SoftDevice
from rocekit.soft.engine.memory import PD
from rocekit.soft.engine.queues import CQ
from rocekit.soft.realtime import Shell
from rocekit.soft.wires.local import LocalLink


@dataclass(slots=True)
class SoftAdapter:
    """A soft device in use.

    Attributes:
        cq, send_cq: of receives and of sends; the same one if there is no extended CQ.
        active_mtu: bytes of payload that a packet on its link can have.
        local: its link if the wire is within this machine, else None.
        by_id: connections by the number of their CM identifier.
    """

    device: SoftDevice
    shell: Shell | MemoryShell
    pd: PD
    cq: CQ
    send_cq: CQ
    active_mtu: int
    local: LocalLink | None = None
    by_id: dict[int, Connection] = field(default_factory=dict)

    def now(self) -> int:
        """Nanoseconds since the epoch, by the shell's clock."""
        return self.shell.now()

    def nobody_at(self, address: str | None) -> str:
        """Words for an error: that there is no device at an address, if that is known, else nothing."""
        if self.local is None or address not in self.local.absent:
            return ""
        return f": this machine has no soft device at {address}; is its server running?"
