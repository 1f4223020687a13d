"""The scopes of flows: which VLAN, virtual network or tunnel each is in (see ``packets.wrapping``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from rocekit.packets import Packets

FlowKey = tuple[str, str, int, int]
"""What a flow's packets have in common: source address, destination address, destination QPN, scope."""


class FlowScopes:
    """The scopes of the flows in batches of one decoder.

    Attributes:
        of: by flow number, where it is not 0.
    """

    def __init__(self) -> None:
        self.of: dict[int, int] = {}

    def feed(self, packets: Packets) -> None:
        """Note the scopes of a batch's flows."""
        if len(packets.wrappings) > 1 and packets.encapsulation.any():
            scope = packets.scope
            flows, rows = np.unique(np.where(scope != 0, packets.flow, -1), return_index=True)
            self.of |= dict(zip(flows.tolist(), scope[rows].tolist(), strict=True))
            self.of.pop(-1, None)
