"""Packets cut inside the headers behind their BTH: what is there is used, and nothing else is."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from places import PCAPS
from story import Story

import rocekit
from rocekit.cli import rocekit as main
from rocekit.explanation.packet_words import describe
from rocekit.explanation.packets import ROLES, packet_stories
from rocekit.explanation.transfer import explain
from rocekit.files.pcapng_write import PcapngWriter
from rocekit.files.reader import open_capture
from rocekit.packets.decoder import Counts, Decoder
from rocekit.track.tracker import Tracker

FIELD = Path(__file__).parents[2].parent / "shared" / "captures" / "field"
#: Behind Ethernet, IPv4, UDP and BTH: only the AETH, half a RETH, and half an AtomicETH.
CUTS = (58, 66, 72)
#: Captures without losses, so that nothing depends on the timers of the CM messages, which are cut too.
CLEAN = (
    *("ib_read_bw-clean", "ib_atomic_bw-clean", "ib_send_bw-clean", "ib_send_bw-uc-clean", "rping-clean"),
    *("atomic-clean", "atomic-cmp-clean", "blast-read-clean", "blast-sr-clean", "blast-write-clean"),
    *("ping-write-clean", "ping-write-duplication", "ping-write-reordering", "srq-clean", "ring-clean"),
)
EQUAL = ("packets", "bytes", "status", "retransmitted_packets", "naks", "rnr_naks", "timeouts", "duplicates")
KNOWN = ("rkey", "remote_va", "length", "immediate", "swap_add", "compare", "original")


def tracked(path: Path, cut: int, lies: bool) -> tuple[Tracker, Counts]:
    decoder, tracker = Decoder(), Tracker()
    with open_capture(path) as capture:
        for batch in capture:
            caplen = np.minimum(batch.caplen, cut)
            batch = replace(batch, caplen=caplen, wirelen=caplen if lies else batch.wirelen)
            tracker.feed(decoder.decode(batch))
    tracker.finish()
    return tracker, decoder.counts


def by_place(tracker: Tracker) -> dict[tuple[Any, ...], Any]:
    return {(t.requester["ip"], t.requester["qpn"], t.operation, t.first_psn): t for t in tracker.transfers}


@pytest.mark.parametrize("lies", [False, True], ids=["snaplen", "mirror"])
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("name", CLEAN)
def test_transfers_are_those_of_the_whole_packets(name: str, cut: int, lies: bool) -> None:
    whole, _ = tracked(PCAPS / f"{name}.pcap", 1 << 16, False)
    short, counts = tracked(PCAPS / f"{name}.pcap", cut, lies)
    expected, found = by_place(whole), by_place(short)
    assert found.keys() == expected.keys()
    for place, transfer in found.items():
        truth = expected[place]
        assert [getattr(transfer, n) for n in EQUAL] == [getattr(truth, n) for n in EQUAL], place
        assert transfer.last_psn == truth.last_psn
        for field in KNOWN:
            assert getattr(transfer, field) in (None, getattr(truth, field)), field
    assert not short.malformed
    assert counts.malformed_packets == 0
    assert counts.truncated_packets > 0
    assert counts.cut_by_mirror == (counts.truncated_packets if lies else 0)


def cut_story(text: str, cut: int) -> Any:
    """The lines of a story whose packets are cut."""
    story = Story().lines(text)
    story.shots = [replace(shot, data=shot.data[:cut]) for shot in story.shots]
    return story.track()


def test_a_read_of_unknown_length_takes_the_psns_of_its_responses() -> None:
    told = cut_story(
        """
        a RC_RDMA_READ_REQUEST 5 4096
        a RC_RDMA_READ_REQUEST 9 3000
        b RC_RDMA_READ_RESPONSE_FIRST 5 1024
        b RC_RDMA_READ_RESPONSE_MIDDLE 6 1024
        b RC_RDMA_READ_RESPONSE_MIDDLE 7 1024
        b RC_RDMA_READ_RESPONSE_LAST 8 1024
        b RC_RDMA_READ_RESPONSE_FIRST 9 1024
        b RC_RDMA_READ_RESPONSE_MIDDLE 10 1024
        b RC_RDMA_READ_RESPONSE_LAST 11 952
        a RC_SEND_ONLY 12 64
        b ACK 12
        """,
        66,
    )
    assert told.transfers == [
        "a READ 5..8 4096 bytes in 4 packets: acked",
        "a READ 9..11 3000 bytes in 3 packets: acked",
        "a SEND 12 64 bytes: acked",
    ]
    assert told.events == []
    assert told.missed == []


def test_a_read_of_unknown_length_is_requested_again_from_its_middle() -> None:
    told = cut_story(
        """
        a RC_RDMA_READ_REQUEST 5 4096
        b RC_RDMA_READ_RESPONSE_FIRST 5 1024
        b RC_RDMA_READ_RESPONSE_MIDDLE 6 1024
        +20ms
        a RC_RDMA_READ_REQUEST 7 2048
        b RC_RDMA_READ_RESPONSE_FIRST 7 1024
        b RC_RDMA_READ_RESPONSE_LAST 8 1024
        """,
        66,
    )
    assert [line for line in told.transfers if line.startswith("a READ 5..8 4096 bytes")] == told.transfers
    assert told[0].status == "acked"
    assert told[0].retransmitted_packets == 1


def test_a_write_of_unknown_length_has_neither_address_nor_key() -> None:
    told = cut_story(
        """
        a RC_RDMA_WRITE_FIRST 5 1024 of=2100
        a RC_RDMA_WRITE_MIDDLE 6 1024
        a RC_RDMA_WRITE_LAST 7 52
        b ACK 7
        """,
        60,
    )
    assert told.transfers == ["a WRITE 5..7 2100 bytes in 3 packets: acked"]
    assert (told[0].remote_va, told[0].rkey, told[0].length) == (None, None, None)


def test_a_response_cut_before_its_syndrome_may_be_a_nak() -> None:
    told = cut_story("a RC_SEND_ONLY 5 64\na RC_SEND_ONLY 6 64\nb ACK 6", 56)
    assert told.transfers == ["a SEND 5 64 bytes: acked", "a SEND 6 64 bytes: response_cut"]
    assert told[0].naks == 0


def test_what_is_behind_a_cut_response_shows_that_it_was_an_ack() -> None:
    told = cut_story("a RC_SEND_ONLY 5 64\nb ACK 5\n+1ms\na RC_SEND_ONLY 6 64\nb ACK 6\n+1ms\nb ACK 7", 56)
    whole = Story().lines("a RC_SEND_ONLY 5 64\nb ACK 5\n+1ms\na RC_SEND_ONLY 6 64\nb ACK 6").track()
    assert (told[0].acked_ns, told[0].acked_by_cut) == (whole[0].acked_ns, True)
    assert told[0].connection.cut_responses == 3


def test_a_cut_response_before_a_repeat_may_be_a_nak() -> None:
    told = cut_story(
        """
        a RC_SEND_ONLY 5 64
        b RNR 5
        +1ms
        a RC_SEND_ONLY 5 64
        b ACK 5
        a RC_SEND_ONLY 6 64
        b ACK 6
        """,
        56,
    )
    repeat = next(event for event in told[0].events if event.kind == "repeat")
    assert (told[0].status, repeat.cause) == ("acked", "nak_missed")
    assert told[0].acked_ns > repeat.time_ns


#: Captures with NAKs and RNR NAKs, and with immediates.
TROUBLED = ("ib_write_bw-4qp-loss", "ib_send_bw-rnr", "ping-write-loss-behind", "immediate-clean")
#: Behind Ethernet and IPv4: in the BTH, before any AETH, in an AETH, in a RETH, behind all headers.
LENGTHS = (50, 54, 56, 57, 58, 62, 70, 100)


def cut_file(name: str, length: int, folder: Path) -> Path:
    """A capture of ``pcaps/`` whose frames are cut by the snaplen."""
    path = folder / f"{name}-{length}.pcap"
    with open_capture(PCAPS / f"{name}.pcap") as capture, PcapngWriter(path) as writer:
        for batch in capture:
            for i in range(len(batch)):
                frame, wirelen = bytes(batch.frame(i)[:length]), int(batch.wirelen[i])
                writer.write(frame, time_ns=int(batch.time_ns[i]), wirelen=wirelen)
    return path


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", TROUBLED)
def test_nothing_is_claimed_that_the_whole_packets_contradict(name: str, length: int, tmp_path: Path) -> None:
    whole = rocekit.analyze(PCAPS / f"{name}.pcap", journals=[])
    short = rocekit.analyze(cut_file(name, length, tmp_path), journals=[])
    rules = {finding.rule for finding in whole.findings} | {"capture-truncated"}
    assert {finding.rule for finding in short.findings} <= rules
    if length < 54:
        assert not short.transfers
        return
    assert len(short.transfers) == len(whole.transfers)
    for transfer, truth in zip(short.transfers, whole.transfers, strict=True):
        assert transfer.status in (truth.status, "response_cut")
        assert transfer.acked_ns in (None, truth.acked_ns)
        assert transfer.immediate in (None, truth.immediate)
        assert transfer.with_immediate == truth.with_immediate
        assert transfer.retransmitted_packets == truth.retransmitted_packets
        if name.startswith("ib_"):  # in the others the timeout is in CM messages, which are cut
            assert transfer.timeouts <= truth.timeouts
        for field in KNOWN:
            assert getattr(transfer, field) in (None, getattr(truth, field)), field
        steps = [step.what for step in explain(transfer, short).steps]
        assert length >= 58 or not any(step.startswith(("ACK", "NAK", "RNR")) for step in steps)
    roles = Counter(ROLES[role] for role in packet_stories(short).role.tolist())
    cut = sum(connection.cut_responses for connection in short.connections)
    assert roles["ack_or_nak"] == cut
    assert (cut > 0) == (length < 58)
    if cut:
        assert not roles["ack"] + roles["nak"] + roles["rnr_nak"]
        for flow in short.statistics().flows:
            assert flow.counts["ack_rx"] is flow.counts["nak_rx"] is flow.counts["rnr_nak_rx"] is None
        assert all(connection.resent_per_loss is None for connection in short.connections)
        assert f"{cut} responses cut before the AETH: ACK or NAK unknown" in short.findings[-1].title
        words = {words for words in describe(packet_stories(short)) if words.startswith("response for PSN")}
        assert words
        assert all("ACK or NAK unknown (cut)" in one for one in words)


@pytest.mark.parametrize("length", [56, 60])
def test_commands_name_no_value_that_is_cut(length: int, tmp_path: Path) -> None:
    path = cut_file("immediate-clean", length, tmp_path)
    run = CliRunner().invoke(main, ["decode", str(path)])
    lines = [line for line in run.output.splitlines() if "WITH_IMMEDIATE" in line]
    assert lines
    if length == 56:
        assert all(line.endswith("no ImmDt]") for line in lines)
        acks = [line for line in run.output.splitlines() if "RC_ACKNOWLEDGE" in line]
        assert all("ACK or NAK unknown  [truncated, no AETH]" in line for line in acks)
    rows = [
        json.loads(line)
        for line in CliRunner().invoke(main, ["decode", str(path), "--format", "json"]).output.splitlines()
    ]
    rows = [row for row in rows if str(row.get("opcode")).endswith("_WITH_IMMEDIATE")]
    whole = {t.immediate for t in rocekit.analyze(PCAPS / "immediate-clean.pcap", journals=[]).transfers}
    assert {row.get("immediate") for row in rows} <= ({None} if length == 56 else whole)
    text = CliRunner().invoke(main, ["analyze", str(path), "--format", "text"]).output
    assert "+imm" in text
    told = CliRunner().invoke(main, ["explain", str(path), "--transfer", "0"]).output
    assert ("with immediate (value cut)" in told) == (length == 56)


@pytest.mark.skipif(not FIELD.exists(), reason="no captures of the field")
def test_a_mirror_that_cuts_shows_no_trouble() -> None:
    analysis = rocekit.analyze(FIELD / "trunc96_caplen.pcap.gz")
    assert [finding.rule for finding in analysis.findings] == ["capture-truncated"]
    assert "truncated by the mirror" in analysis.findings[0].title
    assert {t.status for t in analysis.transfers} == {"acked"}
    assert len(analysis.transfers) == 200
