"""The part of ``rocekit generate`` that plays patterns and OTG configurations over a switch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from rocekit.commands.numbers import BYTES, COUNT, COUNT_OF_BYTES, SHARE, Number, Percent, TimeIn

if TYPE_CHECKING:
    from rocekit.soft.traffic import TrafficPlan
    from rocekit.soft.wires.switch import SwitchSettings

_Command = TypeVar("_Command", bound=Callable[..., Any])

PATTERNS: Final = ("incast", "all-to-all", "ring", "permutation")
_VERBS: Final = {
    "WRITE": "RDMA_WRITE",
    "SEND": "SEND",
    "READ": "RDMA_READ",
    "FETCH_ADD": "ATOMIC_FETCH_AND_ADD",
}
#: Options of the switched network: without --pattern or --otg they mean nothing.
NETWORK: Final = (
    *(
        "duration_ms",
        "rate",
        "depth",
        "burst",
        "gap_us",
        "transport",
        "tap",
        "results",
        "no_dcqcn",
        "no_cnps",
    ),
    *("no_pfc", "no_ecn", "kmin", "kmax", "pmax", "buffer", "xoff", "delay_us", "repost_us"),
)
#: Options that only traffic without a network has.
COLUMNS: Final = ("packets", "pairs", "one_way", "vlan", "loss", "ecn")
#: Options that an OTG configuration decides.
PATTERN_ONLY: Final = (
    *("operations", "sizes", "mtu", "hosts", "ipv6", "rate", "depth", "burst", "gap_us", "transport"),
    *("no_dcqcn", "no_cnps", "repost_us"),
)


def network_options(command: _Command) -> _Command:
    """The options of patterns and OTG configurations."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS: Final = (
    click.option(
        "--pattern",
        type=click.Choice(PATTERNS),
        help="Soft hosts on a switch with queues send in this pattern; an incast has one receiver.",
    ),
    click.option(
        "--otg",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="CONFIG",
        help="Play a RoCE v2 configuration of the Open Traffic Generator (YAML or JSON).",
    ),
    click.option("--duration-ms", type=TimeIn("ms", above=0), default=5.0, show_default=True,
                 help="How long messages are posted, in simulated time."),
    click.option("--rate", type=Percent(100), default=100.0, show_default=True,
                 help="Of its link that a host sends at most."),
    click.option("--transport", type=click.Choice(("RC", "UC", "UD")), default="RC", show_default=True),
    click.option("--depth", type=Number("count", 1, 1024), default=8, show_default=True,
                 help="Messages in flight of each flow."),
    click.option("--burst", type=COUNT, metavar="MESSAGES", help="Pause after so many messages."),
    click.option("--gap-us", type=TimeIn("us", 0), default=100.0, show_default=True,
                 help="How long a pause between bursts lasts."),
    click.option("--repost-us", type=TimeIn("us", 0), default=0.0, show_default=True,
                 help="SEND: a receiver with 2 receives posts each again so late: RNR NAKs come."),
    click.option("--no-dcqcn", is_flag=True, help="Senders do not react to CNPs."),
    click.option("--no-cnps", is_flag=True, help="Receivers send no CNPs."),
    click.option("--no-ecn", is_flag=True, help="The switch marks nothing."),
    click.option("--no-pfc", is_flag=True, help="The switch pauses nothing: what does not fit is lost."),
    click.option("--kmin", type=BYTES, default=5_000, show_default=True,
                 help="Queue from which on the switch marks some packets."),
    click.option("--kmax", type=BYTES, default=200_000, show_default=True,
                 help="Queue from which on it marks all."),
    click.option("--pmax", type=SHARE, default=0.01, show_default=True,
                 help="Share of packets that it marks at KMAX."),
    click.option("--buffer", type=COUNT_OF_BYTES, default=12_000_000, show_default=True,
                 help="Of the whole switch."),
    click.option("--xoff", type=BYTES, default=256_000, show_default=True,
                 help="From one link, at which it is paused; it is released at 7/8 of that."),
    click.option("--delay-us", type=TimeIn("us", 0), default=1.0, show_default=True,
                 help="Of each link."),
    click.option("--tap", metavar="WHERE",
                 help="Where the capture is taken: a host (host1 receives an incast), sent, delivered.  "
                 "[default: the receiver of an incast, else delivered]"),
    click.option("--journal", type=click.Path(dir_okay=False, path_type=Path),
                 help="[default: beside FILE, .truth.jsonl; .journal.jsonl with --pattern or --otg]"),
    click.option("--results", type=click.Choice(("text", "csv", "json")), default="text", show_default=True,
                 help="How results are printed, in OTG's columns."),
)  # fmt: skip


def check_options(ctx: click.Context, pattern: str | None, otg: Path | None) -> None:
    """Refuse options that mean nothing beside --pattern, --otg or neither.

    Raises:
        click.UsageError: one was given.
    """
    if pattern and otg:
        raise click.UsageError("--pattern and --otg are two kinds of traffic: give one")
    if pattern is None and otg is None:
        _refuse(ctx, NETWORK, "goes with --pattern or --otg")
    else:
        _refuse(ctx, COLUMNS, "does not go with --pattern or --otg")
    if otg is not None:
        _refuse(ctx, PATTERN_ONLY, "does not go with --otg: the configuration says it")


