"""The programs that have soft counterparts, by name."""

from __future__ import annotations

from typing import Final

from rocekit.soft.peers import perftest, pingpong, rping
from rocekit.soft.peers.party import Party

PROGRAMS: Final = ("rping", "rc_pingpong", "uc_pingpong", "ud_pingpong", *perftest.TESTS)


def connects_over_tcp(program: str, *, rdma_cm: bool) -> bool:
    """Whether its sides first connect over the kernel's TCP, whatever link the soft device has."""
    return program.endswith("pingpong") or (program in perftest.TESTS and not rdma_cm)


def run(
    party: Party,
    program: str,
    host: str | None,
    *,
    port: int | None = None,
    count: int = 10,
    size: int = 4096,
    path_mtu: int = 1024,
    rdma_cm: bool = False,
    transport: str = "RC",
) -> int:
    """Run one side of a program.

    Args:
        program: one of :data:`PROGRAMS`.
        host: the server; None: run the server.
        port: None: the program's default.
        count, size, path_mtu: of the client; for a ping-pong both sides need the same.
        rdma_cm, transport: perftest's ``-R`` and ``-c``.

    Returns:
        rounds, messages or requests that succeeded.

    Raises:
        ScenarioError: the peer does not follow the protocol, or its data is wrong.
    """
    if program == "rping":
        if host is None:
            return rping.serve(party, port=port or rping.PORT)
        return rping.call(party, host, port=port or rping.PORT, count=count, size=size)
    if program in perftest.TESTS:
        server_port = port or perftest.PORT
        if host is None:
            return perftest.serve(party, program, port=server_port, rdma_cm=rdma_cm, transport=transport)
        return perftest.call(
            party,
            program,
            host,
            port=server_port,
            count=count,
            size=size,
            path_mtu=path_mtu,
            rdma_cm=rdma_cm,
            transport=transport,
        )
    return pingpong.run(
        party,
        program[:2].upper(),
        host,
        port=port or pingpong.PORT,
        count=count,
        size=size,
        path_mtu=path_mtu,
    )
