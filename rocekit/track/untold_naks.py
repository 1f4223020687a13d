"""NAKs and RNR NAKs of a live capture, each told once and at once.

The tracker tells of a refusal together with the transfer that it hits. Where the refused packet never came by
there is no transfer yet, and the refusal is all that can be told.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from rocekit import wire
from rocekit.packets import HAS, ICRC_INVALID

if TYPE_CHECKING:
    from rocekit.packets import Packets

_REFUSES: Final = np.array([wire.syndrome_kind(s) in (wire.NAK, wire.RNR_NAK) for s in range(256)])
#: Refusals remembered, so that each is told once.
_MOST: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Refusal:
    """A NAK or RNR NAK for a PSN of no transfer yet: the capture has not shown its packet.

    Attributes:
        src: who refuses; dst, dest_qpn: whom.
    """

    time_ns: int
    frame: int
    src: str
    dst: str
    dest_qpn: int
    psn: int
    syndrome: int


class Refusals:
    """Remembers which refusals were told."""

    def __init__(self) -> None:
        self._told: dict[int, None] = {}

    def is_new(self, frame: int) -> bool:
        """Whether nothing was said of this frame yet; from now on, it was."""
        if frame in self._told:
            return False
        self._told[frame] = None
        if len(self._told) > _MOST:
            del self._told[next(iter(self._told))]
        return True

    def untold(self, packets: Packets) -> Iterator[Refusal]:
        """Those of a batch of which nothing was said."""
        refuses = (packets.has & HAS["AETH"] != 0) & _REFUSES[packets.syndrome]
        for i in np.flatnonzero(refuses & (packets.icrc_state != ICRC_INVALID)).tolist():
            frame = int(packets.frame[i])
            if self.is_new(frame):
                yield Refusal(
                    int(packets.time_ns[i]),
                    frame,
                    packets.addresses[packets.src[i]],
                    packets.addresses[packets.dst[i]],
                    int(packets.dest_qpn[i]),
                    int(packets.psn[i]),
                    int(packets.syndrome[i]),
                )
