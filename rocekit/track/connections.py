"""Connections: QP pairs, and how two one-way flows are known to belong together.

A RoCE packet names the QP it goes to, never the one it comes from (UD's DETH aside), so a capture shows
one-way *flows*:
(source address, destination address, destination QPN). Two flows make a connection. What says so is, in this
order:

* ``cm``: the REQ and REP of the connection manager name both QPNs (IBA Vol. 1, 12.6);
* ``journal``: the programs' own record names them;
* ``psn``: one flow's acknowledgements answer the PSNs that the other one asks with;
* ``source port``: PSNs allow several flows, and the UDP source ports name one of them.

QPNs are compared together with addresses: each host has its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from rocekit import wire
from rocekit.packets.wrapping import PLAIN, Wrapping
from rocekit.track.events import Event
from rocekit.wire.words import end as end_name

if TYPE_CHECKING:
    from rocekit.track.gaps.read_steps import ReadSteps
    from rocekit.track.progress import Progress
    from rocekit.wire.applications import Application

MAX_KEPT = 1000
"""Frames and events of one kind kept per connection; more are only counted."""


class Negotiated(NamedTuple):
    """What the CM exchange, the journal or a handshake says of one side; None: nothing.

    Attributes:
        rkey, remote_va: of the memory that this side offers.
    """

    starting_psn: int | None = None
    path_mtu: int | None = None
    retry_count: int | None = None
    rnr_retry_count: int | None = None
    ack_timeout: int | None = None
    responder_resources: int | None = None
    initiator_depth: int | None = None
    min_rnr_timer: int | None = None
    traffic_class: int | None = None
    service_level: int | None = None
    rkey: int | None = None
    remote_va: int | None = None

    def overruled_by(self, other: Negotiated) -> Negotiated:
        """The same, with what ``other`` knows in its place."""
        return Negotiated(*(own if said is None else said for own, said in zip(self, other, strict=True)))


_NOTHING_KNOWN: Final = Negotiated()
NEITHER_KNOWN: Final = (_NOTHING_KNOWN, _NOTHING_KNOWN)
#: The time of a packet that there was not.
_NEVER_NS: Final = -(1 << 62)
_LEAST_MTU: Final = min(wire.PATH_MTU_CODES)
_Noted = TypeVar("_Noted")
_Value = TypeVar("_Value")
BOTH_PLAIN: Final = (PLAIN, PLAIN)
#: The columns of ``ends_of``.
A, B, QPN_A, QPN_B, RESPONDS = range(5)
END_COLUMNS: Final = 5
_MIX: Final = 0x9E37_79B9_7F4A_7C15
_WORD: Final = 0xFFFF_FFFF_FFFF_FFFF


def _with(noted: Sequence[_Noted], one: _Noted) -> Sequence[_Noted]:
    """What was noted so far and one more: a list, which most connections never need."""
    if isinstance(noted, list):
        noted.append(one)
        return noted
    return [*noted, one]


class Incidents:
    """What happens on few connections (see ``Connection``)."""

    def __init__(self) -> None:
        self.cut_responses = self.bad_icrc_count = self.copied_ack_count = self.missed_copies = 0
        self.missed: Sequence[Event] = ()
        self.unfilled: Sequence[Event] = ()
        self.jumps: Sequence[Event] = ()
        self.stray_events: Sequence[Event] = ()
        self.bad_icrc: Sequence[int] = ()
        self.copied_acks: Sequence[int] = ()
        self.short_waits: Sequence[tuple[int, int, int]] = ()
        self.overtaken = (0, 0)
        self.recoveries: tuple[str | None, str | None] = (None, None)
        self.closed_frame: int | None = None
        self.resent_per_loss: float | None = None
        self.application: Application | None = None
        self.read_steps: tuple[ReadSteps | None, ReadSteps | None] = (None, None)


class Incident(Generic[_Value]):
    """An attribute of a connection that is one of its ``Incidents``, with what it is where it has none."""

    def __init__(self, name: str, none: _Value) -> None:
        self._name = name
        self._none = none

    def __get__(self, connection: Any, owner: type | None = None) -> _Value:
        incidents = None if connection is None else connection.incidents
        found: _Value = self._none if incidents is None else getattr(incidents, self._name)
        return found

    def __set__(self, connection: Any, value: _Value) -> None:
        if connection.incidents is not None or value != self._none:
            setattr(connection.met(), self._name, value)


class Connection:
    """A QP pair, both directions; for UD, two QPs that send to each other.

    Attributes:
        ips: addresses of ``a`` and ``b``; qpns: their QPNs, None where nothing reveals one.
        paired_by: ``cm``, ``journal``, ``handshake``, ``psn``, ``source port``, ``response times``, or None
            where only one direction is known.
        paired_surely: False where source ports decide, which may agree by accident, or response times.
        path_mtu: bytes, as the packets show it, else as negotiated; None while unknown.
        mtu_observed: whether there was a full packet, one that does not end its message; largest_payload: of
        those that end a message, which may be shorter.
        first_ns, last_ns: of its packets; None while there was none.
        progress: how far the requests of ``a`` and of ``b`` have come, None where none was seen.
        missed: acknowledged PSNs that are not in the capture.
        missed_copies: packets that were acknowledged before they were sent again, and are not in the capture.
        unfilled: skipped PSNs that nothing acknowledged: lost on the wire, or missed by the capture.
        duplicate_acks: ACKs with the PSN and MSN of the ACK before, sent again by the responder or once;
        copied_acks: frames of those that were sent once, by their IPv4 identifications.
        overtaken: by side, requests that came after one that was sent later, by their IPv4 identifications.
        recoveries: by side, how its requests come again when packets are lost: ``go-back-n``, ``selective``,
        or None while no repeat decides it.
        resent_per_loss: packets sent again for each packet known to be lost; None where none was lost.
        short_waits: waits before requests came again without a NAK, as (side, PSN, ns), that are much
        shorter than the timeout (see ``short_timers``).
        application: which program uses it, probably or for certain; None if nothing says so.
        read_steps: by side, how far apart the PSNs of its READ requests were, as far as they were looked at.
        jumps: leaps of the PSN; stray_events: events of PSNs that no transfer holds.
        around: what is around the packets of ``a`` and of ``b``, as their first packets show it.
    """

    cut_responses = Incident("cut_responses", 0)
    missed = Incident[Sequence[Event]]("missed", ())
    unfilled = Incident[Sequence[Event]]("unfilled", ())
    jumps = Incident[Sequence[Event]]("jumps", ())
    stray_events = Incident[Sequence[Event]]("stray_events", ())
    bad_icrc = Incident[Sequence[int]]("bad_icrc", ())
    bad_icrc_count = Incident("bad_icrc_count", 0)
    closed_frame = Incident[int | None]("closed_frame", None)
    overtaken = Incident("overtaken", (0, 0))
    copied_acks = Incident[Sequence[int]]("copied_acks", ())
    copied_ack_count = Incident("copied_ack_count", 0)
    recoveries = Incident[tuple[str | None, str | None]]("recoveries", (None, None))
    resent_per_loss = Incident[float | None]("resent_per_loss", None)
    missed_copies = Incident("missed_copies", 0)
    short_waits = Incident[Sequence[tuple[int, int, int]]]("short_waits", ())
    application = Incident["Application | None"]("application", None)
    read_steps = Incident["tuple[ReadSteps | None, ReadSteps | None]"]("read_steps", (None, None))

    def __init__(
        self,
        id: int,
        transport: str,
        ips: list[str | None],
        qpns: list[int | None],
        paired_by: str | None = None,
    ) -> None:
        self.set_up(id, transport, ips, qpns, paired_by)

    def set_up(
        self, id: int, transport: str, ips: list[str | None], qpns: list[int | None], paired_by: str | None
    ) -> None:
        self.id, self.transport, self.ips, self.qpns, self.paired_by = id, transport, ips, qpns, paired_by
        self.paired_surely = True
        self.path_mtu: int | None = None
        self.packets = self.bytes = self.transfers = self.retransmitted_packets = 0
        self.naks = self.rnr_naks = self.cnps = self.ce_marked = self.duplicates = self.duplicate_acks = 0
        self._first_ns = self._last_ns = _NEVER_NS
        self.progress: tuple[Progress | None, Progress | None] = (None, None)
        self.negotiated: Sequence[Negotiated] = NEITHER_KNOWN
        self.mtu_observed = self._mtu_is_observed = False
        self.largest_payload = 0
        self.around: tuple[Wrapping, Wrapping] = BOTH_PLAIN
        self.incidents: Incidents | None = None

    @property
    def first_ns(self) -> int | None:
        return None if self._first_ns == _NEVER_NS else self._first_ns

    @property
    def last_ns(self) -> int | None:
        return None if self._last_ns == _NEVER_NS else self._last_ns

    @property
    def scopes(self) -> tuple[int, int]:
        """The scopes of the packets of ``a`` and of ``b`` (see ``packets.wrapping``)."""
        return self.around[0].scope, self.around[1].scope

    @property
    def encapsulation(self) -> Wrapping:
        """What is around its packets: those of ``a``, or of ``b`` if there is nothing around ``a``'s."""
        return self.around[0] if self.around[0].layers else self.around[1]

    def way_key(self, side: int) -> tuple[str | None, str | None, int | None, int]:
        """What the packets that ``side`` sends have in common (see ``flows.scopes.FlowKey``)."""
        return self.ips[side], self.ips[1 - side], self.qpns[1 - side], self.around[side].scope

    @property
    def recovery(self) -> str | None:
        """How lost packets come again; None if it is unknown, or differs between the directions."""
        first, second = self.recoveries
        if first is None or second is None or first == second:
            return second if first is None else first
        return None

    def __repr__(self) -> str:
        ends = f"{self.named(0)} ⇄ {self.named(1)}"
        return f"<Connection {self.id}: {self.transport} {ends}, transfers={self.transfers}>"

    def end(self, side: int) -> dict[str, Any]:
        """One end: ``{"ip", "qpn"}``."""
        return {"ip": self.ips[side], "qpn": self.qpns[side]}

    def named(self, side: int) -> str:
        """One end in words: ``10.9.0.1 QP 0x11``."""
        return end_name(self.end(side))

    def way(self, side: int) -> str:
        """A direction in words: ``10.9.0.1 QP 0x11 → 10.9.0.2 QP 0x12``, from ``side``."""
        return f"{self.named(side)} → {self.named(1 - side)}"

    def used(self, time_ns: int) -> None:
        """One more of its packets came."""
        if self._first_ns == _NEVER_NS:
            self._first_ns = time_ns
        self._last_ns = time_ns

    def observe_mtu(self, payload: int) -> None:
        """Learn the path MTU from the payload of a full packet, which does not end its message (9.7.2)."""
        self.mtu_observed = True
        if not self._mtu_is_observed and payload in wire.PATH_MTU_CODES:
            self._mtu_is_observed = True
            self.path_mtu = payload

    def psns_of_read(self, length: int) -> int:
        """PSNs that a READ of ``length`` bytes takes, as many as it has responses; 0: unknown."""
        if length < 0:  # unknown itself
            return 0
        if length <= _LEAST_MTU:
            return 1
        # What the CM agreed on is a limit: a program may set a smaller path MTU on its QP.
        if self.path_mtu and (self.mtu_observed or self.paired_by != "cm"):
            return -(-length // self.path_mtu)
        return 0

    def met(self) -> Incidents:
        """Its incidents, of which there is one now."""
        if self.incidents is None:
            self.incidents = Incidents()
        return self.incidents

    def is_in(self, first: Wrapping, second: Wrapping) -> None:
        """What is around the packets of both sides: nothing around most, which share a tuple."""
        if first is not PLAIN or second is not PLAIN:
            self.around = first, second

    def has_around(self, side: int, around: Wrapping) -> None:
        """What is around the packets of a side."""
        first, second = self.around
        self.around = (first, around) if side else (around, second)

    def has_progress(self, side: int, progress: Progress) -> None:
        """A side has sent its first request, or got a response to one."""
        first, second = self.progress
        self.progress = (first, progress) if side else (progress, second)

    def note_end(self, side: int, overtaken: int, recovery: str | None) -> None:
        """One side is over: how many of its requests were overtaken, and how they came again (None: open)."""
        if self.incidents is None and not overtaken and recovery is None:
            return
        if overtaken == self.overtaken[side] and recovery == self.recoveries[side]:
            return
        a, b = self.overtaken
        self.overtaken = (a, overtaken) if side else (overtaken, b)
        first, second = self.recoveries
        self.recoveries = (first, recovery) if side else (recovery, second)

    def has_read_steps(self, side: int, steps: ReadSteps) -> None:
        """A side that has had troubles sends a READ request."""
        first, second = self.read_steps
        self.read_steps = (first, steps) if side else (steps, second)

    def note_missed(self, event: Event) -> None:
        met = self.met()
        met.missed = _with(met.missed, event)

    def note_unfilled(self, event: Event) -> None:
        met = self.met()
        met.unfilled = _with(met.unfilled, event)

    def note_jump(self, event: Event) -> None:
        met = self.met()
        met.jumps = _with(met.jumps, event)

    def note_stray(self, event: Event) -> None:
        met = self.met()
        met.stray_events = _with(met.stray_events, event)

    def note_copied_ack(self, frame: int) -> None:
        met = self.met()
        met.copied_ack_count += 1
        if len(met.copied_acks) < MAX_KEPT:
            met.copied_acks = _with(met.copied_acks, frame)

    def note_bad_icrc(self, frame: int) -> None:
        met = self.met()
        met.bad_icrc_count += 1
        if len(met.bad_icrc) < MAX_KEPT:
            met.bad_icrc = _with(met.bad_icrc, frame)

    def to_dict(self) -> dict[str, Any]:
        """The connection as the JSON contract has it."""
        around = self.encapsulation
        return {
            "id": self.id,
            "transport": self.transport,
            "a": self.end(0),
            "b": self.end(1),
            "paired_by": self.paired_by,
            "paired_surely": None if self.paired_by is None else self.paired_surely,
            "path_mtu": self.path_mtu,
            "packets": self.packets,
            "bytes": self.bytes,
            "transfers": self.transfers,
            "retransmitted_packets": self.retransmitted_packets,
            "naks": self.naks,
            "rnr_naks": self.rnr_naks,
            "cut_responses": self.cut_responses,
            "duplicate_acks": self.duplicate_acks,
            "cnps": self.cnps,
            "ce_marked": self.ce_marked,
            "recovery": self.recovery,
            "resent_per_loss": self.resent_per_loss,
            "application": None if self.application is None else self.application.to_dict(),
            "vlan": list(around.vlans) or None,
            "encapsulation": list(around.layers) or None,
        }


def connected(
    id: int, transport: str, ips: list[str | None], qpns: list[int | None], paired_by: str | None
) -> Connection:
    """A new connection, without the time that a constructor's arguments take."""
    connection: Connection = Connection.__new__(Connection)
    connection.set_up(id, transport, ips, qpns, paired_by)
    return connection


class Totals(NamedTuple):
    """Sums over all connections.

    Attributes:
        copies: duplicates, and ACKs that came twice and were sent once.
        gaps: connections with acknowledged PSNs that are not in the capture, UC aside; unfilled: with skipped
        PSNs that nothing acknowledged, or gaps.
        strays: connections with events of no transfer.
        unreliable: UC connections.
        last_ns: the time of the last packet, 0 without one.
    """

    naks: int
    retransmitted_packets: int
    copies: int
    bad_icrcs: int
    gaps: int
    unfilled: int
    strays: int
    unreliable: int
    last_ns: int


def ends_of(connections: list[Connection], numbers: dict[str, int], found: Any) -> None:
    """Fill a table with a row for each connection: ``A``, ``B``, ``QPN_A``, ``QPN_B`` and ``RESPONDS``.

    Addresses by their ``numbers``; −1: there is none. ``RESPONDS``: 1 for a transport whose responder does.
    """
    for row, connection in enumerate(connections):
        ips, qpns = connection.ips, connection.qpns
        here, there, qpn_a, qpn_b = ips[0], ips[1], qpns[0], qpns[1]
        found[row, 0] = numbers.get(here, -1)  # type: ignore[arg-type]
        found[row, 1] = numbers.get(there, -1)  # type: ignore[arg-type]
        found[row, 2] = -1 if qpn_a is None else qpn_a
        found[row, 3] = -1 if qpn_b is None else qpn_b
        found[row, 4] = connection.transport == "RC" or connection.transport == "XRC"


def requesting_sides(connections: list[Connection], first: str | None) -> tuple[bool, bool]:
    """Whether any of the connections of two hosts have requests of the ``first`` one, and of the other."""
    here = there = False
    for connection in connections:
        a, b = connection.progress
        of_a, of_b = a is not None and a.started, b is not None and b.started
        if connection.ips[0] != first:
            of_a, of_b = of_b, of_a
        here, there = here or of_a, there or of_b
        if here and there:
            break
    return here, there


def came_again(connections: Iterable[Connection], least: int, often: int) -> bool:
    """Whether a connection of ``least`` packets had one in ``often`` of them before."""
    for connection in connections:
        if connection.packets >= least:
            again = connection.duplicates + connection.duplicate_acks + connection.retransmitted_packets
            if again * often >= connection.packets:
                return True
    return False


def mixed_ends(connections: list[Connection], ends: Any, found: Any) -> None:
    """Fill in two numbers for each connection, and four columns of a table.

    Args:
        ends: the same number for the same addresses and QPNs.
        found: the same number for the same two hosts, the scopes of both sides, and the packets.
    """
    for row, connection in enumerate(connections):
        ips, qpns, around = connection.ips, connection.qpns, connection.around
        here, there = hash(ips[0]) & _WORD, hash(ips[1]) & _WORD
        found[row, 0] = (here + there) & _WORD
        found[row, 1], found[row, 2] = around[0].scope, around[1].scope
        found[row, 3] = connection.packets
        mixed = ((here * _MIX ^ there) * _MIX ^ hash(qpns[0])) & _WORD
        ends[row] = (mixed * _MIX ^ hash(qpns[1])) & _WORD


def weights_of(connections: list[Connection], found: Any) -> None:
    """Fill a table with a row for each connection: its repeats, NAKs and bad ICRCs, and its packets."""
    for row, connection in enumerate(connections):
        incidents = connection.incidents
        troubles = connection.retransmitted_packets + connection.naks + connection.rnr_naks
        if incidents is not None:
            troubles += incidents.bad_icrc_count
        found[row, 0], found[row, 1] = troubles, connection.packets


def totals_of(connections: list[Connection]) -> Totals:
    """One pass over all connections: most rules look for something that few captures have at all."""
    naks = retransmitted = copies = bad_icrcs = gaps = unfilled = strays = unreliable = last_ns = 0
    for connection in connections:
        naks += connection.naks
        retransmitted += connection.retransmitted_packets
        copies += connection.duplicates
        is_unreliable = connection.transport == "UC"
        unreliable += is_unreliable
        incidents = connection.incidents
        if incidents is not None:
            copies += incidents.copied_ack_count
            bad_icrcs += incidents.bad_icrc_count
            if incidents.missed:
                unfilled += 1
                gaps += not is_unreliable
            elif incidents.unfilled:
                unfilled += 1
            if incidents.stray_events:
                strays += 1
        last_ns = max(last_ns, connection._last_ns)
    return Totals(naks, retransmitted, copies, bad_icrcs, gaps, unfilled, strays, unreliable, last_ns)
