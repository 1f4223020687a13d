"""``rocekit inject``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from rocekit.commands import FILE, format_option, print_json

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from rocekit.scenarios.client_server import MakeEndpoint, Settings
    from rocekit.scenarios.group_scenario import GroupScenario
    from rocekit.scenarios.scenario import Plan, Scenario

COUNT = click.IntRange(min=1)
BYTES = click.IntRange(min=0)
RETRIES = click.IntRange(0, 7)
CM_WAYS = ["sync", "thread", "poll"]
CQ_WAYS = ["poll", "channel", "nonblocking"]
MTUS = click.Choice(["256", "512", "1024", "2048", "4096"])
ATOMICS = click.Choice(["FETCH_AND_ADD", "CMP_AND_SWAP"], case_sensitive=False)
SECONDS = click.FloatRange(min=0, min_open=True)


class IpAddress(click.types.StringParamType):
    """An IP address; an IPv6 one may name its interface, ``fe80::1%eth0``."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        import ipaddress

        try:
            ipaddress.ip_address(value.partition("%")[0])
        except ValueError:
            self.fail(f"{value!r} is no IP address.", param, ctx)
        return value


OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    # Names and defaults are perftest's where perftest has the option.
    ("-d --ib-dev device", {"metavar": "DEVICE", "help": "The device; see rocekit devices."}),
    ("-i --ib-port ib_port", {"type": COUNT, "default": 1, "help": "Its port."}),
    ("-x --gid-index", {"type": BYTES, "help": "Its GID.  [default: the first IPv4 one]"}),
    (
        "--bind_source_ip --bind-source-ip --bind ip",
        {"type": IpAddress(), "metavar": "IP", "help": "Its address, in place of -d and -x."},
    ),
    ("-s --size", {"type": COUNT, "help": "Bytes of a message.  [default: the scenario's]"}),
    ("-n --iters", {"type": COUNT, "help": "Messages on each QP.  [default: the scenario's]"}),
    ("-q --qp qps", {"type": COUNT, "default": 1, "help": "How many QPs."}),
    ("-m --mtu", {"type": MTUS, "help": "Path MTU.  [default: rdma_cm's choice]"}),
    ("-t --tx-depth", {"type": COUNT, "default": 128, "help": "Work requests outstanding on a QP."}),
    ("-r --rx-depth", {"type": COUNT, "default": 512, "help": "Receives posted on a QP, where many are."}),
    ("-l --post_list --post-list", {"type": COUNT, "default": 1, "help": "Work requests in a post."}),
    ("-Q --cq-mod", {"type": COUNT, "default": 100, "help": "One in so many is signaled."}),
    (
        "-I --inline_size --inline-size",
        {"type": BYTES, "default": 0, "help": "Up to so many bytes go inline."},
    ),
    ("-o --outs", {"type": COUNT, "default": 16, "help": "READs and atomics outstanding."}),
    (
        "-A --atomic_type --atomic-type",
        {"type": ATOMICS, "default": "FETCH_AND_ADD", "help": "Which atomic."},
    ),
    (
        "-u --qp-timeout",
        {"type": click.IntRange(0, 31), "default": 14, "help": "ACK timeout: 4.096 µs × 2^n."},
    ),
    (
        "--retry-cnt --retry retry_cnt",
        {"type": RETRIES, "default": 6, "help": "How often a lost packet is sent again."},
    ),
    ("--rnr-retry", {"type": RETRIES, "default": 7, "help": "The same without a receive; 7: no end."}),
    (
        "-R --rdma_cm/--no-rdma_cm rdma_cm",
        {
            "default": True,
            "help": "Meet through rdma_cm, or over TCP on the same port, as perftest does without -R.",
        },
    ),
    (
        "--cm",
        {
            "type": click.Choice(CM_WAYS),
            "help": "Connection events: only where expected, by a thread, or in between.  "
            "[default: the scenario's, else poll]",
        },
    ),
    (
        "--cq",
        {
            "type": click.Choice(CQ_WAYS),
            "help": "Completions: polled busily, slept for in a channel, or with poll() on it.  "
            "[default: the scenario's, else poll; soft: nonblocking]",
        },
    ),
    ("-e --events", {"is_flag": True, "help": "As --cq channel."}),
    (
        "--timestamps/--no-timestamps",
        {"default": True, "help": "Of cq-ex: the device's completion timestamps; rxe has none."},
    ),
    (
        "--compare",
        {"is_flag": True, "help": "With --both: run all nine of --cm and --cq; round trip and CPU of each."},
    ),
    (
        "-c --connection transport",
        {
            "type": click.Choice(["RC", "UC", "UD"]),
            "default": "RC",
            "help": "Of perftest's programs, which --backend soft can be one side of.",
        },
    ),
    (
        "-F --CPU-freq cpu_freq",
        {
            "is_flag": True,
            "help": "Taken as perftest's; there is no look at the CPU's frequency to leave out.",
        },
    ),
    ("-p --port", {"type": click.IntRange(1, 65535), "default": 18515, "help": "The server's port."}),
    (
        "--timeout timeout_s",
        {"type": SECONDS, "default": 30.0, "help": "Seconds in which nothing may happen."},
    ),
    (
        "--allow-remote",
        {"metavar": "ADDRESS", "multiple": True, "help": "Talk to this HOST though it is another machine."},
    ),
    ("--both", {"is_flag": True, "help": "Server and client on this machine; no HOST."}),
    ("--hosts", {"type": COUNT, "help": "Of mesh and ring.  [default: 4 soft ones, or every device]"}),
    ("--server-dev", {"metavar": "DEVICE", "help": "With --both, the server's.  [default: the last]"}),
    (
        "--backend",
        {
            "type": click.Choice(["verbs", "soft"]),
            "default": "verbs",
            "help": "A device of the kernel's, or one of rocekit's own: on the interface -d, or within this "
            "machine, which needs no privileges.",
        },
    ),
    ("--capture", {"type": FILE, "metavar": "FILE", "help": "With soft: write the packets (pcapng)."}),
    (
        "--fault",
        {
            "multiple": True,
            "metavar": "FAULT",
            "help": "With soft: do this to packets; qpn=1,psn=4,type=drop or drop=2%.",
        },
    ),
    ("--faults", {"type": FILE, "metavar": "FILE", "help": "With soft: the same from a YAML file."}),
    ("--seed", {"type": BYTES, "metavar": "N", "help": "With soft: draw PSNs, keys and faults from this."}),
    (
        "--journal",
        {"type": FILE, "metavar": "FILE", "help": "Write down what verbs was asked, and answered."},
    ),
)


