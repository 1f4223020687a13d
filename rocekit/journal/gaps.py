"""What a journal lacks: what had no room, what its filter left out, files that are not here, and its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rocekit.wire.words import moment, plural

if TYPE_CHECKING:
    from rocekit.journal.records import Journal, JournalEvent

_KINDS: Final = {
    "sends": "work request",
    "receives": "receive",
    "completions": "completion",
    "others": "other record",
}
#: States of a recorder: of a program that it starts, or is attached to.
_BEGIN: Final = ("started", "attached")
_END: Final = ("ended", "detached")


@dataclass(slots=True)
class Gap:
    """Records of one queue, or of none, that a journal lacks.

    Attributes:
        qp: (device, QPN); ``srq``: (device, number) of a shared receive queue; neither: not known of which.
        filtered: whether they were left out because that was asked for; else there was no room for them.
        counts: how many, by kind: ``sends``, ``receives``, ``completions``, ``others``.
        since_ns, until_ns: by the host's clock, when they are missing.
    """

    host: str
    pid: int
    qp: tuple[str, int] | None = None
    srq: tuple[str, int] | None = None
    filtered: bool = False
    counts: dict[str, int] = field(default_factory=dict)
    since_ns: int = 0
    until_ns: int = 0

    @property
    def of(self) -> str:
        """Whose they are, in words."""
        if self.qp is not None:
            return f"{self.qp[0]} QP {self.qp[1]:#x} on {self.host}"
        if self.srq is not None:
            return f"{self.srq[0]} SRQ {self.srq[1]} on {self.host}"
        return f"process {self.pid} on {self.host}, of which queues is not known"

    def __str__(self) -> str:
        lacking = [plural(count, _KINDS[kind]) for kind, count in self.counts.items() if count]
        many = ", ".join(lacking[:-1]) + (" and " if lacking[:-1] else "") + lacking[-1]
        if self.filtered:
            return f"the filter of the journal left out {many} of {self.of}"
        return f"the journal lacks {many} of {self.of}: the recorder had no room"

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "host": self.host,
            "pid": self.pid,
            "qp": None if self.qp is None else {"device": self.qp[0], "qpn": self.qp[1]},
            "srq": None if self.srq is None else {"device": self.srq[0], "srq": self.srq[1]},
            **{kind: self.counts.get(kind, 0) for kind in _KINDS},
            "since_ns": self.since_ns,
            "until_ns": self.until_ns,
        }


@dataclass(frozen=True, slots=True)
class MissingFiles:
    """Files of a host's recording that are not here.

    Attributes:
        first: the number of the first file that is here; between: the numbers missing behind it.
    """

    host: str
    first: int
    between: tuple[int, ...]

    def __str__(self) -> str:
        words = []
        if self.first > 1:
            words.append(f"begins with file {self.first:,} of its recording: earlier ones are missing")
        if self.between:
            listed = ", ".join(f"{n:,}" for n in self.between[:5]) + (", …" if len(self.between) > 5 else "")
            words.append(f"has not all files of its recording: {listed} missing")
        return f"the journal of {self.host} {', and '.join(words)}"


def files_missing(journal: Journal) -> list[MissingFiles]:
    """Which files of recordings are not here."""
    numbers: dict[tuple[str, str], set[int]] = {}
    for event in journal.of("file_began"):
        numbers.setdefault((event.host, str(event["set"])), set()).add(int(event["number"]))
    found = []
    for (host, _), here in numbers.items():
        between = tuple(sorted(set(range(min(here), max(here))) - here))
        if min(here) > 1 or between:
            found.append(MissingFiles(host, min(here), between))
    return found


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A recording whose end is not in the journal.

    Attributes:
        pid: of the recorded program.
        until_ns: the time of the last line of its host.
    """

    host: str
    pid: int
    until_ns: int

    def __str__(self) -> str:
        return (
            f"the journal of process {self.pid} on {self.host} has no end: its recorder was killed or still "
            f"runs, or the end is cut off; what came after {moment(self.until_ns)} is not in it"
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"host": self.host, "pid": self.pid, "until_ns": self.until_ns}


def unfinished_in(journal: Journal) -> list[Unfinished]:
    """The recordings that began and did not end."""
    open_: dict[tuple[str, int], None] = {}
    for event in journal.of("recording"):
        if event["state"] in _BEGIN:
            open_[event.host, event.pid] = None
        elif event["state"] in _END:
            open_.pop((event.host, event.pid), None)
    if not open_:
        return []
    last: dict[str, int] = {}
    for event in journal:
        last[event.host] = max(last.get(event.host, event.time_ns), event.time_ns)
    return [Unfinished(host, pid, last[host]) for host, pid in open_]


def since_ns(event: JournalEvent) -> int:
    """Since when the records of a ``records_lost`` are missing."""
    return int(event.get("since_ns", event.time_ns))


def gaps_in(journal: Journal) -> list[Gap]:
    """What a journal lacks, by queue, those with the most first."""
    found: dict[tuple[Any, ...], Gap] = {}
    for event in journal.of("records_lost", "records_filtered"):
        filtered = event.event == "records_filtered"
        srq = (str(event.get("device", "?")), int(event["srq"])) if "srq" in event.fields else None
        apart = event.qp or srq
        key = (filtered, event.host, *((event.qp, srq) if apart else (event.pid,)))
        gap = found.get(key)
        if gap is None:
            gap = found[key] = Gap(event.host, event.pid, event.qp, srq, filtered, {}, since_ns(event))
        gap.since_ns = min(gap.since_ns, since_ns(event))
        gap.until_ns = max(gap.until_ns, event.time_ns)
        for kind in _KINDS:
            gap.counts[kind] = gap.counts.get(kind, 0) + int(event.get(kind, 0))
        told = sum(int(event.get(kind, 0)) for kind in _KINDS)
        gap.counts["others"] += max(0, int(event["count"]) - told)  # of another recorder: kinds are optional
    whole = [gap for gap in found.values() if any(gap.counts.values())]
    return sorted(whole, key=lambda gap: (gap.filtered, -sum(gap.counts.values())))


def filters_in(journal: Journal) -> dict[tuple[str, int], str]:
    """What was asked to be left out, in the recorder's options, by process (host, pid)."""
    began = journal.of("recording")
    return {(event.host, event.pid): str(event["filter"]) for event in began if "filter" in event.fields}
