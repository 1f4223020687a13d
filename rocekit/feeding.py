"""Captures read into the stages: decoder, tracker, and what is counted beside, in order of time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from rocekit.files.frame_names import frame_reference
from rocekit.files.joined import Growing, is_joined, is_part
from rocekit.files.reader import CaptureReader, open_capture
from rocekit.files.remote import is_remote
from rocekit.machine.memory import give_back_freed_memory
from rocekit.packets import Packets, empty_packets, in_file_order
from rocekit.packets.decode_ahead import decoded
from rocekit.packets.decoder import LEFT_OUT, Decoder
from rocekit.packets.run_back import NEVER_NS, runs_back
from rocekit.points.overlapping import records_again
from rocekit.points.turnarounds import SAMPLE
from rocekit.points.twice import LEAST, OFTEN, may_be_doubled
from rocekit.track.transfers import INCOMPLETE, UNACKNOWLEDGED

if TYPE_CHECKING:
    from rocekit.counters.trial import CounterTrial
    from rocekit.explanation.results import CaptureSummary
    from rocekit.files.spool import Spool
    from rocekit.flows.observer import Observer
    from rocekit.packets.merging.outline import Outlines
    from rocekit.packets.merging.sources import CaptureRows
    from rocekit.packets.time_order import TimeOrder
    from rocekit.points.doubled import Doubled
    from rocekit.track.pairs.exchanges import Known, TcpExchanges
    from rocekit.track.tracker import Tracker
    from rocekit.wire.mad import Mad

_STATUS: Final = attrgetter("status")
#: How transfers end whose responses come before their requests.
_UNFINISHED: Final = frozenset({UNACKNOWLEDGED, INCOMPLETE})
#: A stream that has not had packets twice by now is not kept.
_SOON: Final = 20_000
#: Merged packets that are tracked at once: the tracker's columns are wide.
_AT_ONCE: Final = 1 << 15
#: Of several captures with more packets than this together, packets are read twice instead of kept.
KEPT_ROWS: Final = 2_500_000
#: A packet takes about so many bytes of a file, or more.
_FEW_BYTES: Final = 150
#: A batch is tracked in so many parts, where exchanges of QPs over TCP lie between its packets.
_MOST_PARTS: Final = 128
#: At least one transfer in so many has this trouble where clocks differ.
_FEW: Final = 100

Progress = Callable[[CaptureReader], None]
Watch = Callable[[Packets], None]


class Callbacks(NamedTuple):
    """The caller's functions that reading calls (see ``analyze``)."""

    progress: Progress | None
    stop: Callable[[], bool] | None


class Stages(NamedTuple):
    """What packets go through.

    Attributes:
        spool: keeps the bytes of a stream, which cannot be read twice otherwise.
        hosts: packets between other hosts are left out; None: all are taken.
    """

    decoder: Decoder
    summary: CaptureSummary
    callbacks: Callbacks
    tracker: Tracker
    observer: Observer
    trial: CounterTrial | None
    watch: Watch | None
    spool: Spool | None = None
    hosts: Collection[str] | None = None

    def chosen(self, packets: Packets) -> Packets:
        """The packets between the wanted hosts."""
        if self.hosts is None:
            return packets
        numbers = [i for i, name in enumerate(packets.addresses) if name in self.hosts]
        return packets.where(np.isin(packets.src, numbers) & np.isin(packets.dst, numbers))

    def feed(self, packets: Packets, mads: Mapping[int, Mad] | None = None) -> None:
        self.observer.feed(packets)
        self.tracker.feed(packets, mads)
        if self.watch is not None:
            self.watch(packets)

    def feed_rest(self) -> None:
        """At the end, feed the corrupted packets that were held back (see ``Decoder.rest``)."""
        rest = self.decoder.rest()
        if rest is not None:
            self.feed(self.chosen(rest), {})


def feed(path: str | Path | Growing, stages: Stages, order: TimeOrder | None) -> bool:
    """Track one capture. Returns False, before its end, if times run back and no order is given.

    A stream, which cannot be read twice, is put in order as it comes.
    """
    surveyed, last_ns = order is not None, NEVER_NS
    told: list[Known] = []
    if order is None and _can_be_read_again(path):
        for packets in _read(path, 0, stages, told):
            if runs_back(packets.time_ns, last_ns):
                return False
            if len(packets):
                last_ns = int(packets.time_ns[-1])
            _feed_told(packets, told, stages)
        stages.feed_rest()
        return True
    from rocekit.packets.hold_back import InOrder
    from rocekit.points.order_trial import choose_order

    ordering = InOrder(order, choose_order)
    for packets in _read(path, 0, stages, told):
        for part in ordering.take(packets):
            _feed_told(part, told, stages, ordering.mads)
    for part in ordering.rest():
        _feed_told(part, told, stages, ordering.mads)
    stages.feed_rest()
    if surveyed or ordering.order.packets:
        stages.summary.orders[0] = ordering.order
    return True


