"""What the packets of a connection add up to: transfers, and what happened to each of them on the way.

A transfer is one message from its first packet to its last ACK: what one work request becomes on the wire.
``requests`` fills these records; everything behind reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from rocekit.files.frame_names import frame_name
from rocekit.track.psn_ranges import PsnRanges
from rocekit.wire import NAK_SEQUENCE_ERROR, SYNDROME_VALUE
from rocekit.wire.psn import MASK
from rocekit.wire.words import end as end_name

if TYPE_CHECKING:
    from rocekit.journal.work_requests import WorkCompletion, WorkRequest
    from rocekit.track.connections import Connection
    from rocekit.track.events import Event

ACKED: Final = "acked"
UNACKNOWLEDGED: Final = "unacknowledged"
INCOMPLETE: Final = "incomplete"
SENT: Final = "sent"
NAK_PREFIX: Final = "nak:"
#: A response came that is cut before its AETH: an ACK, NAK or RNR NAK.
RESPONSE_CUT: Final = "response_cut"

#: A time that no packet has.
_NEVER_NS: Final = -(1 << 62)

#: The packets that most transfers miss: one empty set for all, because there are many transfers.
NOTHING: Final = PsnRanges()
#: The events of all that have none, for the same reason; ``note`` gives a transfer its own.
NO_EVENTS: Final[list[Event]] = []


class Particulars:
    """What few transfers have: an immediate, the operands of an atomic, the journal's records."""

    def __init__(self) -> None:
        self.immediate: int | None = None
        self.invalidate_rkey: int | None = None
        self.swap_add: int | None = None
        self.compare: int | None = None
        self.original: int | None = None
        self.wr: WorkRequest | None = None
        self.wc: WorkCompletion | None = None
        self.recv_wr: WorkRequest | None = None
        self.recv_wc: WorkCompletion | None = None


_Value = TypeVar("_Value")


