"""What a queue pair, its two halves and its device know of each other, as protocols."""

from __future__ import annotations

from typing import Protocol

from rocekit.soft.engine.congestion import DcqcnParameters
from rocekit.soft.engine.counters import Counters
from rocekit.soft.engine.keys import Keys
from rocekit.soft.engine.memory import PD
from rocekit.soft.engine.packet import Packet, Route
from rocekit.soft.engine.queues import CQ, ReceiveQueue
from rocekit.soft.engine.record import FlowEnd, ReplyFlow, RequestFlow, TransferRecord, TruthRecorder
from rocekit.soft.engine.segment import SendWqe
from rocekit.soft.engine.work import WC, RecvWR, SendWR


class QpDevice(Protocol):
    """What a queue pair needs of its device."""

    name: str
    addresses: tuple[str, ...]
    counters: Counters
    keys: Keys
    recorder: TruthRecorder | None
    cnp_interval_ns: int
    dcqcn: DcqcnParameters | None

    def route(self, source: str, destination: str, qpn: int, dest_qpn: int, tclass: int) -> Route:
        """The headers of a QP's packets to a destination."""

    def report(self, kind: str, source: QueuePair | CQ | ReceiveQueue) -> None:
        """Report an event to the program."""

    def first_packet(self, qp: QueuePair) -> None:
        """A QP's first packet came."""


class QueuePair(Protocol):
    """What the halves of a queue pair need of it; its attributes are explained in :class:`.qp.Qp`."""

    # Fixed when it is created.
    device: QpDevice
    qpn: int
    pd: PD
    transport: str
    rq: ReceiveQueue
    max_send_wr: int
    max_send_sge: int
    max_inline: int
    sq_sig_all: bool
    # Set by its program.
    state: str
    local_ip: str
    dest_qpn: int
    tclass: int
    path_mtu: int
    timeout: int
    retry_cnt: int
    rnr_retry: int
    min_rnr_timer: int
    max_rd_atomic: int
    max_dest_rd_atomic: int
    access: frozenset[str]
    qkey: int
    flow_control: bool
    # Where its packets go, and where they are recorded.
    route: Route | None
    request_flow: RequestFlow | None
    reply_flow: ReplyFlow | None

    @property
    def local(self) -> FlowEnd: ...

    def complete_send(self, wc: WC) -> None: ...

    def complete_receive(self, wc: WC) -> None: ...

    def record_transfer(
        self, wqe: SendWqe, flow: RequestFlow | None = None, remote: FlowEnd | None = None
    ) -> TransferRecord:
        """The record's entry for a request that starts."""

    def drained(self) -> None:
        """The last request that was started before SQD is over."""

    def fail(self, now: int) -> None:
        """Move to ERR."""


class SendingHalf(Protocol):
    """What a queue pair needs of its sending half."""

    def begin(self, sq_psn: int) -> None: ...
    def post(self, wr: SendWR) -> None: ...
    def next_packet(self, now: int) -> bytes | None: ...
    def receive(self, packet: Packet, now: int) -> None: ...
    def flush(self, now: int) -> None: ...
    def deadline(self) -> int | None: ...
    def handle_timer(self, now: int) -> None: ...
    def idle(self) -> bool: ...


class ReceivingHalf(Protocol):
    """What a queue pair needs of its receiving half."""

    def begin(self, rq_psn: int) -> None: ...
    def next_packet(self, now: int) -> bytes | None: ...
    def receive(self, packet: Packet, now: int) -> None: ...
    def receive_posted(self) -> None: ...
    def urgent(self) -> bool: ...
    def abort(self) -> RecvWR | None: ...
