"""The kernel's connection manager, as a drill's program uses it: through librdmacm, with a QP of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from rocekit.conform.device import UNTOLD, RefusedError
from rocekit.endpoint import Deadline
from rocekit.machine.devices import RdmaDevice
from rocekit.verbs.rdma_cm import Channel, RdmaCmId

_RTR, _RTS = 2, 3  # enum ibv_qp_state
_RESOLVING_S: Final = 10.0


class VerbsCm:
    """A program with one QP, which listens or connects.

    Args:
        ip, peer_ip: of the device, and of the packet side.
        qpn: of the program's QP.
        setup: as :func:`~rocekit.conform.device.setup_document` has it.
        modify: moves the QP, as :meth:`~rocekit.conform.device.ConformDevice.modify`.

    Raises:
        VerbsError: librdmacm or the kernel's rdma_ucm is missing.
    """

    def __init__(
        self, ip: str, peer_ip: str, qpn: int, setup: dict[str, Any], modify: Callable[..., None]
    ) -> None:
        self._ip, self._peer_ip, self._qpn, self._setup, self._modify = ip, peer_ip, qpn, setup, modify
        self._channel = Channel()
        self._ids: dict[int, RdmaCmId] = {}
        self._asked: deque[RdmaCmId] = deque()
        self._id: RdmaCmId | None = None

    def listen(self, port: int) -> None:
        listener = self._created()
        listener.bind(self._ip, port)
        listener.listen(8)

    def accept(self, param: dict[str, Any]) -> None:
        cm_id = self._id = self._next()
        self._to_rts(cm_id)
        cm_id.accept(
            self._qpn,
            b"",
            reads=param.get("responder_resources", self._setup["max_dest_rd_atomic"]),
            depth=param.get("initiator_depth", self._setup["max_rd_atomic"]),
            rnr_retry=self._setup["rnr_retry"],
        )

    def reject(self) -> None:
        self._next().reject(b"")

    def connect(self, port: int) -> None:
        cm_id, qpn = self._created(), self._qpn
        if self._id is None:
            self._id = cm_id
        else:  # a second connection has no QP of this program: only its handshake is looked at
            qpn += 1
        deadline = Deadline(_RESOLVING_S)
        cm_id.resolve_address(self._ip, self._peer_ip, port, deadline)
        self._await("ADDR_RESOLVED", deadline)
        cm_id.resolve_route(deadline)
        self._await("ROUTE_RESOLVED", deadline)
        cm_id.connect(
            qpn,
            b"",
            reads=self._setup["max_dest_rd_atomic"],
            depth=self._setup["max_rd_atomic"],
            retry=self._setup["retry_cnt"],
            rnr_retry=self._setup["rnr_retry"],
        )

    def disconnect(self) -> None:
        if self._id is None:
            raise RefusedError("there is no connection to end")
        self._id.disconnect()

    def events(self) -> list[dict[str, Any]]:
        """The events that are there; the REP's is answered as librdmacm answers it for QPs of its own."""
        found = []
        while (event := self._channel.event()) is not None:
            kind = event.type
            if kind == "CONNECT_REQUEST":
                asked = self._ids[event.id] = RdmaCmId(self._channel, event.id)
                self._asked.append(asked)
            elif kind == "CONNECT_RESPONSE" and self._id is not None and event.id == self._id.handle:
                self._to_rts(self._id)
                self._id.establish()  # which sends the RTU, and gives no event
                kind = "ESTABLISHED"
            if kind not in UNTOLD:
                found.append({"type": kind, "status": event.status})
        return found

    def close(self) -> None:
        for cm_id in self._ids.values():
            cm_id.close()
        self._ids = {}
        self._channel.close()

    def _created(self) -> RdmaCmId:
        made = self._channel.create_id()
        self._ids[made.handle] = made
        return made

    def _next(self) -> RdmaCmId:
        if not self._asked:
            raise RefusedError("no peer has asked to connect, or its event was not read")
        return self._asked.popleft()

    def _await(self, wanted: str, deadline: Deadline) -> None:
        while (event := self._channel.event(min(0.1, deadline.left()))) is None:
            if deadline.passed():
                raise RefusedError(f"no {wanted} within {_RESOLVING_S:g} s")
        if event.type != wanted:
            raise RefusedError(f"{event.type} in place of {wanted}, status {event.status}")

    def _to_rts(self, cm_id: RdmaCmId) -> None:
        """The QP to RTS, with what REQ and REP agree on."""
        receiving, _ = cm_id.qp_attributes(_RTR)
        setup = self._setup
        self._modify(state="INIT", access=setup["access"])
        self._modify(
            state="RTR",
            path_mtu=receiving.path_mtu,
            dest_qpn=receiving.dest_qp_num,
            rq_psn=receiving.rq_psn,
            max_dest_rd_atomic=receiving.max_dest_rd_atomic,
            min_rnr_timer=setup["min_rnr_timer"],
            tclass=setup["tclass"],
        )
        sending, _ = cm_id.qp_attributes(_RTS)
        self._modify(
            state="RTS",
            sq_psn=sending.sq_psn,
            timeout=sending.timeout,
            retry_cnt=sending.retry_cnt,
            rnr_retry=sending.rnr_retry,
            max_rd_atomic=sending.max_rd_atomic,
        )


def answers_too(found: list[RdmaDevice], own: str, peer_ip: str) -> str | None:
    """Another device here that has the packet side's address: its connection manager would answer, too."""
    for device in found:
        ips = {gid.ip for port in device.ports for gid in port.gids}
        if device.name != own and peer_ip in ips:
            return device.name
    return None
