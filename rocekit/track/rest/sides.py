# cython: boundscheck=False
"""One side of a connection that is at rest: its state machine as a few bytes.

A side is packed when nothing of it is under way: no message, hole, READ or repeat is open. It becomes the
same objects again at its next packet, so that the result is as if they had stayed. Its ``Progress`` stays,
because rules and views ask for it. So do transfers to which something happened, or that somebody keeps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rocekit import wire
from rocekit.track.kept import is_over
from rocekit.track.requests import requests_of
from rocekit.track.rest.numbers import NumberReader, NumberWriter
from rocekit.track.transfers import (
    ACKED,
    INCOMPLETE,
    RESPONSE_CUT,
    SENT,
    UNACKNOWLEDGED,
    Particulars,
    Transfer,
)

if TYPE_CHECKING:
    from rocekit.packets.rows import Rows
    from rocekit.track.connections import Connection
    from rocekit.track.ledger import Sink
    from rocekit.track.requests import Requests

_OPERATIONS: Final = tuple(sorted({opcode.operation for opcode in wire.OPCODES.values()}))
_OPERATION_NUMBERS: Final = {name: number for number, name in enumerate(_OPERATIONS)}
_STATUSES: Final = (ACKED, SENT, UNACKNOWLEDGED, INCOMPLETE, RESPONSE_CUT)
_STATUS_NUMBERS: Final = {name: number for number, name in enumerate(_STATUSES)}
_NEVER_NS: Final = -(1 << 62)

# What is said of each transfer of the window, above its status and operation.
_STATUS_BITS: Final = 3
_OPERATION_BITS: Final = 5
_IS_OBJECT: Final = 1 << 8  # nothing else is written of it
_IS_UNACKED: Final = 1 << 9
_IS_UNMADE: Final = 1 << 10
_STARTED: Final = 1 << 11
_ENDED: Final = 1 << 12
_WITH_IMMEDIATE: Final = 1 << 13
_WITH_INVALIDATE: Final = 1 << 14
_BY_CUT: Final = 1 << 15
_SEVERAL: Final = 1 << 16
_HAS_KEY: Final = 1 << 17
_HAS_LENGTH: Final = 1 << 18
_HAS_ACK: Final = 1 << 19
_HAS_NEXT: Final = 1 << 20
_HAS_PARTICULARS: Final = 1 << 21

_NO_OBJECTS: Final = (None,) * 8


class PackedSide:
    """A side at rest.

    Attributes:
        data: its numbers; objects: what is no number; None: nothing.
        unmade: how many of its transfers were rows of the clean lane, of which nobody has an object.
    """

    def __init__(self, data: bytes, objects: tuple[Any, ...] | None, unmade: int) -> None:
        self.data = data
        self.objects = objects
        self.unmade = unmade


def only_packet(requests: Requests) -> tuple[Rows, int] | None:
    """The batch and row of a side's only request, which waits for the next one; None if there is more.

    Its state machine is made again from it.
    """
    held = requests.progress.held
    if requests.progress.started or len(held) != 1 or requests.ledger.troubles is not None:
        return None
    r, i, chain = held[0]
    return (r, i) if chain is None else None


def is_at_rest(requests: Requests) -> bool:
    """Whether nothing is under way, and nothing went wrong before whose causes are still looked for."""
    progress, ledger = requests.progress, requests.ledger
    if not progress.started or progress.held or ledger.troubles is not None:
        return False
    if requests.in_lane and requests.clean.building >= 0:
        return False
    if ledger.building is not None or ledger.open_read is not None or ledger.pending:
        return False
    return not requests.assembly.ahead and not requests.outcomes.awaiting


def pack(requests: Requests, unmade: list[Transfer]) -> PackedSide | None:
    """The side as few bytes; None: that cannot be.

    Args:
        requests: at rest, and not in the clean lane.
        unmade: its transfers of which nobody has an object.
    """
    recent, responses, ledger, outcomes = (
        requests.recent,
        requests.responses,
        requests.ledger,
        requests.outcomes,
    )
    out = NumberWriter()
    recent.pack(out)
    out.put(responses.last_psn)
    out.put(responses.last_msn)
    out.put(responses.last_id)
    out.put(ledger._numbers)
    out.put(len(ledger.window))
    own = {id(transfer) for transfer in unmade}
    objects: list[Transfer] = []
    at, end = outcomes.first, len(outcomes.unacked)
    before: Transfer | None = None
    for transfer in ledger.window:
        what = 0
        if at < end and outcomes.unacked[at] is transfer:
            at += 1
            what |= _IS_UNACKED
        if own and id(transfer) in own:
            what |= _IS_UNMADE
        if _is_plain(transfer, what):
            _pack_transfer(out, transfer, before, what)
            before = transfer
        elif what & _IS_UNMADE:
            return None
        else:
            out.put(what | _IS_OBJECT)
            objects.append(transfer)
    if at != end:  # some wait for an ACK that are too old for the window
        return None
    rest = (
        responses.again,
        responses.answered,
        responses.refused,
        responses.behind,
        responses.naks,
        recent._first_said,
        recent._responses,
        objects or None,
    )
    return PackedSide(out.written(), None if rest == _NO_OBJECTS else rest, len(own))


def _is_plain(transfer: Transfer, what: int) -> bool:
    """Whether a transfer is numbers only, and nobody else has its object."""
    if transfer.place >= 0 or transfer.events or transfer.missing or transfer.responses_missing:
        return False
    if transfer.retransmitted_packets or transfer.naks or transfer.rnr_naks or transfer.timeouts:
        return False
    if transfer.duplicates or transfer.status not in _STATUS_NUMBERS:
        return False
    if transfer.status == UNACKNOWLEDGED and not what & _IS_UNACKED:
        return False  # it was given up, and may be one of those that a summary keeps
    if not is_over(transfer):  # bytes may come to it (a READ without its request), and those are counted anew
        return False
    own = transfer.particulars
    return own is None or (own.wr is None and own.wc is None and own.recv_wr is None and own.recv_wc is None)


def _pack_transfer(out: NumberWriter, transfer: Transfer, before: Transfer | None, what: int) -> None:
    """Write a transfer, as what differs from the one before."""
    particulars = transfer.particulars
    has_key = transfer.key != -1 or transfer.va != 0
    has_ack = transfer.ack_frame != -1 or transfer.ack_ns != _NEVER_NS
    what |= _STATUS_NUMBERS[transfer.status]
    what |= _OPERATION_NUMBERS[transfer.operation] << _STATUS_BITS
    what |= _STARTED * transfer.started | _ENDED * transfer.ended
    what |= _WITH_IMMEDIATE * transfer.with_immediate | _WITH_INVALIDATE * transfer.with_invalidate
    what |= _BY_CUT * transfer.acked_by_cut | _SEVERAL * transfer.maybe_several
    what |= _HAS_KEY * has_key | _HAS_LENGTH * (transfer.announced != -1) | _HAS_ACK * has_ack
    what |= _HAS_NEXT * (transfer.response_next != 0) | _HAS_PARTICULARS * (particulars is not None)
    out.put(what)
    out.put(transfer.id - (0 if before is None else before.id))
    out.put(transfer.first_psn - (0 if before is None else before.last_psn))
    out.put(transfer.last_psn - transfer.first_psn)
    out.put_ns(transfer.first_ns)
    out.put(transfer.last_ns - transfer.first_ns)
    out.put(transfer.request_end_ns - transfer.first_ns)
    out.put(transfer.first_frame - (0 if before is None else before.last_frame))
    out.put(transfer.last_frame - transfer.first_frame)
    out.put(transfer.bytes)
    out.put(transfer.packets)
    if what & _HAS_KEY:
        out.put(transfer.va)
        out.put(transfer.key)
    if what & _HAS_LENGTH:
        out.put(transfer.announced)
    if what & _HAS_ACK:
        out.put(transfer.ack_ns - transfer.first_ns)
        out.put(transfer.ack_frame - transfer.first_frame)
    if what & _HAS_NEXT:
        out.put(transfer.response_next)
    if particulars is not None:
        for value in (
            particulars.immediate,
            particulars.invalidate_rkey,
            particulars.swap_add,
            particulars.compare,
            particulars.original,
        ):
            out.put(value is not None)
            if value is not None:
                out.put(value >> 32)
                out.put(value & 0xFFFFFFFF)


def unpack(packed: PackedSide, requests: Requests) -> None:
    """Put into new ``requests`` what was packed; transfers of which nobody had an object have one now."""
    recent, responses, ledger, outcomes = (
        requests.recent,
        requests.responses,
        requests.ledger,
        requests.outcomes,
    )
    data = NumberReader(packed.data)
    recent.unpack(data)
    responses.last_psn, responses.last_msn, responses.last_id = data.take(), data.take(), data.take()
    ledger._numbers = data.take()
    objects: list[Transfer] = []
    if packed.objects is not None:
        (
            responses.again,
            responses.answered,
            responses.refused,
            responses.behind,
            responses.naks,
            recent._first_said,
            recent._responses,
            kept,
        ) = packed.objects
        objects = kept or []
    at = 0
    before: Transfer | None = None
    for _ in range(data.take()):
        what = data.take()
        if what & _IS_OBJECT:
            transfer = objects[at]
            at += 1
        else:
            transfer = before = _unpack_transfer(data, ledger.connection, ledger.side, before, what)
        ledger.add(transfer)
        if what & _IS_UNACKED:
            outcomes.unacked.append(transfer)
        if what & _IS_UNMADE:
            ledger.sink.made(transfer)


def _unpack_transfer(
    data: NumberReader, connection: Connection, side: int, before: Transfer | None, what: int
) -> Transfer:
    operation = _OPERATIONS[what >> _STATUS_BITS & (1 << _OPERATION_BITS) - 1]
    number = data.take() + (0 if before is None else before.id)
    psn = data.take() + (0 if before is None else before.last_psn)
    span, first_ns = data.take(), data.take_ns()
    transfer = Transfer(number, connection, side, operation, psn, first_ns, 0)
    transfer.last_psn = psn + span
    transfer.last_ns = first_ns + data.take()
    transfer.request_end_ns = first_ns + data.take()
    transfer.first_frame = data.take() + (0 if before is None else before.last_frame)
    transfer.last_frame = transfer.first_frame + data.take()
    transfer.bytes, transfer.packets = data.take(), data.take()
    transfer.status = _STATUSES[what & (1 << _STATUS_BITS) - 1]
    transfer.started, transfer.ended = what & _STARTED != 0, what & _ENDED != 0
    transfer.with_immediate, transfer.with_invalidate = (
        what & _WITH_IMMEDIATE != 0,
        what & _WITH_INVALIDATE != 0,
    )
    transfer.acked_by_cut, transfer.maybe_several = what & _BY_CUT != 0, what & _SEVERAL != 0
    if what & _HAS_KEY:
        transfer.va = data.take_unsigned()
        transfer.key = data.take()
    if what & _HAS_LENGTH:
        transfer.announced = data.take()
    if what & _HAS_ACK:
        transfer.ack_ns, transfer.ack_frame = first_ns + data.take(), transfer.first_frame + data.take()
    if what & _HAS_NEXT:
        transfer.response_next = data.take()
    if what & _HAS_PARTICULARS:
        own = transfer.particulars = Particulars()
        own.immediate, own.invalidate_rkey = _optional(data), _optional(data)
        own.swap_add, own.compare, own.original = _optional(data), _optional(data), _optional(data)
    return transfer


def _optional(data: NumberReader) -> int | None:
    """A number of up to 64 bits, which may be missing."""
    if not data.take():
        return None
    high: int = data.take()
    return high << 32 | data.take()


def woken(packed: PackedSide, connection: Connection, side: int, sink: Sink) -> Requests:
    """The state machine of a side that was at rest."""
    progress = connection.progress[side]
    assert progress is not None
    requests = requests_of(connection, side, sink, progress)
    unpack(packed, requests)
    return requests
