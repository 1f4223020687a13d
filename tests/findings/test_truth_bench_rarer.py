"""The truth bench on marks and on the connection manager: its readers and judgements, on packets made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from capture_bytes import Frame, pcap
from talk import MS, A, B, Talk
from truth_bench.cm import Exchanges
from truth_bench.drawn import experiment_of
from truth_bench.experiments import EXPERIMENTS
from truth_bench.mixed import KINDS as MIXED_KINDS
from truth_bench.mixed import MIXED
from truth_bench.neighbours import make
from truth_bench.packets import read
from truth_bench.rarer import KINDS, RARER
from truth_bench.sets import Wire
from truth_bench.unusual import ALL, UNUSUAL

from rocekit.wire.build import build_frame


def write(folder: Path, name: str, frames: list[Frame]) -> Path:
    path = folder / name
    path.write_bytes(pcap(frames, unit="ns"))
    return path


def test_a_packet_that_was_marked_on_its_way_is_the_same(tmp_path: Path) -> None:
    sent, marked = (
        build_frame(
            "RC_SEND_ONLY", src=A, dst=B, dest_qpn=17, psn=1, payload=b"1234", ecn=ecn, identification=7
        )
        for ecn in (2, 3)
    )
    spoilt = bytearray(marked)
    spoilt[25] ^= 1  # its IPv4 checksum: no router made this mark
    va = read(write(tmp_path, "va.pcap", [Frame(sent, 1000)]))
    for arrived, missing, count in ((marked, 0, 1), (bytes(spoilt), 1, 0)):
        path = Wire((A, B), va, read(write(tmp_path, "vb.pcap", [Frame(arrived, 2000)]))).paths[A, B]
        assert (path.missing, path.marked) == (missing, count)


FINDING: dict[str, Any] = {"rule": "cm-unanswered", "frames": [1], "evidence": {}}


@pytest.mark.parametrize(
    ("title", "where", "wrong"),
    [
        ("10.9.0.2 did not answer 10.9.0.1's REQ", "between", True),
        ("The capture has no answer from 10.9.0.2 to 10.9.0.1's REQ", "between", False),
        ("10.9.0.2's answer to 10.9.0.1's REQ came only after it was sent 2 times", "between", True),
    ],
)
def test_what_is_said_of_a_req_is_judged_by_the_other_capture(
    title: str, where: str, wrong: bool, tmp_path: Path
) -> None:
    """The REP was sent, and lost between the captures."""
    talk = Talk()
    talk.request()
    talk.wait(MS)
    talk.reply()
    write(tmp_path, "va.pcap", talk.frames[:1])
    write(tmp_path, "vb.pcap", talk.frames)
    hosts = {"a": {"ip": A}, "b": {"ip": B}}
    faults = [{"where": where, "sender": "b", "of": "cm-rep", "counters": {"drops": 1}}]
    exchanges = Exchanges(tmp_path, {"hosts": hosts, "faults": faults})
    said = exchanges.contradiction(FINDING | {"title": title}, ("va",))
    assert bool(said) == wrong


def test_each_experiment_has_a_name_of_its_own() -> None:
    assert len(RARER) == sum(map(len, KINDS.values()))
    assert len(MIXED) == sum(map(len, MIXED_KINDS.values()))
    assert len(ALL) == len(EXPERIMENTS) + len(UNUSUAL)


def test_a_part_of_a_capture_keeps_the_numbers_that_the_truth_names(tmp_path: Path) -> None:
    """Of each frame that a neighbour has it is said which one of the source it is."""
    talk = Talk()
    for psn in range(10):
        talk.send(psn)
    write(tmp_path, "vb.pcap", talk.frames)
    numbers = make("began-later", tmp_path / "vb.pcap", tmp_path / "made.pcap")
    assert numbers == list(range(5, 11))
    assert [p.psn for p in read(tmp_path / "made.pcap")] == list(range(4, 10))
    assert make("ended-sooner", tmp_path / "vb.pcap", tmp_path / "made.pcap") == list(range(1, 8))
    assert [p.psn for p in read(tmp_path / "made.pcap")] == list(range(7))


@pytest.mark.parametrize("kind", ["doubled", "routed", "by-queues", "gathered", "taps-apart"])
def test_a_neighbour_in_another_order_says_which_frame_is_which(kind: str, tmp_path: Path) -> None:
    talk = Talk()
    for psn in range(40):
        talk.send(psn)
        talk.ack(psn)
    source = write(tmp_path, "va.pcap", talk.frames)
    numbers = make(kind, source, tmp_path / "made.pcap")
    packets, made = read(source), read(tmp_path / "made.pcap")
    twice = kind in ("doubled", "routed")
    assert sorted(numbers) == sorted(list(range(1, 81)) * (2 if twice else 1))
    for number, packet in zip(numbers, made, strict=True):
        known = packets[number - 1]
        assert (packet.src, packet.opcode, packet.psn) == (known.src, known.opcode, known.psn)


def test_a_cnp_is_a_packet_of_its_direction_and_no_request(tmp_path: Path) -> None:
    talk = Talk()
    talk.send(1)
    talk.packet("CNP", 0, by="b")
    paths = [write(tmp_path, f"{name}.pcap", talk.frames) for name in ("va", "vb")]
    wire = Wire((A, B), *(read(path) for path in paths))
    assert [len(path.sent) for path in wire.paths.values()] == [1, 1]
    assert [side.src for side in wire.sides] == [A]


def test_a_seed_draws_the_same_experiment_each_time() -> None:
    drawn = [experiment_of(f"drawn-{seed}") for seed in range(300)]
    assert drawn == [experiment_of(each.name) for each in drawn]
    assert len({(each.client, each.faults) for each in drawn}) > 250
    for each in drawn:
        places = [(fault.where, fault.sender) for fault in each.faults]
        assert 1 <= len(places) == len(set(places)) <= 3
    assert {fault.where for each in drawn for fault in each.faults} == {"before", "between", "behind"}
    assert {fault.of for each in drawn for fault in each.faults} >= {"all", "acks", "read-requests"}


def test_no_other_name_is_an_experiment() -> None:
    assert experiment_of("write-clean") is EXPERIMENTS["write-clean"]
    for name in ("drawn-", "drawn-x", "drawn--1", "no-such"):
        with pytest.raises(KeyError):
            experiment_of(name)
