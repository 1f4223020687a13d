"""``rocekit inject``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from rocekit.commands import format_option, print_json
from rocekit.commands.inject_options import OPTIONS, ScenarioName, list_scenarios, option
from rocekit.commands.screen import show

if TYPE_CHECKING:
    from rocekit.scenarios.client_server import MakeEndpoint, Settings
    from rocekit.scenarios.group_scenario import GroupScenario
    from rocekit.scenarios.scenario import Plan, Scenario


class InjectCommand(click.Command):
    """``rocekit inject NAME --help`` describes the scenario."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        from rocekit.scenarios import GROUPS, SCENARIOS

        every: dict[str, type[Scenario] | type[GroupScenario]] = {**SCENARIOS, **GROUPS}
        named = [every[word] for word in args if word in every]
        if named and set(args) & set(ctx.help_option_names):
            from rocekit.commands.inject_text import steps

            show(steps(named[0]))
            ctx.exit()
        return super().parse_args(ctx, args)


@click.command(
    cls=InjectCommand,
    params=[option(*row) for row in OPTIONS],
    context_settings={"show_default": True},
)
@click.option(
    "--list",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=list_scenarios,
    help="List the scenarios.",
)
@click.argument("scenario", type=ScenarioName())
@click.argument("host", required=False)
@format_option
def command(scenario: str, host: str | None, output: str, **given: Any) -> None:
    """Make RDMA traffic: run SCENARIO as server, as client of HOST, or all hosts of mesh and ring.

    The client sends the plan to the server, so a server needs no other options. The data is verified. With
    --journal every work request, completion and CM event is written, and rocekit explain matches it with the
    packets. The steps of a scenario: rocekit inject SCENARIO --help.

    \b
    Example:
      rocekit inject --list
      rocekit inject ping-sr-3 --help
      rocekit inject ping-sr --both --backend soft -n 200 --compare
      rocekit inject mesh --hosts 4 --backend soft
      rocekit inject ping-write --both --backend soft -n 5 --capture x.pcapng --journal x.journal.jsonl
      rocekit inject rping --backend soft -d eth0
      rocekit lab -- rocekit inject ping-write --both -n 5 -s 65536
    """
    from rocekit.commands.inject_soft import check_files
    from rocekit.commands.inject_text import compared, text
    from rocekit.scenarios import GROUPS, SCENARIOS
    from rocekit.scenarios.both_sides import beside_tcp, both, compare
    from rocekit.scenarios.client_server import call, serve

    check_files(given)
    if given["backend"] == "soft" and given["device"] is None:
        from rocekit.commands.sandbox import become_caller

        faults = [] if given["faults"] is None else [given["faults"]]
        become_caller(faults, filter(None, (given["capture"], given["journal"])))
    if scenario in GROUPS:
        _group(scenario, host, output, given)
        return
    if scenario not in SCENARIOS:
        _play(scenario, host, given, output)
        return
    if given["hosts"] is not None:
        raise click.UsageError(f"--hosts is for {' and '.join(GROUPS)}.")
    if given["both"] and host is not None:
        raise click.UsageError("--both runs the server here: give no HOST.")
    for name in ("compare", "beside"):
        if given[name] and not given["both"]:
            raise click.UsageError(f"--{name} needs --both.")
    if given["compare"] and given["beside"]:
        raise click.UsageError("--compare and --beside are two comparisons: give one.")
    _check_meeting(scenario, given)
    settings = _settings(scenario, given)
    over = _backend(given)
    if given["beside"]:
        from rocekit.commands import inject_beside

        server = _server_settings(scenario, given)
        measured = beside_tcp(_plan(scenario, given), server, settings, **over)
        if output == "json":
            print_json({"schema": "rocekit/1", "beside": inject_beside.rows(*measured)})
        else:
            show(inject_beside.text(*measured))
        return
    if given["compare"]:
        server = _server_settings(scenario, given)
        outcomes = compare(_plan(scenario, given), server, settings, **over)
        if output == "json":
            print_json({"schema": "rocekit/1", "runs": [outcome.to_dict() for outcome in outcomes]})
        else:
            show(compared(outcomes))
        return
    if given["both"]:
        server = _server_settings(scenario, given)
        outcome = both(_plan(scenario, given), server, settings, **over)
    elif host is not None:
        outcome = call(host, _plan(scenario, given), settings, **over)
    else:
        outcome = serve(scenario, settings, ready=lambda ip: _ready(ip, settings.port), **over)
    if output == "json":
        print_json({"schema": "rocekit/1", **outcome.to_dict()})
    else:
        show(text(outcome))


def _group(scenario: str, host: str | None, output: str, given: dict[str, Any]) -> None:
    """Run a scenario of n hosts, all on this machine."""
    from rocekit.commands import inject_group

    outcome = inject_group.run(scenario, host, given)
    if output == "json":
        print_json({"schema": "rocekit/1", **outcome.to_dict()})
    else:
        show(inject_group.text(outcome))


