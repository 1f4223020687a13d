"""n hosts as a mesh and as a ring: the same exchanges, and what each way of connecting costs."""

from __future__ import annotations

import json
import subprocess
import sys
from array import array
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
from amount import examples
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

import rocekit
from rocekit import cli
from rocekit.endpoint import EndpointOptions
from rocekit.errors import ScenarioError
from rocekit.explanation.topology import topology
from rocekit.scenarios import GROUPS
from rocekit.scenarios import group_run as inject_group
from rocekit.scenarios.group_member import Member, Steps
from rocekit.scenarios.group_run import GroupOutcome, soft_group
from rocekit.scenarios.group_scenario import GroupPlan, GroupScenario, add
from rocekit.scenarios.mesh import Mesh
from rocekit.scenarios.ring import Ring
from rocekit.soft.wires.fault_file import fault_from_words


def run(name: str, hosts: int, size: int = 1000, iterations: int = 2, **how: Any) -> GroupOutcome:
    return soft_group(GroupPlan(name, hosts, size, iterations), seed=7, **how)


def hops(outcome: GroupOutcome) -> list[int]:
    return [exchange.hops for exchange in outcome.exchanges]


# ---------------------------------------------------------------------- what is counted


@pytest.mark.parametrize("n", [2, 3, 4, 7])
def test_a_mesh_has_a_qp_for_every_other_host_and_needs_one_hop(n: int) -> None:
    outcome = run("mesh", n)
    assert outcome.qps == n * (n - 1)
    assert outcome.links == n * (n - 1) // 2
    assert hops(outcome) == [1, 2]


@pytest.mark.parametrize("n", [3, 4, 7])
def test_a_ring_has_two_qps_a_host_and_a_hop_for_every_other_host(n: int) -> None:
    outcome = run("ring", n)
    assert outcome.qps == 2 * n
    assert outcome.links == n
    assert hops(outcome) == [n - 1, 2 * (n - 1)]


