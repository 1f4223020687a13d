"""Pairs that a journal names: many of one number."""

from __future__ import annotations

import pytest

from rocekit.machine import limits
from rocekit.track.connections import Negotiated
from rocekit.track.pairs import known_pairs
from rocekit.track.pairs.known_pairs import KnownPairs, Pair

NONE = (Negotiated(), Negotiated())


def test_a_journal_with_a_qpn_a_thousand_times_is_not_searched_for_each_of_a_thousand_flows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = 0

    def may_be_of(*_: object) -> bool:
        nonlocal looked
        looked += 1
        return True

    monkeypatch.setattr(known_pairs, "may_be_of", may_be_of)
    monkeypatch.setitem(limits._chosen, limits.KNOWN_PAIR_LOOKS, 10_000)
    met: set[str] = set()
    known = KnownPairs((Pair("RC", (None, None), (5, 6), NONE) for _ in range(1000)), met)
    for n in range(1000):
        assert known.pair_of(f"10.0.{n >> 8}.{n & 255}", "10.9.0.1", 5, n, n) is None
    assert looked <= 100_000  # a million before
    assert met == {limits.KNOWN_PAIR_LOOKS}


def test_a_qpn_that_few_have_is_found_however_many_flows_there_are() -> None:
    mine = Pair("RC", ("10.0.0.1", "10.0.0.2"), (5, 6), NONE)
    known = KnownPairs([mine])
    for n in range(20_000):
        known.pair_of("10.0.0.9", "10.0.0.8", n, n, n)
    assert known.pair_of("10.0.0.1", "10.0.0.2", 6, 1, 1) == (mine, 0)


def test_what_handshakes_named_is_forgotten_and_what_journals_named_stays() -> None:
    journal = Pair("RC", ("10.0.0.1", "10.0.0.2"), (5, 6), NONE)
    known = KnownPairs([journal])
    known._learn(journal._replace(source=known_pairs.HANDSHAKE))
    known._forget(("10.0.0.1", 5))
    assert known.by_end["10.0.0.1", 5] == [journal]


def test_many_pairs_of_one_qpn_hide_no_others() -> None:
    mine = Pair("RC", ("10.0.0.1", "10.0.0.2"), (7, 8), NONE)
    crowd = [Pair("RC", ("10.0.0.3", "10.0.0.4"), (5, 6), NONE) for _ in range(1 << 18)]
    known = KnownPairs([*crowd, mine])
    for _ in range(3):
        known.pair_of("10.0.0.3", "10.0.0.4", 6, 0, 0)
    assert known.pair_of("10.0.0.3", "10.0.0.4", 6, 0, 0) is None  # too many were looked at
    assert known.pair_of("10.0.0.1", "10.0.0.2", 8, 0, 0) == (mine, 0)
