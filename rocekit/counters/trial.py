"""The trial of the counters in a journal: its snapshots, and the packets as they are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rocekit.counters.comparison import compare
from rocekit.counters.watch import MOST, CounterWatch

if TYPE_CHECKING:
    from rocekit.counters.basis import CaptureFacts
    from rocekit.counters.comparison import CounterComparison
    from rocekit.machine.counters import CounterSnapshot
    from rocekit.packets import Packets
    from rocekit.points.vantage import Vantages
    from rocekit.track.connections import Connection


class CounterTrial:
    """Keeps what is needed of the packets, and compares at the end.

    Args:
        snapshots: those known before the first packet; others may be added. Packets are kept of the devices
            of these.
        most: packets to keep; of more nothing is predicted.
    """

    def __init__(self, snapshots: Sequence[CounterSnapshot], most: int = MOST) -> None:
        self.snapshots = list(snapshots)
        self._watch = CounterWatch((a for snapshot in snapshots for a in snapshot.place.addresses), most)

    def feed(self, packets: Packets, file: int = 0) -> None:
        """Add a batch of a capture's packets."""
        self._watch.feed(packets, file)

    def give_up(self) -> None:
        """Keep no more packets, so that nothing is predicted: they are no longer numbered alike."""
        self._watch.give_up()

    def results(
        self, connections: Sequence[Connection], vantages: Vantages, facts: CaptureFacts
    ) -> list[CounterComparison]:
        """The comparisons, after the last batch. A device without two snapshots has none."""
        known = [s for s in self.snapshots if self._watch.addresses.issuperset(s.place.addresses)]
        return compare(known, self._watch, connections, vantages, facts)
