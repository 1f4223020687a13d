"""Decoded packets as columns, and which columns there are.

The BTH and the headers behind it are kept as big-endian words, a row a packet. A field's column is computed
from them when it is first read. Which header stands where depends on the opcode; the tables for it are
derived from ``wire.OPCODES``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.packets.malformed import MALFORMED
from rocekit.packets.wrapping import PLAIN, Wrapping, numbers_of
from rocekit.wire import BTH, GRH, HEADERS, OPCODES, Field, Header
from rocekit.wire.network import ECN_BITS, ECN_MASK
from rocekit.wire.sorting import distinct

ICRC_VALID: Final = 0
ICRC_INVALID: Final = 1
ICRC_UNCHECKED: Final = 2
ICRC_STATES: Final = ("valid", "invalid", "unchecked")
#: The syndrome of an ACK or NAK that is cut before its AETH (see ``Packets.syndromes``): a reserved one.
CUT_SYNDROME: Final = 0xDF
NO_OPCODE: Final = -1  #: the column ``opcode`` of a packet cut before its BTH ended

Column = NDArray[Any]
Row = dict[str, Any]

BLOCK_WORDS: Final = max(o.headers_length for o in OPCODES.values()) // 4
#: The bit in the column ``has`` that says whether a packet carries the header.
HAS: Final = MappingProxyType({name: 1 << i for i, name in enumerate(HEADERS)})

# Tables by opcode; the 257th row (also index −1) is that of a packet without one.
HEADERS_BYTES = np.full(257, BTH.length, np.int64)
HAS_OF = np.full(257, HAS["BTH"], np.uint16)
KNOWN = np.zeros(257, np.bool_)
NO_PAYLOAD = np.zeros(257, np.bool_)
# In words from the BTH's first; −1 for opcodes without the header.
PLACE_WORDS = {name: np.full(257, -1, np.int8) for name in HEADERS}
#: All rows.
_EVERY: Final = slice(None)
_IS_ACK: Final = np.zeros(257, np.bool_)
HAS_OF[256] = 0


def _fill_tables() -> None:
    for value, opcode in OPCODES.items():
        KNOWN[value], NO_PAYLOAD[value] = True, not opcode.payload
        _IS_ACK[value] = opcode.operation == "ACK"
        HEADERS_BYTES[value] = opcode.headers_length
        place = BTH.length
        for header in opcode.headers:
            PLACE_WORDS[header.name][value] = place // 4
            HAS_OF[value] |= HAS[header.name]
            place += header.length


_fill_tables()


def _meaningful(field: Field) -> bool:
    return not field.reserved and not field.is_bytes


def _homes() -> dict[str, list[tuple[Header, Field]]]:
    homes: dict[str, list[tuple[Header, Field]]] = {}
    for header in HEADERS.values():
        for field in header.fields:
            if header is not GRH and _meaningful(field):
                homes.setdefault(field.name, []).append((header, field))
    return homes


#: Each field of the transport headers, and the headers that have it: ``rkey`` is in RETH and AtomicETH.
FIELD_HOMES: Final = MappingProxyType(_homes())

#: Columns that are kept for every packet, and their types.
KEPT: Final = MappingProxyType(
    {
        "frame": np.int64,
        "file": np.int32,
        "time_ns": np.int64,
        "ip_version": np.uint8,
        "roce_version": np.uint8,
        "src": np.int64,
        "dst": np.int64,
        "flow": np.int64,
        "udp_sport": np.uint16,
        "tclass": np.uint8,
        "hop_limit": np.uint8,
        "flow_label": np.int32,
        "ip_id": np.uint16,
        "vlan": np.int32,
        "priority": np.uint8,
        "encapsulation": np.int32,
        "opcode": np.int64,
        "has": np.uint16,
        "payload_length": np.int32,
        "icrc": np.uint32,
        "icrc_state": np.uint8,
        "truncated": np.bool_,
        "malformed": np.uint8,
        "fragment": np.bool_,
    }
)
#: Every column by name, in the order in which a packet is printed.
COLUMNS: Final = tuple(dict.fromkeys([*KEPT, "vni", "dscp", "ecn", *FIELD_HOMES]))
#: Columns that are computed from the words, and their usual types; narrow packets have these instead.
FIELD_TYPES: Final = {
    n: np.uint64 if homes[0][1].bits > 32 else np.int64 for n, homes in FIELD_HOMES.items() if n not in KEPT
}


def alike(column: Column) -> bool:
    """Whether a column is one number for all packets."""
    return len(column) > 0 and column.strides == (0,)


class Packets:
    """RoCE packets as columns of one length.

    ``packets.psn`` and ``packets["psn"]`` are NumPy arrays with one value a packet. Every field of the
    transport headers in ``wire`` is a column (int64; uint64 if the field has 64 bits), 0 for packets
    without the header; ``has`` says which headers a packet has, by the bits of ``HAS``. ``opcode`` is −1 if
    the packet is cut inside the BTH. Besides:

    - ``frame`` (number in its file), ``file``, ``time_ns``;
    - ``src``, ``dst``: indices into ``addresses``; ``ip_version`` 4 or 6 (a RoCE v1 GRH is 6),
      ``roce_version`` 1 or 2;
    - ``flow``: a number for each (source, destination, destination QPN) in a scope (see ``wrapping``);
    - ``udp_sport`` (0 for RoCE v1), ``tclass`` and its parts ``dscp`` and ``ecn``, ``hop_limit``,
      ``flow_label``, ``ip_id`` (IPv4's identification, else 0);
    - ``vlan`` (−1: untagged), ``priority``: the innermost tag's;
    - ``encapsulation``: what is around the packet, an index into ``wrappings`` (0: nothing); ``vni``: the
      innermost virtual network's identifier (−1: none); ``scope``: see ``wrapping``;
    - ``payload_length``: bytes without pad and ICRC, from the lengths in the headers, also of a truncated
      packet (0 without an opcode);
    - ``icrc`` and ``icrc_state`` (``ICRC_VALID``, ``ICRC_INVALID``, ``ICRC_UNCHECKED``);
    - ``truncated``: cut by the snaplen, or by a mirror; ``fragment``: the first fragment of a datagram;
    - ``malformed``: 0, or a code of ``MALFORMED``.

    *Narrow* packets (see ``narrow``) have all columns in types of their size, and no words.

    Attributes:
        addresses: textual IP addresses; shared by all batches of one ``Decoder``, it grows.
        wrappings: likewise what is around packets.
    """

    __slots__ = ("_buffer", "_columns", "_lazy", "_payload_at", "_words", "addresses", "wrappings")

    def __init__(
        self,
        columns: dict[str, Column],
        words: NDArray[np.uint32],
        addresses: list[str],
        buffer: NDArray[np.uint8] | None,
        payload_at: NDArray[np.int64],
        derived: dict[str, Column] | None = None,
        wrappings: Sequence[Wrapping] = (PLAIN,),
    ) -> None:
        self._columns = columns
        self._words = words
        self._lazy: dict[str, Column] = {} if derived is None else derived
        self.addresses = addresses
        self.wrappings = wrappings
        self._buffer = buffer
        self._payload_at = payload_at

    def __len__(self) -> int:
        return len(self._words)

    def __getattr__(self, name: str) -> Column:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"packets have no column {name!r}") from None

    def __getitem__(self, name: str) -> Column:
        """The column ``name``. KeyError when there is none."""
        column = self._columns.get(name)
        if column is None:
            column = self._lazy.get(name)
        if column is None:
            column = self._lazy[name] = self._derive(name)
        return column

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *COLUMNS})

    def __repr__(self) -> str:
        return f"<Packets: {len(self)} packets, {len(COLUMNS)} columns>"

    def _derive(self, name: str) -> Column:
        if name == "dscp":
            return self._columns["tclass"] >> ECN_BITS
        if name == "ecn":
            return self._columns["tclass"] & ECN_MASK
        if name in ("vni", "scope"):
            numbers, which = np.unique(self._columns["encapsulation"], return_inverse=True)
            return numbers_of(self.wrappings, name, numbers)[which]
        homes = FIELD_HOMES[name]
        if homes[0][0] is BTH:
            return _shift(self._words, 0, homes[0][1])
        values = np.zeros(len(self), np.uint64 if homes[0][1].bits > 32 else np.int64)
        for header, field in homes:
            rows = np.flatnonzero(self._columns["has"] & HAS[header.name] != 0)
            if not len(rows):
                continue
            places = PLACE_WORDS[header.name][self._columns["opcode"][rows]]
            for place in distinct(places).tolist():
                here = rows if (places == place).all() else rows[places == place]
                values[here] = _shift(self._words, place, field, here)
        return values

    def lacking(self) -> Column:
        """The rows of truncated packets that end inside the headers of their opcode (see ``has``)."""
        limit = self._columns.get("limit")  # which concatenated packets have not
        if not self._columns["truncated"].any() or (limit is not None and (limit >= self._payload_at).all()):
            return np.empty(0, np.int64)
        return np.flatnonzero(HAS_OF[self._columns["opcode"]] & ~self._columns["has"])

    def syndromes(self) -> Column:
        """The column ``syndrome``, with ``CUT_SYNDROME`` for ACKs and NAKs that are cut before their AETH."""
        values, lacking = self["syndrome"], self.lacking()
        if len(lacking):
            cut = _IS_ACK[self._columns["opcode"][lacking]] & (
                self._columns["has"][lacking] & HAS["AETH"] == 0
            )
            values = values.copy()
            values[lacking[cut]] = CUT_SYNDROME
        return values

    def where(self, rows: NDArray[np.bool_] | NDArray[np.int64] | slice) -> Packets:
        """Some of the packets: by a mask, an array of indices or a slice."""
        words = self._words[rows]
        count = len(words)
        return Packets(
            {name: _some(column, rows, count) for name, column in self._columns.items()},
            words,
            self.addresses,
            self._buffer,
            _some(self._payload_at, rows, count),
            {name: _some(column, rows, count) for name, column in self._lazy.items()},
            self.wrappings,
        )

    @classmethod
    def concat(cls, parts: Sequence[Packets]) -> Packets:
        """Several batches of one ``Decoder`` as one. The payloads' bytes are not kept.

        Raises:
            ValueError: the parts are of different decoders, so their address indices differ.
        """
        if not parts:
            return empty_packets()
        if any(part.addresses is not parts[0].addresses for part in parts):
            raise ValueError("packets of different decoders cannot be put together")
        return Packets(
            {name: np.concatenate([part._columns[name] for part in parts]) for name in KEPT},
            np.concatenate([part._words for part in parts]),
            parts[0].addresses,
            None,
            np.concatenate([part._payload_at for part in parts]),
            {name: np.concatenate([part._lazy[name] for part in parts]) for name in parts[0]._own_fields},
            wrappings=max((part.wrappings for part in parts), key=len),  # an empty part may have none
        )

    @property
    def _own_fields(self) -> tuple[str, ...]:
        """The fields that narrow packets have as columns."""
        return () if self._words.shape[1] else tuple(FIELD_TYPES)

    def wide(self) -> Packets:
        """The same packets, with each column in its usual type: the tracker adds and subtracts."""
        columns = {name: as_type(column, KEPT.get(name, np.int64)) for name, column in self._columns.items()}
        fields = {name: as_type(self._lazy[name], FIELD_TYPES[name]) for name in self._own_fields}
        lazy = self._lazy | fields
        return Packets(
            columns, self._words, self.addresses, self._buffer, self._payload_at, lazy, self.wrappings
        )

    @classmethod
    def used_up(cls, parts: list[Packets], rows: NDArray[np.integer[Any]] | None = None) -> Packets:
        """As :meth:`concat`, or some rows of that; afterwards the parts have no packets, the list no parts.

        Column by column, so that no second copy of all packets is held meanwhile.

        Raises:
            ValueError: as ``concat``.
        """
        found = cls.concat([part.where(slice(0)) for part in parts])
        taken = [] if rows is None else _by_part(rows, [len(part) for part in parts])
        fields = parts[0]._own_fields if parts else ()
        count = sum(map(len, parts)) if rows is None else len(rows)
        for part in parts:
            part._lazy = {name: part._lazy[name] for name in fields}

        def joined(columns: list[Column]) -> Column:
            if count and all(alike(column) and column[0] == columns[0][0] for column in columns):
                return np.broadcast_to(columns[0][:1].copy(), count)
            if rows is None:
                return columns[0] if len(columns) == 1 else np.concatenate(columns)
            if len(taken) == 1:
                return columns[taken[0][0]][taken[0][2]]
            kind = np.result_type(*(columns[number] for number, _, _ in taken)) if taken else columns[0].dtype
            values = np.empty((len(rows), *columns[0].shape[1:]), kind)
            for number, places, own in taken:
                values[places] = columns[number][own]
            return values

        for name in KEPT if parts else ():
            found._columns[name] = joined([part._columns.pop(name) for part in parts])
        for name in fields:
            found._lazy[name] = joined([part._lazy.pop(name) for part in parts])
        for name in ("_words", "_payload_at") if parts else ():
            columns = [getattr(part, name) for part in parts]
            for part in parts:
                setattr(part, name, getattr(part, name)[:0].copy())
            setattr(found, name, joined(columns))
        parts.clear()
        return found

    def at(self, time_ns: NDArray[np.int64], **others: Column) -> Packets:
        """The same packets at other times, and with other values in some other columns."""
        return self._with({"time_ns": time_ns, **others}, self._buffer)

    def of_flows(self, flow: Column, encapsulation: Column) -> Packets:
        """The same packets with other flows, and what is around these."""
        return self._with({"flow": flow, "encapsulation": encapsulation}, self._buffer)

    def of_files(self, file: Column) -> Packets:
        """The same packets as those of other captures."""
        return self._with({"file": file}, self._buffer)

    def detached(self) -> Packets:
        """The same packets without their payloads' bytes, so that they may be kept."""
        return self._with({}, None)

    def _with(self, columns: dict[str, Column], buffer: NDArray[np.uint8] | None) -> Packets:
        """The same packets with some other columns, and their bytes in another buffer."""
        lazy = self._lazy
        if "encapsulation" in columns:  # others follow from it
            lazy = {name: lazy[name] for name in self._own_fields}
        every = self._columns | columns
        return Packets(every, self._words, self.addresses, buffer, self._payload_at, lazy, self.wrappings)

    @property
    def words(self) -> NDArray[np.uint32]:
        """The BTH and the headers behind it: a row a packet."""
        return self._words

    @property
    def has_payload(self) -> bool:
        """Whether :meth:`payload` has the payloads' bytes."""
        return self._buffer is not None

    def payload(self, i: int) -> bytes:
        """The captured payload bytes of packet ``i``, without pad and ICRC.

        Fewer than ``payload_length`` if the packet is truncated. They are in the reader's buffer: ask before
        the next batch of frames is read.

        Raises:
            ValueError: the packets are of :meth:`concat`, which keeps columns only.
        """
        buffer, start = self._bytes(), self._payload_at.item(i)
        stop = min(start + self["payload_length"].item(i), self._columns["limit"].item(i))
        return buffer[start:stop].tobytes() if 0 <= start < stop else b""

    def payload_bounds(self, rows: Column | slice) -> tuple[NDArray[np.uint8], Column, Column]:
        """Where the payloads of packets begin and end, and in what. See :meth:`payload`."""
        buffer, start = self._bytes(), self._payload_at[rows]
        stop = np.minimum(start + self.payload_length[rows], self._columns["limit"][rows])
        return buffer, np.where(start < 0, 0, start), np.where(start < 0, 0, stop)

    def _bytes(self) -> NDArray[np.uint8]:
        if self._buffer is None:
            raise ValueError("payload bytes are kept only with the batch they came in")
        return self._buffer

    def row(self, i: int) -> Row:
        """Packet ``i`` as a dict: see :meth:`rows`."""
        i = range(len(self))[i]
        return next(self.where(slice(i, i + 1)).rows())

    def rows(self) -> Iterator[Row]:
        """Each packet as a dict for people and JSON: addresses and codes as text, fields of its headers."""
        kept = zip(*(self._columns[name].tolist() for name in KEPT), strict=True)
        lists: dict[str, list[Any]] = {}
        names_of: dict[int, tuple[str, ...]] = {}
        for i, values in enumerate(kept):
            column = dict(zip(KEPT, values, strict=True))
            opcode, tagged = column["opcode"], column["vlan"] >= 0
            known, wrapping = OPCODES.get(opcode), self.wrappings[column["encapsulation"]]
            row: Row = {
                "frame": column["frame"],
                "file": column["file"],
                "time_ns": column["time_ns"],
                "src": self.addresses[column["src"]],
                "dst": self.addresses[column["dst"]],
                "ip_version": column["ip_version"],
                "roce_version": column["roce_version"],
                "udp_sport": column["udp_sport"] if column["roce_version"] == 2 else None,
                "tclass": column["tclass"],
                "dscp": column["tclass"] >> ECN_BITS,
                "ecn": column["tclass"] & ECN_MASK,
                "hop_limit": column["hop_limit"],
                "ip_id": column["ip_id"] if column["ip_version"] == 4 else None,
                "flow_label": column["flow_label"] if column["ip_version"] == 6 else None,
                "vlan": column["vlan"] if tagged else None,
                "priority": column["priority"] if tagged else None,
                "encapsulation": list(wrapping.layers) or None,
                "vni": wrapping.vni if wrapping.vni >= 0 else None,
                "opcode": known.name if known else (None if opcode == NO_OPCODE else opcode),
            }
            names = names_of.get(column["has"])
            if names is None:
                names = names_of[column["has"]] = _fields_of(column["has"])
                lists.update((name, self[name].tolist()) for name in names if name not in lists)
            for name in names:
                row[name] = lists[name][i]
            unchecked = column["icrc_state"] == ICRC_UNCHECKED
            row["payload_length"] = column["payload_length"]
            row["icrc"] = None if unchecked else column["icrc"]
            row["icrc_state"] = ICRC_STATES[column["icrc_state"]]
            row["truncated"] = column["truncated"]
            row["fragment"] = column["fragment"]
            row["malformed"] = MALFORMED.get(column["malformed"])
            yield row


def _fields_of(has: int) -> tuple[str, ...]:
    """The fields of the headers in ``has``, without the opcode, in the order of the headers."""
    return tuple(
        name
        for name, homes in FIELD_HOMES.items()
        if name != "opcode" and any(has & HAS[header.name] for header, _ in homes)
    )


def _shift(words: NDArray[np.uint32], place: int, field: Field, rows: Column | slice = _EVERY) -> Column:
    """A field's column from the words of ``rows``; its header starts at word ``place``."""
    at, bit = divmod(field.offset, 32)
    at += place
    word = words[:, at][rows]  # one word a packet: all words of each would be copied
    if field.bits == 64:
        return word.astype(np.uint64) << np.uint64(32) | words[:, at + 1][rows]
    if field.bits == 32:
        return word.astype(np.int64)
    # No field of these headers crosses a word without being 64 bits wide.
    return (word >> (32 - bit - field.bits) & ((1 << field.bits) - 1)).astype(np.int64)


def as_type(column: Column, kind: Any) -> Column:
    """A column in another type; one number stays one."""
    if alike(column):
        return np.broadcast_to(column[:1].astype(kind), len(column))
    return column.astype(kind, copy=False)


def _some(column: Column, rows: Any, count: int) -> Column:
    """Some rows of a column; one number stays one."""
    return np.broadcast_to(column[:1], count) if alike(column) and count else column[rows]


def _by_part(
    rows: NDArray[np.integer[Any]], lengths: Sequence[int]
) -> list[tuple[int, NDArray[np.int64], NDArray[np.integer[Any]]]]:
    """Rows of parts put together: each part that has any, the places of its in ``rows``, its own rows."""
    found, begin = [], 0
    for number, length in enumerate(lengths):
        places = np.flatnonzero((rows >= begin) & (rows < begin + length))
        if len(places):
            found.append((number, places, rows[places] - begin))
        begin += length
    return found


def in_file_order(parts: Sequence[Packets]) -> Packets:
    """Several batches of one ``Decoder`` as one (see ``Packets.concat``), sorted by file and frame."""
    packets = Packets.concat(parts)
    return packets.where(np.lexsort((packets.frame, packets.file)))


def empty_packets(addresses: list[str] | None = None, *, narrow: bool = False) -> Packets:
    """No packets, with all columns."""
    columns: dict[str, Column] = {name: np.empty(0, kind) for name, kind in KEPT.items()}
    columns["limit"] = np.empty(0, np.int64)
    words = np.empty((0, 0 if narrow else BLOCK_WORDS), np.uint32)
    fields = {name: np.empty(0, kind) for name, kind in FIELD_TYPES.items()} if narrow else None
    known = [] if addresses is None else addresses
    return Packets(columns, words, known, None, np.empty(0, np.int64), fields)
