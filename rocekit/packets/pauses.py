"""Pause frames: 802.3 PAUSE and PFC, with which one end of a link stops the other."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rocekit.files.frames import FrameBatch
from rocekit.wire.byte_rows import gather
from rocekit.wire.network import ETHERTYPE_MAC_CONTROL
from rocekit.wire.sorting import is_among

Ints = NDArray[np.int64]

_PAUSE_OPCODES: Final = np.array([0x0001, 0x0101])  # 802.3 PAUSE, 802.1Qbb PFC
_SOURCE_MAC_AT: Final = 6

#: Pause frames kept one by one; more are only counted.
MAX_PAUSES: Final = 100_000


class Pause(NamedTuple):
    """An 802.3 PAUSE or PFC frame: who asked for a pause, of which priorities, for how long.

    Attributes:
        source: MAC address of the sender.
        priorities: bit mask of the priorities to pause (of those to release if it pauses none); all eight
            for 802.3 PAUSE.
        quanta: the longest pause asked for, in units of 512 bit times; 0 ends the pause.
        times: the same for each of the eight priorities; −1 for one that the frame does not name.
    """

    file: int
    frame: int
    time_ns: int
    source: str
    priorities: int
    quanta: int
    times: tuple[int, ...] = ()


def find_pauses(batch: FrameBatch, layer: Ints, ethertype: Ints) -> Ints:
    """The PAUSE (802.3 annex 31B) and PFC frames (802.1Q clause 36; annex 31D) of a batch.

    A row each: index in the batch, the priorities paused as a bit mask (all of them for 802.3 PAUSE), the
    longest pause in quanta of 512 bit times, and that of each of the eight priorities (−1: not named).
    """
    index = np.flatnonzero(ethertype == ETHERTYPE_MAC_CONTROL)
    start, limit = layer[index], (batch.offset + batch.caplen)[index]
    head = gather(batch.buffer, start, 20).view(">u2").astype(np.int64)
    for word in range(head.shape[1]):
        head[start + 2 * word + 2 > limit, word] = 0
    by_class = head[:, 0] == _PAUSE_OPCODES[1]
    enabled = np.where(by_class, head[:, 1] & 0xFF, 0xFF)
    asked = np.where((enabled[:, None] >> np.arange(8) & 1) != 0, head[:, 2:10], 0)
    quanta = np.where(by_class, asked.max(axis=1), head[:, 1])
    named = (enabled[:, None] >> np.arange(8) & 1) != 0
    times = np.where(named, np.where(by_class[:, None], asked, quanta[:, None]), -1)
    held = ((times > 0) << np.arange(8)).sum(axis=1)
    paused = np.where(held != 0, held, enabled)  # a frame may release some priorities and pause others
    rows: Ints = np.column_stack([index, paused, quanta, times])[is_among(head[:, 0], _PAUSE_OPCODES)]
    return rows


def pauses_of(batch: FrameBatch, rows: Ints) -> list[Pause]:
    """Some of the rows of :func:`find_pauses` as objects."""
    found = []
    for index, priorities, quanta, *times in rows.tolist():
        source = int(batch.offset[index]) + _SOURCE_MAC_AT
        mac = batch.buffer[source : source + 6].tobytes().hex(":")
        number, time_ns = int(batch.number[index]), int(batch.time_ns[index])
        found.append(Pause(batch.file, number, time_ns, mac, priorities, quanta, tuple(times)))
    return found
