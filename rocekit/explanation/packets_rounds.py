"""Which time each packet is sent, and why it is sent again: the events of transfers on their packets."""

from __future__ import annotations

from typing import Final

import numpy as np

from rocekit.explanation.packets_draft import (
    ACK,
    AFTER_IMPLIED_NAK,
    AFTER_NAK,
    AFTER_RNR,
    ASKED_AGAIN,
    CAUSES,
    DATAGRAM,
    NAK,
    PSN_BITS,
    REQUEST,
    RESPONSE,
    RNR_NAK,
    Bools,
    Draft,
    Ints,
)
from rocekit.track.causes import OBEYED_NS
from rocekit.track.events import Event
from rocekit.wire.sorting import distinct

_OWN: Final = frozenset({"nak", "rnr_nak", "repeat", "response_repeat", "late", "duplicate"})
_GAPS: Final = frozenset({"hole", "response_hole", "jump"})


def find_rounds(d: Draft) -> None:
    """Events, rounds and causes; packets have found their places."""
    _attach_events(d)
    _count_rounds(d)
    _find_causes(d)


def _attach_events(d: Draft) -> None:
    """Attach every event to its packets."""
    spaces: list[int] = []
    for transfer in d.analysis.transfers:
        for event in transfer.events:
            d.events.append(event)
            spaces.append(transfer.connection.id * 2 + transfer.side)
    for connection in d.analysis.connections:
        for event in (*connection.stray_events, *connection.jumps):
            d.events.append(event)
            spaces.append(connection.id * 2 + event.side)
    if not d.events:
        return
    row = d.finder.rows(np.array([e.frame for e in d.events], np.int64))
    last = d.finder.rows(np.array([e.last_frame or e.frame for e in d.events], np.int64))
    spaces_in_order = d.space[d.by_space]
    for i, (event, at, end) in enumerate(zip(d.events, row.tolist(), last.tolist(), strict=True)):
        if at < 0:
            continue
        if event.kind in _GAPS:
            d.own("gap")[at] = i
        elif event.kind in _OWN:
            d.own("event")[at] = i
            if event.kind == "duplicate":
                d.own("duplicate")[at] = True
            if event.count > 1 and end > at:
                low, high = np.searchsorted(spaces_in_order, (spaces[i], spaces[i] + 1))
                _spread(d, i, event, d.by_space[low:high], at, end)


def _spread(d: Draft, i: int, event: Event, mine: Ints, at: int, end: int) -> None:
    """An event of several packets, from row ``at`` to row ``end`` of its PSN space's rows."""
    rows = mine[np.searchsorted(mine, at) : np.searchsorted(mine, end, "right")]
    role = RESPONSE if event.kind == "response_repeat" else REQUEST
    psn = d.psn[rows]
    fits = (d.role[rows] == role) & (psn >= event.psn) & (psn <= event.last_psn)
    rows = rows[fits & ~d.duplicate[rows]]
    d.own("event")[rows] = i


def _kind_is(d: Draft, *kinds: str) -> Bools:
    table = np.array([e.kind in kinds for e in d.events] + [False])
    return table[d.event]


def _count_rounds(d: Draft) -> None:
    """Which time each PSN is sent. A READ request counts for its READ, wherever it restarts."""
    datagrams = np.flatnonzero((d.role == DATAGRAM) & (d.transfer >= 0))
    own, role = [datagrams], d.role[d.by_space]
    for kind in (REQUEST, RESPONSE):
        rows = d.by_space[role == kind]
        key = d.space[rows]
        key <<= PSN_BITS
        key += _counted_psn(d, rows)
        again = _sent_again(key)
        del key
        d.round[rows] = 1
        own.append(rows[again])
    unseen = _kind_is(d, "repeat", "response_repeat")
    d.round[unseen & (d.round == 1)] = 2
    rows = np.sort(np.concatenate(own))
    if not len(rows):
        return
    psn = _counted_psn(d, rows)
    space = np.where(d.role[rows] == DATAGRAM, -1 - d.transfer[rows].astype(np.int64), d.space[rows])
    response = d.role[rows] == RESPONSE
    order = np.lexsort((rows, psn, response, space))
    r, key = rows[order], np.stack([space[order], response[order], psn[order]])
    fresh = np.r_[True, (key[:, 1:] != key[:, :-1]).any(axis=0)]
    begins = np.flatnonzero(fresh)
    run = np.cumsum(fresh) - 1
    d.own("before")[r[1:][~fresh[1:]]] = r[:-1][~fresh[1:]]
    # An original that arrives after its repeat is still the first transmission.
    late = _kind_is(d, "late")[r] & ~fresh
    sent = np.cumsum(~(d.duplicate[r] | late))
    count = sent - np.r_[0, sent][begins][run]
    # A repeat whose first transmission is not in the capture was lost before it.
    d.round[r] = np.where(late, 1, np.maximum(count, 1) + unseen[r[begins]][run])


