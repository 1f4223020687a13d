"""Pairs of flows by the times of their responses, where PSNs and source ports leave several.

QPs that send in step, all from PSN 0 (collective libraries), have responses that fit each other's requests.
Only a flow's own requests are answered after a steady time: the responder's turnaround. The time between a
response and another flow's request of the same PSN also has how far the two requests were apart, which
changes. So the flow with by far the steadiest times is probably the right one. Two hosts that serve their
QPs in strict turn leave nothing to tell them apart, and so do few responses: then nothing is decided.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

import numpy as np

from rocekit.track.bulk import singles
from rocekit.wire import ACK, OPERATION, SYNDROME_KIND
from rocekit.wire.packet_kinds import KINDS, REQUEST

if TYPE_CHECKING:
    from rocekit.track.pairs.waiting import Flow

#: Responses of which the request is known, at least.
_LEAST: Final = 12
#: More than these say no more.
_MOST: Final = 2048
#: The times of a flow's own responses spread less than those of others by this factor, and by more where
#: there are few of them: ``_STEADIER + _FEW / sqrt(responses)``.
_STEADIER: Final = 1.25
_FEW: Final = 3.0
#: What no clock of a capture tells apart.
_RESOLUTION_NS: Final = 100
#: Of the times, so many of a hundred at each end do not count: waits, repeats.
_ENDS: Final = 10
#: More flows than these one way are not compared.
MOST_FLOWS: Final = 128

_IS_ACK: Final = tuple(OPERATION[opcode] == "ACK" for opcode in range(256))
Times = dict[int, int]


def pairs(flows: Iterable[Flow], may_pair: Callable[[Flow, Flow], bool]) -> Iterator[tuple[Flow, Flow]]:
    """(Requester, responder) of those of the flows whose response times tell.

    Args:
        flows: those that wait, with their packets.
        may_pair: whether a requester and a responder go together by all else.
    """
    waiting = [flow for flow in flows if flow.held]
    if len(waiting) > 2 * MOST_FLOWS or all(flow.responses < _LEAST for flow in waiting):
        return
    requests, responses = {}, {}
    for flow in waiting:
        requests[flow], responses[flow] = _times(flow)
    steadiest: dict[Flow, Flow] = {}
    clear: list[Flow] = []
    for responder, answered in responses.items():
        candidates = {f: requests[f] for f in waiting if requests[f] and may_pair(f, responder)}
        found = _steadiest(answered, candidates)
        if found is not None:
            steadiest[responder], is_clear = found
            clear += [responder] * is_clear
    # Each flow has one other half, and both directions must agree where both have responses. A flow whose
    # requests set the pace of several (a host that serves one after the other) is steady beside all of them.
    times = Counter(steadiest.values())
    done: set[Flow] = set()
    for responder in clear:
        requester = steadiest[responder]
        if times[requester] == 1 and steadiest.get(requester, responder) is responder:
            if responder not in done:
                yield requester, responder
            done |= {responder, requester}


def _times(flow: Flow) -> tuple[Times, Times]:
    """When it requested each PSN, and when it acknowledged each; PSNs that came twice are left out."""
    requested: Times = {}
    answered: Times = {}
    twice: tuple[set[int], set[int]] = (set(), set())
    for _, _, r, i, _ in islice(singles(flow.held), 16 * _MOST):
        psn, opcode = r.psn[i], r.opcode[i]
        if KINDS[opcode] == REQUEST:
            times, again = requested, twice[0]
        elif _IS_ACK[opcode] and SYNDROME_KIND[r.syndrome[i]] == ACK and len(answered) < _MOST:
            times, again = answered, twice[1]
        else:
            continue
        if psn in times:
            again.add(psn)
        times[psn] = r.time_ns[i]
    for times, again in zip((requested, answered), twice, strict=True):
        for psn in again:
            del times[psn]
    return requested, answered


def _steadiest(answered: Times, candidates: dict[Flow, Times]) -> tuple[Flow, bool] | None:
    """The flow whose requests are answered after the steadiest time, and whether by far."""
    if len(answered) < _LEAST:
        return None
    spreads: list[tuple[float, int, Flow]] = []
    for n, (flow, requested) in enumerate(candidates.items()):
        times = np.array([at - requested[psn] for psn, at in answered.items() if psn in requested], np.int64)
        # A response comes after its request; one in a hundred may be stamped too early.
        if len(times) < max(_LEAST, len(answered) // 2) or (times < 0).sum() * 100 > len(times):
            continue
        low, high = np.percentile(times, (_ENDS, 100 - _ENDS))
        spreads.append((float(high - low) + _RESOLUTION_NS, n, flow))
    if not spreads:
        return None
    spreads.sort(key=lambda one: one[:2])
    factor = _STEADIER + _FEW / math.sqrt(len(answered))
    return spreads[0][2], len(spreads) == 1 or spreads[0][0] * factor <= spreads[1][0]
