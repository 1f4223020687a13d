"""Playing a plan: hosts on a switch, their flows, the capture and the journal."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, BinaryIO

from rocekit.errors import ScenarioError, VerbsError
from rocekit.files.outputs import Together
from rocekit.files.pcapng_write import PcapngWriter
from rocekit.journal import JournalWriter
from rocekit.soft.engine.packet import with_tclass
from rocekit.soft.engine.record import TruthRecorder
from rocekit.soft.engine.work import WC
from rocekit.soft.testbed.host import Host
from rocekit.soft.traffic.cm_counts import CmCounts, sum_of
from rocekit.soft.traffic.counting import FlowCounts
from rocekit.soft.traffic.flow import RECEIVE, TrafficFlow
from rocekit.soft.traffic.host import TrafficHost
from rocekit.soft.traffic.plan import FlowPlan, HostPlan, TrafficPlan
from rocekit.soft.traffic.sender import TrafficDevice
from rocekit.soft.traffic.truth import WIRE, Truth
from rocekit.soft.wires.memory import EPOCH_NS
from rocekit.soft.wires.switch import SwitchWire
from rocekit.wire import ACK, CNP_OPCODE, OPCODE_NAMES, syndrome_kind

#: Simulated time after the last post in which everything must have ended.
_LONGEST_END_NS = 120_000_000_000
_ACKNOWLEDGE = OPCODE_NAMES["RC_ACKNOWLEDGE"]
_CQ_ENTRIES = 1 << 16
#: From the last connection to the first message.
_START_NS = 10_000


@dataclass(slots=True)
class FlowDone:
    """A flow's results.

    Attributes:
        qpns: of its source and its destination; addresses and ports likewise.
        up: whether it was connected.
    """

    name: str
    ports: tuple[str, str]
    addresses: tuple[str, str]
    qpns: tuple[int, int]
    counts: FlowCounts
    up: bool


@dataclass(slots=True)
class TrafficRun:
    """What was done.

    Attributes:
        packets: sent by all hosts, those of the CM included.
        lost: by reason; most_queued: bytes, by the host that the queue goes to.
        pauses: pause frames of the switch to each host, those that release it too.
        peers: of each peer of the plan, and of each host with queue pairs of none, its name, its queue pairs,
            how many of them were connected, and its CM messages.
        started_ns, ended_ns: simulated time of the first post, and of the last data frame or answer.
    """

    plan: TrafficPlan
    flows: list[FlowDone] = field(default_factory=list)
    packets: int = 0
    lost: dict[str, int] = field(default_factory=dict)
    marked: int = 0
    held: int = 0
    pauses: dict[str, int] = field(default_factory=dict)
    most_queued: dict[str, int] = field(default_factory=dict)
    peers: list[tuple[str, int, int, dict[str, int]]] = field(default_factory=list)
    started_ns: int = 0
    ended_ns: int = 0

    @property
    def pause_frames(self) -> int:
        return sum(self.pauses.values())


def run_traffic(
    plan: TrafficPlan,
    *,
    capture: str | Path | BinaryIO | None = None,
    snaplen: int | None = None,
    journal: str | Path | None = None,
    program: str = "generate",
) -> TrafficRun:
    """Play a plan to its end.

    Args:
        capture: pcapng to write, taken where the plan says.
        journal: of all hosts (work requests, completions, CM events), and of the wire: what was lost, marked,
            held and sent again, queues, pauses, rates, and the flows' totals.

    Raises:
        ScenarioError: the plan cannot be played: a QP number or an address is there twice.
        CaptureError, JournalError: a file cannot be written.
    """
    with ExitStack() as stack:
        together = stack.enter_context(Together())
        lines = None
        if journal is not None:
            lines = io.TextIOWrapper(together.open(journal), encoding="utf-8")
            stack.callback(lines.detach)
        truth = Truth(None if lines is None else JournalWriter(lines, host=WIRE, pid=1))
        sink = None
        if capture is not None:
            file = together.open(capture) if isinstance(capture, str | Path) else capture
            sink = PcapngWriter(file, interface_name=plan.tap)
            stack.callback(sink.close)
        run = _Run(plan, truth, lines, sink if snaplen is None or sink is None else _Cut(sink, snaplen))
        return run.play(program)


class _Cut:
    """Writes the first bytes of each frame."""

    def __init__(self, writer: PcapngWriter, snaplen: int) -> None:
        self._writer = writer
        self._snaplen = snaplen

    def write(self, frame: bytes, time_ns: int) -> None:
        self._writer.write(frame[: self._snaplen], time_ns, wirelen=len(frame))


class _Run:
    def __init__(
        self,
        plan: TrafficPlan,
        truth: Truth,
        journal: IO[str] | None,
        capture: PcapngWriter | _Cut | None,
    ) -> None:
        self.plan = plan
        self.truth = truth
        self._waiting = 0
        self._end = 0
        self.result = TrafficRun(plan)
        self._classes = {h.name: h for h in plan.hosts}
        self.wire = SwitchWire(
            settings=plan.switch,
            observer=truth,
            dress=self._dress if any(_dresses(h) for h in plan.hosts) else None,
            rates={h.name: h.rate_bps for h in plan.hosts if h.rate_bps is not None},
            seed=plan.seed,
            capture=capture,
            tap=plan.tap,
            rate_bps=plan.rate_bps,
            delay_ns=plan.delay_ns,
        )
        self.recorder = TruthRecorder()
        self.hosts: list[TrafficHost] = []
        self._source_of: dict[tuple[str, int], TrafficFlow] = {}
        self._destination_of: dict[tuple[str, int], TrafficFlow] = {}
        cqs = []
        try:
            for host_plan in plan.hosts:
                device = TrafficDevice(
                    host_plan.name,
                    host_plan.address,
                    seed=plan.seed,
                    recorder=self.recorder,
                    cnp_interval_ns=host_plan.cnp_interval_ns or 0,
                )
                host = TrafficHost(host_plan, device, self.wire, journal=journal)
                host.pd = device.alloc_pd()
                cqs.append(device.create_cq(_CQ_ENTRIES))
                host.watch(cqs[-1], self._completed)
                self.hosts.append(host)
            rates = [h.rate_bps or plan.rate_bps for h in plan.hosts]
            for f in plan.flows:
                for end, qpn in ((f.source, f.source_qpn), (f.destination, f.destination_qpn)):
                    if qpn is not None:
                        self.hosts[end].device.reserved.add(qpn)
            self.flows: list[TrafficFlow] = []
            self._first_of: dict[_Qps, TrafficFlow] = {}
            together: defaultdict[_Qps, list[FlowPlan]] = defaultdict(list)
            for f in plan.flows:
                together[_qps_of(f)].append(f)
            for number, f in enumerate(plan.flows):
                ends, qps = (f.source, f.destination), _qps_of(f)
                leader = None if f.source_qpn is None else self._first_of.get(qps)
                flow = TrafficFlow(
                    number,
                    f,
                    (self.hosts[ends[0]], self.hosts[ends[1]]),
                    (cqs[ends[0]], cqs[ends[1]]),
                    (rates[ends[0]], rates[ends[1]]),
                    truth,
                    plan.seed,
                    self._ready,
                    None if leader is not None else self._other_way(f),
                    leader=leader,
                    sharing=together[qps][1:] if leader is None and f.source_qpn is not None else [],
                )
                self.flows.append(flow)
                self._first_of.setdefault(qps, flow)
                if leader is None:
                    self._source_of[flow.source.device.name, flow.qps[0].qpn] = flow
                    self._destination_of[flow.destination.device.name, flow.qps[1].qpn] = flow
        except (ValueError, VerbsError) as error:
            raise ScenarioError(f"this traffic cannot be made: {error}") from None

    def _other_way(self, plan: FlowPlan) -> TrafficFlow | None:
        """The flow between the same two numbered queue pairs in the other direction."""
        if None in (plan.source_qpn, plan.destination_qpn):
            return None
        return self._first_of.get((plan.destination, plan.destination_qpn, plan.source, plan.source_qpn))

    def play(self, program: str) -> TrafficRun:
        self.truth.started(self.plan, EPOCH_NS, program)
        self._waiting = len(self.flows)
        for flow in self.flows:
            self.wire.at(EPOCH_NS, flow.connect)
        self.wire.run(EPOCH_NS + self.plan.duration_ns + _LONGEST_END_NS)
        return self._finish()

    def _ready(self) -> None:
        """A flow is connected, or will never be; when all are, they start together."""
        self._waiting -= 1
        if self._waiting:
            return
        start = self.wire.now + _START_NS
        self.result.started_ns, self._end = start, start + self.plan.duration_ns
        for flow in self.flows:
            self.wire.at(start + flow.plan.start_ns, lambda flow=flow: flow.start(self._end))  # type: ignore[misc]

    def _completed(self, host: Host, wc: WC) -> None:
        flows = self._destination_of if wc.wr_id == RECEIVE else self._source_of
        flows[host.device.name, wc.qpn].completed(wc)

    def _dress(self, name: str, data: bytes) -> bytes:
        """Give CNPs, ACKs and NAKs the class that their host gives them."""
        host = self._classes[name]
        start = 28 if data[0] >> 4 == 4 else 48
        tclass = None
        if data[start] == CNP_OPCODE:
            tclass = host.cnp_tclass
        elif data[start] == _ACKNOWLEDGE:
            tclass = host.ack_tclass if syndrome_kind(data[start + 12]) == ACK else host.nak_tclass
        return data if tclass is None else with_tclass(data, tclass)

    def _finish(self) -> TrafficRun:
        done, truth = self.result, self.truth
        done.packets = self.wire.packets
        done.lost, done.marked, done.held = truth.lost, truth.marked_packets, truth.held_packets
        done.pauses, done.most_queued = truth.pauses, truth.most_queued
        done.ended_ns = max((f.counts.last_ns or 0 for f in self.flows), default=0)
        truth.repeats(self.recorder, {h.device.addresses[0]: h.device.name for h in self.hosts})
        qps: dict[tuple[str, str | None], dict[int, bool]] = {}
        for flow in self.flows:
            hosts = (flow.source, flow.destination)
            addresses = (hosts[0].device.addresses[0], hosts[1].device.addresses[0])
            done.flows.append(
                FlowDone(
                    flow.plan.name,
                    (hosts[0].plan.port, hosts[1].plan.port),
                    addresses,
                    (flow.qps[0].qpn, flow.qps[1].qpn),
                    flow.counts,
                    flow.connected,
                )
            )
            peers = flow.plan.source_peer, flow.plan.destination_peer
            for host, peer, qp in zip(hosts, peers, flow.qps, strict=True):
                of_peer = qps.setdefault((host.name, peer), {})
                of_peer[qp.qpn] = of_peer.get(qp.qpn, False) or flow.connected
            truth.totals(flow.counts.last_ns or self.wire.now, flow.plan.name, flow.counts, addresses)
        done.peers = list(_peers(self.plan, qps, truth.cm))
        return done


_Qps = tuple[int, int | None, int, int | None]


def _qps_of(plan: FlowPlan) -> _Qps:
    """Where a flow starts and ends: those with the same numbered source and destination share their QPs."""
    return plan.source, plan.source_qpn, plan.destination, plan.destination_qpn


def _dresses(host: HostPlan) -> bool:
    return any(t is not None for t in (host.cnp_tclass, host.ack_tclass, host.nak_tclass))


def _peers(
    plan: TrafficPlan,
    qps: Mapping[tuple[str, str | None], Mapping[int, bool]],
    cm: Mapping[tuple[str, str], CmCounts],
) -> Iterator[tuple[str, int, int, dict[str, int]]]:
    """The results of each peer of the plan, then of each host whose queue pairs belong to none.

    Args:
        qps: by host and peer, whether each queue pair was connected.
    """
    told: set[tuple[str, str]] = set()
    counts_of: defaultdict[str, list[tuple[tuple[str, str], CmCounts]]] = defaultdict(list)
    for key, counts in cm.items():
        counts_of[key[0]].append((key, counts))
    for peer in plan.peers:
        host = plan.hosts[peer.host].name
        told.add((host, peer.address))
        up = sum(qps.get((host, peer.name), {}).values())
        yield peer.name, peer.qps, up, sum_of([cm[host, peer.address]] if (host, peer.address) in cm else [])
    for other in plan.hosts:
        own = qps.get((other.name, None), {})
        if own or not plan.peers:
            rest = [counts for key, counts in counts_of[other.name] if key not in told]
            yield other.name, len(own), sum(own.values()), sum_of(rest)
