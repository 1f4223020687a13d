"""A soft RoCE v2 device without I/O, clock or randomness.

A shell, or a wire in memory, moves its packets and calls, in any order::

    device.receive(datagram, now_ns)         a datagram arrived: IP header to ICRC
    device.next_timer()                      when to call handle_timer, or None
    device.handle_timer(now_ns)
    device.datagrams_to_send(now_ns, limit)  what is sent now
    device.events()                          asynchronous events and completion notifications

The program calls the verbs: ``alloc_pd``, ``reg_mr``, ``create_cq``, ``create_qp``, ``modify_qp``,
``post_send``, ``post_recv``, ``poll_cq``, ``request_notify`` …, with the meanings and errors of libibverbs
(IBA chapter 11). Times are nanoseconds of any clock that does not go back. The same calls with the same seed
give the same bytes.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from rocekit.soft.cm.manager import ConnectionManager
from rocekit.soft.engine import qp_state
from rocekit.soft.engine.congestion import DcqcnParameters
from rocekit.soft.engine.counters import Counters
from rocekit.soft.engine.errors import PostError, verbs_error
from rocekit.soft.engine.keys import Keys
from rocekit.soft.engine.memory import DM, MR, PD, AddressSpace
from rocekit.soft.engine.packet import ECN_CAPABLE, Datagram, Route, Unusable, parse
from rocekit.soft.engine.parts import QueuePair
from rocekit.soft.engine.prng import Prng
from rocekit.soft.engine.qp import HALVES, Qp
from rocekit.soft.engine.queues import CQ, ReceiveQueue
from rocekit.soft.engine.record import TruthRecorder
from rocekit.soft.engine.schedule import PacketSender, Schedule
from rocekit.soft.engine.windows import MW, VARIANT_BITS, Binding, next_key
from rocekit.soft.engine.work import WC, RecvWR, SendWR
from rocekit.wire import DEFAULT_PKEY, GSI_QPN

_FIRST_QPN: Final = 17  # as rxe
_Wr = TypeVar("_Wr")
_PKEY_MEMBERSHIP: Final = 0x8000  # 10.9.1.1: full member


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a device, as ``ibv_query_device`` reports them."""

    max_qp: int = 1 << 16
    max_qp_wr: int = 1 << 14
    max_sge: int = 32
    max_cq: int = 1 << 16
    max_cqe: int = 1 << 20
    max_mr: int = 1 << 20
    max_pd: int = 1 << 16
    max_srq: int = 1 << 14
    max_inline: int = 1024
    max_qp_rd_atom: int = 128
    max_dm_bytes: int = 1 << 20


@dataclass(frozen=True, slots=True)
class DeviceEvent:
    """An event for the program: an ``ibv_event_type`` without its prefix, or ``COMPLETION``.

    Attributes:
        source: the QP, CQ or SRQ that it is about.
    """

    type: str
    source: QueuePair | CQ | ReceiveQueue


