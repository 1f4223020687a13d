"""Captures of synthetic traffic.

generate("big.pcap", Traffic(operations=("READ",)))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rocekit import wire
from rocekit.craft.traffic import OPERATIONS, Traffic
from rocekit.craft.traffic_columns import CE
from rocekit.craft.traffic_frames import FrameWriter
from rocekit.craft.traffic_rounds import rounds
from rocekit.craft.traffic_truth import TrafficTruth
from rocekit.journal import JournalWriter

__all__ = ["OPERATIONS", "Generated", "Traffic", "generate"]


@dataclass(slots=True)
class Generated:
    """What was written."""

    packets: int = 0
    messages: int = 0
    lost: int = 0
    marked: int = 0
    cnps: int = 0
    bytes: int = 0


def generate(
    target: str | Path | BinaryIO,
    traffic: Traffic,
    *,
    snaplen: int | None = None,
    progress: Callable[[int], None] | None = None,
    journal: JournalWriter | None = None,
) -> Generated:
    """Write a capture of synthetic traffic.

    Args:
        target: a path (pcapng if it ends so, else pcap), ``-`` for standard output (pcap), or a binary file.
        snaplen: bytes kept of each frame; None for all.
        progress: called with the packets written so far.
        journal: gets what happened to the packets, see :class:`~rocekit.craft.traffic_truth.TrafficTruth`.

    Raises:
        ValueError: ``snaplen`` below 64.
        CaptureError: the file cannot be written.
    """
    done = Generated()
    with FrameWriter(target, traffic, snaplen) as writer:
        truth = None if journal is None else TrafficTruth(journal, traffic)
        for made in rounds(traffic):
            writer.write(made.packets)
            if truth is not None:
                truth.round(made)
            done.packets += len(made.packets)
            done.messages += len(made.messages)
            done.lost += int((made.messages.lost >= 0).sum())
            done.marked += int((made.packets.ecn == CE).sum())
            done.cnps += int((made.packets.opcode == wire.CNP_OPCODE).sum())
            if progress is not None:
                progress(done.packets)
        if truth is not None:
            truth.end()
        done.bytes = writer.bytes
    return done
