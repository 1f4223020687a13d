"""The correlation: what a journal adds to the connections and transfers of a capture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rocekit.correlate.clocks import Clock, SeenTimes, bound_clocks
from rocekit.correlate.cm_events import PlacedEvent, place_cm_events
from rocekit.correlate.collectives import Collectives, match_collectives, read_collectives
from rocekit.correlate.matching import SEVERAL_PLACES, match_sends
from rocekit.correlate.places import datagrams_of, find_place, named_alike, places_by_qpn
from rocekit.correlate.receives import match_receives
from rocekit.correlate.unmatched import why_nothing
from rocekit.journal.work_requests import JournalQp, Programs, WorkRequest, read_programs
from rocekit.wire.words import plural

if TYPE_CHECKING:
    from rocekit.journal import Journal
    from rocekit.track.cm_exchanges import Exchange
    from rocekit.track.connections import Connection
    from rocekit.track.transfers import Transfer


SHOWN_GAPS: Final = 8
"""Queues of which it is said what the journal lacks, those with the most first."""


@dataclass(slots=True)
class Correlation:
    """What the journal adds to a capture.

    Attributes:
        bound: the connection and side of each QP of the journal, by the QP's ``id()``.
        clocks: by host.
        cm_events: the programs' CM events, each with the message that caused it.
        carried: the transfer of each matched work request.
        journal: the journal that all this is from.
        collectives: what NCCL's events tell; None without any.
        nothing_because: why nothing of the journal is in the capture; None if something is.
    """

    programs: Programs
    bound: dict[int, tuple[Connection, int]] = field(default_factory=dict)
    clocks: dict[str, Clock] = field(default_factory=dict)
    cm_events: list[PlacedEvent] = field(default_factory=list)
    carried: dict[WorkRequest, Transfer] = field(default_factory=dict, repr=False)
    journal: Journal | None = field(default=None, repr=False)
    nothing_because: str | None = None
    collectives: Collectives | None = None
    _clock_windows: dict[str | None, tuple[str, int, int]] | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        return f"<Correlation: work_requests={len(self.work_requests)} unmatched={len(self.unmatched)}>"

    @property
    def work_requests(self) -> list[WorkRequest]:
        return self.programs.work_requests

    @property
    def unmatched(self) -> list[WorkRequest]:
        """WRs without a transfer: never sent, not in the capture, or refused when posted."""
        return [wr for wr in self.work_requests if wr not in self.carried and not wr.local]

    @property
    def lacking(self) -> list[str]:
        """What the journal lacks, in words."""
        gaps = self.programs.gaps
        more = len(gaps) - SHOWN_GAPS
        filters = {(host, how): None for (host, _), how in self.programs.filters.items()}
        words = [f"the journal of {host} is filtered: {how}" for host, how in filters]
        words += map(str, [*self.programs.files_missing, *self.programs.unfinished, *gaps[:SHOWN_GAPS]])
        return [*words, f"… and records of {plural(more, 'more queue')}"] if more > 0 else words

    @property
    def is_empty(self) -> bool:
        """Whether the journal has no event."""
        return self.journal is not None and not self.journal.events

    def clock_windows(self) -> dict[str | None, tuple[str, int, int]]:
        """By the address of a QP with packets: its host, and the bounds of how far its clock is ahead.

        Asked for each pair of hosts, and found once.
        """
        if self._clock_windows is None:
            self._clock_windows = {}
            for qp in self.programs.qps:
                place, clock = self.place(qp), self.clocks.get(qp.host)
                if place is None or clock is None or clock.low_ns is None or clock.high_ns is None:
                    continue
                self._clock_windows[place[0].ips[place[1]]] = qp.host, clock.low_ns, clock.high_ns
        return self._clock_windows

    def transfer_of(self, wr: WorkRequest) -> Transfer | None:
        """The transfer that a work request became."""
        return self.carried.get(wr)

    def place(self, qp: JournalQp) -> tuple[Connection, int] | None:
        """The connection and side of a QP."""
        return self.bound.get(id(qp))

    def to_dict(self, *, several: bool = False) -> dict[str, Any]:
        """For JSON: the number of matched WRs, the unmatched WRs, the clocks, and the CM events."""
        requests = self.work_requests
        return {
            "work_requests": len(requests),
            "matched": sum(wr in self.carried for wr in requests),
            "clocks": [clock.to_dict() for clock in self.clocks.values()],
            "unmatched": [
                {
                    "qp": {"device": wr.qp.device, "qpn": wr.qp.qpn},
                    "wr": wr.to_dict(),
                    "wc": _wc_dict(wr),
                    "because": wr.unmatched_because,
                }
                for wr in self.unmatched
            ],
            "cm_events": [event.to_dict(several=several) for event in self.cm_events],
            "files_missing": [str(missing) for missing in self.programs.files_missing],
            "unfinished": [recording.to_dict() for recording in self.programs.unfinished],
            "filters": sorted(set(self.programs.filters.values())),
            "lost": [gap.to_dict() for gap in self.programs.gaps if not gap.filtered],
            "filtered": [gap.to_dict() for gap in self.programs.gaps if gap.filtered],
            "nothing_because": self.nothing_because,
            "empty_files": [] if self.journal is None else list(self.journal.empty),
            "nccl": None if self.collectives is None else self.collectives.to_dict(),
        }


def _wc_dict(wr: WorkRequest) -> dict[str, Any] | None:
    return None if wr.wc is None else wr.wc.to_dict()


def _correct_times(qps: Sequence[JournalQp], clocks: dict[str, Clock]) -> None:
    """Let work requests and completions know their times by the capture's clock, where it is known."""
    for qp in qps:
        clock = clocks.get(qp.host)
        if clock is None:
            continue
        for wr in (*qp.sends, *qp.receives):
            wr.clock_offset_ns = clock.offset_ns
            if wr.wc is not None:
                wr.wc.clock_offset_ns = clock.offset_ns
        for wc in (*qp.receive_completions, *qp.stray_completions):
            wc.clock_offset_ns = clock.offset_ns


