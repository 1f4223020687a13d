"""A process's rank, from what its launcher (srun, mpirun, torchrun) put into the environment.

A launcher starts the same command line on every host, so the ranks of a job would all write the file that it
names. Its rank is what tells them apart, and what people call a process of a parallel program by.
"""

from __future__ import annotations

import os

from rocekit.errors import RocekitError
from rocekit.files import JOURNAL_SUFFIX

TYPE_CHECKING = False  # to import typing would delay the program
if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Final

VARIABLES: Final = (
    "OMPI_COMM_WORLD_RANK",
    "MV2_COMM_WORLD_RANK",
    "PMI_RANK",
    "PMIX_RANK",
    "SLURM_PROCID",
)
"""The first that is set counts. Slurm's is last: an mpirun in a batch script leaves to its ranks the number
that Slurm gave to the script, or to the daemon of the host."""
_TORCHRUN: Final = "TORCHELASTIC_RUN_ID"
"""torchrun's own variable for the rank, RANK, is too common a name to count alone."""


class Rank:
    """A rank, and the variable that has it."""

    __slots__ = ("number", "variable")

    def __init__(self, number: int, variable: str) -> None:
        self.number, self.variable = number, variable

    def name(self, path: Path) -> Path:
        """A file of this rank: ``x.journal.jsonl`` becomes ``x.rank-3.journal.jsonl``."""
        return path.with_name(self._named(path.name))

    def text(self, path: str) -> str:
        """The same of a path that is text: the start of a program has no time to import pathlib."""
        folder, name = os.path.split(path)
        return os.path.join(folder, self._named(name))  # noqa: PTH118

    def _named(self, name: str) -> str:
        suffix = JOURNAL_SUFFIX if name.endswith(JOURNAL_SUFFIX) else os.path.splitext(name)[1]  # noqa: PTH122
        return f"{name.removesuffix(suffix)}.rank-{self.number}{suffix}"


def find_rank(variables: Mapping[str, str]) -> Rank | None:
    """This process's rank; None where no launcher has given it one.

    Raises:
        RocekitError: a launcher's variable is no rank.
    """
    names = ("RANK", *VARIABLES) if _TORCHRUN in variables else VARIABLES
    name = next((name for name in names if name in variables), None)
    if name is None:
        return None
    if name == "SLURM_PROCID" and _in_batch_script(variables):
        return None
    text = variables[name]
    if not text.isascii() or not text.isdigit():
        raise RocekitError(
            f"{name} is {text!r}, no rank: two ranks would write one journal; unset it, or correct it"
        )
    return Rank(int(text), name)


def _in_batch_script(variables: Mapping[str, str]) -> bool:
    """Whether this is the script of a job, which Slurm calls number 0, too, and and which is no rank."""
    return "SLURM_JOB_ID" in variables and "SLURM_STEP_NUM_TASKS" not in variables


def default_journal(program: str, rank: Rank | None) -> str:
    """A new file in the current folder, named like the program, of this rank."""
    stem = os.path.basename(program)  # noqa: PTH119
    number = 1
    while True:
        path = f"{stem}{'' if number == 1 else f'-{number}'}{JOURNAL_SUFFIX}"
        path = path if rank is None else rank.text(path)
        if not os.path.exists(path):  # noqa: PTH110
            return path
        number += 1
