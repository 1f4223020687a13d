"""The results of an analysis: a record that explanations, reports and commands read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from rocekit.explanation.contents import Contents
from rocekit.files.reader import open_capture
from rocekit.machine.limits import met_dicts
from rocekit.packets import Packets, in_file_order
from rocekit.packets.decoder import LEFT_OUT, Counts, Decoder
from rocekit.packets.witnesses import Witnesses
from rocekit.points.turnarounds import Sampler
from rocekit.wire.text_table import safe

if TYPE_CHECKING:
    from rocekit.correlate import Correlation
    from rocekit.counters.comparison import CounterComparison
    from rocekit.findings import Evidence, Finding
    from rocekit.packets.merging.alignment import Alignment
    from rocekit.packets.pauses import Pause
    from rocekit.packets.time_order import TimeOrder
    from rocekit.points.doubled import Doubled
    from rocekit.points.paths import Paths
    from rocekit.points.relations import Relations
    from rocekit.points.sightings import Sightings
    from rocekit.points.vantage import Vantages
    from rocekit.track.cm_exchanges import CmRecord
    from rocekit.track.connections import Connection
    from rocekit.track.transfers import Transfer

T = TypeVar("T")


class Table(list[T], Generic[T]):
    """A list of records with filters by attribute and conversion to dicts and NumPy."""

    def where(self, **wanted: Any) -> Table[T]:
        """The records whose attributes have these values; a value may be a function that returns a bool."""
        return Table(
            record
            for record in self
            if all(
                value(getattr(record, name)) if callable(value) else getattr(record, name) == value
                for name, value in wanted.items()
            )
        )

    def to_dicts(self) -> list[dict[str, Any]]:
        """The records as in the JSON."""
        return [record.to_dict() for record in self]  # type: ignore[attr-defined]

    def to_numpy(self, *names: str) -> np.ndarray:
        """A structured array of numeric attributes; a missing value is −1.

        Raises:
            AttributeError: the records have no such attribute.
        """
        columns = [[_number(getattr(record, name)) for record in self] for name in names]
        table = np.empty(len(self), [(name, np.int64) for name in names])
        for name, column in zip(names, columns, strict=True):
            table[name] = column
        return table


def _number(value: Any) -> int:
    return -1 if value is None else int(value)


@dataclass(slots=True, eq=False, repr=False)
class CaptureSummary:
    """What was read: the JSON's ``capture``.

    Attributes:
        damage: (file, message) for each part that could not be read.
        comments: packet comments by frame reference.
        copies: packets that are in several files, counted once.
        dropped: packets that the capturing machine reports as dropped, None if it does not report them.
        pauses: 802.3 PAUSE and PFC frames.
        witnesses: ICMP errors, ARP and ND.
        spans: of each file, the first and last time of any frame; None without frames.
        sightings: which of several files have each packet; paths: what happened to each between them.
        relations: whether several files show the same traffic.
        skipped: frames left out because their link type cannot carry RoCE, by link type.
        interrupted: whether reading ended before the end of the captures.
        orders: how captures whose times run back were put in order, by their place.
        live: whether this is an interface and not a file.
        silent: ways between hosts of which there is no packet (see ``Contents``).
        limits_met: names of limits (see ``machine.limits``) that kept tracking from looking at everything.
        doubled: how a file is used that has packets twice; ``files`` are then its capture points.
        twice: of several files, those that have packets twice, by their place; each is one capture point.
        records_again: by file, how many records stand right behind the same one (``points.overlapping``).
    """

    files: list[str] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    first_ns: int | None = None
    last_ns: int | None = None
    damage: list[tuple[str, str]] = field(default_factory=list)
    comments: dict[int, tuple[str, ...]] = field(default_factory=dict)
    copies: int = 0
    dropped: int | None = None
    alignments: list[Alignment] = field(default_factory=list)
    pauses: list[Pause] = field(default_factory=list)
    witnesses: Witnesses = field(default_factory=Witnesses, repr=False)
    sampler: Sampler = field(default_factory=Sampler, repr=False)
    spans: list[tuple[int, int] | None] = field(default_factory=list)
    sightings: Sightings | None = field(default=None, repr=False)
    paths: Paths | None = field(default=None, repr=False)
    relations: Relations | None = None
    skipped: dict[int, int] = field(default_factory=dict)
    interrupted: bool = False
    orders: dict[int, TimeOrder] = field(default_factory=dict)
    live: bool = False
    silent: list[tuple[str, str]] = field(default_factory=list)
    limits_met: set[str] = field(default_factory=set)
    doubled: Doubled | None = field(default=None, repr=False)
    twice: dict[int, Doubled] = field(default_factory=dict, repr=False)
    records_again: dict[int, int] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.sampler.orders = self.orders

    @property
    def several(self) -> bool:
        return len(self.files) > 1

    @property
    def source(self) -> str:
        """The first file that was read, where ``files`` are capture points in it."""
        return self.files[0] if self.doubled is None else self.doubled.file

    @property
    def inputs(self) -> list[str]:
        """The files that were read; ``files`` may be capture points in one of them."""
        return self.files if self.doubled is None else [self.doubled.file]

    def points_of(self, place: int) -> range:
        """The places in ``files`` of the capture points in an input."""
        return range(place, place + 1) if self.doubled is None else range(len(self.files))

    def left_out_of(self, place: int) -> frozenset[int]:
        """The frames of copies in an input that are left out."""
        one = self.doubled or self.twice.get(place)
        return frozenset() if one is None else one.dropped

    @property
    def left_out(self) -> int:
        """How many copies are left out of files that are used beside others."""
        return sum(len(one.dropped) for one in self.twice.values())

    @property
    def names(self) -> list[str]:
        """The files without their folders, if that tells them apart."""
        names = [safe(PurePath(file).name) for file in self.files]
        return names if len(set(names)) == len(names) else list(self.files)

    @property
    def sure_spans(self) -> list[tuple[int, int] | None]:
        """From when to when each file has what passed.

        Where packets stand behind later ones, as of hosts that queue each direction for itself, a file may
        lack what passed before its last frame, and would stand behind its end; and so at its beginning.
        """
        from rocekit.packets.time_order import BY_TIME

        late_ns = max((o.furthest_ns for o in self.orders.values() if o.by == BY_TIME), default=0)
        return [None if span is None else (span[0] + late_ns, span[1] - late_ns) for span in self.spans]

    @property
    def contents(self) -> Contents:
        """What was captured beside RoCE packets."""
        return Contents(self.counts, self.skipped, self.live, self.silent)

    def to_dict(self) -> dict[str, Any]:
        """The capture as in the JSON."""
        counts = self.counts
        return {
            "files": self.files,
            "frames": counts.frames,
            "roce_packets": counts.roce_packets - self.copies - self.left_out,
            "first_ns": self.first_ns,
            "last_ns": self.last_ns,
            "truncated_packets": counts.truncated_packets,
            "malformed_packets": counts.malformed_packets,
            "bad_icrc": counts.bad_icrc,
            "unchecked_icrc": counts.unchecked_icrc,
            "fragments": counts.fragments,
            "pause_frames": counts.pause_frames,
            "icmp_errors": self.witnesses.icmp_count,
            "copies": self.copies,
            "dropped": self.dropped,
            "skipped_frames": sum(self.skipped.values()),
            "interrupted": self.interrupted,
            "limits_met": met_dicts(self.limits_met),
            "disordered_packets": sum(order.packets for order in self.orders.values()),
            "disorder_ns": max((order.furthest_ns for order in self.orders.values()), default=0),
            "time_orders": [{"file": n} | order.to_dict() for n, order in sorted(self.orders.items())],
            "damage": [{"file": file, "message": message} for file, message in self.damage],
            **self.contents.to_dict(),
            "doubled": None if self.doubled is None else self.doubled.to_dict(),
            "twice": [
                {"file": n, "left_out": len(one.dropped)} | one.to_dict()
                for n, one in sorted(self.twice.items())
            ],
        }


@dataclass(slots=True)
class Results:
    """What an analysis found in captures and journals.

    Attributes:
        connections, transfers, cm, findings: tables (see ``Table``).
        journal: the correlation with the journals, None without any.
        journal_problems: journal lines that could not be used.
        evidence: what the findings are based on.
        left_out: transfers that ``analyze(plain=…)`` did not keep, by status.
        paths: the captures, to read them again.
        counters: what devices counted between two snapshots in the journals, compared with the packets.
    """

    capture: CaptureSummary
    connections: Table[Connection]
    transfers: Table[Transfer]
    cm: Table[CmRecord]
    findings: Table[Finding]
    journal: Correlation | None = None
    journal_problems: list[str] = field(default_factory=list)
    evidence: Evidence | None = field(default=None, repr=False)
    left_out: Counter[str] = field(default_factory=Counter)
    paths: tuple[str, ...] = ()
    counters: list[CounterComparison] = field(default_factory=list)
    _told: dict[int, list[Finding]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _told_of: int = field(default=0, init=False, repr=False, compare=False)

    def findings_of(self, transfer: Transfer) -> tuple[Finding, ...]:
        """The findings of a transfer, without a look at all findings for each transfer."""
        if self._told_of != len(self.findings):
            self._told, self._told_of = {}, len(self.findings)
            for finding in self.findings:
                if finding.transfer is not None:
                    self._told.setdefault(id(finding.transfer), []).append(finding)
        return tuple(f for f in self._told.get(id(transfer), ()) if f.transfer is transfer)

    @property
    def packets(self) -> Packets:
        """Every RoCE packet as columns; see :meth:`read_packets`."""
        return self.read_packets()

    def read_packets(self) -> Packets:
        """Every RoCE packet as columns; read again from the files, so that an analysis stays small.

        Raises:
            ValueError: standard input was analysed, which cannot be read again.
        """
        decoder = Decoder(foreign=LEFT_OUT)
        parts = [part for part in self._read_again(decoder) if len(part)]
        rest = decoder.rest()
        return Packets.concat(parts) if rest is None else in_file_order([*parts, rest])

    def read_narrow(self) -> Packets | None:
        """As ``read_packets``, in narrow types; None if the packets do not come in the order of one file."""
        from rocekit.packets.narrow import Narrow

        kept, decoder = Narrow(), Decoder(foreign=LEFT_OUT)
        for part in self._read_again(decoder):
            kept(part)
        return kept.packets() if decoder.rest() is None else None

    def _read_again(self, decoder: Decoder) -> Iterator[Packets]:
        if "-" in self.paths:
            raise ValueError("standard input cannot be read again: analyse a file to get at its packets")
        for number, path in enumerate(self.paths):
            with open_capture(path, file=number) as reader:
                one = self.capture.doubled or self.capture.twice.get(number)
                for batch in reader:
                    packets = decoder.decode(batch)
                    yield packets if one is None else one.split(batch, packets)

    def html_of(self, what: object) -> str:
        """What a notebook shows of a finding or an explanation of this analysis."""
        from rocekit.wire.notebook_html import block, escape

        return block(f"<pre>{escape(what)}</pre>")

    def vantages(self) -> Vantages:
        """Where each capture was taken."""
        from rocekit.points.vantage import Vantages

        return Vantages(self.capture.sampler, self.connections, self.journal)