def _order(transfer: Transfer) -> tuple[int, int]:
    return transfer.first_psn, transfer.id


def correlate(
    journal: Journal,
    connections: Sequence[Connection],
    transfers: Sequence[Transfer],
    exchanges: Sequence[Exchange] = (),
    seen: SeenTimes | None = None,
) -> Correlation:
    """Match a journal's work requests and completions to transfers.

    Args:
        seen: of several captures.

    Sets ``wr``, ``wc``, ``recv_wr`` and ``recv_wc`` of the transfers, and ``matched_by`` and ``first_psn`` of
    the work requests.
    """
    correlation = Correlation(read_programs(journal), journal=journal)
    qps = correlation.programs.qps
    redacted = any(event.get("redacted") for event in journal.of("recording"))
    sent: dict[tuple[int, int], list[Transfer]] = {}
    for transfer in transfers:
        sent.setdefault((transfer.connection.id, transfer.side), []).append(transfer)
    places = places_by_qpn(connections)
    in_order: dict[tuple[int, int], list[Transfer]] = {}  # many QPs may be of one place
    for qp in qps:
        place = find_place(qp, places)
        if place is None:
            if len(named_alike(qp, places)) > 1:
                for wr in qp.sends:
                    wr.unmatched_because = SEVERAL_PLACES
            continue
        correlation.bound[id(qp)] = place
        if qp.transport == "UD":
            candidates = sorted(datagrams_of(qp, place, places, sent), key=_order)
        else:
            key = place[0].id, place[1]
            if key not in in_order:
                in_order[key] = sorted(sent.get(key, ()), key=_order)
            candidates = in_order[key]
        correlation.carried.update(match_sends(qp, place, candidates, redacted=redacted))
    for qp in qps:
        place = correlation.place(qp)
        if place is not None:
            match_receives(qp, place, sent.get((place[0].id, 1 - place[1]), []))
    matches = [(wr, correlation.carried[wr]) for wr in correlation.work_requests if wr in correlation.carried]
    correlation.clocks = bound_clocks(matches, transfers, seen)
    _correct_times(qps, correlation.clocks)
    by_qp = {
        (qp.host, qp.device, qp.qpn): place[0] for qp in qps if (place := correlation.place(qp)) is not None
    }
    correlation.cm_events = place_cm_events(correlation.programs.cm_events, exchanges, by_qp)
    collectives = correlation.collectives = read_collectives(journal)
    if collectives is not None:
        hosts: dict[str, frozenset[str]] = {}
        for event in journal.of("device_opened"):
            hosts[event.host] = hosts.get(event.host, frozenset()) | set(event.get("gids", ()))
        match_collectives(collectives, qps, correlation.carried, hosts, connections, sent)
        if any(request.transfers for request in collectives.requests):
            return correlation
    if not correlation.bound and not any(event.record for event in correlation.cm_events):
        correlation.nothing_because = why_nothing(journal, qps, connections, exchanges)
    return correlation
