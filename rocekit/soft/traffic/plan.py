"""What traffic is to be made: hosts, flows between them, and the network, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from rocekit import wire
from rocekit.soft.engine.congestion import DcqcnParameters
from rocekit.soft.engine.work import VERBS
from rocekit.soft.wires.switch import SwitchSettings

TRANSPORTS: Final = ("RC", "UC", "UD")
#: The largest messages that are made: they are in memory on both sides.
MOST_MESSAGE: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class HostPlan:
    """A host with one device at one port.

    Attributes:
        port: the name of its port in the results.
        rate_bps: of its link; None: as the network's.
        cnp_interval_ns: the shortest time between two CNPs to a QP; None: it sends none.
        cnp_tclass, ack_tclass, nak_tclass: DSCP and ECN bits of CNPs, ACKs and NAKs; None: those of the QP's
            other packets.
        dcqcn: how its senders react to CNPs; None: not at all.
    """

    name: str
    address: str
    port: str
    rate_bps: int | None = None
    cnp_interval_ns: int | None = 50_000
    cnp_tclass: int | None = None
    ack_tclass: int | None = None
    nak_tclass: int | None = None
    dcqcn: DcqcnParameters | None = None


@dataclass(frozen=True, slots=True)
class FlowPlan:
    """Messages from one queue pair to one other.

    Attributes:
        source, destination: indexes of hosts; the source posts the work requests.
        verb: a key of ``soft.engine.work.VERBS``.
        sizes: bytes of a message, drawn at random.
        rate: the share of its host's link that it takes at most, with all headers; 1 for all.
        depth: messages in flight.
        burst, gap_ns: after so many messages no more is posted for this time; 0: no pauses.
        start_ns: after all flows are connected, when its first message is posted.
        receives: posted at the destination, for the verbs that consume one; each is posted again after
            ``repost_ns``.
        source_qpn, destination_qpn, psn, udp_sport, remote_va, rkey: None: the device chooses. ``psn`` is the
            first that the source sends.
        tclass: DSCP and ECN bits of its packets.
        timeout: the code of the local ACK timeout.
        source_peer, destination_peer: names of the :class:`PeerPlan` that its queue pairs belong to, if any.
    """

    name: str
    source: int
    destination: int
    verb: str = "RDMA_WRITE"
    transport: str = "RC"
    sizes: tuple[int, ...] = (65_536,)
    immediate: int = 0
    rate: float = 1.0
    path_mtu: int = 1024
    depth: int = 8
    burst: int = 0
    gap_ns: int = 0
    start_ns: int = 0
    receives: int = 64
    repost_ns: int = 0
    source_qpn: int | None = None
    destination_qpn: int | None = None
    psn: int | None = None
    udp_sport: int | None = None
    tclass: int = 24 << 2 | 2
    remote_va: int | None = None
    rkey: int | None = None
    timeout: int = 12
    retry_cnt: int = 7
    source_peer: str | None = None
    destination_peer: str | None = None

    def __post_init__(self) -> None:
        verb = VERBS.get(self.verb)
        if verb is None or verb.local or self.transport not in verb.transports:
            known = ", ".join(n for n, v in VERBS.items() if not v.local and self.transport in v.transports)
            raise ValueError(f"{self.transport} has no {self.verb}; it has {known}")
        if not self.sizes or min(self.sizes) < 0 or max(self.sizes) > MOST_MESSAGE:
            raise ValueError(f"a message has 0 to {MOST_MESSAGE:,} bytes")
        if self.transport == "UD" and max(self.sizes) > self.path_mtu:
            raise ValueError(f"a UD message fits into one packet of {self.path_mtu} bytes")
        if self.path_mtu not in wire.PATH_MTU_CODES:
            raise ValueError(f"a path MTU is {', '.join(map(str, wire.PATH_MTU_CODES))} bytes")
        if not 0 < self.rate <= 1:
            raise ValueError(f"a rate is a share of the link above 0, at most 1, not {self.rate}")
        if self.depth < 1 or self.receives < 1:
            raise ValueError("there is at least one message in flight and one receive")


@dataclass(frozen=True, slots=True)
class PeerPlan:
    """A host's queue pairs towards one address, which have a row of their own in the results.

    Attributes:
        host: index of the host; address: of the other side.
        qps: how many there are, with and without flows.
    """

    name: str
    host: int
    address: str
    qps: int


@dataclass(frozen=True, slots=True)
class TrafficPlan:
    """All of it.

    Attributes:
        duration_ns: no work request is posted later than this after the start; what was posted is finished.
        rate_bps: of the links; ``delay_ns``: of each.
        tap: where the capture is taken: a host's name, ``sent`` (each packet as its sender sends it) or
            ``delivered`` (as it arrives).
        peers: what has rows of its own in the results; queue pairs of none are in their host's row.
    """

    hosts: tuple[HostPlan, ...]
    flows: tuple[FlowPlan, ...]
    duration_ns: int = 5_000_000
    rate_bps: int = 40_000_000_000
    delay_ns: int = 1_000
    switch: SwitchSettings = field(default_factory=SwitchSettings)
    tap: str = "delivered"
    seed: int = 0
    peers: tuple[PeerPlan, ...] = ()

    def __post_init__(self) -> None:
        taps = ("sent", "delivered", *(h.name for h in self.hosts))
        if self.tap not in taps:
            raise ValueError(f"a capture is taken at {', '.join(taps)}, not at {self.tap!r}")
        if self.duration_ns < 1 or self.rate_bps < 1 or self.delay_ns < 0:
            raise ValueError("a duration and a rate are above 0, a delay is not below 0")
