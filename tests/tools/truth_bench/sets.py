"""What two captures of one wire have in common: the truth bench's own exact sets.

Each direction has a first capture (the sender's end) and a second one (the receiver's). A packet of the first
is the packet of the second that has the same bytes, among equals by order; so every packet sent is a
:class:`Transmission`, which arrived at the second capture not at all, once, or more often. It shares no code
with rocekit.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from ipaddress import ip_address
from typing import Final

from truth_bench.once import once
from truth_bench.packets import ATOMIC_ACK, READ_REQUEST, Packet, after

#: Identical packets sent within this time are one, doubled before the first capture.
_TWICE_NS: Final = 50_000_000
#: A corrupted packet arrives within this time, with one bit changed (netem's corrupt).
_UNDER_WAY_NS: Final = 1_000_000_000
#: UDP, BTH and ICRC around the payload of a middle response.
_AROUND_BYTES: Final = 8 + 12 + 4
_AETH_BYTES: Final = 4


@dataclass(eq=False, slots=True)
class Transmission:
    """A packet sent once.

    Attributes:
        sent: as the first capture has it; None if only the second one has it.
        arrived: as the second capture has it, however often.
        spoilt: it arrived corrupted.
        doubled: the first capture has it for the second time.
        number: its place among those of its flow, in the order of the first capture.
        passed: how often its requester had gone back before it; of a response with data, how often its
            responder had begun anew.
    """

    sent: Packet | None
    arrived: list[Packet] = field(default_factory=list)
    spoilt: bool = False
    doubled: bool = False
    number: int = -1
    passed: int = 0

    @property
    def packet(self) -> Packet:
        return self.sent if self.sent is not None else self.arrived[0]

    @property
    def psn(self) -> int:
        return self.packet.psn

    @property
    def time_ns(self) -> int:
        return self.packet.time_ns

    @property
    def got_through(self) -> bool:
        """Whether the second capture has it as it was sent."""
        return bool(self.arrived) and not self.spoilt


def _one_bit_apart(first: bytes, second: bytes) -> bool:
    if len(first) != len(second):
        return False
    return (int.from_bytes(first) ^ int.from_bytes(second)).bit_count() == 1


def transmissions(
    first: Iterable[Packet], second: Iterable[Packet], astray: Iterable[Packet] = ()
) -> list[Transmission]:
    """All packets of a direction, in the order of the first capture.

    Args:
        astray: packets of the second capture with addresses that nobody has, perhaps by corruption.
    """
    found: list[Transmission] = []
    by_bytes: dict[bytes, list[Transmission]] = defaultdict(list)
    for packet in first:
        equal = by_bytes[packet.headers]
        again = bool(equal) and packet.time_ns - equal[-1].time_ns < _TWICE_NS
        found.append(Transmission(packet, doubled=again))
        equal.append(found[-1])
    strange: list[Packet] = []
    came: Counter[bytes] = Counter()
    for packet in second:
        equal = by_bytes.get(packet.headers, [])
        if not equal:
            strange.append(packet)
            continue
        equal[min(came[packet.headers], len(equal) - 1)].arrived.append(packet)
        came[packet.headers] += 1
    missing = [t for t in found if not t.arrived]
    for packet in sorted([*strange, *astray], key=lambda packet: packet.frame):
        for transmission in missing:
            if (
                not transmission.arrived
                and 0 <= packet.time_ns - transmission.time_ns < _UNDER_WAY_NS
                and _one_bit_apart(packet.headers, transmission.packet.headers)
            ):
                transmission.arrived.append(packet)
                transmission.spoilt = True
                break
        else:
            if packet in strange:
                found.append(Transmission(None, [packet], spoilt=True))
    return sorted(found, key=lambda t: t.time_ns)


@dataclass(frozen=True)
class Path:
    """One direction between the two captures.

    Attributes:
        src, dst: addresses.
        sent: every transmission of it.
    """

    src: str
    dst: str
    sent: list[Transmission]

    @property
    def seen_first(self) -> int:
        return sum(t.sent is not None for t in self.sent)

    @property
    def missing(self) -> int:
        """How many of the first capture's packets the second has not, not even corrupted."""
        return sum(not t.arrived for t in self.sent)

    @property
    def spoilt(self) -> int:
        return sum(t.spoilt for t in self.sent)

    @property
    def marked(self) -> int:
        """How many packets were marked on their way; a doubled one counts once, as it was marked first."""
        return sum(
            t.sent is not None and not t.sent.marked and any(p.marked for p in t.arrived) for t in self.sent
        )

    @property
    def twice(self) -> int:
        return sum(max(0, len(t.arrived) - 1) for t in self.sent)

    @cached_property
    def overtaken(self) -> set[int]:
        """The transmissions (by ``id``) that arrived after one that was sent later."""
        late: set[int] = set()
        first_behind: float = float("inf")
        for t in reversed([t for t in self.sent if t.sent is not None and t.arrived]):
            if t.arrived[0].frame > first_behind:
                late.add(id(t))
            first_behind = min(first_behind, t.arrived[0].frame)
        return late


