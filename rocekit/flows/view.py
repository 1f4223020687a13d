"""One one-way flow as an object: what :mod:`rocekit.flows.table` keeps in columns."""

from __future__ import annotations

from dataclasses import dataclass, field

from rocekit.flows import MOST_SPANS, RATE_NS


@dataclass(slots=True, eq=False, repr=False)
class FlowView:
    """A one-way flow: the packets from one address to one QP at another.

    Attributes:
        opcodes: packets by opcode.
        payload: bytes, retransmissions included.
        dscps: kind of packet (``request``, ``response``, ``cnp``) to DSCP to (packets, first frame).
        sports: UDP source ports seen.
        priorities: of VLAN tags.
        roce_versions: seen.
        full_sizes: payloads of packets that do not end their message, to the first frame with each.
        first_psn, first_frame: of the first request.
        marked: (time, frame) of packets with payload and a CE mark; marked_count: how many there are.
        cnps: (time, frame) of CNPs on this flow, sent because of CE marks on the opposite flow.
        cnp_count: how many there are.
        notified: packets with BECN that are not CNPs.
        naks, rnr_naks: how many there are, also those for packets that the capture lacks.
        rate: payload bytes by span of ``RATE_NS``; kept from the first ECN-capable packet on.
    """

    src: str
    dst: str
    dest_qpn: int
    packets: int = 0
    opcodes: dict[int, int] = field(default_factory=dict)
    payload: int = 0
    first_ns: int = 0
    last_ns: int = 0
    dscps: dict[str, dict[int, tuple[int, int]]] = field(default_factory=dict)
    sports: set[int] = field(default_factory=set)
    priorities: set[int] = field(default_factory=set)
    roce_versions: set[int] = field(default_factory=set)
    full_sizes: dict[int, int] = field(default_factory=dict)
    first_psn: int | None = None
    first_frame: int = 0
    marked: list[tuple[int, int]] = field(default_factory=list)
    marked_count: int = 0
    cnps: list[tuple[int, int]] = field(default_factory=list)
    cnp_count: int = 0
    notified: int = 0
    naks: int = 0
    rnr_naks: int = 0
    rate: dict[int, int] = field(default_factory=dict)

    def rate_between(self, start_ns: int, end_ns: int) -> float | None:
        """Payload bits per second between two times, over whole spans.

        None if there is no whole span, or the rate was not kept for so long.
        """
        first, last = -(-start_ns // RATE_NS), end_ns // RATE_NS
        if last <= first or (len(self.rate) >= MOST_SPANS and last > max(self.rate) + 1):
            return None
        total = sum(n for span, n in self.rate.items() if first <= span < last)
        return total * 8e9 / ((last - first) * RATE_NS)
