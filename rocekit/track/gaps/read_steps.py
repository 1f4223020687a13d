"""How far apart the PSNs of a requester's READ requests are, which shows the path MTU that it counts with.

A READ takes as many PSNs as it has responses, and the next request comes right behind them (IBA Vol. 1,
9.4.4). The requester counts them with its own path MTU, the responder sends them with its own: where the two
differ, the next request is not where the responder expects it. That looks like losses, or like requests that
come again, and is neither.
"""

from __future__ import annotations

from typing import Final

#: Pairs of a length and a step that are kept of one side. Programs have few lengths; of more, these suffice.
_KINDS: Final = 64


class ReadSteps:
    """The steps from READ requests to the requests right behind them, once a side has had troubles.

    Attributes:
        seen: how often there was each step, by the length of the READ in bytes and the step in PSNs.
    """

    def __init__(self) -> None:
        self.seen: dict[tuple[int, int], int] = {}
        self._psn = self._length = self._va = self._time_ns = -1

    def take(self, p: int, length: int, va: int, before_ns: int, time_ns: int) -> None:
        """A READ request was sent with PSN ``p``, and the request before it at ``before_ns``."""
        psn, before, start = self._psn, self._length, self._va
        is_next = self._time_ns == before_ns and 0 <= psn < p and before >= 0
        self._psn, self._length, self._va, self._time_ns = p, length, va, time_ns
        if not is_next or (va > start and va + length == start + before):
            return  # another request was sent between, it went back, or it asks for the rest of the same READ
        kind = before, p - psn
        if kind in self.seen:
            self.seen[kind] += 1
        elif len(self.seen) < _KINDS:
            self.seen[kind] = 1
