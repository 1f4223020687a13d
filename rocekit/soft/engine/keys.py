"""A device's L_Keys and R_Keys: the region or memory window behind each, and what it allows (10.6.3)."""

from __future__ import annotations

from collections.abc import Iterable

from rocekit.soft.engine.memory import MR, PD, Regions, Scatter, Sge
from rocekit.soft.engine.windows import Binding, Windows


class Keys:
    """The keys of one device.

    Args:
        max_regions: how many regions there may be.
    """

    __slots__ = ("regions", "windows")

    def __init__(self, max_regions: int) -> None:
        self.regions = Regions(max_regions)
        self.windows = Windows()

    def scatter(self, pd: PD, sges: Iterable[Sge], *, write: bool) -> Scatter:
        """The memory of a scatter-gather list; errors as of :meth:`Regions.scatter`."""
        return self.regions.scatter(pd, sges, write=write)

    def bind(self, binding: Binding, pd: PD, qpn: int, variant: int) -> None:
        """Bind a window; arguments and errors as of :meth:`Windows.bind`."""
        self.windows.bind(binding, pd, qpn, variant)

    def remote(self, pd: PD, qpn: int, rkey: int, addr: int, length: int, right: str) -> MR | None:
        """The region that the peer of a QP may use with this R_Key, a region's or a window's; or None."""
        mw = self.windows.of(rkey)
        if mw is not None:
            return mw.mr if mw.allows(pd, qpn, addr, length, right) else None
        return self.regions.remote(pd, rkey, addr, length, right)

    def invalidate(self, pd: PD, qpn: int, rkey: int) -> bool:
        """Invalidate an R_Key; whether it was one that may be invalidated there."""
        if self.windows.of(rkey) is not None:
            return self.windows.invalidate(pd, qpn, rkey)
        return self.regions.invalidate(pd, rkey)
