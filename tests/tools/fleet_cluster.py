"""A Dask scheduler and workers as processes of their own, as an operator starts them."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WORKERS = 2
_START_S = 120


@contextmanager
def dask_cluster(folder: Path) -> Iterator[str]:
    """The address of ``dask scheduler`` with two ``dask worker`` on this machine, until the block ends."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    worker = ["worker", address, "--no-nanny", "--nthreads", "1", "--no-dashboard"]
    commands = [
        ["scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"],
        *([*worker, "--local-directory", str(folder / str(number))] for number in range(WORKERS)),
    ]
    started, logs = [], [folder / f"{number}.log" for number in range(len(commands))]
    try:
        for command, log in zip(commands, logs, strict=True):
            with log.open("wb") as out:
                whole = [sys.executable, "-m", "dask", *command]
                started.append(subprocess.Popen(whole, stdout=out, stderr=out, cwd=folder))
        end = time.monotonic() + _START_S
        while not all("Registered to" in log.read_text() for log in logs[1:]):
            for process, log in zip(started, logs, strict=True):
                assert process.poll() is None, log.read_text()
            assert time.monotonic() < end
            time.sleep(0.05)
        yield address
    finally:
        for process in started:
            process.kill()
            process.wait()
