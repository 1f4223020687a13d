"""The outcome of a recording."""

from __future__ import annotations

from rocekit.record import ring

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path


class Recording:
    """The outcome of a recording.

    Attributes:
        status: the program's exit status, or None if a signal ended it; ``signal``: that signal.
        processes: those that opened a device, by pid: their program's name.
        sends, receives, completions, others: records written.
        lost: records for which the rings had no room, by kind.
        left_out: records that the filter left out.
        not_recorded: the program's actions that the recorder cannot see.
        going_on: processes that still ran after the program's end.
        files: those of the journal that stay, if it was written into several.
        failed: why journal or packets could no longer be written; what was written before is there.
        unwritten: whether a file could not be written: its name then has what it had before, or nothing.
    """

    def __init__(self, journal: Path | str) -> None:
        self.journal = journal
        self.status: int | None = None
        self.signal: int | None = None
        self.processes: dict[int, str] = {}
        self.sends = self.receives = self.completions = self.others = 0
        self.lost: dict[str, int] = {}
        self.left_out = 0
        self.not_recorded: list[str] = []
        self.going_on: list[int] = []
        self.failed: list[str] = []
        self.unwritten = False
        self.files: list[Path] = []

    def tally(self, kind: int, count: int = 1) -> None:
        """Count records of a kind."""
        if kind == ring.SEND:
            self.sends += count
        elif kind == ring.RECV:
            self.receives += count
        elif kind == ring.WC:
            self.completions += count
        elif kind != ring.QUEUE_LOST:
            self.others += count

    @property
    def name(self) -> str:
        """The journal's name, as commands take it."""
        if len(self.files) > 1:
            return f"rotated:{self.files[0]}..{self.files[-1].name}"
        return str(self.files[0] if self.files else self.journal)

    @property
    def total_lost(self) -> int:
        return sum(self.lost.values())
