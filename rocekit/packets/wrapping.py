"""What is around packets: tags, tunnels, labels, as text and as what makes traffic other traffic.

Packets of one *wrapping* have the same layers around them, with the same identifiers and outer addresses.
Wrappings of one *scope* have the same VLAN, VNI, key and so on, and the same outer addresses in either order.
Equal addresses and QPNs in two scopes are two connections. What a mirror adds, labels and segments are no
part of the scope: they differ with the direction, the way or the capture point.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
from numpy.typing import NDArray

Parts = tuple[tuple[str, ...], tuple[int, ...], tuple[str, ...]]
"""The layers, VLANs and outer addresses of a wrapping."""
_NETWORK_ID: Final = re.compile(r"(?:VNI|VSID|I-SID) (\d+)$")


if TYPE_CHECKING:

    class Reader(Protocol):
        """What has the wrappings of a capture by number."""

        def read(self, number: int) -> Parts:
            """What is around the packets of a wrapping."""
            ...


class Wrapping:
    """What is around some packets. The text is made when it is asked for: there may be one for each packet.

    Attributes:
        scope: the number of its scope; 0: none.
    """

    __slots__ = ("_number", "_parts", "_read", "scope")

    def __init__(
        self,
        scope: int = 0,
        layers: tuple[str, ...] = (),
        vlans: tuple[int, ...] = (),
        outer: tuple[str, ...] = (),
    ) -> None:
        self.scope = scope
        self._parts: Parts | None = (layers, vlans, outer)
        self._read: Reader | None = None
        self._number = 0

    def _known(self) -> Parts:
        if self._parts is None:
            assert self._read is not None
            self._parts, self._read = self._read.read(self._number), None
        return self._parts

    @property
    def layers(self) -> tuple[str, ...]:
        """The tags, tunnels and labels as text, the outermost first, with outer addresses."""
        return self._known()[0]

    @property
    def vlans(self) -> tuple[int, ...]:
        """The VLAN IDs of the packet itself, the outer tag first; those around a mirror's copy are not."""
        return self._known()[1]

    @property
    def outer(self) -> tuple[str, ...]:
        """The outer IP addresses, each pair's source first."""
        return self._known()[2]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Wrapping):
            return NotImplemented
        return self.scope == other.scope and (self is other or self._known() == other._known())

    def __hash__(self) -> int:
        return hash(self.scope)

    def __reduce__(self) -> tuple[type[Wrapping], tuple[object, ...]]:
        return Wrapping, (self.scope, *self._known())

    def __repr__(self) -> str:
        return f"Wrapping(scope={self.scope}, layers={self.layers}, vlans={self.vlans}, outer={self.outer})"

    @property
    def short(self) -> tuple[str, ...]:
        """The layers without outer addresses."""
        return tuple(layer for layer in self.layers if not layer.startswith("IPv"))

    @property
    def vni(self) -> int:
        """The innermost virtual network's identifier (VNI, VSID or I-SID); −1: none."""
        found = [match[1] for layer in self.layers if (match := _NETWORK_ID.search(layer))]
        return int(found[-1]) if found else -1


def unread(scope: int, read: Reader, number: int) -> Wrapping:
    """A wrapping whose layers, VLANs and outer addresses ``read`` has, once asked for."""
    wrapping: Wrapping = Wrapping.__new__(Wrapping)
    wrapping.scope, wrapping._parts, wrapping._read, wrapping._number = scope, None, read, number
    return wrapping


class MadeWrappings:
    """Wrappings by number, made when they are asked for: there may be one for each packet.

    Its subclass fills both columns, and has what is around each (``read``).
    """

    _made: list[Wrapping | None]
    _scope_of: Sequence[int]

    def at(self, number: int) -> Wrapping:
        """The wrapping with this number."""
        found = self._made[number]
        if found is None:
            found = unread(self._scope_of[number], self, number)  # type: ignore[arg-type]
            self._made[number] = found
        return found


#: Nothing but the link, IP and UDP.
PLAIN: Final = Wrapping()


def numbers_of(wrappings: Sequence[Wrapping], name: str, numbers: NDArray[np.int32]) -> NDArray[np.int64]:
    """An attribute, ``scope`` or ``vni``, of the wrappings with these numbers."""
    of_many: Callable[[NDArray[np.int32]], NDArray[np.int64]] | None
    of_many = getattr(wrappings, f"{name}s", None)
    if of_many is not None:  # a table, which need not make them
        return of_many(numbers)
    return np.array([getattr(wrappings[n], name) for n in numbers.tolist()], np.int64)
