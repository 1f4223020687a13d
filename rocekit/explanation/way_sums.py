"""What the transfers of each requester add up to, by column: a capture may have millions of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rocekit.explanation.transfer_columns import TransferColumns
from rocekit.findings.evidence import status_of
from rocekit.track.transfers import ACKED, NAK_PREFIX, SENT, Transfer
from rocekit.wire import OWN_RESPONSE
from rocekit.wire.sorting import stable_order, starts

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

#: The times of ``WaySums``.
TIMES: Final = ("message_latency", "ack_round_trip", "read_response_time")


class WaySums:
    """Sums and times of the transfers of each requester (``2 × connection + side``).

    Attributes:
        place: where a requester is in the lists; one without transfers is not in it.
        count: its transfers; done: those that are acknowledged or sent; done_bytes: their bytes.
        failed: transfers that a NAK or a completion ended; refused: the ids of connections with such a NAK.
        first_ns, last_ns: of its first packet, and of its last packet or acknowledgement.
        sent_again: packets.
        outstanding: the most packets of acknowledged messages that were outstanding at once.
        eventful: its transfers to which something happened.
        times: by name (``TIMES``), its measured times in ns, in order of size.
    """

    def __init__(self, transfers: Sequence[Transfer]) -> None:
        c = TransferColumns(transfers)
        order = stable_order(c.ways)
        ways = c.ways[order]
        begins = starts(ways)
        own = np.repeat(np.arange(len(begins)), np.diff(np.r_[begins, len(ways)]))
        self.place = {way: place for place, way in enumerate(ways[begins].tolist())}

        def sums(values: NDArray[np.generic]) -> list[int]:
            found: list[int] = (
                np.add.reduceat(values[order].astype(np.int64), begins).tolist() if len(begins) else []
            )
            return found

        first, acked, ack_ns = c.numbers("first_ns"), c.have("acked"), c.numbers("ack_ns")
        last = np.maximum(c.numbers("last_ns"), np.where(acked, ack_ns, 0))
        done = c.are("status", ACKED, SENT)
        self.count = sums(np.ones(len(c), np.int64))
        self.done = sums(done)
        self.done_bytes = sums(np.where(done, c.numbers("bytes"), 0))
        self.refused = set(c.numbers("connection")[_refused(c)].tolist())
        self.failed = sums(_failed(c))
        self.sent_again = sums(c.numbers("retransmitted_packets"))
        self.first_ns: list[int] = np.minimum.reduceat(first[order], begins).tolist() if len(begins) else []
        self.last_ns: list[int] = np.maximum.reduceat(last[order], begins).tolist() if len(begins) else []
        number = np.empty(len(c), np.int64)
        number[order] = own
        self.outstanding = _outstanding(c, acked, number, len(begins))
        self.eventful: list[list[Transfer]] = [[] for _ in self.count]
        for at, transfer in c.those("eventful"):
            self.eventful[number[at]].append(transfer)
        self.times = {name: _by_way(*_measured(c, name, acked), number, len(begins)) for name in TIMES}

    def times_of(self, place: int) -> dict[str, Ints]:
        """The times of one requester."""
        return {name: each[place] for name, each in self.times.items()}


def _refused(c: TransferColumns) -> Bools:
    return c.are("status", *(word for word in c.words if word.startswith(NAK_PREFIX)))


def _failed(c: TransferColumns) -> Bools:
    failed = _refused(c)
    for at, transfer in c.those("particular"):
        failed[at] |= status_of(transfer) not in (None, "SUCCESS")
    return failed


def _measured(c: TransferColumns, name: str, acked: Bools) -> tuple[Bools, Ints]:
    """Which transfers a time is measured of, and what it is of each transfer."""
    plain = acked & ~c.have("eventful")
    if name == "ack_round_trip":
        # An ACK may be to the first transmission or its repeat (Karn): only transfers without events count.
        taken = plain & ~c.are("operation", *OWN_RESPONSE)
        for at, t in c.those("lacks"):
            taken[at] &= not t.lacks(t.last_psn)
        return taken, c.numbers("ack_ns") - c.numbers("request_end_ns")
    # Of those whose first packet is in the capture.
    taken = (plain & c.are("operation", "READ") if name == "read_response_time" else acked) & c.have(
        "started"
    )
    for at, t in c.those("lacks"):
        taken[at] &= not t.lacks(t.first_psn)
    return taken, c.numbers("ack_ns") - c.numbers("first_ns")


def _by_way(taken: Bools, values: Ints, number: Ints, count: int) -> list[Ints]:
    """The values of each requester that are taken, in order of size."""
    values, number = values[taken], number[taken]
    order = np.argsort(values, kind="stable")
    order = order[stable_order(number[order])]
    return np.split(values[order], np.searchsorted(number[order], np.arange(1, count))) if count else []


def _outstanding(c: TransferColumns, acked: Bools, number: Ints, count: int) -> list[int]:
    """The most packets of whole messages that were outstanding at once, of each requester."""
    most = np.zeros(count, np.int64)
    packets, number = c.numbers("packets")[acked], number[acked]
    # What is acknowledged at a time leaves before what begins then.
    time = np.concatenate([c.numbers("ack_ns")[acked], c.numbers("first_ns")[acked]])
    change, number = np.concatenate([-packets, packets]), np.concatenate([number, number])
    order = np.argsort(time, kind="stable")
    order = order[stable_order(number[order])]
    if len(order):
        begins = starts(number[order])
        # Each message comes and goes: at the end of each requester none is left.
        now = np.cumsum(change[order])
        most[number[order][begins]] = np.maximum(np.maximum.reduceat(now, begins), 0)
    found: list[int] = most.tolist()
    return found
