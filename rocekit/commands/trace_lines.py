"""What ``rocekit trace`` prints: lines as things happen, and a summary at the end."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import click

from rocekit.commands.shared import coloured
from rocekit.explanation.alike_steps import SCREEN, summed_up
from rocekit.explanation.event_steps import Step, event_step, syndrome_words
from rocekit.live.tracing import Trouble
from rocekit.report import json_text
from rocekit.report.counters import counter_lines
from rocekit.report.text import connection_lines, in_order, journal_lines, transfer_row
from rocekit.track.cm_exchanges import CmRecord
from rocekit.track.connections import Connection
from rocekit.track.eviction import Evicted
from rocekit.track.orphan_naks import OrphanNak
from rocekit.track.transfers import ACKED, SENT, Transfer
from rocekit.wire.words import end, plural, qpn

if TYPE_CHECKING:
    from rocekit.analysis import Analysis
    from rocekit.live.tracing import Item, Trace

#: The widths of a transfer's cells, and which are right-aligned.
_WIDTHS = (5, 10, 22, 24, 10, 6, 8, 11, 0, 0)
_RIGHT = (0, 4, 5, 6, 7)
_CELLS = "  ".join(f"{{:{'>' if k in _RIGHT else '<'}{width or ''}}}" for k, width in enumerate(_WIDTHS))


#: Transfers, and CM messages, of which a hash is kept to find those that changed.
_MOST_HASHES = 500_000
#: Lines that are written at once.
_AT_ONCE: Final = 1_000


def _let_go(count: int) -> str:
    return f"{plural(count, 'connection')} let go (--max-connections)"


#: Connections in the summary at the end: the most troubled and busiest. A flood has 100,000, and Ctrl-C is to
#: end within two seconds.
SHOWN_CONNECTIONS: Final = 1000


class TextLines:
    """One line for each item."""

    def __init__(self) -> None:
        self._first_ns: int | None = None

    def _at(self, time_ns: int) -> str:
        if self._first_ns is None:
            self._first_ns = time_ns
        return f"{(time_ns - self._first_ns) / 1e9:11.6f}"

    def items(self, items: Sequence[Item], *, final: bool = False) -> None:
        """Print the items of a batch; many alike troubles of one transfer as one line."""
        troubles: dict[int, list[Trouble]] = {}
        for item in items:
            if isinstance(item, Trouble):
                troubles.setdefault(item.transfer.id, []).append(item)
        lines = []
        for item in items:
            together = troubles.get(item.transfer.id, []) if isinstance(item, Trouble) else []
            if len(together) <= SCREEN:
                lines.append(self._line(item))
            elif item is together[0]:
                lines += self._summed(together)
        click.echo("\n".join(lines))

    def _summed(self, troubles: list[Trouble]) -> list[str]:
        """The troubles of one transfer in a batch."""
        transfer = troubles[0].transfer
        self._at(troubles[0].event.time_ns)  # the first line that has a time is the origin
        steps = [event_step(transfer, trouble.event) for trouble in troubles]
        return [
            self._trouble(transfer, step)
            for step in summed_up(steps, transfer, several=False, origin_ns=self._first_ns)
        ]

    def _trouble(self, transfer: Transfer, step: Step) -> str:
        words = f"transfer {transfer.id}  {step.what}  {step.detail}"
        return f"{self._at(step.time_ns)}  {coloured(words, 'warning')}"

    def _line(self, item: Item) -> str:
        if isinstance(item, Transfer):
            good = item.status in (ACKED, SENT)
            line = _CELLS.format(*transfer_row(item)).rstrip()
            return f"{self._at(item.last_ns)}  {line if good else coloured(line, 'error')}"
        if isinstance(item, Connection):
            line = f"{'':11}  connection {item.id}  {item.transport}  {end(item.end(0))} ⇄ {end(item.end(1))}"
            return coloured(line, "title")
        if isinstance(item, CmRecord):
            words, kind = f"{item.src} → {item.dst}  {item.cm.summary(item.port)}", "dim"
            return f"{self._at(item.time_ns)}  {coloured(words, 'error' if item.message == 'REJ' else kind)}"
        if isinstance(item, Trouble):
            return self._trouble(item.transfer, event_step(item.transfer, item.event))
        if isinstance(item, Evicted):
            words = f"{_let_go(len(item.gone))}; {len(item.kept):,} stay, numbered from 0"
            return f"{'':11}  {coloured(words, 'dim')}"
        assert isinstance(item, OrphanNak)
        words = (
            f"{item.src} → {item.dst} {qpn(item.dest_qpn)}  {syndrome_words(item.syndrome)} for PSN "
            f"{item.psn}, which is not in the capture, frame {item.frame}"
        )
        return f"{self._at(item.time_ns)}  {coloured(words, 'warning')}"

    def end(self, analysis: Analysis, trace: Trace) -> None:
        """Print the summary."""
        kernel = f"  kernel: {trace.received:,} frames received, {trace.dropped:,} dropped"
        if analysis.capture.contents.is_blank and trace.carried is not None:
            kernel += f"; the interface carried {plural(trace.carried, 'frame')} of any kind meanwhile"
        if trace.evicted:
            kernel += f"; {_let_go(trace.evicted)}, what follows is of those that stayed"
        if trace.forgot:
            kernel += "; findings are of the latest troubles only"
        if trace.matched_until_ns is not None:
            kept = f"the first {plural(len(analysis.transfers), 'transfer')}"
            when = self._at(trace.matched_until_ns).strip()
            kernel += f"; findings and journal are of {kept}, until {when}: later ones were only reported"
        details = []
        if analysis.connections:
            shown = connection_lines(analysis.connections, SHOWN_CONNECTIONS, listed_by="--format json")
            details += [coloured("Connections", "title"), *shown]
        if analysis.journal is not None:
            details += [""] * bool(details) + journal_lines(analysis, coloured)
        if analysis.counters:
            details += [""] * bool(details) + counter_lines(analysis.counters, coloured)
        click.echo("\n".join(["", *in_order(analysis, [kernel], details, coloured)]))


class JsonLines:
    """One object a line, each with a ``type``; what changed after it was printed is printed again."""

    def __init__(self) -> None:
        self._ascii = sys.stdout.isatty()
        # Only a hash of what was printed is kept: there may be millions.
        self._transfers: dict[int, int] = {}
        self._messages: dict[int, int] = {}
        self._final: set[int] = set()

    def _line(self, kind: str, record: dict[str, Any]) -> str:
        # Text in front takes less time than a copy of the record with one key more: there may be 200,000.
        return f'{{"type":"{kind}",{json_text.line(record, ascii=self._ascii)[1:]}'

    def items(self, items: Sequence[Item], *, final: bool = False) -> None:
        """Print the items of a batch; connections and findings wait for the end.

        Args:
            final: whether the trace is over, so that what is printed now does not change any more.
        """
        lines = []
        for item in items:
            if isinstance(item, Transfer):
                lines.append(self._line("transfer", item.to_dict()))
                if final:
                    self._final.add(item.id)
                else:
                    _remember(self._transfers, item.id, hash(lines[-1]))
            elif isinstance(item, CmRecord):
                lines.append(self._line("cm", item.to_dict()))
                _remember(self._messages, item.frame, hash(lines[-1]))
            elif isinstance(item, Evicted):
                lines += [self._line("connection", c.to_dict() | {"evicted": True}) for c in item.gone]
                moved = [[old, new] for old, new in item.kept.items() if old != new]
                lines.append(self._line("evicted", {"connections": len(item.gone), "renumbered": moved}))
        _print(lines)

    def end(self, analysis: Analysis, trace: Trace) -> None:
        """Print what changed, connections, findings and the capture."""
        _print(self._changed(analysis))
        _print(self._line("connection", connection.to_dict()) for connection in analysis.connections)
        capture = analysis.capture_dict() | {"received": trace.received, "carried": trace.carried}
        capture |= {"evicted_connections": trace.evicted}
        if trace.matched_until_ns is not None:
            capture["matched_until_ns"] = trace.matched_until_ns
        lines = [
            *(self._line("finding", finding.to_dict()) for finding in analysis.findings),
            *(self._line("counter", counter.to_dict()) for counter in analysis.counters),
            self._line("capture", capture),
        ]
        _print(lines)

    def _changed(self, analysis: Analysis) -> Iterator[str]:
        """The transfers and messages that are not as they were printed."""
        for transfer in analysis.transfers:
            if transfer.id not in self._final:
                line = self._line("transfer", transfer.to_dict())
                if self._transfers.get(transfer.id) != hash(line):
                    yield line
        for message in analysis.cm:
            line = self._line("cm", message.to_dict())
            if self._messages.get(message.frame) != hash(line):
                yield line


def _print(lines: Iterable[str]) -> None:
    rest = iter(lines)
    while some := list(islice(rest, _AT_ONCE)):
        click.echo("\n".join(some))


def _remember(hashes: dict[int, int], number: int, value: int) -> None:
    """Keep a hash; of too many the oldest goes, and what has none counts as changed."""
    hashes[number] = value
    if len(hashes) > _MOST_HASHES:
        del hashes[next(iter(hashes))]
