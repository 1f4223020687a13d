"""What waiting packets need of the batches that they came in, without the rest of these.

A packet that waits for its other half (see ``lobby``) keeps its batch. Where few of a batch wait they are
copied out of it. Where nearly all wait the batch is kept, but not many small ones, as an interface gives
them: each has columns of its own, which take many times the memory of a packet.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from rocekit.packets import Packets
from rocekit.packets.rows import Rows
from rocekit.track.bulk import singles
from rocekit.track.pairs.waiting import Flow

if TYPE_CHECKING:
    from rocekit.track.lobby import Lobby

#: Waiting packets are copied out of a batch where they are less than one in so many of it.
_FEW: Final = 4
#: So many batches are joined, if they have fewer packets than this on average.
_BATCHES: Final = 64
_SMALL: Final = 512
#: More lobbies than this, and than packets of the batch, are not all looked at.
_LOBBIES: Final = 1_000


class WaitingRows:
    """The batches in which packets may wait, since such were copied the last time."""

    def __init__(self) -> None:
        self._batches: list[Rows] = []

    def add(
        self,
        rows: Rows,
        held: int,
        lobbies: Collection[Lobby | Flow | int | None],
        by_number: Sequence[Flow | None],
        end_chains: Callable[[], None],
    ) -> None:
        """A batch has been tracked.

        Args:
            held: packets that wait by now, those that are chained among them; lobbies: where they do.
            by_number: the flows of packets.
            end_chains: lets flows have what is chained, or was kept as numbers; the chains of others may go
                on with the next batch.
        """
        if not held:
            end_chains()
            self._batches = []
        elif held * _FEW <= len(rows) and len(lobbies) <= max(_LOBBIES, len(rows)):
            end_chains()
            self._batches = []
            _keep_few(list(waiting_flows(lobbies)))
        else:
            self._batches.append(rows)
            packets = sum(map(len, self._batches))
            if len(self._batches) >= _BATCHES or packets >= _BATCHES * _SMALL:
                if packets < _BATCHES * _SMALL or held * _FEW <= packets:
                    end_chains()
                    _join(self._batches, by_number)
                self._batches = []


def waiting_flows(lobbies: Iterable[Lobby | Flow | int | None]) -> Iterator[Flow]:
    """The flows with waiting packets: those of lobbies, and those that are alone between their hosts.

    None may be as few numbers (see ``lone_flows``).
    """
    for found in lobbies:
        if isinstance(found, Flow):
            if found.held:
                yield found
        elif found is not None and not isinstance(found, int) and found.count:
            yield from found.waiting()


def _keep_few(flows: Sequence[Flow]) -> None:
    """Copy the packets of waiting flows out of their batches."""
    batches: dict[Rows, list[tuple[int, int, Flow]]] = {}
    for flow in flows:
        flow.held = list(singles(flow.held))
        for n, (_, _, rows, i, _) in enumerate(flow.held):
            if rows.place is None:
                batches.setdefault(rows, []).append((i, n, flow))
    for rows, held in batches.items():
        _put(rows.only([i for i, _, _ in held]), held)


def _join(batches: Sequence[Rows], by_number: Sequence[Flow | None]) -> None:
    """Copy the waiting packets out of batches that follow one another."""
    begins: dict[Rows, int] = {}
    at = 0
    for rows in batches:
        begins[rows] = at
        at += len(rows)
    flows = {number for rows in batches for number in rows.flow if number < len(by_number)}
    held: list[tuple[int, int, Flow]] = []
    for flow in (by_number[number] for number in sorted(flows)):
        if flow is None:
            continue
        # The latest ones are last.
        first = next((n for n in reversed(range(len(flow.held))) if flow.held[n][2] not in begins), -1) + 1
        latest = list(singles(flow.held[first:]))
        flow.held[first:] = latest
        held += [(begins[rows] + i, first + n, flow) for n, (_, _, rows, i, _) in enumerate(latest)]
    if held:
        whole = Rows(
            Packets.concat([rows._packets for rows in batches]), (batches[0].before_src, batches[0].before_ns)
        )
        _put(whole.only([i for i, _, _ in held]), held)


def _put(few: Rows, held: Sequence[tuple[int, int, Flow]]) -> None:
    """Let flows have their packets in ``few``, in this order: (row before, which of the flow's, flow)."""
    for k, (_, n, flow) in enumerate(held):
        flow.held[n] = (flow.held[n][0], flow, few, k, None)
