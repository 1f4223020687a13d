"""The place where a packet was lost, by several captures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BEFORE, BETWEEN, BEYOND = "before", "between", "beyond"


@dataclass(frozen=True, slots=True)
class LossPlace:
    """Where a packet was lost.

    Attributes:
        where: ``before`` the first capture point on its way, ``between`` two, or ``beyond`` the last.
        files: the captures next to the place: one, or the one that has the packet and the next, which has
        not. sender: the address of its sender.
        seen: the frames of the lost packet, one in each capture that has it.
    """

    psn: int
    where: str
    files: tuple[int, ...]
    sender: str
    seen: tuple[int, ...]

    def words(self, names: Sequence[str]) -> str:
        """``between x.pcap and y.pcap``."""
        files = [names[f] for f in self.files]
        if self.where == BETWEEN:
            return f"between {files[0]} and {files[1]}"
        if self.where == BEYOND:
            return f"beyond {files[0]}"
        return f"between {self.sender} and {files[0]}"
