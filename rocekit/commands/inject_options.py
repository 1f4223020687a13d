"""The options of ``rocekit inject``, named as perftest names them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rocekit.commands import FILE
from rocekit.commands.numbers import BYTES, COUNT, COUNT_OF_BYTES, INDEX, SECONDS, Number
from rocekit.commands.options import JOURNAL, PCAPNG
from rocekit.commands.screen import say

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from rocekit.scenarios.group_scenario import GroupScenario
    from rocekit.scenarios.scenario import Scenario

RETRIES = Number("count", 0, 7)
CM_WAYS = ["sync", "thread", "poll"]
CQ_WAYS = ["poll", "channel", "nonblocking"]
MTUS = click.Choice(["256", "512", "1024", "2048", "4096"])
ATOMICS = click.Choice(["FETCH_AND_ADD", "CMP_AND_SWAP"], case_sensitive=False)


class IpAddress(click.types.StringParamType):
    """An IP address; an IPv6 address may have its interface, ``fe80::1%eth0``."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        import ipaddress

        try:
            ipaddress.ip_address(value.partition("%")[0])
        except ValueError:
            self.fail(f"{value!r} is not an IP address.", param, ctx)
        return value


OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    # Names and defaults are those of perftest, if it has the option.
    ("-d --ib-dev device", {"metavar": "DEVICE", "help": "The device; see rocekit devices."}),
    ("-i --ib-port ib_port", {"type": COUNT, "default": 1, "help": "Port of the device."}),
    ("-x --gid-index", {"type": INDEX, "help": "GID index.  [default: the first IPv4 GID]"}),
    (
        "--bind_source_ip --bind-source-ip --bind ip",
        {"type": IpAddress(), "metavar": "IP", "help": "Address of the device, instead of -d and -x."},
    ),
    ("-s --size", {"type": COUNT_OF_BYTES, "help": "Bytes of a message.  [default: the scenario's]"}),
    ("-n --iters", {"type": COUNT, "help": "Messages on each QP.  [default: the scenario's]"}),
    ("-q --qp qps", {"type": COUNT, "default": 1, "help": "How many QPs."}),
    (
        "-m --mtu",
        {"type": MTUS, "help": "Path MTU.  [default: rdma_cm's choice; mesh and ring: 4096 soft, else 1024]"},
    ),
    ("-t --tx-depth", {"type": COUNT, "default": 128, "help": "Work requests outstanding on a QP."}),
    ("-r --rx-depth", {"type": COUNT, "default": 512, "help": "Receives posted on a QP."}),
    ("-l --post_list --post-list", {"type": COUNT, "default": 1, "help": "Work requests in one post."}),
    ("-Q --cq-mod", {"type": COUNT, "default": 100, "help": "One of N work requests is signaled."}),
    (
        "-I --inline_size --inline-size",
        {"type": BYTES, "default": 0, "help": "Messages up to N bytes are inline."},
    ),
    ("-o --outs", {"type": COUNT, "default": 16, "help": "READs and atomics outstanding."}),
    (
        "-A --atomic_type --atomic-type",
        {"type": ATOMICS, "default": "FETCH_AND_ADD", "help": "Which atomic."},
    ),
    (
        "-u --qp-timeout",
        {"type": Number("count", 0, 31), "default": 14, "help": "ACK timeout: 4.096 µs × 2^n."},
    ),
    (
        "--retry-cnt --retry retry_cnt",
        {"type": RETRIES, "default": 6, "help": "How often a lost packet is sent again."},
    ),
    ("--rnr-retry", {"type": RETRIES, "default": 7, "help": "The same after an RNR NAK; 7: without end."}),
    (
        "-R --rdma_cm/--no-rdma_cm rdma_cm",
        {
            "default": True,
            "help": "Connect by rdma_cm, or over TCP on the same port, as perftest does without -R.",
        },
    ),
    (
        "--cm",
        {
            "type": click.Choice(CM_WAYS),
            "help": "CM events: read when expected, by a thread, or polled.  "
            "[default: the scenario's, else poll]",
        },
    ),
    (
        "--cq",
        {
            "type": click.Choice(CQ_WAYS),
            "help": "Completions: busy polling, waiting on a channel, or poll() on it.  "
            "[default: the scenario's, else poll; soft: nonblocking]",
        },
    ),
    ("-e --events", {"is_flag": True, "help": "As --cq channel."}),
    (
        "--timestamps/--no-timestamps",
        {"default": True, "help": "With cq-ex: the device's completion timestamps; rxe has none."},
    ),
    (
        "--compare",
        {"is_flag": True, "help": "With --both: run all nine of --cm and --cq; round trip and CPU of each."},
    ),
    (
        "--beside",
        {
            "type": click.Choice(["tcp"]),
            "help": "With --both: also ping-sr, blast-sr or ping-read over TCP, and what each costs.",
        },
    ),
    (
        "-c --connection transport",
        {
            "type": click.Choice(["RC", "UC", "UD"]),
            "default": "RC",
            "help": "Transport of perftest's programs with --backend soft.",
        },
    ),
    (
        "-F --CPU-freq cpu_freq",
        {
            "is_flag": True,
            "help": "Accepted as in perftest, without effect.",
        },
    ),
    ("-p --port", {"type": Number("count", 1, 65535), "default": 18515, "help": "The server's port."}),
    (
        "--timeout timeout_s",
        {"type": SECONDS, "default": 30.0, "help": "Stop after this many seconds without progress."},
    ),
    (
        "--allow-remote",
        {"metavar": "ADDRESS", "multiple": True, "help": "Allow this HOST on another machine."},
    ),
    ("--both", {"is_flag": True, "help": "Server and client on this machine; no HOST."}),
    ("--hosts", {"type": COUNT, "help": "Hosts of mesh and ring.  [default: 4 soft hosts, or all devices]"}),
    ("--server-dev", {"metavar": "DEVICE", "help": "With --both: the server's device.  [default: the last]"}),
    (
        "--backend",
        {
            "type": click.Choice(["verbs", "soft"]),
            "default": "verbs",
            "help": "A device of the kernel, or a soft one of rocekit: on the interface -d, or within this "
            "machine, which needs no privileges.",
        },
    ),
    ("--capture -w", {"type": PCAPNG, "metavar": "FILE", "help": "With soft: write the packets (pcapng)."}),
    (
        "--fault",
        {
            "multiple": True,
            "metavar": "FAULT",
            "help": "With soft: a fault for packets: qpn=1,psn=4,type=drop or drop=2%.",
        },
    ),
    ("--faults", {"type": FILE, "metavar": "FILE", "help": "With soft: faults from a YAML file."}),
    ("--seed", {"type": INDEX, "help": "With soft: seed of PSNs, keys and faults."}),
    (
        "--journal",
        {"type": JOURNAL, "metavar": "FILE", "help": "Write a journal of all verbs calls and completions."},
    ),
    (
        "--counters/--no-counters",
        {"default": True, "help": "With --journal: also the device's counters, before and after."},
    ),
)


def list_scenarios(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from rocekit.scenarios import GROUPS, SCENARIOS

    every: dict[str, type[Scenario] | type[GroupScenario]] = {**SCENARIOS, **GROUPS}
    width = max(map(len, every))
    for name, scenario in every.items():
        say(f"{click.style(f'{name:<{width}}', bold=True)}  {scenario.summary}")
    ctx.exit()


def option(names: str, about: dict[str, Any]) -> click.Option:
    return click.Option(names.split(), **about)


class ScenarioName(click.types.StringParamType):
    """The name of a scenario; unknown names are reported later, with suggestions."""

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str:
        return "rocekit inject --list shows them."

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        from rocekit.scenarios import GROUPS, SCENARIOS
        from rocekit.soft.peers.programs import PROGRAMS

        every = (*SCENARIOS, *GROUPS, *PROGRAMS)
        return [CompletionItem(name) for name in every if name.startswith(incomplete)]
