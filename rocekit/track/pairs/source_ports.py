"""UDP source ports that hosts derive from QPNs, and whether a pair of flows has them.

A17.3.2.1 leaves the source port to the sender. Two flows of one QP pair fit a rule if both ports are what it
gives: the port of each flow for the QPN that sends it and the QPN that it goes to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rocekit.track.pairs.waiting import Flow

_BITS: Final = 14
_LEAST: Final = 0xC000
_LOW: Final = (1 << _BITS) - 1
_FLOW_LABEL: Final = 0xFFFFF
_GOLDEN_RATIO: Final = 0x61C88647
_WORD: Final = 0xFFFFFFFF
#: A choice is sure if fewer than one in so many wrong choices fit by accident.
_ACCIDENT: Final = 1000


def of_both(own: int, other: int) -> int:
    """Linux: the flow label is a hash of the product of both QPNs, the port a hash of the flow label."""
    product = own * other
    product ^= product >> 20
    label = (product ^ product >> 40) & _FLOW_LABEL
    return _LEAST | (label & _LOW) ^ label >> _BITS


def of_hash(own: int, other: int) -> int:
    """rxe of older kernels: a hash of the own QPN."""
    return _LEAST + ((own * _GOLDEN_RATIO & _WORD) >> 32 - _BITS)


def of_own(own: int, other: int) -> int:
    """Some NICs: the low bits of the own QPN."""
    return _LEAST | own & _LOW


RULES: Final[tuple[Callable[[int, int], int], ...]] = (of_both, of_hash, of_own)


def fit(a: int, a_port: int, b: int, b_port: int) -> bool:
    """Whether QPs ``a`` and ``b`` send to each other from these ports under one of the rules.

    The rules stand here once more: a lobby may ask twenty times a packet, and most flows fit none.
    """
    if a_port == b_port and of_both(a, b) == a_port:  # it gives both the same
        return True
    hashed = _LEAST + ((a * _GOLDEN_RATIO & _WORD) >> 32 - _BITS)
    if hashed == a_port and _LEAST + ((b * _GOLDEN_RATIO & _WORD) >> 32 - _BITS) == b_port:
        return True
    return (_LEAST | a & _LOW) == a_port and (_LEAST | b & _LOW) == b_port


def of_peers(qpn: int, port: int) -> set[int]:
    """The ports of the flows that may be the other half of one from ``port``, whose own QPN is ``qpn``.

    ``of_both`` gives both flows one port, as does what derives none; the others look at one QPN each.
    """
    return {port, of_hash(qpn, 0), of_own(qpn, 0)}


def is_sure(candidates: int) -> bool:
    """Whether the only fitting one of so many candidates fits by accident in less than 1 of 1,000 cases."""
    return candidates * len(RULES) * _ACCIDENT < 1 << _BITS


class QpnsOfHosts:
    """The QPNs of two hosts.

    Attributes:
        same: whether both have a QP of the same number.
    """

    def __init__(self) -> None:
        self.same = False
        self._qpns: dict[int, set[int]] = {}

    def add(self, more: list[Flow]) -> None:
        """Flows more: once a number is on both sides, they say nothing new."""
        if self.same:
            return
        for flow in more:
            at_dst, at_src = self._qpns.get(flow.dst), self._qpns.get(flow.src)
            if at_dst is None:
                at_dst = self._qpns[flow.dst] = set()
            qpn = flow.qpn
            at_dst.add(qpn)
            if at_src is not None and flow.src != flow.dst and qpn in at_src:
                self.same = True
                return
