"""The frames that a finding lists of a story with many go-backs are the first ones, whatever their order."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from rocekit.findings.stories.story import GoBack, Story, intervals_of, longest_wait_ns
from rocekit.track.connections import Connection
from rocekit.track.events import happened

TIMES = st.lists(st.integers(0, 200), min_size=1, max_size=40)


def story_of(naks: list[int], repeats: list[int]) -> Story:
    """A story with NAKs and go-backs at these times; each frame is named by its place among all of them."""
    story = Story(Connection(0, "RC", ["10.0.0.1", "10.0.0.2"], [17, 18]), 0, 7)
    frame = 1
    for time_ns in naks:
        story.add_nak(happened("nak", time_ns, frame, 7, 7, 1))
        frame += 1
    for time_ns in repeats:
        story.add_go_back(GoBack(happened("repeat", time_ns, frame, 7, 7, 1)))
        frame += 1
    return story


@given(TIMES, TIMES, st.integers(1, 50))
def test_first_frames_are_those_of_all_in_order_of_time(
    naks: list[int], repeats: list[int], most: int
) -> None:
    story = story_of(naks, repeats)
    marks = sorted((time_ns, frame) for frame, time_ns in enumerate([*naks, *repeats], 1))
    assert story.first_frames(most) == [frame for _, frame in marks][:most]


@given(TIMES)
def test_waits_between_go_backs(repeats: list[int]) -> None:
    runs = story_of([], repeats).runs()
    runs[0].opener.waited_ns = 11
    apart = [b - a for a, b in itertools.pairwise(repeats)]
    assert intervals_of(runs) == apart
    assert longest_wait_ns(runs) == max([11, *apart])
