"""What each one-way flow of packets has: counts, sizes, classes, congestion marks, silences."""

from typing import Final

#: Payload bytes of a flow are summed over spans of this length: its rate over time.
RATE_NS: Final = 1_000_000
#: Spans of a flow's rate that are kept: the first ones with payload.
MOST_SPANS: Final = 100_000
