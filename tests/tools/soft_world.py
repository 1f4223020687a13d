"""Two soft devices and their connection managers on a wire in memory."""

from __future__ import annotations

from collections.abc import Callable

from rocekit.soft import SoftDevice
from rocekit.soft.cm.ids import CmEvent, CmId, ConnParam
from rocekit.soft.device import DeviceEvent
from rocekit.soft.engine.qp import Qp
from rocekit.soft.wires.faults import Fault
from rocekit.soft.wires.memory import MemoryWire

PORT = 7471


ADDRESSES = {4: ("10.0.0.1", "10.0.0.2"), 6: ("fd00::1", "fd00::2")}


class Party:
    """A device, its CM events in order, and the program's reaction to each."""

    def __init__(self, wire: MemoryWire, name: str, address: str, seed: int = 0) -> None:
        self.wire = wire
        self.device = SoftDevice(name, [address], seed=seed)
        self.port = wire.attach(self.device)
        self.port.on_activity = self._active
        self.told: list[CmEvent] = []
        self.react: dict[str, Callable[[CmEvent], None]] = {}
        self.pd = self.device.alloc_pd()
        self.cq = self.device.create_cq(64)

    def _active(self, events: list[DeviceEvent]) -> None:
        for event in self.device.cm.events():
            self.told.append(event)
            if event.type in self.react:
                self.react[event.type](event)
                self.wire.at(self.wire.now + 1000, lambda: self.wire.kick(self.port))

    def qp(self, transport: str = "RC") -> Qp:
        qp = self.device.create_qp(self.pd, transport, self.cq)
        rights = {"qkey": 1} if transport == "UD" else {"access": ["REMOTE_WRITE", "REMOTE_READ"]}
        self.device.modify_qp(qp, self.wire.now, state="INIT", **rights)
        return qp

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.told]


class World:
    """A client, and a server that accepts all clients."""

    def __init__(
        self, *, faults: tuple[Fault, ...] = (), ip_version: int = 4, transport: str = "RC", seed: int = 0
    ) -> None:
        self.wire = MemoryWire(faults=faults, seed=seed)
        addresses = ADDRESSES[ip_version]
        self.client = Party(self.wire, "client", addresses[0], seed)
        self.server = Party(self.wire, "server", addresses[1], seed)
        self.transport = transport
        self.listener = self.server.device.cm.create_id(transport)
        self.server.device.cm.listen(self.listener, PORT)
        self.accepted: CmId | None = None
        self.server.react["CONNECT_REQUEST"] = self.accept
        self.id = self.client.device.cm.create_id(transport)
        self.reply = ConnParam(private_data=b"welcome")

    def accept(self, event: CmEvent) -> None:
        self.accepted = event.id
        event.id.qp = self.server.qp(self.transport)
        self.server.device.cm.accept(event.id, self.reply, self.wire.now)

    def connect(self, param: ConnParam | None = None, port: int = PORT, **options: int) -> None:
        cm = self.client.device.cm
        cm.resolve_addr(self.id, self.server.device.addresses[0], port)
        cm.resolve_route(self.id)
        self.id.qp = self.client.qp(self.transport)
        for name, value in options.items():
            setattr(self.id, name, value)
        cm.connect(self.id, param or ConnParam(private_data=b"hello"), self.wire.now)
        self.settle()

    def settle(self) -> None:
        for party in (self.client, self.server):
            self.wire.kick(party.port)
        self.wire.run()
