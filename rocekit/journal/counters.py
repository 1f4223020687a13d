"""Snapshots of counters as events of a journal: one event a device's port, or an interface without device."""

from __future__ import annotations

from contextlib import contextmanager, suppress

from rocekit.errors import RocekitError
from rocekit.machine.counters import GROUPS, CounterPlace, CounterReader, CounterSnapshot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any, Final

    from rocekit.journal.records import Journal, JournalEvent
    from rocekit.journal.rotating import RotatingJournal
    from rocekit.journal.writing import JournalWriter

EVENT: Final = "counters"


def write_snapshots(writer: JournalWriter | RotatingJournal, snapshots: Iterable[CounterSnapshot]) -> None:
    """Write an event for each snapshot.

    Raises:
        JournalError: the journal cannot be written.
    """
    for snapshot in snapshots:
        writer.write(EVENT, time_ns=snapshot.time_ns, **fields_of(snapshot))


@contextmanager
def counting(writer: JournalWriter | None, device: str) -> Iterator[None]:
    """Write snapshots of an RDMA device before and after; what cannot be read or written is left out."""
    # Asking tc and ethtool takes longer than reading files.
    reader = CounterReader(programs=False)
    places: list[CounterPlace] = []
    if writer is not None:
        with suppress(RocekitError, OSError, ValueError):
            places = reader.rdma_places(reader.tables(device))

    def take() -> None:
        if writer is not None:
            with suppress(RocekitError, OSError, ValueError):
                write_snapshots(writer, [reader.snapshot(place) for place in places])

    take()
    try:
        yield
    finally:
        take()


def fields_of(snapshot: CounterSnapshot) -> dict[str, Any]:
    """The keys of a snapshot's event, without time and host."""
    place = snapshot.place
    return {
        "device": place.device,
        "port": place.port,
        "driver": place.driver,
        "interface": place.interface,
        "addresses": list(place.addresses),
        "took_ns": snapshot.took_ns,
        "captured_on": snapshot.captured_on,
        "captured_to": snapshot.captured_to,
        **{group: dict(counts) for group, counts in snapshot.counts.items()},
        "left_out": list(snapshot.left_out) or None,
    }


def snapshots_in(journal: Journal | None) -> list[CounterSnapshot]:
    """The snapshots of a journal, in order of time."""
    return [] if journal is None else [_snapshot(event) for event in journal.of(EVENT)]


def _snapshot(event: JournalEvent) -> CounterSnapshot:
    addresses: Iterable[str] = event.get("addresses", ())
    place = CounterPlace(
        event.get("device"),
        event.get("port"),
        event.get("driver"),
        event.get("interface"),
        tuple(addresses),
    )
    counts: dict[str, Mapping[str, int]] = {g: event[g] for g in GROUPS if event.get(g)}
    return CounterSnapshot(
        event.host,
        place,
        event.time_ns,
        int(event.get("took_ns", 0)),
        counts,
        tuple(event.get("left_out", ())),
        event.get("captured_on"),
        event.get("captured_to"),
    )


def only_counters(journal: Journal | None) -> bool:
    """Whether a journal has snapshots of counters and nothing that a program did."""
    return journal is not None and len(journal) > 0 and all(event.event == EVENT for event in journal)
