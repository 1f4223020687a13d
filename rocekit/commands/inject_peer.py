"""``rocekit inject PROGRAM --backend soft``: one side of rping, a ping-pong or perftest on a soft device."""

from __future__ import annotations

from typing import Any

import click

from rocekit.commands import print_json
from rocekit.soft.peers.programs import PROGRAMS, connects_over_tcp, run

__all__ = ["PROGRAMS", "play"]

_NOT_THESE = {"both": "--both", "compare": "--compare", "journal": "--journal", "server_dev": "--server-dev"}


def play(program: str, host: str | None, given: dict[str, Any], *, port: int | None, output: str) -> None:
    """Run the program's server, or with ``host`` its client, and print the result.

    Args:
        given: the command line's options by name.
        port: None for the program's own.

    Raises:
        RocekitError: the other side fails, or its data is wrong.
    """
    from rocekit.commands.inject_soft import check_place, faults_of
    from rocekit.machine import guard
    from rocekit.machine.devices import source_address
    from rocekit.soft.peers import perftest
    from rocekit.soft.peers.party import Party

    for name, option in _NOT_THESE.items():
        if given[name]:
            raise click.UsageError(f"{option} is for scenarios; {program} is one side of another program.")
    check_place(given)
    target = None
    if host is not None:
        _, target = source_address(host, port or perftest.PORT)
        if given["device"] is not None or connects_over_tcp(program, rdma_cm=given["rdma_cm"]):
            guard.check([target], given["allow_remote"])
    role = "server" if host is None else "client"
    with Party(
        given["device"],
        given["ip"],
        capture=given["capture"],
        faults=faults_of(given),
        seed=given["seed"] or 0,
        peer=target,
        timeout_s=given["timeout_s"],
        allow_remote=given["allow_remote"],
        listening=lambda: click.echo(f"listening on {party.ip}", err=True),
    ) as party:
        rounds = run(
            party,
            program,
            target,
            port=port,
            count=given["iters"] or 10,
            size=given["size"] or 4096,
            path_mtu=int(given["mtu"] or 1024),
            rdma_cm=given["rdma_cm"],
            transport=given["transport"],
        )
        counters = {name: n for name, n in party.device.counters.as_dict().items() if n}
        result = {"program": program, "role": role, "ip": party.ip, "peer_ip": target, "rounds": rounds}
        result["vanished"] = party.vanished
        if output == "json":
            print_json({"schema": "rocekit/1", **result, "counters": counters})
            return
        towards = f" → {target}" if target else ""
        click.echo(f"{program} {role}: {party.ip}{towards}, {rounds} rounds")
        if party.vanished:
            click.echo("the other side disappeared: its DREQ was lost, or it was killed")
        click.echo("  ".join(f"{name} {n:,}" for name, n in counters.items()))
