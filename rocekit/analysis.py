"""The whole analysis: from captures and journals to connections, transfers and findings.

import rocekit

a = rocekit.analyze("x.pcapng")
print(a)
slow = a.transfers.where(operation="READ", status="acked")
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rocekit.explanation.results import CaptureSummary, Results
from rocekit.feeding import (
    Callbacks,
    Progress,
    Stages,
    Watch,
    clocks,
    feed,
    feed_doubled,
    feed_merged,
    restart,
    spool_for,
    survey,
    survey_doubled,
)
from rocekit.files.capture_names import JOURNAL_SUFFIX, is_there, rotation, stem
from rocekit.files.joined import Growing, is_joined, is_part, joined_files
from rocekit.files.remote import RemotePath, is_remote
from rocekit.files.remote import beside as files_beside
from rocekit.findings import Evidence, Finding, Rule, draw_with
from rocekit.findings.own_rules import find_all
from rocekit.findings.story_builder import build_stories
from rocekit.flows.observer import Observer
from rocekit.flows.silent_ways import silent_ways
from rocekit.packets.decoder import LEFT_OUT, Decoder
from rocekit.points.twice import may_be_doubled
from rocekit.report.record_table import RecordTable
from rocekit.track.tracker import Tracker

if TYPE_CHECKING:
    from rocekit.correlate import Correlation
    from rocekit.counters.comparison import CounterComparison
    from rocekit.counters.trial import CounterTrial
    from rocekit.explanation.statistics import Statistics
    from rocekit.explanation.topology import Topology
    from rocekit.explanation.transfer import Explanation
    from rocekit.journal import Journal
    from rocekit.packets.time_order import TimeOrder
    from rocekit.points.doubled import Doubled
    from rocekit.report.drawings import Drawings, Picture
    from rocekit.report.report_page import ReportPage
    from rocekit.track.cm_exchanges import CmRecord
    from rocekit.track.connections import Connection
    from rocekit.track.pairs.known_pairs import Pair
    from rocekit.track.transfers import Transfer
    from rocekit.verify.captured import CapturedPackets

SCHEMA: Final = "rocekit/1"


@dataclass(slots=True)
class Analysis(Results):
    """The results of captures and journals, and the questions that can be asked of them."""

    connections: RecordTable[Connection]
    transfers: RecordTable[Transfer]
    cm: RecordTable[CmRecord]
    findings: RecordTable[Finding]
    drawn: Drawings | None = field(default=None, repr=False, compare=False)

    @property
    def packets(self) -> CapturedPackets:
        """Every RoCE packet as columns; read again from the files, so that an analysis stays small.

        Raises:
            ValueError: standard input was analysed, which cannot be read again.
        """
        from rocekit.verify.captured import CapturedPackets

        return CapturedPackets.of(self.read_packets(), self)

    def drawings(self) -> Drawings:
        """What draws pictures of this analysis; the captures are read again for the first one.

        Raises:
            RocekitError: matplotlib is not installed.
        """
        from rocekit.report.drawings import Drawings

        if self.drawn is None:
            self.drawn = Drawings(self)
        return self.drawn

    def plot(
        self,
        *graphs: str,
        connection: int | None = None,
        side: str | None = None,
        transfer: int | Transfer | None = None,
        begin_ns: int | None = None,
        end_ns: int | None = None,
    ) -> Picture:
        """A connection over time, or the ladder of a transfer: shown by notebooks, ``save()`` writes a file.

        Args:
            graphs: any of ``psn rate outstanding rtt congestion``, or ``ladder``; none: those that are not
                empty.
            connection, side: by default where something went wrong, and ``a`` or ``b`` where more happened.
            transfer: only its time; or the transfer of the ladder.
            begin_ns, end_ns: the times to draw, ns since the epoch.

        Raises:
            RocekitError: there is nothing to draw, no such connection or transfer, or no matplotlib.
            ValueError: no such graph or side; or standard input was analysed.
        """
        return self.drawings().plot(
            graphs, connection=connection, side=side, transfer=transfer, begin_ns=begin_ns, end_ns=end_ns
        )

    def report(self, path: str | Path | None = None) -> ReportPage:
        """The page of `rocekit report`: shown by notebooks.

        Args:
            path: a file to write it to.

        Raises:
            RocekitError: the file cannot be written.
            ValueError: standard input was analysed, which cannot be read again.
        """
        from rocekit.report.report_page import report_page

        page = report_page(self)
        if path is not None:
            page.save(path)
        return page

    def html_of(self, what: object) -> str:
        """What a notebook shows of a finding or an explanation of this analysis, with pictures."""
        from rocekit.report.notebook import html_of

        return html_of(what, self, self.drawings)

    def _repr_html_(self) -> str:
        from rocekit.report.notebook import analysis_html

        return analysis_html(self, self.drawings)

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
        found = self.capture.relations
        here = self.capture.to_dict() | {"taken_at": taken, "relation": None, "relations": []}
        related = {} if found is None else found.to_dict(self.capture.limits_met)
        return here | related | {"clocks": clocks, "one_way": delays}

    def vantage_dicts(self) -> list[dict[str, Any]]:
        """The JSON's ``vantages``: where each connection was captured, for each capture that contains it."""
        places = self.vantages().of_connections()
        return [{"connection": number} | v.to_dict() for number, vs in sorted(places.items()) for v in vs]

    def to_dict(self) -> dict[str, Any]:
        """The document that ``rocekit analyze --format json`` prints."""
        return {k: list(v) if isinstance(v, Iterator) else v for k, v in self.document().items()}

    def document(self) -> dict[str, Any]:
        """As ``to_dict``; its long lists are iterators, whose items are made while they are written."""
        several = self.capture.several
        return {
            "schema": SCHEMA,
            "capture": self.capture_dict(),
            "connections": (c.to_dict() for c in self.connections),
            "transfers": (t.to_dict(several=several) for t in self.transfers),
            "cm": (r.to_dict(several=several) for r in self.cm),
            "findings": (f.to_dict(several=several) for f in self.findings),
            "journal": None if self.journal is None else self.journal.to_dict(several=several),
            "vantages": self.vantage_dicts(),
            "paths": [] if self.capture.paths is None else self.capture.paths.to_dict(),
            "counters": [c.to_dict() for c in self.counters],
        }

    def __repr__(self) -> str:
        sizes = f"connections={len(self.connections)} transfers={len(self.transfers)}"
        return f"<Analysis of {', '.join(self.capture.files)}: {sizes} findings={len(self.findings)}>"

    def __str__(self) -> str:
        from rocekit.report.text import summary

        return summary(self)


