"""A set of PSNs kept as stretches is a set: whatever is done to it, it has what a Python set has."""

from __future__ import annotations

from amount import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rocekit.track.psn_ranges import PsnRanges

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 60), st.integers(-2, 20)),
        st.tuples(st.just("remove"), st.integers(0, 80), st.just(0)),
        st.tuples(st.just("below"), st.integers(0, 80), st.just(0)),
    ),
    max_size=30,
)


@settings(max_examples=examples(100), deadline=None)
@example(steps=[("add", 0, 2)], first=1, end=1)
@given(steps=STEPS, first=st.integers(0, 80), end=st.integers(0, 80))
def test_stretches_of_psns_are_a_set(steps: list[tuple[str, int, int]], first: int, end: int) -> None:
    ranges, plain = PsnRanges(), set[int]()
    for what, psn, more in steps:
        if what == "add":
            ranges.add(psn, psn + more)
            plain |= set(range(psn, psn + more + 1))
        elif what == "below":
            ranges.keep_below(psn)
            plain = {p for p in plain if p < psn}
        elif psn in plain:
            ranges.remove(psn)
            plain.remove(psn)
        assert list(ranges) == sorted(plain)
        assert (len(ranges), bool(ranges), psn in ranges) == (len(plain), bool(plain), psn in plain)
    assert ranges.has_two_in_a_row(first, end) == any(first <= p < end and p + 1 in plain for p in plain)
