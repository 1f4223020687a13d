"""MADs as words in the lines of packets that have one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rocekit.packets import Packets
from rocekit.packets.mads import RequestPorts, find_mads
from rocekit.packets.printing.lines import Printed, Words
from rocekit.wire.mad import Mad


class MadWords:
    """Finds the MADs of batches and spells them, as the column ``mad``.

    Args:
        spell: how a MAD is written, and the port of the REQ that it is or answers.
    """

    def __init__(self, spell: Callable[[Mad, int | None], str]) -> None:
        self._spell = spell
        self._ports = RequestPorts()

    def insert(self, packets: Packets, kinds: Any, columns: dict[str, Printed]) -> Any:
        """Add the column ``mad``; returns twice each packet's kind, and one more if it has a MAD.

        Ask before the next batch is read, as for :meth:`rocekit.packets.Packets.payload`.
        """
        texts = [""]  # of packets without one, which do not print it
        which, has_mad = np.zeros(len(packets), np.int64), np.zeros(len(packets), np.bool_)
        for row, mad in find_mads(packets):
            which[row], has_mad[row] = len(texts), True
            src, dst = (packets.addresses[packets[name][row]] for name in ("src", "dst"))
            texts.append(self._spell(mad, self._ports.of(mad.cm, src, dst)))
        words = Words(texts, str)
        words.update()
        columns["mad"] = Printed(which, words)
        return 2 * kinds + has_mad
