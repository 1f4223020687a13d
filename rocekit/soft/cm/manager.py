"""The connection manager of a device, as programs use it.

They use it as librdmacm: create an identifier, resolve, connect or listen, accept or reject, disconnect; and
read events.
"""

from __future__ import annotations

import errno

from rocekit.soft.cm.ids import (
    ADDR_BOUND,
    BACKLOG,
    DREQ_RCVD,
    ESTABLISHED,
    IDLE,
    LISTEN,
    MRA_SENT,
    REP_RCVD,
    REP_SENT,
    REQ_RCVD,
    REQ_SENT,
    ROUTE_RESOLVED,
    SIDR_REQ_RCVD,
    SIDR_REQ_SENT,
    CmId,
    ConnParam,
    private_data_limit,
)
from rocekit.soft.cm.messages import rep, req, sidr_rep, sidr_req
from rocekit.soft.cm.protocol import SIDR_REJECTED, CmProtocol
from rocekit.soft.engine import qp_state
from rocekit.soft.engine.errors import verbs_error
from rocekit.wire.cm import REJ_CONSUMER


class ConnectionManager(CmProtocol):
    """A device's connection manager; see :class:`CmProtocol` for its arguments."""

    def destroy_id(self, cm_id: CmId, now: int) -> None:
        """Destroy an identifier; a connected or waiting peer gets a message (12.9.7)."""
        if cm_id.state in (REQ_RCVD, MRA_SENT):
            self.reject(cm_id, b"", now)
        elif cm_id.state in (ESTABLISHED, DREQ_RCVD):
            self.disconnect(cm_id, now)
        self.ids.remove(cm_id)

    def resolve_addr(self, cm_id: CmId, destination: str, port: int, source: str | None = None) -> None:
        """ADDR_RESOLVED follows, or ADDR_ERROR if no address of the device fits the destination."""
        self._check_state(cm_id, IDLE, "resolve an address")
        version = 6 if ":" in destination else 4
        fitting = [a for a in self.device.addresses if (":" in a) == (version == 6)]
        local = source or (fitting[0] if fitting else None)
        if local is None or local not in fitting:
            self._report("ADDR_ERROR", cm_id, -errno.ENODEV)
            return
        cm_id.local_ip, cm_id.peer_ip, cm_id.port = local, destination, port
        cm_id.source_port = self._next_port
        self._next_port += 1
        cm_id.state = ADDR_BOUND
        self._report("ADDR_RESOLVED", cm_id)

    def resolve_route(self, cm_id: CmId) -> None:
        """ROUTE_RESOLVED follows, or ROUTE_ERROR if the device was removed."""
        self._check_state(cm_id, ADDR_BOUND, "resolve a route")
        if self.device.removed:
            self._report("ROUTE_ERROR", cm_id, -errno.ENODEV)
            return
        cm_id.state = ROUTE_RESOLVED
        self._report("ROUTE_RESOLVED", cm_id)

    def listen(self, cm_id: CmId, port: int, backlog: int = BACKLOG) -> None:
        """Listen on a port; raises VerbsError EADDRINUSE when another identifier listens there.

        Args:
            backlog: how many peers that asked may wait; REQs of more are dropped, and come again.
        """
        self._check_state(cm_id, IDLE, "listen")
        if self.ids.listener(port, cm_id.transport) is not None:
            raise verbs_error(errno.EADDRINUSE, f"port {port} of {self.device.name} already has a listener")
        cm_id.port = port
        cm_id.backlog = min(backlog, BACKLOG) if backlog > 0 else BACKLOG
        cm_id.state = LISTEN
        self.ids.add_listener(cm_id)
        self.device.role = "server"

    def connect(self, cm_id: CmId, param: ConnParam, now: int) -> None:
        """Send the REQ; for a UD identifier, the SIDR_REQ."""
        self._check_state(cm_id, ROUTE_RESOLVED, "connect")
        self._check_data("REQ" if cm_id.transport != "UD" else "SIDR_REQ", param.private_data)
        cm_id.param, cm_id.active = param, True
        self.device.role = self.device.role or "client"
        cm_id.transaction_id = self._random.bits(64)
        if cm_id.transport == "UD":
            cm_id.state = SIDR_REQ_SENT
            self._send(cm_id, sidr_req(cm_id), now, has_response=True)
        else:
            cm_id.state = REQ_SENT
            message = req(cm_id, self.response_timeout, self.max_retries, self.device.guid)
            self._send(cm_id, message, now, has_response=True)

    def accept(self, cm_id: CmId, param: ConnParam, now: int) -> None:
        """Move the QP to RTS and send the REP; ESTABLISHED follows with the RTU."""
        if cm_id.state == REP_RCVD:
            self._ready_to_use(cm_id, now)
            return
        self._check_data("SIDR_REP" if cm_id.transport == "UD" else "REP", param.private_data)
        cm_id.param = param
        if cm_id.state == SIDR_REQ_RCVD:
            self._send(cm_id, sidr_rep(cm_id, 0), now)
            cm_id.state = ESTABLISHED
            return
        if cm_id.state not in (REQ_RCVD, MRA_SENT):
            self._check_state(cm_id, REQ_RCVD, "accept")
        self._move_qp(cm_id, now)
        cm_id.state = REP_SENT
        self.ids.expect_data(cm_id)
        self.ids.connect(cm_id)
        self._send(cm_id, rep(cm_id, self.device.guid), now, has_response=True)

    def delay(self, cm_id: CmId, service_timeout: int, now: int) -> None:
        """Ask the peer to wait (MRA, 12.6.6); ``service_timeout`` is a code as for response timeouts."""
        self._check_state(cm_id, REQ_RCVD, "send an MRA")
        cm_id.state = MRA_SENT
        self._send(cm_id, self._short(cm_id, "MRA", message_mraed=0, service_timeout=service_timeout), now)

    def disconnect(self, cm_id: CmId, now: int, private_data: bytes = b"") -> None:
        """Move the QP to ERR, as librdmacm does, and send a DREQ, or the DREP if the peer sent one."""
        if cm_id.qp is not None and cm_id.qp.state != qp_state.RESET:
            self.device.modify_qp(cm_id.qp, now, state=qp_state.ERR)
        if cm_id.state == DREQ_RCVD:
            self._send(cm_id, self._short(cm_id, "DREP", private_data=private_data), now)
            self._wait(cm_id, now)
            return
        if cm_id.state not in (ESTABLISHED, REP_SENT):
            self._check_state(cm_id, ESTABLISHED, "disconnect")
        self.send_dreq(cm_id, now, private_data)

    def join_multicast(self, cm_id: CmId, address: str) -> None:
        """MULTICAST_JOIN follows, or MULTICAST_ERROR if the address or the identifier does not fit."""
        multicast = (
            address.lower().startswith("ff") if ":" in address else 224 <= int(address.split(".")[0]) < 240
        )
        ok = multicast and cm_id.transport == "UD"
        self._report("MULTICAST_JOIN" if ok else "MULTICAST_ERROR", cm_id, 0 if ok else -errno.EINVAL)

    def report_all(self, kind: str) -> None:
        """Report an event of the device for each identifier: DEVICE_REMOVAL, ADDR_CHANGE."""
        for cm_id in self.ids:
            self._report(kind, cm_id)

    def reject(self, cm_id: CmId, private_data: bytes, now: int, reason: int = REJ_CONSUMER) -> None:
        """Send a REJ with the program's private data."""
        if cm_id.state == SIDR_REQ_RCVD:
            self._send(cm_id, sidr_rep(cm_id, SIDR_REJECTED, private_data), now)
            self._close(cm_id)
            return
        if cm_id.state not in (REQ_RCVD, MRA_SENT, REP_RCVD):
            self._check_state(cm_id, REQ_RCVD, "reject")
        self._check_data("REJ", private_data)
        rejected = "REP" if cm_id.state == REP_RCVD else "REQ"
        self._reject(cm_id, rejected, now, private_data, reason)

    # -- within

    def _check_state(self, cm_id: CmId, state: str, what: str) -> None:
        if cm_id.state != state:
            raise verbs_error(errno.EINVAL, f"an identifier in {cm_id.state} cannot {what}")

    def _check_data(self, message: str, data: bytes) -> None:
        limit = private_data_limit(message)
        if len(data) > limit:
            raise verbs_error(
                errno.EINVAL, f"{message} has room for {limit} bytes of private data, not {len(data)}"
            )
