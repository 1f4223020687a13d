"""Waiting for a process that a test has told to end."""

from __future__ import annotations

import subprocess
from typing import AnyStr


def last_words(process: subprocess.Popen[AnyStr], timeout: float = 120) -> tuple[AnyStr, AnyStr]:
    """What it still prints, and its errors.

    Raises:
        subprocess.TimeoutExpired: it does not end; it is killed, else it would fill the disk.
    """
    try:
        return process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