def _counted_psn(d: Draft, rows: Ints) -> Ints:
    """The PSN that each packet counts for."""
    psn = d.psn[rows]
    reads = d.is_read[rows] & (d.transfer[rows] >= 0)
    if reads.any():
        psn[reads] = d.transfers.numbers("first_psn")[d.transfer[rows[reads]]]
    return psn


def _sent_again(key: Ints) -> Ints:
    """Places of packets that share their space and PSN, their ``key``, with others, and of some that do not.

    The packets are sorted by space and time. Nearly all PSNs are above those before them.
    """
    most = np.maximum.accumulate(key)
    later = np.flatnonzero(key[1:] <= most[:-1]) + 1
    first = np.searchsorted(most, key[later])
    return distinct(np.concatenate([later, first[key[first] == key[later]]]))


def _find_causes(d: Draft) -> None:
    """Why a packet was sent again."""
    codes = {name: code for code, name in enumerate(CAUSES)}
    of_event = np.array([codes.get(e.cause or "", 0) for e in d.events] + [0], np.int8)
    repeats = _kind_is(d, "repeat")
    if d.events:
        cause = d.own("cause")
        cause[repeats] = of_event[d.event[repeats]]
        cause[_kind_is(d, "response_repeat")] = ASKED_AGAIN
    _cause_of_runs(d)
    _cause_of_responses(d)


def _cause_of_runs(d: Draft) -> None:
    """The cause of a go-back: the NAK or RNR NAK from which its wait counts, else the last before it.

    Of missing responses it is the last response before it.
    """
    openings: dict[tuple[int, int], int] = {}
    for code, roles in (
        (AFTER_NAK, (NAK,)),
        (AFTER_RNR, (RNR_NAK,)),
        (AFTER_IMPLIED_NAK, (ACK, RESPONSE)),
    ):
        again = np.flatnonzero((d.cause == code) & (d.space >= 0))
        if not len(again):
            continue
        runs = _runs(d, again)
        causes = np.flatnonzero((d.space >= 0) & np.isin(d.role, roles))
        n = len(d.packets) + 1
        key = np.sort(d.space[causes] * n + causes)
        for row, run in zip(again.tolist(), runs, strict=True):
            if run in openings:
                d.own("cause_row")[row] = openings[run]
                continue
            space = int(d.space[row])
            at = int(np.searchsorted(key, space * n + row)) - 1
            found = int(key[at] - space * n) if at >= 0 and key[at] >= space * n else -1
            event = d.events[d.event[row]]
            if code != AFTER_IMPLIED_NAK and event.opens:
                found = _obeyed(d, key, space * n, at, event, found)
            openings[run] = d.own("cause_row")[row] = found


def _obeyed(d: Draft, key: Ints, base: int, at: int, event: Event, last: int) -> int:
    """The row of the NAK or RNR NAK from which a wait counts; else ``last``, if it may be the cause."""
    times = d.packets.time_ns
    since_ns = event.time_ns - event.waited_ns
    while at >= 0 and key[at] >= base and times[row := int(key[at] - base)] >= since_ns:
        if times[row] == since_ns:
            return row
        at -= 1
    return -1 if event.cause == "nak" and event.waited_ns > OBEYED_NS else last


def _runs(d: Draft, rows: Ints) -> list[tuple[int, int]]:
    """(PSN space, number of the go-back) of each row."""
    numbers = np.array([e.run for e in d.events] + [0], np.int64)[d.event[rows]]
    return list(zip(d.space[rows].tolist(), numbers.tolist(), strict=True))


def _cause_of_responses(d: Draft) -> None:
    """A response is sent again because its request was sent again."""
    again = np.flatnonzero((d.cause == ASKED_AGAIN) & (d.transfer >= 0))
    if not len(again):
        return
    requests = np.flatnonzero((d.role == REQUEST) & (d.transfer >= 0))
    if not len(requests):
        return
    n = len(d.packets) + 1
    key = np.sort(d.transfer[requests].astype(np.int64) * n + requests)
    own = d.transfer[again].astype(np.int64) * n
    at = np.searchsorted(key, own + again) - 1
    found = np.where(at >= 0, key[np.maximum(at, 0)] - own, -1)
    d.own("cause_row")[again] = np.where(found >= 0, found, -1)
