"""What the tests of the recorder share: the stub device, a program on it, and running it recorded."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocekit.journal import Journal, JournalEvent, read_journal
from rocekit.record.build import compiler

STUB = Path(__file__).resolve().parent / "stub"
FLAGS = ("-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror")


LIBRARY = "libibverbs.so.1"


def compiled(out: Path, source: str, *more: str) -> Path:
    """A program or library from a source of the stub's folder. The machine must have a compiler."""
    cc = compiler()
    assert cc is not None
    subprocess.run(
        [cc, *FLAGS, "-o", str(out), str(STUB / source), *more, "-lpthread", "-ldl"], check=True, timeout=120
    )
    return out


def build_library(folder: Path) -> Path:
    """A copy of the stub library."""
    return compiled(
        folder / LIBRARY,
        "stub_verbs.c",
        *("-fPIC", "-shared", f"-Wl,-soname,{LIBRARY}", f"-Wl,--version-script={STUB / 'stub_verbs.map'}"),
    )


def build_stub(folder: Path) -> Path:
    """The stub library and the program on it; the program's path. The machine must have a compiler."""
    return compiled(folder / "program", "program.c", str(build_library(folder)), f"-Wl,-rpath,{folder}")


@dataclass(frozen=True)
class Ran:
    """A recorded program's end and journal."""

    returncode: int
    stdout: str
    stderr: str
    journal: Journal
    path: Path

    def of(self, *events: str) -> list[JournalEvent]:
        return self.journal.of(*events)

    def one(self, event: str) -> JournalEvent:
        found = self.of(event)
        assert len(found) == 1, found
        return found[0]


def recorder(journal: Path, *options: str) -> list[str]:
    """The command line of ``rocekit record``, up to the program."""
    return [sys.executable, "-m", "rocekit.cli", "record", "-o", str(journal), *options, "--"]


def record(journal: Path, command: list[str], *options: str, **more: Any) -> Ran:
    done = subprocess.run(
        [*recorder(journal, *options), *command],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | more.pop("env", {}),
        **more,
    )
    return Ran(done.returncode, done.stdout, done.stderr, read_journal(journal), journal)


def run(program: Path, tmp_path: Path, what: str, *arguments: str, options: tuple[str, ...] = ()) -> Ran:
    """The stub program, recorded as it does ``what``."""
    return record(tmp_path / "x.journal.jsonl", [str(program), what, *arguments], *options)


def sends(ran: Ran) -> list[int]:
    """The wr_ids that were posted to send."""
    return [event["wr_id"] for event in ran.of("wr_posted")]