class Particular(Generic[_Value]):
    """An attribute of a transfer that is one of its ``Particulars``, None where it has none."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, transfer: Any, owner: type | None = None) -> _Value | None:
        particulars = None if transfer is None else transfer.particulars
        found: _Value | None = None if particulars is None else getattr(particulars, self._name)
        return found

    def __set__(self, transfer: Any, value: _Value | None) -> None:
        if transfer.particulars is None:
            transfer.particulars = Particulars()
        setattr(transfer.particulars, self._name, value)


class Transfer:
    """One message. PSNs are unwrapped here and 24 bits in ``to_dict``; times are ns since the epoch.

    There are many of them, so what may be unknown is kept in plain numbers (``announced``, ``key`` and
    ``va``, ``ack_ns`` and ``ack_frame``). ``length``, ``rkey``, ``remote_va``, ``acked_ns`` and
    ``acked_frame`` give them, or None.

    Attributes:
        side: the requester's side of its connection: 0 for ``a``, 1 for ``b``.
        bytes: payload of the message, without pad and repeats.
        with_immediate, with_invalidate: whether it has them; they are None where the packet is cut.
        packets: the message's own packets, once each.
        request_end_ns: when the requester's last packet was seen (a READ's request); ``last_ns`` is the
        message's.
        missing: PSNs of the message that are not in the capture; responses_missing: of a READ's responses.
        acked_by_cut: whether the response in ``acked_frame`` is cut before its AETH.
        started, ended: whether its first and last packet are known.
        announced: the length of a WRITE or READ by its first packet, −1: unknown.
        key: the rkey, −1: unknown, and then ``va`` means nothing.
        place: where ``Kept`` has it, −1: nowhere.
        maybe_several: whether it may be more than one message: the end of one and the start of another may be
        among the packets that are not in the capture.
    """

    immediate = Particular[int]("immediate")
    invalidate_rkey = Particular[int]("invalidate_rkey")
    swap_add = Particular[int]("swap_add")
    compare = Particular[int]("compare")
    original = Particular[int]("original")
    wr = Particular["WorkRequest"]("wr")
    wc = Particular["WorkCompletion"]("wc")
    recv_wr = Particular["WorkRequest"]("recv_wr")
    recv_wc = Particular["WorkCompletion"]("recv_wc")

    def __init__(
        self, id: int, connection: Connection, side: int, operation: str, psn: int, time_ns: int, frame: int
    ) -> None:
        """A transfer at its first packet."""
        self.set_up(id, connection, side, operation, psn, time_ns, frame)

    def set_up(
        self, id: int, connection: Connection, side: int, operation: str, psn: int, time_ns: int, frame: int
    ) -> None:
        self.id, self.connection, self.side, self.operation = id, connection, side, operation
        self.first_psn = self.last_psn = psn
        self.first_ns = self.last_ns = self.request_end_ns = time_ns
        self.first_frame = self.last_frame = frame
        self.bytes = self.packets = self.retransmitted_packets = self.duplicates = 0
        self.naks = self.rnr_naks = self.timeouts = self.response_next = self.va = 0
        self.key = self.announced = self.ack_frame = self.place = -1
        self.ack_ns = _NEVER_NS
        self.status = UNACKNOWLEDGED
        self.started = True
        self.with_immediate = self.with_invalidate = self.acked_by_cut = False
        self.ended = self.maybe_several = False
        self.missing = self.responses_missing = NOTHING
        self.events = NO_EVENTS
        self.particulars: Particulars | None = None

    @property
    def remote_va(self) -> int | None:
        return None if self.key < 0 else self.va

    @property
    def rkey(self) -> int | None:
        return None if self.key < 0 else self.key

    @property
    def length(self) -> int | None:
        return None if self.announced < 0 else self.announced

    @property
    def acked_ns(self) -> int | None:
        return None if self.ack_ns == _NEVER_NS else self.ack_ns

    @property
    def acked_frame(self) -> int | None:
        return None if self.ack_frame < 0 else self.ack_frame

    def miss(self, first: int, last: int) -> None:
        """Note packets of the message, by their first and last PSN, that the capture misses."""
        if not self.missing:
            self.missing = PsnRanges()
        self.missing.add(first, last)

    def note(self, event: Event) -> None:
        """Something happened to it."""
        if not self.events:
            self.events = []
        self.events.append(event)

    def lacks(self, p: int) -> bool:
        """Whether the capture misses the message's packet ``p``."""
        return self.missing is not NOTHING and p in self.missing

    def miss_responses(self, first: int, last: int) -> None:
        """Note responses, by their first and last PSN, that were not seen yet."""
        if not self.responses_missing:
            self.responses_missing = PsnRanges()
        self.responses_missing.add(first, last)

    def met(self, kind: str) -> bool:
        """Whether an event of this kind happened to it."""
        return any(event.kind == kind for event in self.events)

    def __repr__(self) -> str:
        ends = f"{end_name(self.requester)} → {end_name(self.responder)}"
        return f"<Transfer {self.id}: {self.operation} {self.bytes:,} bytes, {ends}, {self.status}>"

    @property
    def requester(self) -> dict[str, Any]:
        """The requesting end: ``{"ip", "qpn"}``."""
        return self.connection.end(self.side)

    @property
    def responder(self) -> dict[str, Any]:
        """The responding end: ``{"ip", "qpn"}``."""
        return self.connection.end(1 - self.side)

    @property
    def is_read(self) -> bool:
        return self.operation == "READ"

    @property
    def is_short(self) -> bool:
        """Whether a WRITE or READ that is over, and whole in the capture, has fewer bytes than announced."""
        is_over = self.started and self.ended and self.status in (ACKED, SENT)
        is_whole = not self.missing and not self.responses_missing
        return is_over and is_whole and 0 <= self.bytes < self.announced

    @property
    def clean(self) -> bool:
        """Whether nothing out of the ordinary happened to it."""
        return not self.events and self.status in (ACKED, SENT)

    @property
    def duration_ns(self) -> int:
        """From the first packet to the last ACK, or to the last packet where no ACK came."""
        return max(self.last_ns, self.ack_ns, 0) - self.first_ns

    def to_dict(self, *, several: bool = False) -> dict[str, Any]:
        """The transfer as the JSON contract has it."""
        return {
            "id": self.id,
            "connection": self.connection.id,
            "requester": self.requester,
            "operation": self.operation,
            "immediate": self.immediate,
            "invalidate_rkey": self.invalidate_rkey,
            "with_immediate": self.with_immediate,
            "with_invalidate": self.with_invalidate,
            "bytes": self.bytes,
            "packets": self.packets,
            "first_psn": self.first_psn & MASK,
            "last_psn": self.last_psn & MASK,
            "remote_va": self.remote_va,
            "rkey": self.rkey,
            "first_ns": self.first_ns,
            "last_ns": self.last_ns,
            "acked_ns": self.acked_ns,
            "status": self.status,
            "retransmitted_packets": self.retransmitted_packets,
            "naks": self.naks,
            "rnr_naks": self.rnr_naks,
            "timeouts": self.timeouts,
            "maybe_several": self.maybe_several,
            "wr": None if self.wr is None else self.wr.to_dict(),
            "wc": None if self.wc is None else self.wc.to_dict(),
            "frames": [
                frame_name(self.first_frame, several=several),
                frame_name(self.last_frame, several=several),
            ],
        }


