"""The whole analysis: from captures and journals to connections, transfers and findings.

import rocekit

a = rocekit.analyze("x.pcapng")
print(a)
slow = a.transfers.where(operation="READ", status="acked")
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rocekit.explanation.results import CaptureSummary, Results, Table
from rocekit.files.frame_names import frame_reference
from rocekit.files.outputs import stem
from rocekit.files.reader import CaptureReader, open_capture
from rocekit.findings import Evidence
from rocekit.findings.rules import find
from rocekit.findings.stories.build import build_stories
from rocekit.flows.observer import Observer
from rocekit.packets import Packets, empty_packets
from rocekit.packets.decode_ahead import decoded
from rocekit.packets.decoder import Decoder
from rocekit.packets.hold_back import InOrder
from rocekit.packets.mads import find_mads
from rocekit.packets.time_order import NEVER_NS, OrderSurvey, TimeOrder, runs_back
from rocekit.points.order_trial import choose_order, troubles
from rocekit.points.sender_clocks import clocks_of_responses
from rocekit.points.turnarounds import SAMPLE
from rocekit.track.handshake import Handshakes
from rocekit.track.tracker import Tracker
from rocekit.track.transfers import INCOMPLETE, UNACKNOWLEDGED
from rocekit.wire.mad import Mad

if TYPE_CHECKING:
    from rocekit.explanation.statistics import Statistics
    from rocekit.explanation.topology import Topology
    from rocekit.explanation.transfer import Explanation
    from rocekit.journal import Journal
    from rocekit.track.known_pairs import Pair
    from rocekit.track.transfers import Transfer

SCHEMA: Final = "rocekit/1"
JOURNAL_SUFFIX: Final = ".journal.jsonl"

#: How transfers end whose responses come before their requests.
_UNFINISHED: Final = frozenset({UNACKNOWLEDGED, INCOMPLETE})

#: At least one transfer in so many has this trouble where clocks differ.
_FEW: Final = 100

Progress = Callable[[CaptureReader], None]
Watch = Callable[[Packets], None]


@dataclass(slots=True)
class Analysis(Results):
    """The results of captures and journals, and the questions that can be asked of them."""

    def statistics(self) -> Statistics:
        """Counts and times of every direction of every connection.

        Raises:
            ValueError: this analysis was not made from a capture, or did not keep all transfers.
        """
        from rocekit.explanation.statistics import statistics

        if self.evidence is None:
            raise ValueError("no statistics: this analysis was not made from a capture")
        if self.left_out.total():
            raise ValueError("statistics need all transfers: analyse without plain")
        return statistics(self.evidence)

    def topology(self) -> Topology:
        """Which hosts talk to each other, over which QPs, and the pattern of it.

        Raises:
            ValueError: this analysis was not made from a capture.
        """
        from rocekit.explanation.topology import topology

        return topology(self)

    def explain(self, transfer: int | Transfer) -> Explanation:
        """The explanation of a transfer: what happened to it, when and why.

        Raises:
            ValueError: there is no such transfer.
        """
        from rocekit.explanation.transfer import explain

        if isinstance(transfer, int):
            every = len(self.transfers) + self.left_out.total()
            if not 0 <= transfer < every:
                raise ValueError(f"no transfer {transfer}: there are {every}, counted from 0")
            kept = self.transfers if every == len(self.transfers) else self.transfers.where(id=transfer)
            if not kept:
                raise ValueError(f"transfer {transfer} was not kept: analyse without plain")
            transfer = kept[transfer] if kept is self.transfers else kept[0]
        return explain(transfer, self)

    def capture_dict(self) -> dict[str, Any]:
        """The JSON's ``capture``: what was read, and where it was captured."""
        taken = [v.to_dict() for vs in self.vantages().of_files().values() for v in vs]
        seen = self.capture.sightings
        delays = [] if seen is None else [way.to_dict() for way in seen.one_way]
        clocks = [a.to_dict() for a in self.capture.alignments]
        return self.capture.to_dict() | {"taken_at": taken, "clocks": clocks, "one_way": delays}

    def vantage_dicts(self) -> list[dict[str, Any]]:
        """The JSON's ``vantages``: where each connection was captured, for each capture that contains it."""
        places = self.vantages().of_connections()
        return [{"connection": number} | v.to_dict() for number, vs in sorted(places.items()) for v in vs]

    def to_dict(self) -> dict[str, Any]:
        """The document that ``rocekit analyze --format json`` prints."""
        several = self.capture.several
        return {
            "schema": SCHEMA,
            "capture": self.capture_dict(),
            "connections": [c.to_dict() for c in self.connections],
            "transfers": [t.to_dict(several=several) for t in self.transfers],
            "cm": [r.to_dict(several=several) for r in self.cm],
            "findings": [f.to_dict(several=several) for f in self.findings],
            "journal": None if self.journal is None else self.journal.to_dict(several=several),
            "vantages": self.vantage_dicts(),
        }

    def __repr__(self) -> str:
        sizes = f"connections={len(self.connections)} transfers={len(self.transfers)}"
        return f"<Analysis of {', '.join(self.capture.files)}: {sizes} findings={len(self.findings)}>"

    def __str__(self) -> str:
        from rocekit.report.text import summary

        return summary(self)


