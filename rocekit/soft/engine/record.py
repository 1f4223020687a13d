"""The record of truth: what the devices sent and why, to compare an analysis with.

The engine writes it as it sends, so it contains what a capture does not show: which packets were sent again,
in which round, and why. PSNs are unwrapped. Devices that exchange packets share a recorder:
:meth:`TruthRecorder.transfers` then joins requests with their responses.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rocekit.wire import ACK, NAK_CODES, RNR_NAK, syndrome_kind, syndrome_value
from rocekit.wire.psn import MASK


class FlowEnd(NamedTuple):
    """A QP at one end of a flow."""

    ip: str
    qpn: int


class Sent(NamedTuple):
    """A request packet that was sent.

    Attributes:
        psn: unwrapped.
        round: 0 the first time that this PSN was sent in this direction, then 1, 2, …
        cause: why it was sent again: ``nak``, ``timeout``, ``rnr`` or ``implied_nak``; None the first time.
    """

    time_ns: int
    psn: int
    round: int
    cause: str | None


class Reply(NamedTuple):
    """A response packet that was sent.

    Attributes:
        cause: ``duplicate`` if the request came again; None the first time.
        kind: as ``wire.Opcode.operation``.
        syndrome, msn: None without AETH.
    """

    time_ns: int
    psn: int
    round: int
    cause: str | None
    kind: str
    syndrome: int | None
    msn: int | None


@dataclass(slots=True)
class TransferRecord:
    """One message, as its requester knows it.

    Attributes:
        requests: every packet sent for it, those sent again included.
        naks, rnr_naks, timeouts, implied: causes of go-backs; counted when a packet is sent again.
        completed_ns: when its requester completed it; ``wc_status`` is the status.
    """

    requester: FlowEnd
    responder: FlowEnd
    transport: str
    wr_id: int
    operation: str
    bytes: int
    packets: int
    first_psn: int
    last_psn: int
    immediate: int | None = None
    invalidate_rkey: int | None = None
    remote_va: int | None = None
    rkey: int | None = None
    requests: list[Sent] = field(default_factory=list)
    naks: int = 0
    rnr_naks: int = 0
    timeouts: int = 0
    implied: int = 0
    completed_ns: int | None = None
    wc_status: str | None = None


class RequestFlow:
    """What one QP sent to one other as requester."""

    __slots__ = ("_again", "_high", "path_mtu", "transfers")

    def __init__(self, first_psn: int, path_mtu: int) -> None:
        self.path_mtu = path_mtu
        self.transfers: list[TransferRecord] = []
        self._high = first_psn
        self._again: dict[int, int] = {}

    def sent(self, transfer: TransferRecord, psn: int, covers: int, time_ns: int, cause: str | None) -> None:
        """A request packet was sent; it takes ``covers`` PSNs (a READ: one for each response packet)."""
        if psn >= self._high:
            self._high = psn + covers
            transfer.requests.append(Sent(time_ns, psn, 0, None))
            return
        rounds = self._again.get(psn, 0) + 1
        self._again[psn] = rounds
        transfer.requests.append(Sent(time_ns, psn, rounds, cause))


class ReplyFlow:
    """What one QP sent to one other as responder."""

    __slots__ = ("_rounds", "replies")

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self._rounds: dict[int, int] = {}

    def sent(self, kind: str, psn: int, time_ns: int, syndrome: int | None, msn: int | None) -> None:
        if kind == "ACK":  # an ACK is not part of a message: it has no rounds
            self.replies.append(Reply(time_ns, psn, 0, None, kind, syndrome, msn))
            return
        rounds = self._rounds.get(psn, 0)
        self._rounds[psn] = rounds + 1
        self.replies.append(Reply(time_ns, psn, rounds, "duplicate" if rounds else None, kind, syndrome, msn))


@dataclass(slots=True)
class TransferTruth:
    """A transfer with its responses: what a capture of all that both ends sent shows of it.

    Attributes:
        responses: its own response packets, those sent again included.
        naks: its NAKs and RNR NAKs.
        acked_ns: when the first response was sent that proves that all of it arrived; for a READ, when the
            last of its response packets was sent for the first time.
    """

    request: TransferRecord
    responses: list[Reply]
    naks: list[Reply]
    acked_ns: int | None
    path_mtu: int

    @property
    def status(self) -> str:
        """The status of the transfer in ``rocekit analyze``."""
        request = self.request
        if request.transport != "RC":
            return "sent" if self._whole() else "incomplete"
        for reply in self.naks:
            code = syndrome_value(reply.syndrome or 0)
            if syndrome_kind(reply.syndrome or 0) != RNR_NAK and code:
                return f"nak:{NAK_CODES.get(code, str(code))}"
        if self.acked_ns is not None:
            return "acked"
        return "unacknowledged" if self._whole() else "incomplete"

    def _whole(self) -> bool:
        request = self.request
        if request.operation == "READ":
            return bool(request.requests)
        return len({s.psn for s in request.requests}) == request.last_psn - request.first_psn + 1

    def _seen(self) -> tuple[int, int]:
        """Last PSN and bytes of what was sent: less than the message if an error ended it."""
        request = self.request
        last = max((s.psn for s in request.requests), default=request.last_psn)
        if request.operation not in ("SEND", "WRITE") or last == request.last_psn:
            return request.last_psn, request.bytes
        return last, (last - request.first_psn + 1) * self.path_mtu

    def as_dict(self) -> dict[str, Any]:
        """The keys of a transfer in ``rocekit analyze --format json`` that the record knows."""
        request = self.request
        last_psn, length = self._seen()
        # The fields of the last packet are not known before it is sent.
        ended = any(s.psn == request.last_psn for s in request.requests)
        again = sum(s.round > 0 for s in request.requests) + sum(r.round > 0 for r in self.responses)
        return {
            "requester": request.requester._asdict(),
            "operation": request.operation,
            "immediate": request.immediate if ended else None,
            "invalidate_rkey": request.invalidate_rkey if ended else None,
            "bytes": length,
            "packets": last_psn - request.first_psn + 1,
            "first_psn": request.first_psn & MASK,
            "last_psn": last_psn & MASK,
            "remote_va": request.remote_va,
            "rkey": request.rkey,
            "first_ns": request.requests[0].time_ns if request.requests else None,
            "acked_ns": self.acked_ns,
            "status": self.status,
            "retransmitted_packets": again,
            "naks": sum(syndrome_kind(r.syndrome or 0) != RNR_NAK for r in self.naks),
            "rnr_naks": sum(syndrome_kind(r.syndrome or 0) == RNR_NAK for r in self.naks),
            "timeouts": request.timeouts,
        }


class TruthRecorder:
    """Collects the flows of one device, or of several that exchange packets."""

    def __init__(self) -> None:
        self.requests: dict[tuple[FlowEnd, FlowEnd], list[RequestFlow]] = defaultdict(list)
        self.replies: dict[tuple[FlowEnd, FlowEnd], list[ReplyFlow]] = defaultdict(list)
        self.cnps: list[tuple[int, FlowEnd, FlowEnd]] = []

    def cnp(self, time_ns: int, source: FlowEnd, destination: FlowEnd) -> None:
        """A CNP was sent."""
        self.cnps.append((time_ns, source, destination))

    def request_flow(self, local: FlowEnd, remote: FlowEnd, first_psn: int, path_mtu: int) -> RequestFlow:
        flow = RequestFlow(first_psn, path_mtu)
        self.requests[local, remote].append(flow)
        return flow

    def reply_flow(self, local: FlowEnd, remote: FlowEnd) -> ReplyFlow:
        flow = ReplyFlow()
        self.replies[local, remote].append(flow)
        return flow

    def transfers(self) -> list[TransferTruth]:
        """The transfers of which at least one packet was sent, in the order of their first packets."""
        truths = []
        for (local, remote), flows in self.requests.items():
            reply_flows = self.replies.get((remote, local), [])
            for i, flow in enumerate(flows):
                replies = reply_flows[i].replies if i < len(reply_flows) else []
                truths += _join([t for t in flow.transfers if t.requests], replies, flow.path_mtu)
        truths.sort(key=lambda t: (t.request.requests[0].time_ns, t.request.requester, t.request.first_psn))
        return truths


def _join(transfers: list[TransferRecord], replies: list[Reply], path_mtu: int) -> list[TransferTruth]:
    """Join the transfers of a flow with their responses; both are in order."""
    truths = []
    of_psn: dict[int, list[Reply]] = defaultdict(list)
    proofs: list[tuple[int, int]] = []  # (PSN up to which all arrived, time), both growing
    for reply in replies:
        of_psn[reply.psn].append(reply)
        positive = reply.syndrome is None or syndrome_kind(reply.syndrome) == ACK
        covered = reply.psn if positive else reply.psn - 1
        if not proofs or covered > proofs[-1][0]:
            proofs.append((covered, reply.time_ns))
    at = 0
    for transfer in transfers:
        own = [r for psn in range(transfer.first_psn, transfer.last_psn + 1) for r in of_psn.get(psn, ())]
        own.sort(key=lambda r: r.time_ns)
        responses = [r for r in own if r.kind != "ACK"]
        naks = [
            r for r in own if r.kind == "ACK" and r.syndrome is not None and syndrome_kind(r.syndrome) != ACK
        ]
        acked: int | None = None
        if transfer.operation in ("SEND", "WRITE"):
            while at < len(proofs) and proofs[at][0] < transfer.last_psn:
                at += 1
            acked = proofs[at][1] if at < len(proofs) else None
        else:
            first = {r.psn: r.time_ns for r in reversed(responses)}
            if len(first) == transfer.last_psn - transfer.first_psn + 1:
                acked = max(first.values())
        truths.append(TransferTruth(transfer, responses, naks, acked, path_mtu))
    return truths
