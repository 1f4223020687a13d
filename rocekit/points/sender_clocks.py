"""Clocks of senders, where responses come before their requests though a file's times run forward.

Programs that merge files sort them by time. If the files are of ports with clocks of their own, the ACKs of
one direction then come before what they acknowledge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rocekit import wire
from rocekit.packets.time_order import BY_CLOCKS, TimeOrder
from rocekit.wire.sorting import distinct

Ints = NDArray[np.int64]

#: How many responses of a host must be before their requests, and what part of all.
_LEAST: Final = 4
_SHARE: Final = 0.25
#: A response that is earlier than so many times the median of these is one to another copy.
_FAR: Final = 4
_HOST_BITS: Final = 16

_IS_RC: Final = np.array([v in wire.OPCODES and wire.OPCODES[v].transport == "RC" for v in range(257)])
_IS_RESPONSE: Final = np.array([v in wire.OPCODES and wire.OPCODES[v].response for v in range(257)])


def clocks_of_responses(columns: Mapping[str, Ints], addresses: Sequence[str]) -> TimeOrder | None:
    """What to add to the times of responders whose responses come before their requests; None if none do.

    A request and its response have the same PSN; only PSNs count that two hosts have once in each direction.
    """
    if not columns or len(addresses) >= 1 << _HOST_BITS:
        return None
    rows = np.flatnonzero(_IS_RC[columns["opcode"]])
    response = _IS_RESPONSE[columns["opcode"][rows]]
    if not response.any() or response.all():
        return None
    src, dst = columns["src"][rows], columns["dst"][rows]
    way = np.where(response, dst << _HOST_BITS | src, src << _HOST_BITS | dst)  # requester, responder
    key = way << 24 | columns["psn"][rows]
    order = np.lexsort((response, key))
    key, way, response, time = key[order], way[order], response[order], columns["time_ns"][rows][order]
    same = np.r_[False, key[1:] == key[:-1], False]
    at = np.flatnonzero(~same[:-2] & same[1:-1] & ~same[2:] & ~response[:-1] & response[1:])
    gap, way = time[at + 1] - time[at], way[at]
    shifts: dict[str, int] = {}
    for one in distinct(way).tolist():
        gaps = gap[way == one]
        early = -gaps[gaps < 0]
        if len(early) < max(_LEAST, _SHARE * len(gaps)):
            continue
        near = early[early <= _FAR * np.median(early)]
        responder = addresses[one & ((1 << _HOST_BITS) - 1)]
        shifts[responder] = max(shifts.get(responder, 0), int(near.max()) + 1)
    return TimeOrder(0, 0, BY_CLOCKS, MappingProxyType(shifts)) if shifts else None
