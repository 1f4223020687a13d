"""Transfers beside the journal: which work request each transfer carries out, and where its time went.

Where a QP's starting PSN is known (from the journal's ``sq_psn``, the CM exchange, or the capture of its
first packet), every work request's PSNs follow by arithmetic, and the match is certain: ``matched_by =
"psn"``. Otherwise operations and lengths in order must agree: ``matched_by = "order"``.

Clocks differ between hosts. A WR is posted before its first packet and its WC polled after its last
acknowledgement, which bounds the offset between a host's clock and the capture's from both sides; it is
assumed to be zero where that is possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rocekit import wire
from rocekit.correlate.cm_events import PlacedEvent, place_cm_events
from rocekit.correlate.pairs import gid_ip, may_be
from rocekit.journal.work_requests import JournalQp, Programs, WorkRequest, read_programs
from rocekit.wire import psn

if TYPE_CHECKING:
    from rocekit.journal import Journal
    from rocekit.track.cm_exchanges import Exchange
    from rocekit.track.connections import Connection
    from rocekit.track.transfers import Transfer

#: Work requests that must agree in a row where capture and journal overlap only in part.
LEAST_OVERLAP: Final = 4
#: Operations of one PSN whose WR's length is no payload (a FLUSH's is the range to flush, A19.4).
_ONE_PSN: Final = wire.ATOMICS | {"FLUSH"}
#: Neighbouring alignments tried when order alone must match.
_SEARCH: Final = 256


@dataclass(frozen=True, slots=True)
class Clock:
    """A host's clock against the capture's: host time − capture time lies in ``low_ns`` … ``high_ns``.

    Attributes:
        offset_ns: what is assumed: zero where the bounds allow it, else their middle.
        low_ns, high_ns: None where nothing bounds that side.
    """

    host: str
    offset_ns: int
    low_ns: int | None
    high_ns: int | None

    def to_dict(self) -> dict[str, Any]:
        return {
            "host": self.host,
            "offset_ns": self.offset_ns,
            "low_ns": self.low_ns,
            "high_ns": self.high_ns,
        }


@dataclass(slots=True)
class Correlation:
    """What the journal adds to a capture.

    Attributes:
        bound: the connection and side that each QP of the journal is.
        clocks: by host.
        cm_events: the programs' CM events, beside the messages that caused them.
        journal: what all this comes from.
    """

    programs: Programs
    bound: dict[int, tuple[Connection, int]] = field(default_factory=dict)
    clocks: dict[str, Clock] = field(default_factory=dict)
    cm_events: list[PlacedEvent] = field(default_factory=list)
    journal: Journal | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        return f"<Correlation: work_requests={len(self.work_requests)} unmatched={len(self.unmatched)}>"

    @property
    def work_requests(self) -> list[WorkRequest]:
        return self.programs.work_requests

    @property
    def unmatched(self) -> list[WorkRequest]:
        """WRs without a transfer: never sent, not captured, or refused when posted."""
        return [wr for wr in self.work_requests if wr.transfer is None and not wr.local]

    def place(self, qp: JournalQp) -> tuple[Connection, int] | None:
        """The connection and side that a QP is."""
        return self.bound.get(id(qp))

    def to_dict(self, *, several: bool = False) -> dict[str, Any]:
        """For JSON: matched and unmatched WRs, the clocks, and the CM events."""
        requests = self.work_requests
        return {
            "work_requests": len(requests),
            "matched": sum(wr.transfer is not None for wr in requests),
            "clocks": [clock.to_dict() for clock in self.clocks.values()],
            "unmatched": [
                {"qp": {"device": wr.qp.device, "qpn": wr.qp.qpn}, "wr": wr.to_dict(), "wc": _wc_dict(wr)}
                for wr in self.unmatched
            ],
            "cm_events": [event.to_dict(several=several) for event in self.cm_events],
        }


def _wc_dict(wr: WorkRequest) -> dict[str, Any] | None:
    return None if wr.wc is None else wr.wc.to_dict()


def correlate(
    journal: Journal,
    connections: Sequence[Connection],
    transfers: Sequence[Transfer],
    exchanges: Sequence[Exchange] = (),
) -> Correlation:
    """Match a journal's work requests and completions to transfers; sets ``wr`` and ``wc`` of those."""
    correlation = Correlation(read_programs(journal), journal=journal)
    sent: dict[tuple[int, int], list[Transfer]] = {}
    for transfer in transfers:
        sent.setdefault((transfer.connection.id, transfer.side), []).append(transfer)
    for qp in correlation.programs.qps:
        place = _bind(qp, connections)
        if place is None:
            continue
        correlation.bound[id(qp)] = place
        if qp.transport == "UD":
            candidates = _datagrams_of(qp, place, connections, sent)
        else:
            candidates = sent.get((place[0].id, place[1]), [])
        _match(qp, place, sorted(candidates, key=lambda t: (t.first_psn, t.id)))
    for qp in correlation.programs.qps:
        place = correlation.place(qp)
        if place is not None:
            _match_receives(qp, sent.get((place[0].id, 1 - place[1]), []))
    correlation.clocks = _clocks(correlation, transfers)
    bound = {
        (qp.host, qp.device, qp.qpn): place[0]
        for qp in correlation.programs.qps
        if (place := correlation.place(qp)) is not None
    }
    correlation.cm_events = place_cm_events(correlation.programs.cm_events, exchanges, bound)
    return correlation


