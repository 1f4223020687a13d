"""What queues have lost because the rings were full: the table behind a process's rings.

A QP's records that had no room are counted in its own entry, so that the journal can say of which QP it lacks
how many. ``interposer/record.h`` has the layout.
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

ENTRY = struct.Struct("<QQQQ")
"""key, sends, receives, completions."""
ENTRIES: Final = 4096
TABLE: Final = ENTRIES * ENTRY.size
"""Bytes of the table."""
_SRQ: Final = 1 << 40


class Loss:
    """Records of a queue that are not in the journal.

    Attributes:
        number: of the QP, or of the shared receive queue (``srq``).
    """

    __slots__ = ("completions", "device", "number", "receives", "sends", "srq")

    def __init__(
        self, device: int, number: int, srq: bool, sends: int, receives: int, completions: int
    ) -> None:
        self.device, self.number, self.srq = device, number, srq
        self.sends, self.receives, self.completions = sends, receives, completions

    def counts(self) -> dict[str, int]:
        """By kind, without those of which nothing is lost."""
        found = {"sends": self.sends, "receives": self.receives, "completions": self.completions}
        return {kind: count for kind, count in found.items() if count}


class LossTable:
    """The table in a mapped file, and what was in it at the last look.

    Args:
        at: where it begins.
    """

    def __init__(self, at: int) -> None:
        self._at = at
        self._changes = 0
        self._seen: dict[int, tuple[int, int, int]] = {}

    def look(self, memory: memoryview, changes: int) -> list[Loss]:
        """What was lost since the last look; cheap where nothing was.

        Args:
            changes: how often the table has changed.
        """
        if changes == self._changes:
            return []
        self._changes = changes
        found = []
        for key, *counts in ENTRY.iter_unpack(bytes(memory[self._at : self._at + TABLE])):
            before = self._seen.get(key, (0, 0, 0))
            now = (counts[0], counts[1], counts[2])
            if not key or now == before:
                continue
            self._seen[key] = now
            new = (now[k] - before[k] for k in range(3))
            found.append(Loss(key >> 32 & 0xFF, key & 0xFFFFFFFF, bool(key & _SRQ), *new))
        return found