class SoftDevice:
    """A soft device with one port.

    Args:
        addresses: its IP addresses, which are its GIDs.
        seed: its keys, CM identifiers and starting PSNs are drawn from it.
        recorder: records all that is sent; None saves the time.
        ecn: whether its packets are marked as ECN capable.
        cnp_interval_ns: at most one CNP is sent to a QP in this time.
        dcqcn: how its QPs react to CNPs; None: not at all, as rxe.

    Attributes:
        role: ``client`` or ``server``, once it connects or listens.
        removed: whether it was pulled out.
    """

    def __init__(
        self,
        name: str,
        addresses: Sequence[str],
        *,
        seed: int = 0,
        limits: Limits | None = None,
        recorder: TruthRecorder | None = None,
        ecn: bool = True,
        cnp_interval_ns: int = 50_000,
        dcqcn: DcqcnParameters | None = None,
    ) -> None:
        if not addresses:
            raise ValueError("a device has at least one address")
        self.name = name
        self.addresses = tuple(addresses)
        self.limits = limits or Limits()
        self.recorder = recorder
        self.cnp_interval_ns = cnp_interval_ns
        self.dcqcn = dcqcn
        self.counters = Counters()
        self.memory = AddressSpace()
        self.keys = Keys(self.limits.max_mr)
        self.qps: dict[int, Qp] = {}
        self._ecn = ECN_CAPABLE if ecn else 0
        self._random = Prng(seed, name)
        self._next_qpn = _FIRST_QPN
        self._next_handle = 1
        self._handles: dict[str, int] = {"pd": 0, "cq": 0, "srq": 0, "dm": 0}
        self._events: list[DeviceEvent] = []
        self._schedule = Schedule()
        self._dm_used = 0
        self._seed = seed
        self.removed = False
        self.role: str | None = None
        self.guid = self._random.bits(64) | 1
        self.cm = ConnectionManager(self)

    # -- what the shell calls

    def receive(self, datagram: bytes, now_ns: int) -> None:
        """Handle a datagram that arrived, from its IP header on. An unusable one is dropped and counted."""
        try:
            packet = parse(datagram)
        except Unusable as unusable:
            self.counters.count(str(unusable))
            return
        self.counters.count("rcvd_pkts")
        qp = self.qps.get(packet.dest_qpn)
        if packet.dest_qpn == GSI_QPN and packet.op.transport == "UD":
            self.cm.receive(packet, now_ns)
            self.wake(self.cm)
        elif qp is None:
            self.counters.count("drop_unknown_qp")
        elif packet.op.transport != qp.transport and packet.op.transport != "CNP":
            self.counters.count("drop_transport")
        elif qp.dest_ip is not None and packet.source != qp.dest_ip:
            self.counters.count("drop_source")
        elif not _same_partition(packet.pkey):
            self.counters.count("drop_pkey")
        else:
            qp.receive(packet, now_ns)
            self.wake(qp)

    def next_timer(self) -> int | None:
        """When ``handle_timer`` has to be called, or None; nothing may be due then."""
        return self._schedule.next_timer()

    def handle_timer(self, now_ns: int) -> None:
        """Handle the timers that have expired."""
        while (qpn := self._schedule.expired(now_ns)) is not None:
            qp = self.cm if qpn == GSI_QPN else self.qps.get(qpn)
            if qp is not None:
                qp.handle_timer(now_ns)
                self.wake(qp)

    def datagrams_to_send(self, now_ns: int, limit: int | None = None) -> list[Datagram]:
        """What is sent now, at most ``limit`` datagrams: one packet of each queue pair in turn."""
        sent = self._schedule.datagrams(now_ns, limit)
        if sent:
            self.counters.count("sent_pkts", len(sent))
        return sent

    def may_send(self) -> bool:
        """Whether ``datagrams_to_send`` may have more now."""
        return self._schedule.waits()

    def events(self) -> list[DeviceEvent]:
        """The events since the last call."""
        events, self._events = self._events, []
        return events

    def remove(self, now_ns: int) -> None:
        """Pull the device out: its queue pairs fail, and its programs get events."""
        self.removed = True
        for qp in self.qps.values():
            self.modify_qp(qp, now_ns, state=qp_state.ERR)
            self.report("DEVICE_FATAL", qp)
        self.cm.report_all("DEVICE_REMOVAL")

    # -- what the queue pairs and the connection manager call

    def stream(self, name: str) -> Prng:
        """A stream of numbers for a part of the device."""
        return Prng(self._seed, f"{self.name}/{name}")

    def report(self, kind: str, source: QueuePair | CQ | ReceiveQueue) -> None:
        """Report an event to the program."""
        self._events.append(DeviceEvent(kind, source))

    def first_packet(self, qp: QueuePair) -> None:
        """A QP's first packet came: the peer has the REP, whether or not its RTU is here (12.9.7.2)."""
        if qp.state == qp_state.RTR:
            self.report("COMM_EST", qp)
        self.cm.established(qp.qpn)

    def route(self, source: str, destination: str, qpn: int, dest_qpn: int, tclass: int) -> Route:
        """The headers of a QP's packets to a destination; each flow has its UDP source port (A17.3.2.1)."""
        port = 0xC000 | ((qpn * 0x9E37 ^ dest_qpn * 0x79B9) >> 2 & 0x3FFF)
        return Route(source, destination, qpn=qpn, udp_sport=port, tclass=tclass | self._ecn)

    def wake(self, sender: PacketSender) -> None:
        """Something happened to a sender: it may have a packet to send, and another deadline."""
        self._schedule.wake(sender)

    # -- verbs: resources

    def _take(self, kind: str, limit: int) -> int:
        if self._handles[kind] >= limit:
            raise verbs_error(errno.ENOMEM, f"all {limit} of {kind} are in use")
        self._handles[kind] += 1
        handle = self._next_handle
        self._next_handle += 1
        return handle

    def _release(self, kind: str, users: int) -> None:
        if users:
            raise verbs_error(errno.EBUSY, f"the {kind} is still used by {users}")
        self._handles[kind] -= 1

    def alloc_pd(self) -> PD:
        return PD(self._take("pd", self.limits.max_pd))

    def dealloc_pd(self, pd: PD) -> None:
        """Deallocate a domain; raises VerbsError EBUSY while a QP, region or SRQ belongs to it."""
        self._release("pd", pd.users)

    def reg_mr(self, pd: PD, addr: int, length: int, access: Iterable[str]) -> MR:
        """A region over ``length`` bytes of ``memory`` at ``addr``.

        Raises:
            VerbsError: EFAULT if there are no such bytes; EINVAL, ENOMEM as ``ibv_reg_mr``.
        """
        try:
            view = self.memory.view(addr, length)
        except ValueError as error:
            raise verbs_error(errno.EFAULT, str(error)) from None
        return self.keys.regions.register(pd, addr, length, access, view, self._random.bits(8))

    def dereg_mr(self, mr: MR) -> None:
        """Deregister a region; raises VerbsError EBUSY while memory windows are bound to it."""
        windows = self.keys.windows.bound_to(mr)
        if windows:
            raise verbs_error(errno.EBUSY, f"{windows} memory windows are bound to the region")
        self.keys.regions.deregister(mr)

    def alloc_mw(self, pd: PD, kind: int = 2) -> MW:
        """A memory window (``ibv_alloc_mw``) of type 1 or 2, not bound."""
        return self.keys.windows.add(pd, kind, self.keys.regions.new_key(self._random.bits(VARIANT_BITS)))

    def dealloc_mw(self, mw: MW) -> None:
        self.keys.windows.remove(mw)

    def bind_mw(self, qp: Qp, wr_id: int, binding: Binding, now: int, *, signaled: bool = True) -> int:
        """Bind a window of type 1 (``ibv_bind_mw``); its new R_Key, valid when the request is completed.

        Raises:
            VerbsError: EINVAL for a window of type 2, which needs a work request BIND_MW.
            PostError: as of :meth:`post_send`.
        """
        if binding.mw.kind != 1:
            raise verbs_error(errno.EINVAL, "a window of type 2 is bound by a work request")
        rkey = next_key(binding.mw.rkey)
        wr = SendWR(wr_id, "BIND_MW", signaled=signaled, rkey=rkey, binding=binding)
        self.post_send(qp, wr, now)
        return rkey

    def alloc_dm(self, length: int) -> DM:
        """Device memory; raises VerbsError ENOMEM when less is left."""
        if length < 1 or self._dm_used + length > self.limits.max_dm_bytes:
            left = self.limits.max_dm_bytes - self._dm_used
            raise verbs_error(errno.ENOMEM, f"{length} bytes of device memory; {left} are left")
        self._dm_used += length
        return DM(bytearray(length))

    def free_dm(self, dm: DM) -> None:
        if dm.regions:
            raise verbs_error(errno.EBUSY, f"{dm.regions} regions use the device memory")
        self._dm_used -= len(dm.data)

    def reg_dm_mr(self, pd: PD, dm: DM, offset: int, length: int, access: Iterable[str]) -> MR:
        """A region over device memory; its addresses start at 0 (``IBV_ACCESS_ZERO_BASED``)."""
        dm.copy_from(offset, length)  # checks the bounds
        view = memoryview(dm.data)[offset : offset + length]
        return self.keys.regions.register(pd, 0, length, access, view, self._random.bits(8))

    def create_cq(self, capacity: int, *, clock: Callable[[], int] | None = None) -> CQ:
        """A completion queue; with a ``clock``, an extended one, whose completions have timestamps."""
        if not 1 <= capacity <= self.limits.max_cqe:
            raise verbs_error(
                errno.EINVAL, f"a completion queue has 1 to {self.limits.max_cqe} entries, not {capacity}"
            )
        return CQ(self._take("cq", self.limits.max_cq), capacity, self.report, clock)

    def destroy_cq(self, cq: CQ) -> None:
        """Destroy a completion queue; raises VerbsError EBUSY while a QP uses it."""
        self._release("cq", cq.users)

    def create_srq(self, pd: PD, max_wr: int, max_sge: int = 1, *, limit: int = 0) -> ReceiveQueue:
        """A shared receive queue; fewer than ``limit`` requests cause one ``SRQ_LIMIT_REACHED``."""
        self._check_queue("max_wr", max_wr, max_sge)
        handle = self._take("srq", self.limits.max_srq)
        pd.users += 1

        def low(queue: ReceiveQueue) -> None:
            self.report("SRQ_LIMIT_REACHED", queue)

        return ReceiveQueue(pd, max_wr, max_sge, handle=handle, shared=True, limit=limit, notify=low)

    def destroy_srq(self, srq: ReceiveQueue) -> None:
        self._release("srq", srq.users)
        srq.pd.users -= 1

    def _check_queue(self, name: str, max_wr: int, max_sge: int) -> None:
        if not 0 <= max_wr <= self.limits.max_qp_wr:
            raise verbs_error(errno.EINVAL, f"{name} is at most {self.limits.max_qp_wr}, not {max_wr}")
        if not 0 <= max_sge <= self.limits.max_sge:
            raise verbs_error(
                errno.EINVAL, f"a request has at most {self.limits.max_sge} SGEs, not {max_sge}"
            )

    def create_qp(
        self,
        pd: PD,
        transport: str,
        send_cq: CQ,
        recv_cq: CQ | None = None,
        *,
        max_send_wr: int = 128,
        max_recv_wr: int = 512,
        max_send_sge: int = 4,
        max_recv_sge: int = 4,
        max_inline: int = 256,
        srq: ReceiveQueue | None = None,
        sq_sig_all: bool = False,
    ) -> Qp:
        """A queue pair in RESET.

        Raises:
            VerbsError: EINVAL for what the device cannot do; ENOMEM when there are too many.
        """
        if transport not in HALVES:
            raise verbs_error(errno.EINVAL, f"a QP is {', '.join(HALVES)}, not {transport}")
        self._check_queue("max_send_wr", max_send_wr, max_send_sge)
        self._check_queue("max_recv_wr", max_recv_wr, max_recv_sge)
        if max_inline > self.limits.max_inline:
            raise verbs_error(errno.EINVAL, f"inline data is at most {self.limits.max_inline} bytes")
        if len(self.qps) >= self.limits.max_qp:
            raise verbs_error(errno.ENOMEM, f"all {self.limits.max_qp} QPs are in use")
        qpn = self._next_qpn
        self._next_qpn += 1
        recv_cq = send_cq if recv_cq is None else recv_cq
        qp = Qp(
            self,
            qpn,
            pd,
            transport,
            send_cq,
            recv_cq,
            ReceiveQueue(pd, max_recv_wr, max_recv_sge) if srq is None else srq,
            max_send_wr=max_send_wr,
            max_send_sge=max_send_sge,
            max_inline=max_inline,
            sq_sig_all=sq_sig_all,
        )
        pd.users += 1
        send_cq.users += 1
        recv_cq.users += 1
        if srq is not None:
            srq.users += 1
        self.qps[qpn] = qp
        return qp

    def destroy_qp(self, qp: Qp) -> None:
        if self.qps.pop(qp.qpn, None) is None:
            return
        qp.pd.users -= 1
        qp.send_cq.users -= 1
        qp.recv_cq.users -= 1
        if qp.rq.shared:
            qp.rq.users -= 1
        qp.send_cq.forget(qp.qpn)
        qp.recv_cq.forget(qp.qpn)
        self._schedule.forget(qp)

    # -- verbs: work

    def modify_qp(self, qp: Qp, now_ns: int, **attributes: Any) -> None:
        """Change a QP's state (``state=``) and attributes, by the names of :class:`Qp`.

        Raises:
            VerbsError: EINVAL; the message names the attributes that are missing or not allowed.
        """
        qp.modify(now_ns, attributes)
        self.wake(qp)

    def post_send(self, qp: Qp, wrs: SendWR | Sequence[SendWR], now_ns: int) -> None:
        """Post one or more requests.

        Raises:
            PostError: ``bad_wr`` is the index of the one that was refused; those before it are posted.
        """
        self._post((wrs,) if isinstance(wrs, SendWR) else wrs, lambda wr: qp.post_send(wr, now_ns))
        self.wake(qp)

    def post_recv(self, qp: Qp, wrs: RecvWR | Sequence[RecvWR], now_ns: int) -> None:
        """Post receive requests; errors as for ``post_send``."""
        self._post((wrs,) if isinstance(wrs, RecvWR) else wrs, qp.post_recv)
        self.wake(qp)

    def post_srq_recv(self, srq: ReceiveQueue, wrs: RecvWR | Sequence[RecvWR]) -> None:
        """Post to a shared receive queue; errors as for ``post_send``."""
        self._post((wrs,) if isinstance(wrs, RecvWR) else wrs, srq.post)

    def _post(self, wrs: Sequence[_Wr], post: Callable[[_Wr], None]) -> None:
        for i, wr in enumerate(wrs):
            try:
                post(wr)
            except PostError as error:
                error.bad_wr = i
                raise

    def poll_cq(self, cq: CQ, count: int = 1) -> list[WC]:
        """At most ``count`` completions.

        Raises:
            VerbsError: EIO when the queue has overflowed.
        """
        if cq.overflowed and not len(cq):
            raise verbs_error(errno.EIO, f"completion queue {cq.handle} has overflowed")
        return cq.poll(count)

    def request_notify(self, cq: CQ, solicited_only: bool = False) -> None:
        """Request one ``COMPLETION`` event."""
        cq.arm(solicited_only)


def _same_partition(pkey: int) -> bool:
    """Whether a packet's P_Key matches the device's: the same number, not both limited members (10.9.3)."""
    return (pkey ^ DEFAULT_PKEY) & ~_PKEY_MEMBERSHIP == 0
