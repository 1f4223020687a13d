"""Matching: which transfer each work request of a QP became, by PSN arithmetic, by contents or by order.

No match is stated that the packets contradict: see ``contradictions``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocekit import wire
from rocekit.correlate.contradictions import Judge
from rocekit.wire import psn

if TYPE_CHECKING:
    from rocekit.journal.work_requests import JournalQp, WorkRequest
    from rocekit.track.connections import Connection
    from rocekit.track.transfers import Transfer

#: Fewest work requests that must agree in a row where capture and journal overlap only in part.
LEAST_OVERLAP: Final = 4
#: How far two sequences are shifted against each other, at most, to find where they agree.
LARGEST_SHIFT: Final = 256
#: Operations of one PSN whose WR's length is no payload (a FLUSH's is the range to flush, A19.4).
_ONE_PSN: Final = wire.ATOMICS | {"FLUSH"}

PSN: Final = "psn"
CONTENTS: Final = "contents"
ORDER: Final = "order"
MATCHED_BY: Final = {
    PSN: "PSN arithmetic",
    CONTENTS: "contents: of those posted at the same time, only it fits",
    ORDER: "order and length",
}
"""How a work request was matched, in words."""

OVERLAPPED: Final = "posted while another thread posted on its QP: its PSN is not certain"
OUT_OF_ORDER: Final = "the packets of its QP do not fit the order of its work requests"
FILTERED: Final = "the journal is filtered: its PSN is not certain"
ATTACHED_LATER: Final = "its QP was made before the recorder was attached: its PSN is not known"
AFTER_A_GAP: Final = "posted after records were lost: its PSN is not certain"

Matches = dict["WorkRequest", "Transfer"]


def match_sends(
    qp: JournalQp, place: tuple[Connection, int], transfers: list[Transfer], *, redacted: bool = False
) -> Matches:
    """The transfers of a QP's work requests. Sets ``wr`` and ``wc`` of the matched transfers.

    A work request without a transfer says in ``unmatched_because`` what is against those that it might be.

    Args:
        place: the QP's connection and side.
        transfers: those that the QP can have sent, in order of their PSNs.
        redacted: whether the journal's keys and addresses are not those of the packets.
    """
    wrs = [wr for wr in qp.sends if not wr.refused and not wr.local]
    incomplete = None if qp.lossy_ns is None else ATTACHED_LATER if qp.found else AFTER_A_GAP
    incomplete = FILTERED if qp.filtered else incomplete
    if incomplete is not None:
        # Where the journal lacks work requests only the PSNs that the recorder wrote are certain.
        whole_until = 0 if qp.filtered or qp.lossy_ns is None else qp.lossy_ns
        certain = [wr for wr in wrs if wr.recorded_psn is not None or wr.posted_ns < whole_until]
        for wr in set(wrs).difference(certain):
            wr.unmatched_because = incomplete
        wrs = certain
    if not wrs or not transfers:
        return {}
    judge = Judge(redacted=redacted, datagrams=qp.transport == "UD")
    matches = _by_psn(qp, place, wrs, transfers, judge)
    if matches is None:
        matches = {}
        if any(wr.overlapped for wr in wrs):
            _say_why(wrs, OVERLAPPED)
        elif incomplete is None:
            matches = _by_order(wrs, transfers, judge)
            if not matches:
                _say_why(wrs, OUT_OF_ORDER)
        else:
            _say_why(wrs, incomplete)
        for wr in matches:
            wr.matched_by = ORDER
    for wr, transfer in matches.items():
        wr.unmatched_because = None
        transfer.wr = wr
        transfer.wc = wr.wc
    return matches


def _say_why(wrs: list[WorkRequest], why: str) -> None:
    for wr in wrs:
        wr.unmatched_because = wr.unmatched_because or why


def _by_psn(
    qp: JournalQp,
    place: tuple[Connection, int],
    wrs: list[WorkRequest],
    transfers: list[Transfer],
    judge: Judge,
) -> Matches | None:
    """Give every WR its first PSN, and find the transfer that has it. None when they do not fit."""
    connection, side = place
    start = qp.attributes.get("sq_psn")
    if start is None:
        start = connection.negotiated[side].starting_psn
    mtu = qp.attributes.get("path_mtu") or connection.path_mtu
    long = qp.transport != "UD" and any(wr.length > min(wire.PATH_MTU_CODES) for wr in wrs)
    if start is None or (mtu is None and long):
        return None
    mtu = mtu or max(wire.PATH_MTU_CODES)
    at = psn.unwrap(int(start), transfers[0].first_psn)
    if at > transfers[0].first_psn:  # the capture began before this QP was made, or the PSN has wrapped since
        at -= psn.MODULO if at - transfers[0].first_psn > psn.HALF // 2 else 0
    by_psn = {transfer.first_psn: transfer for transfer in transfers}
    certain: Matches = {}
    by_contents: Matches = {}
    plan: list[tuple[WorkRequest, int]] = []
    together: list[WorkRequest] = []
    since = at
    against: dict[WorkRequest, str] = {}
    for wr in wrs:
        reached = at
        if wr.recorded_psn is not None:
            # A recorder that was there from the start knows the PSN behind a gap in the journal, too.
            at = psn.unwrap(wr.recorded_psn, at)
        if wr.overlapped:
            since = since if together else at
            together.append(wr)
        else:
            if together:
                among = _between(transfers, since, min(reached, at))
                by_contents.update(_by_contents(together, among, judge))
                together = []
            plan.append((wr, at))
            transfer = by_psn.get(at)
            other = None if transfer is None else judge.contradiction(wr, transfer)
            if other is not None:
                against[wr] = f"the message with its PSN has {other}"
            elif transfer is not None:
                certain[wr] = transfer
        at += 1 if wr.operation in _ONE_PSN or qp.transport == "UD" else wire.psns_of(wr.length, mtu)
    by_contents.update(_by_contents(together, _between(transfers, since, at), judge))
    if not (certain or by_contents) or len(against) > len(certain) // 16:
        return None
    for wr, first in plan:
        wr.first_psn = first
        wr.unmatched_because = against.get(wr)
    for wr in wrs:
        if wr.overlapped:
            wr.unmatched_because = OVERLAPPED
    for wr in certain:
        wr.matched_by = PSN
    for wr, transfer in by_contents.items():
        wr.matched_by, wr.first_psn = CONTENTS, transfer.first_psn
    return certain | by_contents


def _between(transfers: list[Transfer], since: int, until: int) -> list[Transfer]:
    return [transfer for transfer in transfers if since <= transfer.first_psn < until]


def _by_contents(wrs: list[WorkRequest], transfers: list[Transfer], judge: Judge) -> Matches:
    """Work requests that were posted at the same time, whose PSNs are known only together.

    Each of the transfers is one of them. Which one is certain where only one of them can have become it.
    """
    fitting = [(t, [wr for wr in wrs if judge.contradiction(wr, t) is None]) for t in transfers]
    found: Matches = {}
    while True:
        single = [(t, left[0]) for t, left in fitting if len(left) == 1]
        if not single:
            break
        for transfer, wr in single:
            if wr in found:  # two messages that only this one fits: the journal lacks a work request
                return {}
            found[wr] = transfer
        fitting = [(t, [wr for wr in left if wr not in found]) for t, left in fitting if len(left) > 1]
    return found


def _by_order(wrs: list[WorkRequest], transfers: list[Transfer], judge: Judge) -> Matches:
    """Shift the two sequences against each other until operations and lengths agree where they overlap.

    Capture and journal can begin and end at different times. An overlap that leaves out some of the shorter
    sequence counts only where it is long enough not to be an accident.
    """
    shortest = min(len(wrs), len(transfers))
    best: tuple[int, int, int] | None = None
    chosen = range(0)
    shift = 0
    for candidate in _shifts(wrs, transfers):
        overlap = range(max(0, -candidate), min(len(transfers), len(wrs) - candidate))
        if len(overlap) < shortest and len(overlap) < max(LEAST_OVERLAP, shortest // 2):
            continue
        if any(judge.contradiction(wrs[k + candidate], transfers[k]) for k in overlap):
            continue
        late = sum(wrs[k + candidate].posted_ns > transfers[k].first_ns for k in overlap)
        score = (-late, len(overlap), -abs(candidate))
        if best is None or score > best:
            best, chosen, shift = score, overlap, candidate
    return {wrs[k + shift]: transfers[k] for k in chosen}


def _shifts(wrs: list[WorkRequest], transfers: list[Transfer]) -> list[int]:
    """The shifts to try, the smallest first."""
    lengths = len(wrs) - len(transfers)
    near = sorted({0, lengths, *range(-LARGEST_SHIFT, LARGEST_SHIFT + 1)}, key=abs)
    return [shift for shift in near if -len(transfers) < shift < len(wrs)]
