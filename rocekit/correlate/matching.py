"""Matching: which transfer each work request of a QP became, by PSN arithmetic, by contents or by order.

No match is stated that the packets contradict: see ``contradictions``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from typing import TYPE_CHECKING, Final

from rocekit import wire
from rocekit.correlate.clocks import bound_clocks
from rocekit.correlate.contradictions import Judge, Verdicts
from rocekit.wire import psn

if TYPE_CHECKING:
    from rocekit.journal.work_requests import JournalQp, WorkRequest
    from rocekit.track.connections import Connection
    from rocekit.track.transfers import Transfer

#: Fewest work requests that must agree in a row where capture and journal overlap only in part.
LEAST_OVERLAP: Final = 4
#: How far two sequences are shifted against each other, at most, to find where they agree.
LARGEST_SHIFT: Final = 256
#: Work requests posted at the same time that messages are compared with, for each of both on average: kinds
#: of them, of those with its operation, and its address where both are known.
_LOOKS: Final = 256
_ANY: Final = "any address"
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
SEVERAL_PLACES: Final = "several QPs of the capture have its QP's number, and the journal lacks its address"
WITHOUT_BEGINNING: Final = "the journal lacks its QP's beginning: it fits several messages, or none"
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
            from_the_first = qp.begun and not _began_before(qp, transfers[0])
            matches = (_by_order if from_the_first else _by_time)(wrs, transfers, judge)
            if not matches:
                _say_why(wrs, OUT_OF_ORDER if qp.begun else WITHOUT_BEGINNING)
        else:
            _say_why(wrs, incomplete)
        for wr in matches:
            wr.matched_by = ORDER
    for wr, transfer in matches.items():
        wr.unmatched_because = None
        transfer.wr = wr
        transfer.wc = wr.wc
    return matches


def _began_before(qp: JournalQp, first: Transfer) -> bool:
    """Whether the capture lacks the first message of a QP, whose PSN is known."""
    start = qp.attributes.get("sq_psn")
    return start is not None and psn.unwrap(int(start), first.first_psn) < first.first_psn


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
    start = qp.attributes.get("sq_psn") if qp.begun else None
    if start is None and (qp.begun or wrs[0].recorded_psn is not None):
        start = connection.negotiated[side].starting_psn
    mtu = qp.attributes.get("path_mtu") or connection.path_mtu
    long = qp.transport != "UD" and any(wr.length > min(wire.PATH_MTU_CODES) for wr in wrs)
    if start is None or (mtu is None and long):
        return None
    mtu = mtu or max(wire.PATH_MTU_CODES)
    at = psn.unwrap(int(start), transfers[0].first_psn)
    if at > transfers[0].first_psn:  # the capture began before this QP was made, or the PSN has wrapped since
        at -= psn.MODULO if at - transfers[0].first_psn > psn.HALF // 2 else 0
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
            transfer = _with_psn(transfers, at) or _rest_of(transfers, at, _psns(qp, wr, mtu))
            other = None if transfer is None else judge.contradiction(wr, transfer)
            if other is not None:
                against[wr] = f"the message with its PSN has {other}"
            elif transfer is not None:
                certain[wr] = transfer
        at += _psns(qp, wr, mtu)
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


def _psns(qp: JournalQp, wr: WorkRequest, mtu: int) -> int:
    """How many PSNs a work request takes."""
    return 1 if wr.operation in _ONE_PSN or qp.transport == "UD" else wire.psns_of(wr.length, mtu)


def _rest_of(transfers: list[Transfer], first: int, psns: int) -> Transfer | None:
    """A message with these PSNs of which the capture lacks the beginning."""
    at = bisect_right(transfers, first + psns - 1, key=_first_psn) - 1
    rest = transfers[at] if at >= 0 else None
    if rest is None or rest.started or rest.maybe_several or rest.first_psn < first:
        return None
    return rest if rest.last_psn < first + psns else None


def _with_psn(transfers: list[Transfer], first: int) -> Transfer | None:
    """The last one with a first PSN; a QP that was made anew often may have very many work requests."""
    at = bisect_right(transfers, first, key=_first_psn) - 1
    return transfers[at] if at >= 0 and transfers[at].first_psn == first else None


def _between(transfers: list[Transfer], since: int, until: int) -> list[Transfer]:
    """Those with a first PSN from ``since`` to before ``until``; they are in order of their PSNs."""
    first = bisect_left(transfers, since, key=_first_psn)
    return transfers[first : bisect_left(transfers, until, first, key=_first_psn)]


def _first_psn(transfer: Transfer) -> int:
    return transfer.first_psn


def _by_contents(wrs: list[WorkRequest], transfers: list[Transfer], judge: Judge) -> Matches:
    """Work requests that were posted at the same time, whose PSNs are known only together.

    Each of the transfers is one of them. Which one is certain where only one of them can have become it.
    Work requests that are alike are one kind: none of two can be told from the other.
    """
    if not wrs or not transfers:
        return {}
    verdicts = Verdicts(judge, wrs, transfers)
    left = Counter(verdicts.wr_kinds)
    example: dict[int, int] = {}
    nearby: dict[tuple[str, object], list[int]] = {}
    for n, kind in enumerate(verdicts.wr_kinds):
        if kind not in example:
            example[kind] = n
            nearby.setdefault((wrs[n].operation, wrs[n].event.fields.get("remote_va")), []).append(kind)
            nearby.setdefault((wrs[n].operation, _ANY), []).append(kind)
    looks = _LOOKS * (len(wrs) + len(transfers))
    users: dict[int, list[int]] = {kind: [] for kind in left}
    fitting: list[list[int]] = []
    for at, transfer in enumerate(transfers):
        known = transfer.started and not judge.redacted and transfer.remote_va is not None
        keys = (transfer.remote_va, None) if known else (_ANY,)
        kinds = [kind for key in keys for kind in nearby.get((transfer.operation, key), ())]
        looks -= len(kinds)
        if looks < 0:  # which is which stays unknown
            return {}
        fitting.append([kind for kind in kinds if verdicts.fits(example[kind], at)])
        for kind in fitting[-1]:
            users[kind].append(at)
    counts = [sum(left[kind] for kind in kinds) for kinds in fitting]
    found: Matches = {}
    single = [at for at, count in enumerate(counts) if count == 1]
    while single:
        taken = []
        for at in single:
            own = [kind for kind in fitting[at] if left[kind]]
            if not own:  # two messages that only this one fits: the journal lacks a work request
                return {}
            left[own[0]] = 0
            taken.append(own[0])
            found[wrs[example[own[0]]]] = transfers[at]
        fewer = [at for kind in taken for at in users[kind]]
        for at in fewer:
            counts[at] -= 1
        single = [at for at in sorted(set(fewer)) if counts[at] == 1]
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
    fits = Verdicts(judge, wrs, transfers).fits
    for candidate in _shifts(wrs, transfers):
        overlap = range(max(0, -candidate), min(len(transfers), len(wrs) - candidate))
        if len(overlap) < shortest and len(overlap) < max(LEAST_OVERLAP, shortest // 2):
            continue
        if not all(fits(k + candidate, k) for k in overlap):
            continue
        late = sum(wrs[k + candidate].posted_ns > transfers[k].first_ns for k in overlap)
        score = (-late, len(overlap), -abs(candidate))
        if best is None or score > best:
            best, chosen, shift = score, overlap, candidate
    return {wrs[k + shift]: transfers[k] for k in chosen}


def _by_time(wrs: list[WorkRequest], transfers: list[Transfer], judge: Judge) -> Matches:
    """As :func:`_by_order` where the journal has not all that the QP did: the first may be any of them.

    All of the shorter sequence must fit, in one way only. Of several ways the one counts that needs no other
    clock than the capture's: each is posted before its packets, and completes behind its acknowledgement.
    """
    shortest = min(len(wrs), len(transfers))
    fits = Verdicts(judge, wrs, transfers).fits
    found: list[Matches] = []
    at_once: list[Matches] = []
    for shift in _shifts(wrs, transfers):
        overlap = range(max(0, -shift), min(len(transfers), len(wrs) - shift))
        if len(overlap) < shortest or not all(fits(k + shift, k) for k in overlap):
            continue
        matches = {wrs[k + shift]: transfers[k] for k in overlap}
        clocks = bound_clocks(matches.items(), ()).values()
        if not any(clock.crossed_ns for clock in clocks):
            found.append(matches)
            if not any(clock.offset_ns for clock in clocks):
                at_once.append(matches)
    best = at_once or found
    return best[0] if len(best) == 1 else {}


def _shifts(wrs: list[WorkRequest], transfers: list[Transfer]) -> list[int]:
    """The shifts to try, the smallest first."""
    lengths = len(wrs) - len(transfers)
    near = sorted({0, lengths, *range(-LARGEST_SHIFT, LARGEST_SHIFT + 1)}, key=abs)
    return [shift for shift in near if -len(transfers) < shift < len(wrs)]
