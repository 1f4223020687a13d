"""The connection manager of a soft device, as a drill's program uses it."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

from rocekit.conform.device import UNTOLD, RefusedError
from rocekit.soft.cm.ids import CmId, ConnParam
from rocekit.soft.device import SoftDevice
from rocekit.soft.engine import qp_state
from rocekit.soft.engine.qp import Qp


class SoftCm:
    """A program with one QP, which listens or connects.

    Args:
        setup: as :func:`~rocekit.conform.device.setup_document` has it.
    """

    def __init__(self, device: SoftDevice, qp: Qp, setup: dict[str, Any], peer_ip: str) -> None:
        self._device, self._qp, self._setup, self._peer_ip = device, qp, setup, peer_ip
        self._asked: deque[CmId] = deque()
        self._id: CmId | None = None

    def listen(self, port: int) -> None:
        self._device.cm.listen(self._device.cm.create_id(), port)

    def accept(self, param: dict[str, Any], now: int) -> None:
        cm_id = self._next()
        self._to_init(now)
        cm_id.qp, self._id = self._qp, cm_id
        self._device.cm.accept(cm_id, self._param(param), now)

    def reject(self, now: int) -> None:
        self._device.cm.reject(self._next(), b"", now)

    def connect(self, port: int, now: int) -> None:
        cm = self._device.cm
        cm_id, param = cm.create_id(), self._param({})
        if self._id is None:
            self._to_init(now)
            self._id, cm_id.qp = cm_id, self._qp
        else:  # a second connection has no QP of this program: only its handshake is looked at
            param = replace(param, qp_num=self._qp.qpn + 1)
        cm_id.path_mtu, cm_id.timeout = self._setup["path_mtu"], self._setup["timeout"]
        cm_id.tclass = self._setup["tclass"]
        cm.resolve_addr(cm_id, self._peer_ip, port)
        cm.resolve_route(cm_id)
        cm.connect(cm_id, param, now)

    def disconnect(self, now: int) -> None:
        if self._id is None:
            raise RefusedError("there is no connection to end")
        self._device.cm.disconnect(self._id, now)

    def events(self) -> list[dict[str, Any]]:
        found = []
        for event in self._device.cm.events():
            if event.type == "CONNECT_REQUEST":
                self._asked.append(event.id)
            if event.type not in UNTOLD:
                found.append({"type": event.type, "status": event.status})
        return found

    def _next(self) -> CmId:
        if not self._asked:
            raise RefusedError("no peer has asked to connect, or its event was not read")
        return self._asked.popleft()

    def _to_init(self, now: int) -> None:
        self._device.modify_qp(self._qp, now, state=qp_state.INIT, access=self._setup["access"])

    def _param(self, given: dict[str, Any]) -> ConnParam:
        return ConnParam(
            responder_resources=given.get("responder_resources", self._setup["max_dest_rd_atomic"]),
            initiator_depth=given.get("initiator_depth", self._setup["max_rd_atomic"]),
            retry_count=self._setup["retry_cnt"],
            rnr_retry_count=self._setup["rnr_retry"],
        )
