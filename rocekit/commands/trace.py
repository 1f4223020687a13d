"""``rocekit trace``."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from rocekit.commands import format_option, journal_option
from rocekit.commands.numbers import COUNT, INDEX, SECONDS, SNAPLEN
from rocekit.commands.options import (
    PCAPNG,
    capture_filter_option,
    interface_argument,
    max_connections_option,
    output_option,
)

if TYPE_CHECKING:
    from rocekit.files.ring_files import RingLimits
    from rocekit.live.metrics import Metrics
    from rocekit.live.metrics_server import MetricsServer
    from rocekit.live.tracing import Trace


@click.command()
@interface_argument
@click.option("--duration", type=SECONDS, help="Stop after so long: 10, 90s, 5m.")
@click.option("--count", "-c", type=COUNT, help="Stop after N transfers.")
@output_option("write", PCAPNG, help="Also write the frames to a pcapng file.")
@click.option(
    "--rotate",
    metavar="SIZE|TIME",
    help="With --write, begin a new file after so many bytes (100M) or so long (60s, 10min).",
)
@click.option("--keep", type=INDEX, metavar="N", help="With --rotate, keep only the N newest files.")
@click.option(
    "--trigger",
    "triggers",
    multiple=True,
    metavar="FINDING",
    help="With --write, keep only the time around this finding (any: of each error and warning); may be "
    "repeated.",
)
@click.option(
    "--around",
    type=SECONDS,
    default="5s",
    show_default=True,
    help="With --trigger, at least so long before and after the finding.",
)
@capture_filter_option
@click.option("--promiscuous", is_flag=True, help="Also frames for other stations.")
@click.option(
    "--tunnels", is_flag=True, help="Also packets in tunnels (VXLAN, GRE, ERSPAN, MPLS and others)."
)
@click.option(
    "--snaplen",
    type=SNAPLEN,
    help="Bytes to keep of each frame, 65535 for all.  [default: all with --write, else the headers]",
)
@click.option(
    "--metrics",
    metavar="[HOST]:PORT",
    help="Serve Prometheus metrics while the trace runs: :9464 for this machine, 0.0.0.0:9464 for others.",
)
@click.option(
    "--metrics-connections",
    "own_series",
    type=INDEX,
    default=200,
    show_default=True,
    metavar="N",
    help='Connections with their own metrics; later ones share "other".',
)
@click.option(
    "--counters",
    is_flag=True,
    help="Read the counters of IFACE and its RDMA device at the start and the end, and compare them with the "
    "packets. With --write they are kept in a journal beside the packets.",
)
@click.option("--quiet", "-q", is_flag=True, help="Print only the summary, no line for each transfer.")
@max_connections_option
@journal_option
@format_option
def command(
    interface: str,
    duration: float | None,
    count: int | None,
    write: Path | None,
    rotate: str | None,
    keep: int | None,
    triggers: tuple[str, ...],
    around: float,
    capture_filter: str | None,
    promiscuous: bool,
    tunnels: bool,
    snaplen: int | None,
    metrics: str | None,
    own_series: int,
    counters: bool,
    quiet: bool,
    max_connections: int,
    journal: tuple[Path, ...],
    output: str,
) -> None:
    """Follow an interface: a line for each transfer that ends or goes wrong, then a summary.

    Ends with Ctrl-C, --duration or --count. Needs the right to capture: see `rocekit doctor`. Frames that the
    kernel dropped are counted. Without --write only headers of frames and CM messages are read: ICRCs of
    packets of more than 160 bytes are not checked. --snaplen 65535 checks all.

    With --write x.pcapng --rotate 100M --keep 10 the files are x_00001_20261120160858.pcapng and so on, as
    dumpcap names them; the oldest are removed, so that a trace may run for weeks. `rocekit analyze
    rotated:FIRST..LAST` reads them as one.

    --trigger makes it a flight recorder: it is always on, and writes only when the finding happens, a file
    for each time: x_00001_20261120160858.pcapng has the frames around it. `rocekit rules` lists findings.

    It may run for weeks: transfers without trouble are not kept (with --journal they are), and of more than
    --max-connections connections those used last stay, half as many; the others are counted.

    \b
    Example:
      rocekit trace eth0
      rocekit trace eth0 --duration 10 --write x.pcapng
      rocekit trace eth0 --write x.pcapng --rotate 60s --keep 60
      rocekit trace eth0 --quiet --write x.pcapng --trigger loss --trigger rnr --around 10s
      rocekit trace eth0 --count 100 --format json
      rocekit trace eth0 --snaplen 65535
      rocekit trace eth0 --promiscuous --tunnels
      rocekit trace eth0 -f "host 10.9.0.2"
      rocekit trace eth0 --counters --duration 10
      rocekit trace eth0 --quiet --metrics :9464
    """
    from rocekit.commands.sandbox import give_up_root
    from rocekit.commands.shared import without_garbage
    from rocekit.commands.trace_lines import JsonLines, TextLines
    from rocekit.files.outputs import check_output
    from rocekit.live.counted import counters_journal
    from rocekit.live.tracing import Trace
    from rocekit.report.text import SHOWN_TRANSFERS

    if str(write) == "-":
        raise click.UsageError("--write: standard output has the lines: name a file")
    if triggers:
        _check_triggers(triggers, write, rotate, counters)
    ring = _ring(write, rotate, keep, counters)
    if write is not None:
        check_output(write, journal)
        if counters:
            check_output(counters_journal(write), journal)
    with _server(metrics) as server:
        trace = Trace(
            interface,
            duration_s=duration,
            transfers=count,
            write=write,
            capture_filter=capture_filter,
            promiscuous=promiscuous,
            tunnels=tunnels,
            snaplen=snaplen,
            journals=journal,
            counters=counters,
            ring=ring,
            trigger=triggers,
            around_s=around,
            on_open=give_up_root,
            # A trace may run for weeks: it does not keep plain transfers, but for a journal's work requests.
            plain=SHOWN_TRANSFERS,
            max_connections=max_connections,
        )
        counted = None if server is None else _serve(server, trace, own_series)
        printer = JsonLines() if output == "json" else TextLines()
        try:
            with _ending_on_signal(trace):
                for items in trace.batches():
                    if counted is not None:
                        for item in items:
                            counted.item(item)
                    if not quiet:
                        printer.items(items, final=trace.analysis is not None)
        finally:
            if trace.analysis is not None:
                with without_garbage():
                    printer.end(trace.analysis, trace)
    if trace.written:
        first, last = trace.written[0], trace.written[-1]
        names = f"{first}" if first == last or triggers else f"rotated:{first}..{last.name}"
        if triggers:
            names = ", ".join(map(str, trace.written))
        click.echo(f"written: {names}", err=True)


def _check_triggers(
    triggers: tuple[str, ...], write: Path | None, rotate: str | None, counters: bool
) -> None:
    from rocekit.findings.rules import RULES
    from rocekit.live.flight_recorder import ANY

    if write is None:
        raise click.UsageError("--trigger is for --write: name the files")
    if rotate is not None or counters:
        raise click.UsageError("--trigger writes files of its own: leave out --rotate and --counters")
    names = {*RULES, ANY}
    for name in triggers:
        if name not in names:
            raise click.BadParameter(
                f"no finding {name!r}: `rocekit rules` lists them", param_hint="--trigger"
            )


def _ring(write: Path | None, rotate: str | None, keep: int | None, counters: bool) -> RingLimits | None:
    """When the next file begins; None for one file.

    Raises:
        click.UsageError: options that do not fit each other, or what is neither a size nor a time.
    """
    from rocekit.commands.rotation import rotate_after
    from rocekit.files.ring_files import RingLimits

    if rotate is None:
        if keep is not None:
            raise click.UsageError("--keep is for --rotate: name a size or a time after which a file is full")
        return None
    if write is None:
        raise click.UsageError("--rotate is for --write: name the files")
    if counters:
        raise click.UsageError("--counters keeps its journal beside one file: leave out --rotate")
    if keep == 0:
        raise click.BadParameter("at least 1 file stays: the one being written", param_hint="--keep")
    size, period_ns = rotate_after(rotate)
    return RingLimits(size_bytes=size, period_ns=period_ns, keep=keep)


@contextmanager
def _server(address: str | None) -> Iterator[MetricsServer | None]:
    """Start the metrics server, if there is an address, before anything else."""
    if address is None:
        yield None
        return
    from rocekit.live.metrics_server import MetricsServer

    try:
        server = MetricsServer(address)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--metrics") from None
    with server:
        yield server


def _serve(server: MetricsServer, trace: Trace, own_series: int) -> Metrics:
    from rocekit.live.metrics import Metrics

    metrics = Metrics(trace, own_series)
    server.serve(metrics)
    click.echo(f"metrics on port {server.port}", err=True)
    return metrics


@contextmanager
def _ending_on_signal(trace: Trace) -> Iterator[None]:
    """Ctrl-C or SIGTERM ends the trace after the frames in the kernel. A second one ends immediately."""

    from rocekit.commands.interrupting import answer_later

    answer = answer_later("what was traced is being summed up")

    def stop(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, before[signal.Signals(number)])
        if not answer.is_alive():
            answer.start()
        gc.disable()  # the process ends: what a flood leaves is not searched for garbage
        trace.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        answer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)
