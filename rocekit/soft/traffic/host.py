"""A host of the generator: a program that makes its connections through the CM."""

from __future__ import annotations

from collections.abc import Callable
from typing import IO, Any

from rocekit.soft.cm.ids import CmEvent, CmId, ConnParam
from rocekit.soft.device import DeviceEvent
from rocekit.soft.engine.qp import Qp
from rocekit.soft.testbed.host import Host
from rocekit.soft.traffic.plan import HostPlan
from rocekit.soft.traffic.sender import SilentNotifier, TrafficDevice
from rocekit.soft.wires.switch import SwitchWire


class TrafficHost(Host):
    """A :class:`Host` whose connections are made by the CM.

    Attributes:
        plan: what it is like.
    """

    device: TrafficDevice

    def __init__(
        self, plan: HostPlan, device: TrafficDevice, wire: SwitchWire, *, journal: IO[str] | None
    ) -> None:
        super().__init__(plan.name, device, wire, journal=journal)
        self.plan = plan
        self._reactions: dict[tuple[str, int], Callable[[CmEvent], None]] = {}

    def created(self, qp: Qp) -> None:
        """A queue pair was made: it is in the journal, and silent where the host sends no CNPs."""
        if self.plan.cnp_interval_ns is None:
            qp.notifier = SilentNotifier()
        self.log_created(qp)

    def react(self, kind: str, cm_id: CmId, reaction: Callable[[CmEvent], None]) -> None:
        """Call ``reaction`` at this event of an identifier; of a listener, at those of its children."""
        self._reactions[kind, cm_id.number] = reaction

    def listen(self, service: int, transport: str, accept: Callable[[CmEvent], None]) -> None:
        """Call ``accept`` for each REQ to a service."""
        listener = self.device.cm.create_id(transport)
        self.device.cm.listen(listener, service)
        self.react("CONNECT_REQUEST", listener, accept)

    def connect(self, cm_id: CmId, address: str, service: int, param: ConnParam) -> None:
        """Send the REQ of an identifier."""
        cm = self.device.cm
        cm.resolve_addr(cm_id, address, service)
        cm.resolve_route(cm_id)
        cm.connect(cm_id, param, self.wire.now)
        self._kick()

    def accept(self, cm_id: CmId, param: ConnParam) -> None:
        """Send the REP."""
        self.device.cm.accept(cm_id, param, self.wire.now)
        self._kick()

    def disconnect(self, cm_id: CmId) -> None:
        """Send the DREQ, or the DREP if the peer sent one."""
        self.device.cm.disconnect(cm_id, self.wire.now)
        self._kick()

    def _active(self, events: list[DeviceEvent]) -> None:
        super()._active(events)
        for event in self.device.cm.events():
            self._log_cm(event)
            listener = event.listener if event.type == "CONNECT_REQUEST" else None
            reaction = self._reactions.get((event.type, (listener or event.id).number))
            if reaction is not None:
                reaction(event)

    def _log_cm(self, event: CmEvent) -> None:
        cm_id = event.id
        fields: dict[str, Any] = {
            "type": event.type,
            "status": event.status,
            "local_ip": cm_id.local_ip or None,
            "remote_ip": cm_id.peer_ip or None,
            "local_port": cm_id.source_port if cm_id.active else cm_id.port,
            "remote_port": cm_id.port if cm_id.active else cm_id.source_port,
            "cm_id": cm_id.number,
        }
        self.log("cm_event", cm_id.qp, **fields)
