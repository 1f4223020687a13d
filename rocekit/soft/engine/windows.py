"""Memory windows: keys for parts of a region, bound and invalidated by work requests (10.6.7).

A window of type 1 belongs to its protection domain. A verb binds it and gives it a new R_Key each time. A
window of type 2 is bound by a work request to the QP on which that was posted (type 2B); the program chooses
the low byte of the key. The peer of that QP may invalidate it with SEND WITH INVALIDATE.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from rocekit.soft.engine.errors import verbs_error
from rocekit.soft.engine.memory import MR, NEED_LOCAL_WRITE, PD

RIGHTS: Final = frozenset({"REMOTE_WRITE", "REMOTE_READ", "REMOTE_ATOMIC"})
VARIANT_BITS: Final = 8
"""The low bits of an R_Key, which change with each binding; the other bits identify the window."""
_VARIANTS: Final = 1 << VARIANT_BITS


def next_key(rkey: int) -> int:
    """The key with its low byte incremented, as by ``ibv_inc_rkey``."""
    return rkey & ~(_VARIANTS - 1) | (rkey + 1) % _VARIANTS


class BindError(Exception):
    """A binding or an invalidation that is not allowed: it ends with ``MW_BIND_ERR`` (11.6.2)."""


@dataclass(eq=False, slots=True)
class MW:
    """A memory window.

    Attributes:
        kind: its type, 1 or 2.
        rkey: invalid while ``mr`` is None.
        mr: the region it is bound to.
        addr, length, access: the part of the region, and the rights.
        qpn: the QP that a window of type 2 is bound to.
    """

    pd: PD
    kind: int
    rkey: int
    mr: MR | None = None
    addr: int = 0
    length: int = 0
    access: frozenset[str] = frozenset()
    qpn: int | None = None

    def allows(self, pd: PD, qpn: int, addr: int, length: int, right: str) -> bool:
        """Whether the peer of that QP may do this (10.6.7.2.3)."""
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
    """What to bind a window to (``struct ibv_mw_bind_info``); 0 bytes unbind a window of type 1."""

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
            raise verbs_error(errno.EINVAL, f"a memory window gives no {', '.join(sorted(unknown))}")
        return cls(mw, mr, addr, length, rights)


@dataclass(eq=False)
class Windows:
    """A device's memory windows, by the constant bits of their keys."""

    _windows: dict[int, MW] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._windows)

    def add(self, pd: PD, kind: int, key: int) -> MW:
        """A new window, not bound.

        Args:
            key: its first R_Key, whose index no region and no other window has.

        Raises:
            VerbsError: EINVAL for a type other than 1 and 2.
        """
        if kind not in (1, 2):
            raise verbs_error(errno.EINVAL, f"a memory window has type 1 or 2, not {kind}")
        mw = MW(pd, kind, key)
        self._windows[key >> VARIANT_BITS] = mw
        pd.users += 1
        return mw

    def remove(self, mw: MW) -> None:
        if self._windows.pop(mw.rkey >> VARIANT_BITS, None) is not None:
            mw.pd.users -= 1
        mw.mr = None

    def of(self, rkey: int) -> MW | None:
        """The window with that R_Key, bound or not; or None."""
        mw = self._windows.get(rkey >> VARIANT_BITS)
        return mw if mw is not None and mw.rkey == rkey else None

    def bound_to(self, mr: MR) -> int:
        """How many windows are bound to a region."""
        return sum(mw.mr is mr for mw in self._windows.values())

    def bind(self, binding: Binding, pd: PD, qpn: int, variant: int) -> None:
        """Bind a window (10.6.7.2.1).

        Args:
            pd, qpn: of the QP on which the request was posted.
            variant: the low byte of the new key.

        Raises:
            BindError: the domain is another one, the window is bound already (type 2), or the region does
                not allow it.
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
        """Invalidate the key of a type 2 window (10.6.7.2.5); whether it was valid and bound to that QP."""
        mw = self.of(rkey)
        if mw is None or mw.kind != 2 or mw.mr is None or mw.pd is not pd or mw.qpn != qpn:
            return False
        mw.mr = None
        return True
