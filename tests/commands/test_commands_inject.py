"""``rocekit inject``: how perftest's options become a plan and settings, and what is printed after a run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from rocekit import cli
from rocekit.commands.inject_text import compared
from rocekit.endpoint import WaitWays
from rocekit.errors import VerbsError
from rocekit.inject import Outcome, Settings
from rocekit.scenarios import GROUPS, SCENARIOS, both_sides, client_server
from rocekit.scenarios.measures import peak_ns
from rocekit.scenarios.scenario import Plan, Samples

LATENCY = Samples("latency", (3000, 1000, 2000), total_ns=10_000, moved=192, operations=3)
BANDWIDTH = Samples("bandwidth", (), total_ns=1000, moved=125, operations=5, peak_ns=100.0)


class FakeTraffic:
    """Stands for the scenarios' runs: remembers what was asked for."""

    def __init__(self) -> None:
        self.ran = ""
        self.host: str | None = None
        self.plan: Plan | None = None
        self.server: Settings | None = None
        self.client: Settings | None = None
        self.samples = LATENCY

    def serve(self, name: str, settings: Settings, *, ready: Callable[[str], None]) -> Outcome:
        self.ran, self.server = "serve", settings
        ready("10.9.0.2")
        return Outcome("server", Plan(name, 64, 3), "rxe1", "10.9.0.2", None, 1024)

    def call(self, host: str, plan: Plan, settings: Settings) -> Outcome:
        self.ran, self.host, self.plan, self.client = "call", host, plan, settings
        return Outcome("client", plan, "rxe0", "10.9.0.1", host, 1024, self.samples)

    def both(self, plan: Plan, server: Settings, client: Settings) -> Outcome:
        self.ran, self.plan, self.server, self.client = "both", plan, server, client
        return Outcome("client", plan, "rxe0", "10.9.0.1", "10.9.0.2", 1024, self.samples)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeTraffic:
    fake = FakeTraffic()
    for name in ("serve", "call", "both"):
        monkeypatch.setattr(both_sides if name == "both" else client_server, name, getattr(fake, name))
    return fake


def rocekit(*arguments: str) -> Result:
    return CliRunner().invoke(cli.rocekit, ["inject", *arguments])


def test_without_a_host_it_serves_and_says_where(fake: FakeTraffic) -> None:
    result = rocekit("ping-sr", "-p", "4000")
    assert result.exit_code == 0
    assert fake.ran == "serve"
    assert "listening on 10.9.0.2 port 4000" in result.stderr
    assert "listening" not in result.stdout


def test_with_a_host_it_is_the_client(fake: FakeTraffic) -> None:
    assert rocekit("ping-sr", "10.9.0.2").exit_code == 0
    assert (fake.ran, fake.host) == ("call", "10.9.0.2")


def test_perftest_s_options_mean_what_they_mean_there(fake: FakeTraffic, tmp_path: Path) -> None:
    line = (
        "-d rxe0 -i 2 -x 3 -s 4096 -n 7 -q 4 -m 512 -t 16 -l 8 -Q 5 -I 64 -o 2 -A CMP_AND_SWAP -u 10 -R -p 99"
    )
    journal = tmp_path / "x.journal.jsonl"
    assert rocekit("atomic", "h", *line.split(), "--journal", str(journal)).exit_code == 0
    assert fake.plan == Plan(
        "atomic", 4096, 7, qps=4, window=16, post_list=8, cq_mod=5, path_mtu=512, atomic="CMP_AND_SWAP"
    )
    assert fake.client is not None
    at, qp = fake.client.endpoint, fake.client.qp
    assert (at.device, at.port, at.gid_index) == ("rxe0", 2, 3)
    assert (qp.inline_size, qp.timeout, qp.reads) == (64, 10, 2)
    assert (fake.client.port, fake.client.journal) == (99, journal)


@pytest.mark.parametrize("scenario", sorted(SCENARIOS))
def test_a_scenario_has_its_own_size_and_iterations(fake: FakeTraffic, scenario: str) -> None:
    assert rocekit(scenario, "h").exit_code == 0
    assert fake.plan is not None
    assert fake.plan.size == SCENARIOS[scenario].default_size
    assert fake.plan.iterations == SCENARIOS[scenario].default_iterations


