"""What is around packets: tags, tunnels, labels, as text and as what makes traffic other traffic.

Packets of one *wrapping* have the same layers around them, with the same identifiers and outer addresses.
Wrappings of one *scope* have the same VLAN, VNI, key and so on, and the same outer addresses in either order.
Equal addresses and QPNs in two scopes are two connections. What a mirror adds, labels and segments are no
part of the scope: they differ with the direction, the way or the capture point.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_NETWORK_ID: Final = re.compile(r"(?:VNI|VSID|I-SID) (\d+)$")


class Wrapping(NamedTuple):
    """What is around some packets.

    Attributes:
        scope: the number of its scope; 0: none.
        layers: the tags, tunnels and labels as text, the outermost first, with outer addresses.
        outer: the outer IP addresses, each pair's source first.
        vlans: the VLAN IDs of the packet itself, the outer tag first; those around a mirror's copy are not.
    """

    scope: int = 0
    layers: tuple[str, ...] = ()
    vlans: tuple[int, ...] = ()
    outer: tuple[str, ...] = ()

    @property
    def short(self) -> tuple[str, ...]:
        """The layers without outer addresses."""
        return tuple(layer for layer in self.layers if not layer.startswith("IPv"))

    @property
    def vni(self) -> int:
        """The innermost virtual network's identifier (VNI, VSID or I-SID); −1: none."""
        found = [match[1] for layer in self.layers if (match := _NETWORK_ID.search(layer))]
        return int(found[-1]) if found else -1


#: Nothing but the link, IP and UDP.
PLAIN: Final = Wrapping()
