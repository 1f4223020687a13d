"""Frames from pcap and pcapng files, pipes, standard input and live interfaces; and writing them.

    with open_capture("x.pcapng") as capture:
        for batch in capture:
            ...

The code is in :mod:`rocekit.files`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rocekit.files.frames import SUPPORTED_LINKTYPES, Damage, FrameBatch
from rocekit.files.reader import CaptureReader, open_capture

if TYPE_CHECKING:
    from rocekit.files.interface import LiveCapture
    from rocekit.files.pcapng_write import PcapngWriter

__all__ = [
    "CaptureReader",
    "Damage",
    "FrameBatch",
    "LiveCapture",
    "PcapngWriter",
    "SUPPORTED_LINKTYPES",
    "open_capture",
]


def __getattr__(name: str) -> Any:
    # Reading files loads neither the sockets nor the writer.
    if name == "LiveCapture":
        from rocekit.files.interface import LiveCapture

        return LiveCapture
    if name == "PcapngWriter":
        from rocekit.files.pcapng_write import PcapngWriter

        return PcapngWriter
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
