"""Where a counter and the packets differ, what is said of it; and what is not predicted, and why."""

from __future__ import annotations

import ipaddress
import json
import struct
from pathlib import Path

import pytest
from capture_bytes import Frame, pcap
from counted import AT_A, AT_B, CLAIM, RXE, S, analysed, plain, predicted, snapshot, tried
from talk import START_NS, A, B, Talk

from rocekit import wire
from rocekit.analysis import analyze
from rocekit.counters.meanings import meaning_of
from rocekit.files.frames import LINKTYPE_LINUX_SLL
from rocekit.journal import JournalWriter
from rocekit.journal.counters import write_snapshots
from rocekit.machine.counters import CounterPlace


def test_the_verdict_says_who_saw_more(tmp_path: Path) -> None:
    found = tried(tmp_path, plain(Talk()), rose={"sent_pkts": 8, "rcvd_pkts": 5, "rdma_sends": 2})
    assert (found["sent_pkts"].verdict, found["sent_pkts"].difference) == ("agrees", 0)
    more, fewer = found["rcvd_pkts"], found["rdma_sends"]
    assert (more.verdict, more.difference) == ("differs", 2)
    assert more.words.startswith("the counter saw 5, the capture 3: the capture missed 2, or ")
    assert (fewer.verdict, fewer.difference) == ("differs", -1)


def test_a_counter_that_fell_was_reset(tmp_path: Path) -> None:
    found = tried(tmp_path, plain(Talk()), rose={"sent_pkts": -40})["sent_pkts"]
    assert (found.went_up_by, found.predicted) == (-40, None)
    assert "reset" in found.words


def test_only_packets_between_the_snapshots_count(tmp_path: Path) -> None:
    talk = plain(Talk())
    talk.wait(10 * S)
    middle = talk.now
    talk.wait(10 * S)
    talk.write(6)
    talk.ack(6)
    assert tried(tmp_path, talk, after_ns=middle)["sent_pkts"].predicted == 8
    assert tried(tmp_path, talk, before_ns=middle)["sent_pkts"].predicted == 1


def test_packets_while_a_snapshot_is_taken_leave_their_counter_open(tmp_path: Path) -> None:
    talk = plain(Talk())
    found = tried(tmp_path, talk, after_ns=talk.now - 500)  # while the last ACK came
    assert found["sent_pkts"].predicted == 8
    assert found["rcvd_pkts"].predicted is None
    assert found["rcvd_pkts"].words.endswith("such packets passed while a snapshot was taken")


def test_what_a_queue_dropped_before_the_capture_was_sent_all_the_same(tmp_path: Path) -> None:
    drops = {"egress netem 8001: drops": 3}
    found = tried(tmp_path, plain(Talk()), rose={"sent_pkts": 11, "rcvd_pkts": 3}, drops=drops)
    assert found["sent_pkts"].predicted is None
    assert "tc's netem 8001 dropped 3 packets before the capture" in found["sent_pkts"].words
    assert found["rcvd_pkts"].verdict == "agrees"
    drops = {"ingress filter 1 flower gact: drops": 2}
    found = tried(tmp_path, plain(Talk()), rose={"sent_pkts": 8}, drops=drops)
    assert found["rcvd_pkts"].predicted is None
    assert found["sent_pkts"].verdict == "agrees"


def test_a_capture_that_is_not_known_to_be_at_the_device_predicts_nothing(tmp_path: Path) -> None:
    for claim in (
        {"captured_on": None},
        {"captured_on": "other", "captured_to": "x.pcap"},
        {"captured_on": "va", "captured_to": "y.pcap"},
    ):
        found = tried(tmp_path, plain(Talk()), rose={"sent_pkts": 9}, **claim)
        assert {c.predicted for c in found.values()} == {None}
        assert found["sent_pkts"].seen == 8
        assert "where the capture was taken is unknown" in found["sent_pkts"].words


def test_of_two_captures_that_differ_neither_is_told_alone(tmp_path: Path) -> None:
    """It was the first one's packets, of which two never reached the device whose counter it is."""
    talk = plain(Talk())
    lost = [
        n for n, f in enumerate(talk.frames) if ipaddress.ip_address(f.data[26:30]) == ipaddress.ip_address(A)
    ]
    at_b = [f for n, f in enumerate(talk.frames) if n not in lost[2:4]]
    for name, frames in (("va", talk.frames), ("vb", at_b)):
        (tmp_path / f"{name}.pcap").write_bytes(pcap(frames, unit="ns"))
    with JournalWriter(tmp_path / "b.journal.jsonl", host="b") as writer:
        for at in (START_NS - S, talk.now + S):
            write_snapshots(writer, [snapshot(AT_B, at, dict.fromkeys(RXE, 0), captured_on=None)])
    captures, journals = [tmp_path / "va.pcap", tmp_path / "vb.pcap"], [tmp_path / "b.journal.jsonl"]
    found = {c.counter: c for c in analyze(*captures, journals=journals).counters}
    assert (found["sent_pkts"].seen, found["sent_pkts"].predicted) == (3, None)  # both have its ACKs
    assert (found["rcvd_pkts"].seen, found["rcvd_pkts"].predicted) == (None, None)
    assert found["rcvd_pkts"].words.startswith("6 to 8 in the captures; not predicted: ")


