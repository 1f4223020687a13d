"""What was done to synthetic traffic, as a journal: the truth that analyses of its capture are scored by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from rocekit import wire
from rocekit.craft.traffic import Traffic
from rocekit.craft.traffic_columns import CE, Bools, Columns, Messages, Round, qpn
from rocekit.craft.traffic_frames import host
from rocekit.craft.traffic_rounds import START_NS
from rocekit.journal import JournalWriter
from rocekit.wire.psn import MASK

#: The host of the lines: no host of the traffic knows these things.
_WIRE: Final = "wire"
_PPM: Final = 1_000_000
_ACK: Final = wire.OPCODE_NAMES["RC_ACKNOWLEDGE"]
_READ_REQUEST: Final = wire.OPCODE_NAMES["RC_RDMA_READ_REQUEST"]
#: The totals of a flow, with the names that a pattern's journal has.
_TOTALS: Final = (
    *("data_frames_tx", "data_frames_rx", "data_frames_retransmitted", "tx_bytes", "message_tx"),
    *("frames_lost", "ecn_ce_rx", "ack_tx", "nak_tx", "cnp_tx"),
)
_Line = tuple[int, str, dict[str, Any]]


class TrafficTruth:
    """Writes what happened to packets (lost, marked, sent again, each with its reason), and flows' totals.

    A flow is what one side of a QP pair requests, with the answers. Which packets are lost and marked is
    drawn at random. A lost packet that is not in the capture has the time of the packet before it in its
    message.
    """

    def __init__(self, journal: JournalWriter, traffic: Traffic) -> None:
        self._journal = journal.of_host(_WIRE, 1)
        self._traffic = traffic
        self._totals = {name: np.zeros(traffic.streams, np.int64) for name in _TOTALS}
        self._last_ns = START_NS
        self._journal.write(
            "traffic_started",
            time_ns=START_NS,
            seed=traffic.seed,
            program="generate",
            link_bps=round(traffic.gbps * 1e9),
            loss_ppm=round(traffic.loss * _PPM),
            ecn_ppm=round(traffic.ecn * _PPM),
        )

    def round(self, made: Round) -> None:
        """Write what happened in a round, which is later than all before."""
        m, packets = made.messages, made.packets
        self._last_ns = int(packets.time_ns[-1])
        data = (packets.opcode != _ACK) & (packets.opcode != _READ_REQUEST)
        data &= packets.opcode != wire.CNP_OPCODE
        gone = data & ~packets.again
        gone &= packets.psn == ((m.first_psn + m.lost) & MASK)[packets.message]
        gone &= (m.lost >= 0)[packets.message]
        self._count(m, packets, data, gone)
        lines = [*self._lost(m, packets, gone), *self._marked(packets), *self._repeated(m, packets)]
        for time_ns, event, fields in sorted(lines, key=lambda line: line[0]):
            self._journal.write(event, time_ns=time_ns, **fields)

    def end(self) -> None:
        """Write the totals of each flow that there was."""
        columns = [self._totals[name].tolist() for name in _TOTALS]
        for stream, values in enumerate(zip(*columns, strict=True)):
            if not any(values):
                continue
            pair, b = self._side(stream)
            ends = [self._end(pair, side) for side in (b, not b)]
            (here, own), (there, other) = ends
            self._journal.write(
                "flow_totals",
                time_ns=self._last_ns,
                flow=f"{here} {own:#x} -> {there} {other:#x}",
                totals=dict(zip(_TOTALS, values, strict=True)),
                local_ip=here,
                remote_ip=there,
            )

    # -- within

    def _side(self, stream: int) -> tuple[int, bool]:
        """The pair of a stream, and whether its side ``b`` requests."""
        return (stream >> 1, bool(stream & 1)) if self._traffic.both_directions else (stream, False)

    def _number(self, pair: int, b: bool) -> int:
        return pair % (self._traffic.hosts // 2) * 2 + b

    def _end(self, pair: int, b: bool) -> tuple[str, int]:
        """Address and QPN of a side of a pair."""
        number = int(qpn(np.array([pair]), np.array([b]), self._traffic.pairs)[0])
        return host(self._number(pair, b), self._traffic.ip_version), number

    def _packet(self, pair: int, from_b: bool, psn: int, opcode: int) -> dict[str, Any]:
        """A packet's keys."""
        (source, _), (target, dest_qpn) = self._end(pair, from_b), self._end(pair, not from_b)
        return {
            "device": f"host{self._number(pair, from_b) + 1}",
            "local_ip": source,
            "remote_ip": target,
            "dest_qpn": dest_qpn,
            "psn": psn,
            "opcode": wire.OPCODES[opcode].name,
        }

    def _rows(self, packets: Columns, which: Bools) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """(time, message, keys) of some packets."""
        some = packets.take(np.flatnonzero(which))
        columns = (some.time_ns, some.message, some.pair, some.from_b, some.psn, some.opcode)
        for time_ns, message, *packet in zip(*(column.tolist() for column in columns), strict=True):
            yield time_ns, message, self._packet(*packet)

    def _lost(self, m: Messages, packets: Columns, gone: Bools) -> Iterator[_Line]:
        for time_ns, _, packet in self._rows(packets, gone):
            yield time_ns, "packet_lost", {"reason": "random", "captured": True, **packet}
        before = np.flatnonzero(m.before_capture)
        if not len(before):
            return
        order = np.argsort(packets.message, kind="stable")
        begins = np.searchsorted(packets.message[order], before)
        nearest = order[begins + np.maximum(m.lost[before] - 1, 0)]
        repeats = self._first_repeats(packets)
        for message, row in zip(before.tolist(), nearest.tolist(), strict=True):
            again = repeats[message]
            packet = self._packet(
                int(packets.pair[again]),
                bool(packets.from_b[again]),
                int(packets.psn[again]),
                int(packets.opcode[again]),
            )
            fields = {"reason": "random", "captured": False, **packet}
            yield int(packets.time_ns[row]), "packet_lost", fields

    @staticmethod
    def _first_repeats(packets: Columns) -> dict[int, int]:
        """The row of the first packet sent again, by message: the lost packet itself."""
        rows = np.flatnonzero(packets.again)
        messages, first = np.unique(packets.message[rows], return_index=True)
        return dict(zip(messages.tolist(), rows[first].tolist(), strict=True))

    def _marked(self, packets: Columns) -> Iterator[_Line]:
        for time_ns, _, packet in self._rows(packets, packets.ecn == CE):
            yield time_ns, "packet_marked", {"reason": "random", **packet}

    def _repeated(self, m: Messages, packets: Columns) -> Iterator[_Line]:
        # A middle response of a READ that is missing shows in the next one: an implied NAK (9.9.2).
        reasons = np.where(m.naks > 0, "nak", np.where(m.timeouts > 0, "timeout", "implied_nak")).tolist()
        some = packets.take(np.flatnonzero(packets.again))
        own = qpn(some.pair, some.from_b, self._traffic.pairs)
        columns = (some.time_ns, some.message, some.pair, some.from_b, some.psn, some.opcode, own)
        for time_ns, message, pair, b, psn, opcode, number in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            fields = {
                "qp": (f"host{self._number(pair, b) + 1}", number),
                "reason": reasons[message],
                "psn": psn,
                "round": 1,
                "opcode": wire.OPCODES[opcode].name,
            }
            yield time_ns, "packet_repeated", fields

    def _count(self, m: Messages, packets: Columns, data: Bools, gone: Bools) -> None:
        stream = m.stream[packets.message]
        naks = wire.make_syndrome(wire.NAK, wire.NAK_SEQUENCE_ERROR)
        answers = packets.opcode == _ACK
        of_packets = {
            "data_frames_tx": data,
            "data_frames_rx": data & ~gone,
            "data_frames_retransmitted": data & packets.again,
            "tx_bytes": np.where(data, packets.payload, 0),
            "frames_lost": gone,
            "ecn_ce_rx": (packets.ecn == CE) & ~gone,
            "ack_tx": answers & (packets.syndrome != naks),
            "nak_tx": answers & (packets.syndrome == naks),
            "cnp_tx": packets.opcode == wire.CNP_OPCODE,
        }
        for name, values in of_packets.items():
            np.add.at(self._totals[name], stream, values.astype(np.int64))
        before = m.before_capture
        payload = np.minimum(self._traffic.mtu, m.size - m.lost * self._traffic.mtu)
        of_messages = {
            "message_tx": np.ones(len(m), np.int64),
            "data_frames_tx": before,
            "frames_lost": before,
            "tx_bytes": np.where(before, payload, 0),
        }
        for name, values in of_messages.items():
            np.add.at(self._totals[name], m.stream, values.astype(np.int64))
