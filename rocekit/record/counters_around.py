"""The counters of the RDMA devices around a recording."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from rocekit.machine.counter_files import FolderRead
    from rocekit.machine.counters import CounterPlace, CounterSnapshot
    from rocekit.record.capture import PacketCapture


class CountersAround:
    """Reads the counters of the RDMA devices, or of those on an interface and of the interface itself.

    Attributes:
        gids: the addresses in the table of each device's port 1, as far as they were read for this.
    """

    def __init__(self, interface: str | None, capture: PacketCapture | None) -> None:
        self._interface, self._capture = interface, capture
        self._places: list[CounterPlace] = []
        self.gids: dict[str, list[str]] = {}

    def __call__(self, before: Callable[[str], FolderRead | None] | None = None) -> list[CounterSnapshot]:
        """The counters now, or as they were read ``before``."""
        from rocekit.machine.counters import CounterReader, RunningCapture

        running = None
        if self._interface is not None and self._capture is not None:
            running = RunningCapture(self._interface, self._capture.path.name)
        # Asking tc and ethtool takes longer than reading files: only where packets are captured.
        reader = CounterReader(programs=self._interface is not None)
        if not self._places:  # to find them takes longer than to read them
            if self._interface is None:
                found = reader.tables()
                self._places = reader.rdma_places(found)
                self.gids = {
                    port.device: list(dict.fromkeys(gid.ip for gid in port.gids))
                    for port in found
                    if port.number == 1
                }
            else:
                self._places = reader.places([self._interface])
        if before is None:
            return [reader.snapshot(place, running) for place in self._places]
        return reader.snapshots_of(self._places, before)
