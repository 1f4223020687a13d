"""No command writes over a file that it reads, whichever way that file is named or found."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from forked import forked
from places import PCAPS

from rocekit.cli import COMMANDS, rocekit

#: Every parameter of every command that is a file: what it is for. A new one fails the test until it is here.
#: ``-r FILE`` (``read``) is the same as a file without an option.
FILES: dict[str, dict[str, str]] = {
    "analyze": {"files": "read", "journal": "read", "rules": "read"},
    "annotate": {"files": "read", "out": "written", "sidecar": "written", "journal": "read"},
    "check": {"files": "read", "outs": "written", "journal": "read", "rules": "read"},
    "completion": {},
    "conform": {
        **dict.fromkeys(("junit", "html", "failures", "save"), "written"),
        "known": "read",
    },
    "conform-agent": {},
    "counters": {"journal": "appended", "since": "read"},
    "craft": {"file": "read", "out": "written"},
    "decode": {"file": "read"},
    "devices": {},
    "doctor": {},
    "drill": {"keep": "written"},
    "explain": {"files": "read", "journal": "read", "rules": "read"},
    "export": {"files": "read", "out": "written", "journal": "read"},
    "extcap": {"folder": "written", "fifo": "written", "sshkey": "read"},
    "fleet": {},
    "generate": {"file": "written", "out": "written", "otg": "read", "journal": "written"},
    "inject": {"faults": "read", "capture": "written", "journal": "written"},
    "lab": {"out": "written"},
    "plot": {"files": "read", "output": "written", "journal": "read"},
    "record": {"output": "written", "write": "written"},
    "replay": {"file": "read", "out": "written"},
    "report": {"files": "read", "output": "written", "journal": "read", "rules": "read"},
    "rules": {"rules": "read"},
    "slice": {"files": "read", "out": "written", "journal": "read"},
    "stats": {"files": "read", "journal": "read"},
    "top": {},
    "topology": {"files": "read", "journal": "read"},
    "trace": {"write": "written", "journal": "read"},
    "verify": {"file": "read"},
}
#: Commands that write and read no file that they could write over: fleet's and drill's folders are new ones,
#: lab copies what its command left in a folder, and extcap writes the FIFO that Wireshark made.
NOTHING_READ = {"drill", "extcap", "lab"}


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_file_that_a_command_reads_or_writes_is_known_here(name: str) -> None:
    command = rocekit.get_command(click.Context(rocekit), name)
    assert command is not None
    files = {p.name for p in command.params if isinstance(p.type, click.Path)} - {"read"}
    assert files == set(FILES[name])


def test_every_command_that_writes_a_file_is_tried_below() -> None:
    writing = {name for name, files in FILES.items() if {"written", "appended"} & set(files.values())}
    assert {name.split()[0] for name in ATTEMPTS} == writing - NOTHING_READ


Attempt = Callable[[Path], tuple[str | Path, ...]]
INJECT = ("inject", "ping-sr", "--both", "--backend", "soft", "-n", "1")

CAPTURE = (PCAPS / "ping-write-clean.pcap").read_bytes()
JOURNAL = (
    b'{"time_ns": 1, "clock": "realtime", "host": "h", "pid": 1, "event": "mr_registered", "device": "rxe0", '
    b'"addr": 0, "length": 1, "lkey": 1, "rkey": 1}\n'
)
YAML = b"- {op: RC_SEND_ONLY}\n"

#: Each names as its output a file that it reads: named, found beside what is named, or as standard input.
ATTEMPTS: dict[str, tuple[str, bytes, Attempt]] = {
    "annotate": ("x.pcapng", CAPTURE, lambda x: ("annotate", x, x)),
    "annotate the journal": (
        "y.pcapng",
        JOURNAL,
        lambda x: ("annotate", x.parent / "x.pcap", x, "--journal", x),
    ),
    "annotate several": (
        "out/x.pcapng",
        CAPTURE,
        lambda x: ("annotate", x.parent.parent / "other.pcap", x, x.parent),
    ),
    "annotate several with a journal": (
        "out/x.pcapng",
        JOURNAL,
        lambda x: (
            *("annotate", x.parent.parent / "x.pcap", x.parent.parent / "other.pcap", x.parent),
            *("--journal", x),
        ),
    ),
    "check": ("x.json", CAPTURE, lambda x: ("check", x, "-o", x)),
    "conform": ("x.xml", b"", lambda x: ("conform", "--known", x, "--junit", x)),
    "counters": ("x.jsonl", CAPTURE, lambda x: ("counters", "lo", "--capture", x, "-o", x)),
    "counters into a text": ("x.jsonl", b"to do: buy milk\n", lambda x: ("counters", "lo", "-o", x)),
    "craft": ("x.pcap", YAML, lambda x: ("craft", x, "-w", x)),
    "export": ("out/transfers.jsonl", JOURNAL, lambda x: export(x.parent.parent / "x.pcap", "--journal", x)),
    "export the journal that is found": ("out/transfers.jsonl", JOURNAL, lambda x: export(link_of(x))),
    "generate": ("x.pcapng", YAML, lambda x: ("generate", "-w", x, "--otg", x)),
    "generate the journal": (
        "x.jsonl",
        YAML,
        lambda x: ("generate", "-w", x.parent / "y.pcapng", "--otg", x, "--journal", x),
    ),
    "inject": ("x.pcapng", YAML, lambda x: (*INJECT, "--faults", x, "--capture", x)),
    "inject the journal": ("x.jsonl", YAML, lambda x: (*INJECT, "--faults", x, "--journal", x)),
    "plot": ("x.svg", CAPTURE, lambda x: ("plot", x, "-o", x)),
    "plot the journal": (
        "j.svg",
        JOURNAL,
        lambda x: ("plot", x.parent / "x.pcap", "--journal", x, "-o", x),
    ),
    "record": ("x.jsonl", b"print()", lambda x: ("record", "-o", x, "--", sys.executable, x)),
    "record the packets": (
        "x.pcapng",
        b"print()",
        lambda x: ("record", "-i", "lo", "-w", x, "--", sys.executable, x),
    ),
    "replay": ("x.pcap", CAPTURE, lambda x: ("replay", x, "-w", x)),
    "replay standard input": ("x.pcap", CAPTURE, lambda x: ("replay", "-", "-w", x)),
    "report": ("x.html", CAPTURE, lambda x: ("report", x, "-o", x)),
    "report the journal": (
        "j.html",
        JOURNAL,
        lambda x: ("report", x.parent / "x.pcap", "--journal", x, "-o", x),
    ),
    "report standard input": ("x.html", CAPTURE, lambda x: ("report", "-", "-o", x)),
    "slice": ("x.pcapng", CAPTURE, lambda x: ("slice", x, x, "--redact")),
    "slice the journal that is found": (
        "x.journal.jsonl",
        JOURNAL,
        lambda x: ("slice", x.parent / "x.pcap", x.parent / "x.pcapng", "--redact"),
    ),
    "trace": ("x.pcapng", JOURNAL, lambda x: ("trace", "lo", "--journal", x, "--write", x)),
    "trace the counters": (
        "t.counters.journal.jsonl",
        JOURNAL,
        lambda x: ("trace", "lo", "--counters", "--journal", x, "--write", x.parent / "t.pcapng"),
    ),
}


def export(capture: Path, *more: str | Path) -> tuple[str | Path, ...]:
    return ("export", capture, "--to", "jsonl", "-o", capture.parent / "out", *more)


def link_of(journal: Path) -> Path:
    """The capture, beside which the journal is found by a name of its own."""
    found = journal.parent.parent / "x.journal.jsonl"
    found.unlink(missing_ok=True)
    found.hardlink_to(journal)
    return journal.parent.parent / "x.pcap"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    for name in ("x.pcap", "other.pcap"):
        shutil.copy(PCAPS / "ping-write-clean.pcap", tmp_path / name)
    return tmp_path


#: They read files and write one: what they do does not depend on the process that does it.
FILE_TO_FILE = {"annotate", "check", "craft", "export", "generate", "plot", "replay", "report", "slice"}


def rocekit_at(folder: Path, arguments: tuple[str | Path, ...], stdin: Path) -> tuple[int, str]:
    """Exit status and standard error, of a process of its own where that could make a difference."""
    words = [str(argument) for argument in arguments]
    if words[0] in FILE_TO_FILE and "-" not in words:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            told = CliRunner().invoke(rocekit, words)
        return told.exit_code, told.stderr
    with stdin.open("rb") as file:
        ended = forked(*words, cwd=folder, stdin=file.fileno(), timeout=300)
    return ended.status, ended.said


@pytest.mark.parametrize("name", ATTEMPTS)
def test_a_file_that_is_read_stays_as_it_is(name: str, folder: Path) -> None:
    file, content, arguments = ATTEMPTS[name]
    x = folder / file
    x.write_bytes(content)
    words = arguments(x)
    before = {p: (p.read_bytes(), p.stat().st_ino) for p in folder.rglob("*") if p.is_file()}
    status, said = rocekit_at(folder, words, x)
    after = {p: (p.read_bytes(), p.stat().st_ino) for p in folder.rglob("*") if p.is_file()}
    assert after == before
    assert status == 1
    assert said.count("\n") == 1
    assert "the file that is read" in said or "no journal to append to" in said


@pytest.mark.parametrize("kind", ["symbolic link", "hard link", "other way"])
def test_another_name_of_a_file_that_is_read_is_refused(kind: str, folder: Path) -> None:
    capture, out = folder / "x.pcapng", folder / "out" / "other.pcapng"
    capture.write_bytes(CAPTURE)
    if kind == "symbolic link":
        out.symlink_to(os.path.relpath(capture, out.parent))
    elif kind == "hard link":
        out.hardlink_to(capture)
    else:
        out = folder / "out" / ".." / "x.pcapng"
    before = capture.read_bytes()
    status, said = rocekit_at(folder, ("annotate", capture, out), capture)
    assert (status, said) == (
        1,
        f"rocekit: error: {out}: this is the file that is read; name another one for the output\n",
    )
    assert capture.read_bytes() == before
