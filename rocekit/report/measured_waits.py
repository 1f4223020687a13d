"""The timeouts that were measured, beside the one that was agreed on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rocekit import wire
from rocekit.findings.costs import against_timeout, timer_words
from rocekit.report.happenings import TIMEOUT
from rocekit.track.short_timers import short_timer_ns
from rocekit.wire.words import duration, plural

if TYPE_CHECKING:
    from rocekit.report.happenings import Happening
    from rocekit.track.connections import Connection


def measured_waits(happenings: Iterable[Happening]) -> dict[int, dict[int, list[int]]]:
    """The silences before timeouts, ns: by connection and side, rising."""
    waits: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for h in happenings:
        if h.kind == TIMEOUT and h.until_ns > h.from_ns:
            waits[h.lane // 2][h.lane % 2].append(h.until_ns - h.from_ns)
    return {id: {side: sorted(found) for side, found in sides.items()} for id, sides in waits.items()}


def wait_words(connection: Connection, side: int, waits: Sequence[int]) -> str:
    """What the waits of one requester say of its timeout; empty without waits.

    The timer may take up to four times its value (9.7.6.1.3). It may have started at an earlier packet than
    the last one, so that the silence is shorter than the timer.
    """
    if not waits:
        return ""
    low, high = duration(waits[0]), duration(waits[-1])
    span = low if low == high else f"{low} to {high}"
    measured = f"{plural(len(waits), 'timeout')} measured: silence of {span} before the packets came again."
    code = connection.negotiated[side].ack_timeout
    timeout_ns = None if code is None else wire.local_ack_timeout_ns(code)
    if code is None:
        return f"{measured} What was configured is not in the capture."
    if timeout_ns is None:
        return f"{measured} Configured is 0: wait for ever. Then these are not that timer's."
    configured = f"Configured: 4.096 µs × 2^{code} = {duration(timeout_ns)}; up to four times that is allowed"
    found = against_timeout(timeout_ns, waits)
    timer_ns = short_timer_ns(connection, side)
    if timer_ns is not None:
        found["probable_timer_us"] = timer_ns / 1000
    words = timer_words(found)
    if not words and found["waits_below_timeout"]:
        below = plural(found["waits_below_timeout"], "wait")
        words = f" {below} shorter: the timer may have run since an earlier packet, or it is another one."
    return f"{measured} {configured}.{words or ' So they are as configured.'}"
