"""Packets cut inside the headers behind their BTH: what is there is used, and nothing else is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from places import PCAPS
from story import Story

import rocekit
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
    assert told.transfers == ["a SEND 5 64 bytes: acked", "a SEND 6 64 bytes: unacknowledged"]
    assert told[0].naks == 0


@pytest.mark.skipif(not FIELD.exists(), reason="no captures of the field")
def test_a_mirror_that_cuts_shows_no_trouble() -> None:
    analysis = rocekit.analyze(FIELD / "trunc96_caplen.pcap.gz")
    assert [finding.rule for finding in analysis.findings] == ["capture-truncated"]
    assert "truncated by the mirror" in analysis.findings[0].title
    assert {t.status for t in analysis.transfers} == {"acked"}
    assert len(analysis.transfers) == 200