def _datagrams_of(
    qp: JournalQp,
    place: tuple[Connection, int],
    connections: Sequence[Connection],
    sent: dict[tuple[int, int], list[Transfer]],
) -> list[Transfer]:
    """Everything a UD QP sent, to whomever: its PSNs run on over all its peers."""
    ip = place[0].ips[place[1]]
    out = []
    for connection in connections:
        for side in (0, 1):
            if connection.transport == "UD" and (connection.qpns[side], connection.ips[side]) == (qp.qpn, ip):
                out += sent.get((connection.id, side), [])
    return out


def _bind(qp: JournalQp, connections: Sequence[Connection]) -> tuple[Connection, int] | None:
    """The connection and side whose addresses and QPNs fit; of several, the one alive at the time."""
    a = qp.attributes
    local, remote, dest = a.get("local_ip"), a.get("dest_ip") or gid_ip(a.get("dest_gid")), a.get("dest_qpn")
    found = []
    for connection in connections:
        if qp.transport is not None and connection.transport != qp.transport:
            continue
        for side in (0, 1):
            if connection.qpns[side] != qp.qpn or not may_be(connection.qpns[1 - side], dest):
                continue
            if may_be(connection.ips[side], local) and may_be(connection.ips[1 - side], remote):
                found.append((connection, side))
    if local is None and qp.addresses:
        # A QP that only ever received datagrams has told no address; its device has.
        found = [place for place in found if place[0].ips[place[1]] in (None, *qp.addresses)]
    if len(found) > 1 and qp.transport != "UD":
        times = [wr.posted_ns for wr in qp.sends] + [wc.polled_ns for wc in qp.receive_completions]
        if times:
            found.sort(key=lambda place: _distance(place[0], min(times), max(times)))
        elif local is None:
            return None
    return found[0] if found else None


def _distance(connection: Connection, first: int, last: int) -> int:
    if connection.first_ns is None or connection.last_ns is None:
        return 1 << 62
    return max(connection.first_ns - last, first - connection.last_ns, 0)


# ---------------------------------------------------------------------- sends


def _match(qp: JournalQp, place: tuple[Connection, int], transfers: list[Transfer]) -> None:
    wrs = [wr for wr in qp.sends if not wr.refused and not wr.local]
    if qp.lossy_ns is not None:
        # Neither arithmetic nor order holds over a gap in the journal; what the recorder counted does.
        wrs = [wr for wr in wrs if wr.told_psn is not None or wr.posted_ns < qp.lossy_ns]
    if not wrs or not transfers:
        return
    if not _match_by_psn(qp, place, wrs, transfers) and qp.lossy_ns is None:
        _match_by_order(wrs, transfers)


def _agree(wr: WorkRequest, transfer: Transfer) -> bool:
    """Whether a WR can have become this transfer."""
    if wr.operation != transfer.operation:
        return False
    if wr.operation in _ONE_PSN or transfer.status == "incomplete" or not transfer.ended:
        return True
    return wr.length == transfer.bytes


