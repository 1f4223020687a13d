"""The columns of packets as they are printed: which are words, and what the words are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from rocekit.packets import ICRC_STATES, ICRC_UNCHECKED, Packets, Row
from rocekit.packets.malformed import MALFORMED
from rocekit.packets.printing.kinds import Part
from rocekit.packets.printing.lines import Printed, Words
from rocekit.wire import OPCODES

#: Words by the column's number, for all captures; the last one is also that of −1.
_ALWAYS: Final[dict[str, tuple[Any, ...]]] = {
    "opcode": (*(OPCODES[v].name if v in OPCODES else v for v in range(256)), None),
    "icrc_state": ICRC_STATES,
    "truncated": (False, True),
    "fragment": (False, True),
    "malformed": tuple(MALFORMED.get(code) for code in range(max(MALFORMED) + 1)),
}

_WORDS: Final = frozenset(("src", "dst", "encapsulation", "vni", *_ALWAYS))


class PrintedColumns:
    """Columns as :meth:`rocekit.packets.Packets.rows` has their values.

    Args:
        spell: how a value that is no number is written.
    """

    def __init__(self, spell: Callable[[Any], str]) -> None:
        self._spell = spell
        self._words: dict[str, Words] = {}

    def of(self, packets: Packets, name: str) -> Printed:
        """A column of a batch; all batches are of one decoder."""
        if name in ("src", "dst"):
            return Printed(packets[name], self._word("address", packets.addresses))
        if name in ("encapsulation", "vni"):
            words = self._words.get(name)
            if words is None:
                part = _layers if name == "encapsulation" else _vni
                spell = self._spell
                words = self._words[name] = Words(packets.wrappings, lambda around: spell(part(around)))
            words.update()
            return Printed(packets.encapsulation, words)
        if name in _ALWAYS:
            values, words = packets[name].astype(np.int64), self._word(name, _ALWAYS[name])
            return Printed(np.where(values < 0, len(words.texts) - 1, values), words)
        return Printed(packets[name])

    def _word(self, name: str, values: Any) -> Words:
        words = self._words.get(name)
        if words is None:
            words = self._words[name] = Words(values, self._spell)
        words.update()
        return words


def _layers(around: Any) -> list[str] | None:
    return list(around.layers) or None


def _vni(around: Any) -> int | None:
    return around.vni if around.vni >= 0 else None


def is_printed(name: str, row: Row) -> bool:
    """Whether packets of a row's kind have values in a column; else all have the row's, or none."""
    return name in _WORDS or name == "has" or row.get(name) is not None


def presence(packets: Packets) -> list[Part]:
    """What decides which fields a packet has (see ``Kinds.of``)."""
    return [
        (packets.has, 16),
        (packets.ip_version == 4, 1),
        (packets.roce_version == 2, 1),
        (packets.vlan >= 0, 1),
        (packets.icrc_state == ICRC_UNCHECKED, 1),
    ]
