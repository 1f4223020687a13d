"""The connection manager's protocol over QP1: messages, their retransmission, and timeouts (12.9, 13.5).

``ids.TRANSITIONS`` names the handler of each message in each state; only that table decides what is handled.
"""

from __future__ import annotations

import errno
from collections import deque
from typing import Any, Final, Protocol

from rocekit.soft.cm.ids import (
    CLOSED,
    DREQ_RCVD,
    DREQ_SENT,
    ESTABLISHED,
    REP_RCVD,
    REP_SENT,
    REQ_RCVD,
    SIDR_REQ_RCVD,
    SIDR_REQ_SENT,
    TIMEWAIT,
    TRANSITIONS,
    CmEvent,
    CmId,
)
from rocekit.soft.cm.messages import rej, service_port, sidr_rep
from rocekit.soft.cm.table import IdTable
from rocekit.soft.engine import qp_state
from rocekit.soft.engine.counters import Counters
from rocekit.soft.engine.packet import Packet, Route
from rocekit.soft.engine.prng import Prng
from rocekit.soft.engine.qp import Qp
from rocekit.soft.engine.schedule import PacketSender
from rocekit.wire import GSI_QPN, OPCODE_NAMES, PATH_MTU_BYTES, time_code_ns
from rocekit.wire.build import build_mad, build_transport
from rocekit.wire.cm import CM_ANSWERED, GSI_QKEY, REJ_CONSUMER
from rocekit.wire.mad import CmMessage, parse_mad
from rocekit.wire.psn import MASK

RESPONSE_TIMEOUT_CODE: Final = 20  # as the kernel's rdma_cm: 4.3 s
MAX_RETRIES: Final = 15
TIMEWAIT_NS: Final = 2 * 67_108_864  # twice the usual local ACK timeout (12.9.8.4)
_FIRST_PORT: Final = 0xC000  # RFC 6335's dynamic ports
_UD_SEND: Final = OPCODE_NAMES["UD_SEND_ONLY"]
_REJ_TIMEOUT, _REJ_NO_SERVICE, _REJ_TRANSPORT, _REJ_STALE, _REJ_MTU = 4, 8, 9, 10, 26
_SERVICE_TYPES: Final = {0: "RC", 1: "UC"}
#: What an APR says (12.8.2): no connection has this ID; alternate paths are not supported.
_APR_INVALID_ID, _APR_UNSUPPORTED = 1, 2
_SIDR_NO_SERVICE, SIDR_REJECTED = 1, 2
_MOST_ROUTES: Final = 1024
_REJECTED: Final = {message: code for code, message in CM_ANSWERED.items()}


class CmDevice(Protocol):
    """What the connection manager needs of its device."""

    name: str
    addresses: tuple[str, ...]
    counters: Counters
    guid: int
    removed: bool
    role: str | None

    def route(self, source: str, destination: str, qpn: int, dest_qpn: int, tclass: int) -> Route:
        """The headers of a QP's packets to a destination."""

    def stream(self, name: str) -> Prng:
        """A stream of numbers for a part of the device."""

    def wake(self, sender: PacketSender) -> None:
        """Something happened to a sender: it may have a packet to send, and another deadline."""

    def modify_qp(self, qp: Qp, now_ns: int, **attributes: Any) -> None:
        """Change a QP's state and attributes."""


