"""How often the packets of a capture make each counter of a device go up, and when."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rocekit import wire
from rocekit.counters import meanings
from rocekit.counters.requester import RequesterSide
from rocekit.counters.responder import ResponderSide
from rocekit.flows.sent_by import senders
from rocekit.wire.network import ECN_CE

if TYPE_CHECKING:
    from rocekit.counters.meanings import Meaning
    from rocekit.counters.watch import PacketRows
    from rocekit.track.connections import Connection

Ints = NDArray[np.int64]


def _table(transport: str | None = None, operation: str | None = None) -> NDArray[np.bool_]:
    """By opcode, whether it is of a transport and an operation."""
    return np.array(
        [
            v in wire.OPCODES
            and transport in (None, wire.OPCODES[v].transport)
            and operation in (None, wire.OPCODES[v].operation)
            for v in range(257)
        ]
    )


_RC: Final = _table("RC")
_UC: Final = _table("UC")
_UD: Final = _table("UD")
_CNP: Final = _table("CNP")
_ACK: Final = _table("RC", "ACK")
_SEND: Final = _table(operation="SEND")
_ENDS: Final = np.array([v in wire.OPCODES and wire.OPCODES[v].ends for v in range(257)])
_IMMEDIATE: Final = np.array(
    [v in wire.OPCODES and any(h.name == "ImmDt" for h in wire.OPCODES[v].headers) for v in range(257)]
)
_KIND: Final = np.array([wire.syndrome_kind(v) for v in range(256)])
_SEQUENCE: Final = wire.make_syndrome(wire.NAK, wire.NAK_SEQUENCE_ERROR)
#: A network doubles fewer packets than this share of them.
_MOST_DOUBLED: Final = 0.3


#: Why nothing is predicted of a capture that has each packet twice.
TWICE: Final = "the capture has packets twice, as of two interfaces"


@dataclass
class Made:
    """What the packets of a capture make of a device's counters.

    Attributes:
        times: by meaning, when the counter goes up.
        flaws: by meaning, why that is not certain. Under None: for all meanings that are stateful.
        received_flaws: the same for all that the device receives; common_flaws: for all.
        late: packets to the device that may have come for a QP that was gone: those of a connection on which
            it sent nothing more, and datagrams.
    """

    times: dict[Meaning, list[int] | Ints] = field(default_factory=dict)
    flaws: dict[Meaning | None, list[str]] = field(default_factory=lambda: defaultdict(list))
    received_flaws: list[str] = field(default_factory=list)
    common_flaws: list[str] = field(default_factory=list)
    late: int = 0

    def between(self, meaning: Meaning, first_ns: int, last_ns: int) -> int:
        """How often in a time, its ends included."""
        times = np.asarray(self.times.get(meaning, ()), np.int64)
        return int(((times >= first_ns) & (times <= last_ns)).sum())


def predict(rows: PacketRows, addresses: Collection[str], connections: Sequence[Connection]) -> Made:
    """What the packets make of the counters of the device with these addresses."""
    made = Made()
    own = rows.indices(addresses)
    _count_packets(made, rows, own)
    _check_doubles(made, rows)
    chosen = [c for c in connections if c.transport == "RC" and not set(addresses).isdisjoint(c.ips)]
    sender = senders(rows["flow"], rows["src_qpn"], rows["time_ns"], rows.keys, connections)
    _check_all_belong(made, rows, sender)
    for connection, packets in _by_connection(rows, sender, chosen):
        for side in (0, 1):
            if connection.ips[side] in addresses:
                _follow(made, rows, connection, side, packets)
    return made


def _count_packets(made: Made, rows: PacketRows, own: Ints) -> None:
    """What each packet says by itself."""
    time_ns, opcode, wrong = rows["time_ns"], rows["opcode"], rows["wrong"]
    sent, received = np.isin(rows["src"], own), np.isin(rows["dst"], own)
    roce = _RC[opcode] | _UC[opcode] | _UD[opcode]
    sound = received & ~wrong
    if int(wrong.sum()) * 2 > len(rows):
        # As where the sender's hardware computes them behind the capture.
        made.received_flaws.append("most ICRCs are wrong in the capture: which packets were taken is unknown")
    aeth = _ACK[opcode] & (rows["syndrome"] == _SEQUENCE)
    rnr = _ACK[opcode] & (_KIND[rows["syndrome"]] == wire.RNR_NAK)
    made.late = int((sound & (_UC[opcode] | _UD[opcode]) & (rows["dest_qpn"] > max(wire.MAD_QPNS))).sum())
    for meaning, chosen in (
        (meanings.PACKETS_SENT, sent & roce),
        (meanings.PACKETS_RECEIVED, sound & roce),
        (meanings.NAKS_RECEIVED, sound & aeth),
        (meanings.RNR_SENT, sent & rnr),
        (meanings.CNPS_SENT, sent & _CNP[opcode]),
        (meanings.CNPS_RECEIVED, sound & _CNP[opcode]),
        (meanings.CE_RECEIVED, sound & (rows["ecn"] == ECN_CE)),
        (meanings.BAD_ICRC, received & wrong),
        # A datagram is sent, and so completed, at once.
        (meanings.SENDS, sent & (_UD[opcode] | _UC[opcode]) & _SEND[opcode] & _ENDS[opcode]),
        (meanings.RECEIVES, sound & _UD[opcode] & _SEND[opcode]),
    ):
        made.times[meaning] = time_ns[chosen]
    if (sound & _UD[opcode] & (rows["dest_qpn"] > max(wire.MAD_QPNS))).any():
        made.flaws[meanings.RECEIVES].append("datagrams for which no receive is posted are not counted")
    if (sound & _UC[opcode] & (_SEND[opcode] | _IMMEDIATE[opcode])).any():
        made.flaws[meanings.RECEIVES].append("UC messages that lost a packet are not counted")


def _check_doubles(made: Made, rows: PacketRows) -> None:
    """A capture of several interfaces may have each packet as often as it passes one."""
    counted = rows["ip_id"] != 0
    columns = [rows[name][counted].astype(np.int64) for name in ("flow", "psn", "ip_id", "opcode")]
    different = len(np.unique(np.stack(columns), axis=1).T)
    if int(counted.sum()) - different > _MOST_DOUBLED * int(counted.sum()):
        made.common_flaws.append(TWICE)


def _check_all_belong(made: Made, rows: PacketRows, sender: NDArray[np.int32]) -> None:
    if ((sender < 0) & _RC[rows["opcode"]] & ~rows["wrong"]).any():
        made.flaws[None].append("of some packets the connection is unknown")


def _by_connection(
    rows: PacketRows, sender: NDArray[np.int32], connections: Sequence[Connection]
) -> Iterator[tuple[Connection, Ints]]:
    """The packets of each connection, in order."""
    number = sender >> 1
    order = np.argsort(number, kind="stable")
    ordered = number[order]
    sound = ~rows["wrong"]
    for connection in connections:
        begin, end = np.searchsorted(ordered, connection.id), np.searchsorted(ordered, connection.id, "right")
        packets = order[begin:end]
        yield connection, np.stack([packets, sender[packets] & 1])[:, sound[packets]]


def _follow(made: Made, rows: PacketRows, connection: Connection, side: int, packets: Ints) -> None:
    """Both roles of a device in one connection."""
    which, by = packets
    names = ("time_ns", "opcode", "psn", "syndrome", "dma_length", "ip_id")
    columns = [rows[name][which].tolist() for name in names]
    sent = np.flatnonzero(by == side)
    made.late += len(by) - (int(sent[-1]) + 1 if len(sent) else 0)
    responder, requester = ResponderSide(connection), RequesterSide(connection)
    own = (by == side).tolist()
    responder.prepare(own, columns[1], columns[2], columns[3])
    for i, (mine, *packet) in enumerate(zip(own, *columns, strict=True)):
        responder.feed(i, mine, *packet)
        requester.feed(mine, *packet)
    responder.finish()
    requester.finish()
    for part in (responder, requester):
        for meaning, times in part.times.items():
            made.times[meaning] = np.concatenate([np.asarray(made.times.get(meaning, ()), np.int64), times])
        for flawed, words in part.flaws:
            if words not in made.flaws[flawed]:
                made.flaws[flawed].append(words)
