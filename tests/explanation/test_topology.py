"""Who talks to whom: the shape that links make does not depend on addresses, nor on what came first."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path

import pytest
from capture_bytes import Frame, pcap
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from places import ROOT
from talk import Talk

import rocekit
from rocekit import cli
from rocekit.explanation.topology import HostLink, Topology, arrange, topology
from rocekit.report.topology import dot
from rocekit.track.connections import Connection

Way = tuple[int, int, int, int]
"""(host, host, bytes there, bytes back)."""

FIGURES = ("pair", "ring", "mesh", "star", "tree")


def figure(shape: str, n: int, byte: int = 1000) -> list[Way]:
    """The links of a shape over hosts 0 … n−1; a ring's data goes round from 0 to 1."""
    if shape == "pair":
        return [(0, 1, byte, byte)]
    if shape == "ring":
        return [(i, (i + 1) % n, byte, 0) for i in range(n)]
    if shape == "mesh":
        return [(a, b, byte, byte) for a, b in combinations(range(n), 2)]
    if shape == "star":
        return [(0, i, byte, byte) for i in range(1, n)]
    # A line has no hub as soon as it has four hosts.
    return [(i, i + 1, byte, byte) for i in range(n - 1)]


def laid_out(ways: Iterable[Way], names: Sequence[str], qpn: int = 0x10) -> Topology:
    """What topology makes of these links, as connections in the order given."""
    connections, seen = [], {}
    for number, (a, b, there, back) in enumerate(ways):
        qa, qb = qpn + 2 * number, qpn + 2 * number + 1
        connections.append(Connection(number, "RC", [names[a], names[b]], [qa, qb]))
        seen[names[a], names[b], qb] = (there, 1)
        seen[names[b], names[a], qa] = (back, 1)
    return arrange(connections, seen)


def named(n: int, draw: random.Random) -> list[str]:
    """Addresses, some of them IPv6, in no order."""
    v4 = [f"10.{draw.randrange(256)}.{i}.{draw.randrange(1, 255)}" for i in range(n)]
    return [
        f"fd00::{i}:{draw.randrange(1, 9999):x}" if draw.random() < 0.3 else ip for i, ip in enumerate(v4)
    ]


sizes = {"pair": st.just(2), "ring": st.integers(3, 12), "mesh": st.integers(3, 9)}
figures = st.sampled_from(FIGURES).flatmap(
    lambda shape: st.tuples(
        st.just(shape), sizes.get(shape, st.integers(4, 12)), st.randoms(use_true_random=False)
    )
)


@given(figures)
def test_a_shape_is_known_whatever_the_hosts_are_called_and_whoever_came_first(
    drawn: tuple[str, int, random.Random],
) -> None:
    shape, n, draw = drawn
    names = named(n, draw)
    ways = figure(shape, n)
    draw.shuffle(ways)
    ways = [(b, a, back, there) if draw.random() < 0.5 else (a, b, there, back) for a, b, there, back in ways]
    found = laid_out(ways, names)
    assert found.shape == shape
    assert set(found.hosts) == set(names)
    assert len(found.links) == len(ways)
    assert found.qps == 2 * len(ways)


@given(st.integers(3, 12), st.randoms(use_true_random=False))
def test_the_order_of_a_ring_is_the_way_its_data_goes(n: int, draw: random.Random) -> None:
    names = named(n, draw)
    ways = figure("ring", n)
    draw.shuffle(ways)
    (group,) = laid_out(ways, names).groups
    assert group.one_way
    start = group.hosts.index(names[0])
    assert (*group.hosts[start:], *group.hosts[:start]) == tuple(names)


