"""What whole columns tell beside the tracker's loop: corrupted packets, and what each one-way flow looks
like.

The tracker follows messages; a question that needs no order of messages (which classes a flow rides, where
congestion was marked, which ICRCs were wrong) is answered here with NumPy, a batch at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from rocekit.decode import ICRC_INVALID
from rocekit.transfers import FRAME_BITS

if TYPE_CHECKING:
    from rocekit.decode import Packets

#: Corrupted and malformed packets kept one by one; beyond, they are only counted.
MAX_KEPT: Final = 10_000


@dataclass(frozen=True, slots=True)
class BadPacket:
    """A packet with a wrong ICRC, or malformed. What it says may itself be damaged.

    Attributes:
        frame: frame reference.
        malformed: 0, or a code of ``decode.MALFORMED``.
        icrc_wrong: whether the ICRC does not fit.
    """

    frame: int
    time_ns: int
    src: str
    dst: str
    dest_qpn: int
    psn: int
    opcode: int
    malformed: int
    icrc_wrong: bool


class Observer:
    """Collects from batches of packets what findings need and the tracker does not keep.

    Attributes:
        first_ns, last_ns: of all RoCE packets.
        bad: packets with wrong ICRCs or malformed, in the capture's order; bad_count: how many there were.
    """

    def __init__(self) -> None:
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self.bad: list[BadPacket] = []
        self.bad_count = 0

    def feed(self, packets: Packets) -> None:
        """Take a batch of packets, later than all before."""
        if not len(packets):
            return
        first, last = int(packets.time_ns.min()), int(packets.time_ns.max())
        self.first_ns = first if self.first_ns is None else min(first, self.first_ns)
        self.last_ns = last if self.last_ns is None else max(last, self.last_ns)
        self._note_bad(packets)

    def _note_bad(self, packets: Packets) -> None:
        wrong = packets.icrc_state == ICRC_INVALID
        rows = np.flatnonzero(wrong | (packets.malformed != 0))
        self.bad_count += len(rows)
        for i in rows[: MAX_KEPT - len(self.bad)].tolist():
            self.bad.append(
                BadPacket(
                    int(packets.file[i]) << FRAME_BITS | int(packets.frame[i]),
                    int(packets.time_ns[i]),
                    packets.addresses[int(packets.src[i])],
                    packets.addresses[int(packets.dst[i])],
                    int(packets.dest_qpn[i]),
                    int(packets.psn[i]),
                    int(packets.opcode[i]),
                    int(packets.malformed[i]),
                    bool(wrong[i]),
                )
            )
