"""The transfer of a work request that the user names by its wr_id, which programs are free to use again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocekit.errors import RocekitError
from rocekit.wire.words import plural, size

if TYPE_CHECKING:
    from rocekit.explanation.results import Results
    from rocekit.journal.work_requests import WorkRequest
    from rocekit.track.transfers import Transfer

#: So many work requests with one wr_id are listed.
_LISTED: Final = 10


def transfer_of_wr(analysis: Results, wr_id: int) -> int:
    """The number of the one transfer that has a work request with this wr_id.

    Raises:
        RocekitError: there is none, or there are several: then they are named.
    """
    if analysis.journal is None:
        raise RocekitError(f"no transfer of a work request {wr_id}: is the journal missing?")
    found: list[tuple[WorkRequest, Transfer | None]] = [
        (wr, analysis.journal.transfer_of(wr))
        for wr in analysis.journal.work_requests
        if wr.wr_id == wr_id and not wr.local
    ]
    found += [
        (t.recv_wr, t) for t in analysis.transfers if t.recv_wr is not None and t.recv_wr.wr_id == wr_id
    ]
    if not found:
        raise RocekitError(f"no work request {wr_id} in the journal")
    transfers = {None if transfer is None else transfer.id for _, transfer in found}
    if len(transfers) == 1 and (only := transfers.pop()) is not None:
        return only
    words = [_named(*one) for one in found[:_LISTED]]
    if len(found) > _LISTED:
        words.append(f"and {len(found) - _LISTED:,} more")
    if len(found) == 1:
        raise RocekitError(f"work request {wr_id}: {words[0]}")
    raise RocekitError(
        f"{plural(len(found), 'work request')} have the wr_id {wr_id}; choose one with --transfer: "
        f"{', '.join(words)}"
    )


def _named(wr: WorkRequest, transfer: Transfer | None) -> str:
    what = f"{wr.opcode} {size(wr.length)} of {wr.qp}"
    if transfer is not None:
        return f"{what} (--transfer {transfer.id})"
    outcome = "post failed" if wr.refused else wr.wc.status if wr.wc else "no completion"
    return f"{what} (no packet in the capture, {outcome})"
