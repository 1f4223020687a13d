"""One line about each packet: :mod:`rocekit.explanation.packets` in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from rocekit import wire
from rocekit.explanation import packets as ps
from rocekit.explanation.event_steps import ONCE, ONCE_OR_AGAIN, message_again, syndrome_words
from rocekit.files.frame_names import FRAME_BITS, frame_name
from rocekit.findings.cause_words import ASKED_AGAIN, repeat_cause, source_words
from rocekit.packets.malformed import MALFORMED
from rocekit.wire.psn import MASK
from rocekit.wire.words import duration, plural, qpn, size

if TYPE_CHECKING:
    from rocekit.track.events import Event
    from rocekit.track.transfers import Transfer

_COLUMNS: Final = (
    *("connection", "sender", "transfer", "psn", "role", "round", "before"),
    *("duplicate", "cause", "cause_row", "event", "gap"),
)
_PACKETS: Final = ("opcode", "syndrome", "malformed", "dest_qpn", "dst", "payload_length")
_ENDINGS: Final = {1: "st", 2: "nd", 3: "rd"}


def describe(
    stories: ps.PacketStories, rows: Iterable[int] | None = None, *, file: int | None = None
) -> Iterator[str]:
    """One line about each packet; empty if nothing is known about it.

    Args:
        rows: which packets; None for all of them.
        file: which of several captures: frames have its numbers, and each line also names the frame in the
            other captures.
    """
    words = _Words(stories) if file is None else _WordsOfOne(stories, file)
    return (words.of(i) for i in (range(len(stories)) if rows is None else rows))


def ordinal(n: int) -> str:
    """``2nd``."""
    return f"{n}{'th' if n % 100 in (11, 12, 13) else _ENDINGS.get(n % 10, 'th')}"


class _Words:
    """The words for each packet. The columns are views: for single values they are faster than arrays."""

    def __init__(self, stories: ps.PacketStories) -> None:
        analysis = stories.analysis
        self._c = {name: getattr(stories, name).data for name in _COLUMNS}
        self._p = {name: stories.packets[name].data for name in _PACKETS}
        self._reference = stories.reference.data
        self._several = analysis.capture.several
        self._addresses = stories.packets.addresses
        self._transfers: list[Transfer] = list(analysis.transfers)
        self._events = stories.events
        self._causes: dict[int, str] = {}
        self._cm = stories.cm
        self._completed: dict[int, list[Transfer]] = {}
        for transfer in self._transfers:
            if transfer.acked_frame is not None:
                self._completed.setdefault(transfer.acked_frame, []).append(transfer)

    def of(self, i: int) -> str:
        role = self._c["role"][i]
        if role == ps.REQUEST or role == ps.RESPONSE:
            return self._message(i, role == ps.RESPONSE)
        if role in (ps.ACK, ps.NAK, ps.RNR_NAK, ps.ACK_OR_NAK):
            return self._acknowledgement(i, role)
        if role == ps.DATAGRAM:
            return self._datagram(i)
        if role == ps.IGNORED:
            return MALFORMED.get(self._p["malformed"][i]) or "wrong ICRC: the receiver drops it"
        if role == ps.CM:
            return self._management(i)
        if role == ps.CNP:
            to = f"{self._addresses[self._p['dst'][i]]} {qpn(self._p['dest_qpn'][i])}"
            return f"CNP: asks {to} to send slower{self._on(i)}"
        return ""

    def _on(self, i: int) -> str:
        connection = self._c["connection"][i]
        return "" if connection < 0 else f", connection {connection}"

    def _frame(self, row: int) -> str:
        return f"frame {frame_name(self._reference[row], several=self._several)}"

    def _message(self, i: int, response: bool) -> str:
        psn, number = self._c["psn"][i], self._c["transfer"][i]
        if number < 0:
            raw = "" if psn < 0 else f"PSN {psn & MASK}, "
            return f"{raw}the message is not whole in the capture{self._on(i)}"
        transfer = self._transfers[number]
        round_, event = self._c["round"][i], self._event(i)
        head = f"{_name(transfer)}, PSN {psn & MASK}"
        if self._c["duplicate"][i]:
            before = self._c["before"][i]
            of = "an earlier one" if before < 0 else self._frame(before)
            head += self._came_before(event, of)
        elif round_ > 1:
            unseen = ", the first is not in the capture" if round_ == 2 and self._c["before"][i] < 0 else ""
            head += f" again ({ordinal(round_)}{unseen}), {self._why(i, event)}"
        elif event is not None and event.kind == "late":
            head += ", reordered"
        gap = self._c["gap"][i]
        if gap >= 0:
            hole = self._events[gap]
            head += f", PSN {_span(hole)} missing before it"
        return f"{head}; {part_words(transfer, psn, response)}{self._on(i)}"

    @staticmethod
    def _came_before(event: Event | None, of: str) -> str:
        if event is not None and event.copied:
            return f", the same datagram as {of}: {ONCE}"
        return f", the same PSN as {of}: {ONCE_OR_AGAIN}"

    def _event(self, i: int) -> Event | None:
        number = self._c["event"][i]
        return None if number < 0 else self._events[number]

    def _why(self, i: int, event: Event | None) -> str:
        cause, row = self._c["cause"][i], self._c["cause_row"][i]
        if event is None:
            words = "cause unknown"
        elif cause == ps.ASKED_AGAIN:
            words = ASKED_AGAIN
        else:
            words = self._cause_of(i, event)
        if row < 0 or event is None:
            return words
        of = source_words(ps.CAUSES[cause], event)
        return f"{words} ({of}{self._frame(row)})"

    def _cause_of(self, i: int, event: Event) -> str:
        number = self._c["event"][i]
        words = self._causes.get(number)
        if words is None:
            transfer = self._transfers[self._c["transfer"][i]]
            words = repeat_cause(event, transfer.connection, transfer.side, transfer)
            self._causes[number] = words
        return words

    def _acknowledgement(self, i: int, role: int) -> str:
        psn, number, syndrome = self._c["psn"][i], self._c["transfer"][i], self._p["syndrome"][i]
        done: list[str] = []
        if role == ps.ACK:
            done = [_name(t) for t in self._completed.get(self._reference[i], ())]
        whose = None if number < 0 else _name(self._transfers[number])
        return acknowledgement_words(role, syndrome, psn, whose, done) + self._on(i)

    def _datagram(self, i: int) -> str:
        number, psn = self._c["transfer"][i], self._c["psn"][i]
        if number < 0:
            return ""
        head = f"{_name(self._transfers[number])}, PSN {psn & MASK}"
        if self._c["duplicate"][i] and self._c["before"][i] >= 0:
            head += self._came_before(self._event(i), self._frame(self._c["before"][i]))
        return f"{head}; datagram of {size(self._p['payload_length'][i])}{self._on(i)}"

    def _management(self, i: int) -> str:
        record = self._cm.get(i)
        if record is None:
            return ""
        again = message_again(record, ", sent again: its response was late or lost")
        return f"CM {record.message}{again}{self._on(i)}"


class _WordsOfOne(_Words):
    """The words for each packet in one of several captures."""

    def __init__(self, stories: ps.PacketStories, file: int) -> None:
        super().__init__(stories)
        seen = stories.analysis.capture.sightings
        assert seen is not None, "there is one capture"
        self._file = file
        self._names_of_files = seen.names
        frames = np.stack([column.whole() for column in seen.frames], axis=1)
        self._frames = frames.data
        self._seen_ns = np.stack([column.whole() for column in seen.seen_ns], axis=1).data
        # Which captures contain a connection: only there does a missing packet mean something.
        shown = np.zeros((len(stories.analysis.connections) + 1, len(seen.names)), np.bool_)
        np.logical_or.at(shown, stories.connection, frames > 0)
        shown[-1] = False  # packets of no connection
        group = seen.alignments[file].group  # in another stretch of time or of other traffic it cannot be
        shown[:, [a.group != group for a in seen.alignments]] = False
        self._shown: list[list[bool]] = shown.tolist()

    def of(self, i: int) -> str:
        words = super().of(i)
        return "; ".join([words, *self._elsewhere(i)]) if words else ""

    def _elsewhere(self, i: int) -> Iterator[str]:
        here = self._seen_ns[i, self._file]
        for other, name in enumerate(self._names_of_files):
            frame = self._frames[i, other]
            if other == self._file:
                continue
            if frame:
                later = self._seen_ns[i, other] - here
                when = "later" if later >= 0 else "earlier"
                yield f"frame {frame} of {name}, {duration(abs(later))} {when}"
            elif self._shown[self._c["connection"][i]][other]:
                yield f"not in {name}"

    def _frame(self, row: int) -> str:
        own = self._frames[row, self._file]
        if own:
            return f"frame {own}"
        file, number = divmod(self._reference[row], 1 << FRAME_BITS)
        return f"frame {number} of {self._names_of_files[file]}"


def part_words(transfer: Transfer, psn: int, response: bool) -> str:
    """What a packet is of its message: ``WRITE packet 3 of 8``."""
    total = transfer.last_psn - transfer.first_psn + 1
    operation = transfer.operation
    place = psn - transfer.first_psn + 1
    if response:
        if transfer.is_read:
            return f"READ response {place} of {total}" if transfer.started else "READ response"
        return f"{operation} response"
    if transfer.is_read:
        if place > 1:
            return f"READ request, from response {place} on"
        return f"READ request for {size(transfer.bytes)}"
    if total == 1 and transfer.started and transfer.ended:
        return f"{operation} of {size(transfer.bytes)}"
    if not transfer.started:
        return f"{operation} packet, the message started earlier"
    return f"{operation} packet {place}" + (f" of {total}" if transfer.ended else "")


def acknowledgement_words(
    role: int, syndrome: int, psn: int, whose: str | None, done: Sequence[str] = ()
) -> str:
    """What an ACK or NAK says.

    Args:
        role: its place in ``ROLES``.
        psn: −1 where it is not known.
        whose: the transfer that it is for, by name; None where it is not known.
        done: the transfers that an ACK completes, by name.
    """
    at = f"PSN {psn & MASK}" if psn >= 0 else "a PSN"
    of = "" if whose is None else f"; {whose}"
    if role == ps.ACK_OR_NAK:
        return f"response for {at}, ACK or NAK unknown (cut){of}"
    if role == ps.ACK:
        if done:
            many = f"{plural(len(done), 'transfer')}, {done[0]} to {done[-1]}"
            return f"ACK to {at}, completes {done[0] if len(done) == 1 else many}"
        return f"ACK to {at}{of}"
    if role == ps.RNR_NAK:
        return f"RNR NAK: no receive for {at}, wait {duration(wire.rnr_wait_ns(syndrome))}{of}"
    if wire.syndrome_value(syndrome) == wire.NAK_SEQUENCE_ERROR:
        return f"NAK PSN sequence error: expects {at}{of}"
    return f"{syndrome_words(syndrome)} for {at}{of}"


def _name(transfer: Transfer) -> str:
    if transfer.wr is None:
        return f"transfer {transfer.id}"
    return f"WR {transfer.wr.wr_id} (transfer {transfer.id})"


def _span(event: Event) -> str:
    first, last = event.psn & MASK, event.last_psn & MASK
    return f"{first}" if first == last else f"{first}–{last}"
