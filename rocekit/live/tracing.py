"""Live analysis: the stages of a file analysis on the packets of an interface; reports transfers as they end.

for item in rocekit.trace("eth0"):
    print(item)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from rocekit.analysis import Analysis, conclude, pairs_of
from rocekit.errors import CaptureError, JournalError, RocekitError
from rocekit.explanation.results import CaptureSummary
from rocekit.files.interface import LiveCapture, frames_carried, is_local
from rocekit.files.pcapng_write import PcapngWriter
from rocekit.files.ring_files import RingLimits, RingWriter
from rocekit.flows.observer import Observer
from rocekit.live.counted import CountedTrace
from rocekit.live.first_transfers import FirstTransfers
from rocekit.live.letting_go import let_go
from rocekit.packets.decoder import LEFT_OUT, Decoder
from rocekit.packets.hold_back import LiveOrder
from rocekit.track.eviction import MOST_CONNECTIONS, Evicted, collected_later, crowd, end_idle
from rocekit.track.orphan_naks import OrphanNak, OrphanNaks
from rocekit.track.rest.resting import Rests
from rocekit.track.tracker import Tracker

if TYPE_CHECKING:
    from rocekit.journal import Journal
    from rocekit.live.flight_recorder import FlightRecorder
    from rocekit.packets import Packets
    from rocekit.packets.decoder import Counts
    from rocekit.track.cm_exchanges import CmRecord
    from rocekit.track.connections import Connection
    from rocekit.track.events import Event
    from rocekit.track.transfers import Transfer


WHOLE_FRAMES = 65535
"""A snaplen that keeps whole frames."""
Item: TypeAlias = "Connection | CmRecord | Transfer | Trouble | OrphanNak | Evicted"
"""An item of a trace."""
SUMMED_UP = 5_000
"""Under a flood, of more connections those used last are summed up: whoever ends the trace does not wait."""
FORGET_AFTER = 200_000
"""Open and troubled transfers that a trace with ``plain`` keeps at most, plus those of one batch."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that has just gone wrong with a transfer that is not over."""

    transfer: Transfer
    event: Event


#: Addresses that are checked for being this host's.
_MOST_ASKED = 1024
#: Kinds of events that are reported before their transfer ends.
_REPORTED = frozenset({"nak", "rnr_nak", "repeat"})


