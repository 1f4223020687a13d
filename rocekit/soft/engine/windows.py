"""Memory windows: keys for parts of a region, made and taken back by work requests (10.6.7).

A window of type 1 belongs to its protection domain and is bound by a verb, which gives it a new R_Key each
time. A window of type 2 is bound by a work request, whose program chooses the key's low byte, to the queue
pair that it was posted to (type 2B); a peer of that QP may take it back with SEND WITH INVALIDATE.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from rocekit.soft.engine.memory import MR, NEED_LOCAL_WRITE, PD
from rocekit.soft.engine.work import refuse

RIGHTS: Final = frozenset({"REMOTE_WRITE", "REMOTE_READ", "REMOTE_ATOMIC"})
VARIANT_BITS: Final = 8
"""The low bits of an R_Key, which change from one binding to the next; the rest names the window."""
_VARIANTS: Final = 1 << VARIANT_BITS


def next_key(rkey: int) -> int:
    """The key with its low byte counted up, as ``ibv_inc_rkey`` does."""
    return rkey & ~(_VARIANTS - 1) | (rkey + 1) % _VARIANTS


class BindError(Exception):
    """A binding or an invalidation that must not be: it ends as the status ``MW_BIND_ERR`` (11.6.2)."""


@dataclass(eq=False, slots=True)
class MW:
    """A memory window.

    Attributes:
        kind: its type, 1 or 2.
        rkey: good for nothing while ``mr`` is None.
        mr: the region it is bound to. addr, length, access: to what of it, for what.
        qpn: the queue pair that a window of type 2 is bound to.
    """

    pd: PD
    kind: int
    rkey: int
    mr: MR | None = None
    addr: int = 0
    length: int = 0
    access: frozenset[str] = frozenset()
    qpn: int | None = None

    def lets(self, pd: PD, qpn: int, addr: int, length: int, right: str) -> bool:
        """Whether a peer of that queue pair may do this (10.6.7.2.3)."""
        return (
            self.mr is not None
            and self.mr.valid
            and self.pd is pd
            and self.qpn in (None, qpn)
            and right in self.access
            and self.addr <= addr
            and addr + length <= self.addr + self.length
        )


@dataclass(frozen=True, slots=True)
class Binding:
    """What a window is to be bound to (``struct ibv_mw_bind_info``); no bytes unbind one of type 1."""

    mw: MW
    mr: MR
    addr: int
    length: int
    access: frozenset[str]

    @classmethod
    def to(cls, mw: MW, mr: MR, addr: int, length: int, access: Iterable[str]) -> Binding:
        """Raises VerbsError EINVAL for rights that a window cannot give."""
        rights = frozenset(access)
        unknown = rights - RIGHTS
        if unknown:
            raise refuse(errno.EINVAL, f"a memory window gives no {', '.join(sorted(unknown))}")
        return cls(mw, mr, addr, length, rights)


@dataclass(eq=False)
class Windows:
    """A device's memory windows, by what their keys have in common."""

    _windows: dict[int, MW] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._windows)

    def add(self, pd: PD, kind: int, key: int) -> MW:
        """A window that is not bound to anything yet.

        Args:
            key: its first R_Key, of no region's or other window's index.

        Raises:
            VerbsError: EINVAL for another type than 1 and 2.
        """
        if kind not in (1, 2):
            raise refuse(errno.EINVAL, f"a memory window has type 1 or 2, not {kind}")
        mw = MW(pd, kind, key)
        self._windows[key >> VARIANT_BITS] = mw
        pd.users += 1
        return mw

    def remove(self, mw: MW) -> None:
        if self._windows.pop(mw.rkey >> VARIANT_BITS, None) is not None:
            mw.pd.users -= 1
        mw.mr = None

    def of(self, rkey: int) -> MW | None:
        """The window with that R_Key, bound or not."""
        mw = self._windows.get(rkey >> VARIANT_BITS)
        return mw if mw is not None and mw.rkey == rkey else None

    def bound_to(self, mr: MR) -> int:
        """How many windows a region has."""
        return sum(mw.mr is mr for mw in self._windows.values())

    def bind(self, binding: Binding, pd: PD, qpn: int, variant: int) -> None:
        """Bind a window (10.6.7.2.1).

        Args:
            pd, qpn: the queue pair's that it was asked of.
            variant: the new key's low byte.

        Raises:
            BindError: it is another domain's, bound already (type 2), or its region does not allow it.
        """
        mw, mr = binding.mw, binding.mr
        if mw.pd is not pd or mr.pd is not pd or self._windows.get(mw.rkey >> VARIANT_BITS) is not mw:
            raise BindError
        if mw.kind == 2 and (mw.mr is not None or not binding.length):
            raise BindError
        if binding.length:
            if "MW_BIND" not in mr.access or not mr.covers(binding.addr, binding.length):
                raise BindError
            if binding.access & NEED_LOCAL_WRITE and "LOCAL_WRITE" not in mr.access:
                raise BindError
        mw.rkey = mw.rkey >> VARIANT_BITS << VARIANT_BITS | variant % _VARIANTS
        mw.mr = mr if binding.length else None
        mw.addr, mw.length, mw.access = binding.addr, binding.length, binding.access
        mw.qpn = qpn if mw.kind == 2 else None

    def invalidate(self, pd: PD, qpn: int, rkey: int) -> bool:
        """Take a type 2 window's key back (10.6.7.2.5); whether there was one that may be taken there."""
        mw = self.of(rkey)
        if mw is None or mw.kind != 2 or mw.mr is None or mw.pd is not pd or mw.qpn != qpn:
            return False
        mw.mr = None
        return True
