"""Columns of transfers have what each transfer has, and their sums are those of one after the other."""

from __future__ import annotations

import random
from operator import attrgetter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from talk import US, Talk

import rocekit
from rocekit.analysis import Analysis
from rocekit.explanation.transfer_columns import TransferColumns
from rocekit.explanation.transfer_numbers import FIGURES, PLACES
from rocekit.explanation.way_sums import WaySums
from rocekit.findings.evidence import status_of
from rocekit.flows.spread import Spread
from rocekit.track.transfers import ACKED, SENT, Transfer
from rocekit.wire import OWN_RESPONSE

#: With losses, RNR NAKs, NAKs that end a QP, immediates, READs, atomics, UD, and no ACKs.
CAPTURES = (
    "atomic-response-loss.pcap",
    "blast-sr-rnr.pcap",
    "failures-each.pcap",
    "ib_send_bw-ud-clean.pcap",
    "ib_write_bw-4qp-loss.pcap",
    "immediate-clean.pcap",
    "ping-read-response-loss.pcap",
    "ping-write-dead.pcap",
)


@pytest.fixture(scope="module", params=CAPTURES)
def analysis(request: pytest.FixtureRequest, pcaps: Path) -> Analysis:
    return rocekit.analyze(pcaps / request.param)


def test_each_column_has_what_each_transfer_has(analysis: Analysis) -> None:
    transfers = list(analysis.transfers)
    random.Random(7).shuffle(transfers)
    columns = TransferColumns(transfers)
    assert len(columns) == len(transfers) > 0
    other = {"connection", "operation", "status", "bits", "va_high", "va_low"}
    for name in {*PLACES, *FIGURES} - other:
        assert columns.numbers(name).tolist() == [getattr(t, name) for t in transfers], name
    assert columns.numbers("connection").tolist() == [t.connection.id for t in transfers]
    for name in ("operation", "status"):
        assert [columns.words[n] for n in columns.numbers(name).tolist()] == list(
            map(attrgetter(name), transfers)
        )
    assert columns.remote_va.tolist() == [t.va for t in transfers]
    assert columns.have("acked").tolist() == [t.acked_ns is not None for t in transfers]
    assert columns.have("started").tolist() == [t.started for t in transfers]
    assert [t for _, t in columns.those("eventful")] == [t for t in transfers if t.events]
    assert [t for _, t in columns.those("particular")] == [t for t in transfers if t.particulars is not None]
    lacking = [t for t in transfers if t.missing or t.responses_missing]
    assert set(lacking) <= {t for _, t in columns.those("lacks")}


def test_addresses_have_64_bits(pcaps: Path) -> None:
    transfers = list(rocekit.analyze(pcaps / "ib_write_bw-clean.pcap").transfers)
    for transfer, va in zip(transfers, (0, 1 << 63, (1 << 64) - 1, 1 << 32), strict=False):
        transfer.va = va
    assert TransferColumns(transfers).remote_va.tolist() == [t.va for t in transfers]


def test_no_transfers_have_no_sums() -> None:
    sums = WaySums([])
    assert (sums.place, sums.count, sums.outstanding, sums.refused) == ({}, [], [], set())
    assert all(times == [] for times in sums.times.values())


def test_sums_are_those_of_each_transfer(analysis: Analysis) -> None:
    transfers = list(analysis.transfers)
    sums = WaySums(transfers)
    ways: dict[int, list[Transfer]] = {}
    for transfer in transfers:
        ways.setdefault(2 * transfer.connection.id + transfer.side, []).append(transfer)
    assert sorted(sums.place) == sorted(ways)
    for way, own in ways.items():
        place = sums.place[way]
        done = [t for t in own if t.status in (ACKED, SENT)]
        assert sums.count[place] == len(own)
        assert (sums.done[place], sums.done_bytes[place]) == (len(done), sum(t.bytes for t in done))
        failed = [t for t in own if t.status.startswith("nak:") or status_of(t) not in (None, "SUCCESS")]
        assert sums.failed[place] == len(failed)
        assert sums.sent_again[place] == sum(t.retransmitted_packets for t in own)
        assert sums.first_ns[place] == min(t.first_ns for t in own)
        assert sums.last_ns[place] == max(max(t.last_ns, t.acked_ns or 0) for t in own)
        assert sums.eventful[place] == [t for t in own if t.events]
        assert sums.outstanding[place] == _outstanding(own)
        times = {name: values.tolist() for name, values in sums.times_of(place).items()}
        known = [t for t in own if t.acked_ns is not None]
        whole = [t for t in known if t.started and not t.lacks(t.first_psn)]
        assert times["message_latency"] == sorted((t.acked_ns or 0) - t.first_ns for t in whole)
        assert times["read_response_time"] == sorted(
            (t.acked_ns or 0) - t.first_ns for t in whole if t.is_read and not t.events
        )
        assert times["ack_round_trip"] == sorted(
            (t.acked_ns or 0) - t.request_end_ns
            for t in known
            if not t.events and not t.lacks(t.last_psn) and t.operation not in OWN_RESPONSE
        )
    assert sums.refused == {t.connection.id for t in transfers if t.status.startswith("nak:")}


def _outstanding(transfers: list[Transfer]) -> int:
    """What is acknowledged at a time leaves before what begins then."""
    known = [t for t in transfers if t.acked_ns is not None]
    marks = [(t.acked_ns or 0, -t.packets) for t in known] + [(t.first_ns, t.packets) for t in known]
    most = now = 0
    for _, change in sorted(marks):
        now += change
        most = max(most, now)
    return most


def test_what_is_acknowledged_when_the_next_begins_is_not_outstanding() -> None:
    """Three packets are acknowledged at the moment at which the next two are sent."""
    t = Talk()
    t.send(100, 3)
    t.wait(9 * US)
    t.ack(102)
    t.wait(-US)
    t.send(103, 2)
    t.ack(104)
    first, second = t.evidence().transfers
    assert first.acked_ns == second.first_ns
    assert WaySums([first, second]).outstanding == [3]


@given(st.lists(st.integers(-(1 << 62), 1 << 62) | st.integers(0, 10**9), max_size=200))
def test_the_spread_of_a_column_is_that_of_its_numbers(times: list[int]) -> None:
    import numpy as np

    assert Spread.of_column(np.array(times, np.int64)) == Spread.of(times)
