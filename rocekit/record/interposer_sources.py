"""The interposer's sources. Imports only the standard library: setup.py runs this file alone."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).resolve().parent / "interposer"
MARK: Final = "rocekit interposer of sources "
"""Precedes :func:`sources_digest` in a built library (ring.c)."""
MACRO: Final = "ROCEKIT_SOURCES"


def sources_digest() -> str:
    """A hash of the sources' names and bytes: a library built from other sources is not used."""
    hashed = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        if path.suffix in (".c", ".h", ".map"):
            hashed.update(path.name.encode() + b"\0" + path.read_bytes())
    return hashed.hexdigest()[:16]
