"""On a terminal text fits its width and goes through a pager; into a pipe it goes as it is."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from pathlib import Path

import click
import pytest
from forked import forked, forks
from lab_forks import Run
from places import PCAPS, ROOT

from rocekit.wire.text_table import columns, seen_width, wrapped

LOSS = ROOT / "pcaps" / "ping-write-loss-behind.pcap"
MAIN = "from rocekit.cli import main; main()"
PLAIN = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "CLICOLOR_FORCE")}


def on_terminal(*arguments: object, code: str = MAIN, size: tuple[int, int] = (24, 80), **env: str) -> str:
    """What a command shows on a terminal of so many rows and columns: both outputs together."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    environment = {**PLAIN, "TERM": "xterm", "PAGER": "cat", **env}
    for name in ("COLUMNS", "LINES", "ROCEKIT_PAGER"):
        environment.pop(name, None)
    words = list(map(str, arguments))
    program: Run | subprocess.Popen[bytes]
    if code == MAIN:
        program = forks().start(*words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    else:
        program = subprocess.Popen(
            [sys.executable, "-c", code, *words], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
        )
    os.close(theirs)
    shown = b""
    while select.select([ours], [], [], 120)[0]:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the last writer has gone
            break
        if not piece:
            break
        shown += piece
    assert program.wait(120) == 0
    os.close(ours)
    return shown.decode().replace("\r\n", "\n")


def in_pipe(*arguments: object, **env: str) -> str:
    ended = forked(*map(str, arguments), env={**PLAIN, **env})
    assert ended.status == 0, ended.said
    return ended.printed


def test_no_line_is_wider_than_the_terminal_and_no_word_is_lost() -> None:
    commands = (
        ("analyze", LOSS),
        ("explain", LOSS),
        ("decode", LOSS, "-c", 30),
        ("stats", LOSS),
        ("topology", ROOT / "pcaps" / "mesh-loss.pcap", "--qps"),
    )
    for command in commands:
        shown = on_terminal(*command)
        piped = in_pipe(*command)
        assert max(map(seen_width, shown.splitlines())) <= 80, command
        if command[0] != "topology":
            assert max(map(len, piped.splitlines())) > 80, command
        words = set(re.sub(r"\x1b\[[0-9;]*m", "", shown).split())
        if command[0] != "analyze":  # whose tables leave columns out
            assert words == set(piped.split()), command


ON_80_COLUMNS = [
    ["decode", PCAPS / "ping-sr-ipv6-clean.pcap", "-c", "6"],
    ["decode", PCAPS / "ib_send_bw-ud-clean.pcap", "-c", "6"],
    ["replay", PCAPS / "rping-clean.pcap"],
    ["conform", "cnp", "--list"],
    ["inject", "--list"],
    ["inject", "ping-write", "--help"],
    ["craft", "--op", "RC_RDMA_WRITE_ONLY", "--psn", "1"],
    ["craft", "--list"],
    ["rules"],
    ["topology", PCAPS / "ib_write_bw-4qp-loss.pcap"],
    ["help"],
]


@pytest.mark.parametrize("arguments", ON_80_COLUMNS, ids=lambda arguments: str(arguments[0]))
def test_other_commands_fit_80_columns_too(arguments: list[object]) -> None:
    lines = on_terminal(*arguments).replace("\r", "").split("\n")
    assert len(lines) > 2
    assert [line for line in map(click.unstyle, lines) if len(line) > 80] == []


def test_perftests_columns_that_have_no_room_stand_below() -> None:
    wanted = ["inject", "ping-write", "--both", "--backend", "soft", "-n", "3"]
    lines = [line.split() for line in click.unstyle(on_terminal(*wanted)).replace("\r", "").splitlines()]
    (one,) = [line for line in in_pipe(*wanted).splitlines() if line.startswith("#bytes")]
    heads = [line for line in lines if line and ("#bytes" in line or "99%[usec]" in line)]
    assert [name for head in heads for name in head] == one.split()
    assert len(heads) == 2


def test_the_place_of_a_packets_addresses_depends_on_the_room() -> None:
    long = "opcode == RC_RDMA_READ_RESPONSE_MIDDLE"
    wanted = ["decode", PCAPS / "ping-read-clean.pcap", "--filter", long, "-c", "1"]
    (route,) = re.findall(r"\S+ → \S+", in_pipe(*wanted).splitlines()[1])
    shown = click.unstyle(on_terminal(*wanted)).replace("\r", "").splitlines()
    assert "from → to" not in shown[0]
    assert route in shown[2]


def test_a_number_and_its_unit_stay_on_one_line_wherever_it_ends() -> None:
    """How long a line is depends on the path of the capture."""
    line = "x.pcap: 236 frames, 526.1 ms from 2026-11-20, 4.5 KiB in 3 bytes at 2.5 Gb/s, 2 s of it, 1 miss"
    for width in range(30, 100):
        lines = list(wrapped([line], width))
        assert max(map(len, lines)) <= width
        assert " ".join(part.strip() for part in lines) == line
        for part in lines:
            assert not re.match(r" *(ms|KiB|bytes|Gb/s|s)\b", part), lines


def test_a_table_gives_up_its_columns_by_importance() -> None:
    narrow, wide = on_terminal("analyze", LOSS), on_terminal("analyze", LOSS, size=(24, 200))
    assert "duration" in narrow
    assert "923.3 µs" in narrow
    assert "16688302" not in narrow
    assert "16688302" in wide
    assert re.sub(r"\x1b\[[0-9;]*m", "", wide).count("\n") < narrow.count("\n")


@pytest.mark.parametrize("columns_", [60, 80])
def test_no_name_is_parted_from_its_value_and_no_time_from_its_unit(columns_: int) -> None:
    for command in (
        ("stats", LOSS),
        ("topology", ROOT / "pcaps" / "mesh-loss.pcap"),
        ("analyze", LOSS, "--all"),
    ):
        shown = re.sub(r"\x1b\[[0-9;]*m", "", on_terminal(*command, size=(24, columns_)))
        lines = shown.splitlines()
        assert max(map(len, lines)) <= columns_, command
        for line in lines:
            assert not re.match(r" +(µs|ms|ns|s)\b(?! of)", line), (command, line)
    stats = on_terminal("stats", LOSS, size=(24, 60))
    # The median and the longest stay, the rest gives way.
    assert re.search(r"count +median +max\b", stats)


def test_what_is_longer_than_the_terminal_goes_through_the_pager_of_the_user(tmp_path: Path) -> None:
    page = tmp_path / "page"
    page.write_text("#!/bin/sh\necho paged $LESS\nexec cat\n")
    page.chmod(0o755)
    shown = on_terminal("analyze", LOSS, PAGER=str(page))
    assert "paged FRX" in shown
    assert "2 findings" in shown
    for arguments, size in (
        (("--no-pager", "analyze", LOSS), (24, 80)),
        (("analyze", "--no-pager", LOSS), (24, 80)),
        (("analyze", LOSS, "--format", "json"), (24, 80)),
        (("analyze", LOSS), (200, 200)),
    ):
        shown = on_terminal(*arguments, size=size, PAGER=str(page))
        assert shown
        assert "paged" not in shown, arguments


def test_a_pager_that_ends_early_is_no_error(tmp_path: Path) -> None:
    page = tmp_path / "page"
    page.write_text("#!/bin/sh\nexec head -n 1\n")
    page.chmod(0o755)
    shown = on_terminal("decode", LOSS, PAGER=str(page))
    assert len(shown.splitlines()) == 1


def test_colours_go_to_terminals_unless_the_environment_says_otherwise() -> None:
    assert "\x1b[33mwarning" in on_terminal("analyze", LOSS)
    assert "\x1b[" not in on_terminal("analyze", LOSS, NO_COLOR="1")
    assert "\x1b[" not in in_pipe("analyze", LOSS)
    assert "\x1b[33mwarning" in in_pipe("analyze", LOSS, CLICOLOR_FORCE="1")
    assert "\x1b[" not in in_pipe("analyze", LOSS, CLICOLOR_FORCE="1", NO_COLOR="1")


def test_progress_names_its_phases_and_is_gone_at_the_end(tmp_path: Path) -> None:
    code = f"import rocekit.commands.shared as s; s._LONG_BYTES = 0; {MAIN}"
    shown = on_terminal("report", LOSS, "-o", tmp_path / "x.html", code=code)
    assert re.search(r"judging.*drawing", shown)
    assert shown.rstrip("\n").splitlines()[-1].rpartition("\x1b[K")[2].startswith(str(tmp_path))


@pytest.mark.parametrize("width", [24, 40, 61, 80])
def test_wrapped_text_keeps_its_words_and_colours_within_the_width(width: int) -> None:
    text = "  warning \x1b[33mloss: many words in a colour that go on and on\x1b[0m  → what to do about it"
    lines = list(wrapped([text], width))
    assert max(map(seen_width, lines)) <= width
    plain = re.sub(r"\x1b\[[0-9;]*m", "", " ".join(lines)).split()
    assert plain == re.sub(r"\x1b\[[0-9;]*m", "", text).split()
    for line in lines:
        assert line.count("\x1b[33m") == line.count("\x1b[0m")


def test_a_word_longer_than_the_terminal_stays_whole() -> None:
    assert list(wrapped(["x" * 30], 10)) == ["x" * 30]


def test_a_last_cell_that_does_not_fit_stands_below_its_row() -> None:
    rows = [("1", "WRITE", "x" * 20, "one two three"), ("2", "READ", "y" * 20, "ok")]
    assert columns(rows, width=36) == [
        f"  1  WRITE  {'x' * 20}\n      one two three",
        f"  2  READ   {'y' * 20}  ok",
    ]
    assert columns(rows, width=36, spare=(1,)) == [
        f"  1  {'x' * 20}\n      one two three",
        f"  2  {'y' * 20}  ok",
    ]


def test_plain_python_says_once_that_a_large_capture_takes_longer(tmp_path: Path) -> None:
    small, large = LOSS, tmp_path / "large.pcap"
    large.write_bytes(LOSS.read_bytes() + bytes(16) * 130_000)  # what is behind is no packet, and is large
    for capture, said in ((small, 0), (large, 1)):
        done = subprocess.run(
            [sys.executable, "-c", MAIN, "analyze", capture],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**PLAIN, "ROCEKIT_COMPILED": "0"},
        )
        assert done.stderr.count("not compiled here") == said
