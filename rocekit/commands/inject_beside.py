"""What ``rocekit inject --beside tcp`` prints: a scenario and the same exchange over TCP, and their costs."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any, Final

from rocekit.commands.inject_text import WIDTH, table
from rocekit.scenarios.measures import percentile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocekit.scenarios.client_server import Outcome
    from rocekit.scenarios.run import Samples
    from rocekit.scenarios.tcp_exchange import TcpOutcome
    from rocekit.scenarios.usage import Usage

#: Copies of each byte of payload between a program's memory and the kernel's: one by send, one by recv.
_TCP_COPIES: Final = 2
_WAYS: Final = {"poll": "busy", "channel": "blocking"}
_NOTES: Final = (
    "What is measured: the same messages, whose bytes are checked. An iteration is a ping with its pong, a "
    "READ, or a message of the stream; MB/s counts payload one way. CPU is the two processes' own time "
    "(getrusage) for each iteration; switches are their context switches, voluntary and forced. The "
    "machine's CPU is the busy time of its processors meanwhile (/proc/stat, in steps of 10 ms): work of the "
    "kernel that no process is charged for is in it, and so is what other programs did. Copies are those "
    "between a program's and the kernel's memory of each byte of payload; - is unknown.",
    "What a NIC would save: it makes and takes packets itself and moves payload between the wire and "
    "registered memory by DMA. No system call, no copy and no processor time is spent on a packet, and "
    "busy polling reads memory. Here the same processors do a device's work: rxe in the kernel, where it "
    "copies payload into packets and out of them, a soft device in Python in both processes, with sockets "
    "below it. So RDMA need not be faster here.",
)


def rows(outcomes: Sequence[Outcome], over_tcp: Sequence[TcpOutcome]) -> list[dict[str, Any]]:
    """A dict for each run; times in µs."""
    found = []
    for o in outcomes:
        assert o.samples is not None
        assert o.usage is not None
        assert o.server_usage is not None
        way = _WAYS.get(o.ways.cq or "", str(o.ways.cq))
        found.append(_row(o.plan.scenario, f"RDMA {o.device}", way, o.samples, o.usage, o.server_usage, None))
    scenario = outcomes[0].plan.scenario
    for t in over_tcp:
        found.append(_row(scenario, "TCP", t.way, t.samples, t.client, t.server, _TCP_COPIES))
    return found


def _row(
    scenario: str, over: str, way: str, samples: Samples, client: Usage, server: Usage, copies: int | None
) -> dict[str, Any]:
    count = max(1, samples.operations)
    seconds = max(1, samples.total_ns) / 1e9
    # perftest halves a ping-pong's time; a READ's is whole.
    trips = sorted(t * (2 if scenario == "ping-sr" else 1) for t in samples.times_ns)
    machine = client.machine_ns
    return {
        "over": over,
        "waits": way,
        "round_trip_median_us": percentile(trips, 50) / 1000 if trips else None,
        "round_trip_p99_us": percentile(trips, 99) / 1000 if trips else None,
        "iterations_per_s": samples.operations / seconds,
        "bytes_per_s": samples.moved / seconds,
        "client_cpu_us": client.cpu_ns / 1000 / count,
        "server_cpu_us": server.cpu_ns / 1000 / count,
        "client_switches": client.switches / count,
        "server_switches": server.switches / count,
        "machine_cpu_us": None if machine is None else machine / 1000 / count,
        "copies": copies,
    }


def text(outcomes: Sequence[Outcome], over_tcp: Sequence[TcpOutcome]) -> str:
    """The table, and what it says."""
    first = outcomes[0]
    lines = [
        f"{first.plan.scenario}: {first.ip} → {first.peer_ip}, {first.plan.iterations:,} messages of "
        f"{first.plan.size:,} bytes, RDMA and TCP on the same path, data verified"
    ]
    shown = []
    for row in rows(outcomes, over_tcp):
        shown.append(
            {
                "over": row["over"],
                "waits": row["waits"],
                "round trip[usec]": _number(row["round_trip_median_us"]),
                "99%[usec]": _number(row["round_trip_p99_us"]),
                "iterations/s": f"{row['iterations_per_s']:,.0f}",
                "MB/s": _number(row["bytes_per_s"] / 1e6),
                "CPU client[usec]": _number(row["client_cpu_us"]),
                "server[usec]": _number(row["server_cpu_us"]),
                "machine[usec]": _number(row["machine_cpu_us"]),
                "switches client": _number(row["client_switches"]),
                "server": _number(row["server_switches"]),
                "copies": "-" if row["copies"] is None else str(row["copies"]),
            }
        )
    lines += table(shown)
    return "\n".join([*lines, *(textwrap.fill(note, WIDTH, break_on_hyphens=False) for note in _NOTES)])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
