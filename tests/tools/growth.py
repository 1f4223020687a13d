"""How the work of an analysis grows with its input: the lines of a room that run, without compiled loops."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rocekit.wire.build import build_frame

START_NS = 1_700_000_000_000_000_000
FEW, MANY = 150, 600
COUNTED = """
import json, sys
import rocekit

room = sys.argv[2]

def lines_of(capture, journal):
    count = 0

    def trace(frame, event, arg):
        nonlocal count
        count += event == "line"
        return trace if room in frame.f_code.co_filename else None

    sys.settrace(trace)
    analysis = rocekit.analyze(capture, journals=[journal] if journal else [])
    analysis.to_dict()
    sys.settrace(None)
    return count

for inputs in json.loads(sys.argv[1]):
    print(lines_of(*inputs))
"""
COMMANDS = """
import json, os, sys
from click.testing import CliRunner
from rocekit.cli import rocekit

room = sys.argv[2]

def lines_of(arguments):
    count = 0

    def trace(frame, event, arg):
        nonlocal count
        if room not in frame.f_code.co_filename:
            return None
        count += 1
        return trace

    sys.settrace(trace)
    CliRunner().invoke(rocekit, arguments)
    sys.settrace(None)
    return count

for arguments in json.loads(sys.argv[1]):
    print(lines_of(arguments))
"""


def send(psn: int, opcode: str = "RC_SEND_ONLY", **fields: Any) -> bytes:
    known: dict[str, Any] = {
        "src": "10.0.0.1",
        "dst": "10.0.0.2",
        "dest_qpn": 0x12,
        "payload": b"",
        "psn": psn & 0xFFFFFF,
    }
    return build_frame(opcode, **(known | fields))


def back(psn: int, opcode: str = "RC_ACKNOWLEDGE", **fields: Any) -> bytes:
    return send(psn, opcode, **({"src": "10.0.0.2", "dst": "10.0.0.1", "dest_qpn": 0x11} | fields))


def save(path: Path, frames: Iterable[tuple[int, bytes]]) -> Path:
    """A capture of (nanoseconds since its start, frame)."""
    with path.open("wb") as file:
        file.write(struct.pack("<IHHIIII", 0xA1B23C4D, 2, 4, 0, 0, 262144, 1))
        for since, frame in frames:
            now = START_NS + since
            file.write(struct.pack("<IIII", now // 10**9, now % 10**9, len(frame), len(frame)) + frame)
    return path


def save_journal(path: Path, events: Iterable[dict[str, Any]]) -> Path:
    common = {"clock": "realtime", "host": "h", "pid": 1}
    lines = (json.dumps({"time_ns": START_NS + n, **common, **event}) for n, event in enumerate(events))
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def lines_that_run(room: str, make: Callable[[int], tuple[Path, Path | None]]) -> tuple[int, int]:
    """The lines of rocekit/``room`` that analyses of ``make(FEW)`` and ``make(MANY)`` run.

    Args:
        make: a capture and its journal of about so many packets or lines.
    """
    inputs = [[str(path) if path is not None else None for path in make(n)] for n in (8, FEW, MANY)]
    return _counted(COUNTED, inputs, room)


def _counted(program: str, inputs: list[Any], room: str) -> tuple[int, int]:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            program,
            json.dumps(inputs),
            f"/rocekit/{room}" + "/" * (not room.endswith(".py")),
        ],
        capture_output=True,
        text=True,
        env=os.environ | {"ROCEKIT_COMPILED": "0", "COVERAGE_PROCESS_START": ""},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    _, few, many = map(int, done.stdout.split())  # the first run loads and makes what is needed once
    return few, many


def assert_linear(room: str, make: Callable[[int], tuple[Path, Path | None]]) -> None:
    """Four times the input takes no more than six times the lines; the square would be sixteen times."""
    few, many = lines_that_run(room, make)
    assert many < 6 * few, (few, many)


def assert_command_linear(room: str, arguments: Callable[[int], list[str]], records: int = FEW) -> None:
    """The same of a command: the lines of a room or module that it runs for an input of so many records."""
    few, many = _counted(COMMANDS, [arguments(n) for n in (8, records, records * MANY // FEW)], room)
    assert 2 * few < many < 6 * few, (few, many)
