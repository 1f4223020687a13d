"""Captures of a fleet: hosts that talk to several peers each, some of which lose what arrives.

A faulty host loses packets on the last metre to it. So its own capture lacks them, and those of its peers,
which sent them, have them: every peer's capture shows losses too, and none of the peers is to blame.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rocekit.craft.generate import Traffic
from rocekit.craft.traffic_columns import Columns, Ints, Messages
from rocekit.craft.traffic_frames import FrameWriter, host
from rocekit.craft.traffic_rounds import rounds
from rocekit.wire.psn import MASK

#: The share of packets that a faulty host loses of what arrives.
LOSS = 0.01
#: How many QP pairs two hosts that talk have.
PAIRS = 2
#: From a host to the middle of the way to another one.
HALF_WAY_NS = 400


@dataclass(frozen=True)
class Fleet:
    """A fleet whose host ``i`` talks to the next ``peers`` hosts in a ring (and to those before it).

    Attributes:
        packets: about how many each host has in its capture.
        clocks_ns: by host, how far its clock is ahead.
    """

    hosts: int
    faulty: frozenset[int]
    packets: int = 4000
    peers: int = 2
    seed: int = 1
    clocks_ns: tuple[int, ...] = ()

    @property
    def addresses(self) -> list[str]:
        return [host(number, 4) for number in range(self.hosts)]

    @property
    def links(self) -> list[tuple[int, int]]:
        """Hosts that talk to each other."""
        return [(a, (a + step) % self.hosts) for step in range(1, self.peers + 1) for a in range(self.hosts)]

    def write(self, folder: Path, points: Collection[int] | None = None, snaplen: int = 128) -> list[Path]:
        """Write the capture of each host (or those in ``points``): ``hostNNNN.pcap``."""
        written = []
        for number in range(self.hosts) if points is None else sorted(points):
            path = folder / f"host{number:04}.pcap"
            self.write_one(path, number, snaplen)
            written.append(path)
        return written

    def write_one(self, path: Path, number: int, snaplen: int = 128) -> None:
        """Write the capture of one host."""
        own = [link for link in self.links if number in link]
        parts = [self.link(link, number) for link in own]
        columns = _concat(parts)
        shift = self.clocks_ns[number] if self.clocks_ns else 0
        ends = np.array([own[i] for i in np.repeat(np.arange(len(own)), [len(part) for part in parts])])
        sender = np.where(columns.from_b, ends[:, 1], ends[:, 0])
        # What a host sends is seen there before, what it receives after it was on the middle of its way.
        columns.time_ns = columns.time_ns + shift + np.where(sender == number, -HALF_WAY_NS, HALF_WAY_NS)
        order = np.argsort(columns.time_ns, kind="stable")
        columns = columns.take(order)
        link = np.repeat(np.arange(len(own)), [len(part) for part in parts])[order]
        with _LinkWriter(path, Traffic(pairs=PAIRS), snaplen, own, link) as writer:
            writer.write(columns)

    def link(self, link: tuple[int, int], at: int) -> Columns:
        """The packets between two hosts, as the capture at one of them has them."""
        each = max(200, self.packets // (2 * self.peers))
        number = link[0] * self.hosts + link[1]
        lossy = bool(self.faulty & set(link))
        traffic = Traffic(
            packets=each,
            pairs=PAIRS,
            loss=LOSS if lossy else 0.0,
            gbps=10,
            seed=self.seed * 1_000_003 + number,
        )
        parts = []
        for made in rounds(traffic):
            # Requests to a host that is not faulty are not lost: what the generator lost of them is undone.
            to = np.array(link)[1 - (made.messages.stream & 1)]
            lost = made.messages.lost >= 0
            clean = lost & ~np.isin(to, sorted(self.faulty))
            packets = _undone(made.packets, made.messages, clean)
            real = lost & ~clean
            packets = _with_lost(packets, made.messages, real & (to != at)) if real.any() else packets
            parts.append(packets)
        return _concat(parts)


class _LinkWriter(FrameWriter):
    """Frames between the hosts of several links.

    Args:
        link: for each packet the number of its link.
    """

    def __init__(
        self, path: Path, traffic: Traffic, snaplen: int, links: Sequence[tuple[int, int]], link: Ints
    ) -> None:
        super().__init__(path, traffic, snaplen)
        self._links = np.array(links)
        self._number = link

    def write(self, packets: Columns | bytes) -> None:
        if not isinstance(packets, bytes):
            # The pair's number tells the link; QPNs and ports follow from it.
            packets.pair = packets.pair + self._number * PAIRS
        super().write(packets)

    def _values(self, packets: Columns) -> dict[str, Ints]:
        values = super()._values(packets)
        ends = self._links[packets.pair // PAIRS]
        values["src"] = np.where(packets.from_b, ends[:, 1], ends[:, 0]) + 1
        values["dst"] = np.where(packets.from_b, ends[:, 0], ends[:, 1]) + 1
        to_b = ~packets.from_b
        # Each host counts its QPs: a QPN names the peer and the pair.
        peer = np.where(packets.from_b, ends[:, 1], ends[:, 0])
        values["dest_qpn"] = 0x11 + peer * PAIRS * 2 + packets.pair % PAIRS * 2 + to_b
        return values


def _concat(parts: Sequence[Columns]) -> Columns:
    return Columns(*(np.concatenate([getattr(p, n) for p in parts]) for n in Columns.__slots__))


def _rows_of(packets: Columns, messages: Messages, number: int) -> Iterator[Ints]:
    """The requests of a message's lost PSN and of those behind it."""
    pair, side = messages.stream[number] >> 1, messages.stream[number] & 1
    own = (packets.pair == pair) & (packets.from_b == (side != 0)) & (packets.payload > 0)
    first = int(messages.first_psn[number])
    for place in range(int(messages.lost[number]), int(messages.span[number])):
        yield np.flatnonzero(own & (packets.psn == ((first + place) & MASK)))


