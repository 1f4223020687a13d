"""What the interposer is built from. Of the standard library only: setup.py runs this file by itself."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).resolve().parent / "interposer"
MARK: Final = "rocekit interposer of sources "
"""Stands in a built library in front of :func:`sources_digest` (ring.c)."""
MACRO: Final = "ROCEKIT_SOURCES"


def sources_digest() -> str:
    """What the sources' names and bytes add up to: a library built from others is not used."""
    hashed = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        if path.suffix in (".c", ".h", ".map"):
            hashed.update(path.name.encode() + b"\0" + path.read_bytes())
    return hashed.hexdigest()[:16]