@settings(max_examples=examples(25))
@given(st.sampled_from(["mesh", "ring"]), st.integers(3, 6), st.integers(1, 5000), st.integers(1, 3))
def test_every_link_carries_what_the_arithmetic_says(name: str, n: int, size: int, iterations: int) -> None:
    """Of an all-to-all each host's blocks travel one hop, or on average n/2; of an all-reduce each host
    sends 2·(n−1) pieces of a vector, whichever way it is done.
    """
    outcome = run(name, n, size, iterations)
    piece = -(-size // (4 * n)) * 4
    directions = n * (n - 1) if name == "mesh" else n
    blocks = size if name == "mesh" else size * n * (n - 1) // 2
    pieces = 2 * (n - 1) * n * piece // directions
    used = {ranks: carried for ranks, carried in outcome.link_bytes.items() if carried}
    assert len(used) == directions
    assert set(used.values()) == {iterations * (blocks + pieces)}
    assert [exchange.bytes for exchange in outcome.exchanges] == [directions * blocks, directions * pieces]


def test_sixteen_hosts_in_a_mesh() -> None:
    outcome = run("mesh", 16, 64, 1)
    assert (outcome.qps, outcome.links) == (240, 120)


def test_a_ring_waits_for_every_hop_and_a_mesh_does_not() -> None:
    """On a wire whose every hop takes as long, for messages that take no time themselves."""
    mesh, ring = (run(name, 6, 24, 1).exchanges for name in ("mesh", "ring"))
    for direct, passed in zip(mesh, ring, strict=True):
        assert passed.times_ns[0] > 2 * direct.times_ns[0]


_MEMORY = """
import re
from pathlib import Path
from rocekit.scenarios.group_run import soft_group
from rocekit.scenarios.group_scenario import GroupPlan

def most() -> int:
    return 1024 * int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text()).group(1))

soft_group(GroupPlan("ring", 32, 100, 1), seed=1)
before = most()
outcome = soft_group(GroupPlan("ring", 32, 6000, 1, 4096), seed=1)
print(sum(outcome.link_bytes.values()), most() - before)
"""


def test_a_ring_keeps_only_what_is_under_way_in_memory() -> None:
    told = subprocess.run([sys.executable, "-c", _MEMORY], check=True, capture_output=True, text=True)
    moved, taken = map(int, told.stdout.split())
    assert moved > 90_000_000
    assert taken < moved  # two areas for all of it were twice that


_PAGES = """
from rocekit.scenarios.group_run import soft_group
from rocekit.scenarios.group_scenario import GroupPlan
from rocekit.soft.engine.memory import AddressSpace
from mmap import mmap, PAGESIZE

spaces = []
made = AddressSpace.__init__
AddressSpace.__init__ = lambda self, *a: (spaces.append(self), made(self, *a))[1]
soft_group(GroupPlan("ring", 12, 20_001, 2, 4096), seed=1)
kept = 0
for space in spaces:
    for buffer in space._buffers:
        if isinstance(buffer, mmap):
            kept += sum(any(buffer[at : at + PAGESIZE]) for at in range(0, len(buffer), PAGESIZE))
print(kept)
"""


def test_what_messages_have_passed_is_given_back_also_where_two_of_them_share_a_page() -> None:
    """Of 12 hosts with two regions each: 11 messages an exchange, none of them whole pages."""
    told = subprocess.run([sys.executable, "-c", _PAGES], check=True, capture_output=True, text=True)
    assert int(told.stdout) <= 12 * 4  # where each area ends now; each shared page was kept: above 300


def test_time_is_the_wire_s_and_not_this_machine_s() -> None:
    assert run("ring", 4).exchanges == run("ring", 4).exchanges


# ---------------------------------------------------------------------- what is on the wire


@pytest.mark.parametrize(("name", "n"), [("mesh", 3), ("mesh", 5), ("ring", 3), ("ring", 5)])
def test_the_capture_shows_the_shape_and_every_work_request(name: str, n: int, tmp_path: Path) -> None:
    outcome = run(name, n, 3000, 2, capture=tmp_path / "x.pcapng", journal=tmp_path / "x.journal.jsonl")
    analysis = rocekit.analyze(tmp_path / "x.pcapng")
    drawn = topology(analysis)
    assert drawn.shape == name
    assert drawn.qps == outcome.qps
    addresses = [ip for _, ip in outcome.devices]
    if name == "ring":
        assert list(drawn.hosts) == addresses
        assert drawn.groups[0].one_way
    for (src, dst), carried in outcome.link_bytes.items():
        assert drawn.sent(addresses[src], addresses[dst]) == carried
    assert drawn.imbalance == 1.0
    assert {t.status for t in analysis.transfers} == {"acked"}
    assert all(t.wr is not None and t.wc is not None and t.recv_wc is not None for t in analysis.transfers)
    messages = sum(exchange.messages for exchange in outcome.exchanges) * 2
    assert len(analysis.transfers) == messages
    assert analysis.journal is not None
    assert not analysis.journal.unmatched
    assert not analysis.findings


@pytest.mark.parametrize("name", GROUPS)
def test_the_same_seed_makes_the_same_files(name: str, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        run(name, 3, capture=tmp_path / folder / "x.pcapng", journal=tmp_path / folder / "x.jsonl")
    for file in ("x.pcapng", "x.jsonl"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


# ---------------------------------------------------------------------- faults


@pytest.mark.parametrize("name", GROUPS)
def test_one_loss_is_made_good_and_found(name: str, tmp_path: Path) -> None:
    lost = [fault_from_words("qpn=1,psn=2,type=drop")]
    run(name, 3, 4000, 1, faults=lost, capture=tmp_path / "x.pcapng", journal=tmp_path / "x.journal.jsonl")
    analysis = rocekit.analyze(tmp_path / "x.pcapng")
    assert [f.rule for f in analysis.findings if f.severity != "info"] == ["loss"]
    assert {t.status for t in analysis.transfers} == {"acked"}
    assert topology(analysis).shape == name


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize("seed", range(4))
def test_the_data_arrives_whatever_the_wire_does(name: str, seed: int) -> None:
    faults = [fault_from_words(f"{kind}=3%") for kind in ("drop", "duplicate", "reorder", "bit-error")]
    soft_group(GroupPlan(name, 4, 5000, 2), faults=faults, seed=seed)


def test_a_host_that_is_cut_off_is_an_error_and_not_a_hang() -> None:
    with pytest.raises(ScenarioError, match=r"ring of 3: WR 0 on QP 0x11 ended with RETRY_EXC_ERR"):
        run("ring", 3, faults=[fault_from_words("drop=100%")])


class Careless(Ring):
    """Forgets to add one host's piece on its way."""

    def all_reduce(self, member: Member, group: Sequence[Member], vector: array[int]) -> Steps[array[int]]:
        return super().all_reduce(
            member, group, array("I", len(vector) * [0]) if member.rank == 1 else vector
        )


class Confused(Mesh):
    """Gives two hosts each other's blocks."""

    def all_to_all(self, member: Member, group: Sequence[Member], blocks: list[bytes]) -> Steps[list[bytes]]:
        if member.rank == 0:
            blocks[1], blocks[2] = blocks[2], blocks[1]
        return super().all_to_all(member, group, blocks)


class Silent(Mesh):
    """Rank 2 waits and sends nothing."""

    def all_to_all(self, member: Member, group: Sequence[Member], blocks: list[bytes]) -> Steps[list[bytes]]:
        if member.rank != 2:
            return (yield from super().all_to_all(member, group, blocks))
        for peer in member.others:
            yield from member.take(peer, group)
        yield from member.take(0, group)
        return blocks


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Careless, "all-reduce 0: the sum at host . is wrong"),
        (Confused, "all-to-all 0: host [12] has other bytes than host 0 sent it"),
        (Silent, r"nothing completed within 5 s \(--timeout\); hosts 0, 1, 2 wait"),
    ],
)
def test_what_goes_wrong_is_noticed(
    kind: type[GroupScenario], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inject_group, "GROUPS", MappingProxyType({kind.name: kind}))
    with pytest.raises(ScenarioError, match=words):
        run(kind.name, 3, timeout_s=5)


