"""NAKs and RNR NAKs of a live capture for packets that were not seen, each reported once and at once.

The tracker reports a NAK with the transfer that it is for. Where the capture did not see the packet there is
no transfer yet, and only the NAK can be reported.
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

_IS_NAK: Final = np.array([wire.syndrome_kind(s) in (wire.NAK, wire.RNR_NAK) for s in range(256)])
#: NAKs remembered, so that each is reported once.
_MOST: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class OrphanNak:
    """A NAK or RNR NAK for a PSN of no transfer yet: its packet was not seen.

    Attributes:
        src: the responder; dst, dest_qpn: the requester.
    """

    time_ns: int
    frame: int
    src: str
    dst: str
    dest_qpn: int
    psn: int
    syndrome: int


class OrphanNaks:
    """Remembers which NAKs were reported."""

    def __init__(self) -> None:
        self._reported: dict[int, None] = {}

    def is_new(self, frame: int) -> bool:
        """Whether this frame was not reported yet; from now on it is."""
        if frame in self._reported:
            return False
        self._reported[frame] = None
        if len(self._reported) > _MOST:
            del self._reported[next(iter(self._reported))]
        return True

    def new_in(self, packets: Packets) -> Iterator[OrphanNak]:
        """Those of a batch that were not reported."""
        naks = (packets.has & HAS["AETH"] != 0) & _IS_NAK[packets.syndrome]
        for i in np.flatnonzero(naks & (packets.icrc_state != ICRC_INVALID)).tolist():
            frame = int(packets.frame[i])
            if self.is_new(frame):
                yield OrphanNak(
                    int(packets.time_ns[i]),
                    frame,
                    packets.addresses[packets.src[i]],
                    packets.addresses[packets.dst[i]],
                    int(packets.dest_qpn[i]),
                    int(packets.psn[i]),
                    int(packets.syndrome[i]),
                )
