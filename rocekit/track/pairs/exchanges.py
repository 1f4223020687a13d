"""What programs tell each other of their QPs over TCP, in whatever form: text or C structs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rocekit.track.pairs.handshake import Handshakes, Offer
from rocekit.track.pairs.nccl_metadata import NcclExchanges

if TYPE_CHECKING:
    from rocekit.files.frames import FrameBatch


class Known(NamedTuple):
    """A pair, and the number and time of the frame that named its second end."""

    frame: int
    time_ns: int
    first: Offer
    second: Offer


class TcpExchanges:
    """The QP pairs that the TCP connections of a capture name. Fed batch by batch, in the capture's order."""

    def __init__(self) -> None:
        self._forms = Handshakes(), NcclExchanges()

    def feed(self, batch: FrameBatch, others: NDArray[np.int64]) -> list[Known]:
        """The pairs that became known with the frames ``others`` of ``batch``, in order of these frames."""
        found = [
            Known(int(batch.number[form.row]), int(batch.time_ns[form.row]), first, second)
            for form in self._forms
            for first, second in form.feed(batch, others)
        ]
        return sorted(found, key=lambda known: known.frame)
