"""Packets that are kept narrow while they are read are those that the file has."""

from __future__ import annotations

import numpy as np
import pytest
from places import PCAPS

import rocekit
from rocekit.explanation.packets import packet_stories
from rocekit.packets import COLUMNS, Packets, alike, empty_packets, in_file_order
from rocekit.packets.narrow import Narrow

CAPTURES = (
    "blast-sr-corruption.pcap",
    "ping-read-response-loss.pcap",
    "rping-ipv6-clean.pcap",
    "ping-write-loss-behind.pcap",
)


@pytest.mark.parametrize("name", CAPTURES)
def test_every_column_and_every_story_is_the_same_as_read_again(name: str) -> None:
    kept = Narrow()
    analysis = rocekit.analyze(PCAPS / name, watch=kept)
    again = analysis.read_packets()
    packets = kept.packets()
    assert packets is not None
    assert len(packets) == len(again)
    for column in COLUMNS:
        assert np.array_equal(packets[column], again[column]), column
    assert [*packets.rows()] == [*again.rows()]
    ours, theirs = packet_stories(analysis, packets), packet_stories(analysis)
    for column in ("connection", "sender", "transfer", "psn", "role", "round", "before", "cause_row"):
        assert np.array_equal(getattr(ours, column), getattr(theirs, column)), column


def test_a_column_in_which_all_are_alike_takes_no_memory() -> None:
    kept = Narrow()
    rocekit.analyze(PCAPS / "rping-clean.pcap", watch=kept)
    packets = kept.packets()
    assert packets is not None
    assert alike(packets.ip_version)
    assert alike(packets.compare)
    assert not alike(packets.psn)
    assert packets.psn.dtype == np.uint32


def test_packets_that_do_not_come_in_the_order_of_their_file_are_not_kept() -> None:
    analysis = rocekit.analyze(PCAPS / "rping-clean.pcap")
    batch = analysis.read_packets()
    kept = Narrow()
    kept(batch)
    kept(batch)
    assert kept.packets() is None


def test_narrow_packets_are_chosen_joined_and_widened_as_others_are() -> None:
    kept = Narrow()
    again = rocekit.analyze(PCAPS / CAPTURES[0], watch=kept).read_packets()
    narrow = kept.packets()
    assert narrow is not None
    rows = np.arange(len(again) - 1, -1, -2)
    parts = [narrow.where(slice(0, 10)), narrow.where(slice(10, None))]
    chosen = Packets.used_up(parts, rows).at(again.time_ns[rows] + 1)
    assert chosen.words.shape[1] == 0
    expected = again.where(rows).at(again.time_ns[rows] + 1)
    for packets in (chosen, chosen.wide(), Packets.concat([chosen])):
        assert [*packets.rows()] == [*expected.rows()]
    for column in COLUMNS:
        assert chosen.wide()[column].dtype == expected[column].dtype, column


def test_addresses_and_operands_keep_all_their_bits_beside_a_capture_without_packets() -> None:
    """Joined with an empty column of another kind, NumPy would make fractions of them."""
    kept = Narrow()
    rocekit.analyze(PCAPS / "ping-read-response-loss.pcap", watch=kept)
    packets = kept.packets()
    assert packets is not None
    assert packets.remote_va.max() > 2**32
    for parts in ([empty_packets(packets.addresses, narrow=True), packets], [packets.wide(), packets]):
        joined = in_file_order(parts)
        assert [column for column in COLUMNS if joined[column].dtype.kind == "f"] == []
        assert set(joined.remote_va.tolist()) == set(packets.remote_va.tolist())