def cooked(frames: list[Frame], host: str) -> list[Frame]:
    """The frames as ``tcpdump -i any`` on a host marks them."""
    source = ipaddress.ip_address(host).packed
    return [
        Frame(
            struct.pack(">HHH8sH", 4 if f.data[26:30] == source else 0, 1, 6, f.data[6:12], 0x0800)
            + f.data[14:],
            f.time_ns,
        )
        for f in frames
    ]


def test_a_cooked_capture_shows_by_itself_where_it_was_taken(tmp_path: Path) -> None:
    talk = plain(Talk())
    zero, eight = dict.fromkeys(RXE, 0), {**dict.fromkeys(RXE, 0), "sent_pkts": 8}
    for host, verdict in ((A, "agrees"), (B, "unknown")):
        capture = tmp_path / "x.pcap"
        capture.write_bytes(pcap(cooked(talk.frames, host), unit="ns", linktype=LINKTYPE_LINUX_SLL))
        with JournalWriter(tmp_path / "x.journal.jsonl", host="host") as writer:
            for at, counts in ((START_NS - S, zero), (talk.now + S, eight)):
                write_snapshots(writer, [snapshot(AT_A, at, counts, captured_on=None)])
        found = {c.counter: c for c in analyze(capture).counters}["sent_pkts"]
        assert (found.verdict, found.seen) == (verdict, 8)
        if host == B:
            assert f"the capture was taken at {B}" in found.words


def test_a_capture_that_has_each_packet_twice_predicts_nothing(tmp_path: Path) -> None:
    """As of all interfaces of a host, where packets pass two."""
    talk = plain(Talk())
    talk.frames = [frame for frame in talk.frames for _ in range(2)]
    found = tried(tmp_path, talk)
    assert {c.predicted for c in found.values()} == {None}
    assert found["sent_pkts"].words.endswith("the capture has packets twice, as of two interfaces")


def test_two_hosts_cannot_both_have_taken_the_capture(tmp_path: Path) -> None:
    talk = plain(Talk())
    (tmp_path / "x.pcap").write_bytes(pcap(talk.frames, unit="ns"))
    with JournalWriter(tmp_path / "x.journal.jsonl") as writer:
        for place in (AT_A, AT_B):
            for at in (START_NS - S, talk.now + S):
                write_snapshots(writer, [snapshot(place, at, dict.fromkeys(RXE, 0), **CLAIM)])
    found = analyze(tmp_path / "x.pcap").counters
    assert found
    assert {c.predicted for c in found} == {None}


def test_a_capture_of_another_time_predicts_nothing(tmp_path: Path) -> None:
    talk = plain(Talk())
    found = tried(tmp_path, talk, before_ns=talk.now + S, after_ns=talk.now + 2 * S)
    assert {c.predicted for c in found.values()} == {None}
    assert "not of the time between the snapshots" in found["sent_pkts"].words


def test_a_capture_that_lacks_packets_predicts_nothing(tmp_path: Path) -> None:
    talk = Talk()
    talk.connect()
    talk.write(0, 4, lost=[1, 2])
    talk.ack(3)
    found = tried(tmp_path, talk, AT_B)
    assert {c.predicted for c in found.values()} == {None}
    assert "the capture lacks packets of the device" in found["rcvd_pkts"].words


def test_one_snapshot_compares_nothing(tmp_path: Path) -> None:
    talk = plain(Talk())
    (tmp_path / "x.pcap").write_bytes(pcap(talk.frames, unit="ns"))
    with JournalWriter(tmp_path / "x.journal.jsonl") as writer:
        write_snapshots(writer, [snapshot(AT_A, START_NS, dict.fromkeys(RXE, 0))])
    analysis = analyze(tmp_path / "x.pcap")
    assert analysis.counters == []
    assert analysis.journal is None  # it says nothing of programs
    assert "Journal" not in str(analysis)


def test_a_qp_that_was_gone_may_explain_what_was_not_received(tmp_path: Path) -> None:
    """Behind the last packet that the device sent, two came in."""
    talk = plain(Talk())
    talk.write(6)
    talk.ack(6)
    talk.ack(6)
    for received, certain in ((3, False), (2, True)):
        analysis = analysed(tmp_path, talk, rose={"sent_pkts": 9, "rcvd_pkts": received, "rdma_sends": 3})
        found = next(c for c in analysis.counters if c.counter == "rcvd_pkts")
        assert (found.predicted, found.verdict, found.certain) == (5, "differs", certain)
        named = [c["counter"] for f in analysis.findings for c in f.evidence.get("counters", ())]
        assert ("rcvd_pkts" in named) == certain


