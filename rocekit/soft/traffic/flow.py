"""One flow: its two queue pairs, their connection, and its messages until the time is over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from rocekit.soft.cm.ids import CmEvent, CmId, ConnParam
from rocekit.soft.engine.memory import MR, Sge
from rocekit.soft.engine.packet import ECN_MASK, GRH_AREA_BYTES
from rocekit.soft.engine.prng import Prng
from rocekit.soft.engine.qp import Qp
from rocekit.soft.engine.queues import CQ
from rocekit.soft.engine.work import VERBS, WC, RecvWR, SendWR
from rocekit.soft.testbed.runner import QKEY, REMOTE_ACCESS
from rocekit.soft.traffic.counting import FlowCounts
from rocekit.soft.traffic.host import TrafficHost
from rocekit.soft.traffic.plan import FlowPlan
from rocekit.soft.traffic.sender import FlowPacer
from rocekit.soft.traffic.shared_psns import SharedPsns
from rocekit.soft.traffic.truth import Truth
from rocekit.wire import ATOMIC_BYTES, psns_of
from rocekit.wire.psn import MASK

#: The CM's service of the first flow; the next ones have the next numbers.
FIRST_SERVICE: Final = 20_000
#: READs and atomics outstanding, at most.
_MOST_READS: Final = 16
_IP_UDP_BYTES: Final = {4: 28, 6: 48}
_ROOM: Final = 64
#: The ID of all receives; work requests are counted from 1.
RECEIVE: Final = 0


class TrafficFlow:
    """A flow under way.

    Args:
        number: among the flows.
        ready: called when it is connected.
        partner: the flow of the other direction, whose queue pairs it shares.
        leader: the first flow on the same queue pairs in the same direction: it connects them.
        sharing: of the first flow, the plans of the others.
    """

    def __init__(
        self,
        number: int,
        plan: FlowPlan,
        hosts: tuple[TrafficHost, TrafficHost],
        cqs: tuple[CQ, CQ],
        rates: tuple[int, int],
        truth: Truth,
        seed: int,
        ready: Callable[[], None],
        partner: TrafficFlow | None = None,
        *,
        leader: TrafficFlow | None = None,
        sharing: Sequence[FlowPlan] = (),
    ) -> None:
        self.plan = plan
        self.source, self.destination = hosts
        self.counts = FlowCounts(reliable=plan.transport == "RC")
        self.up = self.failed = self.connected = False
        self.outstanding = self.posted = 0
        self._number = number
        self._ready = ready
        self._draw = Prng(seed, f"flow {number}")
        self._verb = VERBS[plan.verb]
        self._until = 0
        self._paused = False
        self._id: CmId | None = None
        self._partner = partner
        self._done = False
        self._sizes = _sizes(plan)
        self._leader = leader or self
        self._followers: list[TrafficFlow] = []
        self._owners: dict[int, TrafficFlow] = {}  # by the ID of a work request under way
        self._requests = 0
        self._psns = SharedPsns() if sharing else None
        self.qps: tuple[Qp, Qp]
        self._regions: tuple[MR, MR]
        if leader is not None:
            leader._followers.append(self)
            self.qps, self._regions = leader.qps, leader._regions
            return
        all_plans = (plan, *sharing)
        size = max(ATOMIC_BYTES, *(s for p in all_plans for s in _sizes(p))) + GRH_AREA_BYTES
        most = sum(max(p.depth, p.receives) for p in all_plans) + _ROOM
        rate = min(1.0, sum(p.rate for p in all_plans))
        regions: list[MR] = []
        qps: list[Qp] = []
        numbers = (plan.source_qpn, plan.destination_qpn)
        for side, (host, cq) in enumerate(zip(hosts, cqs, strict=True)):
            assert host.pd is not None
            device, remote = host.device, side == 1
            at, key = (plan.remote_va, plan.rkey) if remote else (None, None)
            regions.append(device.region(host.pd, size, REMOTE_ACCESS, at, key))
            if partner is not None:
                qp = partner.qps[1 - side]
            else:
                qp = device.create_numbered_qp(numbers[side], host.pd, plan.transport, cq, most)
                host.created(qp)
            qps.append(qp)
            if side and partner is not None:
                continue  # the other flow has set its rate and headers
            device.set_headers(qp.qpn, plan.udp_sport, plan.tclass)
            version = 6 if ":" in device.addresses[0] else 4
            qp.pacer = FlowPacer(
                host.plan.dcqcn,
                max(1, round(rates[side] * rate)),
                _IP_UDP_BYTES[version],
                truth.rate_teller(device.name, qp.qpn),
            )
        if partner is not None:
            partner._partner = self
        self.qps = (qps[0], qps[1])
        self._regions = (regions[0], regions[1])
        regions[0].view[:] = self._draw.bytes(size)
        ends = [(h.device.addresses[0], q.qpn) for h, q in zip(hosts, qps, strict=True)]
        truth.follow(self._psns or self.counts, (ends[0], ends[1]))

    # -- connecting

    def connect(self) -> None:
        """Connect the two queue pairs: through the CM, or, of UD, by setting them up."""
        before = self._partner is not None and self._partner._number < self._number
        if before or self._leader is not self:
            self._post_receives()  # connected by the partner, or by the first flow
            return
        for host, qp in zip((self.source, self.destination), self.qps, strict=True):
            if qp.transport == "UD":
                host.modify_qp(qp, state="INIT", qkey=QKEY)
                host.modify_qp(qp, state="RTR")
                host.modify_qp(qp, state="RTS", sq_psn=self._first_psn())
            else:
                rights = [r for r in REMOTE_ACCESS if r != "LOCAL_WRITE"]
                host.modify_qp(qp, state="INIT", access=rights)
        self._post_receives()
        if self.plan.transport == "UD":
            self._connected()
            return
        service = FIRST_SERVICE + self._number
        self.destination.listen(service, self.plan.transport, self._requested)
        cm_id = self._id = self.source.device.cm.create_id(self.plan.transport)
        cm_id.qp = self.qps[0]
        cm_id.timeout, cm_id.path_mtu = self.plan.timeout, self.plan.path_mtu
        cm_id.tclass = self.plan.tclass & ~ECN_MASK
        if self._partner is not None:
            cm_id.starting_psn = self._partner._first_psn()
        self.source.react("ESTABLISHED", cm_id, lambda event: self._connected())
        for kind in ("REJECTED", "UNREACHABLE", "CONNECT_ERROR", "DISCONNECTED"):
            self.source.react(kind, cm_id, self._ended)
        self.source.connect(cm_id, self.destination.device.addresses[0], service, self._param())

    def _first_psn(self) -> int:
        psn = self._draw.bits(24) if self.plan.psn is None else self.plan.psn & MASK
        if self._psns is not None:
            self._psns.begin(psn)
        return psn

    def _param(self) -> ConnParam:
        reads = min(self.plan.depth, _MOST_READS)
        return ConnParam(responder_resources=reads, initiator_depth=reads, retry_count=self.plan.retry_cnt)

    def _requested(self, event: CmEvent) -> None:
        """The REQ came: this side says with which PSN the source begins."""
        event.id.qp = self.qps[1]
        event.id.starting_psn = self._first_psn()
        self.destination.react("DISCONNECTED", event.id, lambda gone: self.destination.disconnect(gone.id))
        self.destination.accept(event.id, self._param())

    def _connected(self) -> None:
        for flow in (self, *self._followers):
            flow.up = flow.connected = True
            flow._ready()
        if self._partner is not None and not self._partner.up:
            self._partner._connected()

    def _ended(self, event: CmEvent) -> None:
        if not self.up:
            for flow in (self, *self._followers):
                flow.failed = True
                flow._ready()
            if self._partner is not None and not self._partner.failed:
                self._partner._ended(event)
        for flow in (self, *self._followers):
            flow.up = False

    # -- messages

    def start(self, until_ns: int) -> None:
        """Post messages until that time."""
        self._until = until_ns
        if self.up:
            self._fill()

    def _fill(self) -> None:
        plan, now = self.plan, self.source.wire.now
        while self.outstanding < plan.depth and now < self._until and not self._paused and not self.failed:
            self._post()
            if plan.burst and self.posted % plan.burst == 0:
                self._paused = True
                self.source.wire.at(now + plan.gap_ns, self._go_on)
        if not self.outstanding and now >= self._until:
            self._finish()

    def _go_on(self) -> None:
        self._paused = False
        self._fill()

    def _post(self) -> None:
        plan, verb = self.plan, self._verb
        local, remote = self._regions
        size = self._draw.choice(self._sizes)
        flush = verb.operation == "FLUSH"
        sges = () if flush or not size else (Sge(local.addr, size, local.lkey),)
        datagram = plan.transport == "UD"
        self.posted += 1
        self.outstanding += 1
        leader = self._leader
        leader._requests += 1
        leader._owners[leader._requests] = self
        if leader._psns is not None:
            one = verb.has_response and verb.operation != "READ"
            leader._psns.posted(self.counts, 1 if one else psns_of(size, leader.plan.path_mtu))
        self.source.post_send(
            self.qps[0],
            SendWR(
                leader._requests,
                plan.verb,
                sges,
                remote_va=remote.addr,
                rkey=remote.rkey,
                imm=plan.immediate,
                swap_add=1,
                flush_length=size if flush else 0,
                dest_ip=self.destination.device.addresses[0] if datagram else None,
                dest_qpn=self.qps[1].qpn,
                qkey=QKEY,
            ),
        )

    def _post_receives(self) -> None:
        if self._verb.operation == "SEND" or self._verb.immediate:
            for _ in range(self.plan.receives):
                self._post_receive()

    def _post_receive(self) -> None:
        if self.qps[1].state != "ERR":
            region = self._regions[1]
            wr = RecvWR(RECEIVE, (Sge(region.addr, region.length, region.lkey),))
            self.destination.post_recv(self.qps[1], [wr])

    def completed(self, wc: WC) -> None:
        """A completion of a work request, or of a receive at the destination, was polled.

        Of several flows on a queue pair, the first gets it.
        """
        if wc.wr_id == RECEIVE:
            if wc.status == "SUCCESS":
                self.destination.wire.at(self.destination.wire.now + self.plan.repost_ns, self._post_receive)
            return
        self._owners.pop(wc.wr_id)._sent(wc)

    def _sent(self, wc: WC) -> None:
        """One of its own work requests is over."""
        self.outstanding -= 1
        if wc.status != "SUCCESS":
            self.failed = True
            self.counts.message_fail += 1
        self._fill()

    def _finish(self) -> None:
        """All is done: disconnect, if the other flows of the queue pairs are done, too."""
        self._done = True
        leaders = [flow for flow in (self._leader, self._leader._partner) if flow is not None]
        if not all(flow._done for leader in leaders for flow in (leader, *leader._followers)):
            return
        for flow in leaders:
            if flow._id is not None and flow.up:
                flow.source.disconnect(flow._id)
                flow.up = False


def _sizes(plan: FlowPlan) -> tuple[int, ...]:
    """The sizes that a flow's messages have."""
    fixed = VERBS[plan.verb].fixed_length
    return plan.sizes if fixed is None else (fixed,)
