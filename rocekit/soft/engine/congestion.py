"""Congestion control: CNPs (A17.9.3), and DCQCN at their receiver (Zhu et al., SIGCOMM 2015).

The notification point (:class:`Notifier`) sends at most one CNP in an interval. The reaction point
(:class:`Dcqcn`) cuts its rate at each CNP and raises it again in steps, by time and by bytes sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class DcqcnParameters:
    """DCQCN's parameters; the defaults are those of the paper, except for the rates.

    Attributes:
        line_rate_bps, min_rate_bps: the highest and the lowest rate.
        g: the weight of a new CNP in alpha, the estimate of congestion.
        alpha_ns: time without CNPs after which alpha decays once.
        increase_ns, increase_bytes: time and bytes after which the rate rises by a step.
        fast_steps: steps that only halve the gap to the rate before the cut (fast recovery).
        additive_bps: what a later step adds to the target rate.
        hyper_bps: what it adds when both time and bytes have passed ``fast_steps``.
        initial_alpha: before the first CNP.
        cut_ns: the shortest time between two cuts; 0: every CNP cuts.
        first_bps: the rate that a CNP sets at the line rate; None: it cuts as every other.
        most_cut: the largest share of the rate that a cut takes.
        clamp_target: whether every cut lowers the target to the rate before it; False: only the first cut
            after a step up.
    """

    line_rate_bps: int = 10_000_000_000
    min_rate_bps: int = 10_000_000
    g: float = 1 / 256
    alpha_ns: int = 55_000
    increase_ns: int = 55_000
    increase_bytes: int = 10_000_000
    fast_steps: int = 5
    additive_bps: int = 40_000_000
    hyper_bps: int = 400_000_000
    initial_alpha: float = 1.0
    cut_ns: int = 0
    first_bps: int | None = None
    most_cut: float = 1.0
    clamp_target: bool = True


class Dcqcn:
    """The rate of one flow.

    Attributes:
        rate_bps, target_bps: the current rate, and the rate that it rises to.
        alpha: the estimate of congestion, 0 to 1.
        limited: whether the rate is below the line rate.
        ready_ns: when the next packet may be sent.
    """

    def __init__(self, parameters: DcqcnParameters) -> None:
        self._parameters = parameters
        self.rate_bps = float(parameters.line_rate_bps)
        self.target_bps = self.rate_bps
        self.alpha = parameters.initial_alpha
        self._alpha_due: int | None = None
        self._increase_due = self._cut_after = 0
        self._time_steps = self._byte_steps = self._bytes = 0
        self.limited = False
        self.ready_ns = 0

    def on_cnp(self, now: int) -> None:
        """Cut the rate (the paper's equation 1)."""
        p = self._parameters
        self._advance(now)
        if now < self._cut_after:
            return
        self._cut_after = now + p.cut_ns
        if p.clamp_target or not self.limited or self._time_steps or self._byte_steps:
            self.target_bps = self.rate_bps
        cut = self.rate_bps * (1 - min(self.alpha / 2, p.most_cut))
        if p.first_bps is not None and not self.limited:
            cut = min(float(p.first_bps), self.rate_bps)
        self.rate_bps = max(cut, float(p.min_rate_bps))
        self.alpha = (1 - p.g) * self.alpha + p.g
        self._time_steps = self._byte_steps = self._bytes = 0
        self._alpha_due = now + p.alpha_ns
        self._increase_due = now + p.increase_ns
        self.limited = True
        self.changed("cnp", now)

    def on_send(self, size: int, now: int) -> None:
        """A packet of ``size`` bytes is sent; the next one waits as long as this one takes at the rate."""
        if not self.limited:
            return
        self._advance(now)
        self._bytes += size
        if self._bytes >= self._parameters.increase_bytes:
            self._bytes -= self._parameters.increase_bytes
            self._byte_steps += 1
            self._increase("bytes", now)
        self.ready_ns = now + round(size * 8 * 1_000_000_000 / self.rate_bps)

    def changed(self, why: str, now: int) -> None:
        """The rate changed at a ``cnp``, or after the time or the bytes of a step (``time``, ``bytes``)."""

    def _advance(self, now: int) -> None:
        """Do what the time until now brings: alpha decays, also at the line rate, and the rate rises."""
        p = self._parameters
        if self._alpha_due is not None and self._alpha_due <= now:
            periods = (now - self._alpha_due) // p.alpha_ns + 1
            self.alpha *= (1 - p.g) ** periods  # equation 2
            self._alpha_due += periods * p.alpha_ns
        while self.limited and self._increase_due <= now:
            due = self._increase_due
            self._time_steps += 1
            self._increase_due += p.increase_ns
            self._increase("time", due)

    def _increase(self, why: str, now: int) -> None:
        """A step towards the target rate, which itself rises after the fast steps (equations 3 and 4)."""
        p = self._parameters
        if min(self._time_steps, self._byte_steps) > p.fast_steps:
            self.target_bps += p.hyper_bps
        elif max(self._time_steps, self._byte_steps) > p.fast_steps:
            self.target_bps += p.additive_bps
        self.target_bps = min(self.target_bps, float(p.line_rate_bps))
        self.rate_bps = (self.target_bps + self.rate_bps) / 2
        if self.rate_bps > 0.999 * p.line_rate_bps:
            self.rate_bps = float(p.line_rate_bps)
            self.limited = False
            self.ready_ns = 0
        self.changed(why, now)


#: How many senders a notification point keeps in mind: on UD anyone may be one.
_MOST_SENDERS: Final = 1024


class Notifier:
    """The CNPs that a QP owes for packets received with CE.

    It remembers the latest senders only; one that it has forgotten may get a CNP too soon.

    Attributes:
        due: (IP address, QPN) to send one to.
    """

    __slots__ = ("_interval", "_next", "due")

    def __init__(self, interval_ns: int) -> None:
        self._interval = interval_ns
        self._next: dict[tuple[str, int], int] = {}
        self.due: list[tuple[str, int]] = []

    def __len__(self) -> int:
        """How many senders it remembers."""
        return len(self._next)

    def marked(self, source: str, qpn: int, now: int) -> None:
        """A packet with CE came from that QP: a CNP is due, unless one was due there within the interval."""
        sender = (source, qpn)
        if now < self._next.get(sender, now) or len(self.due) >= _MOST_SENDERS:
            return
        self._next.pop(sender, None)
        if len(self._next) >= _MOST_SENDERS:
            del self._next[next(iter(self._next))]  # the one notified longest ago
        self._next[sender] = now + self._interval
        if sender not in self.due:
            self.due.append(sender)