@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)), max_size=20))
def test_words_wrap_around(pairs: list[tuple[int, int]]) -> None:
    total = add(array("I", [a for a, _ in pairs]), array("I", [b for _, b in pairs]))
    assert list(total) == [(a + b) % 2**32 for a, b in pairs]


# ---------------------------------------------------------------------- the command


def command(*words: object, status: int = 0) -> Result:
    done = CliRunner().invoke(cli.rocekit, ["inject", *map(str, words)])
    assert done.exit_code == status, done.output
    return done


def test_the_command_counts_and_times(tmp_path: Path) -> None:
    printed = command("ring", "--hosts", 5, "--backend", "soft", "-s", 500, "-n", 2).stdout
    assert printed.startswith("ring of 5 hosts: 10 QPs on 5 links, path MTU 4096, data verified\n")
    assert "every link carried " in printed
    assert printed.rstrip().endswith("one way")
    document = json.loads(
        command("mesh", "--hosts", 3, "--backend", "soft", "-n", 1, "--format", "json").stdout
    )
    assert document["qps"] == 6
    assert [e["exchange"] for e in document["exchanges"]] == ["all-to-all", "all-reduce"]
    assert [host["ip"] for host in document["hosts"]] == ["10.9.0.1", "10.9.0.2", "10.9.0.3"]
    assert len(document["link_bytes"]) == 6


def test_both_are_listed_and_explained() -> None:
    listed = command("--list").stdout
    assert "mesh " in listed
    assert "ring " in listed
    for name in GROUPS:
        told = command(name, "--help").stdout
        assert "IBV_WR_RDMA_WRITE_WITH_IMM" in told
        assert "ibv_modify_qp" in told


@pytest.fixture
def three_devices(monkeypatch: pytest.MonkeyPatch) -> list[list[str | None]]:
    """A machine with three devices; gives those that each run would take."""
    taken: list[list[str | None]] = []

    def verbs_group(plan: GroupPlan, devices: Sequence[EndpointOptions], **_: Any) -> GroupOutcome:
        taken.append([at.device for at in devices])
        return soft_group(plan, seed=1)

    found = [SimpleNamespace(name=f"rxe{i}") for i in range(3)]
    monkeypatch.setattr("rocekit.machine.devices.devices", lambda: found)
    monkeypatch.setattr(inject_group, "verbs_group", verbs_group)
    return taken


def test_every_host_has_a_device_of_its_own(three_devices: list[list[str | None]]) -> None:
    command("mesh", "-n", 1)
    command("mesh", "-n", 1, "--hosts", 2)
    command("ring", "-n", 1, "-d", "rxe2,rxe0,rxe1")
    assert three_devices == [["rxe0", "rxe1", "rxe2"], ["rxe0", "rxe1"], ["rxe2", "rxe0", "rxe1"]]
    said = command("mesh", "--hosts", 4, status=1).stderr
    assert (
        "mesh of 4 hosts needs as many devices; there is rxe0, rxe1, rxe2: --backend soft needs none" in said
    )


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("ring", "--hosts", 2, "--backend", "soft"), 1, "a ring has 3 to 64 hosts, not 2"),
        (("mesh", "--hosts", 65, "--backend", "soft"), 1, "a mesh has 2 to 64 hosts, not 65"),
        (("mesh", "10.9.0.1", "--backend", "soft"), 2, "give neither HOST nor --both"),
        (("mesh", "--both", "--backend", "soft"), 2, "give neither HOST nor --both"),
        (("mesh", "-d", "lo", "--backend", "soft"), 2, "use a wire in memory"),
        (("mesh", "-q", 4, "--backend", "soft"), 2, "for each neighbour and polls: leave out -q"),
        (("ring", "--cm", "poll", "--backend", "soft"), 2, "for each neighbour and polls: leave out --cm"),
        (("ring", "--no-rdma_cm"), 2, "for each neighbour and polls: leave out -R"),
        (("mesh", "--seed", 1), 2, "--seed is for --backend soft"),
        (("ping-sr", "--hosts", 3, "--both", "--backend", "soft"), 2, "--hosts is for mesh and ring"),
        (("mash",), 2, "No scenario 'mash'"),
        (("mesh", "--backend", "soft", "--journal", "/nowhere/x"), 1, "there is no folder /nowhere"),
    ],
)
def test_what_cannot_be_is_said(words: tuple[object, ...], status: int, said: str) -> None:
    assert said in command(*words, status=status).stderr