def _refuse(ctx: click.Context, names: tuple[str, ...], why: str) -> None:
    for parameter in ctx.command.params:
        given = ctx.get_parameter_source(str(parameter.name))
        if parameter.name in names and given is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{max(parameter.opts, key=len)} {why}")


def journal_of(file: Path, given: Mapping[str, Any], suffix: str) -> Path | None:
    """Where the journal goes: as --journal says, else beside FILE; None beside standard output.

    Raises:
        RocekitError: it would replace an input, or the capture.
    """
    from rocekit.files.outputs import check_apart, check_output

    to_stdout = str(file) == "-"
    journal: Path | None = given["journal"]
    if journal is None and not to_stdout:
        journal = file.with_suffix(suffix)
    if journal is not None:
        check_output(journal, [] if given["otg"] is None else [given["otg"]])
    check_apart(None if to_stdout else file, journal)
    return journal


def play(
    file: Path,
    given: Mapping[str, Any],
    *,
    hosts: int | None,
    gbps: float | None,
    seed: int,
    snaplen: int | None,
) -> None:
    """Play the pattern or the configuration, write capture and journal, and print the results.

    Raises:
        RocekitError: the traffic cannot be made, or a file not be written.
    """
    from rocekit.soft.traffic import results, run_traffic

    to_stdout = str(file) == "-"
    journal = journal_of(file, given, ".journal.jsonl")
    plan = _plan(given, hosts, gbps, seed)
    program = f"generate {given['pattern'] or 'OTG'}"
    run = run_traffic(
        plan, capture="-" if to_stdout else file, snaplen=snaplen, journal=journal, program=program
    )
    shown = {"text": results.as_text, "csv": results.as_csv, "json": results.as_json}[given["results"]]
    click.echo(shown(run), err=to_stdout)
    if given["results"] == "text":
        where = f"{file}: {run.packets:,} packets sent in {(run.ended_ns - run.started_ns) / 1e6:.3f} ms"
        click.echo(where + (f"; journal {journal}" if journal else ""), err=to_stdout)


def _plan(given: Mapping[str, Any], hosts: int | None, gbps: float | None, seed: int) -> TrafficPlan:
    from rocekit.soft.engine.congestion import DcqcnParameters
    from rocekit.soft.traffic import FlowPlan, PatternSettings, pattern
    from rocekit.soft.traffic.otg import read_otg

    duration_ns = round(given["duration_ms"] * 1e6)
    delay_ns = round(given["delay_us"] * 1e3)
    try:
        if given["otg"] is not None:
            return read_otg(
                given["otg"],
                duration_ns=duration_ns,
                rate_bps=round((100 if gbps is None else gbps) * 1e9),
                delay_ns=delay_ns,
                switch=_switch(given),
                tap=given["tap"],
                seed=seed,
            )
        flow = FlowPlan(
            "",
            0,
            0,
            _verb(given),
            given["transport"],
            given["sizes"],
            path_mtu=given["mtu"],
            depth=given["depth"],
            burst=given["burst"] or 0,
            gap_ns=round(given["gap_us"] * 1e3),
            receives=2 if given["repost_us"] else max(64, given["depth"]),
            repost_ns=round(given["repost_us"] * 1e3),
        )
        settings = PatternSettings(
            hosts=5 if hosts is None else hosts,
            duration_ns=duration_ns,
            rate_bps=round((40 if gbps is None else gbps) * 1e9),
            rate=given["rate"] / 100,
            delay_ns=delay_ns,
            flow=flow,
            dcqcn=None if given["no_dcqcn"] else DcqcnParameters(),
            cnps=not given["no_cnps"],
            switch=_switch(given),
            ip_version=6 if given["ipv6"] else 4,
            tap=given["tap"],
            seed=seed,
        )
        return pattern(given["pattern"], settings)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _verb(given: Mapping[str, Any]) -> str:
    operations = given["operations"]
    if len(operations) > 1:
        raise click.UsageError("a pattern has one --operation")
    verb = _VERBS[operations[0].upper()]
    if given["transport"] == "UD" and verb != "SEND":
        raise click.UsageError("UD has only SEND: --operation send")
    return verb


def _switch(given: Mapping[str, Any]) -> SwitchSettings:
    from rocekit.soft.wires.switch import SwitchSettings

    xoff = given["xoff"]
    settings = SwitchSettings(
        ecn=not given["no_ecn"],
        kmin_bytes=given["kmin"],
        kmax_bytes=given["kmax"],
        pmax=given["pmax"],
        buffer_bytes=given["buffer"],
        xoff_bytes=xoff,
        xon_bytes=xoff * 7 // 8,
    )
    return replace(settings, lossless=frozenset()) if given["no_pfc"] else settings
