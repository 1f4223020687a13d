"""The options of ``rocekit inject``, named as perftest names them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rocekit.commands import FILE

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from rocekit.scenarios.base import Scenario
    from rocekit.scenarios.group import GroupScenario

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


def list_scenarios(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from rocekit.scenarios import GROUPS, SCENARIOS

    every: dict[str, type[Scenario] | type[GroupScenario]] = {**SCENARIOS, **GROUPS}
    width = max(map(len, every))
    for name, scenario in every.items():
        click.echo(f"{click.style(f'{name:<{width}}', bold=True)}  {scenario.summary}")
    ctx.exit()


def option(names: str, about: dict[str, Any]) -> click.Option:
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
