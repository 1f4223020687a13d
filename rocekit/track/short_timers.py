"""The timer of a requester that retries sooner than its negotiated timeout, learned from its waits.

Some NICs retransmit adaptively: the first wait is much shorter than the local ACK timeout, and later ones of
the same packet grow. One short wait proves no timer; waits that agree with each other make one likely.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rocekit.track.connections import Connection

#: First waits of one timer differ by no more than this share, nor does a wait from twice the one before.
_ALIKE: Final = 0.05
#: How often a timer may have doubled.
_DOUBLINGS: Final = 8
#: So many waits make a timer likely.
_LEAST: Final = 2


def short_timer_ns(connection: Connection, side: int) -> int | None:
    """The first wait of the requester's timer, where it is probably shorter than negotiated; else None."""
    waits = [(psn, waited_ns) for whose, psn, waited_ns in connection.short_waits if whose == side]
    if len(waits) < _LEAST:
        return None
    first_ns = min(waited_ns for _, waited_ns in waits)
    before = -1, 0
    for psn, waited_ns in waits:
        again = psn == before[0] and before[1] > 0
        fits = _is_about(waited_ns, first_ns)
        if again:
            fits = _is_about(waited_ns, before[1]) or _is_about(waited_ns, 2 * before[1])
        if not fits:
            return None
        before = psn, waited_ns
    return first_ns


def fits_timer(waited_ns: int, timer_ns: int) -> bool:
    """Whether a wait is as long as a timer, or as one that doubled a few times."""
    return any(_is_about(waited_ns, timer_ns << n) for n in range(_DOUBLINGS))


def _is_about(waited_ns: int, expected_ns: int) -> bool:
    return abs(waited_ns - expected_ns) <= _ALIKE * expected_ns