def _match_by_psn(
    qp: JournalQp, place: tuple[Connection, int], wrs: list[WorkRequest], transfers: list[Transfer]
) -> bool:
    """Give every WR its PSNs, and the transfer that has them. False when they do not fit."""
    connection, side = place
    start = qp.attributes.get("sq_psn")
    if start is None:
        start = connection.negotiated[side].starting_psn
    mtu = qp.attributes.get("path_mtu") or connection.path_mtu
    long = qp.transport != "UD" and any(wr.length > min(wire.PATH_MTU_CODES) for wr in wrs)
    if start is None or (mtu is None and long):
        return False
    mtu = mtu or max(wire.PATH_MTU_CODES)
    at = psn.unwrap(int(start), transfers[0].first_psn)
    if at > transfers[0].first_psn:  # the capture began before this QP's life, or the PSN has wrapped since
        at -= psn.MODULO if at - transfers[0].first_psn > psn.HALF // 2 else 0
    by_psn = {transfer.first_psn: transfer for transfer in transfers}
    plan = []
    agreed = wrong = 0
    for wr in wrs:
        if wr.told_psn is not None:
            # A recorder that was there from the start counts on where the journal has a gap.
            at = psn.unwrap(wr.told_psn, at)
        transfer = by_psn.get(at)
        if transfer is not None:
            if _agree(wr, transfer):
                agreed += 1
            else:
                wrong += 1
                transfer = None
        plan.append((wr, at, transfer))
        at += 1 if wr.operation in _ONE_PSN or qp.transport == "UD" else wire.psns_of(wr.length, mtu)
    if not agreed or wrong > agreed // 16:
        return False
    for wr, first, transfer in plan:
        wr.first_psn = first
        if transfer is not None:
            _join(wr, transfer, "psn")
    return True


