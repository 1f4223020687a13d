"""The lab in place: this machine's own kernel has rxe, and the user is root.

The agent is a child process, not part of this one: it undoes its set-up when its channel to the caller ends,
so even a caller that was killed leaves no interface, rule or process behind.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import BinaryIO

from rocekit.lab.agent import Order
from rocekit.lab.link import UP_LIMIT_S, Session, end_group, follow

HELLO_LIMIT_S = 30.0


def run_in_place(order: Order, sinks: tuple[BinaryIO, BinaryIO]) -> tuple[Session, str]:
    """Run the order on this machine; returns the agent's messages, and the kernel's version.

    Raises:
        LabError: the set-up failed or a limit passed.
    """
    ours, theirs = socket.socketpair()
    with tempfile.TemporaryDirectory(prefix="rocekit-lab-") as folder, ours, theirs:
        Path(folder, "order.json").write_text(order.to_json())
        environment = dict(os.environ)
        environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
        process = subprocess.Popen(
            [sys.executable, "-m", "rocekit.lab.agent", folder, str(theirs.fileno())],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
        theirs.close()
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            session = follow(
                control=ours.fileno(),
                streams=(process.stdout.fileno(), process.stderr.fileno()),
                sinks=sinks,
                alive=lambda: process.poll() is None,
                hello_limit_s=HELLO_LIMIT_S,
                up_limit_s=UP_LIMIT_S,
                timeout_s=order.timeout_s,
            )
        finally:
            # The agent sees the end of its channel, ends the command and undoes the set-up.
            ours.close()
            _end_agent(process)
    return session, os.uname().release


def _end_agent(process: subprocess.Popen[bytes]) -> None:
    def reap(seconds: float) -> bool:
        try:
            process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    if not reap(30.0):
        end_group(process.pid, reap)
