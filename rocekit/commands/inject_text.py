"""What ``rocekit inject`` prints: results as perftest does, and the steps of a scenario."""

from __future__ import annotations

import inspect
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rocekit.scenarios.client_server import Outcome
    from rocekit.scenarios.group_scenario import GroupScenario
    from rocekit.scenarios.scenario import Scenario

BEFORE = """
    Before: each side opens the device (ibv_open_device), makes a protection domain (ibv_alloc_pd), a CQ
    (ibv_create_cq), memory (ibv_reg_mr) and a QP (ibv_create_qp, ibv_modify_qp to INIT). {meet}; the QPs go
    to RTR and RTS (ibv_modify_qp)."""
AFTER = """
    After: everything is released in reverse order, also after a failure: {part}
    ibv_destroy_qp, ibv_dereg_mr, ibv_destroy_cq, ibv_dealloc_pd, ibv_close_device."""
PART = "rdma_disconnect, the QP to ERR, its flushed WRs polled (ibv_modify_qp, ibv_poll_cq),"
BY_TCP = "They exchange QPN, PSN, GID, address and rkey over TCP"
BY_CM = """
    They connect by rdma_cm (rdma_resolve_addr, rdma_resolve_route, rdma_connect; rdma_listen, rdma_accept),
    or with --no-rdma_cm exchange QPN, PSN, GID, address and rkey over TCP"""
BY_PROGRAM = "All hosts run in one program, which knows every QPN, PSN, address and rkey"
WIDTH = 108


def steps(scenario: type[Scenario] | type[GroupScenario]) -> str:
    """The steps of a scenario with their verbs calls."""
    from rocekit.scenarios.group_scenario import GroupScenario

    if issubclass(scenario, GroupScenario):
        meet, part = BY_PROGRAM, ""
    else:
        meet, part = BY_TCP if scenario.tcp else BY_CM, PART
    around = (BEFORE.format(meet=meet.strip()), AFTER.format(part=part))
    return "\n\n".join(
        [
            f"{scenario.name}: {inspect.cleandoc(scenario.__doc__ or '')}",
            *(textwrap.fill(" ".join(words.split()), WIDTH, break_on_hyphens=False) for words in around),
            "Options: rocekit inject --help",
        ]
    )


def text(outcome: Outcome) -> str:
    """The result of a side, in perftest's form."""
    values = outcome.to_dict()
    plan = outcome.plan
    peer = f" → {outcome.peer_ip}" if outcome.peer_ip else ""
    waits = f", --cm {outcome.ways.cm} --cq {outcome.ways.cq}" if outcome.ways.cm else ""
    cpu = "" if outcome.cpu_percent is None else f", CPU {outcome.cpu_percent:.0f} %"
    if not outcome.path_mtu:  # there was no connection
        return "\n".join(
            [f"{plan.scenario} {outcome.role}: {outcome.device} {outcome.ip}{peer}", *outcome.notes]
        )
    lines = [
        f"{plan.scenario} {outcome.role}: {outcome.device} {outcome.ip}{peer}, "
        f"{plan.qps} QP{'s' if plan.qps > 1 else ''}, path MTU {outcome.path_mtu}{waits}{cpu}, "
        f"{_checked(outcome)}"
    ]
    if outcome.samples is not None and outcome.samples.operations:
        row = {"#bytes": f"{plan.size}", "#iterations": f"{plan.iterations}"}
        if outcome.samples.kind == "latency":
            for name in ("t_min", "t_max", "t_typical", "t_avg", "t_stdev"):
                row[f"{name}[usec]"] = f"{values[f'{name}_us']:.2f}"
            row["99%[usec]"] = f"{values['p99_us']:.2f}"
            row["99.9%[usec]"] = f"{values['p999_us']:.2f}"
        else:
            row["BW peak[Gb/sec]"] = f"{values['bandwidth_peak_gbps']:.3f}"
            row["BW average[Gb/sec]"] = f"{values['bandwidth_gbps']:.3f}"
            row["MsgRate[Mpps]"] = f"{values['message_rate_mpps']:.6f}"
        lines += table([row])
    lines += outcome.notes
    return "\n".join(lines)


def _checked(outcome: Outcome) -> str:
    """Which side verifies the data."""
    from rocekit.scenarios import SCENARIOS

    seen = outcome.role == "client" or SCENARIOS[outcome.plan.scenario].server_sees != "nothing"
    return "data verified" if seen else "the client verifies the data"


def compared(outcomes: Iterable[Outcome]) -> str:
    """A table of the ways of waiting: round trip, and CPU of the client."""
    rows = []
    for outcome in outcomes:
        values = outcome.to_dict()
        rows.append(
            {
                "cm": outcome.ways.cm or "",
                "cq": outcome.ways.cq or "",
                "t_min[usec]": f"{values['t_min_us']:.2f}",
                "t_typical[usec]": f"{values['t_typical_us']:.2f}",
                "99%[usec]": f"{values['p99_us']:.2f}",
                "CPU[%]": f"{values['cpu_percent']:.0f}",
            }
        )
    return "\n".join(table(rows))


def table(rows: list[dict[str, str]]) -> list[str]:
    """Lines of names and values, right-aligned; columns for which a terminal has no room stand below."""
    from rocekit.commands.screen import width

    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in rows[0]}
    room, used = width(), 0
    parts: list[dict[str, int]] = [{}]
    for name, own in widths.items():
        if room is not None and parts[-1] and used + own > room:
            parts.append({})
            used = 0
        parts[-1][name] = own
        used += own + 2
    lines = [{name: name for name in widths}, *rows]
    return ["  ".join(f"{line[n]:>{own}}" for n, own in part.items()) for part in parts for line in lines]
