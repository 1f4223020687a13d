"""Where each packet belongs: its connection, sender, unwrapped PSN, and transfer."""

from __future__ import annotations

from typing import Final

import numpy as np

from rocekit import wire
from rocekit.explanation.packets_draft import (
    ACK,
    ACK_OR_NAK,
    CM,
    DATAGRAM,
    IGNORED,
    NAK,
    PSN_BITS,
    REQUEST,
    RESPONSE,
    RNR_NAK,
    Draft,
    Ints,
    among,
)
from rocekit.flows.sent_by import FlowKeys, senders
from rocekit.packets import ICRC_INVALID
from rocekit.wire.psn import HALF, MASK, MODULO
from rocekit.wire.sorting import stable_order, starts

#: Packets whose transfers are looked for at once: of all of a large capture it would take much memory.
_AT_ONCE: Final = 1 << 18


def find_places(d: Draft) -> None:
    """Connections, sides, PSN spaces, PSNs and transfers."""
    _place(d)
    _leave_out(d)
    _management(d)
    _unwrap(d)
    _find_transfers(d)
    _datagrams(d)


def _place(d: Draft) -> None:
    """The connection of each packet and the side that sent it, by addresses, QPNs and time."""
    p = d.packets
    ways = FlowKeys()
    ways.feed(p)
    source = np.broadcast_to(np.full(1, -1, np.int64), len(p))
    datagrams = d.role == DATAGRAM
    if datagrams.any():
        source = np.where(datagrams, p.src_qpn.astype(np.int64), -1)
    found = senders(p.flow, source, p.time_ns, ways.names(), d.analysis.connections)
    d.connection[:] = np.where(found < 0, -1, found >> 1)
    d.sender[:] = np.where(found < 0, -1, found & 1)


def _leave_out(d: Draft) -> None:
    """Packets that receivers drop are in no transfer, unless the tracker ignored wrong ICRCs."""
    p = d.packets
    wrong = p.icrc_state == ICRC_INVALID
    evidence = d.analysis.evidence
    if evidence is not None and evidence.icrc_ignored and wrong.any():
        trusted = np.array([c.bad_icrc_count == 0 for c in d.analysis.connections] + [False])
        wrong &= ~trusted[d.connection]
    d.role[(p.malformed != 0) | (p.opcode < 0) | wrong] = IGNORED


def _management(d: Draft) -> None:
    """CM messages, and the connections that they made."""
    datagrams = np.flatnonzero(d.role == DATAGRAM)
    d.role[datagrams[np.isin(d.packets.dest_qpn[datagrams], wire.MAD_QPNS)]] = CM
    records = list(d.analysis.cm)
    rows = d.finder.rows(np.array([r.frame for r in records], np.int64))
    for record, row in zip(records, rows.tolist(), strict=True):
        if row < 0:
            continue
        d.cm[row] = record
        if record.connection is not None:
            d.connection[row] = record.connection.id
            d.sender[row] = int(record.connection.ips[0] != record.src)


def _unwrap(d: Draft) -> None:
    """Unwrap the PSNs of each PSN space: the requests of one side and the responses to them."""
    rows = np.flatnonzero(
        (d.connection >= 0) & among(d.role, REQUEST, RESPONSE, ACK, NAK, RNR_NAK, ACK_OR_NAK)
    )
    if not len(rows):
        return
    # Of a large capture each column takes much memory: none is kept longer than it is needed.
    requester = d.sender[rows] ^ (d.role[rows] != REQUEST)
    space = d.connection[rows].astype(np.int64)
    space *= 2
    space += requester
    d.space[rows] = space
    order = stable_order(space)
    rows = d.by_space = rows[order]
    space = space[order]
    begins = starts(space)
    spaces = space[begins].tolist()
    del requester, order, space
    raw = d.packets.psn[rows].astype(np.int32)
    step = np.zeros(len(rows), np.int32)
    np.subtract(raw[1:], raw[:-1], out=step[1:])
    step += HALF
    step &= MASK
    step -= HALF
    bases = [_begin(d, one, int(raw[b])) for one, b in zip(spaces, begins.tolist(), strict=True)]
    step[begins] = 0
    along = np.cumsum(step, dtype=np.int64)
    del raw, step
    along += np.repeat(np.array(bases, np.int64) - along[begins], np.diff(np.r_[begins, len(rows)]))
    d.psn[rows] = along
    _align(d, rows, begins)


def _begin(d: Draft, space: int, raw: int) -> int:
    """The first PSN of a space, unwrapped from where the tracker started."""
    requests = d.analysis.connections[space >> 1].progress[space & 1]
    near = raw if requests is None or not requests.started else requests.begin
    return near + ((raw - near + HALF) & MASK) - HALF


