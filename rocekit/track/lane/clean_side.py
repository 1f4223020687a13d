"""One side of a connection in the clean lane, and when it may be there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rocekit.track.lane.transfer_rows import is_plain
from rocekit.track.transfers import UNACKNOWLEDGED

if TYPE_CHECKING:
    from rocekit.packets.rows import Rows
    from rocekit.track.connections import Connection
    from rocekit.track.requests import Requests
    from rocekit.track.transfers import Transfer

#: No row; unknown.
NONE: Final = -1
#: The messages that the clean lane takes, each with an opcode that begins one.
BEGINS: Final = {"SEND": 0x00, "WRITE": 0x06}


class CleanSide:
    """What the clean lane has of one side of a connection.

    Args:
        number: 0 for ``a``, 1 for ``b``.

    Attributes:
        reliable: False for UC, which nobody acknowledges.
        requests: its state machine; None: the side has sent no request.
        progress, recent: parts of that, since it was on.
        on: whether its requests, and the responses to them, are in order.
        other: the other side, to whose requests this side responds; None: unknown.
        first, last, open, building: its rows: the oldest, the newest, the first that no ACK covers, and the
        one whose message goes on; −1: there is none.
        count: how many rows it has; before: how many transfers of the ledger's window are older.
        objects_open: whether some of those older ones are not acknowledged.
        counts_acks: whether ACKs are taken: the first one after a go-back says more.
        reading: the row of the oldest READ that waits for responses; −1: there is none.
        mtu: of its connection; −1: unknown. largest: the largest payload that ended a message.
        packets, transfers: what is not counted at the connection yet; at: the last such packet's row.
    """

    def __init__(self, lane: Any, connection: Connection, number: int) -> None:
        self.lane = lane
        self.connection = connection
        self.number = number
        self.reliable = connection.transport != "UC"
        self.requests: Any = None
        self.progress: Any = None
        self.recent: Any = None
        self.on = False
        self.other: CleanSide | None = None
        self.first = self.last = self.open = self.building = self.reading = NONE
        self.count = self.before = 0
        self.objects_open = False
        self.counts_acks = False
        self.mtu = NONE
        self.largest = 0
        self.packets = self.transfers = self.at = 0

    def leave(self) -> None:
        """What comes next is not in order: the state machine gets all that there is."""
        self.lane.leave(self)

    def measure(self, payload: int) -> None:
        """A packet with so many bytes is the last of its message, or of a READ's responses."""
        if payload > self.largest:
            self.largest = payload
            if payload > self.connection.largest_payload:
                self.connection.largest_payload = payload

    def clear(self) -> None:
        """It has no rows any more, and is not on."""
        self.first = self.last = self.open = self.building = self.reading = NONE
        self.count = 0
        self.on = self.requests.in_lane = False

    def reads_on(self, r: Rows, i: int, p: int) -> bool:
        """Take the next response of a READ that is an object, older than all rows."""
        requests = self.requests
        transfer: Transfer | None = requests.ledger.find(p)
        if transfer is None or transfer.operation != "READ" or not transfer.started:
            return False
        if transfer.response_next != p or transfer.status != UNACKNOWLEDGED:
            return False
        requests.responses.take(r, i, p, "READ_RESPONSE")
        self.objects_open = requests.outcomes.is_open()
        return True


def is_clean(requests: Requests) -> bool:
    """Whether nothing is out of the ordinary with these requests, and no hole or repeat is open."""
    progress, ledger, outcomes = requests.progress, requests.ledger, requests.outcomes
    if not progress.started or progress.expected != progress.high or progress.acked > progress.expected:
        return False
    if progress.cut_psn >= 0 or progress.gapped or requests.assembly.ahead or ledger.pending:
        return False
    troubles = ledger.troubles
    if ledger.open_read is not None or (troubles is not None and not troubles.are_over()):
        return False
    building = ledger.building
    if building is None:
        return True
    if building.operation not in BEGINS or not is_plain(building):
        return False
    # Compiled, no index counts from the end.
    window, unacked = ledger.window, outcomes.unacked
    if not window or window[len(window) - 1] is not building:
        return False
    return not progress.reliable or (outcomes.is_open() and unacked[len(unacked) - 1] is building)
