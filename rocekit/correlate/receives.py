"""Receives: which RECV each arriving message consumed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocekit.correlate.matching import LARGEST_SHIFT

if TYPE_CHECKING:
    from rocekit.journal.work_requests import JournalQp
    from rocekit.track.transfers import Transfer

#: Bytes that a UD receive puts in front of the payload, for the GRH (11.4.1.2).
_GRH_BYTES: Final = 40


def match_receives(qp: JournalQp, arriving: list[Transfer]) -> None:
    """Set ``recv_wc`` and ``recv_wr`` of the messages that arrived at a QP.

    Every SEND, and every WRITE with immediate, consumes one RECV of the responder, in order (10.8.3.1).
    """
    consuming = sorted(
        (t for t in arriving if t.operation == "SEND" or (t.operation == "WRITE" and t.with_immediate)),
        key=lambda t: (t.first_psn, t.id),
    )
    completions = [wc for wc in qp.receive_completions if wc.status == "SUCCESS"]
    if not consuming or not completions or qp.lossy_ns is not None or qp.filtered:
        return
    header = _GRH_BYTES if qp.transport == "UD" else 0
    for shift in sorted(range(-LARGEST_SHIFT, LARGEST_SHIFT + 1), key=abs):
        pairs = [
            (t, completions[k + shift]) for k, t in enumerate(consuming) if 0 <= k + shift < len(completions)
        ]
        if pairs and all(_agree(t, wc.event.get("byte_len"), header) for t, wc in pairs):
            receives = {id(wr.wc): wr for wr in qp.receives if wr.wc is not None}
            for transfer, wc in pairs:
                transfer.recv_wc = wc
                transfer.recv_wr = receives.get(id(wc))
            return


def _agree(transfer: Transfer, byte_len: int | None, header: int) -> bool:
    """Whether a receive completion of this length can be of this message."""
    return byte_len is None or not transfer.ended or transfer.bytes + header == byte_len