def find_journals(capture: str | Path) -> list[Path]:
    """The journals beside ``x.pcapng``: ``x.journal.jsonl`` and ``x.NAME.journal.jsonl``."""
    path = Path(capture)
    name = stem(path)
    if str(capture) == "-" or not path.parent.is_dir() or not name:
        return []
    own = path.parent / f"{name}{JOURNAL_SUFFIX}"
    try:
        beside = sorted(path.parent.iterdir())
    except OSError:  # the folder may be entered but not listed
        beside = []
    others = [p for p in beside if p.name.startswith(f"{name}.") and p.name.endswith(JOURNAL_SUFFIX)]
    return [p for p in dict.fromkeys([own, *others]) if p.is_file()]


def read_journals(captures: Sequence[str | Path], journals: Iterable[str | Path] | None) -> Journal | None:
    """The given journals as one, or those beside the captures; None when there is none."""
    if journals is None:
        journals = [p for capture in captures for p in find_journals(capture)]
    paths = list(journals)
    if not paths:
        return None
    from rocekit.journal import merge, read_journal

    return merge([read_journal(p) for p in paths])


def pairs_of(journal: Journal | None) -> list[Pair]:
    """The QP pairs that a journal names."""
    if journal is None:
        return []
    from rocekit.correlate.pairs import journal_pairs
    from rocekit.journal.work_requests import read_programs

    return journal_pairs(read_programs(journal))


def analyze(
    *captures: str | Path,
    journals: Iterable[str | Path] | None = None,
    progress: Progress | None = None,
    check_icrc: bool = True,
    plain: int | None = None,
    watch: Watch | None = None,
    stop: Callable[[], bool] | None = None,
) -> Analysis:
    """Analyse captures: one, or several of the same traffic.

    Args:
        captures: pcap or pcapng files, compressed or not; ``"-"`` is standard input.
        journals: journals of the programs; None: those that ``find_journals`` finds.
        progress: called with the reader after every batch.
        check_icrc: whether to verify every ICRC.
        plain: how many transfers without events to keep: the slowest. The others are only counted, so that
            memory does not grow with the capture. None keeps all; with a journal all are kept.
        watch: called with every batch of packets, in the order in which they are tracked. If times run back
            in a file, it is read again to put its packets in order; ``watch.restart()`` is called before, if
            there is such a method.
        stop: called after every batch, and now and then while a pipe is silent. When it returns True, nothing
            more is read, and ``capture.interrupted`` is set.

    Raises:
        CaptureError: a file is no capture or cannot be read at all.
        JournalError: a journal cannot be read or has no usable line.
        ValueError: no capture is given.
    """
    if not captures:
        raise ValueError("no capture given")
    journal = read_journals(captures, journals)
    callbacks = _Callbacks(progress, stop)
    order: TimeOrder | None = None
    while True:
        tracker = Tracker(pairs=pairs_of(journal), plain=plain if journal is None else None)
        observer = Observer()
        decoder = Decoder(check_icrc=check_icrc)
        summary = CaptureSummary(
            files=[str(c) for c in captures], counts=decoder.counts, pauses=decoder.pauses
        )
        stages = _Stages(decoder, summary, callbacks, tracker, observer, watch)
        if len(captures) > 1:
            _feed_merged(captures, stages)
        elif not _feed(captures[0], stages, order):
            order = _survey(captures[0], callbacks)
            _restart(watch)
            continue
        tracker.finish()
        if len(captures) > 1 or order is not None:
            break
        order = _clocks(captures[0], stages)
        if order is None:
            break
        _restart(watch)
    return conclude(tracker, observer, summary, journal, paths=tuple(str(c) for c in captures))


