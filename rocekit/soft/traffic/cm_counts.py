"""Messages of the connection manager, counted for each host by the Open Traffic Generator's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rocekit.wire import BTH, DETH
from rocekit.wire.cm import CM_ATTRIBUTES

#: OTG's column of each message, without ``_tx`` and ``_rx``.
_COLUMNS: Final = {
    "REQ": "connect_request",
    "REP": "connect_reply",
    "RTU": "ready",
    "DREQ": "disconnect_request",
    "DREP": "disconnect_reply",
    "REJ": "reject",
}
_UNKNOWN: Final = "unknown_msg_rx"
_UDP_BYTES: Final = 8
_ATTRIBUTE_AT: Final = _UDP_BYTES + BTH.length + DETH.length + 16


class CmCounts:
    """The counts of one host, to and from one address."""

    def __init__(self) -> None:
        self.columns = dict.fromkeys(
            [*(f"{c}_{way}" for c in _COLUMNS.values() for way in ("tx", "rx")), _UNKNOWN], 0
        )

    def seen(self, data: bytes, way: str) -> None:
        """A datagram to QP 1 was sent (``tx``) or arrived (``rx``)."""
        at = (20 if data[0] >> 4 == 4 else 40) + _ATTRIBUTE_AT
        layout = CM_ATTRIBUTES.get(int.from_bytes(data[at : at + 2], "big"))
        column = None if layout is None else _COLUMNS.get(layout.name)
        if column is not None:
            self.columns[f"{column}_{way}"] += 1
        elif way == "rx":
            self.columns[_UNKNOWN] += 1


def sum_of(counts: Sequence[CmCounts]) -> dict[str, int]:
    """The columns of several, added up."""
    return {name: sum(one.columns[name] for one in counts) for name in CmCounts().columns}
