"""When a packet passed a capture point that missed it, by the captures that have it.

A packet that only the second capture point on its way has would stand too late among the others, as if they
had overtaken it: it passed the first point earlier, by the usual delay, and between the same neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, permutations
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.wire.sorting import distinct, stable_order

if TYPE_CHECKING:
    from rocekit.packets.slim import SlimColumn

Ints = NDArray[np.int64]

#: Fewer packets that two captures share do not show the usual delay between them.
_LEAST: Final = 4
#: The packets of so few flows are looked for one flow after the other; those of more are sorted.
_FEW_FLOWS: Final = 250
#: The delay of a packet is the median of so many before it and as many behind it.
_NEAR: Final = 4


def passed(seen_ns: Sequence[SlimColumn], unseen: int, flow: SlimColumn, is_copy: NDArray[np.bool_]) -> Ints:
    """When each packet passed the first capture point on its way, measured or estimated.

    Args:
        seen_ns: by capture and packet, the aligned time at which the capture has it, or ``unseen``.
        flow: by packet, its one-way flow.
        is_copy: whether it may have been made behind the first point: another packet is equal, or it is
        corrupted.
    """
    passed_ns = np.full(len(is_copy), _NEVER)
    partly, shared = np.zeros((2, len(is_copy)), np.bool_)
    for seen in seen_ns:
        for at, times in seen.pieces():
            here = slice(at, at + len(times))
            has = times != unseen
            shared[here] |= has & (passed_ns[here] != _NEVER)
            np.minimum(passed_ns[here], times, out=passed_ns[here], where=has)
            partly[here] |= ~has
    partly &= ~is_copy
    if not partly.any() or not shared.any():
        return passed_ns
    wanted = distinct(flow[partly])
    for rows in _rows_of_flows(flow, wanted[_flows_with(flow, shared)[wanted]]):
        own = _with_common([seen[rows] for seen in seen_ns], unseen)
        for first_ns, second_ns in permutations(own, 2):
            _estimate(passed_ns, rows, first_ns, second_ns, unseen, partly)
    return passed_ns


def _flows_with(flow: SlimColumn, packets: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """By flow, whether any of its packets is one of these."""
    found = np.zeros(1 + (flow.bounds() or (0, 0))[1], np.bool_)
    for at, own in flow.pieces():
        found[own[packets[at : at + len(own)]]] = True
    return found


def _with_common(seen_ns: list[Ints], unseen: int) -> list[Ints]:
    """The captures that may share enough of a flow's packets with another one: of many files, few do."""
    has = [seen != unseen for seen in seen_ns]
    shared = np.sum(has, axis=0) > 1
    if int(shared.sum()) < _LEAST:
        return []
    return [seen for seen, own in zip(seen_ns, has, strict=True) if int((own & shared).sum()) >= _LEAST]


def _rows_of_flows(flow: SlimColumn, wanted: Ints) -> Iterator[Ints]:
    """The packets of each of these flows."""
    if not len(wanted):
        return
    last = int(wanted[-1])
    kind = np.uint8 if last < np.iinfo(np.uint8).max else np.int32
    numbers = np.empty(len(flow), kind)  # 0: of another flow
    place = np.zeros(1 + max(last, (flow.bounds() or (0, 0))[1]), kind)
    place[wanted] = np.arange(1, len(wanted) + 1)
    for at, own in flow.pieces():
        numbers[at : at + len(own)] = place[own]
    if len(wanted) <= _FEW_FLOWS:
        for number in range(1, len(wanted) + 1):
            yield np.flatnonzero(numbers == number)
        return
    order = stable_order(numbers)
    begins = np.searchsorted(numbers[order], np.arange(1, len(wanted) + 2)).tolist()
    for begin, end in pairwise(begins):
        yield order[begin:end]


_NEVER: Final = np.iinfo(np.int64).max


def _estimate(
    passed_ns: Ints, rows: Ints, first_ns: Ints, second_ns: Ints, unseen: int, partly: NDArray[np.bool_]
) -> None:
    """Estimate when packets that only the second point has passed the first one."""
    both = np.flatnonzero((first_ns != unseen) & (second_ns != unseen))
    missed = np.flatnonzero((first_ns == unseen) & (second_ns != unseen) & partly[rows])
    if len(both) < _LEAST or not len(missed):
        return
    both = both[np.argsort(second_ns[both], kind="stable")]
    delay_ns = second_ns[both] - first_ns[both]
    if np.median(delay_ns) <= 0:
        return
    at = np.searchsorted(second_ns[both], second_ns[missed])
    near = np.clip(at[:, None] + np.arange(-_NEAR, _NEAR)[None, :], 0, len(both) - 1)
    delays_ns = delay_ns[near]
    guess = second_ns[missed] - np.median(delays_ns, axis=1).astype(np.int64)
    before = first_ns[both][np.clip(at - 1, 0, len(both) - 1)]
    behind = first_ns[both][np.clip(at, 0, len(both) - 1)]
    inside = (at > 0) & (at < len(both)) & (before <= behind)
    guess = np.where(inside, np.clip(guess, before, behind), guess)
    # The neighbour behind it was overtaken by the one before it, and what is slow says nothing of the others:
    # in order with the fast ones it left as late as can be.
    guess = np.where(before > behind, second_ns[missed] - np.maximum(delays_ns.min(axis=1), 0), guess)
    # Before the first packet that both have, and behind the last, the first point's capture need not have
    # run: all that there is is the second's, in its order and by its times.
    outside = (at == 0) | (at == len(both))
    own_ns = np.where(at == 0, np.minimum(second_ns[missed], first_ns[both[0]] - 1), second_ns[missed])
    guess = np.where(outside, own_ns, guess)
    passed_ns[rows[missed]] = np.minimum(passed_ns[rows[missed]], guess)