class Side:
    """The requests that one end of a connection sent, and what came back.

    Args:
        requests: to one QP, in the order of the first capture.
        responses: to the requester's QP, likewise; the responder sent them.
    """

    def __init__(self, requests: list[Transmission], responses: list[Transmission], path_mtu: int) -> None:
        self.requests, self.responses, self._path_mtu = requests, responses, path_mtu
        self.src, self.dst = requests[0].packet.src, requests[0].packet.dst
        self.qpn = requests[0].packet.dest_qpn
        self.response_qpn = responses[0].packet.dest_qpn if responses else None
        next_psn: int | None = None
        passed = 0
        for i, request in enumerate(requests):
            request.number = i
            if not request.doubled and not (request.spoilt and request.sent is None):
                if next_psn is not None and after(request.psn, next_psn) < 0:
                    passed += 1
                next_psn = (request.psn + self.covers(request)) & 0xFFFFFF
            request.passed = passed
        last_psn: int | None = None
        passed = 0
        for response in self.data_responses():
            if last_psn is not None and after(response.psn, last_psn) <= 0:
                passed += 1
            last_psn, response.passed = response.psn, passed
        #: What arrived at the second capture, in its order.
        self.arrivals = sorted(((p, t) for t in requests for p in t.arrived), key=_frame)

    def covers(self, request: Transmission) -> int:
        """How many PSNs a request stands for."""
        if request.packet.opcode != READ_REQUEST:
            return 1
        return max(1, -(-request.packet.dma_length // self._path_mtu))

    def has(self, request: Transmission, psn: int) -> bool:
        """Whether a request is, or asks for, a PSN."""
        return 0 <= after(psn, request.psn) < self.covers(request)

    @once
    def copies(self, psn: int) -> list[Transmission]:
        """All requests with, or for, a PSN, in the order in which they were sent."""
        return [t for t in self.requests if self.has(t, psn) and not (t.spoilt and t.sent is None)]

    @once
    def data_responses(self) -> list[Transmission]:
        """The responses of READs and atomics."""
        return [
            t
            for t in self.responses
            if (t.packet.is_read_response or t.packet.opcode == ATOMIC_ACK) and not t.doubled
        ]

    def pass_start(self, request: Transmission) -> Transmission:
        """The first packet of the pass that a request belongs to."""
        return next(t for t in self.requests if t.passed == request.passed)


@lru_cache
def is_group(address: str) -> bool:
    """Whether an address is a multicast group's."""
    return ip_address(address).is_multicast


def _frame(arrival: tuple[Packet, Transmission]) -> int:
    return arrival[0].frame


class Wire:
    """Both captures of an experiment, taken apart.

    Args:
        hosts: the addresses of a and b.
        va, vb: the packets of the captures at a and b.
    """

    def __init__(self, hosts: tuple[str, str], va: Sequence[Packet], vb: Sequence[Packet]) -> None:
        a, b = hosts
        self.hosts = hosts
        self.captures = (va, vb)
        self.paths = {
            (src, dst): Path(
                src,
                dst,
                transmissions(
                    [p for p in first if (p.src, p.dst) == (src, dst)],
                    [p for p in second if (p.src, p.dst) == (src, dst)],
                    [p for p in second if not {p.src, p.dst} <= {a, b} and not is_group(p.dst)],
                ),
            )
            for src, dst, first, second in (
                *((a, b, va, vb), (b, a, vb, va)),
                *(
                    (a, group, va, vb)
                    for group in sorted({p.dst for p in va if p.src == a and is_group(p.dst)})
                ),
                *(
                    (b, group, vb, va)
                    for group in sorted({p.dst for p in vb if p.src == b and is_group(p.dst)})
                ),
            )
        }
        #: Each packet of each capture, by its frame number, as its transmission.
        self.by_frame: tuple[dict[int, Transmission], dict[int, Transmission]] = ({}, {})
        for (src, _), path in self.paths.items():
            first, second = (0, 1) if src == a else (1, 0)
            for t in path.sent:
                if t.sent is not None:
                    self.by_frame[first][t.sent.frame] = t
                for packet in t.arrived:
                    self.by_frame[second][packet.frame] = t
        self.sides = self._sides()

    def _sides(self) -> list[Side]:
        requests: dict[tuple[str, str, int], list[Transmission]] = defaultdict(list)
        responses: dict[tuple[str, str, int], list[Transmission]] = defaultdict(list)
        for path in self.paths.values():
            for t in path.sent:
                packet = t.packet
                if packet.is_datagram or packet.is_cnp:
                    continue
                flow = (packet.src, packet.dst, packet.dest_qpn)
                (responses if packet.is_response else requests)[flow].append(t)
        mtu = max(
            (
                t.packet.length - _AROUND_BYTES - (_AETH_BYTES if t.packet.opcode == 0x0D else 0)
                for ts in responses.values()
                for t in ts
                if t.packet.opcode in (0x0D, 0x0E)
            ),
            default=1 << 30,
        )
        sides = []
        for (src, dst, _), sent in requests.items():
            if len(sent) == 1 and sent[0].spoilt:
                continue  # a corrupted QP number
            low, high = sent[0].psn, 0
            for t in sent:
                reach = 0 if t.packet.opcode != READ_REQUEST else max(0, -(-t.packet.dma_length // mtu) - 1)
                high = max(high, after(t.psn, low) + reach)
            candidates = {
                flow: sum(0 <= after(t.psn, low) <= high for t in ts)
                for flow, ts in responses.items()
                if flow[:2] == (dst, src)
            }
            best = max(candidates, key=lambda flow: candidates[flow], default=None)
            fitting = responses[best] if best is not None and candidates[best] else []
            sides.append(Side(sent, [t for t in fitting if -1 <= after(t.psn, low) <= high + 1], mtu))
        return sides

    def first_of(self, src: str) -> int:
        """Which capture has a sender's packets first."""
        return self.hosts.index(src)

    def side_of(self, request: Transmission) -> Side | None:
        """The side that sent a request."""
        return next(
            (
                s
                for s in self.sides
                if (s.src, s.dst, s.qpn) == (request.packet.src, request.packet.dst, request.packet.dest_qpn)
            ),
            None,
        )

    def side_answered_by(self, response: Transmission) -> Side | None:
        """The side that a response is for."""
        packet = response.packet
        return next(
            (
                s
                for s in self.sides
                if (s.dst, s.src, s.response_qpn) == (packet.src, packet.dst, packet.dest_qpn)
            ),
            None,
        )
