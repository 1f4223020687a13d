"""The table of packets: a row for each, with its story and its fields, made column by column."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from rocekit import wire
from rocekit.explanation.packets import CAUSES, ROLES, PacketStories
from rocekit.packets import COLUMNS, FIELD_HOMES, HAS, ICRC_STATES, ICRC_UNCHECKED, Column, alike
from rocekit.packets.malformed import MALFORMED

if TYPE_CHECKING:
    import polars as pl

#: Columns whose names in ``Packets`` have no unit.
_RENAMED: Final = {"payload_length": "payload_bytes", "dma_length": "dma_bytes"}
#: Columns for internal use only.
_INNER: Final = frozenset({"has", "flow"})
_BITS: Final = {name: homes[0][1].bits for name, homes in FIELD_HOMES.items()}
_HEADERS: Final = {name: sum(HAS[h.name] for h, _ in homes) for name, homes in FIELD_HOMES.items()}
_OPCODES: Final = [wire.OPCODES[v].name if v in wire.OPCODES else None for v in range(256)]
_MALFORMED: Final = [MALFORMED.get(code) for code in range(max(MALFORMED) + 1)]
#: Packets of a piece of the table, and of a row group of Parquet: polars' own row groups are as large.
_PIECE: Final = 1 << 18
#: Up to so many different codes, each is looked for by itself.
_FEW: Final = 16


class Pieces(Protocol):
    """A table that is made piece by piece, each of which has the same columns."""

    height: int
    width: int

    def __iter__(self) -> Iterator[pl.DataFrame]: ...


class PacketPieces:
    """The table of packets in pieces: whole it takes more memory than all that it is made of.

    Attributes:
        height, width: rows and columns of the whole table.
    """

    def __init__(self, stories: PacketStories) -> None:
        self._stories = stories
        self.height = len(stories)
        self.width = packets_table(stories, slice(0)).width

    def __iter__(self) -> Iterator[pl.DataFrame]:
        for begin in range(0, max(self.height, 1), _PIECE):
            yield packets_table(self._stories, slice(begin, begin + _PIECE))


def packets_table(stories: PacketStories, rows: slice = slice(None)) -> pl.DataFrame:
    """One row for each packet: its connection, transfer, role and cause, then its fields.

    Args:
        rows: of these packets only.
    """
    import polars as pl

    whole = stories.packets
    stories = stories.some(rows)
    p = stories.packets
    texts = [*p.addresses, ""]
    cause = stories.cause_row
    caused = cause >= 0
    known = cause if caused.any() else np.broadcast_to(np.zeros(1, np.int64), len(cause))
    fields = _Fields(pl, stories)
    columns: dict[str, Any] = {
        "file": fields.whole(p.file),
        "frame": p.frame,
        "time_ns": p.time_ns,
        "src": fields.words(texts, p.src),
        "dst": fields.words(texts, p.dst),
        "connection": fields.where(stories.connection, stories.connection >= 0, pl.UInt32),
        "sender": fields.words(["a", "b", None], stories.sender),
        "transfer": fields.where(stories.transfer, stories.transfer >= 0, pl.UInt32),
        "role": fields.words(ROLES, stories.role),
        "unwrapped_psn": fields.where(stories.psn, stories.psn >= 0, pl.Int64),
        "round": fields.where(stories.round, stories.round > 0, pl.UInt32),
        "duplicate": stories.duplicate,
        "cause": fields.words([None, *CAUSES[1:]], stories.cause),
        "cause_file": fields.where(whole.file[known] if len(p) else cause, caused, pl.Int32),
        "cause_frame": fields.where(whole.frame[known] if len(p) else cause, caused, pl.Int64),
    }
    for name in COLUMNS:
        if name not in columns and name not in _INNER:
            columns[_RENAMED.get(name, name)] = fields.of(name)
    return pl.DataFrame(columns)


class _Fields:
    """Columns of polars out of those of packets; null where a packet does not have the field."""

    def __init__(self, pl: Any, stories: PacketStories) -> None:
        self._pl, self._packets = pl, stories.packets
        self._has: dict[int, Column] = {}

    def of(self, name: str) -> Any:
        """The column of a field."""
        pl, p = self._pl, self._packets
        if name in FIELD_HOMES and name != "opcode":
            width = next(w for w in (8, 16, 32, 64) if w >= _BITS[name])
            kind = pl.Boolean if _BITS[name] == 1 else getattr(pl, f"UInt{width}")
            there = self._with(_HEADERS[name])
            return self.where(p[name] if there.any() else p.has, there, kind)
        values = p[name]
        if name == "opcode":
            return self.words([*_OPCODES, None], values)
        if name == "icrc_state":
            return self.words(ICRC_STATES, values)
        if name == "malformed":
            return self.words(_MALFORMED, values)
        if name == "icrc":
            return self.where(values, _each(p.icrc_state, lambda state: state != ICRC_UNCHECKED), pl.UInt32)
        if name in ("vlan", "priority"):
            return self.where(values, _each(p.vlan, lambda vlan: vlan >= 0), pl.UInt16)
        if name == "vni":
            return self.where(values, _each(values, lambda vni: vni >= 0), pl.UInt32)
        if name == "encapsulation":
            return self.words([", ".join(wrapping.layers) or None for wrapping in p.wrappings], values)
        if name == "udp_sport":
            return self.where(values, _each(p.roce_version, lambda version: version == 2), pl.UInt16)
        if name == "ip_id":
            return self.where(values, _each(p.ip_version, lambda version: version == 4), pl.UInt16)
        if name == "flow_label":
            return self.where(values, _each(p.ip_version, lambda version: version == 6), pl.UInt32)
        return self.whole(values)

    def _with(self, headers: int) -> Column:
        """Which packets have one of these headers."""
        found = self._has.get(headers)
        if found is None:
            found = self._has[headers] = _each(self._packets.has, lambda has: has & headers != 0)
        return found

    def whole(self, values: Column) -> Any:
        """A column that every packet has."""
        series = self._pl.Series
        return (
            series(values=values[:1]).new_from_index(0, len(values))
            if alike(values)
            else series(values=values)
        )

    def where(self, values: Column, there: Column, dtype: Any) -> Any:
        """A column with nulls where ``there`` is false."""
        pl = self._pl
        if not there.any():
            return pl.Series([None], dtype=dtype).new_from_index(0, len(there))
        if there.all():
            return self.whole(values).cast(dtype)
        if values.dtype.kind != "u":  # what is not there may be −1
            values = np.where(there, values, 0)
        return pl.Series(values=values).cast(dtype).set(pl.Series(values=~there), None)

    def words(self, words: Sequence[str | None], codes: Column) -> Any:
        """A column of texts by their numbers; −1 is the last of ``words``."""
        pl = self._pl
        if not len(codes):
            return pl.Series(dtype=pl.Categorical)
        # Only the words that occur are categories, in the order in which they do.
        order = codes[:1].tolist() if alike(codes) else _in_order(codes, len(words))
        made = pl.Series([words[code] for code in order], dtype=pl.String).cast(pl.Categorical)
        if len(order) == 1:
            return made.new_from_index(0, len(codes))
        place = np.zeros(len(words), np.uint32)
        place[order] = np.arange(len(order), dtype=np.uint32)
        return made.gather(pl.Series(values=place[codes]))


def _each(column: Column, holds: Callable[[Column], Column]) -> Column:
    """Whether something holds of each packet; asked once where all packets are alike."""
    return np.broadcast_to(holds(column[:1]), len(column)) if alike(column) else holds(column)


def _in_order(codes: Column, count: int) -> list[int]:
    """The different codes below ``count``, −1 being the last, in the order in which they first occur."""
    found: list[int] = []
    left, at = np.ones(len(codes), np.bool_), 0
    while len(found) < _FEW:
        found.append(int(codes[at]) % count)
        left &= codes != codes[at]
        at = int(left.argmax())
        if not left[at]:
            return found
    first = np.full(count, len(codes), np.int64)
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return np.argsort(first, kind="stable")[: np.count_nonzero(first < len(codes))].tolist()
