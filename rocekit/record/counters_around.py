"""The counters of the RDMA devices around a recording."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocekit.machine.counter_files import FolderRead
    from rocekit.machine.counters import CounterPlace, CounterSnapshot
    from rocekit.record.capture import PacketCapture


class CountersAround:
    """Reads the counters of the RDMA devices, or of those on an interface and of the interface itself."""

    def __init__(self, interface: str | None, capture: PacketCapture | None) -> None:
        self._interface, self._capture = interface, capture
        self._places: list[CounterPlace] = []

    def __call__(self, before: Callable[[str], FolderRead | None] | None = None) -> list[CounterSnapshot]:
        """The counters now, or as they were read ``before``."""
        from rocekit.machine.counters import CounterReader, RunningCapture

        running = None
        if self._interface is not None and self._capture is not None:
            running = RunningCapture(self._interface, self._capture.path.name)
        # Asking tc and ethtool takes longer than reading files: only where packets are captured.
        reader = CounterReader(programs=self._interface is not None)
        if not self._places:  # to find them takes longer than to read them
            named = None if self._interface is None else [self._interface]
            self._places = reader.rdma_places() if named is None else reader.places(named)
        if before is None:
            return [reader.snapshot(place, running) for place in self._places]
        return reader.snapshots_of(self._places, before)
