"""NCCL's collectives: which proxy operations carried each, and the work requests and transfers of these.

The profiler plug-in (rocekit/record/nccl) writes what NCCL tells it. NCCL names the QP of a work request by
its number, just before it posts it, and only where it was built with NCCL_ENABLE_NET_PROFILING. A recorder's
journal of the same process has the posted work requests: what is posted on that QP next is meant. Without
it, the transfers of a QP are taken only if all of them fit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rocekit.journal import Journal
    from rocekit.journal.records import JournalEvent
    from rocekit.journal.work_requests import JournalQp, WorkRequest
    from rocekit.track.connections import Connection
    from rocekit.track.transfers import Transfer

#: A journal of another time has the same QPNs: so far from a connection's packets it is not meant.
_APART_NS: Final = 600 * 10**9
#: Sizes that NCCL writes with the immediate of several receives at once: four bytes each, at most eight.
_SIZES: Final = frozenset(range(8, 33, 4))


@dataclass(slots=True, eq=False)
class NcclRequest:
    """A work request that NCCL told of, before it posted it.

    Attributes:
        wr: the recorder's work request; transfers: what it became, with the WRITE that tells its end.
        matched_by: ``journal`` (a recorder's), ``order`` (all transfers of the QP fit), or None.
    """

    event: JournalEvent
    proxy_op: ProxyOperation
    wr: WorkRequest | None = None
    transfers: list[Transfer] = field(default_factory=list)
    matched_by: str | None = None

    @property
    def step(self) -> int:
        return int(self.event["step"])

    @property
    def qpn(self) -> int:
        return int(self.event["qpn"])

    @property
    def length(self) -> int | None:
        """Bytes; None of a receive."""
        length = self.event.get("length")
        return None if length is None else int(length)


@dataclass(slots=True, eq=False)
class ProxyOperation:
    """What NCCL's proxy thread does for one channel of a collective: sends to a peer, or receives from it.

    Attributes:
        states: of its steps: (time, step, state), as they came.
        ended_ns: None while it goes on, as far as the journal tells.
    """

    event: JournalEvent
    operation: NcclOperation | None = None
    requests: list[NcclRequest] = field(default_factory=list)
    states: list[tuple[int, int, str]] = field(default_factory=list)
    ended_ns: int | None = None

    @property
    def sends(self) -> bool:
        return bool(self.event["send"])

    def words(self) -> str:
        """``channel 3, send to rank 1``."""
        peer = self.event.get("peer")
        way = "send to" if self.sends else "receive from"
        whom = "a rank that NCCL does not name" if peer is None else f"rank {peer}"
        channel = self.event.get("channel")
        return f"{way} {whom}" if channel is None else f"channel {channel}, {way} {whom}"


@dataclass(slots=True, eq=False)
class NcclOperation:
    """A collective, or a send or receive, as one rank enqueued it.

    Attributes:
        id: its place among all of the journals.
    """

    id: int
    event: JournalEvent
    proxy_ops: list[ProxyOperation] = field(default_factory=list)

    @property
    def communicator(self) -> str:
        return str(self.event["communicator"])

    @property
    def rank(self) -> int:
        return int(self.event["rank"])

    @property
    def requests(self) -> list[NcclRequest]:
        return [request for op in self.proxy_ops for request in op.requests]

    @property
    def transfers(self) -> list[Transfer]:
        """What it became on the wire, without receives, in order of their numbers."""
        found = {t.id: t for request in self.requests for t in request.transfers}
        return [found[number] for number in sorted(found)]

    @property
    def ended_ns(self) -> int | None:
        """When the last of its proxy operations ended; None if one goes on, or it has none."""
        ends = [op.ended_ns for op in self.proxy_ops]
        return None if not ends or None in ends else max(end for end in ends if end is not None)

    def name(self) -> str:
        """``AllReduce 12 of communicator 0x1f, rank 0``."""
        sequence = self.event.get("sequence")
        number = "" if sequence is None else f" {sequence}"
        return f"{self.event['function']}{number} of communicator {self.communicator}, rank {self.rank}"

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the event's keys, and what became of it."""
        return {
            "id": self.id,
            "host": self.event.host,
            "pid": self.event.pid,
            "enqueued_ns": self.event.time_ns,
            "ended_ns": self.ended_ns,
            **{k: v for k, v in self.event.fields.items() if k != "operation"},
            "proxy_ops": [
                {
                    **{k: v for k, v in op.event.fields.items() if k not in ("operation", "operation_pid")},
                    "started_ns": op.event.time_ns,
                    "ended_ns": op.ended_ns,
                    "work_requests": len(op.requests),
                    "transfers": sorted({t.id for request in op.requests for t in request.transfers}),
                }
                for op in self.proxy_ops
            ],
            "transfers": [t.id for t in self.transfers],
        }


@dataclass(slots=True)
class Collectives:
    """All that NCCL's journals tell.

    Attributes:
        alone: proxy operations whose operation is another process's (PXN), or not in the journals.
    """

    operations: list[NcclOperation] = field(default_factory=list)
    alone: list[ProxyOperation] = field(default_factory=list)
    communicators: set[tuple[str, int]] = field(default_factory=set)
    _of: dict[int, NcclRequest] = field(default_factory=dict)

    @property
    def proxy_ops(self) -> list[ProxyOperation]:
        return [*(op for operation in self.operations for op in operation.proxy_ops), *self.alone]

    @property
    def requests(self) -> list[NcclRequest]:
        return [request for op in self.proxy_ops for request in op.requests]

    def of(self, transfer: Transfer) -> NcclRequest | None:
        """What NCCL told of the work request behind a transfer."""
        return self._of.get(transfer.id)

    def carry(self, request: NcclRequest, transfers: Iterable[Transfer], how: str) -> None:
        """Note what a work request became."""
        for transfer in transfers:
            request.transfers.append(transfer)
            request.matched_by = how
            self._of[transfer.id] = request

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the operations, and counts."""
        requests = self.requests
        return {
            "operations": [operation.to_dict() for operation in self.operations],
            "proxy_ops": len(self.proxy_ops),
            "proxy_ops_without_operation": len(self.alone),
            "work_requests": len(requests),
            "matched": sum(bool(request.transfers) for request in requests),
        }


def read_collectives(journal: Journal) -> Collectives | None:
    """What NCCL's events tell; None if there is none."""
    events = journal.of(
        "nccl_communicator", "nccl_operation", "nccl_proxy_op", "nccl_proxy_op_ended", "nccl_step", "nccl_wr"
    )
    if not events:
        return None
    found = Collectives()
    operations: dict[tuple[str, int, int], NcclOperation] = {}
    proxies: dict[tuple[str, int, int], ProxyOperation] = {}
    for event in events:
        process = (event.host, event.pid)
        if event.event == "nccl_communicator":
            found.communicators.add((str(event["communicator"]), int(event["rank"])))
        elif event.event == "nccl_operation":
            operation = NcclOperation(len(found.operations), event)
            operations[(*process, int(event["operation"]))] = operation
            found.operations.append(operation)
        elif event.event == "nccl_proxy_op":
            proxy = proxies[(*process, int(event["proxy_op"]))] = ProxyOperation(event)
            # PXN: the operation is one of another process on the same host.
            owner = (event.host, int(event.get("operation_pid", event.pid)), event.get("operation", -1))
            proxy.operation = operations.get(owner)
            (found.alone if proxy.operation is None else proxy.operation.proxy_ops).append(proxy)
        else:
            known = proxies.get((*process, int(event["proxy_op"])))
            if known is None:
                continue
            if event.event == "nccl_wr":
                known.requests.append(NcclRequest(event, known))
            elif event.event == "nccl_step":
                known.states.append((event.time_ns, int(event["step"]), str(event["state"])))
            else:
                known.ended_ns = event.time_ns
    return found


def match_collectives(
    found: Collectives,
    qps: Sequence[JournalQp],
    carried: Mapping[WorkRequest, Transfer],
    addresses: Mapping[str, frozenset[str]],
    connections: Sequence[Connection],
    sent: Mapping[tuple[int, int], Sequence[Transfer]],
) -> None:
    """Find the transfers of the work requests that NCCL told of.

    Args:
        carried: the transfer of each work request of a recorder's journal.
        addresses: those of each host's RDMA devices.
        sent: transfers by their connection's number and their side.
    """
    by_qp: dict[tuple[str, int, int], list[NcclRequest]] = defaultdict(list)
    for request in found.requests:
        if request.proxy_op.sends:
            by_qp[request.event.host, request.event.pid, request.qpn].append(request)
    posted: dict[tuple[str, int, int], dict[str, list[WorkRequest]]] = defaultdict(dict)
    for qp in qps:
        for wr in qp.sends:
            if not wr.refused:
                devices = posted[qp.host, wr.event.pid, qp.qpn]
                devices.setdefault(qp.device, []).append(wr)
    of_qpn: dict[int | None, list[tuple[Connection, int]]] = defaultdict(list)
    for connection in connections if by_qp else ():
        if connection.transport == "RC":
            for side in (0, 1):
                of_qpn[connection.qpns[side]].append((connection, side))
    for key, requests in by_qp.items():
        requests.sort(key=lambda request: request.event.time_ns)
        if own := posted.get(key):
            _by_journal(found, requests, list(own.values()), carried)
        else:
            host, _, qpn = key
            _by_order(found, requests, _transfers(addresses.get(host), requests, of_qpn.get(qpn, ()), sent))


def _by_journal(
    found: Collectives,
    requests: list[NcclRequest],
    devices: list[list[WorkRequest]],
    carried: Mapping[WorkRequest, Transfer],
) -> None:
    """Take the work requests of the device that is meant: NCCL does not name it.

    Args:
        devices: what the process posted on the QPs with this number, a list for each device.
    """
    several = len(devices) > 1
    if several:  # a device where less was posted than NCCL told of is not meant
        devices = [posted for posted in devices if len(posted) >= len(requests)]
    plans = [_plan(requests, posted) for posted in devices]
    if several:
        plans = [plan for plan in plans if len({id(request) for request, _ in plan}) == len(requests)]
    if len(plans) != 1:
        return
    for request, wr in plans[0]:
        request.wr = request.wr or wr
        if (transfer := carried.get(wr)) is not None:
            found.carry(request, [transfer], "journal")


def _plan(requests: list[NcclRequest], posted: list[WorkRequest]) -> list[tuple[NcclRequest, WorkRequest]]:
    """What is posted after NCCL told of it, and before it tells of the next, is what it told of.

    NCCL may tell of several before it posts them together, and adds a WRITE with immediate at the end.
    """
    # Both journals are of one process: the clock that nobody sets puts them in order, if both have it.
    has_mono = all(event.mono_ns is not None for event in (requests[0].event, posted[0].event))
    told_at = [_time(request.event, has_mono) for request in requests]
    posted_at = [_time(wr.event, has_mono) for wr in posted]
    plan: list[tuple[NcclRequest, WorkRequest]] = []
    at = place = 0
    while at < len(posted) and posted_at[at] < told_at[0]:
        at += 1
    while place < len(requests):
        together = [requests[place]]
        place += 1
        next_wr = posted_at[at] if at < len(posted) else None
        while place < len(requests) and (next_wr is None or told_at[place] <= next_wr):
            together.append(requests[place])
            place += 1
        until = told_at[place] if place < len(requests) else None
        own: list[WorkRequest] = []
        while at < len(posted) and (until is None or posted_at[at] < until):
            own.append(posted[at])
            at += 1
        plan += _shared(together, own)
    return plan


def _time(event: JournalEvent, has_mono: bool) -> int:
    return event.mono_ns if has_mono and event.mono_ns is not None else event.time_ns


def _shared(requests: list[NcclRequest], posted: list[WorkRequest]) -> list[tuple[NcclRequest, WorkRequest]]:
    """Which of the work requests posted together is whose, by length and order."""
    plan: list[tuple[NcclRequest, WorkRequest]] = []
    waiting = 0
    for request in requests:
        for place in range(waiting, len(posted)):
            wr = posted[place]
            if wr.length == request.length and wr.operation == "WRITE":
                plan.append((request, wr))
                waiting = place + 1
                break
        else:
            return plan  # what follows cannot be told apart
    last = posted[waiting] if waiting < len(posted) else None
    if last is not None and _tells_the_end(last.opcode == "RDMA_WRITE_WITH_IMM", last.length):
        plan.append((requests[-1], last))
    return plan


def _tells_the_end(immediate: bool, length: int) -> bool:
    """Whether a WRITE has no data of a collective: only NCCL's immediate, with the sizes of several."""
    return immediate and (length == 0 or length in _SIZES)


def _transfers(
    addresses: frozenset[str] | None,
    requests: list[NcclRequest],
    ends: Iterable[tuple[Connection, int]],
    sent: Mapping[tuple[int, int], Sequence[Transfer]],
) -> list[Transfer]:
    """The transfers of the one QP with this number that has an address of this host; none if several do.

    Args:
        ends: the connections with such a QP, and its side.
    """
    first, last = requests[0].event.time_ns, requests[-1].event.time_ns
    place = None
    for connection, side in ends:
        if addresses is None or connection.ips[side] not in addresses:
            continue
        begun, ended = connection.first_ns or 0, connection.last_ns or 0
        if max(begun - last, first - ended) <= _APART_NS:
            if place is not None:
                return []
            place = connection.id, side
    if place is None:
        return []
    return sorted(sent.get(place, ()), key=lambda t: (t.first_psn, t.id))


def _by_order(found: Collectives, requests: list[NcclRequest], transfers: list[Transfer]) -> None:
    """All transfers of the QP are those that NCCL told of, in their order, or none is taken."""
    plan: list[tuple[NcclRequest, Transfer]] = []
    place = 0
    for transfer in transfers:
        told = requests[place] if place < len(requests) else None
        whole = transfer.started and transfer.ended
        if told is not None and whole and transfer.operation == "WRITE" and transfer.bytes == told.length:
            plan.append((told, transfer))
            place += 1
        elif (
            plan and transfer.operation == "WRITE" and _tells_the_end(transfer.with_immediate, transfer.bytes)
        ):
            plan.append((plan[-1][0], transfer))
        else:
            return
    if place < len(requests):
        return
    for request, transfer in plan:
        found.carry(request, [transfer], "order")
