"""PSNs are 24-bit serial numbers: they wrap, and half of the space lies behind (IBA 9.2, 9.7.1)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rocekit.wire import psn

PSNS = st.integers(0, 2**24 - 1)
LEADS = st.integers(-(2**23), 2**23 - 1)


def test_the_psn_after_the_last_is_0() -> None:
    assert psn.add(0xFFFFFF, 1) == 0
    assert psn.add(0, -1) == 0xFFFFFF


def test_0_lies_one_ahead_of_the_last() -> None:
    assert psn.diff(0, 0xFFFFFF) == 1
    assert psn.diff(0xFFFFFF, 0) == -1


def test_the_half_ahead_ends_before_2_to_the_23() -> None:
    assert psn.diff(2**23 - 1, 0) == 2**23 - 1
    assert psn.diff(2**23, 0) == -(2**23), "the farthest PSN counts as a duplicate, not as new"


@given(PSNS, LEADS)
def test_a_psn_n_places_on_lies_n_ahead(start: int, lead: int) -> None:
    assert psn.diff(psn.add(start, lead), start) == lead


@given(PSNS, PSNS)
def test_going_the_difference_arrives(a: int, b: int) -> None:
    assert psn.add(b, psn.diff(a, b)) == a


@given(PSNS, st.integers(0, 2**40))
def test_an_unwrapped_psn_travels_as_its_24_bits(start: int, near: int) -> None:
    assert psn.wire_psn(start) == start
    assert psn.wire_psn(psn.unwrap(start, near)) == start


@given(PSNS, PSNS)
def test_every_psn_but_the_farthest_is_ahead_one_way_and_behind_the_other(a: int, b: int) -> None:
    if psn.diff(a, b) != -(2**23):
        assert psn.diff(b, a) == -psn.diff(a, b)


@given(st.integers(0, 2**40), LEADS)
def test_unwrapping_finds_the_number_that_was_sent(near: int, lead: int) -> None:
    sent = near + lead
    assert psn.unwrap(sent & psn.MASK, near) == sent
