"""``rocekit counters``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rocekit.commands import FILE, format_option, interfaces, print_json
from rocekit.commands.numbers import SECONDS
from rocekit.commands.options import JOURNAL, output_option

if TYPE_CHECKING:
    from rocekit.machine.counters import CounterPlace, CounterReader, CounterSnapshot

    Pair = tuple[CounterSnapshot, CounterSnapshot]

_JOURNALS = (".jsonl", ".jsonl.gz")


@click.command()
@click.argument("names", metavar="[DEVICE|IFACE|JOURNAL]…", nargs=-1, shell_complete=interfaces)
@output_option("journal", JOURNAL, help="Append to a journal.")
@click.option(
    "--for",
    "seconds",
    type=SECONDS,
    help="Take two snapshots, so far apart, and print the difference.",
)
@click.option(
    "--since", type=FILE, metavar="JOURNAL", help="Print the difference to the first snapshot of a journal."
)
@click.option(
    "--capture",
    metavar="FILE",
    help="A capture on this interface that is running now: analyze then knows where FILE was taken, and that "
    "it covers this time.",
)
@click.option("--all", "every", is_flag=True, help="Also counters that are zero, or did not change.")
@format_option
def command(
    names: tuple[str, ...],
    journal: Path | None,
    seconds: float | None,
    since: Path | None,
    capture: str | None,
    every: bool,
    output: str,
) -> None:
    """Print the counters of devices and interfaces, or how much they went up.

    Without a name, of all RDMA devices. Read are hw_counters and the port's counters, the interface's
    statistics, its queues and filters (tc -s), its driver's counters (ethtool -S) and pause frames. Journals
    instead of names: the difference between the first and the last snapshot in them.

    With snapshots before and after in its journal, rocekit analyze compares the counters with the packets.

    \b
    Example:
      rocekit counters rxe0
      rocekit counters rxe0 --for 10
      rocekit counters rxe0 --capture x.pcap -o x.journal.jsonl
      rocekit counters rxe0 --since x.journal.jsonl
      rocekit counters eth0 --format json
      rocekit counters rxe0.before.jsonl rxe0.after.jsonl
    """
    from rocekit.files.outputs import check_output
    from rocekit.machine.counters import CounterReader

    files = [name for name in names if name.endswith(_JOURNALS)]
    if files and (len(files) < len(names) or journal or seconds or since):
        raise click.UsageError("Journals are compared with each other: leave out other names and options.")
    if seconds is not None and since is not None:
        raise click.UsageError("--for takes the first snapshot itself: leave out --since.")
    if str(journal) == "-":
        raise click.UsageError("--output: standard output has the table: name a file, or use --format json.")
    if journal is not None:
        check_output(journal, [] if capture is None else [capture])
    if files:
        from rocekit.commands.sandbox import give_up_root

        give_up_root(files)
        show([], _pairs(_read(files)), every, output)
        return
    reader = CounterReader()
    places = reader.places(names)
    if capture is not None and len(places) > 1:
        raise click.UsageError("--capture is of one interface: name one device or interface.")
    earlier = _read([since]) if since is not None else []
    taken = _take(reader, places, capture)
    if seconds is not None:
        time.sleep(seconds)
        earlier = taken
        taken = _take(reader, places, capture)
    if journal is not None:
        from rocekit.journal import JournalWriter
        from rocekit.journal.counters import write_snapshots

        with JournalWriter(journal, append=True) as writer:
            write_snapshots(writer, [*earlier, *taken] if seconds is not None else taken)
    show(taken, _pairs([*earlier, *taken]) if earlier else None, every, output)


def _take(
    reader: CounterReader, places: Sequence[CounterPlace], capture: str | None
) -> list[CounterSnapshot]:
    from rocekit.machine.counters import RunningCapture

    def running(interface: str | None) -> RunningCapture | None:
        return None if capture is None or interface is None else RunningCapture(interface, Path(capture).name)

    return [reader.snapshot(place, running(place.interface)) for place in places]


def _read(journals: Sequence[str | Path]) -> list[CounterSnapshot]:
    from rocekit.errors import JournalError
    from rocekit.journal import merge, read_journal
    from rocekit.journal.counters import snapshots_in

    found = snapshots_in(merge([read_journal(path) for path in journals]))
    if not found:
        raise JournalError("no snapshots of counters; rocekit counters -o writes one", file=journals[0])
    return found


def _pairs(snapshots: Sequence[CounterSnapshot]) -> list[Pair]:
    """The first and the last snapshot of each place that has several."""
    by_place: dict[tuple[Any, ...], list[CounterSnapshot]] = {}
    for snapshot in snapshots:
        place = snapshot.place
        by_place.setdefault((snapshot.host, place.device, place.port, place.interface), []).append(snapshot)
    return [(own[0], own[-1]) for own in by_place.values() if len(own) > 1]


def show(taken: Sequence[CounterSnapshot], pairs: Sequence[Pair] | None, every: bool, output: str) -> None:
    """Print snapshots, or differences if there are any.

    Args:
        pairs: None where no difference was asked for.
    """
    from rocekit.errors import RocekitError

    if pairs is not None and not pairs:
        raise RocekitError("no two snapshots of the same device or interface: no difference")
    if output == "json":
        print_json(
            {
                "schema": "rocekit/1",
                "snapshots": [_snapshot_dict(snapshot) for snapshot in taken],
                "differences": [_difference_dict(*pair) for pair in pairs or ()],
            }
        )
        return
    from rocekit.commands.screen import show, width
    from rocekit.report.counters import difference_lines, snapshot_lines

    def style(text: str, kind: str) -> str:
        return click.style(text, bold=kind == "title", dim=kind == "dim")

    if pairs is None:
        tables = [snapshot_lines(snapshot, style, every=every, width=width()) for snapshot in taken]
    else:
        tables = [difference_lines(*pair, style, every=every, width=width()) for pair in pairs]
    show("\n\n".join("\n".join(lines) for lines in tables))


def _snapshot_dict(snapshot: CounterSnapshot) -> dict[str, Any]:
    from rocekit.journal.counters import fields_of

    return {"host": snapshot.host, "time_ns": snapshot.time_ns, **fields_of(snapshot)}


def _difference_dict(before: CounterSnapshot, after: CounterSnapshot) -> dict[str, Any]:
    place = after.place
    return {
        "host": after.host,
        "device": place.device,
        "port": place.port,
        "interface": place.interface,
        "from_ns": before.time_ns,
        "to_ns": after.time_ns,
        "went_up_by": after.since(before),
    }
