"""The interposer's sources. Imports only the standard library, and little: setup.py runs this file alone."""

from __future__ import annotations

import os
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

FOLDER: Final = f"{os.path.dirname(os.path.realpath(__file__))}/interposer"  # noqa: PTH120
MARK: Final = "rocekit interposer of sources "
"""Precedes :func:`sources_digest` in a built library (ring.c)."""
MACRO: Final = "ROCEKIT_SOURCES"


def sources_digest() -> str:
    """A checksum of the sources' names and bytes: a library built from other sources is not used.

    It tells old from new, not friend from foe (that does a file's owner), so it need not be cryptographic:
    every recorded program waits for it.
    """
    crc, adler = 0, 1
    for name in sorted(os.listdir(FOLDER)):  # noqa: PTH208
        if name.endswith((".c", ".h", ".map")):
            content = name.encode() + b"\0" + read(f"{FOLDER}/{name}")
            crc, adler = zlib.crc32(content, crc), zlib.adler32(content, adler)
    return f"{crc:08x}{adler:08x}"


def read(path: str) -> bytes:
    """A file's bytes, with few system calls: each is slow where files are on another machine."""
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(number, 1 << 20):
            parts.append(part)
            if len(part) < 1 << 20:
                break
        return b"".join(parts)
    finally:
        os.close(number)
