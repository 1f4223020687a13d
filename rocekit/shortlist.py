"""What a summary keeps of a capture's transfers: those that tell something, and a few for the rest.

In a large capture most transfers are plain: nothing befell them. Where nobody will ask for each, they are
counted and dropped as soon as nothing can change them. In each direction of each connection the largest stay,
so that what rules ask of all transfers (was any acknowledged? how large was the largest?) is answered alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from heapq import heappush, heappushpop
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rocekit.transfers import Transfer

#: Operations for which a responder keeps resources (9.4.3, 9.4.5).
_LIMITED: Final = frozenset({"READ", "FETCH_ADD", "CMP_SWAP"})


class Shortlist:
    """Takes every transfer and gives back those that were kept.

    Args:
        slowest: how many of the plain transfers to keep, the slowest of all connections.

    Attributes:
        left_out: how many were dropped, by status; final after :meth:`finish`.
    """

    def __init__(self, slowest: int) -> None:
        self.left_out: Counter[str] = Counter()
        self._slowest = slowest
        self._slow: list[tuple[int, int, Transfer]] = []
        self._kept: dict[int, Transfer] = {}
        self._standing: dict[tuple[int, int, bool, bool], Transfer] = {}

    def add(self, transfer: Transfer) -> None:
        self._kept[transfer.id] = transfer

    def settle(self, transfers: Iterable[Transfer]) -> None:
        """Nothing will change these transfers any more."""
        for transfer in transfers:
            if transfer.clean and not _is_counted(transfer) and transfer.id in self._kept:
                del self._kept[transfer.id]
                self._drop(transfer)

    def _drop(self, transfer: Transfer) -> None:
        transfer.connection.bytes += transfer.bytes
        self.left_out[transfer.status] += 1
        several = transfer.last_psn > transfer.first_psn
        key = (transfer.connection.id, transfer.side, transfer.is_read, several)
        standing = self._standing.get(key)
        if standing is None or standing.bytes < transfer.bytes:
            self._standing[key] = transfer
        entry = (transfer.duration_ns, -transfer.id, transfer)
        if len(self._slow) < self._slowest:
            heappush(self._slow, entry)
        elif self._slow and self._slow[0] < entry:
            heappushpop(self._slow, entry)

    def forget(self) -> None:
        """Drop everything that was kept so far, for one who follows a port for days and wants no summary."""
        self._kept.clear()
        self._standing.clear()
        self._slow.clear()

    def finish(self) -> list[Transfer]:
        """The transfers that were kept, in order of their ids; none will change any more."""
        self.settle(list(self._kept.values()))
        for transfer in self._kept.values():
            transfer.connection.bytes += transfer.bytes
        plain = {t.id: t for t in (*self._standing.values(), *(entry[2] for entry in self._slow))}
        self.left_out.subtract(Counter(t.status for t in plain.values()))
        return sorted((*self._kept.values(), *plain.values()), key=lambda t: t.id)


def _is_counted(transfer: Transfer) -> bool:
    """Whether a rule counts how many of these are outstanding at one time: their number was agreed on."""
    if transfer.operation not in _LIMITED:
        return False
    negotiated, side = transfer.connection.negotiated, transfer.side
    return (
        negotiated[side].initiator_depth is not None or negotiated[1 - side].responder_resources is not None
    )
