"""What a journal is made of: its events, and the lines that could not be used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rocekit.journal.schema import CLOCK, check, is_qp
from rocekit.wire.text_table import safe

#: A process's threads write their events out of order by less, if its clock is not set.
_SET_BACK_NS = 10_000_000
_OWN_FIELDS = ("mono_ns", "thread", "qp", "restated")


@dataclass(frozen=True, slots=True)
class JournalEvent:
    """One journal line.

    Attributes:
        time_ns: nanoseconds since the epoch, by the clock of ``host``.
        event: a name of :data:`~rocekit.journal.schema.SCHEMA`.
        host, pid: the process it happened in.
        qp: (device, QPN), or None where the event has no QP.
        fields: the event's other keys; a key whose value was null is left out.
        mono_ns: the same moment by the host's monotonic clock; None where the writer had none.
        thread: the number of the process's thread, from 0 in order of first use; None where unknown.
        restated: whether an earlier file of the same recording has the event, too.
    """

    time_ns: int
    event: str
    host: str
    pid: int
    qp: tuple[str, int] | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    mono_ns: int | None = None
    thread: int | None = None
    restated: bool = False

    def __getitem__(self, key: str) -> Any:
        return self.fields[key]

    def get(self, key: str, default: Any = None) -> Any:
        return self.fields.get(key, default)

    def to_dict(self) -> dict[str, Any]:
        """The event as the JSON of its line."""
        line: dict[str, Any] = {
            "time_ns": self.time_ns,
            "clock": CLOCK,
            "host": self.host,
            "pid": self.pid,
            "event": self.event,
        }
        for name in ("mono_ns", "thread"):
            if getattr(self, name) is not None:
                line[name] = getattr(self, name)
        if self.restated:
            line["restated"] = True
        if self.qp is not None:
            line["qp"] = {"device": self.qp[0], "qpn": self.qp[1]}
        return line | dict(self.fields)


@dataclass(frozen=True, slots=True)
class Problem:
    """A line that was not used, and what was expected instead."""

    file: str
    line: int
    expected: str

    def __str__(self) -> str:
        return f"{safe(self.file)}: line {self.line}: {self.expected}"


@dataclass(frozen=True, slots=True)
class Journal:
    """The events of one journal or several, sorted by time, and the lines that were not used.

    Attributes:
        empty: the files that have no event.
    """

    events: list[JournalEvent]
    problems: list[Problem] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[JournalEvent]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)

    def of(self, *events: str) -> list[JournalEvent]:
        """The events of the given names."""
        return [event for event in self.events if event.event in events]


def merge(journals: Iterable[Journal]) -> Journal:
    """Several journals as one. Equal times keep the order of the journals; clocks are not adjusted."""
    journals = list(journals)
    events = in_order(*_events_of(journals))
    problems = [problem for journal in journals for problem in journal.problems]
    return Journal(events, problems, [file for journal in journals for file in journal.empty])


def in_order(*files: list[JournalEvent]) -> list[JournalEvent]:
    """All events by time; behind the earlier ones of its file where a process's clock was set back."""
    times = []
    for events in files:
        latest: dict[tuple[str, int], int] = {}
        for event in events:
            key = event.host, event.pid
            known = latest.get(key, event.time_ns)
            time_ns = event.time_ns if event.time_ns > known - _SET_BACK_NS else known
            latest[key] = max(known, time_ns)
            times.append(time_ns)
    every = [event for events in files for event in events]
    return [every[at] for at in sorted(range(len(every)), key=times.__getitem__)]


_Place = tuple[str, int]
"""The set of files to which a journal belongs, and its number among them."""


def _place_of(journal: Journal) -> _Place | None:
    """A file's place in its recording; None of a journal that is one file, or of several together."""
    began = journal.of("file_began")
    return (str(began[0]["set"]), int(began[0]["number"])) if len(began) == 1 else None


def _events_of(journals: list[Journal]) -> list[list[JournalEvent]]:
    """Each file's events, without those that a file restates of one that is here, too."""
    places = [_place_of(journal) for journal in journals]
    files: list[list[JournalEvent]] = []
    first: dict[str, int] = {}
    for place in places:
        if place is not None:
            first[place[0]] = min(first.get(place[0], place[1]), place[1])
    known: set[str] = set()
    for journal, place in zip(journals, places, strict=True):
        if place is None or place[1] == first[place[0]]:
            files.append(journal.events)
        elif (place[0], place[1] - 1) in places:
            files.append([event for event in journal.events if not event.restated])
        else:  # the file before it is missing, but not all that were before
            known = known or {_told(event) for other in journals for event in other if not event.restated}
            files.append([e for e in journal.events if not e.restated or _told(e) not in known])
    return files


def _told(event: JournalEvent) -> str:
    """What is the same of an event and where it is restated."""
    fields = sorted(event.fields.items(), key=str)
    return repr((event.time_ns, event.event, event.host, event.pid, event.qp, fields))


def parse_event(line: object) -> JournalEvent:
    """The event of one line's decoded JSON.

    Raises:
        ValueError: what was expected.
    """
    if not isinstance(line, dict):
        raise ValueError("expected a JSON object")
    name, values = check(line)
    values = {key: _safe(value) for key, value in values.items()}
    time_ns, host, pid = values.pop("time_ns"), values.pop("host"), values.pop("pid")
    mono_ns, thread, qp, restated = (values.pop(key, None) for key in _OWN_FIELDS)
    place = (qp["device"], qp["qpn"]) if is_qp(qp) else None
    return JournalEvent(time_ns, name, host, pid, place, values, mono_ns, thread, bool(restated))


def _safe(value: Any) -> Any:
    """A value whose text can be printed, wherever it is: who wrote the journal is not known."""
    if isinstance(value, str):
        return value if value.isprintable() else safe(value)
    if isinstance(value, dict):
        return {safe(str(key)): _safe(part) for key, part in value.items()}
    return [_safe(part) for part in value] if isinstance(value, list) else value