def conclude(
    tracker: Tracker,
    observer: Observer,
    summary: CaptureSummary,
    journal: Journal | None,
    *,
    paths: tuple[str, ...] = (),
) -> Analysis:
    """Correlate the journal with what a finished tracker has, and find the problems."""
    correlation = None
    if journal is not None:
        from rocekit.correlate import correlate

        correlation = correlate(journal, tracker.connections, tracker.transfers, tracker.cm.exchanges)
    evidence = Evidence(
        connections=tracker.connections,
        transfers=tracker.transfers,
        exchanges=tracker.cm.exchanges,
        counts=summary.counts,
        build_stories=build_stories,
        damage=summary.damage,
        malformed=tracker.malformed,
        bad_icrc=tracker.bad_icrc,
        icrc_ignored=tracker.icrc_ignored,
        journal=correlation,
        several=summary.several,
        observer=observer,
        cm=tracker.cm.records,
        dropped=summary.dropped,
        pauses=summary.pauses,
        sightings=summary.sightings,
    )
    return Analysis(
        summary,
        Table(tracker.connections),
        Table(tracker.transfers),
        Table(tracker.cm.records),
        Table(find(evidence)),
        correlation,
        [] if journal is None else [str(problem) for problem in journal.problems],
        evidence,
        tracker.left_out,
        paths,
    )


@dataclass(frozen=True, slots=True)
class _Callbacks:
    """The caller's functions that reading calls (see ``analyze``)."""

    progress: Progress | None
    stop: Callable[[], bool] | None


@dataclass(frozen=True, slots=True)
class _Stages:
    """What packets go through."""

    decoder: Decoder
    summary: CaptureSummary
    callbacks: _Callbacks
    tracker: Tracker
    observer: Observer
    watch: Watch | None

    def feed(self, packets: Packets, mads: Mapping[int, Mad] | None = None) -> None:
        self.observer.feed(packets)
        self.tracker.feed(packets, mads)
        if self.watch is not None:
            self.watch(packets)


def _feed(path: str | Path, stages: _Stages, order: TimeOrder | None) -> bool:
    """Track one capture. Returns False, before its end, if times run back and no order is given.

    A stream, which cannot be read twice, is put in order as it comes.
    """
    surveyed, last_ns = order is not None, NEVER_NS
    if order is None and _can_be_read_again(path):
        for packets in _read(path, 0, stages):
            if runs_back(packets.time_ns, last_ns):
                return False
            if len(packets):
                last_ns = int(packets.time_ns[-1])
            stages.feed(packets)
        return True
    ordering = InOrder(order, choose_order)
    for packets in _read(path, 0, stages):
        for part in ordering.take(packets):
            stages.feed(part, ordering.mads)
    for part in ordering.rest():
        stages.feed(part, ordering.mads)
    if surveyed or ordering.order.packets:
        stages.summary.orders[0] = ordering.order
    return True


def _survey(path: str | Path, callbacks: _Callbacks) -> TimeOrder:
    """Read a capture to see how its packets are to be put in order."""
    survey, decoder = OrderSurvey(choose_order), Decoder(check_icrc=False)
    with open_capture(str(path)) as reader:
        for _, packets, _ in decoded(reader, decoder, callbacks.stop or (lambda: False)):
            survey.feed(packets)
    return survey.order()