def _align(d: Draft, rows: Ints, begins: Ints) -> None:
    """Where the tracker started its PSNs again, follow it: its transfers have its PSNs."""
    known = _acknowledged(d)
    if not len(known):
        return
    at = d.finder.rows(d.transfers.numbers("first_frame")[known])
    known_psn, space = d.transfers.numbers("first_psn")[known], d.transfers.ways[known]
    good = (at >= 0) & (d.space[at] == space)
    at, known_psn = at[good], known_psn[good]
    off = (known_psn - d.psn[at] + HALF) // MODULO * MODULO
    if not off.any():
        return
    offset = np.zeros(len(d.packets), np.int64)
    is_known = np.zeros(len(d.packets), np.bool_)
    offset[at], is_known[at] = off, True
    offset, is_known = offset[rows], is_known[rows]
    place = np.where(is_known, np.arange(len(rows)), -1)
    run = np.repeat(np.arange(len(begins)), np.diff(np.r_[begins, len(rows)]))
    last = np.maximum.accumulate(place)
    first = np.full(len(begins), -1, np.int64)
    hits = np.flatnonzero(is_known)
    first[run[hits[::-1]]] = hits[::-1]
    last = np.where(last >= begins[run], last, first[run])
    d.psn[rows] += np.where(last >= 0, offset[last], 0)


def _acknowledged(d: Draft) -> Ints:
    """The places of transfers of connections; datagrams are known by their frames."""
    is_ud = np.array([c.transport == "UD" for c in d.analysis.connections], np.bool_)
    return np.flatnonzero(~is_ud[d.transfers.numbers("connection")])


def _find_transfers(d: Draft) -> None:
    """The transfer that contains each packet's PSN. Where PSNs start again, rows and transfers are split."""
    known = _acknowledged(d)
    if not len(known):
        return
    names = ("first_psn", "last_psn", "id")
    first, last, number = (d.transfers.numbers(name)[known] for name in names)
    space, seen = d.transfers.ways[known], d.finder.rows(d.transfers.numbers("first_frame")[known])
    order = stable_order(space)  # their numbers ascend
    space, first, last, number, seen = (x[order] for x in (space, first, last, number, seen))
    again = np.zeros(len(space), np.bool_)
    again[1:] = (space[1:] == space[:-1]) & (first[1:] < first[:-1])
    life = np.cumsum(again | np.r_[True, space[1:] != space[:-1]])
    rows = d.by_space  # in this order the transfers of neighbours are neighbours
    # The lives of all spaces in one order: by space, then by the row where each starts.
    opens = np.flatnonzero(np.r_[True, life[1:] != life[:-1]])
    if again.any():
        begun = np.where(again[opens], np.maximum(seen[opens], 0), 0)
        n = len(d.packets) + 1
        which = np.searchsorted(space[opens] * n + begun, d.space[rows] * n + rows, "right") - 1
        own = (which >= 0) & (space[opens[which]] == d.space[rows])
    else:
        life_of = np.full(2 * len(d.analysis.connections), -1, np.int64)
        life_of[space[opens]] = np.arange(len(opens))
        which = life_of[d.space[rows]]
        own = which >= 0
    if not own.all():
        rows, which = rows[own], which[own]
    del own
    key = (life - 1 << PSN_BITS) + first
    by_psn = np.argsort(key, kind="stable")
    key = key[by_psn]
    for begin in range(0, len(rows), _AT_ONCE):
        some, lives = rows[begin : begin + _AT_ONCE], which[begin : begin + _AT_ONCE]
        psn = d.psn[some]
        at = np.searchsorted(key, (lives << PSN_BITS) + psn, "right") - 1
        held = by_psn[np.maximum(at, 0)]
        inside = (at >= 0) & (life[held] - 1 == lives) & (psn <= last[held])
        d.transfer[some[inside]] = number[held[inside]]


def _datagrams(d: Draft) -> None:
    """UD: each packet is a transfer, known by its frame."""
    rows = (d.role == DATAGRAM) & (d.connection >= 0)
    if not rows.any():
        return
    d.psn[rows] = d.packets.psn[rows]
    frames = [
        (frame, t.id)
        for t in d.analysis.transfers
        if t.connection.transport == "UD"
        for frame in (t.first_frame, *(e.frame for e in t.events))
    ]
    owned = np.array(frames, np.int64).reshape(-1, 2)
    at = d.finder.rows(owned[:, 0])
    d.transfer[at[at >= 0]] = owned[at >= 0, 1]
