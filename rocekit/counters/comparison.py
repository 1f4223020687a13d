"""Each counter of a device: how much it went up between two snapshots, and what the packets say to that."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from rocekit.counters.basis import Basis, CaptureFacts, own_file
from rocekit.counters.meanings import CHECKED, RECEIVED, SENT, Meaning, meaning_of
from rocekit.counters.prediction import Made, predict
from rocekit.machine.counters import GROUPS

if TYPE_CHECKING:
    from rocekit.counters.watch import CounterWatch
    from rocekit.machine.counters import CounterPlace, CounterSnapshot
    from rocekit.points.vantage import Vantages
    from rocekit.track.connections import Connection

AGREES, DIFFERS, UNKNOWN = "agrees", "differs", "unknown"
_WHERE: Final = "where the captures were taken is unknown"
#: Groups whose counters are of RDMA.
_OF_RDMA: Final = ("hw_counters", "device_counters", "port_counters")


@dataclass(frozen=True, slots=True)
class CounterComparison:
    """A counter, between the first and the last snapshot of its device.

    Attributes:
        group, counter: its name; meaning: None if it is in no table.
        went_up_by: negative if it was reset.
        seen: how often the packets in the capture make it go up; None where nothing is known of that, or
            where several captures, none of them known to be taken at the device, differ.
        predicted: the same, where the capture decides it; else None, and ``words`` say why.
        certain: whether the place of the capture is certain, the meaning was checked, and a difference needs
            missing packets: neither QPs that were gone nor wrong ICRCs that a truncated capture does not show
            can explain it.
        from_ns, to_ns: the times of the snapshots, by the host's clock.
    """

    host: str
    place: CounterPlace
    group: str
    counter: str
    meaning: Meaning | None
    went_up_by: int
    seen: int | None
    predicted: int | None
    words: str
    certain: bool
    from_ns: int
    to_ns: int

    @property
    def difference(self) -> int | None:
        return None if self.predicted is None else self.went_up_by - self.predicted

    @property
    def verdict(self) -> str:
        if self.predicted is None:
            return UNKNOWN
        return DIFFERS if self.difference else AGREES

    @property
    def matters(self) -> bool:
        """Whether it is worth a line: it went up, or ought to have."""
        return self.went_up_by != 0 or bool(self.seen) or self.verdict == DIFFERS

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "host": self.host,
            "device": self.place.device,
            "port": self.place.port,
            "interface": self.place.interface,
            "group": self.group,
            "counter": self.counter,
            "meaning": None if self.meaning is None else self.meaning.name,
            "went_up_by": self.went_up_by,
            "seen": self.seen,
            "predicted": self.predicted,
            "difference": self.difference,
            "verdict": self.verdict,
            "certain": self.certain,
            "words": self.words,
            "from_ns": self.from_ns,
            "to_ns": self.to_ns,
        }


def compare(
    snapshots: Sequence[CounterSnapshot],
    watch: CounterWatch,
    connections: Sequence[Connection],
    vantages: Vantages,
    facts: CaptureFacts,
) -> list[CounterComparison]:
    """Compare the first and the last snapshot of each place with the packets between them."""
    by_place: dict[tuple[str, str | None, int | None, str | None], list[CounterSnapshot]] = {}
    for snapshot in sorted(snapshots, key=lambda s: s.time_ns):
        place = snapshot.place
        by_place.setdefault((snapshot.host, place.device, place.port, place.interface), []).append(snapshot)
    several = [own for own in by_place.values() if len(own) > 1]
    # A capture was taken at one interface, whatever the journals of several hosts say.
    claims: dict[int | None, set[tuple[str, str]]] = defaultdict(set)
    for own in several:
        claims[own_file(own[0], own[-1], facts)].add((own[0].host, own[0].place.interface or ""))
    taken = {file: min(places) for file, places in claims.items() if file is not None and len(places) == 1}
    found: list[CounterComparison] = []
    for own in several:
        basis = Basis(own[0], own[-1], watch, connections, vantages, facts, taken)
        found += _compare(own[0], own[-1], basis, connections, _fallen(own))
    return found


def _fallen(snapshots: Sequence[CounterSnapshot]) -> set[tuple[str, str]]:
    """The counters that fell between any two snapshots, by group and name."""
    return {
        (group, name)
        for before, after in pairwise(snapshots)
        for group, rose in after.since(before).items()
        for name, count in rose.items()
        if count < 0
    }


def _compare(
    before: CounterSnapshot,
    after: CounterSnapshot,
    basis: Basis,
    connections: Sequence[Connection],
    fallen: Collection[tuple[str, str]],
) -> list[CounterComparison]:
    rose = after.since(before)
    place = after.place
    made, others = None, []
    if basis.rows is not None and place.device is not None:
        made = predict(basis.rows, place.addresses, connections)
        others = [predict(rows, place.addresses, connections) for rows in basis.others if rows is not None]
    checked = place.driver in CHECKED
    found = []
    for group in GROUPS:
        for name, went_up_by in rose.get(group, {}).items():
            meaning = meaning_of(place.driver, group, name)
            if meaning is None and not (group in _OF_RDMA and went_up_by):
                continue
            if meaning is not None and meaning.cause is None and not went_up_by:
                continue
            seen, predicted, words = _judge(meaning, went_up_by, basis, made, others, checked)
            if predicted is not None and (group, name) in fallen:
                predicted = None
                words = f"{seen:,} in the capture; not predicted: the counter fell: it was reset, or wrapped"
            missing = 0 if predicted is None else predicted - went_up_by
            excused = missing > 0 and (basis.unchecked or (made is not None and missing <= made.late))
            found.append(
                CounterComparison(
                    before.host,
                    place,
                    group,
                    name,
                    meaning,
                    went_up_by,
                    seen,
                    predicted,
                    words,
                    checked and basis.certain and not excused,
                    before.time_ns,
                    after.time_ns,
                )
            )
    return found


def _judge(
    meaning: Meaning | None,
    went_up_by: int,
    basis: Basis,
    made: Made | None,
    others: Sequence[Made],
    checked: bool,
) -> tuple[int | None, int | None, str]:
    """How often the packets make it go up, what that predicts, and the words for it."""
    if meaning is None or meaning.cause is None:
        return None, None, "not predicted"
    if made is None:
        nothing = "no packet from or to its addresses is in the capture"
        return None, None, (basis.flaws or [nothing])[0]
    seen = made.between(meaning, basis.from_ns, basis.to_ns)
    flaws = [*basis.flaws, *(basis.sent_flaws if meaning.cause == SENT else basis.received_flaws)]
    flaws += made.common_flaws
    flaws += made.received_flaws if meaning.cause == RECEIVED else []
    flaws += made.flaws.get(meaning, ())
    if meaning.stateful:
        flaws += made.flaws.get(None, ())
    if basis.is_blurred(made, meaning):
        flaws.append("such packets passed while a snapshot was taken")
    every = {seen} | {other.between(meaning, basis.from_ns, basis.to_ns) for other in others}
    if len(every) > 1:
        words = f"{min(every):,} to {max(every):,} in the captures"
        return None, None, f"{words}; not predicted: {(flaws or [_WHERE])[0]}"
    if flaws:
        return seen, None, f"{seen:,} in the capture; not predicted: {flaws[0]}"
    return seen, seen, _words(meaning, went_up_by, seen, basis, checked)


def _words(meaning: Meaning, went_up_by: int, predicted: int, basis: Basis, checked: bool) -> str:
    more = went_up_by - predicted
    if not more:
        return "as the packets say"
    doubts = [basis.doubt] if basis.doubt else []
    doubts += [] if checked else ["what this driver counts is not checked"]
    words = f"the counter saw {went_up_by:,}, the capture {predicted:,}: "
    if more > 0:
        words += f"the capture missed {more:,}, or they took another way (loopback, another link)"
    elif meaning.cause == RECEIVED:
        words += f"{-more:,} did not reach the device, or came for a QP that took no more packets"
        words += ", or had wrong ICRCs, which a truncated capture does not show" if basis.unchecked else ""
    else:
        words += f"{-more:,} were not counted"
    return words + (f" ({'; '.join(doubts)})" if doubts else "")