def begun(
    id: int, connection: Connection, side: int, operation: str, psn: int, time_ns: int, frame: int
) -> Transfer:
    """A transfer at its first packet, without the time that a constructor's arguments take."""
    transfer: Transfer = Transfer.__new__(Transfer)
    transfer.set_up(id, connection, side, operation, psn, time_ns, frame)
    return transfer


class EventSurvey:
    """The transfers with events of rare kinds, looked up once for all rules that ask.

    Attributes:
        copies: the transfers of which a packet or a response came twice; ignored: whether a requester did not
        obey a NAK.
        fatal: the NAKs that are not "PSN sequence error", with their transfers.
    """

    def __init__(self) -> None:
        self.copies: list[Transfer] = []
        self.ignored = False
        self.fatal: list[tuple[Transfer, Event]] = []

    def take(self, transfer: Transfer) -> None:
        """Look at the events of one more transfer."""
        has_copies = False
        for event in transfer.events:
            if event.kind == "nak":
                self.ignored = self.ignored or event.ignored
                if transfer.naks and SYNDROME_VALUE[event.syndrome or 0] != NAK_SEQUENCE_ERROR:
                    self.fatal.append((transfer, event))
            elif event.kind in ("duplicate", "response_repeat"):
                has_copies = True
        if has_copies:
            self.copies.append(transfer)


def ranks_of(transfers: list[Transfer], found: Any) -> None:
    """Fill a table with a row for each transfer: whether it is ``clean``, and its duration in ns."""
    for row, transfer in enumerate(transfers):
        found[row, 0] = not transfer.events and (transfer.status == ACKED or transfer.status == SENT)
        end_ns = transfer.last_ns if transfer.last_ns > transfer.ack_ns else transfer.ack_ns
        found[row, 1] = (end_ns if end_ns > 0 else 0) - transfer.first_ns


def has_events(transfers: list[Transfer]) -> bool:
    """Whether anything out of the ordinary happened to one of the transfers."""
    for transfer in transfers:  # noqa: SIM110 compiled, and a generator would not be
        if transfer.events:
            return True
    return False


def with_gaps(transfers: list[Transfer]) -> list[Transfer]:
    """The transfers of which the capture lacks responses, the beginning or the end."""
    found = []
    for transfer in transfers:
        if transfer.status == INCOMPLETE or (
            transfer.responses_missing is not NOTHING and transfer.responses_missing
        ):
            found.append(transfer)
    return found
