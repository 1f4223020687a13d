"""The scopes of flows: which VLAN, virtual network or tunnel each is in (see ``packets.wrapping``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rocekit.packets import Packets

FlowKey = tuple[str, str, int, int]
"""What a flow's packets have in common: source address, destination address, destination QPN, scope."""


class FlowScopes:
    """The scopes of the flows in batches of one decoder."""

    def __init__(self) -> None:
        self._of = np.zeros(0, np.int64)

    def feed(self, packets: Packets) -> None:
        """Note the scopes of a batch's flows."""
        if len(self._of) or (len(packets.wrappings) > 1 and packets.encapsulation.any()):
            more = int(packets.flow.max(initial=-1)) + 1 - len(self._of)
            if more > 0:  # twice as many, so that few batches copy them
                self._of = np.append(self._of, np.zeros(more + len(self._of), np.int64))
            self._of[packets.flow] = packets.scope

    def of(self, flows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The scope of each flow, by its number."""
        found = np.zeros(len(flows), np.int64)
        known = flows < len(self._of)
        found[known] = self._of[flows[known]]
        return found