def _feed_told(
    packets: Packets, told: list[Known], stages: Stages, mads: Mapping[int, Mad] | None = None
) -> None:
    """Feed packets in order; the tracker learns each QP pair of a TCP exchange where that lies among them.

    perftest says its QPs a second time when it is done. In a capture that was begun meanwhile that is the
    first time: what came before is no part of what might follow.
    """
    if told and len(packets):
        frames = packets.frame
        if (frames[1:] >= frames[:-1]).all():
            places = np.searchsorted(frames, [known.frame for known in told])
        else:  # in order of time, or nearly so
            places = np.searchsorted(packets.time_ns, [known.time_ns for known in told], "right")
        places = np.maximum.accumulate(places)
        learned = int(np.searchsorted(places, len(packets)))  # the others lie behind these packets
        begin = parts = 0
        for known, end in zip(told[:learned], places[:learned].tolist(), strict=True):
            if end > begin and parts < _MOST_PARTS:
                stages.feed(packets.where(slice(begin, end)), mads)
                begin, parts = end, parts + 1
            stages.tracker.learn(known.first, known.second)
        del told[:learned]
        packets = packets.where(slice(begin, None))
    stages.feed(packets, mads)


def survey(path: str | Path | Growing, callbacks: Callbacks) -> TimeOrder:
    """Read a capture to see how its packets are to be put in order."""
    from rocekit.packets.time_order import OrderSurvey
    from rocekit.points.order_trial import choose_order

    survey, decoder = OrderSurvey(choose_order), Decoder(check_icrc=False, foreign=LEFT_OUT)
    with open_capture(_named(path), comments=False) as reader:
        for _, packets, _ in decoded(reader, decoder, callbacks.stop or (lambda: False)):
            survey.feed(packets)
    return survey.order()


def clocks(path: str | Path | Growing, stages: Stages) -> TimeOrder | None:
    """What to add to senders' times, if the capture has ACKs before their requests; None if it has none."""
    tracker, summary = stages.tracker, stages.summary
    states = Counter(map(_STATUS, tracker.transfers)) + tracker.left_out
    troubled = sum(states[status] for status in _UNFINISHED)
    troubled += sum(len(c.missed) for c in tracker.connections if c.incidents is not None)
    every = states.total()
    if not troubled or troubled < every // _FEW or summary.interrupted or not _can_be_read_again(path):
        return None
    from rocekit.points.order_trial import troubles
    from rocekit.points.sender_clocks import clocks_of_responses

    sampler = summary.sampler
    order = clocks_of_responses(sampler.columns(0), sampler.addresses)
    if order is None:
        return None
    parts, decoder = [empty_packets()], Decoder(check_icrc=False, foreign=LEFT_OUT)
    with open_capture(_named(path), comments=False) as reader:
        for batch in reader:
            parts = [Packets.concat([*(p for p in parts if len(p)), decoder.decode(batch)])]
            if len(parts[0]) >= SAMPLE:
                break
    return order if troubles(order.of(parts[0])) <= troubles(parts[0]) else None


def spool_for(path: str | Path | Growing) -> Spool | None:
    """What keeps the bytes of a stream; None for a file."""
    if _can_be_read_again(path):
        return None
    from rocekit.files.spool import Spool

    return Spool()


def _can_be_read_again(path: str | Path | Growing) -> bool:
    if isinstance(path, Growing) or is_remote(path) or is_joined(path) or is_part(path):
        return True
    return str(path) != "-" and Path(path).is_file()


def _named(path: str | Path | Growing) -> str | Growing:
    return path if isinstance(path, Growing) else str(path)


def restart(watch: Watch | None) -> None:
    restart = getattr(watch, "restart", None)
    if restart is not None:
        restart()


