"""Receives: which RECV each arriving message consumed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocekit.correlate.matching import LARGEST_SHIFT, LEAST_OVERLAP
from rocekit.wire import psn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocekit.journal.work_requests import JournalQp, WorkCompletion, WorkRequest
    from rocekit.track.connections import Connection
    from rocekit.track.transfers import Transfer

    Pairs = list[tuple[Transfer, WorkCompletion]]

#: Bytes that a UD receive puts in front of the payload, for the GRH (11.4.1.2).
_GRH_BYTES: Final = 40
_RELIABLE: Final = ("RC", "XRC", "RD")


def match_receives(qp: JournalQp, place: tuple[Connection, int], arriving: list[Transfer]) -> None:
    """Set ``recv_wc`` and ``recv_wr`` of the messages that arrived at a QP.

    Every SEND, and every WRITE with immediate, consumes one RECV of the responder, in order (10.8.3.1). So
    the number of a message tells its completion. It is known where the capture has the QP's first message
    and nothing is missing since, where the sender's journal counts its work requests, or where the lengths
    leave one possibility only. Else nothing is stated.

    Args:
        place: the QP's connection and side.
        arriving: what its peer sent.
    """
    arriving = sorted(arriving, key=lambda t: (t.first_psn, t.id))
    consuming = [t for t in arriving if _consumes(t)]
    completions = [wc for wc in qp.receive_completions if wc.status == "SUCCESS"]
    if not consuming or not completions or qp.lossy_ns is not None or qp.filtered:
        return
    header = _GRH_BYTES if qp.transport == "UD" else 0
    for pairs in (
        _from_the_first(qp, place, arriving, consuming, completions),
        _counted_by_sender(qp, consuming, completions),
        _by_lengths(consuming, completions, header),
    ):
        if pairs and all(_agree(t, wc, header) for t, wc in pairs):
            receives = {id(wr.wc): wr for wr in qp.receives if wr.wc is not None}
            for transfer, wc in pairs:
                transfer.recv_wc = wc
                transfer.recv_wr = receives.get(id(wc))
            return


def _consumes(transfer: Transfer) -> bool:
    return transfer.operation == "SEND" or (transfer.operation == "WRITE" and bool(transfer.with_immediate))


def _from_the_first(
    qp: JournalQp,
    place: tuple[Connection, int],
    arriving: Sequence[Transfer],
    consuming: Sequence[Transfer],
    completions: Sequence[WorkCompletion],
) -> Pairs:
    """Each message with the completion of its number, as far as the capture has all since the QP's first."""
    if not qp.begun:
        return []
    connection, side = place
    start = qp.attributes.get("rq_psn", connection.negotiated[1 - side].starting_psn)
    if start is None or connection.transport not in _RELIABLE:  # of others not each message arrives
        both_whole = qp.ends and len(consuming) == len(completions)
        return list(zip(consuming, completions, strict=True)) if both_whole else []
    following = psn.unwrap(int(start), arriving[0].first_psn)
    known = []
    for transfer in arriving:
        if transfer.first_psn != following or not transfer.started:
            break
        if _consumes(transfer):
            known.append(transfer)
        if not transfer.ended:
            break
        following = transfer.last_psn + 1
    return list(zip(known, completions, strict=False))


def _counted_by_sender(
    qp: JournalQp, consuming: Sequence[Transfer], completions: Sequence[WorkCompletion]
) -> Pairs:
    """Each message with the completion that has the number of its work request in the sender's journal."""
    senders = {id(t.wr.qp): t.wr.qp for t in consuming if t.wr is not None}
    if len(senders) != 1 or not qp.begun:
        return []
    (sender,) = senders.values()
    if not sender.begun or sender.transport not in _RELIABLE or any(wr.overlapped for wr in sender.sends):
        return []
    if sender.filtered or sender.lossy_ns is not None:
        return []
    numbers: dict[WorkRequest, int] = {}
    for wr in sender.sends:
        if not wr.refused and (wr.operation == "SEND" or wr.opcode == "RDMA_WRITE_WITH_IMM"):
            numbers[wr] = len(numbers)
    found = []
    for transfer in consuming:
        number = None if transfer.wr is None else numbers.get(transfer.wr)
        if number is not None and number < len(completions):
            found.append((transfer, completions[number]))
    return found


def _by_lengths(consuming: Sequence[Transfer], completions: Sequence[WorkCompletion], header: int) -> Pairs:
    """The only way in which all of the shorter sequence agree with the longer one, in a row."""
    shortest = min(len(consuming), len(completions))
    more = len(completions) - len(consuming)
    if shortest < LEAST_OVERLAP or abs(more) > LARGEST_SHIFT:
        return []
    fitting: list[Pairs] = []
    for shift in range(min(0, more), max(0, more) + 1):
        pairs = list(zip(consuming[max(0, -shift) :], completions[max(0, shift) :], strict=False))
        if all(_agree(transfer, wc, header) for transfer, wc in pairs):
            fitting.append(pairs)
            if len(fitting) > 1:
                return []
    return fitting[0] if fitting else []


def _agree(transfer: Transfer, wc: WorkCompletion, header: int) -> bool:
    """Whether a receive completion can be of this message."""
    byte_len = wc.event.get("byte_len")
    return byte_len is None or not transfer.ended or transfer.bytes + header == byte_len
