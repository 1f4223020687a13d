"""What programs tell each other of their QPs over TCP, in whatever form: text or C structs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rocekit.track.pairs.handshake import Handshakes, Offer
from rocekit.track.pairs.nccl_metadata import NcclExchanges

if TYPE_CHECKING:
    from rocekit.files.frames import FrameBatch


class TcpExchanges:
    """The QP pairs that the TCP connections of a capture name. Fed batch by batch, in the capture's order."""

    def __init__(self) -> None:
        self._forms = Handshakes(), NcclExchanges()

    def feed(self, batch: FrameBatch, others: NDArray[np.int64]) -> Iterator[tuple[Offer, Offer]]:
        """The two ends of each pair that became known with the frames ``others`` of ``batch``."""
        for form in self._forms:
            yield from form.feed(batch, others)