def test_both_sides_have_devices_of_their_own(fake: FakeTraffic) -> None:
    """-x counts the GIDs of the client's device; the server's is another device with others."""
    assert rocekit("ping-sr", "--both", "-d", "rxe0", "-x", "1", "--server-dev", "rxe1").exit_code == 0
    assert fake.server is not None
    assert fake.client is not None
    assert (fake.server.endpoint.device, fake.server.endpoint.gid_index) == ("rxe1", None)
    assert (fake.client.endpoint.device, fake.client.endpoint.gid_index) == ("rxe0", 1)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "ping-zz",
        "ping-sr h --both",
        "ping-sr -s 0",
        "ping-sr -m 1000",
        "ping-sr -p 65536",
        "atomic h -A NAND",
        "ping-sr -u 32",
        "ping-sr h --cm often",
        "ping-sr h --bind here",
        "ping-sr --bind 300.1.1.1 --both --backend soft",
        "ping-sr h --cq event",
        "ping-sr h --compare",
        "ud h -R",
        "failures h --no-rdma_cm",
    ],
)
def test_a_wrong_command_line_makes_no_traffic(fake: FakeTraffic, line: str) -> None:
    assert rocekit(*line.split()).exit_code == 2
    assert not fake.ran


def test_a_command_line_of_perftest_s_may_say_F(fake: FakeTraffic) -> None:
    assert rocekit("ping-write", "10.9.0.2", "-d", "rxe0", "-F", "-x", "1").exit_code == 0
    assert fake.ran == "call"


def test_without_a_scenario_it_is_said_what_lists_them() -> None:
    assert "rocekit inject --list shows them" in rocekit("--both").stderr


@pytest.mark.parametrize(
    ("given", "meant"),
    [("pingsr", "ping-sr"), ("blast-rite", "blast-write"), ("Mesh", "mesh"), ("ib_write_bw", "write_bw")],
)
def test_a_misspelt_scenario_is_asked_about_in_one_line(fake: FakeTraffic, given: str, meant: str) -> None:
    result = rocekit(given, "--both")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == f"Error: No scenario {given!r}. Did you mean {meant!r}?"
    assert not fake.ran


@pytest.mark.parametrize(
    ("begun", "names"), [("ping-r", ["ping-read"]), ("ri", ["ring"]), ("write", ["write_bw"]), ("x", [])]
)
def test_a_shell_completes_scenarios(begun: str, names: list[str]) -> None:
    shell = ShellComplete(cli.rocekit, {}, "rocekit", "_ROCEKIT_COMPLETE")
    assert [item.value for item in shell.get_completions(["inject"], begun)] == names


def test_what_is_near_no_scenario_names_those_that_there_are() -> None:
    assert all(name in rocekit("zzz").stderr for name in (*SCENARIOS, *GROUPS, "rping"))


def test_list_names_every_scenario_with_a_sentence() -> None:
    lines = rocekit("--list").output.splitlines()
    assert [line.split()[0] for line in lines] == [*SCENARIOS, *GROUPS]
    assert all(len(line.split()) > 3 for line in lines)


def test_latency_is_printed_as_perftest_does(fake: FakeTraffic) -> None:
    names, values = rocekit("ping-sr", "h", "-s", "64", "-n", "3").stdout.splitlines()[1:3]
    row = dict(zip(names.split(), values.split(), strict=True))
    assert row["#bytes"] == "64"
    assert row["#iterations"] == "3"
    assert (row["t_min[usec]"], row["t_max[usec]"], row["t_typical[usec]"]) == ("1.00", "3.00", "2.00")


