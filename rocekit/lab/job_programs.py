"""The programs of a job: starting them, waiting until a server listens, and ending them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import IO, Any

from rocekit.lab.net import LabError, tool


def shell(command: str, environment: dict[str, str], sink: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a shell command in a process group of its own."""
    return subprocess.Popen(
        ["/bin/bash", "-c", command],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=sink,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[bytes], seconds: float) -> dict[str, Any]:
    """Wait for a program, end its whole group if its time is over, and report how it ended."""
    killed = False
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        killed = True
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
                process.wait(2.0)
                break
            except subprocess.TimeoutExpired:
                continue
            except ProcessLookupError:
                break
        process.wait()
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    return {"returncode": process.returncode, "killed": killed}


CM_EVERY_S = 0.5
"""How often the connection manager's listeners are looked for: another program lists them, which takes the
emulated lab longer than all else here."""


def wait_until_listening(server: subprocess.Popen[Any], settle_s: float) -> None:
    """Wait until the server, or a process that it started, listens, by TCP or the connection manager."""
    began = time.monotonic()
    cm_at = began + CM_EVERY_S
    while time.monotonic() - began < settle_s and server.poll() is None:
        pids = _family(server.pid)
        listens = _listens_tcp(pids)
        if not listens and time.monotonic() >= cm_at:
            listens = _listens_cm(pids)
            cm_at = time.monotonic() + CM_EVERY_S
        if listens:
            # Programs accept at once after they listen.
            time.sleep(0.2)
            return
        time.sleep(0.1)


def _family(process: int) -> set[int]:
    """A process and those that it and they started."""
    found, todo = set(), {process}
    while todo:
        pid = todo.pop()
        found.add(pid)
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                todo |= {int(child) for child in children.read_text().split()} - found
            except OSError:
                continue
    return found


def _listens_tcp(pids: set[int]) -> bool:
    inodes = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = Path("/proc/net", table).read_text().splitlines()[1:]
        except OSError:
            continue
        inodes |= {fields[9] for line in lines if (fields := line.split())[3] == "0A"}
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                target = str(descriptor.readlink())
            except OSError:
                continue
            if target.startswith("socket:[") and target[8:-1] in inodes:
                return True
    return False


def _listens_cm(pids: set[int]) -> bool:
    try:
        shown = json.loads(tool("rdma", "-j", "resource", "show", "cm_id") or "[]")
    except (LabError, ValueError):
        return False
    return any(entry.get("pid") in pids and entry.get("state") == "LISTEN" for entry in shown)
