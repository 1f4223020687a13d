"""One capture as two capture points might have shown it: each loses, doubles, delays and cuts packets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from capture_bytes import Frame

US = 1_000


@dataclass(frozen=True)
class View:
    """How a capture point shows traffic.

    Attributes:
        lost, doubled, late: the share of packets that it has not, has twice, or has later than those behind.
        drift: by how much faster its clock is; ahead_ns: by how much it is ahead.
        snaplen: bytes that it keeps of a frame; 0: all.
        in_order: whether its frames are written in the order of time.
    """

    lost: float = 0.0
    doubled: float = 0.0
    late: float = 0.0
    ahead_ns: int = 0
    drift: float = 0.0
    snaplen: int = 0
    in_order: bool = True

    @classmethod
    def any(cls, random: Random) -> View:
        """Some view; mostly one with little trouble."""
        return cls(
            lost=random.choice((0, 0, 0.02, 0.3)),
            doubled=random.choice((0, 0, 0.02)),
            late=random.choice((0, 0, 0.05)),
            ahead_ns=random.choice((0, 0, 5 * US, -(10**9), 10**11)),
            drift=random.choice((0, 0, 1e-5)),
            snaplen=random.choice((0, 0, 128, 74)),
            in_order=random.random() < 0.8,
        )

    def of(self, frames: Sequence[Frame], random: Random) -> list[Frame]:
        """The frames as this point shows them."""
        shown: list[Frame] = []
        begin = min((frame.time_ns for frame in frames), default=0)
        for frame in frames:
            if random.random() < self.lost:
                continue
            delay_ns = random.randrange(20) * US if random.random() < self.late else 0
            for copy in range(2 if random.random() < self.doubled else 1):
                time_ns = frame.time_ns + delay_ns + copy * 300
                time_ns += self.ahead_ns + round((time_ns - begin) * self.drift)
                data = frame.data[: self.snaplen] if self.snaplen else frame.data
                shown.append(Frame(data, time_ns, frame.on_wire))
        if self.in_order:
            shown.sort(key=lambda frame: frame.time_ns)
        return shown
