"""Clocks: how far each host's clock is from the capture's, and within what bounds.

Causes come before their effects: a WR is posted before its first packet, a WC is polled after its last ACK,
and a receive completes after its message's last packet. Each gives a bound of the offset.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rocekit.wire.words import duration

if TYPE_CHECKING:
    from rocekit.journal.work_requests import WorkRequest
    from rocekit.track.transfers import Transfer


@dataclass(frozen=True, slots=True)
class Clock:
    """A host's clock: host time − capture time lies between ``low_ns`` and ``high_ns``.

    Attributes:
        offset_ns: the assumed offset: zero where the bounds allow it, else their middle.
        low_ns, high_ns: None where there is no such bound. Where ``low_ns`` is above ``high_ns``,
        no constant offset fits.
    """

    host: str
    offset_ns: int
    low_ns: int | None
    high_ns: int | None

    @property
    def crossed_ns(self) -> int:
        """By how much the bounds cross: a clock was set or drifts, or the capture's times are not right."""
        if self.low_ns is None or self.high_ns is None:
            return 0
        return max(self.low_ns - self.high_ns, 0)

    @property
    def crossing(self) -> str:
        """That the bounds cross, in words."""
        return (
            f"clock of {self.host}: its bounds cross by {duration(self.crossed_ns)}: no constant offset puts "
            "each work request before its packets and each completion after its ACK, so this clock or the "
            "capture's was set or drifts; times between the two are wrong by half of that at least"
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "host": self.host,
            "offset_ns": self.offset_ns,
            "low_ns": self.low_ns,
            "high_ns": self.high_ns,
            "crossed_ns": self.crossed_ns,
        }


def bound_clocks(
    sends: Iterable[tuple[WorkRequest, Transfer]], transfers: Iterable[Transfer]
) -> dict[str, Clock]:
    """The clock of each host.

    Args:
        sends: each matched work request with its transfer.
        transfers: all, of which those with a matched receive give bounds.
    """
    low: dict[str, int] = {}
    high: dict[str, int] = {}
    hosts: dict[str, None] = {}
    for wr, transfer in sends:
        host = wr.qp.host
        hosts[host] = None
        bound = wr.posted_ns - transfer.first_ns
        low[host] = max(low.get(host, bound), bound)
        if wr.wc is not None and transfer.acked_ns is not None and wr.wc.status == "SUCCESS":
            bound = wr.wc.polled_ns - transfer.acked_ns
            high[host] = min(high.get(host, bound), bound)
    for transfer in transfers:
        # Where packets were sent again, it is unknown which of them arrived: no bound.
        if transfer.recv_wc is not None and transfer.recv_wr is not None and not transfer.events:
            host = transfer.recv_wr.qp.host
            hosts[host] = None
            bound = transfer.recv_wc.polled_ns - transfer.request_end_ns
            high[host] = min(high.get(host, bound), bound)
    return {host: _clock(host, low.get(host), high.get(host)) for host in hosts}


def _clock(host: str, low: int | None, high: int | None) -> Clock:
    if (low is None or low <= 0) and (high is None or high >= 0):
        offset = 0
    elif low is not None and high is not None:
        offset = (low + high) // 2
    else:
        offset = low if low is not None else (high or 0)
    return Clock(host, offset, low, high)
