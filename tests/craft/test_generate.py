"""Synthetic traffic is what it says it is: ICRCs hold, and an analysis finds the messages and losses made."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from rocekit import analyze
from rocekit.capture import open_capture
from rocekit.cli import rocekit as cli
from rocekit.craft.generate import OPERATIONS, Traffic, generate
from rocekit.craft.traffic_columns import Messages, qpn
from rocekit.craft.traffic_frames import host
from rocekit.craft.traffic_rounds import rounds
from rocekit.decode import ICRC_VALID, Decoder, Packets
from rocekit.errors import CaptureError
from rocekit.journal import JournalWriter, read_journal
from rocekit.track.transfers import Transfer
from rocekit.wire.icrc import icrc

MIXED = Traffic(
    packets=4000,
    operations=OPERATIONS,
    sizes=(0, 64, 777, 5000, 16384),
    pairs=5,
    hosts=4,
    loss=0.02,
    ecn=0.02,
    seed=3,
)
KINDS = {
    "plain": Traffic(packets=2000, pairs=3),
    "mixed": MIXED,
    "ipv6 in a VLAN": Traffic(packets=2000, operations=("READ",), ip_version=6, vlan=7, loss=0.03, seed=1),
    "one way, large packets": Traffic(
        packets=1000, operations=("SEND",), sizes=(9000,), mtu=4096, both_directions=False, loss=0.05
    ),
}


@pytest.fixture(params=KINDS, ids=list(KINDS))
def traffic(request: pytest.FixtureRequest) -> Traffic:
    return KINDS[request.param]


def _frames(path: Path) -> list[bytes]:
    with open_capture(path) as reader:
        return [frame for batch in reader for frame in batch.frames()]


def _decoded(path: Path) -> Packets:
    decoder = Decoder()
    with open_capture(path) as reader:
        return Packets.concat([decoder.decode(batch) for batch in reader])


@pytest.mark.parametrize("ext", ["pcap", "pcapng"])
def test_every_icrc_holds_by_its_definition(traffic: Traffic, ext: str, tmp_path: Path) -> None:
    path = tmp_path / f"x.{ext}"
    done = generate(path, traffic)
    frames = _frames(path)
    assert len(frames) == done.packets >= traffic.packets
    link = 14 if traffic.vlan is None else 18
    ip = 20 if traffic.ip_version == 4 else 40
    for frame in frames:
        assert icrc(frame[link:-4], ip).to_bytes(4, "little") == frame[-4:]
    packets = _decoded(path)
    assert (packets.icrc_state == ICRC_VALID).all()
    assert not packets.malformed.any()
    assert (np.diff(packets.time_ns) >= 0).all()
    assert (packets.vlan == (-1 if traffic.vlan is None else traffic.vlan)).all()


def _made(traffic: Traffic) -> list[tuple[object, ...]]:
    """Every message as an analysis should tell it."""
    told = []
    for made in rounds(traffic):
        m: Messages = made.messages
        pair, side = (m.stream >> 1, m.stream & 1) if traffic.both_directions else (m.stream, 0 * m.stream)
        first = pair % (traffic.hosts // 2) * 2
        asks = qpn(pair, side != 0, traffic.pairs)
        for i in range(len(m)):
            told.append(
                (
                    host(int(first[i] + side[i]), traffic.ip_version),
                    int(asks[i]),
                    int(m.first_psn[i]),
                    OPERATIONS[m.operation[i]],
                    int(m.size[i]),
                    int(m.span[i]),
                    int(m.retransmitted[i]),
                    int(m.naks[i]),
                )
            )
    return sorted(told)


def _found(transfer: Transfer) -> tuple[object, ...]:
    d = transfer.to_dict()
    requester = d["requester"]
    return (
        requester["ip"], requester["qpn"], d["first_psn"], d["operation"], d["bytes"], d["packets"],
        d["retransmitted_packets"], d["naks"],
    )  # fmt: skip


def test_the_analysis_finds_exactly_what_was_made(traffic: Traffic, tmp_path: Path) -> None:
    path = tmp_path / "x.pcap"
    done = generate(path, traffic)
    analysis = analyze(path)
    made = _made(traffic)
    known = [_found(t) for t in analysis.transfers]
    assert sorted(known, key=repr) == sorted(made, key=repr)
    assert {t.status for t in analysis.transfers} == {"acked"}
    assert len(made) == done.messages
    assert sum(c.ce_marked for c in analysis.connections) == done.marked
    assert sum(c.cnps for c in analysis.connections) == done.cnps
    pairs = {
        stream >> traffic.both_directions for r in rounds(traffic) for stream in r.messages.stream.tolist()
    }
    assert len(analysis.connections) == len(pairs)


def _score(path: Path) -> None:
    """Hold an analysis of a capture to the journal beside it, which it does not read."""
    truth = [event.to_dict() for event in read_journal(path.with_suffix(".journal.jsonl")).events]
    document = analyze(path, journals=[]).to_dict()
    connections = document["connections"]
    ends = {(c[side]["ip"], c[side]["qpn"]): c["id"] for c in connections for side in "ab"}
    of_qpn = {qpn: connection for (_, qpn), connection in ends.items()}

    lost = [e for e in truth if e["event"] == "packet_lost"]
    before = {(ends[e["remote_ip"], e["dest_qpn"]], e["psn"]) for e in lost if not e["captured"]}
    found = set()
    for finding in (f for f in document["findings"] if f["rule"] == "loss"):
        assert finding["evidence"]["lost_behind_capture_point"] == 0
        found |= {(finding["connection"], case["psn"]) for case in finding["evidence"]["cases"]}
    assert found == before

    again: Counter[int] = Counter()
    marked: Counter[int] = Counter()
    totals: Counter[str] = Counter()
    for event in truth:
        if event["event"] == "packet_repeated":
            again[of_qpn[event["qp"]["qpn"]]] += 1
        elif event["event"] == "packet_marked":
            marked[ends[event["remote_ip"], event["dest_qpn"]]] += 1
        elif event["event"] == "flow_totals":
            totals.update(event["totals"])
    assert {c["id"]: c["retransmitted_packets"] for c in connections if c["retransmitted_packets"]} == again
    assert {c["id"]: c["ce_marked"] for c in connections if c["ce_marked"]} == marked
    assert sum(c["naks"] for c in connections) == totals["nak_tx"] == len(before)
    assert sum(c["cnps"] for c in connections) == totals["cnp_tx"]
    assert len(document["transfers"]) == totals["message_tx"]
    assert len(lost) == totals["frames_lost"] == totals["data_frames_tx"] - totals["data_frames_rx"]


def test_an_analysis_is_scored_by_the_journal_beside_the_capture(traffic: Traffic, tmp_path: Path) -> None:
    path = tmp_path / "x.pcap"
    with JournalWriter(path.with_suffix(".journal.jsonl")) as journal:
        done = generate(path, traffic, journal=journal)
    _score(path)
    journaled = read_journal(path.with_suffix(".journal.jsonl"))
    assert not journaled.problems
    assert sum(e.event == "packet_lost" for e in journaled.events) == done.lost
    assert sum(e.event == "packet_marked" for e in journaled.events) == done.marked


def test_losses_come_at_their_rate_and_only_when_asked_for(tmp_path: Path) -> None:
    assert generate(tmp_path / "a.pcap", Traffic(packets=5000)).lost == 0
    lossy = generate(tmp_path / "b.pcap", Traffic(packets=50_000, sizes=(1024,), loss=0.02))
    assert lossy.lost == pytest.approx(0.02 * lossy.messages, rel=0.2)


def test_a_seed_is_one_capture_and_another_seed_another(tmp_path: Path) -> None:
    def made(seed: int) -> bytes:
        out = io.BytesIO()
        generate(out, Traffic(packets=500, operations=OPERATIONS, loss=0.1, seed=seed))
        return out.getvalue()

    assert made(1) == made(1)
    assert made(1) != made(2)


def test_a_snaplen_cuts_frames_and_nothing_else(tmp_path: Path) -> None:
    generate(tmp_path / "whole.pcap", MIXED)
    generate(tmp_path / "cut.pcap", MIXED, snaplen=90)
    with open_capture(tmp_path / "cut.pcap") as cut:
        lengths = [int(n) for batch in cut for n in batch.wirelen]
    whole = _frames(tmp_path / "whole.pcap")
    assert _frames(tmp_path / "cut.pcap") == [frame[:90] for frame in whole]
    assert lengths == [len(frame) for frame in whole]


@pytest.mark.parametrize(
    "wrong",
    [
        {"packets": 0},
        {"operations": ("ATOMIC",)},
        {"sizes": ()},
        {"sizes": (-1,)},
        {"mtu": 1500},
        {"pairs": 0},
        {"hosts": 3},
        {"ip_version": 5},
        {"vlan": 4096},
        {"loss": 1.0},
        {"ecn": -0.1},
        {"gbps": 0.0},
    ],
)
def test_senseless_wishes_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Traffic(**wrong)  # type: ignore[arg-type]


def test_a_file_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="cannot be written"):
        generate(tmp_path / "none" / "x.pcap", Traffic(packets=10))
    with pytest.raises(ValueError, match="snaplen"):
        generate(tmp_path / "x.pcap", Traffic(packets=10), snaplen=10)


def test_a_full_disk_ends_in_one_line() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    result = CliRunner().invoke(cli, ["generate", "/dev/full", "--packets", "10"])
    assert result.exit_code == 1
    assert "No space left" in result.output


def test_the_command_says_what_it_wrote(tmp_path: Path) -> None:
    path = tmp_path / "x.pcapng"
    result = CliRunner().invoke(
        cli, ["generate", str(path), "--packets", "300", "--operation", "read", "--size", "64,3000"]
    )
    assert result.exit_code == 0
    packets = _decoded(path)
    assert f"{len(packets):,} packets" in result.output
    assert (packets.has != 0).all()
    bad = CliRunner().invoke(cli, ["generate", str(path), "--mtu", "1500"])
    assert bad.exit_code == 2
    assert "path MTU" in bad.output