def _match_by_order(wrs: list[WorkRequest], transfers: list[Transfer]) -> None:
    """Slide the two sequences over each other until operations and lengths agree wherever they overlap.

    An overlap that leaves out some of the shorter sequence (the capture and the journal began and ended at
    different times) counts only where it is long enough not to be an accident.
    """
    shortest = min(len(wrs), len(transfers))
    best: tuple[int, int, int] | None = None
    chosen = range(0)
    shift = 0
    for candidate in _shifts(wrs, transfers):
        overlap = range(max(0, -candidate), min(len(transfers), len(wrs) - candidate))
        if len(overlap) < shortest and len(overlap) < max(LEAST_OVERLAP, shortest // 2):
            continue
        if not all(_agree(wrs[k + candidate], transfers[k]) for k in overlap):
            continue
        late = sum(wrs[k + candidate].posted_ns > transfers[k].first_ns for k in overlap)
        score = (-late, len(overlap), -abs(candidate))
        if best is None or score > best:
            best, chosen, shift = score, overlap, candidate
    for k in chosen:
        _join(wrs[k + shift], transfers[k], "order")


def _shifts(wrs: list[WorkRequest], transfers: list[Transfer]) -> list[int]:
    lengths = len(wrs) - len(transfers)
    near = sorted({0, lengths, *range(-_SEARCH, _SEARCH + 1)}, key=abs)
    return [shift for shift in near if -len(transfers) < shift < len(wrs)]


def _join(wr: WorkRequest, transfer: Transfer, how: str) -> None:
    wr.transfer = transfer
    wr.matched_by = how
    transfer.wr = wr
    transfer.wc = wr.wc


# ---------------------------------------------------------------------- receives


def _match_receives(qp: JournalQp, arriving: list[Transfer]) -> None:
    """SENDs, and WRITEs with immediate, each take one RECV of the responder, in order (10.8.3.1)."""
    consuming = sorted(
        (
            t
            for t in arriving
            if t.operation == "SEND" or (t.operation == "WRITE" and t.immediate is not None)
        ),
        key=lambda t: (t.first_psn, t.id),
    )
    completions = [wc for wc in qp.receive_completions if wc.status == "SUCCESS"]
    if not consuming or not completions or qp.lossy_ns is not None:
        return
    header = 40 if qp.transport == "UD" else 0  # 11.4.1.2: UD receives put the GRH's room in front
    for shift in sorted(range(-_SEARCH, _SEARCH + 1), key=abs):
        pairs = [
            (t, completions[k + shift]) for k, t in enumerate(consuming) if 0 <= k + shift < len(completions)
        ]
        if pairs and all(_received(t, wc.event.get("byte_len"), header) for t, wc in pairs):
            receives = {id(wr.wc): wr for wr in qp.receives if wr.wc is not None}
            for transfer, wc in pairs:
                transfer.recv_wc = wc
                transfer.recv_wr = receives.get(id(wc))
            return


def _received(transfer: Transfer, byte_len: int | None, header: int) -> bool:
    return byte_len is None or not transfer.ended or transfer.bytes + header == byte_len


# ---------------------------------------------------------------------- clocks and time


def _clocks(correlation: Correlation, received: Sequence[Transfer]) -> dict[str, Clock]:
    low: dict[str, int] = {}
    high: dict[str, int] = {}
    hosts: dict[str, None] = {}
    for wr in correlation.work_requests:
        transfer = wr.transfer
        if transfer is None:
            continue
        host = wr.qp.host
        hosts[host] = None
        bound = wr.posted_ns - transfer.first_ns
        low[host] = max(low.get(host, bound), bound)
        if wr.wc is not None and transfer.acked_ns is not None and wr.wc.status == "SUCCESS":
            bound = wr.wc.polled_ns - transfer.acked_ns
            high[host] = min(high.get(host, bound), bound)
    for transfer in received:
        # A receive completes behind its message's last packet; of what came again, it is not known which.
        if transfer.recv_wc is not None and transfer.recv_wr is not None and not transfer.events:
            host = transfer.recv_wr.qp.host
            hosts[host] = None
            bound = transfer.recv_wc.polled_ns - transfer.request_end_ns
            high[host] = min(high.get(host, bound), bound)
    return {host: _clock(host, low.get(host), high.get(host)) for host in hosts}


def _clock(host: str, low: int | None, high: int | None) -> Clock:
    if (low is None or low <= 0) and (high is None or high >= 0):
        offset = 0
    elif low is not None and high is not None:
        offset = (low + high) // 2
    else:
        offset = low if low is not None else (high or 0)
    return Clock(host, offset, low, high)


@dataclass(frozen=True, slots=True)
class Timing:
    """A transfer's time, split up; ns, None where one end of a span is not known.

    Attributes:
        software_ns: WR posted to first packet.
        sending_ns: first to last packet of the message.
        acknowledging_ns: last packet to last acknowledgement.
        wire_ns: first packet to last acknowledgement (to the last packet where nobody acknowledges).
        recovery_ns: the part of ``wire_ns`` that losses, refusals and their repeats took.
        completion_ns: last acknowledgement to WC polled.
        total_ns: WR posted to WC polled.
    """

    software_ns: int | None
    sending_ns: int
    acknowledging_ns: int | None
    wire_ns: int
    recovery_ns: int
    completion_ns: int | None
    total_ns: int | None

    def to_dict(self) -> dict[str, int | None]:
        return {name: getattr(self, name) for name in self.__slots__}


def timing(transfer: Transfer, clocks: dict[str, Clock] | None = None) -> Timing:
    """Where a transfer's time went, host times moved to the capture's clock."""
    wr: WorkRequest | None = transfer.wr
    wc = transfer.wc
    offset = 0
    if wr is not None and clocks:
        clock = clocks.get(wr.qp.host)
        offset = clock.offset_ns if clock is not None else 0
    posted = None if wr is None else wr.posted_ns - offset
    polled = None if wc is None else wc.polled_ns - offset
    end = transfer.acked_ns if transfer.acked_ns is not None else transfer.last_ns
    return Timing(
        software_ns=None if posted is None else transfer.first_ns - posted,
        sending_ns=max(0, transfer.last_ns - transfer.first_ns),
        acknowledging_ns=None if transfer.acked_ns is None else max(0, transfer.acked_ns - transfer.last_ns),
        wire_ns=end - transfer.first_ns,
        recovery_ns=recovery_ns(transfer),
        completion_ns=None if polled is None else polled - end,
        total_ns=None if posted is None or polled is None else polled - posted,
    )


def recovery_ns(transfer: Transfer) -> int:
    """Time that repeats took: each from its cause (a refusal, a timeout's silence) to its last packet.

    Overlapping recoveries are counted once.
    """
    spans = sorted(
        (event.time_ns - event.waited_ns, event.last_ns)
        for event in transfer.events
        if event.kind == "repeat"
    )
    total, until = 0, 0
    for begin, end in spans:
        begin = max(begin, until, transfer.first_ns)
        if end > begin:
            total += end - begin
            until = end
    return total