def _list(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from rocekit.scenarios import GROUPS, SCENARIOS

    every: dict[str, type[Scenario] | type[GroupScenario]] = {**SCENARIOS, **GROUPS}
    width = max(map(len, every))
    for name, scenario in every.items():
        click.echo(f"{click.style(f'{name:<{width}}', bold=True)}  {scenario.summary}")
    ctx.exit()


def _option(names: str, about: dict[str, Any]) -> click.Option:
    if isinstance(about.get("type"), click.IntRange | click.FloatRange):
        about = {"metavar": "N", **about}
    return click.Option(names.split(), **about)


class ScenarioName(click.types.StringParamType):
    """Any word: what is none of the names is looked at later, with those at hand."""

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str:
        return "rocekit inject --list names them."

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        from rocekit.scenarios import GROUPS, SCENARIOS
        from rocekit.soft.peers.programs import PROGRAMS

        every = (*SCENARIOS, *GROUPS, *PROGRAMS)
        return [CompletionItem(name) for name in every if name.startswith(incomplete)]


class InjectCommand(click.Command):
    """``rocekit inject NAME --help`` tells of the scenario."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        from rocekit.scenarios import GROUPS, SCENARIOS

        every: dict[str, type[Scenario] | type[GroupScenario]] = {**SCENARIOS, **GROUPS}
        named = [every[word] for word in args if word in every]
        if named and set(args) & set(ctx.help_option_names):
            from rocekit.commands.inject_text import steps

            click.echo(steps(named[0]))
            ctx.exit()
        return super().parse_args(ctx, args)


@click.command(
    cls=InjectCommand,
    params=[_option(*row) for row in OPTIONS],
    context_settings={"show_default": True},
)
@click.option(
    "--list", is_flag=True, is_eager=True, expose_value=False, callback=_list, help="Name the scenarios."
)
@click.argument("scenario", type=ScenarioName())
@click.argument("host", required=False)
@format_option
def command(scenario: str, host: str | None, output: str, **given: Any) -> None:
    """Make RDMA traffic: SCENARIO as a server, with HOST as the client of one, or all hosts of mesh and ring.

    The client tells the server what will happen, so a server needs no other options. The data is checked.
    With --journal every work request, completion and connection event is written down, for rocekit explain
    to put beside the packets. What a scenario does, step by step: rocekit inject SCENARIO --help.

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
    from rocekit.scenarios.both_sides import both, compare, terminated_cleanly
    from rocekit.scenarios.client_server import call, serve

    check_files(given)
    if scenario in GROUPS:
        _group(scenario, host, output, given)
        return
    if scenario not in SCENARIOS:
        _play(scenario, host, given, output)
        return
    if given["hosts"] is not None:
        raise click.UsageError(f"--hosts is for {' and '.join(GROUPS)}.")
    if given["both"] and host is not None:
        raise click.UsageError("--both has its server here; it takes no HOST.")
    if given["compare"] and not given["both"]:
        raise click.UsageError("--compare needs --both.")
    _check_meeting(scenario, given)
    settings = _settings(scenario, given)
    over = _backend(given)
    with terminated_cleanly():
        if given["compare"]:
            server = _server_settings(scenario, given)
            outcomes = compare(_plan(scenario, given), server, settings, **over)
            if output == "json":
                print_json({"schema": "rocekit/1", "runs": [outcome.to_dict() for outcome in outcomes]})
            else:
                click.echo(compared(outcomes))
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
        click.echo(text(outcome))


def _group(scenario: str, host: str | None, output: str, given: dict[str, Any]) -> None:
    """A scenario of n hosts, all of them here."""
    from rocekit.commands import inject_group
    from rocekit.scenarios.both_sides import terminated_cleanly

    with terminated_cleanly():
        outcome = inject_group.run(scenario, host, given)
    if output == "json":
        print_json({"schema": "rocekit/1", **outcome.to_dict()})
    else:
        click.echo(inject_group.text(outcome))


def _play(program: str, host: str | None, given: dict[str, Any], output: str) -> None:
    """No scenario: one side of a program that others wrote, which a soft device can be."""
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
        raise click.UsageError(
            f"{program} is a program of its own; its other side is there with --backend soft."
        )
    chosen = click.get_current_context().get_parameter_source("port") is ParameterSource.COMMANDLINE
    play(program, host, given, port=given["port"] if chosen else None, output=output)


def _check_meeting(scenario: str, given: dict[str, Any]) -> None:
    """Refuse a way of meeting that the scenario does not have."""
    from click.core import ParameterSource

    from rocekit.scenarios import SCENARIOS

    tcp = SCENARIOS[scenario].tcp
    said = click.get_current_context().get_parameter_source("rdma_cm") is ParameterSource.COMMANDLINE
    if said and tcp is not None and given["rdma_cm"] is tcp:
        means = "over TCP; it takes no -R" if tcp else "through rdma_cm; it takes no --no-rdma_cm"
        raise click.UsageError(f"The peers of {scenario} meet {means}.")


def _backend(given: dict[str, Any]) -> dict[str, MakeEndpoint]:
    """What says to run a side over another backend than the usual one."""
    from rocekit.commands.inject_soft import check_place, faults_of, refuse_for_verbs

    if given["backend"] == "verbs":
        refuse_for_verbs(given)
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
    )


def _server_settings(scenario: str, given: dict[str, Any]) -> Settings:
    """The server's with --both. Two devices have a wire between them; with one, both sides are on it.

    -x and the address are the client's where the server's device is another, which has GIDs of its own, and
    with soft devices, of which each side makes one.
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