def test_the_finding_names_the_worst_and_only_where_the_ground_is_certain(tmp_path: Path) -> None:
    analysis = analysed(tmp_path, plain(Talk()), rose={"sent_pkts": 9, "rcvd_pkts": 30})
    (finding,) = [f for f in analysis.findings if f.rule == "counter-mismatch"]
    assert finding.severity == "info"
    assert finding.title.startswith("rcvd_pkts of rxe0 (va) went up by 30, the packets account for 3, and ")
    assert [c["counter"] for c in finding.evidence["counters"]][:2] == ["sent_pkts", "rcvd_pkts"]
    mlx = CounterPlace("mlx5_0", 1, "mlx5_core", "va", (A,))
    analysis = analysed(
        tmp_path, plain(Talk()), mlx, rose={"duplicate_request": 9}, counters=("duplicate_request",)
    )
    (found,) = analysis.counters
    assert (found.predicted, found.verdict, found.certain) == (0, "differs", False)
    assert not [f for f in analysis.findings if f.rule == "counter-mismatch"]


def test_text_and_json_have_them(tmp_path: Path) -> None:
    analysis = analysed(tmp_path, plain(Talk()), rose={"sent_pkts": 8, "rcvd_pkts": 5, "link_downed": 1})
    text = str(analysis)
    assert "Counters of rxe0 (va) on host, " in text
    assert "the capture missed 2" in text
    document = json.loads(json.dumps(analysis.to_dict()))
    entry = next(c for c in document["counters"] if c["counter"] == "rcvd_pkts")
    assert entry["meaning"] == "packets_received"
    assert (entry["went_up_by"], entry["seen"], entry["predicted"], entry["difference"]) == (5, 3, 3, 2)
    assert entry["verdict"] == "differs"
    down = next(c for c in document["counters"] if c["counter"] == "link_downed")
    assert (down["went_up_by"], down["predicted"], down["verdict"]) == (1, None, "unknown")


@pytest.mark.parametrize(
    ("driver", "name", "meaning"),
    [
        ("mlx5_core", "packet_seq_err", "sequence_naks_received"),
        ("mlx5_core", "out_of_sequence", "out_of_sequence"),
        ("bnxt_en", "dup_req", "duplicate_requests"),
        ("bnxt_en", "seq_err_naks_rcvd", "sequence_naks_received"),
        ("ice", "RNR received", "rnr_naks_received"),
        ("mana", "requester_rnr_nak", "rnr_naks_received"),
        ("mana", "responder_dup_request", "duplicate_requests"),
        ("rxe", "out_of_seq_request", "gaps"),
    ],
)
def test_equal_meanings_have_one_name_whatever_the_driver_calls_them(
    driver: str, name: str, meaning: str
) -> None:
    found = meaning_of(driver, "hw_counters", name)
    assert found is not None
    assert found.name == meaning


def test_names_of_other_drivers_mean_nothing() -> None:
    assert meaning_of("mlx5_core", "hw_counters", "out_of_seq_request") is None
    assert meaning_of(None, "hw_counters", "sent_pkts") is None


def test_congestion_notifications_are_counted_apart(tmp_path: Path) -> None:
    talk = plain(Talk())
    talk.packet("CNP", 0, by="b")
    names = ("rp_cnp_handled", "np_cnp_sent", "rdma_rx_packets")
    mlx = CounterPlace("mlx5_0", 1, "mlx5_core", "va", (A,))
    assert predicted(tried(tmp_path, talk, mlx, counters=names)) == {
        "rp_cnp_handled": 1,
        "rdma_rx_packets": 3,
    }
    assert wire.OPCODES[0x81].transport == "CNP"


def test_a_capture_cut_short_predicts_nothing(tmp_path: Path) -> None:
    talk = plain(Talk())
    for snaplen in (44, 60):
        short = Talk()
        short.now = talk.now
        short.frames = [Frame(f.data[:snaplen], f.time_ns, len(f.data)) for f in talk.frames]
        found = tried(tmp_path, short)
        assert {c.predicted for c in found.values()} == {None}


def test_headers_alone_are_enough(tmp_path: Path) -> None:
    talk = plain(Talk())
    short = Talk()
    short.now = talk.now
    short.frames = [Frame(f.data[:128], f.time_ns, len(f.data)) for f in talk.frames]
    found = tried(tmp_path, short, rose={"sent_pkts": 8, "rcvd_pkts": 2})
    assert found["sent_pkts"].verdict == "agrees"
    fewer = found["rcvd_pkts"]
    assert (fewer.difference, fewer.certain) == (-1, False)
    assert "wrong ICRCs, which a truncated capture does not show" in fewer.words


def test_a_damaged_capture_predicts_nothing(tmp_path: Path) -> None:
    talk = plain(Talk())
    tried(tmp_path, talk)
    whole = (tmp_path / "x.pcap").read_bytes()
    (tmp_path / "x.pcap").write_bytes(whole[:-7])
    found = analyze(tmp_path / "x.pcap").counters
    assert {c.predicted for c in found} == {None}


def test_where_most_icrcs_are_wrong_nothing_received_is_predicted(tmp_path: Path) -> None:
    talk = plain(Talk())
    for number in range(1, len(talk.frames) + 1):
        talk.corrupted(number, -1)
    found = tried(tmp_path, talk)
    assert found["rcvd_pkts"].predicted is None
    assert found["rcvd_pkts"].seen == 0