@given(figures, st.randoms(use_true_random=False))
def test_what_is_drawn_does_not_depend_on_the_order_of_the_connections(
    drawn: tuple[str, int, random.Random], draw: random.Random
) -> None:
    shape, n, names_from = drawn
    names = named(n, names_from)
    connections, seen = [], {}
    for number, (a, b, there, back) in enumerate(figure(shape, n)):
        connections.append(Connection(number, "RC", [names[a], names[b]], [number, number + 100]))
        seen[names[a], names[b], number + 100] = (there + number, 1)
        seen[names[b], names[a], number] = (back, 1)
    before = arrange(connections, seen)
    draw.shuffle(connections)
    assert arrange(connections, seen) == before


@given(figures)
def test_what_a_host_sent_is_what_it_sent_to_each(drawn: tuple[str, int, random.Random]) -> None:
    shape, n, draw = drawn
    ways = [(a, b, draw.randrange(99), draw.randrange(99)) for a, b, _, _ in figure(shape, n)]
    found = laid_out([*ways, (0, 0, 3, 4)], named(n, draw))
    told = {host["ip"]: (host["bytes_sent"], host["bytes_received"]) for host in found.to_dict()["hosts"]}
    assert told == {
        host: (
            sum(found.sent(host, peer) for peer in found.hosts),
            sum(found.sent(peer, host) for peer in found.hosts),
        )
        for host in found.hosts
    }


