"""``rocekit trace``."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from rocekit.commands import FILE, format_option, interfaces, journal_option

if TYPE_CHECKING:
    from rocekit.analysis import Analysis
    from rocekit.metrics import Metrics, MetricsServer
    from rocekit.tracing import Trace


@click.command()
@click.argument("interface", metavar="IFACE", shell_complete=interfaces)
@click.option(
    "--duration", type=click.FloatRange(min=0, min_open=True), metavar="S", help="Stop after S seconds."
)
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="Stop after N transfers.")
@click.option("--write", "-w", type=FILE, metavar="FILE", help="Write the frames to a pcapng file as well.")
@click.option("--promiscuous", is_flag=True, help="Also frames for other stations.")
@click.option(
    "--snaplen", type=click.IntRange(min=64), metavar="BYTES", help="Keep only this much of each frame."
)
@click.option(
    "--metrics",
    metavar="[HOST]:PORT",
    help="Serve Prometheus metrics there, such as :9464, while the trace runs.",
)
@click.option(
    "--metrics-connections",
    "own_series",
    type=click.IntRange(min=0),
    default=200,
    show_default=True,
    metavar="N",
    help='So many connections have metrics of their own; the later ones share "other".',
)
@click.option("--quiet", "-q", is_flag=True, help="No line for each transfer; only the summary.")
@journal_option
@format_option
def command(
    interface: str,
    duration: float | None,
    count: int | None,
    write: Path | None,
    promiscuous: bool,
    snaplen: int | None,
    metrics: str | None,
    own_series: int,
    quiet: bool,
    journal: tuple[Path, ...],
    output: str,
) -> None:
    """Follow an interface: a line as each transfer ends, a word at once when one goes wrong, then a summary.

    Ends with Ctrl-C, --duration or --count. Needs the right to capture: see `rocekit doctor`. Frames that the
    kernel had to drop are counted and shown.

    \b
    Example:
      rocekit trace eth0
      rocekit trace eth0 --duration 10 --write x.pcapng
      rocekit trace eth0 --count 100 --format json
      rocekit trace eth0 --quiet --metrics :9464
    """
    from rocekit.report.text import SHOWN_TRANSFERS
    from rocekit.tracing import Trace

    with _server(metrics) as server:
        trace = Trace(
            interface,
            duration_s=duration,
            transfers=count,
            write=write,
            promiscuous=promiscuous,
            snaplen=snaplen,
            journals=journal,
            # Nobody asks for each plain transfer of a trace that counts for days.
            plain=SHOWN_TRANSFERS if server is not None and output == "text" else None,
        )
        counted = None if server is None else _serve(server, trace, own_series)
        printer = _Json() if output == "json" else _Text()
        try:
            with _ending_on_signal(trace):
                for item in trace:
                    if counted is not None:
                        counted.item(item)
                    if not quiet:
                        printer.item(item)
        finally:
            if trace.analysis is not None:
                printer.end(trace.analysis, trace)


@contextmanager
def _server(address: str | None) -> Iterator[MetricsServer | None]:
    """Listens for scrapes where that is asked for, before anything else is begun."""
    if address is None:
        yield None
        return
    from rocekit.metrics import MetricsServer

    try:
        server = MetricsServer(address)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--metrics") from None
    with server:
        yield server


def _serve(server: MetricsServer, trace: Trace, own_series: int) -> Metrics:
    from rocekit.metrics import Metrics

    metrics = Metrics(trace, own_series)
    server.serve(metrics)
    click.echo(f"metrics on port {server.port}", err=True)
    return metrics


@contextmanager
def _ending_on_signal(trace: Trace) -> Iterator[None]:
    """Ctrl-C or SIGTERM ends the trace; what the kernel still holds is told. A second one ends at once."""

    def stop(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, before[signal.Signals(number)])
        trace.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Text:
    """A line an item."""

    def __init__(self) -> None:
        self._first_ns: int | None = None

    def _at(self, time_ns: int) -> str:
        if self._first_ns is None:
            self._first_ns = time_ns
        return f"{(time_ns - self._first_ns) / 1e9:11.6f}"

    def item(self, item: Any) -> None:
        from rocekit.commands.shared import coloured
        from rocekit.connections import Connection
        from rocekit.exchanges import CmRecord
        from rocekit.explain import event_step
        from rocekit.refused import Refusal
        from rocekit.report.text import transfer_row
        from rocekit.report.units import end, qpn
        from rocekit.tracing import Trouble
        from rocekit.transfers import ACKED, SENT
        from rocekit.wire import syndrome_name

        if isinstance(item, Connection):
            line = f"{'':11}  connection {item.id}  {item.transport}  {end(item.end(0))} ⇄ {end(item.end(1))}"
            click.echo(coloured(line, "title"))
        elif isinstance(item, CmRecord):
            kind = "error" if item.message == "REJ" else "dim"
            click.echo(
                f"{self._at(item.time_ns)}  {coloured(f'{item.src} → {item.dst}  {item.cm.summary()}', kind)}"
            )
        elif isinstance(item, Trouble):
            step = event_step(item.transfer, item.event)
            words = f"transfer {item.transfer.id}  {step.what}  {step.detail}"
            click.echo(f"{self._at(item.event.time_ns)}  {coloured(words, 'warning')}")
        elif isinstance(item, Refusal):
            name = syndrome_name(item.syndrome)
            words = (
                f"{item.src} → {item.dst} {qpn(item.dest_qpn)}  {name} for PSN {item.psn}, of which "
                f"nothing was seen yet, frame {item.frame}"
            )
            click.echo(f"{self._at(item.time_ns)}  {coloured(words, 'warning')}")
        else:
            cells = transfer_row(item)
            widths = (5, 10, 22, 24, 10, 6, 8, 11, 0, 0)
            cells = tuple(
                c.rjust(w) if k in (0, 4, 5, 6, 7) else c.ljust(w)
                for k, (c, w) in enumerate(zip(cells, widths, strict=True))
            )  # type: ignore[assignment]
            good = item.status in (ACKED, SENT)
            line = "  ".join(cells).rstrip()
            click.echo(f"{self._at(item.last_ns)}  {line if good else coloured(line, 'error')}")

    def end(self, analysis: Analysis, trace: Trace) -> None:
        from rocekit.commands.shared import coloured
        from rocekit.report.text import (
            capture_lines,
            connection_lines,
            finding_lines,
            journal_lines,
            place_lines,
        )

        click.echo("")
        click.echo("\n".join(capture_lines(analysis.capture, coloured)))
        click.echo(
            "\n".join(
                [
                    f"  kernel: {trace.received:,} frames received, {trace.dropped:,} dropped",
                    *place_lines(analysis),
                ]
            )
        )
        if analysis.connections:
            click.echo("\n".join(connection_lines(analysis.connections)))
        if analysis.journal is not None:
            click.echo("\n".join(journal_lines(analysis, coloured)))
        click.echo("\n".join(finding_lines(analysis.findings, coloured)))


class _Json:
    """One object a line, each with a ``type``; what changed after it was printed comes once more."""

    def __init__(self) -> None:
        self._printed: dict[int, dict[str, Any]] = {}
        self._messages: dict[int, dict[str, Any]] = {}

    @staticmethod
    def _put(kind: str, record: dict[str, Any]) -> None:
        click.echo(json.dumps({"type": kind, **record}, ensure_ascii=False, separators=(",", ":")))

    def item(self, item: Any) -> None:
        from rocekit.exchanges import CmRecord
        from rocekit.transfers import Transfer

        if isinstance(item, Transfer):
            self._printed[item.id] = item.to_dict()
            self._put("transfer", self._printed[item.id])
        elif isinstance(item, CmRecord):
            self._messages[item.frame] = item.to_dict()
            self._put("cm", self._messages[item.frame])

    def end(self, analysis: Analysis, trace: Trace) -> None:
        for transfer in analysis.transfers:
            record = transfer.to_dict()
            if self._printed.get(transfer.id) != record:
                self._put("transfer", record)
        for message in analysis.cm:
            record = message.to_dict()
            if self._messages.get(message.frame) != record:
                self._put("cm", record)
        for connection in analysis.connections:
            self._put("connection", connection.to_dict())
        for finding in analysis.findings:
            self._put("finding", finding.to_dict())
        self._put("capture", analysis.capture_dict() | {"received": trace.received})
