"""What the wire and the senders did, as journal events, and counted for each flow."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final

from rocekit.journal import JournalWriter
from rocekit.soft.engine.packet import address_text
from rocekit.soft.engine.record import TruthRecorder
from rocekit.soft.traffic.cm_counts import CmCounts
from rocekit.soft.traffic.counting import ANSWERS, Fields, FlowCounts
from rocekit.soft.traffic.plan import TrafficPlan
from rocekit.soft.traffic.sender import FlowPacer
from rocekit.soft.traffic.shared_psns import SharedPsns
from rocekit.wire import GSI_QPN, OPCODES
from rocekit.wire.psn import MASK

_PPM: Final = 1_000_000
#: The host of the wire's own lines in the journal.
WIRE: Final = "wire"


class Truth:
    """Counts flows and writes the journal's lines about packets, queues, pauses and rates.

    Args:
        journal: where lines are written; None: only counts.

    Attributes:
        lost: packets, by reason.
        marked_packets, held_packets: how many in all.
        pauses: pause frames to each device, those that release it too.
        most_queued: the longest queue to each device, in bytes.
        cm: messages of the connection manager, by device and the other side's address.
    """

    def __init__(self, journal: JournalWriter | None) -> None:
        self._journal = journal
        # By both addresses and the QPN that a packet goes to: requests, and answers (with CNPs).
        self._requests: dict[bytes, FlowCounts | SharedPsns] = {}
        self._answers: dict[bytes, FlowCounts | SharedPsns] = {}
        self.lost: dict[str, int] = {}
        self.marked_packets = self.held_packets = 0
        self.pauses: dict[str, int] = {}
        self.most_queued: dict[str, int] = {}
        self.cm: defaultdict[tuple[str, str], CmCounts] = defaultdict(CmCounts)

    def follow(self, counts: FlowCounts | SharedPsns, ends: tuple[tuple[str, int], tuple[str, int]]) -> None:
        """Count a flow, or several on one queue pair, between two (address, QPN)."""
        (a, qpn_a), (b, qpn_b) = ends
        packed = ipaddress.ip_address(a).packed, ipaddress.ip_address(b).packed
        self._requests[packed[0] + packed[1] + qpn_b.to_bytes(3, "big")] = counts
        self._answers[packed[1] + packed[0] + qpn_a.to_bytes(3, "big")] = counts

    def _counts(self, seen: Fields) -> FlowCounts | None:
        found = (self._answers if seen.opcode in ANSWERS else self._requests).get(seen.key)
        return found.flow_of(seen) if isinstance(found, SharedPsns) else found

    # -- of the wire

    def packet_sent(self, time_ns: int, port: str, data: bytes) -> None:
        seen = Fields(data)
        if seen.dest_qpn == GSI_QPN:
            self.cm[port, _addresses(data)[1]].seen(data, "tx")
        counts = self._counts(seen)
        if counts is not None:
            counts.sent(time_ns, seen.opcode, seen.psn, seen.payload, seen.syndrome)

    def packet_delivered(self, time_ns: int, port: str, data: bytes, sent_ns: int) -> None:
        seen = Fields(data)
        if seen.dest_qpn == GSI_QPN:
            self.cm[port, _addresses(data)[0]].seen(data, "rx")
        counts = self._counts(seen)
        if counts is not None:
            counts.delivered(
                time_ns, seen.opcode, seen.psn, seen.payload, seen.syndrome, seen.marked, sent_ns
            )

    def packet_lost(self, time_ns: int, port: str, data: bytes, reason: str, queue_bytes: int) -> None:
        self.lost[reason] = self.lost.get(reason, 0) + 1
        counts = self._counts(Fields(data))
        if counts is not None:
            counts.frames_lost += 1
        self._packet("packet_lost", time_ns, port, data, reason=reason, queue_bytes=queue_bytes)

    def packet_marked(self, time_ns: int, port: str, data: bytes, queue_bytes: int) -> None:
        self.marked_packets += 1
        self._packet("packet_marked", time_ns, port, data, reason="queue", queue_bytes=queue_bytes)

    def packet_held(self, time_ns: int, port: str, priority: int, data: bytes, held_ns: int) -> None:
        self.held_packets += 1
        counts = self._counts(Fields(data))
        if counts is not None:
            counts.frames_held += 1
            counts.held_ns += held_ns
        self._packet("packet_held", time_ns, port, data, reason="pfc", held_ns=held_ns)

    def link_paused(self, time_ns: int, port: str, priority: int, quanta: int, buffered: int) -> None:
        self.pauses[port] = self.pauses.get(port, 0) + 1
        self._write(
            "link_paused",
            time_ns,
            device=port,
            priority=priority,
            quanta=quanta,
            reason="xoff" if quanta else "xon",
            buffered_bytes=buffered,
        )

    def queue_length(self, time_ns: int, port: str, priority: int, queue_bytes: int) -> None:
        self.most_queued[port] = max(queue_bytes, self.most_queued.get(port, 0))
        self._write("queue_length", time_ns, device=port, priority=priority, queue_bytes=queue_bytes)

    # -- of the senders

    def rate_teller(self, device: str, qpn: int) -> Callable[[int, str, FlowPacer], None]:
        """What tells the changes of a queue pair's rate."""

        def told(time_ns: int, why: str, pacer: FlowPacer) -> None:
            self._write(
                "rate_changed",
                time_ns,
                qp=(device, qpn),
                reason=why,
                rate_bps=round(pacer.rate_bps),
                target_bps=round(pacer.target_bps),
                alpha_ppm=round(pacer.alpha * _PPM),
            )

        return told

    def started(self, plan: TrafficPlan, time_ns: int, program: str) -> None:
        switch = plan.switch
        self._write(
            "traffic_started",
            time_ns,
            seed=plan.seed,
            duration_ns=plan.duration_ns,
            program=program,
            link_bps=plan.rate_bps,
            delay_ns=plan.delay_ns,
            kmin_bytes=switch.kmin_bytes if switch.ecn else None,
            kmax_bytes=switch.kmax_bytes if switch.ecn else None,
            pmax_ppm=round(switch.pmax * _PPM) if switch.ecn else None,
            buffer_bytes=switch.buffer_bytes,
            xoff_bytes=switch.xoff_bytes if switch.lossless else None,
            xon_bytes=switch.xon_bytes if switch.lossless else None,
        )

    def repeats(self, recorder: TruthRecorder, devices: dict[str, str]) -> None:
        """The packets that were sent again, each with its reason.

        Args:
            devices: the name of the device that has an address.
        """
        if self._journal is None:
            return
        for truth in recorder.transfers():
            sides = (
                (truth.request.requester, truth.request.requests),
                (truth.request.responder, truth.responses),
            )
            for end, packets in sides:
                for packet in packets:
                    if packet.round:
                        self._write(
                            "packet_repeated",
                            packet.time_ns,
                            qp=(devices[end.ip], end.qpn),
                            psn=packet.psn & MASK,
                            reason=packet.cause or "unknown",
                            round=packet.round,
                        )

    def totals(self, time_ns: int, flow: str, counts: FlowCounts, ends: tuple[str, str]) -> None:
        self._write(
            "flow_totals",
            time_ns,
            flow=flow,
            totals=counts.as_counts(),
            local_ip=ends[0],
            remote_ip=ends[1],
        )

    # -- within

    def _packet(self, event: str, time_ns: int, port: str, data: bytes, **more: Any) -> None:
        if self._journal is None:
            return
        seen = Fields(data)
        source, destination = _addresses(data)
        op = OPCODES.get(seen.opcode)
        self._write(
            event,
            time_ns,
            device=port,
            local_ip=source,
            remote_ip=destination,
            dest_qpn=seen.dest_qpn,
            psn=seen.psn if seen.dest_qpn != GSI_QPN else None,
            opcode=None if op is None else op.name,
            **more,
        )

    def _write(self, event: str, time_ns: int, **fields: Any) -> None:
        if self._journal is not None:
            self._journal.write(event, time_ns=time_ns, **fields)


def _addresses(data: bytes) -> tuple[str, str]:
    """Source and destination of a datagram."""
    if data[0] >> 4 == 4:
        return address_text(data[12:16]), address_text(data[16:20])
    return address_text(data[8:24]), address_text(data[24:40])
