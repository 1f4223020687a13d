"""The measurements of a run, in perftest's numbers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rocekit.scenarios.run import Samples

#: No peak is computed of streams with more messages, as in perftest.
MOST_FOR_PEAK: Final = 2000


def measures(samples: Samples) -> dict[str, float | int]:
    """perftest's numbers: latencies in µs, bandwidth in Gb/s and million messages a second."""
    found: dict[str, float | int] = {"operations": samples.operations, "bytes": samples.moved}
    if samples.kind == "latency":
        times = sorted(samples.times_ns) or [0]
        found |= {
            "t_min_us": times[0] / 1000,
            "t_max_us": times[-1] / 1000,
            "t_typical_us": statistics.median(times) / 1000,
            "t_avg_us": statistics.fmean(times) / 1000,
            "t_stdev_us": statistics.pstdev(times) / 1000,
            "p99_us": percentile(times, 99) / 1000,
            "p999_us": percentile(times, 99.9) / 1000,
        }
    else:
        seconds = max(1, samples.total_ns) / 1e9
        size = samples.moved / max(1, samples.operations)
        found |= {
            "bandwidth_peak_gbps": size * 8 / samples.peak_ns if samples.peak_ns else 0.0,
            "bandwidth_gbps": samples.moved * 8 / seconds / 1e9,
            "message_rate_mpps": samples.operations / seconds / 1e6,
        }
    return found


def percentile(ordered: list[int], percent: float) -> int:
    """The smallest value that so many percent of them do not exceed."""
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, min(len(ordered), int(rank)) - 1)]


def peak_ns(posted: Sequence[int], completed: Sequence[int]) -> float:
    """perftest's peak: the least time for each message over all sequences of messages i … j, from the post of
    i to the completion of j; 0 if there are none, or too many to try all.

    Args:
        posted, completed: when each message was, in ns.
    """
    if not completed or len(completed) > MOST_FOR_PEAK:
        return 0.0
    best = float("inf")
    for first, start in enumerate(posted):
        for count, end in enumerate(completed[first:], 1):
            best = min(best, (end - start) / count)
    return max(best, 1.0)
