"""A process that confines itself: which files it still reaches, and its children."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

from rocekit.machine import landlock

CONFINED = """
import os, signal, socket, subprocess, sys
from rocekit.machine.landlock import confine

folder, out, port, parent = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
before = open(f"{folder}/other")
assert confine([f"{folder}/x.pcap", *sys.path, sys.prefix, sys.base_prefix], [out], lists=[folder])

def tried(what):
    try:
        what()
    except OSError as error:
        return type(error).__name__
    return "done"

def moved():
    os.rename(f"{out}/part", f"{out}/x")
    os.link(f"{out}/x", f"{out}/y")
    os.unlink(f"{out}/y")

print("own", tried(lambda: open(f"{folder}/x.pcap")))
print("other", tried(lambda: open(f"{folder}/other")))
print("opened-before", tried(before.read))
print("names", tried(lambda: os.listdir(folder)))
print("shadow", tried(lambda: open("/etc/shadow")))
print("made", tried(lambda: open(f"{out}/part", "w")))
print("moved", tried(moved))
print("beside", tried(lambda: open(f"{folder}/new", "w")))
print("child", subprocess.run(["/bin/sh", "-c", f"echo x > {folder}/new"], stderr=-3).returncode != 0)
print("null", tried(lambda: open("/dev/null", "w")))
print("connect", tried(lambda: socket.create_connection(("127.0.0.1", port))))
print("signal", tried(lambda: os.kill(parent, 0)))
"""


def test_a_confined_process_reaches_its_own_files_and_no_others(tmp_path: Path) -> None:

    if landlock.version() < 6:
        pytest.skip("this kernel has no Landlock, or an old one")
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    out.mkdir()
    for name in ("x.pcap", "other"):
        (folder / name).write_text("x")
    with socket.create_server(("127.0.0.1", 0)) as server:
        arguments = [folder, out, server.getsockname()[1], os.getpid()]
        done = subprocess.run(
            [sys.executable, "-c", CONFINED, *map(str, arguments)],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )
    assert dict(line.split() for line in done.stdout.splitlines()) == {
        "own": "done",
        "other": "PermissionError",
        "opened-before": "done",
        "names": "done",
        "shadow": "PermissionError",
        "made": "done",
        "moved": "done",
        "beside": "PermissionError",
        "child": "True",
        "null": "done",
        "connect": "PermissionError",
        "signal": "PermissionError",
    }, done.stderr


def test_a_kernel_without_landlock_confines_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "version", lambda: 0)
    assert not landlock.confine([], [])
