"""A scenario beside the same exchange over TCP: what is exchanged, what it costs, and what is refused."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from rocekit import cli
from rocekit.errors import ScenarioError
from rocekit.scenarios.plan import Plan
from rocekit.scenarios.tcp_exchange import EXCHANGES, WAYS, _Channel, exchange
from rocekit.scenarios.usage import UsageMeter

BOTH = ("inject", "--both", "--backend", "soft", "--beside", "tcp")
LOOPBACK = ("127.0.0.1", "127.0.0.2")


@pytest.mark.parametrize("scenario", EXCHANGES)
@pytest.mark.parametrize("way", WAYS)
def test_the_exchange_moves_every_message_once(scenario: str, way: str) -> None:
    done = exchange(Plan(scenario, 3000, 20), *LOOPBACK, way, 30.0)
    assert (done.samples.operations, done.samples.moved) == (20, 60_000)
    assert done.samples.total_ns > 0
    assert len(done.samples.times_ns) == (0 if scenario == "blast-sr" else 20)
    assert done.client.elapsed_ns > 0
    assert done.server.elapsed_ns > 0


def test_messages_larger_than_a_sockets_buffer_arrive_whole() -> None:
    for way in WAYS:
        done = exchange(Plan("ping-sr", 3_000_000, 2), *LOOPBACK, way, 30.0)
        assert done.samples.moved == 6_000_000


@pytest.mark.parametrize("way", WAYS)
def test_a_silent_peer_is_an_error_after_the_timeout(way: str) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as sock,
        pytest.raises(ScenarioError) as error,
    ):
        _Channel(sock, way, 0.2).receive(memoryview(bytearray(1)))
    assert "nothing came over TCP for 0.2 s" in str(error.value)


@pytest.mark.parametrize("way", WAYS)
def test_a_peer_that_closes_early_is_an_error(way: str) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as sock,
    ):
        listener.accept()[0].close()
        with pytest.raises(ScenarioError, match="ended early"):
            _Channel(sock, way, 30.0).receive(memoryview(bytearray(1)))


def test_an_address_that_is_not_this_machines_is_one_line() -> None:
    with pytest.raises(ScenarioError) as error:
        exchange(Plan("ping-sr", 10, 1), "192.0.2.1", "127.0.0.1", "blocking", 5.0)
    assert "\n" not in str(error.value)


def test_usage_counts_the_time_that_the_process_worked() -> None:
    meter = UsageMeter()
    sum(i * i for i in range(300_000))
    usage = meter.stop()
    assert usage.cpu_ns > 0
    assert usage.voluntary >= 0
    assert usage.elapsed_ns > 0


def test_inject_prints_both_beside_each_other() -> None:
    words = [
        "inject",
        "ping-read",
        "--both",
        "--backend",
        "soft",
        "--beside",
        "tcp",
        "-n",
        "5",
        "-s",
        "100",
        "--format",
        "json",
    ]
    result = CliRunner().invoke(cli.rocekit, words)
    assert result.exit_code == 0, result.output
    rows = json.loads(result.output)["beside"]
    assert [(r["over"].split()[0], r["waits"]) for r in rows] == [
        ("RDMA", "busy"),
        ("RDMA", "blocking"),
        ("TCP", "busy"),
        ("TCP", "blocking"),
    ]
    assert [r["copies"] for r in rows] == [None, None, 2, 2]
    assert all(r["round_trip_median_us"] > 0 and r["server_cpu_us"] is not None for r in rows)


def test_the_text_says_what_is_measured_and_what_a_nic_would_save() -> None:
    words = [*BOTH, "blast-sr", "-n", "5", "-s", "100"]
    result = CliRunner().invoke(cli.rocekit, words)
    assert result.exit_code == 0, result.output
    assert "What is measured" in result.output
    assert "What a NIC would save" in result.output
    assert result.output.splitlines()[1].split()[:2] == ["over", "waits"]


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ("ping-sr --backend soft --beside tcp 127.0.0.1", 2, "--beside needs --both"),
        ("ping-sr --both --backend soft --beside tcp --compare", 2, "give one"),
        ("atomic --both --backend soft --beside tcp", 1, "ping-sr, blast-sr, ping-read on one QP"),
        ("ping-sr --both --backend soft --beside tcp -q 2", 1, "on one QP"),
    ],
)
def test_what_cannot_be_compared_is_refused(words: str, status: int, said: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(cli.rocekit, ["inject", *words.split()])
    assert isinstance(result.exception, SystemExit | ScenarioError)
    assert said in result.output + str(result.exception)
    if isinstance(result.exception, SystemExit):
        assert result.exit_code == status
