"""What the rules look at: the results of all earlier stages, and the stories made from them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from rocekit.track.connections import NEITHER_KNOWN, Totals, totals_of
from rocekit.track.transfers import ACKED, EventSurvey, has_events
from rocekit.wire import local_ack_timeout_ns
from rocekit.wire.psn import MASK, diff

if TYPE_CHECKING:
    from rocekit.counters.comparison import CounterComparison
    from rocekit.findings.errors_in_time import ErrorsInTime
    from rocekit.findings.passed_sizes import PassedSizes
    from rocekit.findings.stories.story import Story
    from rocekit.findings.survey import Survey
    from rocekit.flows.observer import Observer
    from rocekit.packets.decoder import Counts
    from rocekit.packets.pauses import Pause
    from rocekit.packets.time_order import TimeOrder
    from rocekit.packets.witnesses import Witnesses
    from rocekit.packets.witnesses.icmp import IcmpError
    from rocekit.packets.witnesses.neighbours import Neighbours, Unanswered
    from rocekit.points.paths import Paths
    from rocekit.points.sightings import Sightings
    from rocekit.track.cm_exchanges import CmRecord, Exchange
    from rocekit.track.connections import Connection
    from rocekit.track.events import Event
    from rocekit.track.transfers import Transfer


#: So many requests show that there was no reply, even where the capture has no replies at all: a host that
#: got one does not ask again.
_ASKED_ENOUGH: Final = 3
#: Ways of pairing in which both ends announce their starting PSN.
_ANNOUNCES_PSNS: Final = frozenset({"cm", "handshake"})


@dataclass(eq=False, repr=False)
class Evidence:
    """All that is known from a capture and its journals.

    Attributes:
        exchanges: CM exchanges.
        counts: what the decoder counted.
        build_stories: makes the stories (``stories.build``), once, when the first rule needs them.
        damage: (file, words) of what could not be read.
        malformed: (frame, code) of malformed packets.
        bad_icrc: frames with wrong ICRCs that belong to no known connection.
        icrc_ignored: whether most ICRCs are wrong, so that the packets were tracked anyway.
        journal: the correlation with the journals; None without a journal.
        several: whether several captures were read.
        observer: what is known from whole columns; without it some rules find nothing.
        cm: all CM messages, also those without a REQ in the capture.
        dropped: packets that the capturing machine reports as dropped.
        pauses: PAUSE and PFC frames.
        witnesses: ICMP errors, ARP and ND; None without packets.
        sightings: which of several captures saw each packet; paths: what happened to it between them.
        counters: what devices counted, compared with the packets.
        orders: by file, how packets were put in order whose times run back.
        limits_met: gets the names of limits that kept rules from looking at everything.
    """

    connections: Sequence[Connection]
    transfers: Sequence[Transfer]
    exchanges: Sequence[Exchange]
    counts: Counts
    build_stories: Callable[[Evidence], list[Story]]
    damage: Sequence[tuple[str, str]] = ()
    malformed: Sequence[tuple[int, int]] = ()
    bad_icrc: Sequence[int] = ()
    icrc_ignored: bool = False
    journal: Any = None
    several: bool = False
    observer: Observer | None = None
    cm: Sequence[CmRecord] = ()
    dropped: int | None = None
    pauses: Sequence[Pause] = ()
    witnesses: Witnesses | None = None
    sightings: Sightings | None = None
    paths: Paths | None = None
    counters: Sequence[CounterComparison] = ()
    orders: Mapping[int, TimeOrder] = field(default_factory=dict)
    limits_met: set[str] = field(default_factory=set)

    @cached_property
    def overtaken(self) -> frozenset[tuple[str, str, int]]:
        """(Sender, receiver, PSN) of requests that a NAK names and that were overtaken in a file's order."""
        return frozenset().union(*(order.refused for order in self.orders.values()))

    @cached_property
    def late_in_files(self) -> frozenset[tuple[str, str, int]]:
        """(Sender, receiver, PSN) of all requests that were overtaken in a file's order, but not by time."""
        return frozenset().union(*(order.overtaken for order in self.orders.values()))

    @cached_property
    def stories(self) -> list[Story]:
        """The stories: each cause that made a requester repeat, once."""
        if not (self.is_eventful or self.journal is not None or self.sightings is not None):
            return []
        return self.build_stories(self)

    def __post_init__(self) -> None:
        if any(connection.retransmitted_packets for connection in self.connections):
            from rocekit.findings.stories.early_answers import count_as_sent_once

            count_as_sent_once(list(self.transfers))

    @cached_property
    def totals(self) -> Totals:
        """What all connections have together."""
        return totals_of(list(self.connections))

    @cached_property
    def is_eventful(self) -> bool:
        """Whether the tracker saw anything out of the ordinary: a hole, a NAK, a repeat."""
        return has_events(list(self.transfers)) or self.totals.strays > 0

    @cached_property
    def agreed(self) -> list[Connection]:
        """The connections of which a CM exchange, a journal or a handshake tells what was agreed on."""
        return [c for c in self.connections if c.negotiated is not NEITHER_KNOWN]

    @cached_property
    def last_ns(self) -> int:
        """The time of the last packet."""
        times = [self.totals.last_ns]
        times += [r.time_ns for e in self.exchanges for r in e.records]
        if self.observer is not None and self.observer.last_ns is not None:
            times.append(self.observer.last_ns)
        return max(times, default=0)

    @cached_property
    def misses_packets(self) -> bool:
        """Whether packets that were on the wire are known to be missing from the capture."""
        return bool(self.dropped) or self.totals.gaps > 0

    @cached_property
    def cm_records(self) -> list[CmRecord]:
        """All CM messages, in the capture's order."""
        return list(self.cm) or sorted(
            (r for e in self.exchanges for r in e.records), key=lambda r: (r.time_ns, r.frame)
        )

    @cached_property
    def transfers_of(self) -> Mapping[tuple[int, int], list[Transfer]]:
        """The transfers by (connection id, requester's side)."""
        from rocekit.findings.transfer_loops import by_requester

        return by_requester(self.transfers)

    @cached_property
    def answered(self) -> frozenset[tuple[int, int]]:
        """The (connection id, requester's side) of which the capture has any response."""
        found = {
            (c.id, side)
            for c in self.connections
            for side, progress in enumerate(c.progress)
            if progress is not None and progress.acked_frame
        }
        from rocekit.findings.transfer_loops import responded

        return frozenset(found | responded(self.transfers))

    @cached_property
    def tagged_priorities(self) -> Mapping[int, set[int]]:
        """By DSCP, the priorities of its VLAN tags."""
        return {} if self.observer is None else self.observer.table.priorities()

    @cached_property
    def ways_between(self) -> Mapping[tuple[str, str], list[tuple[Connection, int]]]:
        """By (source, destination address): the connections, each with the side that is the source."""
        found: dict[tuple[str, str], list[tuple[Connection, int]]] = defaultdict(list)
        for connection in self.connections:
            for side in (0, 1):
                src, dst = connection.ips[side], connection.ips[1 - side]
                if src is not None and dst is not None:
                    found[src, dst].append((connection, side))
        return found

    @cached_property
    def host_pairs(self) -> frozenset[frozenset[str]]:
        """Each two addresses between which the capture has RoCE packets or CM messages."""
        found = set() if self.observer is None else set(self.observer.heard)
        return frozenset(map(frozenset, found | {(r.src, r.dst) for r in self.cm_records}))

    @cached_property
    def icmp_between(self) -> Mapping[frozenset[str], ErrorsInTime]:
        """ICMP errors by the two hosts of the packets that they are about."""
        found: dict[frozenset[str], list[IcmpError]] = defaultdict(list)
        for error in () if self.witnesses is None else self.witnesses.icmp:
            found[frozenset((error.quote.src, error.quote.dst))].append(error)
        if not found:
            return {}
        from rocekit.findings.errors_in_time import ErrorsInTime

        return {hosts: ErrorsInTime(errors) for hosts, errors in found.items()}

    @cached_property
    def unanswered(self) -> Mapping[tuple[str, str], list[Unanswered]]:
        """By host that asked and address: ARP and ND requests for which there was certainly or probably no
        reply.
        """
        found: dict[tuple[str, str], list[Unanswered]] = defaultdict(list)
        neighbours = self._neighbours
        if neighbours is None:
            return found
        files: dict[tuple[str, str], set[int]] = defaultdict(set)
        for file, asker, target in neighbours.replies:
            files[asker, target].add(file)
        for streak in neighbours.unanswered:
            key = (streak.asker, streak.target)
            # Where another capture has replies, it is open to which requests.
            if not files[key] - {streak.file} and (
                streak.requests >= _ASKED_ENOUGH or self.would_have_reply(*key)
            ):
                found[key].append(streak)
        return found

    @property
    def _neighbours(self) -> Neighbours | None:
        return None if self.witnesses is None else self.witnesses.neighbours

    def would_have_reply(self, asker: str, target: str) -> bool:
        """Whether the capture has packets to a host, so that it would have the reply to its request too."""
        heard = {} if self.observer is None else self.observer.heard
        answered = set() if self._neighbours is None else self._neighbours.answered
        return (target, asker) in heard or asker in answered

    def stories_of(self, rule: str) -> list[list[Story]]:
        """The stories of a rule, one list for each direction of a connection."""
        return list(self._stories_of.get(rule, {}).values())

    @cached_property
    def _stories_of(self) -> Mapping[str, Mapping[tuple[int, int], list[Story]]]:
        if not self.stories:
            return {}
        from rocekit.findings.stories.story import by_rule

        return by_rule(self.stories)

    @cached_property
    def met(self) -> EventSurvey:
        """The transfers with events that few have."""
        from rocekit.findings.transfer_loops import survey_events

        return survey_events(self.transfers)

    @property
    def fatal_naks(self) -> list[tuple[Transfer, Event]]:
        """The NAKs that are not "PSN sequence error", with their transfers."""
        return self.met.fatal

    @cached_property
    def stray_naks(self) -> list[tuple[Connection, Event]]:
        """The NAKs that no transfer holds."""
        return [(c, event) for c in self.connections for event in c.stray_events if event.kind == "nak"]

    @cached_property
    def fatal_naks_of(self) -> Mapping[tuple[int, int], list[tuple[Transfer, Event]]]:
        """The same by (connection id, requester's side)."""
        found: dict[tuple[int, int], list[tuple[Transfer, Event]]] = defaultdict(list)
        for transfer, nak in self.fatal_naks:
            found[transfer.connection.id, transfer.side].append((transfer, nak))
        return found

    @cached_property
    def survey(self) -> Survey:
        """Which connections have unusual packets."""
        from rocekit.findings.survey import Survey

        return Survey(self.connections, self.observer)

    def among(self, *kinds: Iterable[Connection]) -> list[Connection]:
        """The connections that are in any of ``kinds``, in order."""
        chosen = {id(connection) for kind in kinds for connection in kind}
        return [c for c in self.connections if id(c) in chosen] if chosen else []

    def attribute(self, connection: Connection, side: int, name: str) -> Any:
        """An attribute of a QP from its journal (``rq_psn``, ``path_mtu``, …); None without journal."""
        qp = self._journal_qps.get((connection.id, side))
        return None if qp is None else qp.attributes.get(name)

    @cached_property
    def _journal_qps(self) -> Mapping[tuple[int, int], Any]:
        """The journals' QPs by (connection id, side)."""
        found: dict[tuple[int, int], Any] = {}
        for qp in self.journal.programs.qps if self.journal is not None else ():
            place = self.journal.place(qp)
            if place is not None:
                found[place[0].id, place[1]] = qp
        return found

    def posted_ns(self, transfer: Transfer) -> int | None:
        """When a transfer's work request was posted, in the capture's time; None without journal."""
        if self.journal is None or transfer.wr is None:
            return None
        clock = self.journal.clocks.get(transfer.wr.qp.host)
        return int(transfer.wr.posted_ns) - (0 if clock is None else int(clock.offset_ns))

    def received_ns(self, transfer: Transfer) -> int | None:
        """When the program polled the completion of a transfer's receive, in the capture's time; None without
        journal.
        """
        if self.journal is None or transfer.recv_wc is None or transfer.recv_wr is None:
            return None
        clock = self.journal.clocks.get(transfer.recv_wr.qp.host)
        if clock is None:
            return None
        offset = clock.high_ns if clock.low_ns is None and clock.high_ns is not None else clock.offset_ns
        return int(transfer.recv_wc.polled_ns) - int(offset)

    @cached_property
    def _exchange_of(self) -> Mapping[int, Exchange]:
        return {e.connection.id: e for e in self.exchanges if e.connection is not None}

    def timeout_ns(self, connection: Connection, side: int) -> int | None:
        """The local ACK timeout of a QP from its journal, else from the CM; None if neither has it."""
        code = self.attribute(connection, side, "timeout")
        if code is None:
            code = connection.negotiated[side].ack_timeout
        return None if code is None else local_ack_timeout_ns(int(code))

    def knows_start(self, connection: Connection) -> bool:
        """Whether ``expected_psn`` may have an answer for a connection."""
        return self.journal is not None or connection.paired_by in _ANNOUNCES_PSNS

    def expected_psn(self, connection: Connection, side: int) -> int | None:
        """The PSN with which ``side`` must start: its peer's ``rq_psn``, or the one in REQ and REP."""
        expected = self.attribute(connection, 1 - side, "rq_psn")
        if expected is None and connection.paired_by in _ANNOUNCES_PSNS:
            expected = connection.negotiated[side].starting_psn
        return None if expected is None else int(expected)

    def first_psn(self, connection: Connection, side: int) -> int | None:
        """The first PSN of ``side``; None if the capture does not have the start."""
        if connection.first_ns is None:
            return None  # no packets
        view = None if self.observer is None else self.observer.flow(connection, side)
        if view is None or view.first_ns < connection.first_ns:
            return None  # or those of an earlier QP with this QPN
        return view.first_psn

    def starts_wrong(self, connection: Connection, side: int) -> bool:
        """Whether ``side`` started with another PSN than its peer expects, and no request was accepted."""
        key = connection.id, side
        found = self._wrong_starts.get(key)
        if found is None:
            found = self._wrong_starts[key] = self._starts_wrong(connection, side)
        return found

    @cached_property
    def _wrong_starts(self) -> dict[tuple[int, int], bool]:
        """What ``starts_wrong`` found: it is asked for each story."""
        return {}

    def _starts_wrong(self, connection: Connection, side: int) -> bool:
        expected, first = self.expected_psn(connection, side), self.first_psn(connection, side)
        if expected is None or first is None or first == expected & MASK or connection.transport == "UC":
            return False  # a UC responder goes on with any message's first packet (9.8.2.2)
        requests = connection.progress[side]
        if (
            requests is not None
            and requests.acked & MASK == expected & MASK
            and requests.acked > requests.high
        ):
            return True  # the peer takes its requests for duplicates, and acknowledges the PSN before them
        if requests is not None and requests.acked > max(requests.begin, requests.high - 1):
            return False
        transfers = self.transfers_of.get((connection.id, side), ())
        if any(t.status == ACKED or t.first_psn & MASK == expected & MASK for t in transfers):
            return False
        if diff(first & MASK, expected & MASK) < 0:
            return True
        # Those before may be missing in the capture only, unless the peer says what it expects.
        said = [event for t in transfers for event in t.events]
        return any(
            e.kind == "nak" and e.psn & MASK == expected & MASK for e in (*said, *connection.stray_events)
        )

    def handshake_frames(self, connection: Connection) -> list[int]:
        """The frames of the REQ and REP of a connection."""
        exchange = self._exchange_of.get(connection.id)
        if exchange is None:
            return []
        return [
            r.frame
            for r in exchange.records
            if r.message in ("REQ", "REP") and not (r.repeated or r.duplicated)
        ]

    def dreq_frames(self, connection: Connection) -> list[int]:
        """The frames of the DREQs that closed a connection."""
        exchange = self._exchange_of.get(connection.id)
        return [] if exchange is None else [r.frame for r in exchange.records if r.message == "DREQ"]

    def closed_ns(self, connection: Connection) -> int | None:
        """When the first DREQ of a connection was seen."""
        exchange = self._exchange_of.get(connection.id)
        times = [r.time_ns for r in exchange.records if r.message == "DREQ"] if exchange is not None else []
        return min(times, default=None)

    def vanished_size(self, story: Story) -> tuple[int, int]:
        """(payload that gets no answer, largest payload that gets one); (0, 0) if size is not the cause.

        The peer's host must be alive; what else is asked, ``PassedSizes.vanished`` says.
        """
        from rocekit.findings.passed_sizes import may_vanish

        side, transfer = story.side, story.transfer
        src, dst = story.connection.ips[side], story.connection.ips[1 - side]
        if transfer is None or src is None or dst is None or not may_vanish(transfer):
            return 0, 0
        alive = self.observer is not None and self.observer.heard.get((dst, src), 0) > story.time_ns
        return self._passed.vanished(transfer, src, dst, side, story.transmissions) if alive else (0, 0)

    @cached_property
    def _passed(self) -> PassedSizes:
        from rocekit.findings.passed_sizes import PassedSizes

        return PassedSizes(self.transfers_of, self.connections_by_id)

    @cached_property
    def connections_by_id(self) -> Mapping[int, Connection]:
        return {c.id: c for c in self.connections}

    @cached_property
    def _regions(self) -> Mapping[tuple[str, Any], tuple[list[Any], dict[Any, Mapping[str, Any]]]]:
        """By (host, device): the rkeys of registered memory, and by rkey the fields of the last."""
        found: dict[tuple[str, Any], tuple[list[Any], dict[Any, Mapping[str, Any]]]] = {}
        for r in self.journal.programs.regions if self.journal is not None else ():
            rkeys, fields = found.setdefault((r.host, r.fields.get("device")), ([], {}))
            rkeys.append(r.fields.get("rkey"))
            fields[rkeys[-1]] = r.fields
        return found

    def known_region(self, connection: Connection, side: int, transfer: Transfer) -> Mapping[str, Any]:
        """What the responder's journal, or its handshake, says about the memory that a transfer addresses."""
        qp = self._journal_qps.get((connection.id, 1 - side))
        if transfer.rkey is None or transfer.remote_va is None:
            return {}
        if qp is None:
            return _offered(connection, 1 - side, transfer)
        start, length = transfer.remote_va, transfer.length or transfer.bytes
        rkeys, regions = self._regions.get((qp.host, qp.device), ([], {}))
        region = regions.get(transfer.rkey)
        if region is None:
            return {"region": "no region with this rkey was registered", "rkeys": rkeys[:16]}
        low, high = int(region["addr"]), int(region["addr"]) + int(region["length"])
        found: dict[str, Any] = {
            "region_addr": low,
            "region_length": high - low,
            "region_access": region.get("access"),
        }
        if start < low or start + length > high:
            beyond = max(low - start, start + length - high)
            found["region"] = f"{beyond:,} bytes out of the region's bounds"
        else:
            found["region"] = "inside the region, so the permission is missing or the rkey is out of date"
        return found


def _offered(connection: Connection, side: int, transfer: Transfer) -> Mapping[str, Any]:
    """The memory that ``side`` offered in the handshake, compared with what the transfer addresses."""
    offer = connection.negotiated[side]
    if offer.rkey is None or offer.remote_va is None or transfer.rkey is None or transfer.remote_va is None:
        return {}
    found: dict[str, Any] = {"offered_rkey": offer.rkey, "offered_va": offer.remote_va}
    if transfer.rkey != offer.rkey:
        found["region"] = f"the handshake offered rkey {offer.rkey:#x}"
    elif transfer.remote_va < offer.remote_va:
        found["region"] = f"{offer.remote_va - transfer.remote_va:,} bytes in front of what was offered"
    else:
        found["region"] = (
            f"{transfer.remote_va - offer.remote_va:,} bytes into what the handshake offered, whose length "
            "it does not tell"
        )
    return found


def status_of(transfer: Transfer | None) -> str | None:
    """The status of a transfer's work completion, such as ``RETRY_EXC_ERR``; None without journal or
    completion.
    """
    wc = None if transfer is None else transfer.wc
    status = getattr(wc, "status", None)
    return None if status is None else str(status)
