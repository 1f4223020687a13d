"""Parts of a large capture: each packet is in one, with all others between its two hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from mixed_capture import ONE_WAY, SOURCES, mixed

import rocekit
from rocekit.cli import rocekit as cli
from rocekit.errors import CaptureError
from rocekit.files.joined import is_part, split_part, whole_name
from rocekit.files.reader import open_capture
from rocekit.packets import Packets
from rocekit.packets.decoder import Decoder

PARTS = 3


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mixed(tmp_path_factory.mktemp("parts") / "mixed.pcap")


def parts_of(capture: Path, of: int = PARTS) -> list[str]:
    return [f"part:{number}/{of}:{capture}" for number in range(1, of + 1)]


def ends_of(name: str) -> set[tuple[str | None, str | None]]:
    """The pairs of hosts in a capture."""
    return {(c.ips[0], c.ips[1]) for c in rocekit.analyze(name).connections}


def packets_of(name: str | Path, batch_frames: int = 100) -> tuple[Packets, Decoder]:
    decoder = Decoder()
    with open_capture(name, batch_frames=batch_frames) as reader:
        found = Packets.concat([p for batch in reader if len(p := decoder.decode(batch))])
    return found, decoder


@pytest.mark.parametrize("batch_frames", [100, 65536])
def test_each_packet_is_in_one_part_with_the_frame_and_the_fields_it_has(
    capture: Path, batch_frames: int
) -> None:
    whole, decoder = packets_of(capture)
    seen: list[int] = []
    for name in parts_of(capture):
        part, own = packets_of(name, batch_frames)
        seen += part.frame.tolist()
        same = whole.where(np.isin(whole.frame, part.frame))
        assert list(part.rows()) == list(same.rows())
        assert own.counts.roce_packets == len(part)
        assert own.counts.frames == len(part) + own.counts.non_roce
        for field in ("truncated_packets", "malformed_packets", "bad_icrc", "unchecked_icrc"):
            assert getattr(own.counts, field) <= getattr(decoder.counts, field)
    assert sorted(seen) == sorted(whole.frame.tolist())


def test_counts_of_the_parts_add_up(capture: Path) -> None:
    _, decoder = packets_of(capture)
    parts = [packets_of(name)[1].counts for name in parts_of(capture)]
    for field in ("roce_packets", "bad_icrc", "unchecked_icrc", "malformed_packets", "truncated_packets"):
        assert sum(getattr(part, field) for part in parts) == getattr(decoder.counts, field), field
    assert {part.non_roce for part in parts} == {decoder.counts.non_roce} == {1}


def test_all_packets_of_two_hosts_are_in_one_part(capture: Path) -> None:
    homes: dict[frozenset[str], set[str]] = {}
    for name in parts_of(capture):
        part, decoder = packets_of(name)
        for src, dst in zip(part.src.tolist(), part.dst.tolist(), strict=True):
            pair = frozenset((decoder.addresses[src], decoder.addresses[dst]))
            homes.setdefault(pair, set()).add(name)
    assert set(homes) == {frozenset(hosts) for hosts in SOURCES.values()}
    assert all(len(names) == 1 for names in homes.values())
    assert len({name for names in homes.values() for name in names}) == PARTS  # in turn, so none is empty


def test_connections_of_the_parts_are_those_of_the_whole(capture: Path) -> None:
    def told(name: str | Path) -> list[tuple[Any, ...]]:
        one = rocekit.analyze(name)
        return [
            (
                tuple(c.ips),
                tuple(c.qpns),
                c.paired_by,
                c.packets,
                c.transfers,
                c.retransmitted_packets,
                c.naks,
                c.rnr_naks,
            )
            for c in one.connections
        ]

    def key(row: tuple[Any, ...]) -> str:
        return repr(row)

    whole = told(capture)
    assert sorted((row for name in parts_of(capture) for row in told(name)), key=key) == sorted(
        whole, key=key
    )
    assert ("cm" in {row[2] for row in whole}, len(whole) > PARTS) == (True, True)
    (one_way,) = (row for row in whole if row[0] == SOURCES[ONE_WAY])
    assert None in one_way[1]  # nothing reveals the QPN of who was not seen answering


def test_messages_of_the_connection_manager_are_in_the_part_of_their_connection(capture: Path) -> None:
    def told(name: str | Path) -> list[tuple[int, str, list[str]]]:
        found = rocekit.analyze(name)
        places = [
            None if (n := r.to_dict()["connection"]) is None else found.connections[n].ips for r in found.cm
        ]
        return [
            (r.frame, r.to_dict()["message"], sorted(str(ip) for ip in ips or ()))
            for r, ips in zip(found.cm, places, strict=True)
        ]

    whole = told(capture)
    assert len(whole) > 3
    assert any(hosts for *_, hosts in whole)
    assert sorted(row for name in parts_of(capture) for row in told(name)) == sorted(whole)


@pytest.mark.parametrize(
    "command", [["analyze"], ["explain"], ["stats"], ["topology"], ["decode"], ["check"]], ids=" ".join
)
def test_a_command_takes_a_part(capture: Path, command: list[str]) -> None:
    hosts = SOURCES["rping-clean"]
    (name,) = (n for n in parts_of(capture) if hosts in ends_of(n))
    result = CliRunner().invoke(cli, [*command, name])
    assert result.exit_code in (0, 1), result.output
    assert any(ip in result.output for ends in ends_of(name) for ip in ends if ip is not None)
    elsewhere = set(SOURCES.values()) - ends_of(name)
    assert elsewhere
    assert not [ip for ends in elsewhere for ip in ends if ip in result.output]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("part:0/4:{}", "there is no part 0 of 4"),
        ("part:5/4:{}", "there is no part 5 of 4"),
        ("part:1/2:{}x", "no such file"),
    ],
)
def test_a_part_that_is_not_there_is_one_line(capture: Path, name: str, words: str) -> None:
    result = CliRunner().invoke(cli, ["analyze", name.format(capture)])
    assert result.exit_code == 1
    assert words in result.output
    assert result.output.count("\n") == 1


def test_names_of_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert split_part("part:2/4:s3://bucket/x.pcap") == ((2, 4), "s3://bucket/x.pcap")
    assert whole_name("part:2/4:rotated:x.pcap..x.pcap3") == "rotated:x.pcap..x.pcap3"
    assert whole_name("x.pcap") == "x.pcap"
    assert not is_part("part:2/4:")
    assert not is_part("part:x/4:y")
    with pytest.raises(CaptureError):
        split_part("part:x/4:y")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "part:2").mkdir()
    (tmp_path / "part:2" / "4:y").touch()
    assert not is_part("part:2/4:y")  # a file has this name
