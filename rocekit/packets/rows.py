"""A batch of packets as columns that a loop reads fast, packet by packet.

Plain Python reads lists several times faster than NumPy arrays. Compiled, the columns are typed memory (see
``rows.pxd``) and nothing is converted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from rocekit.files.frame_names import FRAME_BITS
from rocekit.packets import FIELD_HOMES, HAS, HAS_OF
from rocekit.packets.wrapping import MadeWrappings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocekit.packets import Packets
    from rocekit.packets.wrapping import Wrapping

COMPILED: Final = not __file__.endswith(".py")
_FAR_NS: Final = (1 << 62) - 1


def column(values: Any, kind: Any = np.int64) -> list[int]:
    """An array as a loop reads it fast: compiled, as it is; else as a list."""
    array: Any = np.ascontiguousarray(values, kind)
    return array if COMPILED else array.tolist()


#: In some columns: the packet is cut before the field.
UNKNOWN: Final = -1
#: How many packets before a batch are remembered with it.
REMEMBERED: Final = 256


def _near(time_ns: Any) -> Any:
    """Times, limited so that their differences fit 63 bits; those of real clocks are far within."""
    if len(time_ns) and (int(time_ns.min()) < -_FAR_NS or int(time_ns.max()) > _FAR_NS):
        return np.clip(time_ns, -_FAR_NS, _FAR_NS)
    return time_ns


def _without(packets: Packets, name: str, lacking: Any) -> Any:
    """Those of the rows ``lacking`` that are cut before the field ``name`` of their opcode."""
    homes = sum(HAS[header.name] for header, _ in FIELD_HOMES.get(name, ()))
    return lacking[(HAS_OF[packets.opcode[lacking]] & ~packets.has[lacking] & homes) != 0]


def _known(packets: Packets, name: str, lacking: Any) -> Any:
    """A column, with ``UNKNOWN`` where the packet is cut before the field."""
    values = packets[name]
    rows = _without(packets, name, lacking) if len(lacking) else lacking
    if len(rows):
        values = values.copy()
        values[rows] = UNKNOWN
    return values


class Rows:
    """``rows.psn[i]`` is packet ``i``'s PSN.

    Columns that most packets need are made at once, others when they are first asked for. ``frame`` holds
    frame references (see ``frame_names``); ``before_src`` and ``before_ns`` are the senders and times of the
    packets before the batch (the ``tail()`` of the batch before). ``around_src`` and ``around_ns`` are those
    of the whole batch, in which packet ``i`` stands at ``place_of(i)``.

    A truncated packet may end inside its headers. Then ``msn``, ``rkey`` and ``dma_length`` are ``UNKNOWN``
    (with the first, the syndrome is unknown; with the last two, the remote address), and columns that are
    made later have None.
    """

    def __init__(self, packets: Packets, before: tuple[Any, Any] = ((), ())) -> None:
        self._packets = packets
        self._around = packets.wrappings[0] if len(packets.wrappings) == 1 else None
        self._encapsulation: list[int] | None = None
        self._wrappings: Sequence[Wrapping] = ()
        self._table: MadeWrappings | None = None
        self._payloads: memoryview | None = None  # where these begin and end is known with them
        self._first = self._last = column(())
        self._others: dict[str, list[int]] = {}
        self.count = len(packets)
        self.before_src, self.before_ns = (column(values) for values in before)
        file = packets.file  # of one capture, the first, references are the frames' numbers
        frame = packets.frame + (file.astype(np.int64) << FRAME_BITS) if file.any() else packets.frame
        self.frame = column(frame)
        self.time_ns = column(_near(packets.time_ns))
        self.src = column(packets.src)
        self.dst = column(packets.dst)
        self.around_src, self.around_ns = self.src, self.time_ns
        self.place: list[int] | None = None
        self.dest_qpn = column(packets.dest_qpn)
        self.flow = column(packets.flow)
        self.opcode = column(packets.opcode)
        self.psn = column(packets.psn)
        self.payload_length = column(packets.payload_length)
        self.ip_id = column(packets.ip_id)
        self.ecn = column(packets.ecn)
        self.syndrome = column(packets.syndrome)
        lacking = packets.lacking()
        self.msn = column(_known(packets, "msn", lacking))
        self.dma_length = column(_known(packets, "dma_length", lacking))
        self.remote_va = column(packets.remote_va, np.uint64)
        self.rkey = column(_known(packets, "rkey", lacking))
        self.udp_sport = column(packets.udp_sport)

    def __len__(self) -> int:
        return self.count

    def only(self, places: list[int]) -> Rows:
        """Some packets of a batch, which can be kept without the rest."""
        few = Rows(self._packets.where(np.array(places, np.int64)), (self.before_src, self.before_ns))
        few.around_src, few.around_ns, few.place = self.around_src, self.around_ns, places
        return few

    def place_of(self, i: int) -> int:
        """The index of packet ``i`` in the whole batch."""
        return i if self.place is None else self.place[i]

    def tail(self) -> tuple[Any, Any]:
        """The senders and times of the last packets, of this batch and those before it."""
        packets = self._packets
        src = np.concatenate([np.asarray(self.before_src, np.int64), packets.src[-REMEMBERED:]])
        time_ns = np.concatenate([np.asarray(self.before_ns, np.int64), packets.time_ns[-REMEMBERED:]])
        return src[-REMEMBERED:], time_ns[-REMEMBERED:]

    def __getattr__(self, name: str) -> list[int]:
        if name.startswith("_"):
            raise AttributeError(name)
        return self.lesser(name)

    def lesser(self, name: str) -> list[int]:
        """A column that few packets have; as an attribute it takes longer, once for each packet."""
        values = self._others.get(name)
        if values is None:
            packets = self._packets
            values = self._others[name] = packets[name].tolist()
            for i in _without(packets, name, packets.lacking()).tolist():
                values[i] = None
        return values

    def around(self, i: int) -> Wrapping:
        """What is around packet ``i``."""
        if self._around is not None:
            return self._around
        if self._encapsulation is None:
            self._encapsulation = column(self._packets.encapsulation)
            self._wrappings = self._packets.wrappings
            if isinstance(self._wrappings, MadeWrappings):
                self._table = self._wrappings
        if self._table is not None:
            return self._table.at(self._encapsulation[i])
        found: Wrapping = self._wrappings[self._encapsulation[i]]
        return found

    def payload(self, i: int) -> bytes:
        """The captured payload of packet ``i``; only before the next batch is read."""
        if self._payloads is None:
            buffer, first, last = self._packets.payload_bounds(slice(None))
            self._first, self._last = column(first), column(last)
            self._payloads = buffer.data
        return bytes(self._payloads[self._first[i] : self._last[i]])