def _undone(packets: Columns, messages: Messages, which: np.ndarray) -> Columns:
    """The packets without these messages' losses: the first flight is whole, and nothing comes again."""
    gone = np.zeros(len(packets), np.bool_)
    moved: dict[int, int] = {}
    for number in np.flatnonzero(which).tolist():
        naks = bool(messages.naks[number])
        for k, rows in enumerate(_rows_of(packets, messages, number)):
            if naks and k == 0:
                behind = next(iter(list(_rows_of(packets, messages, number))[1:]))
                moved[int(rows[0])] = int(packets.time_ns[behind[0]]) - 1
            elif len(rows) > 1:
                gone[rows[1:]] = True
        if naks:
            pair, side = messages.stream[number] >> 1, messages.stream[number] & 1
            psn = (int(messages.first_psn[number]) + int(messages.lost[number])) & MASK
            answers = (packets.pair == pair) & (packets.from_b == (side == 0)) & (packets.payload == 0)
            gone |= answers & (packets.psn == psn) & (packets.syndrome >> 5 == 3)
    for row, time_ns in moved.items():
        packets.time_ns[row] = time_ns
    kept = packets.take(np.flatnonzero(~gone))
    return kept.take(np.argsort(kept.time_ns, kind="stable"))


def _with_lost(packets: Columns, messages: Messages, which: np.ndarray) -> Columns:
    """The packets with the lost ones, as their sender's capture has them."""
    extra, times = [], []
    for number in np.flatnonzero(which & (messages.naks > 0)).tolist():
        rows = list(_rows_of(packets, messages, number))
        extra.append(int(rows[0][0]))
        times.append(int(packets.time_ns[rows[1][0]]) - 1)
    lost = packets.take(np.array(extra, np.int64))
    lost.time_ns = np.array(times, np.int64)
    lost.ip_id = (lost.ip_id + 1) & 0xFFFF
    whole = _concat([packets, lost])
    return whole.take(np.argsort(whole.time_ns, kind="stable"))
