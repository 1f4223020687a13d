"""The MADs among packets, such as connection management; they are not transfers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rocekit.packets import Packets
from rocekit.wire import MAD_QPNS, OPCODE_NAMES
from rocekit.wire.mad import Mad, parse_mad


def find_mads(packets: Packets) -> Iterator[tuple[int, Mad]]:
    """The MADs among a batch's packets, as (row, MAD): UD SENDs to QP 0 or 1.

    Ask before the next batch is read, as for :meth:`rocekit.packets.Packets.payload`.
    """
    to_mad_qp = (packets.opcode == OPCODE_NAMES["UD_SEND_ONLY"]) & np.isin(packets.dest_qpn, MAD_QPNS)
    for row in np.flatnonzero(to_mad_qp).tolist():
        mad = parse_mad(packets.payload(row))
        if mad is not None:
            yield row, mad
