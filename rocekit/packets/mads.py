"""The MADs among packets, such as connection management; they are not transfers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rocekit.packets import Packets
from rocekit.wire import MAD_QPNS, OPCODE_NAMES
from rocekit.wire.mad import CmMessage, Mad, parse_mad


def find_mads(packets: Packets) -> Iterator[tuple[int, Mad]]:
    """The MADs among a batch's packets, as (row, MAD): UD SENDs to QP 0 or 1.

    Ask before the next batch is read, as for :meth:`rocekit.packets.Packets.payload`.
    """
    to_mad_qp = (packets.opcode == OPCODE_NAMES["UD_SEND_ONLY"]) & np.isin(packets.dest_qpn, MAD_QPNS)
    for row in np.flatnonzero(to_mad_qp).tolist():
        mad = parse_mad(packets.payload(row))
        if mad is not None:
            yield row, mad


class RequestPorts:
    """The ports that REQs named, for the messages that answer them and do not."""

    def __init__(self) -> None:
        self._ports: dict[tuple[object, object, int], int] = {}

    def of(self, cm: CmMessage | None, src: object, dst: object) -> int | None:
        """The port of the REQ that a message is or answers; ``src`` and ``dst``: its packet's addresses."""
        if cm is None:
            return None
        local, remote = cm.number("local_comm_id"), cm.number("remote_comm_id")
        if cm.port is not None and local is not None:
            self._ports[src, dst, local] = cm.port
            return cm.port
        return self._ports.get((dst, src, remote or 0))