class CmProtocol:
    """The messages of the connection manager; :class:`.manager.ConnectionManager` adds what programs call.

    Args:
        response_timeout: code of the time after which a message without response is sent again.
        max_retries: how often it is sent again.

    Attributes:
        sent: how many MADs were sent.
    """

    qpn = GSI_QPN

    def __init__(
        self,
        device: CmDevice,
        *,
        response_timeout: int = RESPONSE_TIMEOUT_CODE,
        max_retries: int = MAX_RETRIES,
    ) -> None:
        self.device = device
        self.response_timeout = response_timeout
        self.max_retries = max_retries
        self.route: Route | None = None
        self.ids = IdTable()
        self._routes: dict[tuple[str, str], Route] = {}
        self._outgoing: deque[tuple[str, str, bytes]] = deque()
        self._events: list[CmEvent] = []
        self._random = device.stream("cm")
        self._next_comm_id = self._random.bits(32)
        self._next_port = _FIRST_PORT + self._random.bits(12)
        self._next_number = 1
        self.sent = 0

    def create_id(self, transport: str = "RC") -> CmId:
        cm_id = self._make_id(transport)
        self.ids.add(cm_id)
        return cm_id

    def _make_id(self, transport: str) -> CmId:
        cm_id = CmId(self._next_number, transport)
        self._next_number += 1
        self._next_comm_id = (self._next_comm_id + 1) & 0xFFFF_FFFF
        cm_id.local_comm_id = self._next_comm_id
        cm_id.starting_psn = self._random.bits(24)
        return cm_id

    def has_events(self) -> bool:
        """Whether there are events that nobody has read."""
        return bool(self._events)

    def events(self) -> list[CmEvent]:
        """The events since the last call."""
        events, self._events = self._events, []
        return events

    # -- receiving messages

    def receive(self, packet: Packet, now: int) -> None:
        """Handle a MAD; one that is not a CM message, or has another Q_Key than QP1's, is dropped."""
        mad = parse_mad(packet.payload) if packet.qkey == GSI_QKEY else None
        if mad is None or mad.cm is None or mad.cm.truncated:
            self.device.counters.count("drop_mad")
            return
        message = mad.cm
        if message.message in ("REQ", "SIDR_REQ"):
            self._take_request(message, mad.fields["transaction_id"], packet, now)
            return
        mine = message.number("request_id" if message.message == "SIDR_REP" else "remote_comm_id")
        cm_id = self.ids.of_comm_id(mine)
        transaction_id = mad.fields["transaction_id"]
        known = cm_id is not None and cm_id.peer_ip == packet.source
        if message.message == "LAP":
            stranger = self._stranger(message, transaction_id, packet)
            status = _APR_UNSUPPORTED if known else _APR_INVALID_ID
            self._send(stranger, self._short(stranger, "APR", ap_status=status), now)
        elif cm_id is not None and known:
            if message.message == "DREQ":
                if message.number("remote_qpn") != cm_id.qpn:  # 12.6.10: of another connection
                    self.device.counters.count("drop_mad")
                    return
                cm_id.transaction_id = transaction_id  # of the peer's choice; the DREP has the same (12.6.3)
            self._dispatch(cm_id, message, now)
        elif message.message == "DREQ":
            # The peer waits for a DREP, though this side has no connection (12.9.7).
            stranger = self._stranger(message, transaction_id, packet)
            self._send(stranger, self._short(stranger, "DREP"), now)

    def _dispatch(self, cm_id: CmId, message: CmMessage, now: int) -> None:
        handler = TRANSITIONS.get((cm_id.state, message.message))
        if handler is None:
            self.device.counters.count("drop_mad")
        else:
            getattr(self, handler)(cm_id, message, now)

    def _take_request(self, message: CmMessage, transaction_id: int, packet: Packet, now: int) -> None:
        theirs = message.number("request_id" if message.message == "SIDR_REQ" else "local_comm_id") or 0
        known = self.ids.of_request(packet.source, theirs)
        if known is not None:
            self._dispatch(known, message, now)
            return
        transport, refused = "UD", None
        if message.message == "REQ":
            transport = _SERVICE_TYPES.get(message.number("transport_service_type") or 0, "RC")
            refused = _unfit(message)
        port = service_port(message)
        listener = None if port is None else self.ids.listener(port, transport)
        if listener is not None and self.ids.waiting(listener) >= listener.backlog:
            self.device.counters.count("drop_mad")  # the peer sends it again
            return
        made = self._make_id(transport)
        made.local_ip, made.peer_ip, made.port = packet.destination, packet.source, port or 0
        made.remote_comm_id, made.transaction_id = theirs, transaction_id
        made.remote = made.request = dict(message.fields)
        made.source_port = int((message.ip_cm or {}).get("source_port", 0))
        stale = None if transport == "UD" else self.ids.connected_to(made.peer_ip, *made.remote_qp)
        if refused is not None or stale is not None:
            self._send(made, rej(made, _REJECTED["REQ"], refused or _REJ_STALE), now)
            if stale is not None and refused is None:
                self.send_dreq(stale, now)  # the old connection ends (12.9.8.3.1)
            return
        if listener is None:
            if transport == "UD":
                self._send(made, sidr_rep(made, _SIDR_NO_SERVICE), now)
            else:
                self._send(made, rej(made, _REJECTED["REQ"], _REJ_NO_SERVICE), now)
            return
        made.listener = listener
        made.state = SIDR_REQ_RCVD if transport == "UD" else REQ_RCVD
        self.ids.add_request(made)
        self._report("CONNECT_REQUEST", made, 0, message)

    def take_rep(self, cm_id: CmId, message: CmMessage, now: int) -> None:
        cm_id.remote = dict(message.fields)
        cm_id.remote_comm_id = message.number("local_comm_id") or 0
        cm_id.request = {
            "path_mtu_code": next(c for c, b in PATH_MTU_BYTES.items() if b == cm_id.path_mtu),
            "primary_local_ack_timeout": cm_id.timeout,
            "retry_count": cm_id.param.retry_count,
        }
        cm_id.deadline = None
        stale = self.ids.connected_to(cm_id.peer_ip, *cm_id.remote_qp)
        if stale is not None:
            self._reject(cm_id, "REP", now, reason=_REJ_STALE)
            self._report("CONNECT_ERROR", cm_id, -errno.EISCONN)
            self.send_dreq(stale, now)  # the old connection ends (12.9.8.3.1)
            return
        cm_id.state = REP_RCVD
        if cm_id.qp is None:  # the program moves its QP and then accepts the REP
            self._report("CONNECT_RESPONSE", cm_id, 0, message)
            return
        try:
            self._move_qp(cm_id, now)
        except Exception as error:  # the program gets an event, whatever the device's error
            self._reject(cm_id, "REP", now)
            self._report("CONNECT_ERROR", cm_id, -(getattr(error, "errno", None) or errno.EINVAL))
            return
        self._ready_to_use(cm_id, now)
        self._report("ESTABLISHED", cm_id, 0, message)

    def send_dreq(self, cm_id: CmId, now: int, private_data: bytes = b"") -> None:
        """Ask the peer to disconnect; DISCONNECTED follows with its DREP."""
        cm_id.state = DREQ_SENT
        remote_qpn = cm_id.remote.get("local_qpn", 0)
        message = self._short(cm_id, "DREQ", remote_qpn=remote_qpn, private_data=private_data)
        self._send(cm_id, message, now, has_response=True)

    def _ready_to_use(self, cm_id: CmId, now: int) -> None:
        cm_id.state = ESTABLISHED
        self.ids.connect(cm_id)
        self._send(cm_id, self._short(cm_id, "RTU"), now)

    def take_rtu(self, cm_id: CmId, message: CmMessage, now: int) -> None:
        cm_id.deadline = None
        cm_id.state = ESTABLISHED
        self._report("ESTABLISHED", cm_id, 0, message)

    def established(self, qpn: int) -> None:
        """A packet came for a QP before its RTU: it is connected (12.9.7.2, COMM_EST)."""
        cm_id = self.ids.take_unconfirmed(qpn)
        if cm_id is not None and cm_id.state == REP_SENT:
            cm_id.deadline = None
            cm_id.state = ESTABLISHED
            self._report("ESTABLISHED", cm_id)

    def take_rej(self, cm_id: CmId, message: CmMessage, now: int) -> None:
        cm_id.deadline = None
        self._close(cm_id)
        self._report("REJECTED", cm_id, message.number("reason") or 0, message)

    def take_late_rej(self, cm_id: CmId, message: CmMessage, now: int) -> None:
        """The peer rejected after its REP: the program gets the same event."""
        self.take_rej(cm_id, message, now)

    def take_mra(self, cm_id: CmId, message: CmMessage, now: int) -> None:
        """The peer has the message and needs time (12.9.8.6)."""
        self.ids.set_timer(cm_id, now + time_code_ns(message.number("service_timeout") or 0))

    def take_dreq(self, cm_id: CmId, message: CmMessage, now: int) -> None:
        cm_id.deadline = None
        cm_id.state = DREQ_RCVD
        self._report("DISCONNECTED", cm_id, 0, message)

    def take_crossing_dreq(self, cm_id: CmId, message: CmMessage, now: int) -> None:
        """Both ends sent a DREQ: send a DREP, and the connection is over."""
        self._send(cm_id, self._short(cm_id, "DREP"), now)
        self.take_drep(cm_id, message, now)

    def take_drep(self, cm_id: CmId, message: CmMessage, now: int) -> None:
        self._wait(cm_id, now)
        self._report("DISCONNECTED", cm_id, 0, message)

    def take_sidr_rep(self, cm_id: CmId, message: CmMessage, now: int) -> None:
        cm_id.deadline = None
        cm_id.remote = dict(message.fields)
        status = message.number("sidr_status") or 0
        cm_id.state = CLOSED if status else ESTABLISHED
        self._report("UNREACHABLE" if status else "ESTABLISHED", cm_id, status, message)

    def repeat(self, cm_id: CmId, message: CmMessage, now: int) -> None:
        """The peer repeated its message: send the last one again."""
        self._outgoing.append((cm_id.local_ip, cm_id.peer_ip, cm_id.last_mad))

    def repeat_drep(self, cm_id: CmId, message: CmMessage, now: int) -> None:
        self._send(cm_id, self._short(cm_id, "DREP"), now)

    # -- what the device calls

    def next_packet(self, now: int) -> bytes | None:
        """The next MAD; ``route`` is its destination."""
        if not self._outgoing:
            return None
        local, peer, mad = self._outgoing.popleft()
        if (local, peer) not in self._routes:
            if len(self._routes) >= _MOST_ROUTES:
                self._routes.clear()
            self._routes[local, peer] = self.device.route(local, peer, GSI_QPN, GSI_QPN, 0)
        self.route = self._routes[local, peer]
        self.sent += 1
        return build_transport(
            _UD_SEND, mad, dest_qpn=GSI_QPN, psn=self.sent & MASK, qkey=GSI_QKEY, src_qpn=GSI_QPN
        )

    def deadline(self) -> int | None:
        return self.ids.next_timer()

    def handle_timer(self, now: int) -> None:
        """Send messages without response again, give up after ``max_retries``, leave TIMEWAIT."""
        while (cm_id := self.ids.expired(now)) is not None:
            if cm_id.state == TIMEWAIT:
                self._close(cm_id)
                self._report("TIMEWAIT_EXIT", cm_id)
            elif cm_id.retries > 0:
                cm_id.retries -= 1
                self.ids.set_timer(cm_id, now + cm_id.interval_ns)
                self._outgoing.append((cm_id.local_ip, cm_id.peer_ip, cm_id.last_mad))
            elif cm_id.state == DREQ_SENT:  # the peer is gone: it is disconnected too
                self._wait(cm_id, now)
                self._report("DISCONNECTED", cm_id, -errno.ETIMEDOUT)
            else:
                if cm_id.state != SIDR_REQ_SENT:  # 12.6.5: end with a REJ that says so
                    self._send(cm_id, rej(cm_id, _REJECTED["other"], _REJ_TIMEOUT), now)
                self._close(cm_id)
                self._report("UNREACHABLE", cm_id, -errno.ETIMEDOUT)

    # -- within

    def qp_attributes(self, cm_id: CmId, state: str) -> dict[str, Any]:
        """``rdma_init_qp_attr``: the attributes for RTR or RTS that REQ and REP agree on."""
        remote, request, param = cm_id.remote, cm_id.request, cm_id.param
        if state == qp_state.RTR:
            attributes: dict[str, Any] = {
                "state": state,
                "local_ip": cm_id.local_ip,
                "dest_ip": cm_id.peer_ip,
                "dest_qpn": remote["local_qpn"],
                "path_mtu": PATH_MTU_BYTES.get(request["path_mtu_code"], 1024),
                "rq_psn": cm_id.starting_psn,
            }
            if cm_id.transport == "RC":
                attributes |= {"max_dest_rd_atomic": param.responder_resources, "min_rnr_timer": 12}
            return attributes
        # A starting PSN is the first that the other side sends (12.6.5, 12.6.8).
        attributes = {"state": state, "sq_psn": remote["starting_psn"]}
        if cm_id.transport == "RC":
            attributes |= {
                "timeout": request["primary_local_ack_timeout"],
                "retry_cnt": request["retry_count"],
                "rnr_retry": remote["rnr_retry_count"],
                "max_rd_atomic": min(param.initiator_depth, remote["responder_resources"]),
            }
        return attributes

    def _reject(
        self, cm_id: CmId, rejected: str, now: int, private_data: bytes = b"", reason: int = REJ_CONSUMER
    ) -> None:
        self._send(cm_id, rej(cm_id, _REJECTED[rejected], reason, private_data), now)
        self._close(cm_id)

    def _close(self, cm_id: CmId) -> None:
        """It is over. What a peer's REQ made is forgotten: if it asks again, it is a new request."""
        cm_id.state = CLOSED
        if not cm_id.active:
            self.ids.remove(cm_id)

    def _stranger(self, message: CmMessage, transaction_id: int, packet: Packet) -> CmId:
        """An identifier for a single response."""
        stranger = CmId(0, "RC")
        stranger.local_ip, stranger.peer_ip = packet.destination, packet.source
        stranger.local_comm_id = message.number("remote_comm_id") or 0
        stranger.remote_comm_id = message.number("local_comm_id") or 0
        stranger.transaction_id = transaction_id
        return stranger

    def _move_qp(self, cm_id: CmId, now: int) -> None:
        if cm_id.qp is not None:
            self.device.modify_qp(cm_id.qp, now, **self.qp_attributes(cm_id, qp_state.RTR))
            self.device.modify_qp(cm_id.qp, now, **self.qp_attributes(cm_id, qp_state.RTS))

    def _short(self, cm_id: CmId, message: str, **fields: int | bytes) -> bytes:
        return build_mad(
            message,
            cm_id.transaction_id,
            local_comm_id=cm_id.local_comm_id,
            remote_comm_id=cm_id.remote_comm_id,
            **fields,
        )

    def _send(self, cm_id: CmId, mad: bytes, now: int, *, has_response: bool = False) -> None:
        cm_id.last_mad = mad
        cm_id.deadline = None
        if has_response:
            timeout, cm_id.retries = self._patience(cm_id)
            cm_id.interval_ns = time_code_ns(timeout)
            self.ids.set_timer(cm_id, now + cm_id.interval_ns)
        self._outgoing.append((cm_id.local_ip, cm_id.peer_ip, mad))
        self.device.wake(self)

    def _patience(self, cm_id: CmId) -> tuple[int, int]:
        """The code of the response timeout, and how often a message is sent again.

        Who was asked takes both from the REQ (12.6.5); who asks chose them.
        """
        if cm_id.active or "max_cm_retries" not in cm_id.request:
            return self.response_timeout, self.max_retries
        return cm_id.request["local_cm_response_timeout"], cm_id.request["max_cm_retries"]

    def _wait(self, cm_id: CmId, now: int) -> None:
        cm_id.state = TIMEWAIT
        self.ids.set_timer(cm_id, now + TIMEWAIT_NS)
        self.device.wake(self)

    def _report(self, kind: str, cm_id: CmId, status: int = 0, message: CmMessage | None = None) -> None:
        data = b"" if message is None else message.private_data
        param = {} if message is None else dict(message.fields)
        self._events.append(CmEvent(kind, cm_id, status, data, param, cm_id.listener))


def _unfit(req: CmMessage) -> int | None:
    """The reason to reject a REQ for what it asks for (12.6.7.2), or None."""
    if (req.number("transport_service_type") or 0) not in _SERVICE_TYPES:
        return _REJ_TRANSPORT
    return None if req.number("path_mtu_code") in PATH_MTU_BYTES else _REJ_MTU