def test_thousands_of_hosts_are_added_up_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host asked every other one, and each question went over all links: of 1,000 hosts for minutes."""
    names = [f"10.{n >> 8}.{n & 255}.1" for n in range(5_000)]
    star, pairs = (
        laid_out(figure("star", 2_500), names),
        laid_out([(n, n + 1, 1, 1) for n in range(0, 5_000, 2)], names),
    )
    asked = 0

    def of(link: HostLink) -> tuple[int, int]:
        nonlocal asked
        asked += 1
        return (1, 0)

    monkeypatch.setattr(HostLink, "bytes", property(of))
    for found in (star, pairs):
        asked = 0
        found.to_dict()
        dot(found, every=True)
        assert asked < 10 * len(found.links)


def test_one_link_more_or_less_is_another_shape() -> None:
    names = [f"10.0.0.{i}" for i in range(1, 7)]
    ring = figure("ring", 6)
    assert laid_out(ring[:-1], names).shape == "tree"
    assert laid_out([*ring, (0, 3, 1, 1)], names).shape == "other"
    mesh = figure("mesh", 6)
    assert laid_out(mesh[1:], names).shape == "other"
    assert laid_out([*figure("star", 6), (4, 5, 1, 1)], names).shape == "other"


def test_three_hosts_are_a_ring_when_the_data_goes_round_and_a_mesh_when_not() -> None:
    names = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    round_it = [(0, 1, 1000, 32), (1, 2, 1000, 32), (2, 0, 1000, 32)]
    assert laid_out(round_it, names).shape == "ring"
    assert laid_out([(0, 1, 1000, 32), (1, 2, 1000, 32), (0, 2, 1000, 32)], names).shape == "mesh"
    assert laid_out([(0, 1, 1000, 900), (1, 2, 1000, 900), (2, 0, 1000, 900)], names).shape == "mesh"
    assert laid_out([(0, 1, 0, 0), (1, 2, 0, 0), (2, 0, 0, 0)], names).shape == "mesh"


def test_hosts_that_do_not_reach_each_other_are_groups_of_their_own() -> None:
    names = [f"10.0.0.{i}" for i in range(1, 9)]
    far = [(a + 4, b + 4, there, back) for a, b, there, back in figure("star", 4)]
    found = laid_out([*figure("mesh", 4), *far], names)
    assert [group.shape for group in found.groups] == ["mesh", "star"]
    assert found.groups[1].hosts[0] == "10.0.0.5"
    assert found.shape == "other"


def test_a_link_s_load_is_against_the_mean_link() -> None:
    names = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    found = laid_out([(0, 1, 900, 0), (1, 2, 150, 150)], names)
    assert [link.load for link in found.links] == [1.5, 0.5]
    assert [link.imbalance for link in found.links] == [1.0, 0.0]
    assert found.imbalance == 1.5


def test_a_qpn_used_again_counts_its_bytes_once() -> None:
    first, second = (Connection(i, "RC", ["10.0.0.1", "10.0.0.2"], [17, 18]) for i in range(2))
    found = arrange([first, second], {("10.0.0.1", "10.0.0.2", 18): (500, 3)})
    (link,) = found.links
    assert link.bytes == (500, 0)
    assert link.qps[0].connections == (0, 1)


def test_one_qp_that_talks_to_many_is_one_qp() -> None:
    hub = [Connection(i, "UD", ["10.0.0.1", f"10.0.0.{i + 2}"], [17, 18]) for i in range(4)]
    found = arrange(hub, {})
    assert found.shape == "star"
    assert found.qps == 5


# ---------------------------------------------------------------------- from captures


def conversation(*ways: tuple[str, str, int, int]) -> list[Frame]:
    """WRITEs of so many packets there and back between two addresses, each acknowledged."""
    frames: list[Frame] = []
    for number, (a, b, there, back) in enumerate(ways):
        talk = Talk(a=a, b=b, qa=0x20 + 2 * number, qb=0x21 + 2 * number)
        for by, peer, packets in (("a", "b", there), ("b", "a", back)):
            for psn in range(packets):
                talk.write(psn, by=by)
                talk.ack(psn, by=peer)
        frames += talk.frames
    return sorted(frames, key=lambda frame: frame.time_ns)


def captured(folder: Path, *ways: tuple[str, str, int, int]) -> Path:
    path = folder / "x.pcap"
    path.write_bytes(pcap(conversation(*ways), unit="ns"))
    return path


def test_bytes_are_what_went_over_each_link_each_way(tmp_path: Path) -> None:
    path = captured(tmp_path, ("10.0.0.9", "10.0.0.1", 3, 1), ("10.0.0.1", "10.0.0.5", 2, 2))
    found = topology(rocekit.analyze(path))
    by_hosts = {(link.a, link.b): link.bytes for link in found.links}
    assert by_hosts == {("10.0.0.1", "10.0.0.9"): (1024, 3072), ("10.0.0.1", "10.0.0.5"): (2048, 2048)}
    assert found.sent("10.0.0.9", "10.0.0.1") == 3072
    assert found.sent("10.0.0.9", "10.0.0.5") == 0


def test_what_a_read_brings_goes_from_the_responder_to_the_requester(tmp_path: Path) -> None:
    talk = Talk(a="10.0.0.1", b="10.0.0.2")
    talk.read(7, 4)
    talk.responses(7, 4)
    path = tmp_path / "read.pcap"
    path.write_bytes(pcap(talk.frames, unit="ns"))
    (link,) = topology(rocekit.analyze(path)).links
    assert link.bytes == (0, 4096)
    assert link.to == "10.0.0.1"


def run(*words: object, status: int = 0) -> str:
    done = CliRunner().invoke(cli.rocekit, ["topology", *map(str, words)])
    assert done.exit_code == status, done.output
    return done.output


def test_the_command_names_the_shape_and_lists_the_links(tmp_path: Path) -> None:
    ring = [(f"10.0.0.{a}", f"10.0.0.{b}", 4, 0) for a, b in ((1, 3), (3, 2), (2, 4), (4, 1))]
    path = captured(tmp_path, *ring)
    printed = run(path)
    assert "ring of 4: 10.0.0.1 → 10.0.0.3 → 10.0.0.2 → 10.0.0.4 → 10.0.0.1, data goes this way" in printed
    assert "4 hosts, 4 links, 8 QPs, 16.0 KiB" in printed
    document = json.loads(run(path, "--format", "json"))
    assert document["schema"] == "rocekit/1"
    assert document["shape"] == "ring"
    assert document["groups"][0]["hosts"] == ["10.0.0.1", "10.0.0.3", "10.0.0.2", "10.0.0.4"]
    assert {link["load"] for link in document["links"]} == {1.0}
    assert sum(host["bytes_sent"] for host in document["hosts"]) == 16 * 1024


def test_the_docs_name_every_key(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "formats.md").read_text()
    section = page.partition("## topology, as JSON\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", section))
    path = captured(tmp_path, ("10.0.0.1", "10.0.0.2", 4, 0))
    document = json.loads(run(path, "--format", "json"))
    keys: set[str] = set(document)
    for part in (document["groups"], document["hosts"], document["links"], document["links"][0]["qps"]):
        keys |= set(part[0])
    assert keys <= named


@pytest.mark.parametrize("more", [(), ("--qps",)])
def test_the_graph_is_one_that_graphviz_draws(tmp_path: Path, more: tuple[str, ...]) -> None:
    if shutil.which("dot") is None:
        pytest.skip("no dot (apt-get install graphviz)")
    path = captured(tmp_path, ("10.0.0.1", "10.0.0.2", 4, 0), ("fd00::1", "fd00::3", 1, 1))
    drawn = run(path, "--format", "dot", *more)
    done = subprocess.run(
        ["dot", "-Tplain"], input=drawn, capture_output=True, text=True, timeout=240, check=True
    )
    edges = [line.split() for line in done.stdout.splitlines() if line.startswith("edge ")]
    # What one side only acknowledged still went that way.
    assert len(edges) == 4
    assert not done.stderr


def test_a_capture_without_connections_says_so(tmp_path: Path) -> None:
    path = tmp_path / "empty.pcap"
    path.write_bytes(pcap([], unit="ns"))
    assert run(path).startswith(f"{path}: No RoCE v2 packets: nothing to judge.\n")
    assert json.loads(run(path, "--format", "json"))["shape"] is None


# ---------------------------------------------------------------------- captures that others made

RING = ("172.30.0.11", "172.30.0.12", "172.30.0.25")


def test_nccl_s_ring_is_a_ring_in_the_order_of_its_hosts(others: Path) -> None:
    found = topology(rocekit.analyze(*(others / f"nccl_ring_node{i}.pcap" for i in range(3))))
    (group,) = found.groups
    assert (group.shape, group.hosts, group.one_way) == ("ring", RING, True)
    assert found.qps == 6
    # 32 KiB and a few messages of one byte one way, credits of 64 bytes the other.
    assert all(min(link.bytes) == 1024 and 0 <= max(link.bytes) - 32768 <= 2 for link in found.links)
    assert found.imbalance == pytest.approx(1.0, abs=0.001)


@pytest.mark.parametrize("node", range(3))
def test_one_host_of_nccl_s_ring_sees_the_data_pass(others: Path, node: int) -> None:
    found = topology(rocekit.analyze(others / f"nccl_ring_node{node}.pcap"))
    (group,) = found.groups
    assert group.shape == "star"
    assert group.passes is not None
    before, through, after = group.passes
    assert through == group.hosts[0]
    ring = (*RING, *RING)
    at = ring.index(before)
    assert ring[at : at + 3] == (before, through, after)


# ---------------------------------------------------------------------- captures of this project


@pytest.mark.parametrize(("stem", "shape", "qps"), [("mesh-soft", "mesh", 12), ("ring-soft", "ring", 8)])
def test_what_mesh_and_ring_left_in_pcaps_are_so(pcaps: Path, stem: str, shape: str, qps: int) -> None:
    found = topology(rocekit.analyze(pcaps / f"{stem}.pcapng"))
    assert (found.shape, found.qps) == (shape, qps)
    assert found.hosts == tuple(f"10.9.0.{i}" for i in range(1, 5))


def test_two_rxe_devices_are_a_pair(pcaps: Path) -> None:
    found = topology(rocekit.analyze(pcaps / "ib_write_bw-4qp-loss.pcap"))
    assert (found.shape, found.qps) == ("pair", 8)
