"""``rocekit inject`` for scenarios of n hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from rocekit.endpoint import EndpointOptions, QpOptions
    from rocekit.scenarios.group_run import GroupOutcome
    from rocekit.scenarios.group_scenario import GroupPlan

SOFT_HOSTS = 4
#: The options that a group looks at; what else is given would be left out without a word.
_TAKEN: Final = (
    *("scenario", "device", "ib_port", "gid_index", "size", "iters", "mtu", "hosts", "timeout_s", "backend"),
    *("qp_timeout", "retry_cnt", "rnr_retry", "cpu_freq"),
    *("capture", "fault", "faults", "seed", "journal", "output"),
)


def run(scenario: str, host: str | None, given: dict[str, Any]) -> GroupOutcome:
    """Run a scenario of n hosts with the options of the command line."""
    from rocekit.commands.inject_soft import check_place, faults_of, reject_for_verbs
    from rocekit.scenarios.group_run import soft_group, verbs_group

    if host is not None or given["both"]:
        raise click.UsageError(f"{scenario} runs all its hosts here: give neither HOST nor --both.")
    _reject_other_options(scenario)
    if given["backend"] == "verbs":
        reject_for_verbs(given)
        devices = _devices(scenario, given)
        plan = _plan(scenario, given, len(devices))
        return verbs_group(
            plan, devices, options=_qp(given), timeout_s=given["timeout_s"], journal=given["journal"]
        )
    if given["device"] is not None:
        raise click.UsageError(f"soft hosts of a {scenario} use a wire in memory: -d is for verbs.")
    check_place(given)
    return soft_group(
        _plan(scenario, given, given["hosts"] or SOFT_HOSTS),
        options=_qp(given),
        timeout_s=given["timeout_s"],
        capture=given["capture"],
        journal=given["journal"],
        faults=faults_of(given),
        seed=given["seed"],
    )


def _reject_other_options(scenario: str) -> None:
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        chosen = context.get_parameter_source(name) == ParameterSource.COMMANDLINE
        if chosen and name not in _TAKEN:
            raise click.UsageError(
                f"{scenario} has one QP for each neighbour and polls: leave out {parameter.opts[0]}."
            )


def _plan(scenario: str, given: dict[str, Any], hosts: int) -> GroupPlan:
    from rocekit.endpoint.options import DEFAULT_MTU
    from rocekit.scenarios import GROUPS
    from rocekit.scenarios.group_scenario import GroupPlan
    from rocekit.scenarios.plan import check_size
    from rocekit.wire import PATH_MTU_CODES

    known = GROUPS[scenario]
    size, iterations = given["size"] or known.default_size, given["iters"] or known.default_iterations
    check_size(size)
    # The wire in memory carries the largest; what the devices of verbs carry their networks decide.
    usual = DEFAULT_MTU if given["backend"] == "verbs" else max(PATH_MTU_CODES)
    return GroupPlan(scenario, hosts, size, iterations, int(given["mtu"] or usual))


def _qp(given: dict[str, Any]) -> QpOptions:
    from rocekit.endpoint import QpOptions

    return QpOptions(timeout=given["qp_timeout"], retry_cnt=given["retry_cnt"], rnr_retry=given["rnr_retry"])


def _devices(scenario: str, given: dict[str, Any]) -> list[EndpointOptions]:
    """A device for each host: those of -d, or --hosts of them, or all."""
    from rocekit.endpoint import EndpointOptions
    from rocekit.errors import ScenarioError
    from rocekit.machine.devices import devices

    found = [device.name for device in devices()]
    named = given["device"].split(",") if given["device"] else found
    wanted = given["hosts"] or len(named)
    if wanted > len(named):
        raise ScenarioError(
            f"{scenario} of {wanted} hosts needs as many devices; there is {', '.join(named)}: "
            f"--backend soft needs none"
        )
    return [
        EndpointOptions(device=name, port=given["ib_port"], gid_index=given["gid_index"])
        for name in named[:wanted]
    ]


def text(outcome: GroupOutcome) -> str:
    """The result of a group: its size, the times of each exchange, and the bytes of each link."""
    from rocekit.commands.inject_text import table
    from rocekit.wire.words import plural, short_size

    plan = outcome.plan
    lines = [
        f"{plan.scenario} of {plural(plan.hosts, 'host')}: {plural(outcome.qps, 'QP')} on "
        f"{plural(outcome.links, 'link')}, path MTU {plan.path_mtu}, data verified"
    ]
    rows = []
    for exchange in outcome.exchanges:
        values = exchange.to_dict()
        rows.append(
            {
                "exchange": exchange.name,
                "#bytes": f"{plan.size}",
                "#iterations": f"{plan.iterations}",
                "messages": f"{exchange.messages}",
                "hops": f"{exchange.hops}",
                **{
                    f"{name}[usec]": f"{values[f'{name}_us']:.2f}" for name in ("t_min", "t_max", "t_typical")
                },
            }
        )
    lines += table(rows)
    carried = sorted(outcome.link_bytes.items())
    used = [n for _, n in carried if n]
    if used and min(used) == max(used):
        ways = "each way" if len(used) == len(carried) else "one way"
        lines.append(f"every link carried {short_size(used[0])} {ways}")
    else:
        lines += [f"{a} → {b}  {short_size(n)}" for (a, b), n in carried if n]
    return "\n".join(lines)