def _read(
    path: str | Path | Growing, number: int, stages: Stages, told: list[Known] | None = None
) -> Iterator[Packets]:
    """The packets of one capture, batch by batch. What the reader reports of the file goes to the summary.

    Args:
        told: gets the QP pairs of TCP exchanges; None: the tracker learns them before their batch's packets.
    """
    exchanges: TcpExchanges | None = None
    span: tuple[int, int] | None = None
    summary, callbacks = stages.summary, stages.callbacks

    def is_over() -> bool:
        summary.interrupted = summary.interrupted or (callbacks.stop is not None and callbacks.stop())
        return summary.interrupted

    spool = stages.spool
    again = spool is not None and summary.doubled is not None
    source = spool.again() if spool is not None and again else _named(path)
    with open_capture(source, file=number, spool=None if again else spool) as reader:
        # What is not told is merged with other captures, which takes long for each batch.
        for batch, packets, others in decoded(reader, stages.decoder, is_over, large=told is None):
            packets = stages.chosen(packets)
            one = summary.doubled or summary.twice.get(number)
            if one is not None:
                packets = one.split(batch, packets)
            else:
                summary.records_again[number] = summary.records_again.get(number, 0) + records_again(packets)
            if len(batch):
                first, last = int(batch.time_ns.min()), int(batch.time_ns.max())
                span = (first, last) if span is None else (min(first, span[0]), max(last, span[1]))
                summary.first_ns = first if summary.first_ns is None else min(first, summary.first_ns)
                summary.last_ns = last if summary.last_ns is None else max(last, summary.last_ns)
            for n, part in _by_point(packets, number, summary):
                summary.sampler.feed(batch if n == number else replace(batch, file=n), part)
                if stages.trial is not None:
                    stages.trial.feed(part, n)
            stages.observer.messages.feed(packets)
            if len(others) and exchanges is None:
                from rocekit.track.pairs.exchanges import TcpExchanges

                exchanges = TcpExchanges()
            for known in () if exchanges is None else exchanges.feed(batch, others):
                stages.observer.messages.note_offers(known.first, known.second)
                if told is None:
                    stages.tracker.learn(known.first, known.second)
                else:
                    told.append(known)
            yield packets
            is_soon = stages.decoder.counts.roce_packets < _SOON
            if (
                spool is not None
                and not again
                and not is_soon
                and not may_be_doubled(stages.tracker.connections, summary.records_again.get(0, 0))
            ):
                spool.close()
            if callbacks.progress is not None:
                callbacks.progress(reader)
        if isinstance(path, Growing) and summary.doubled is None:
            summary.files[number] = str(path)
        summary.spans.append(span)
        summary.damage += [(str(path), str(damage)) for damage in reader.damage]
        for frame, comments in reader.comments.items():
            summary.comments[frame_reference(number, frame)] = comments
        if reader.dropped is not None:
            summary.dropped = (summary.dropped or 0) + reader.dropped
        for linktype, count in reader.skipped.items():
            summary.skipped[linktype] = summary.skipped.get(linktype, 0) + count


def _by_point(packets: Packets, number: int, summary: CaptureSummary) -> Iterable[tuple[int, Packets]]:
    """The packets of one file by capture point."""
    if summary.doubled is None or not summary.doubled.points:
        return [(number, packets)]
    return [(n, packets.where(packets.file == n)) for n in range(len(summary.files))]


def survey_doubled(
    path: str | Path | Growing, callbacks: Callbacks, spool: Spool | None, *, beside: bool = False
) -> Doubled | None:
    """Read a capture to see whether it has packets twice, and how it is to be used then.

    Args:
        beside: whether it is one of several captures: then it is one capture point.
    """
    from rocekit.points.doubled import DoublesSurvey

    if spool is None and not _can_be_read_again(path):
        return None
    if spool is not None and not spool.whole:
        return None
    survey, decoder = DoublesSurvey(str(path), beside=beside), Decoder(foreign=LEFT_OUT)
    source = _named(path) if spool is None else spool.again()
    with open_capture(source, comments=False) as reader:
        for batch, packets, _ in decoded(reader, decoder, callbacks.stop or (lambda: False), large=True):
            survey.feed(batch, packets)
    found = survey.found()
    return found.as_one_point() if found is not None and beside else found


def feed_doubled(path: str | Path | Growing, stages: Stages, doubled: Doubled) -> None:
    """Track a capture that has packets twice: as two captures, or without the copies."""
    from rocekit.packets.mads import find_mads

    summary = stages.summary
    summary.doubled = doubled
    summary.files = doubled.names
    mads: dict[int, Mad] = {}
    batches = []
    for packets in _read(path, 0, stages):
        for row, mad in find_mads(packets):
            mads[frame_reference(int(packets.file[row]), int(packets.frame[row]))] = mad
        batches.append(Packets.concat([packets]))
    whole = Packets.used_up(batches) if batches else empty_packets(stages.decoder.addresses)
    rest = stages.decoder.rest()
    if rest is not None:
        whole = in_file_order([whole, rest])
    parts = [_in_order(whole.where(whole.file == n), n, summary) for n in range(len(summary.files))]
    del whole
    if len(parts) == 1:
        stages.feed(parts[0], mads)
        return
    summary.spans *= len(parts)
    from rocekit.packets.merging.outline import Outlines
    from rocekit.packets.merging.sources import CaptureRows

    outlines, rows = Outlines.of(parts), []
    for number in range(len(parts)):
        rows.append(CaptureRows(None, number, stages.decoder, outlines))
        rows[-1].add(parts[number])
        parts[number] = parts[number].where(slice(0))
    _feed_parts(rows, outlines, mads, stages)


