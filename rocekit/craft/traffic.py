"""What synthetic traffic is like: its size, operations, hosts and faults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rocekit import wire

OPERATIONS: Final = ("WRITE", "SEND", "READ")
_MOST_PAIRS: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Traffic:
    """The traffic to make.

    Attributes:
        packets: about how many; the last message is complete.
        operations: of ``WRITE``, ``SEND``, ``READ``, drawn at random.
        sizes: payload bytes of a message, drawn at random; mtu: the path MTU.
        pairs: QP pairs; both_directions: whether both sides send requests.
        hosts: an even number; the pairs are spread over pairs of hosts.
        ip_version: 4 or 6; vlan: a tag's VLAN ID, or None for untagged frames.
        loss: the share of packets that are lost, at most one of a message.
        ecn: the share of packets with payload that are marked (CE); 0: the traffic is not ECN-capable.
        gbps: the speed of the link that all share.
        seed: of every choice above.

    Raises:
        ValueError: a value that makes no sense.
    """

    packets: int = 1_000_000
    operations: tuple[str, ...] = ("WRITE",)
    sizes: tuple[int, ...] = (16_384,)
    mtu: int = 1024
    pairs: int = 64
    both_directions: bool = True
    hosts: int = 2
    ip_version: int = 4
    vlan: int | None = None
    loss: float = 0.0
    ecn: float = 0.0
    gbps: float = 100.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.packets < 1:
            raise ValueError("packets must be at least 1")
        if not self.operations or not set(self.operations) <= set(OPERATIONS):
            raise ValueError(f"operations are of {', '.join(OPERATIONS)}")
        if not self.sizes or min(self.sizes) < 0 or max(self.sizes) > wire.MAX_MESSAGE_BYTES:
            raise ValueError(f"sizes are 0 to {wire.MAX_MESSAGE_BYTES:,} bytes")
        if self.mtu not in wire.PATH_MTU_CODES:
            raise ValueError(f"a path MTU is one of {', '.join(map(str, wire.PATH_MTU_CODES))}")
        if not 1 <= self.pairs <= _MOST_PAIRS:
            raise ValueError(f"pairs are 1 to {_MOST_PAIRS:,}")
        if self.hosts < 2 or self.hosts % 2 or self.hosts > 1 << 16:
            raise ValueError("hosts is an even number from 2 to 65,536")
        if self.ip_version not in (4, 6):
            raise ValueError("ip_version is 4 or 6")
        if self.vlan is not None and not 0 <= self.vlan < 4096:
            raise ValueError("a VLAN ID is 0 to 4095")
        if not 0 <= self.loss < 1 or not 0 <= self.ecn <= 1:
            raise ValueError("loss and ecn are shares, from 0 to 1")
        if not 0 < self.gbps < float("inf"):
            raise ValueError("gbps must be above 0")
        if self.seed < 0:
            raise ValueError("a seed is 0 or more")

    @property
    def streams(self) -> int:
        """Sides that send requests; side ``s`` of pair ``p`` is stream ``p * 2 + s``, or ``p`` one way."""
        return self.pairs * (1 + self.both_directions)
