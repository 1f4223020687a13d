"""What a comparison of counters rests on: which capture, where it was taken, and which time it covers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from rocekit.counters.prediction import TWICE
from rocekit.wire.psn import MASK
from rocekit.wire.words import plural

if TYPE_CHECKING:
    from rocekit.counters.meanings import Meaning
    from rocekit.counters.prediction import Made
    from rocekit.counters.watch import CounterWatch, PacketRows
    from rocekit.machine.counters import CounterSnapshot
    from rocekit.packets.merging.alignment import Alignment
    from rocekit.points.vantage import Vantages
    from rocekit.track.connections import Connection

_DROPS: Final = ": drops"
#: Grounds of a vantage that show the host itself. Hop limits show its side of the routers.
_AT_THE_HOST: Final = frozenset({"direction", "clock"})
#: A driver whose packets pass the queues of the interface, and so tc.
_THROUGH_TC: Final = "rxe"


@dataclass(frozen=True, slots=True)
class CaptureFacts:
    """What the comparison needs of the captures.

    Attributes:
        files: their names.
        first_ns, last_ns: of their frames, by the first capture's clock.
        dropped: packets that the capturing machine dropped.
        unchecked: packets whose ICRCs could not be checked.
        whole: whether they could be read to their ends.
        doubled: whether one of them has packets twice.
        alignments: of the clocks of several captures.
        host_clocks: by host, its clock − the first capture's; hosts of which nothing is known are missing.
    """

    files: Sequence[str]
    first_ns: int | None
    last_ns: int | None
    dropped: int
    unchecked: int = 0
    whole: bool = True
    doubled: bool = False
    alignments: Sequence[Alignment] = ()
    host_clocks: Mapping[str, int] = field(default_factory=dict)


class Basis:
    """The ground of the comparison of two snapshots with the packets between them.

    Args:
        taken: host and interface of captures, by their number, as snapshots name them.

    Attributes:
        rows: the device's packets in the capture that was taken nearest to it; None without any.
        others: where none is known to be taken there, its packets in the other captures.
        from_ns, to_ns: the times of the snapshots, by the first capture's clock.
        certain: whether it is certain that the capture was taken at the device.
        doubt: what is only probable; empty if nothing is.
        unchecked: whether wrong ICRCs may have been missed.
        flaws: why nothing is predicted; sent_flaws, received_flaws: the same for what the device sends or
            receives.
    """

    def __init__(
        self,
        before: CounterSnapshot,
        after: CounterSnapshot,
        watch: CounterWatch,
        connections: Sequence[Connection],
        vantages: Vantages,
        facts: CaptureFacts,
        taken: Mapping[int, tuple[str, str]],
    ) -> None:
        self.flaws: list[str] = []
        self.sent_flaws: list[str] = []
        self.received_flaws: list[str] = []
        self.certain, self.doubt = False, ""
        self.unchecked = facts.unchecked > 0
        self._before, self._after = before, after
        self._facts = facts
        self._own = [c for c in connections if not set(before.place.addresses).isdisjoint(c.ips)]
        claimed = own_file(before, after, facts)
        self._own_file = claimed if claimed in taken else None
        found = self._find_file(vantages, watch, taken)
        every = [file for file in range(len(facts.files)) if watch.rows(file) is not None]
        file = found if found is not None else next(iter(every), 0)
        ahead = facts.alignments[file].offset_ns if facts.alignments else 0
        self.rows = self._rows(watch, file)
        self.others = (
            [] if found is not None else [self._rows(watch, other) for other in every if other != file]
        )
        # A capture by the same host has its clock.
        clock = ahead if self._own_file is not None else facts.host_clocks.get(before.host, 0)
        self.from_ns, self.to_ns = before.time_ns - clock, after.time_ns - clock
        self._check_time()
        self._check_capture(watch)
        self._check_queues()

    def _find_file(
        self, vantages: Vantages, watch: CounterWatch, taken: Mapping[int, tuple[str, str]]
    ) -> int | None:
        """The capture taken at the device; None, and a flaw, where none is known to be."""
        if self._own_file is not None:
            self.certain = True
            return self._own_file
        addresses = self._before.place.addresses
        elsewhere = ""
        for file, places in vantages.of_files().items():
            if file in taken:
                elsewhere = elsewhere or f"at {' of '.join(reversed(taken[file]))}"
                continue
            own = [v for v in places if not set(addresses).isdisjoint(v.hosts)]
            if own and all(v.host in addresses for v in own):
                self.certain = all(v.grounds in _AT_THE_HOST for v in own)
                self.doubt = "" if self.certain else f"the capture was probably taken at {own[0].host}"
                return file
            elsewhere = elsewhere or next((str(v) for v in own), "")
        self.flaws.append(
            "where the capture was taken is unknown"
            if not elsewhere or elsewhere.startswith("unknown")
            else f"the capture was taken {elsewhere.partition(' (')[0]}"
        )
        return None

    def _rows(self, watch: CounterWatch, file: int) -> PacketRows | None:
        """A capture's packets, by the first one's clock."""
        rows, alignments = watch.rows(file), self._facts.alignments
        return None if rows is None else rows.earlier(alignments[file].offset_ns if alignments else 0)

    def _check_time(self) -> None:
        facts = self._facts
        if facts.first_ns is None or facts.last_ns is None:
            return
        first, last = facts.first_ns, facts.last_ns
        if last < self.from_ns or first > self.to_ns:
            self.flaws.insert(0, "the capture is not of the time between the snapshots")
            return
        inside = first >= self.from_ns and last <= self.to_ns
        if self._own_file is None and not inside and self._before.host not in facts.host_clocks:
            self.flaws.append(f"the clock of {self._before.host} is not known to be the capture's")
        covered = self._own_file is not None or (first <= self.from_ns and last >= self.to_ns)
        if not covered and not all(_start_is_known(connection) for connection in self._own):
            self.flaws.append("the capture may have started after the first snapshot")

    def _check_capture(self, watch: CounterWatch) -> None:
        if self._facts.dropped:
            self.flaws.append(f"the capturing machine dropped {plural(self._facts.dropped, 'packet')}")
        if any(connection.missed for connection in self._own):
            self.flaws.append("the capture lacks packets of the device")
        if not self._facts.whole:
            self.flaws.append("the capture is damaged, or was not read to its end")
        if watch.cut:
            self.flaws.append("the snaplen cut headers off")
        if self._facts.doubled:
            self.flaws.append(TWICE)
        if watch.overflowed:
            self.flaws.append("there are too many packets")

    def _check_queues(self) -> None:
        """Packets dropped between the device and the capture."""
        rose = self._after.since(self._before).get("tc", {})
        for side, flaws, where in (
            ("egress", self.sent_flaws, "before the capture"),
            ("ingress", self.received_flaws, "behind the capture"),
        ):
            for name, drops in rose.items():
                if drops and name.endswith(_DROPS) and name.startswith((side, "both")):
                    what = name.removesuffix(_DROPS).partition(" ")[2]
                    flaws.append(f"tc's {what} dropped {plural(drops, 'packet')} {where}")
        unread = any(reason.startswith("tc:") for reason in self._after.left_out)
        if unread and self._before.place.driver == _THROUGH_TC:
            words = "whether a queue of the interface dropped packets is unknown"
            self.sent_flaws.append(words)
            self.received_flaws.append(words)

    def is_blurred(self, made: Made, meaning: Meaning) -> bool:
        """Whether the counter went up while one of the snapshots was taken."""
        return any(
            made.between(meaning, at, at + snapshot.took_ns)
            for at, snapshot in ((self.from_ns, self._before), (self.to_ns, self._after))
        )


def own_file(before: CounterSnapshot, after: CounterSnapshot, facts: CaptureFacts) -> int | None:
    """The capture that was running on the snapshots' interface while both were taken, as they say."""
    if before.place.interface is None or not (
        before.captured_on == after.captured_on == before.place.interface
    ):
        return None
    names = {before.captured_to, after.captured_to}
    return next((n for n, file in enumerate(facts.files) if names == {PurePath(file).name}), None)


def _start_is_known(connection: Connection) -> bool:
    """Whether the capture has the connection from its first packet on."""
    if connection.transport == "UD":
        return False
    for side, requests in enumerate(connection.progress):
        start = connection.negotiated[side].starting_psn
        if requests is not None and requests.started and (start is None or requests.begin & MASK != start):
            return False
    return True