def test_bandwidth_is_printed_as_perftest_does(fake: FakeTraffic) -> None:
    fake.samples = BANDWIDTH
    stdout = rocekit("blast-sr", "h").stdout
    assert stdout.splitlines()[1].split() == [
        *("#bytes", "#iterations", "BW", "peak[Gb/sec]", "BW", "average[Gb/sec]", "MsgRate[Mpps]")
    ]
    # 25 bytes in 100 ns at best.
    assert stdout.splitlines()[2].split()[-3:] == ["2.000", "1.000", "5.000000"]


def test_json_is_one_document(fake: FakeTraffic) -> None:
    document: dict[str, Any] = json.loads(rocekit("ping-sr", "h", "--format", "json").stdout)
    assert document["schema"] == "rocekit/1"
    assert document["t_typical_us"] == 2.0


def test_a_device_that_refuses_is_one_line(fake: FakeTraffic, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> Outcome:
        raise VerbsError("no RDMA device 'mlx9' (-d); there is rxe0")

    monkeypatch.setattr(client_server, "call", refuse)
    result = rocekit("ping-sr", "h", "-d", "mlx9")
    assert result.exit_code == 1
    assert result.stderr == "rocekit: error: no RDMA device 'mlx9' (-d); there is rxe0\n"


@pytest.mark.parametrize(
    ("words", "ways", "tcp"),
    [
        ("", WaitWays(), False),
        ("-e", WaitWays(cq="channel"), False),
        ("--cm thread --cq nonblocking", WaitWays("thread", "nonblocking"), False),
        ("-e --cq poll", WaitWays(cq="poll"), False),
        ("-R", WaitWays(), False),
        ("--no-rdma_cm", WaitWays(), True),
    ],
)
def test_how_to_wait_and_how_to_meet(fake: FakeTraffic, words: str, ways: WaitWays, tcp: bool) -> None:
    assert rocekit("ping-sr", "h", *words.split()).exit_code == 0
    assert fake.client is not None
    assert (fake.client.endpoint.ways, fake.client.endpoint.tcp) == (ways, tcp)


def test_a_server_knows_what_its_own_options_say(fake: FakeTraffic) -> None:
    """ping-sr-0 tells it nothing else."""
    assert rocekit("ping-sr-0", "-n", "7", "-s", "99").exit_code == 0
    assert fake.server is not None
    assert fake.server.own_plan is not None
    assert (fake.server.own_plan.iterations, fake.server.own_plan.size) == (7, 99)


@pytest.mark.parametrize("name", SCENARIOS)
def test_help_tells_of_a_scenario_step_by_step_with_the_calls_behind_each(name: str) -> None:
    told = rocekit(name, "--help").stdout
    assert told.startswith(f"{name}: ")
    numbered = re.split(r"^\d+\. ", told.partition("\nBefore: ")[0], flags=re.MULTILINE)[1:]
    assert len(numbered) >= 3
    for step in numbered:
        assert re.search(r"\b(ibv|rdma)_[a-z]", step), step
    assert max(map(len, told.splitlines())) <= 110


def test_help_without_a_scenario_is_that_of_the_command() -> None:
    assert "--gid-index" in rocekit("--help").stdout


def test_the_ways_of_waiting_are_compared_in_a_table() -> None:
    outcome = Outcome(
        "client", Plan("ping-sr", 64, 3), "rxe0", "a", "b", 1024, LATENCY, WaitWays("sync", "poll"), 99.6
    )
    slower = replace(outcome, ways=WaitWays("poll", "nonblocking"), cpu_percent=40.0)
    names, *rows = compared([outcome, slower]).splitlines()
    assert names.split() == ["cm", "cq", "t_min[usec]", "t_typical[usec]", "99%[usec]", "CPU[%]"]
    assert [row.split() for row in rows] == [
        ["sync", "poll", "1.00", "2.00", "3.00", "100"],
        ["poll", "nonblocking", "1.00", "2.00", "3.00", "40"],
    ]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), min_size=1, max_size=8))
def test_the_peak_is_no_less_than_the_average(times: list[tuple[int, int]]) -> None:
    posted = sorted(start for start, _ in times)
    completed = sorted(start + took for start, took in times)
    assert peak_ns(posted, completed) <= max(1.0, (completed[-1] - posted[0]) / len(times))
