"""Waiting for a process that a test has told to end."""

from __future__ import annotations

import subprocess
from typing import AnyStr

#: What a command says of a large capture where there is no compiler.
PLAIN = b"rocekit is not compiled here: the results are the same, slower (`rocekit doctor`)\n"


def last_words(process: subprocess.Popen[AnyStr], timeout: float = 120) -> tuple[AnyStr, AnyStr]:
    """What it still prints, and its errors, without the line that says that the loops are plain Python.

    Raises:
        subprocess.TimeoutExpired: it does not end; it is killed, else it would fill the disk.
    """
    try:
        told, said = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    if isinstance(said, bytes):
        return told, said.removeprefix(PLAIN)
    return told, said.removeprefix(PLAIN.decode())