class Trace:
    """Follow an interface from now on: connections, CM messages, transfers and troubles as they come.

    Iterate over it, or over :meth:`batches`; a transfer comes when it ends. What happens to a transfer after
    that (its ACK was lost, its requester sends again) is in ``analysis``, which exists when the iteration has
    ended.

    Args:
        interface: its name.
        duration_s, transfers: when to stop.
        write: a pcapng file for all frames.
        ring: write into files, one after the other, whose names begin with that of ``write`` (see
            ``RingWriter``).
        trigger, around_s: names of findings: ``write`` then gets only the frames around these (see
            ``FlightRecorder``), so many seconds before and after.
        promiscuous: also frames for other stations.
        tunnels: also packets in tunnels and behind labels; the kernel then passes all frames of these.
        capture_filter: only frames that match this expression of pcap-filter(7).
        snaplen: bytes to keep of each frame, ``WHOLE_FRAMES`` for all. None: all if they are written, else
            the headers and CM messages; the ICRCs of longer packets are then not checked.
        journals: journals of the programs, read when the trace ends (their QP pairs also when it starts).
        plain: how many transfers without trouble to keep for the end, as in ``analyze``. Troubled ones are
            then forgotten when they are ``FORGET_AFTER``: a trace may run for weeks. With journals the first
            ``FORGET_AFTER`` transfers are kept (see ``FirstTransfers``).
        max_connections: of more connections those used last are kept, half as many, and the others let go.
            Then the analysis is of the packets since, and of ``SUMMED_UP`` connections at most.
        counters: whether to take snapshots of the interface's and its RDMA device's counters at the start and
            the end. The analysis compares them with the packets. With ``write``, they are also written to a
            journal beside that file.
        on_open: called when the interface is open, and no file yet: what follows needs no right to capture.

    Attributes:
        analysis: the analysis, once the iteration has ended.
        forgets: whether ``plain`` was given; forgot: whether troubled transfers were forgotten.
        matched_until_ns: with journals, when the first transfer began that is not kept; None if all are.
        evicted: connections that were let go.
        carried: frames of any kind that the interface counted meanwhile; None before the end, or if unknown.

    Raises:
        CaptureError: no such interface, no privilege, or the interface disappeared; what was traced until
            then was reported and is in ``analysis``.
        JournalError: a journal cannot be read when the trace has ended; ``analysis`` then lacks it.
    """

    def __init__(
        self,
        interface: str,
        *,
        duration_s: float | None = None,
        transfers: int | None = None,
        write: str | Path | None = None,
        promiscuous: bool = False,
        tunnels: bool = False,
        capture_filter: str | None = None,
        snaplen: int | None = None,
        journals: Iterable[str | Path] = (),
        plain: int | None = None,
        counters: bool = False,
        ring: RingLimits | None = None,
        trigger: Collection[str] = (),
        around_s: float = 5.0,
        on_open: Callable[[], None] | None = None,
        max_connections: int = MOST_CONNECTIONS,
    ) -> None:
        self.analysis: Analysis | None = None
        self._interface = interface
        self._duration_ns = None if duration_s is None else int(duration_s * 1e9)
        self._most = transfers
        self._journals = list(journals)
        self._items: list[Item] = []
        self._orphan_naks = OrphanNaks()
        self._ended = 0
        self.forgets = plain is not None
        self.forgot = False
        self.evicted = 0
        self._first = FirstTransfers(FORGET_AFTER)
        self._most_connections = max_connections
        self._rests = Rests()
        if snaplen is None and write is not None:
            snaplen = WHOLE_FRAMES
        self._capture = LiveCapture(
            interface,
            promiscuous=promiscuous,
            tunnels=tunnels,
            capture_filter=capture_filter,
            snaplen=snaplen,
        )
        self._writer: PcapngWriter | RingWriter | FlightRecorder | None = None
        try:
            if on_open is not None:
                on_open()
            if write is not None:
                kind = self._capture.linktype
                if trigger:
                    from rocekit.live.flight_recorder import FlightRecorder

                    self._writer = FlightRecorder(
                        write, trigger, round(around_s * 1e9), kind, interface_name=interface
                    )
                elif ring is None:
                    self._writer = PcapngWriter(write, kind, interface_name=interface)
                else:
                    self._writer = RingWriter(write, ring, kind, interface_name=interface)
        except BaseException:
            self._capture.close()
            raise
        self._carried_before = frames_carried(interface)
        self.carried: int | None = None
        self._decoder = Decoder(foreign=LEFT_OUT)
        self._order = LiveOrder()
        self._observer = Observer()
        journal = self._read_journals(missing_ok=True)
        self._counted = CountedTrace(
            interface, wanted=counters, journal=journal, write=None if write is None else Path(write)
        )
        self._tracker = Tracker(
            pairs=pairs_of(journal, growing=True),
            on_end=self._end,
            on_change=self._change,
            on_connection=self._items.append,
            on_cm=self._items.append,
            plain=None if self._journals else plain,
        )
        self._summary = CaptureSummary(
            files=[interface],
            counts=self._decoder.counts,
            pauses=self._decoder.pauses,
            witnesses=self._decoder.witnesses,
            live=True,
            limits_met=self._tracker.limits_met,
        )

    def _end(self, transfer: Transfer) -> None:
        self._ended += 1
        self._items.append(transfer)

    def _change(self, transfer: Transfer, event: Event | None) -> None:
        if event is None or event.kind not in _REPORTED or event.count != 1:
            return
        if event.syndrome is None or self._orphan_naks.is_new(event.frame):
            self._items.append(Trouble(transfer, event))

    @property
    def written(self) -> list[Path]:
        """The files of a ring or of a flight recorder that are there, oldest first."""
        return (
            [] if self._writer is None or isinstance(self._writer, PcapngWriter) else list(self._writer.files)
        )

    @property
    def matched_until_ns(self) -> int | None:
        return self._first.until_ns

    @property
    def dropped(self) -> int:
        """Frames that the kernel dropped because the trace was too slow."""
        return self._capture.dropped

    @property
    def received(self) -> int:
        """Frames that the kernel delivered or dropped."""
        return self._capture.received

    @property
    def connections(self) -> Sequence[Connection]:
        """The connections known so far, with their counters."""
        return self._tracker.connections

    @property
    def counts(self) -> Counts:
        """The counts of packets decoded so far."""
        return self._decoder.counts

    def stop(self) -> None:
        """End the trace; the iteration ends after the packets received so far."""
        self._counted.end()
        self._capture.stop()

    def __iter__(self) -> Iterator[Item]:
        for items in self.batches():
            yield from items

    def batches(self) -> Iterator[list[Item]]:
        """The items in lists, one for each batch of frames: so a printer writes once for each."""
        started = time.monotonic_ns()
        problem: RocekitError | None = None
        with ExitStack() as stack:
            try:
                for batch in self._capture:
                    if len(batch):
                        if self._writer is not None:
                            self._writer.write_batch(batch)
                        if self._summary.first_ns is None:
                            self._summary.first_ns = int(batch.time_ns.min())
                        self._summary.last_ns = max(int(batch.time_ns.max()), self._summary.last_ns or 0)
                        packets = self._decoder.decode(batch)
                        self._summary.sampler.feed(batch, packets)
                        self._observer.messages.feed(packets)
                        self._feed(self._order.take(packets))
                    else:
                        self._feed(self._order.rest())
                        if self._writer is not None:
                            self._writer.flush()
                    self._capture.hurry = self._order.holds
                    if self._items:
                        yield self._take_items()
                    if self.forgets and self._kept_transfers() >= FORGET_AFTER:
                        self._tracker.forget()
                        self.forgot = True
                    self._rests.look(self._tracker, self._summary.last_ns or 0)
                    if self._journals:
                        self._first.trim(self._tracker)
                    if crowd(self._tracker, self._decoder.numbered) > self._most_connections:
                        # Half as many: then there is room for a while.
                        yield from self._let_go(self._most_connections // 2)
                    if self._is_over(started):
                        self.stop()
                # Nobody who ends a flood waits for searches for garbage.
                stack.enter_context(collected_later())
                if self.evicted and crowd(self._tracker, 0) > SUMMED_UP:
                    yield from self._let_go(SUMMED_UP)
            except CaptureError as error:
                problem = error
            finally:
                try:
                    self.finish()
                except JournalError as error:
                    problem = problem or error
        if self._items:  # items first, then the error
            yield self._take_items()
        if problem is not None:
            raise problem

    def _feed(self, parts: list[Packets]) -> None:
        for packets in parts:
            self._observer.feed(packets)
            self._counted.trial.feed(packets)
            self._tracker.feed(packets, self._order.mads)
            self._items.extend(self._orphan_naks.new_in(packets))

    def _kept_transfers(self) -> int:
        kept = self._tracker._kept
        return 0 if kept is None else len(kept._kept)

    def _let_go(self, most: int) -> Iterator[list[Item]]:
        """Keep so many connections, those used last."""
        self._feed(self._order.rest())  # has the numbers that addresses had so far
        gone = end_idle(self._tracker, most)
        if self._items:  # with the numbers that connections had so far
            yield self._take_items()
        evicted = let_go(self._tracker, self._decoder, gone)
        self._observer.begin_anew()
        self._counted.trial.give_up()
        self._summary.sampler.close()
        self.evicted += len(gone)
        yield [evicted]

    def _take_items(self) -> list[Item]:
        """The items that have not been reported yet."""
        # The tracker has the append method of this list: keep the list itself.
        items = self._items.copy()
        self._items.clear()
        return items

    def _is_over(self, started_ns: int) -> bool:
        lasted = time.monotonic_ns() - started_ns
        if self._duration_ns is not None and lasted >= self._duration_ns:
            return True
        return self._most is not None and self._ended >= self._most

    def finish(self) -> None:
        """Close the capture and the file, and make the analysis; the end of the iteration calls it."""
        if self.analysis is not None:
            return
        self._feed(self._order.rest())
        held_back = self._decoder.rest()
        if held_back is not None:
            self._order.mads = self._order.mads or {}
            self._feed([held_back])
        self._counted.end()
        if self._order.order is not None:
            self._summary.orders[0] = self._order.order
        carried = frames_carried(self._interface)
        if carried is not None and self._carried_before is not None:
            self.carried = max(0, carried - self._carried_before)
        self._summary.dropped = self._capture.dropped
        self._tracker.finish()
        if self._writer is not None:
            self._writer.write_statistics(self._capture.received, self._capture.dropped)
            self._writer.close()
        self._capture.close()
        journal, unread = None, None
        try:
            journal = self._read_journals()
            self._counted.finish(journal)
            journal = self._first.finish(self._tracker, journal)
        except JournalError as error:
            unread = error
        sampler = self._summary.sampler
        sampler.local = frozenset(
            address for address in sampler.addresses[:_MOST_ASKED] if is_local(address, self._interface)
        )
        self.analysis = conclude(self._tracker, self._observer, self._summary, journal, self._counted.trial)
        if unread is not None:
            raise unread

    def _read_journals(self, *, missing_ok: bool = False) -> Journal | None:
        if not self._journals:
            return None
        from rocekit.journal import merge, read_journal

        journals = []
        for path in self._journals:
            try:
                journals.append(read_journal(path, may_be_empty=True))
            except JournalError:
                if not missing_ok:
                    raise
        return merge(journals) if journals else None


#: ``rocekit.trace("eth0")`` reads as what it does.
trace = Trace
