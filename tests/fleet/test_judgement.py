"""Faulty hosts are found, and no host is blamed for what another one loses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fleet_captures import HALF_WAY_NS, Fleet
from fleet_lake import FLEET, contents, made

import rocekit
from rocekit.fleet.judgement import FROM, TO, FleetVerdict, Way, judge
from rocekit.fleet.lake import Lake
from rocekit.fleet.query import connect, dicts
from rocekit.fleet.witnesses import find_conversations

Losses = dict[tuple[int, int], int]


def verdict(losses: Losses, hosts: int = 40, peers: int = 4, packets: int = 50_000) -> FleetVerdict:
    """The verdict on a ring in which each host talks to the next ``peers``, with these losses."""
    links = [(a, (a + step) % hosts) for a in range(hosts) for step in range(1, peers + 1)]
    both = [*links, *((b, a) for a, b in links)]
    return judge(Way(str(a), str(b), packets, losses.get((a, b), 0)) for a, b in both)


def to(host: int, lost: int, hosts: int = 40, peers: int = 4) -> Losses:
    """Losses of what arrives at a host."""
    around = [(host + step) % hosts for step in range(-peers, peers + 1) if step]
    return {(peer, host): lost for peer in around}


def suspects(found: FleetVerdict) -> set[tuple[str, str]]:
    return {(s.host, s.way) for s in found.suspects}


def test_a_host_that_loses_what_arrives_is_found_and_its_peers_are_not_blamed() -> None:
    found = verdict(to(7, 50))
    assert suspects(found) == {("7", TO)}
    assert found.open == []
    (suspect,) = found.suspects
    assert (suspect.peers, suspect.lossy, suspect.lost) == (8, 8, 400)
    assert "probably" in suspect.words


def test_a_host_that_loses_what_it_sends_is_found() -> None:
    found = verdict({(src, dst): n for (dst, src), n in to(7, 50).items()})
    assert suspects(found) == {("7", FROM)}


def test_a_clean_host_between_two_faulty_ones_is_not_blamed() -> None:
    found = verdict(to(7, 50) | to(9, 30), peers=2)
    assert suspects(found) == {("7", TO), ("9", TO)}
    assert found.open == []


def test_a_pair_of_hosts_alone_blames_neither_of_them() -> None:
    found = verdict({(3, 4): 500})
    assert found.suspects == []
    assert [(w.src, w.dst, w.lost) for w in found.open] == [("3", "4", 500)]
    assert verdict({(3, 4): 500, (5, 4): 0}).suspects == []


def test_losses_all_over_the_fleet_blame_nobody() -> None:
    everywhere = {(a, b): 5 + (a * 7 + b * 3) % 5 for a in range(40) for b in range(40)}
    assert verdict(everywhere) == FleetVerdict([], [])
    some = {(a, b): 1 for a in range(40) for b in range(40) if (a * 5 + b * 3) % 4 == 0}
    assert verdict(some).suspects == []


def test_a_host_that_loses_far_more_than_a_lossy_fleet_is_found() -> None:
    everywhere = {(a, b): 5 + (a * 7 + b * 3) % 5 for a in range(40) for b in range(40)}
    assert suspects(verdict(everywhere | to(7, 400))) == {("7", TO)}


def test_a_host_with_one_bad_peer_and_single_losses_elsewhere_is_not_blamed() -> None:
    some = {(a, b): 1 for a in range(40) for b in range(40) if (a + b) % 3 == 0}
    found = verdict(some | {(8, 7): 900})
    assert found.suspects == []
    assert [(w.src, w.dst) for w in found.open] == [("8", "7")]


def test_two_hosts_alone_in_a_capture_cannot_be_told_apart() -> None:
    found = judge([Way("a", "b", 1000, 50), Way("b", "a", 1000, 0)])
    assert found.suspects == []
    assert len(found.open) == 1


@pytest.mark.parametrize("faulty", [frozenset({3, 11, 12}), frozenset[int]()])
def test_of_a_fleet_all_faulty_hosts_are_found_and_no_others(faulty: frozenset[int], tmp_path: Path) -> None:
    fleet = Fleet(24, faulty, packets=2400)
    folder = tmp_path / "captures"
    folder.mkdir()
    fleet.write(folder)
    lake = made(tmp_path / "lake", folder)
    rows = dicts(connect(Lake(lake)), "SELECT host, way FROM hosts ORDER BY host")
    assert {(row["host"], row["way"]) for row in rows} == {(fleet.addresses[n], TO) for n in faulty}
    assert dicts(connect(Lake(lake)), "SELECT * FROM links") == []


def test_captures_of_the_same_traffic_are_found_and_their_clocks_aligned(lake: Path) -> None:
    """Nobody named them together; host ``n``'s clock is n × 1,000,003 ns ahead."""
    rows = dicts(connect(Lake(lake)), "SELECT * FROM matches ORDER BY point, other_point")
    seen = {(row["point"], row["other_point"]) for row in rows}
    pairs = [sorted(link) for link in FLEET.links if 7 in link]
    assert seen == {(f"host{a:04}", f"host{b:04}") for a, b in pairs}
    for row in rows:
        ahead = (int(row["other_point"][4:]) - int(row["point"][4:])) * 1_000_003
        assert row["bound_ns"] is not None
        assert abs(row["offset_ns"] - ahead) <= row["bound_ns"] <= 2 * HALF_WAY_NS
        assert row["error"] is None


def test_what_is_missing_between_two_points_is_what_analyze_says(lake: Path) -> None:
    rows = dicts(connect(Lake(lake)), "SELECT * FROM paths ORDER BY src, dst")
    assert {row["order_by"] for row in rows} == {"delays"}
    captures = dicts(connect(Lake(lake)), "SELECT capture, source FROM captures")
    sources = {row["capture"]: row["source"] for row in captures}
    faulty = FLEET.addresses[7]
    assert sum(row["missing"] for row in rows) > 0
    for row in rows:
        assert row["missing"] == 0 or row["dst"] == faulty
        both = rocekit.analyze(*sorted((sources[row["capture"]], sources[row["other"]])))
        assert both.capture.paths is not None
        (path,) = (p for p in both.capture.paths.every if (p.src, p.dst) == (row["src"], row["dst"]))
        assert (path.packets, path.missing) == (row["packets"], row["missing"])
    placed = dicts(connect(Lake(lake)), "SELECT title FROM placed_findings WHERE rule = 'loss'")
    assert placed
    assert all(re.search(r"; lost .*between host\d+.pcap and host\d+.pcap", row["title"]) for row in placed)


def test_a_loss_counts_once_though_several_captures_show_it(lake: Path) -> None:
    faulty = FLEET.addresses[7]
    connection = connect(Lake(lake))
    (own,) = dicts(connection, "SELECT sum(missing) AS n FROM paths")
    (ways,) = dicts(connection, f"SELECT sum(lost_packets) AS n FROM ways WHERE dst = '{faulty}'")
    (seen,) = dicts(connection, "SELECT sum(lost_packets) AS n FROM troubles")
    assert ways["n"] == own["n"]
    assert seen["n"] > own["n"]


def test_a_conversation_that_is_analysed_is_not_analysed_again(lake: Path) -> None:
    before = contents(lake)
    folders = {path.name for path in (lake / "pairs").iterdir()}
    assert {one.folder for one in find_conversations(Lake(lake))} == folders
    assert contents(lake) == before
