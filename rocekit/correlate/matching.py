"""Matching: which transfer each work request of a QP became, by PSN arithmetic or by order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocekit import wire
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

Matches = dict["WorkRequest", "Transfer"]


def match_sends(qp: JournalQp, place: tuple[Connection, int], transfers: list[Transfer]) -> Matches:
    """The transfers of a QP's work requests. Sets ``wr`` and ``wc`` of the matched transfers.

    Args:
        place: the QP's connection and side.
        transfers: those that the QP can have sent, in order of their PSNs.
    """
    wrs = [wr for wr in qp.sends if not wr.refused and not wr.local]
    if qp.lossy_ns is not None:
        # Behind a gap in the journal only the PSNs that the recorder wrote are certain.
        wrs = [wr for wr in wrs if wr.recorded_psn is not None or wr.posted_ns < qp.lossy_ns]
    if not wrs or not transfers:
        return {}
    how = "psn"
    matches = _by_psn(qp, place, wrs, transfers)
    if matches is None:
        how = "order"
        matches = _by_order(wrs, transfers) if qp.lossy_ns is None else {}
    for wr, transfer in matches.items():
        wr.matched_by = how
        transfer.wr = wr
        transfer.wc = wr.wc
    return matches


def _agree(wr: WorkRequest, transfer: Transfer) -> bool:
    """Whether a WR can have become this transfer."""
    if wr.operation != transfer.operation:
        return False
    if wr.operation in _ONE_PSN or transfer.status == "incomplete" or not transfer.ended:
        return True
    return wr.length == transfer.bytes


def _by_psn(
    qp: JournalQp, place: tuple[Connection, int], wrs: list[WorkRequest], transfers: list[Transfer]
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
    plan = []
    agreed = wrong = 0
    for wr in wrs:
        if wr.recorded_psn is not None:
            # A recorder that was there from the start knows the PSN behind a gap in the journal, too.
            at = psn.unwrap(wr.recorded_psn, at)
        transfer = by_psn.get(at)
        if transfer is not None:
            if _agree(wr, transfer):
                agreed += 1
            else:
                wrong += 1
                transfer = None
        plan.append((wr, at, transfer))
        at += 1 if wr.operation in _ONE_PSN or qp.transport == "UD" else wire.psns_of(wr.length, mtu)
    if not agreed or wrong > agreed // 16:
        return None
    for wr, first, _ in plan:
        wr.first_psn = first
    return {wr: transfer for wr, _, transfer in plan if transfer is not None}


def _by_order(wrs: list[WorkRequest], transfers: list[Transfer]) -> Matches:
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
        if not all(_agree(wrs[k + candidate], transfers[k]) for k in overlap):
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
