"""What can be said of an output file before hours are spent on what goes into it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from rocekit.errors import RocekitError


def check_output(out: str | Path, inputs: Iterable[str | Path]) -> None:
    """See that a file can be written, and that it is none of those that are read.

    Raises:
        RocekitError: it cannot, or is.
    """
    path = Path(out)
    if str(out) == "-":
        return
    if path.is_dir():
        raise RocekitError(f"{out}: this is a folder; name a file in it")
    if not path.parent.is_dir():
        raise RocekitError(f"{out}: there is no folder {path.parent}; make it first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise RocekitError(f"{out}: no right to write it; name another file")
    for source in inputs:
        if str(source) != "-" and path.exists() and Path(source).exists() and path.samefile(source):
            raise RocekitError(f"{out}: this is the file that is read; name another one for the output")
