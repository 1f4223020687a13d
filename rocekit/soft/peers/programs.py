"""The programs whose soft counterparts there are, by name."""

from __future__ import annotations

from typing import Final

from rocekit.soft.peers import perftest, pingpong, rping
from rocekit.soft.peers.party import Party

PROGRAMS: Final = ("rping", "rc_pingpong", "uc_pingpong", "ud_pingpong", *perftest.TESTS)


def meets_over_tcp(program: str, *, rdma_cm: bool) -> bool:
    """Whether its two sides find each other over the kernel's TCP, whatever wire the soft device is on."""
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
    """Be one side of a program.

    Args:
        program: one of :data:`PROGRAMS`.
        host: the server to call; None to be one.
        port: the program's own if not given.
        count, size, path_mtu: the client's; of a ping-pong both sides are told alike.
        rdma_cm, transport: perftest's ``-R`` and ``-c``.

    Returns:
        rounds, messages or requests that came to a good end.

    Raises:
        ScenarioError: the other side does not do its part, or its data is wrong.
    """
    if program == "rping":
        if host is None:
            return rping.serve(party, port=port or rping.PORT)
        return rping.call(party, host, port=port or rping.PORT, count=count, size=size)
    if program in perftest.TESTS:
        to = port or perftest.PORT
        if host is None:
            return perftest.serve(party, program, port=to, rdma_cm=rdma_cm, transport=transport)
        return perftest.call(
            party,
            program,
            host,
            port=to,
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
