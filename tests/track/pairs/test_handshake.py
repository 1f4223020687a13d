"""perftest and libibverbs' examples say in text over TCP which QPs they are about to connect."""

from __future__ import annotations

from pathlib import Path

import pytest

import rocekit
from rocekit.track.pairs.handshake import Handshakes, Offer, parse_offer


def test_the_examples_of_libibverbs_name_lid_qpn_psn_and_gid() -> None:
    assert parse_offer(b"0000:000021:59dfd7:00000000000000000000ffff0a01103e\0") == Offer(
        "10.1.16.62", 0x21, 0x59DFD7, program="libibverbs' examples"
    )


def test_perftest_names_its_memory_region_too() -> None:
    text = (
        b"0000:0001:00001d:533a2f:00000e1c:00005e135cf9b000:"
        b"00:00:00:00:00:00:00:00:00:00:ff:ff:0a:01:10:3e:00000000:\0"
    )
    assert parse_offer(text) == Offer("10.1.16.62", 0x1D, 0x533A2F, 0xE1C, 0x5E135CF9B000, "perftest")
    of_rocekit = text.ljust(108, b"\0") + b"1000" + b"rcki".hex().encode()
    assert parse_offer(of_rocekit).program == "rocekit"  # type: ignore[union-attr]


def test_an_ipv6_gid_is_an_ipv6_address() -> None:
    offer = parse_offer(b"0000:000021:59dfd7:fd000009000000000000000000000001\0")
    assert offer is not None
    assert offer.ip == "fd00:9::1"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"0000:000021:59dfd7:00000000000000000000ffff0a0110",  # cut
        b"0000:00021:59dfd7:00000000000000000000ffff0a01103e",  # a QPN has six digits
        b"0000:000021:59dfd7:00000000000000000000ffff0a01103e00",  # a longer number
        b"GET / HTTP/1.1\r\nHost: 10.1.16.62\r\n",
    ],
)
def test_other_text_is_no_offer(text: bytes) -> None:
    assert parse_offer(text) is None


#: Files of ``others`` with the exchange in them; a UD connection is known by its DETH, without it.
EXCHANGES = (
    "pingpong_rc",
    "pingpong_uc",
    "rdma_atomic_bw",
    "rdma_read_bw",
    "rdma_read_lat",
    "rdma_send_bw",
    "rdma_write_bw",
    "rdma_write_lat",
)


@pytest.mark.parametrize("name", EXCHANGES)
def test_captures_that_others_made_are_paired_by_their_exchange(others: Path, name: str) -> None:
    analysis = rocekit.analyze(others / f"{name}.pcap")
    assert [c.paired_by for c in analysis.connections] == ["handshake"]
    connection = analysis.connections[0]
    for side, told in enumerate(connection.negotiated):
        sent = [t for t in analysis.transfers if t.side == side]
        if sent:
            assert sent[0].first_psn == told.starting_psn


def test_uc_has_both_its_ends_only_by_the_exchange(others: Path) -> None:
    connection = rocekit.analyze(others / "pingpong_uc.pcap").connections[0]
    assert connection.transport == "UC"
    assert None not in connection.qpns


@pytest.mark.parametrize("name", ["rdma_write_bw", "rdma_read_bw", "rdma_atomic_bw"])
def test_what_is_reached_for_lies_in_the_memory_that_the_peer_offered(others: Path, name: str) -> None:
    analysis = rocekit.analyze(others / f"{name}.pcap")
    for transfer in analysis.transfers:
        offered = analysis.connections[0].negotiated[1 - transfer.side]
        assert transfer.rkey == offered.rkey
        assert transfer.remote_va is not None
        assert offered.remote_va is not None
        assert transfer.remote_va >= offered.remote_va


def test_the_first_to_speak_is_the_one_that_asked_to_connect(others: Path) -> None:
    connection = rocekit.analyze(others / "rdma_write_bw.pcap").connections[0]
    assert connection.end(0) == {"ip": "10.1.16.62", "qpn": 0x1D}
    assert connection.end(1) == {"ip": "10.1.16.61", "qpn": 0x1B}


def test_offers_without_end_cost_the_same_each_and_the_oldest_conversation_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared = 0

    def equal(mine: Offer, other: object) -> bool:
        nonlocal compared
        compared += 1
        return isinstance(other, Offer) and (mine.ip, mine.qpn) == (other.ip, other.qpn)

    monkeypatch.setattr(Offer, "__eq__", equal)
    found = Handshakes()
    count = 2_000
    for n in range(count):
        assert not list(found._take(Offer("10.0.0.1", n, n), b"a", b"b"))
    assert compared < count  # only where hashes agree
    pairs = [pair for n in range(3) for pair in found._take(Offer("10.0.0.2", n, n), b"b", b"a")]
    assert [(a.qpn, b.qpn) for a, b in pairs] == [(0, 0), (1, 1), (2, 2)]
    monkeypatch.setattr("rocekit.track.pairs.handshake.MOST_CONVERSATIONS", 10)
    for n in range(100):
        list(found._take(Offer("10.0.0.3", n, n), b"c%d" % n, b"d"))
    assert len(found._exchanges) == 10
