"""Claims about programs that are recorded and start before the command line is loaded: only time changes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocekit.cli import rocekit
from rocekit.record.early import EarlyLine, early_line

HEAVY = (
    "click",
    "typing",
    "dataclasses",
    "inspect",
    "json",
    "hashlib",
    "shutil",
    "tempfile",
    "socket",
    "numpy",
    "pathlib",
    "re",
)
"""What takes long to import, and the start of a program does not need."""

WORDS = st.sampled_from(
    [
        *("-q", "--quiet", "-o", "--output", "-w", "--redact", "--counters", "--no-counters", "--no-count"),
        *("--follow-children", "--no-follow-children", "--ring-size", "--ring-size=128", "--ring-size=1k"),
        *(
            "64",
            "63",
            "128",
            "0128",
            "16777216",
            "16777217",
            "1e3",
            "-1",
            "-",
            "--",
            "-h",
            "--help",
            "--debug",
        ),
        *("x.jsonl", "-x.jsonl", "y/x.journal.jsonl", "x.txt", "--output=x.jsonl", "-ox.jsonl", "-o=x.jsonl"),
        *("-qo", "--summary", "--every", "--attach", "--rotate", "true", "ls", "", "-l", "--nccl", "--user"),
    ]
)


def by_click(arguments: list[str]) -> dict[str, Any]:
    """The parameters as the command has them."""
    context = click.Context(rocekit, info_name="rocekit")
    command = rocekit.get_command(context, "record")
    assert command is not None
    return command.make_context("record", list(arguments), parent=context).params


@given(st.lists(WORDS, max_size=7))
def test_a_command_line_means_the_same_whether_the_start_or_the_command_reads_it(words: list[str]) -> None:
    line = early_line(words)
    if line is None:
        return
    params = by_click(words)  # no error
    assert list(params["command_line"]) == line.command
    assert (None if params["output"] is None else str(params["output"])) == (
        None if line.output is None else str(Path(line.output))
    )
    assert 1 << (params["ring_size"] - 1).bit_length() == (line.slots or 32768)
    assert (params["counters"], params["follow_children"]) == (line.counters, line.children)
    assert (params["quiet"], params["redact"]) == (line.quiet, line.redact)
    said = {"command_line", "output", "ring_size", "counters", "follow_children", "quiet", "redact"}
    plain = by_click(["true"])
    assert {name: value for name, value in params.items() if name not in said} == {
        name: value for name, value in plain.items() if name not in said
    }


@pytest.mark.parametrize(
    "words",
    [
        ["true"],
        ["--", "ib_write_bw", "-d", "rxe0"],
        ["-q", "-o", "x.journal.jsonl", "--ring-size", "1024", "--no-counters", "--", "ls", "-l"],
    ],
)
def test_usual_command_lines_are_started_early(words: list[str]) -> None:
    assert isinstance(early_line(words), EarlyLine)


@pytest.mark.parametrize("option", ["--attach", "--interface", "--rotate", "--nccl", "--attach-cm", "--qp"])
def test_what_needs_more_is_left_to_the_command(option: str) -> None:
    assert early_line([option, "1", "--", "true"]) is None


def loaded_at_start(tmp_path: Path, *options: str) -> set[str]:
    """The modules that are loaded when the program starts."""
    code = (
        "import os, sys; sys.argv = ['rocekit', 'record', *sys.argv[1:]]\n"
        "own = set(sys.modules)\n"  # Python's: some ways of installing load more of it
        "real = os.posix_spawn\n"
        "def spawn(*given, **more):\n"
        "    print('LOADED', *(set(sys.modules) - own), file=sys.stderr)\n"
        "    return real(*given, **more)\n"
        "os.posix_spawn = spawn\n"
        "from rocekit.cli import main; main()"
    )
    command = [sys.executable, "-c", code, *options, "-o", "x.journal.jsonl", "--", "true"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (tmp_path / "x.journal.jsonl").read_text().count('"recording"') == 2
    return set(done.stderr.partition("LOADED")[2].partition("\n")[0].split())


def test_a_program_starts_before_what_it_does_not_need_is_loaded(tmp_path: Path, program: Path) -> None:
    loaded = loaded_at_start(tmp_path)
    assert "rocekit.record.start" in loaded
    assert loaded.isdisjoint(HEAVY)
    assert len([name for name in loaded if name.startswith("rocekit.")]) < 20


def test_what_records_it_needs_no_command_line(tmp_path: Path, program: Path) -> None:
    code = (
        "import os, sys; sys.argv = ['rocekit', 'record', *sys.argv[1:]]\n"
        "real = os._exit\n"
        "def leave(status):\n"
        "    print('LOADED', *sys.modules, file=sys.stderr)\n"
        "    sys.stderr.flush()\n"
        "    real(status)\n"
        "os._exit = leave\n"
        "from rocekit.cli import main; main()"
    )
    command = [sys.executable, "-c", code, "-o", "x.journal.jsonl", "--", "sh", "-c", "exit 3"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    loaded = set(done.stderr.partition("LOADED")[2].split())
    assert "rocekit.record.recorder" in loaded
    assert loaded.isdisjoint({"click", "rocekit.commands", "numpy"})


STYLED = {"NO_COLOR": ("1", False), "CLICOLOR_FORCE": ("1", True)}


@pytest.mark.parametrize("name", [None, *STYLED])
@pytest.mark.parametrize("options", [(), ("--every", "1")])
def test_what_is_said_has_the_colours_of_other_commands(
    tmp_path: Path, program: Path, options: tuple[str, ...], name: str | None
) -> None:
    """As started early and as by the command; both write to a pipe here."""
    value, styled = STYLED.get(name or "", ("", False))
    done = subprocess.run(
        [sys.executable, "-m", "rocekit", "record", *options, "-o", "x.jsonl", "--", "true"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        env={key: given for key, given in os.environ.items() if key not in STYLED}
        | ({name: value} if name else {}),
    )
    first, second = done.stderr.splitlines()
    counts = "record: 0 sends, 0 receives, 0 completions; journal x.jsonl"
    assert first == (f"\x1b[2m{counts}\x1b[0m" if styled else counts)
    assert second.startswith("\x1b[33mrecord: no process" if styled else "record: no process")


def test_other_command_lines_start_it_as_well_with_the_same_journal(tmp_path: Path, program: Path) -> None:
    assert "click" in loaded_at_start(tmp_path, "--summary")


def test_a_program_that_nobody_took_is_waited_for(tmp_path: Path, program: Path) -> None:
    """There must be a defect for it: it then runs on to its end, and no ring folder stays."""
    code = (
        "import sys; sys.argv = ['rocekit', 'record', *sys.argv[1:]]\n"
        "import rocekit.record.early as early\n"
        "early.begun = lambda: 1 / 0\n"
        "from rocekit.cli import main; main()"
    )
    said = "touch began; sleep 0.3; touch ended; echo $ROCEKIT_RECORD_FOLDER"
    command = [sys.executable, "-c", code, "-o", "x.journal.jsonl", "--", "sh", "-c", said]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "a defect of rocekit: ZeroDivisionError" in done.stderr
    assert (tmp_path / "ended").exists()
    assert not os.path.exists(done.stdout.strip())  # noqa: PTH110


def test_where_no_lower_priority_may_be_taken_a_program_runs_once_and_is_recorded(
    tmp_path: Path, program: Path
) -> None:
    """A sandbox may forbid sched_setscheduler(2); the program runs by then, and must not be started again."""
    code = (
        "import os, sys; sys.argv = ['rocekit', 'record', *sys.argv[1:]]\n"
        "def refused(*_): raise PermissionError(1, 'Operation not permitted')\n"
        "os.sched_setscheduler = refused\n"
        "from rocekit.cli import main; main()"
    )
    for options in ((), ("--summary",)):
        journal = f"{len(options)}.journal.jsonl"
        said = f"echo ran >> {journal}.runs"
        command = [sys.executable, "-c", code, *options, "-o", journal, "--", "sh", "-c", said]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / f"{journal}.runs").read_text() == "ran\n"
        assert '"ended"' in (tmp_path / journal).read_text()


SURROUNDINGS = """
import os, signal
for number in range(64):
    try:
        print(number, os.readlink(f"/proc/self/fd/{number}").partition("[")[0])
    except OSError:
        pass