def find_journals(capture: str | Path) -> list[Path]:
    """The journals beside ``x.pcapng``: ``x.journal.jsonl``, ``x.NAME.journal.jsonl``, and files of either.

    Beside files of a rotation: those of each, and of the name of all. Beside a part of a capture: none.
    """
    if is_joined(capture):
        files = joined_files(str(capture))
        folder, slash, first = files[0].rpartition("/")
        names = dict.fromkeys([f"{folder}{slash}{rotation(first).base}", *files])
        return list(dict.fromkeys(journal for name in names for journal in _journals_beside(name)))
    return [] if is_part(capture) else _journals_beside(capture)


def _journals_beside(capture: str | Path) -> list[Path]:
    if is_remote(capture):
        folder = str(capture).rpartition("/")[0]
        own = stem(str(capture).rpartition("/")[2])
        urls = [url.rpartition("/")[2] for url in files_beside(str(capture))]
        return [RemotePath(f"{folder}/{n}") for n in urls if _is_journal_of(n, own)]
    path = Path(capture)
    name = stem(path)
    if str(capture) == "-" or not is_there(path.parent) or not name:
        return []
    try:
        every = os.listdir(path.parent)  # noqa: PTH208 there may be thousands of files
    except OSError:  # the folder may be entered but not listed
        every = []
    journals = (n for n in every if n.endswith(JOURNAL_SUFFIX))  # few: most are captures
    names = [f"{name}{JOURNAL_SUFFIX}", *sorted(n for n in journals if _is_journal_of(n, name))]
    return [p for p in (path.parent / n for n in dict.fromkeys(names)) if is_there(p)]