def _play(program: str, host: str | None, given: dict[str, Any], output: str) -> None:
    """Run one side of another program (rping, perftest …) on a soft device."""
    import difflib

    from rocekit.commands.inject_peer import PROGRAMS, play
    from rocekit.scenarios import GROUPS, SCENARIOS

    if program not in PROGRAMS:
        every = (*SCENARIOS, *GROUPS, *PROGRAMS)
        for near in difflib.get_close_matches(program.lower(), every, n=1):
            raise click.UsageError(f"No scenario {program!r}. Did you mean {near!r}?")
        raise click.UsageError(
            f"No scenario {program!r}; there is {', '.join((*SCENARIOS, *GROUPS))}; "
            f"and with --backend soft one side of {', '.join(PROGRAMS)}."
        )
    if given["backend"] != "soft":
        raise click.UsageError(f"{program} is not a scenario; --backend soft runs one side of it.")
    chosen = click.get_current_context().get_parameter_source("port") is ParameterSource.COMMANDLINE
    play(program, host, given, port=given["port"] if chosen else None, output=output)


def _check_meeting(scenario: str, given: dict[str, Any]) -> None:
    """Reject a way to connect that the scenario does not support."""
    from click.core import ParameterSource

    from rocekit.scenarios import SCENARIOS

    tcp = SCENARIOS[scenario].tcp
    said = click.get_current_context().get_parameter_source("rdma_cm") is ParameterSource.COMMANDLINE
    if said and tcp is not None and given["rdma_cm"] is tcp:
        means = "over TCP: leave out -R" if tcp else "by rdma_cm: leave out --no-rdma_cm"
        raise click.UsageError(f"The peers of {scenario} connect {means}.")


def _backend(given: dict[str, Any]) -> dict[str, MakeEndpoint]:
    """The arguments that choose the backend, if it is not verbs."""
    from rocekit.commands.inject_soft import check_place, faults_of, reject_for_verbs

    if given["backend"] == "verbs":
        reject_for_verbs(given)
        return {}
    check_place(given)
    from rocekit.soft.backend import soft_backend

    return {"make": soft_backend(capture=given["capture"], faults=faults_of(given), seed=given["seed"])}


def _plan(scenario: str, given: dict[str, Any]) -> Plan:
    from rocekit.scenarios import SCENARIOS
    from rocekit.scenarios.plan import check_size
    from rocekit.scenarios.scenario import Plan

    known = SCENARIOS[scenario]
    size = given["size"] or known.default_size
    check_size(size)
    return Plan(
        scenario,
        size,
        given["iters"] or known.default_iterations,
        qps=given["qps"],
        window=given["tx_depth"],
        receives=given["rx_depth"],
        post_list=given["post_list"],
        cq_mod=given["cq_mod"],
        path_mtu=int(given["mtu"] or 0),
        atomic=given["atomic_type"],
    )


def _settings(scenario: str, given: dict[str, Any]) -> Settings:
    from rocekit.endpoint import EndpointOptions, QpOptions, WaitWays
    from rocekit.scenarios.client_server import Settings

    return Settings(
        endpoint=EndpointOptions(
            device=given["device"],
            port=given["ib_port"],
            gid_index=given["gid_index"],
            ip=given["ip"],
            ways=WaitWays(given["cm"], given["cq"] or ("channel" if given["events"] else None)),
            tcp=not given["rdma_cm"],
            timestamps=given["timestamps"],
        ),
        qp=QpOptions(
            inline_size=given["inline_size"],
            timeout=given["qp_timeout"],
            retry_cnt=given["retry_cnt"],
            rnr_retry=given["rnr_retry"],
            reads=given["outs"],
        ),
        port=given["port"],
        timeout_s=given["timeout_s"],
        journal=given["journal"],
        own_plan=_plan(scenario, given),
        allow_remote=given["allow_remote"],
        counters=given["counters"],
    )


def _server_settings(scenario: str, given: dict[str, Any]) -> Settings:
    """The settings of the server with --both: on another device if there are two.

    -x and the address are those of the client: another device has its own GIDs, and each side makes its own
    soft device.
    """
    if given["backend"] == "soft":
        from rocekit.soft.wires.local import beside

        device = given["server_dev"] or given["device"]
        return _settings(
            scenario,
            {
                **given,
                "device": device,
                "gid_index": None,
                "ip": beside(given["ip"]) if device is None else None,
            },
        )
    from rocekit.machine.devices import devices

    device = str(given["server_dev"] or devices()[-1].name)
    if device == given["device"]:
        return _settings(scenario, given)
    return _settings(scenario, {**given, "device": device, "gid_index": None, "ip": None})


def _ready(ip: str, port: int) -> None:
    click.echo(f"listening on {ip} port {port}", err=True)
