"""One boot of the lab for all test files: each file's program is a part of it, with a folder of its own.

A file says what it runs in the lab, and asks for what that left there::

    PART = Part("inject", (str(INSIDE / "inject_inside.py"),), timeout_s=1800)
    pytestmark = pytest.mark.lab(PART)

    def test_something(boot: Boot) -> None:
        folder = boot.of(PART)

Only parts of selected tests run. A part that fails, or runs out of time, does not keep the others from
running; if the lab itself ends before all of them have run, each of the others gets a boot of its own. So
does a part that ran out of time, or whose folder came back in part: a slow machine did that. A lab that does
not come up is started once more.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
from amount import EVERYTHING, MORE, lab_output
from lab_parts import LISTING, STATUS, Task
from places import INSIDE, TOOLS

from rocekit import lab
from rocekit.lab.jobs import Job
from rocekit.lab.net import LabError

AROUND_S = 60.0
"""What taking one part's wire down and making the next one's may take."""
PROCESSORS = 2 if MORE else 1
"""Of an emulated machine. A second one costs three tenths more of a real processor's time for the same work:
each waits for the other's locks, and what the emulator makes for several is slower. Where more is asked for,
programs run at the same moment.
"""


def _nothing() -> None:
    return None


@dataclass(frozen=True)
class Part:
    """A program that runs in the lab, on a wire that no other part has used.

    Attributes:
        name: of its folder.
        words: the arguments of Python, a script or ``-m`` and a module first; where there are ``jobs``, a
            file that lists them is the last.
        devices: how many there are on its wire.
        first: it runs on the wire that the lab has when it starts, and may leave it in any state.
        loads: modules that it needs, to be loaded once for all parts.
        obstacle: says why it does not run on this machine, or None.
    """

    name: str
    words: tuple[str, ...]
    timeout_s: float
    devices: int = 2
    jobs: tuple[Job, ...] = ()
    first: bool = False
    loads: tuple[str, ...] = ()
    obstacle: Callable[[], str | None] = _nothing

    def task(self, folder: Path) -> Task:
        """The part as an order for the program inside; ``folder`` is for its list of jobs."""
        words = self.words
        if self.jobs:
            listing = folder / f"{self.name}.jobs.json"
            listing.write_text(json.dumps([asdict(job) for job in self.jobs]))
            words = (*words, str(listing))
        return Task(self.name, words, self.timeout_s, self.devices, self.first, self.loads)


@dataclass
class Booted:
    """A lab that has ended, or the reason why it did not come that far.

    Attributes:
        tasks: by name, how each part ended that did.
        temporary: the temporary folder that the lab had for itself.
    """

    out: Path
    temporary: Path
    stdout: str = ""
    stderr: str = ""
    result: lab.LabResult | None = None
    error: LabError | None = None
    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)


class Boot:
    """The lab that the selected tests share. It boots when the first of them asks for it.

    Args:
        parts: those of the selected tests.
        folder: a temporary folder, for this only.
    """

    def __init__(self, parts: Sequence[Part], folder: Path) -> None:
        self._parts = [part for part in parts if part.obstacle() is None and self._kept(part) is None]
        self._folder = folder
        self._out = lab_output() or folder / "out"
        self._shared: Booted | None = None
        self._alone: dict[str, Booted] = {}

    def of(self, part: Part) -> Path:
        """The folder with what a part left; skips the test where the part cannot run here."""
        kept = self._kept(part)
        if kept is not None:
            return kept
        booted = self.booted(part)
        if part.name not in booted.tasks:
            raise booted.error or LabError(f"{part.name} did not run: {booted.stderr[-2000:]}")
        ended = booted.tasks[part.name]
        folder = booted.out / part.name
        assert ended["returncode"] == 0, (
            f"{part.name} ended with {ended} and said: {(folder / 'stderr.txt').read_text()[-2000:]}"
        )
        return folder

    def booted(self, part: Part) -> Booted:
        """The lab in which a part ran."""
        obstacle = part.obstacle() or "; ".join(lab.missing())
        if obstacle:
            pytest.skip(obstacle)
        if part.name in self._alone:
            return self._alone[part.name]
        # Everything is more than one machine's memory file system should hold.
        if self._shared is None and not EVERYTHING:
            self._shared = self._run(self._parts, "shared")
        if self._shared is not None and _ended(self._shared, part):
            return self._shared
        booted = self._run([part], part.name)
        if not _ended(booted, part):
            booted = self._run([part], part.name)
        self._alone[part.name] = booted
        return booted

    @staticmethod
    def _kept(part: Part) -> Path | None:
        folder = lab_output()
        return folder / part.name if folder is not None and (folder / part.name).is_dir() else None

    def _run(self, parts: Sequence[Part], name: str) -> Booted:
        """Boot once for these parts."""
        # Short, and of its own: what this lab leaves behind shows in it, whatever else runs on the machine.
        temporary = Path(tempfile.mkdtemp(prefix="rocekit-test-"))
        booted = Booted(self._out, temporary)
        tasks = [part.task(self._folder) for part in sorted(parts, key=lambda part: not part.first)]
        for task in tasks:
            shutil.rmtree(booted.out / task.name, ignore_errors=True)
        listing = self._folder / f"{name}.{LISTING}"
        listing.write_text(json.dumps([asdict(task) for task in tasks]))
        stdout, stderr = io.BytesIO(), io.BytesIO()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tempfile, "tempdir", str(temporary))
            try:
                booted.result = lab.run(
                    [sys.executable, str(INSIDE / "lab_parts.py"), str(listing), str(TOOLS)],
                    out=booted.out,
                    cpus=PROCESSORS,
                    timeout_s=sum(task.timeout_s + AROUND_S for task in tasks),
                    stdout=stdout,
                    stderr=stderr,
                )
            except LabError as error:
                booted.error = error
        booted.stdout, booted.stderr = stdout.getvalue().decode(), stderr.getvalue().decode()
        for task in tasks:
            status = booted.out / task.name / STATUS
            if status.exists() and _whole(ended := json.loads(status.read_text()), status.parent):
                booted.tasks[task.name] = ended
        return booted

    def close(self) -> None:
        """Remove the temporary folders, unless a lab left something in them."""
        for booted in (self._shared, *self._alone.values()):
            if booted is not None and not any(booted.temporary.iterdir()):
                booted.temporary.rmdir()


def _ended(booted: Booted, part: Part) -> bool:
    """Whether a part came to its end in this lab, well or not."""
    ended = booted.tasks.get(part.name)
    return ended is not None and not ended["timed_out"]


def _whole(ended: dict[str, Any], folder: Path) -> bool:
    """Whether all files that a part left have come back."""
    return all(
        (folder / name).is_file() and (folder / name).stat().st_size == size
        for name, size in ended["files"].items()
    )