def _is_journal_of(name: str, capture: str) -> bool:
    own = name.startswith(f"{capture}.") or rotation(name).base == capture
    return own and name.endswith(JOURNAL_SUFFIX)


def read_journals(captures: Sequence[object], journals: Iterable[str | Path] | None) -> Journal | None:
    """The given journals as one, or those beside the captures; None when there is none."""
    if journals is None:
        journals = [p for capture in captures for p in find_journals(str(capture))]
    paths = list(journals)
    if not paths:
        return None
    from rocekit.journal import merge, read_journal

    return merge([read_journal(p, may_be_empty=True) for p in paths])


def pairs_of(journal: Journal | None, *, growing: bool = False) -> list[Pair]:
    """The QP pairs that a journal names.

    Args:
        growing: whether the programs still run, so that their QPs live on after the journal's last event.
    """
    if journal is None:
        return []
    from rocekit.correlate.pairs import journal_pairs
    from rocekit.journal.work_requests import read_programs

    pairs = journal_pairs(read_programs(journal))
    return [pair._replace(span_ns=None) for pair in pairs] if growing else pairs


def analyze(
    *captures: str | Path | Growing,
    journals: Iterable[str | Path] | None = None,
    progress: Progress | None = None,
    check_icrc: bool = True,
    plain: int | None = None,
    watch: Watch | None = None,
    stop: Callable[[], bool] | None = None,
    split: bool = True,
    hosts: Collection[str] | None = None,
    rules: Iterable[Rule] = (),
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
        split: whether a capture that has packets twice, as mirrors of two ports give them, is used as two
            captures (see ``points.doubled``).
        hosts: packets between other hosts are left out; None: all are taken.
        rules: rules of your own beside the built-in ones and those of installed packages.

    Raises:
        CaptureError: a file is no capture or cannot be read at all.
        JournalError: a journal cannot be read.
        ValueError: no capture is given.
    """
    if not captures:
        raise ValueError("no capture given")
    journal = read_journals(captures, journals)
    keeps_all = journal is not None and not _has_only_counters(journal)
    callbacks = Callbacks(progress, stop)
    order: TimeOrder | None = None
    doubled: Doubled | None = None
    twice: dict[int, Doubled] = {}
    spool = spool_for(captures[0]) if split and len(captures) == 1 else None
    while True:
        tracker = Tracker(pairs=pairs_of(journal), plain=None if keeps_all else plain)
        decoder = Decoder(check_icrc=check_icrc, foreign=LEFT_OUT)
        summary = CaptureSummary(
            [str(c) for c in captures], decoder.counts, pauses=decoder.pauses, limits_met=tracker.limits_met
        )
        summary.witnesses, summary.twice = decoder.witnesses, twice
        trial = _trial(journal)
        stages = Stages(decoder, summary, callbacks, tracker, Observer(), trial, watch, spool, hosts)
        if len(captures) > 1:
            if not feed_merged(captures, stages, split=split):
                continue
        elif doubled is not None:
            feed_doubled(captures[0], stages, doubled)
        elif not feed(captures[0], stages, order):
            order = survey(captures[0], callbacks)
            restart(watch)
            continue
        tracker.finish()
        if len(captures) > 1 or doubled is not None:
            break
        if (
            split
            and not summary.interrupted
            and may_be_doubled(tracker.connections, summary.records_again.get(0, 0))
        ):
            doubled = survey_doubled(captures[0], callbacks, spool)
            if doubled is not None:
                restart(watch)
                continue
        if order is not None:
            break
        if (order := clocks(captures[0], stages)) is None:
            break
        restart(watch)
    return conclude(tracker, stages.observer, summary, journal, trial, tuple(map(str, captures)), rules)


def conclude(
    tracker: Tracker,
    observer: Observer,
    summary: CaptureSummary,
    journal: Journal | None,
    trial: CounterTrial | None,
    paths: tuple[str, ...] = (),
    rules: Iterable[Rule] = (),
) -> Analysis:
    """Correlate the journal with what a finished tracker has, try the counters, and find the problems."""
    same = summary.sampler.addresses is observer.addresses
    summary.silent = silent_ways(tracker.connections, observer, summary.sampler.numbers if same else None)
    if tracker.cm.exchanges or observer.messages.said or observer.messages.offers:
        from rocekit.flows.applications import name_applications

        name_applications(tracker.connections, tracker.cm.exchanges, observer.messages)
    correlation = None
    if journal is not None and not _has_only_counters(journal):
        from rocekit.correlate import correlate

        of_cm, seen = tracker.cm.exchanges, summary.sightings
        correlation = correlate(journal, tracker.connections, tracker.transfers, of_cm, seen)
    if summary.sightings is not None:
        from rocekit.points.paths import Paths
        from rocekit.points.relations import Relations

        summary.relations = Relations.of(summary.sightings, summary.spans)
        summary.paths = Paths(summary.sightings, summary.sure_spans, tracker.connections)
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
        witnesses=summary.witnesses,
        sightings=summary.sightings,
        paths=summary.paths,
        counters=_try_counters(trial, tracker, summary, correlation),
        orders=summary.orders,
        limits_met=summary.limits_met,
    )
    analysis = Analysis(
        summary,
        RecordTable(tracker.connections, "connections"),
        RecordTable(tracker.transfers, "transfers"),
        RecordTable(tracker.cm.records, "cm"),
        RecordTable(find_all(evidence, rules), "findings"),
        correlation,
        [] if journal is None else [str(problem) for problem in journal.problems],
        evidence,
        tracker.left_out,
        paths,
        list(evidence.counters),
    )
    analysis.connections.analysis = analysis.transfers.analysis = analysis
    analysis.cm.analysis = analysis.findings.analysis = analysis
    draw_with(analysis.findings, analysis.html_of)
    return analysis


def _has_only_counters(journal: Journal) -> bool:
    """Whether a journal has nothing but snapshots of counters."""
    from rocekit.journal.counters import only_counters

    return only_counters(journal)


def _trial(journal: Journal | None) -> CounterTrial | None:
    """What compares a journal's snapshots with the packets; None if it has none."""
    if journal is None:
        return None
    from rocekit.counters.trial import CounterTrial
    from rocekit.journal.counters import snapshots_in

    return CounterTrial(found) if (found := snapshots_in(journal)) else None


def _try_counters(
    trial: CounterTrial | None, tracker: Tracker, summary: CaptureSummary, correlation: Correlation | None
) -> list[CounterComparison]:
    """What the snapshots of a journal say, compared with the packets."""
    if trial is None or not trial.snapshots:
        return []
    from rocekit.counters.basis import CaptureFacts
    from rocekit.points.vantage import Vantages

    clocks = {} if correlation is None else correlation.clocks
    facts = CaptureFacts(
        files=summary.files,
        first_ns=summary.first_ns,
        last_ns=summary.last_ns,
        dropped=summary.dropped or 0,
        unchecked=summary.counts.unchecked_icrc,
        whole=not summary.damage and not summary.interrupted,
        doubled=summary.doubled is not None or bool(summary.twice),
        alignments=summary.alignments,
        host_clocks={host: clock.offset_ns for host, clock in clocks.items()},
    )
    return trial.results(
        tracker.connections, Vantages(summary.sampler, tracker.connections, correlation), facts
    )
