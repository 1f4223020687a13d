"""Names of capture files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

#: In the order in which ``stem`` removes them.
CAPTURE_SUFFIXES: Final = (".gz", ".zst", ".pcapng", ".pcap", ".cap")


def stem(capture: str | Path) -> str:
    """A capture's name without the suffixes that captures have."""
    name = Path(capture).name
    for suffix in CAPTURE_SUFFIXES:
        name = name.removesuffix(suffix)
    return name