def _in_order(packets: Packets, number: int, summary: CaptureSummary) -> Packets:
    """A capture's packets in the order in which they are merged."""
    from rocekit.packets.time_order import OrderSurvey
    from rocekit.points.order_trial import choose_order

    survey = OrderSurvey(choose_order)
    survey.feed(packets)
    order = survey.order()
    if not order.packets:
        return packets
    summary.orders[number] = order
    return order.to_merge(packets)


def feed_merged(captures: Sequence[str | Path | Growing], stages: Stages, *, split: bool) -> bool:
    """Track several captures: every packet once, sorted by the aligned clocks.

    Of captures with many packets the packets are not kept but read a second time.

    Args:
        split: whether to look for captures that have packets twice.

    Returns:
        False, before anything is tracked, if such a capture was found: it is now in ``summary.twice``.
    """
    from rocekit.packets.mads import find_mads
    from rocekit.packets.merging.outline import Outlines
    from rocekit.packets.merging.sources import CaptureRows
    from rocekit.packets.time_order import OrderSurvey
    from rocekit.points.order_trial import choose_order

    mads: dict[int, Mad] = {}
    parts: list[CaptureRows] = []
    summary, is_large = stages.summary, False
    outlines = Outlines(_may_have(captures))
    for number, path in enumerate(captures):
        outlines.begin()
        survey = OrderSurvey(choose_order)
        again = str(path) if _is_cheap_to_read_again(path) else None
        parts.append(CaptureRows(again, number, stages.decoder, outlines))
        for packets in _read(path, number, stages):
            for row, mad in find_mads(packets):
                mads[frame_reference(number, int(packets.frame[row]))] = mad
            survey.feed(packets)
            outlines.add(packets)
            parts[-1].add(packets)
            if sum(map(len, outlines.every)) > KEPT_ROWS:
                for part in parts:
                    part.let_go()
                if not is_large:
                    is_large = give_back_freed_memory()
        order = survey.order()
        if order.packets:
            summary.orders[number] = order
            parts[-1].keep(order.to_merge(parts[-1].whole().wide()))
            outlines.replace(number, parts[-1].blocks())
    if split and not summary.twice and not summary.interrupted:
        overlap = {number for number, again in summary.records_again.items() if again >= LEAST}
        for number in sorted(overlap.union(outlines.with_repeats(LEAST, OFTEN))):
            if _is_cheap_to_read_again(captures[number]):
                found = survey_doubled(captures[number], stages.callbacks, None, beside=True)
                if found is not None:
                    summary.twice[number] = found
        if summary.twice:
            return False
    rest = stages.decoder.rest()
    if rest is not None:
        rest = stages.chosen(rest)
        for n, part in enumerate(parts):
            late = rest.where(rest.file == n)
            if len(late):
                part.add_late(late)
                outlines.replace(n, part.blocks())
    _feed_parts(parts, outlines, mads, stages)
    return True


def _may_have(captures: Sequence[str | Path | Growing]) -> int:
    """How many packets one of the captures may have, by their sizes."""
    sizes = [Path(path).stat().st_size for path in map(str, captures) if Path(path).is_file()]
    return min(max(sizes, default=0) // _FEW_BYTES, KEPT_ROWS)


def _is_cheap_to_read_again(path: str | Path | Growing) -> bool:
    return not isinstance(path, Growing) and not is_remote(path) and _can_be_read_again(path)


def _feed_parts(
    parts: Sequence[CaptureRows], outlines: Outlines, mads: Mapping[int, Mad], stages: Stages
) -> None:
    """Track the packets of several captures, each once; uses them up."""
    from rocekit.packets.merging.merge import merge
    from rocekit.points.seen_packets import SeenPackets
    from rocekit.points.sightings import Sightings

    summary, one_clock = stages.summary, stages.summary.doubled is not None
    if not outlines.settled():
        outlines.regroup([part.blocks() for part in parts])
    outlines.done()
    merged = merge(outlines, one_clock=one_clock)
    summary.copies = merged.copies
    summary.alignments = merged.alignments
    if len(merged):
        summary.first_ns, summary.last_ns = int(merged.time_ns[0]), int(merged.time_ns[-1])
    seen = SeenPackets()
    for outline in outlines.every:
        outline.keep_times()
    is_large = sum(merged.sizes) > KEPT_ROWS
    if is_large:
        give_back_freed_memory()
    sources = [part.used_up() for part in parts]
    for packets in merged.batches(sources, _AT_ONCE):
        seen.add(packets)
        stages.feed(packets, mads)
    if not len(merged):
        stages.feed(empty_packets(stages.decoder.addresses), mads)
    del sources
    summary.sightings = Sightings(merged, seen, summary.files, one_clock=one_clock)
    if is_large:
        outlines.every.clear()
        give_back_freed_memory()
