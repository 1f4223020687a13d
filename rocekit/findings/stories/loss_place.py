"""A packet that was lost: on which side of one capture point, or where among several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

BEFORE, BETWEEN, BEYOND = "before", "between", "beyond"


class LossPlace(NamedTuple):
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


class LostCopy(NamedTuple):
    """A packet that was lost.

    Attributes:
        where: ``before`` or ``behind`` the capture point; empty if unknown.
        since_ns, until_ns: it was sent in this time, if it is in the capture.
        packets: how many packets of its pass were lost from it on, with itself, as far as the capture shows.
    """

    psn: int
    where: str
    since_ns: int
    until_ns: int
    packets: int = 1