print(open("/proc/self/limits").read())
told = ("SigBlk", "SigCgt", "Seccomp", "Cap", "Groups", "Umask", "NoNewPrivs", "Uid", "Gid")
print(*(line for line in open("/proc/self/status") if line.startswith(told)))
ignored = next(int(line[7:], 16) for line in open("/proc/self/status") if line.startswith("SigIgn"))
print(hex(ignored & ~(3 << 31)))  # not 32 and 33, which are glibc's own: every posix_spawn ignores them
print(os.nice(0), os.sched_getscheduler(0), os.sched_getaffinity(0), os.getsid(0), os.getpgrp(), os.getcwd())
print(sorted(name for name in os.environ if not name.startswith(("ROCEKIT_", "LD_PRELOAD", "ASAN_OPTIONS"))))
"""
"""What a program may look at of itself."""


@pytest.mark.parametrize("options", [(), ("--summary",)])
def test_a_program_finds_itself_as_without_the_recorder(
    tmp_path: Path, program: Path, options: tuple[str, ...]
) -> None:
    """Descriptors, limits, signals, rights, priority and policy; as started early, and as by the command."""
    said = []
    for recorder in ([], [sys.executable, "-m", "rocekit", "record", "-q", *options, "--"]):
        command = [*recorder, sys.executable, "-I", "-S", "-c", SURROUNDINGS]
        done = subprocess.run(
            command, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
        )
        said.append(done.stdout.splitlines())
    assert said[1] == said[0]
    assert len(said[0]) > 30