def _clocks(path: str | Path, stages: _Stages) -> TimeOrder | None:
    """What to add to senders' times, if the capture has ACKs before their requests; None if it has none."""
    tracker, summary = stages.tracker, stages.summary
    troubled = sum(transfer.status in _UNFINISHED for transfer in tracker.transfers)
    troubled += sum(tracker.left_out[status] for status in _UNFINISHED)
    troubled += sum(len(connection.missed) for connection in tracker.connections)
    every = len(tracker.transfers) + tracker.left_out.total()
    if not troubled or troubled < every // _FEW or summary.interrupted or not _can_be_read_again(path):
        return None
    sampler = summary.sampler
    order = clocks_of_responses(sampler.columns(0), sampler.addresses)
    if order is None:
        return None
    parts, decoder = [empty_packets()], Decoder(check_icrc=False)
    with open_capture(str(path)) as reader:
        for batch in reader:
            parts = [Packets.concat([*(p for p in parts if len(p)), decoder.decode(batch)])]
            if len(parts[0]) >= SAMPLE:
                break
    return order if troubles(order.of(parts[0])) <= troubles(parts[0]) else None


def _can_be_read_again(path: str | Path) -> bool:
    return str(path) != "-" and Path(path).is_file()


def _restart(watch: Watch | None) -> None:
    restart = getattr(watch, "restart", None)
    if restart is not None:
        restart()


def _read(path: str | Path, number: int, stages: _Stages) -> Iterator[Packets]:
    """The packets of one capture, batch by batch. What the reader reports of the file goes to the summary.

    The tracker learns the QP pairs in a batch's TCP handshakes before it gets the batch's packets.
    """
    handshakes = Handshakes()
    summary, callbacks = stages.summary, stages.callbacks

    def is_over() -> bool:
        summary.interrupted = summary.interrupted or (callbacks.stop is not None and callbacks.stop())
        return summary.interrupted

    with open_capture(str(path), file=number) as reader:
        for batch, packets, others in decoded(reader, stages.decoder, is_over):
            if len(batch):
                first, last = int(batch.time_ns.min()), int(batch.time_ns.max())
                summary.first_ns = first if summary.first_ns is None else min(first, summary.first_ns)
                summary.last_ns = last if summary.last_ns is None else max(last, summary.last_ns)
            summary.sampler.feed(batch, packets)
            for first_end, second_end in handshakes.feed(batch, others):
                stages.tracker.learn(first_end, second_end)
            yield packets
            if callbacks.progress is not None:
                callbacks.progress(reader)
        summary.damage += [(str(path), str(damage)) for damage in reader.damage]
        for frame, comments in reader.comments.items():
            summary.comments[frame_reference(number, frame)] = comments
        if reader.dropped is not None:
            summary.dropped = (summary.dropped or 0) + reader.dropped
        for linktype, count in reader.skipped.items():
            summary.skipped[linktype] = summary.skipped.get(linktype, 0) + count


def _feed_merged(captures: Sequence[str | Path], stages: _Stages) -> None:
    """Track several captures: every packet once, sorted by the aligned clocks."""
    mads: dict[int, Mad] = {}
    parts: list[Packets] = []
    summary = stages.summary
    for number, path in enumerate(captures):
        batches, survey = [], OrderSurvey(choose_order)
        for packets in _read(path, number, stages):
            for row, mad in find_mads(packets):
                mads[frame_reference(number, int(packets.frame[row]))] = mad
            survey.feed(packets)
            batches.append(Packets.concat([packets]))
        parts.append(Packets.concat(batches) if batches else empty_packets(stages.decoder.addresses))
        order = survey.order()
        if order.packets:
            summary.orders[number] = order
            parts[-1] = order.of(parts[-1])
    from rocekit.packets.merge import merge
    from rocekit.points.sightings import Sightings

    merged = merge(parts)
    summary.copies = merged.copies
    summary.alignments = merged.alignments
    packets = Packets.concat(parts).where(merged.order).at(merged.time_ns)
    summary.sightings = Sightings(merged, packets, summary.files)
    if len(packets):
        summary.first_ns, summary.last_ns = int(merged.time_ns[0]), int(merged.time_ns[-1])
    stages.feed(packets, mads)
