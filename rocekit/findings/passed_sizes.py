"""How large the packets were that were acknowledged: what shows that larger ones get lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from rocekit.track.transfers import ACKED
from rocekit.wire import PATH_MTU_CODES

if TYPE_CHECKING:
    from rocekit.track.connections import Connection
    from rocekit.track.transfers import Transfer

#: A path MTU of this size fits an Ethernet MTU of 1500 with all headers.
_FITS_EVERYWHERE: Final = 1024
#: That every transmission of a packet is lost is taken for chance unless it is less likely than this.
_BY_CHANCE: Final = 0.001


class Passed(NamedTuple):
    """Acknowledged transfers: how many, how many of them had packets sent again, and the largest packet."""

    transfers: int
    sent_again: int
    largest: int


_NONE: Final = Passed(0, 0, 0)


class PassedSizes:
    """The acknowledged transfers of a capture, added up once: there may be a lost packet for each of them.

    Attributes:
        of_way: by the addresses from and to which their payload went.
        of_side: the largest packet, by connection, requesting side, and whether it was a READ's response.
    """

    def __init__(
        self,
        transfers_of: Mapping[tuple[int, int], Sequence[Transfer]],
        connections: Mapping[int, Connection],
    ) -> None:
        self.of_way: dict[tuple[str | None, str | None], Passed] = {}
        self.of_side: dict[tuple[int, int, bool], int] = {}
        for (number, side), transfers in transfers_of.items():
            for transfer in transfers:
                if transfer.status == ACKED:
                    self._add(transfer, connections[number].ips, side)

    def _add(self, transfer: Transfer, ips: Sequence[str | None], side: int) -> None:
        size, read = largest_packet(transfer), transfer.is_read
        key = transfer.connection.id, side, read
        self.of_side[key] = max(self.of_side.get(key, 0), size)
        sender = 1 - side if read else side
        way = ips[sender], ips[1 - sender]
        before = self.of_way.get(way, _NONE)
        self.of_way[way] = Passed(
            before.transfers + 1,
            before.sent_again + (transfer.retransmitted_packets > 0),
            max(before.largest, size),
        )

    def vanished(
        self, transfer: Transfer, src: str, dst: str, side: int, transmissions: int
    ) -> tuple[int, int]:
        """The payload of a transfer's packets and the largest that was acknowledged on its connection.

        (0, 0) if a packet as large was ever acknowledged between the two hosts in this direction, or no
        smaller one on the connection; nor if as large a share of the smaller ones was sent again that chance
        may have taken all transmissions of the large one. The large packets of a READ are its responses.
        """
        large, read = largest_packet(transfer), transfer.is_read
        own = self.of_side.get((transfer.connection.id, side, read))
        if own is None or own >= large:
            return 0, 0
        passed = self.of_way[(dst, src) if read else (src, dst)]
        again = passed.sent_again / passed.transfers
        if passed.largest >= large or again**transmissions > _BY_CHANCE:
            return 0, 0
        return large, own


def largest_packet(transfer: Transfer) -> int:
    """The payload of a transfer's largest packet, or of a READ's largest response."""
    if transfer.is_read:
        return min(transfer.length or 0, transfer.connection.path_mtu or max(PATH_MTU_CODES))
    if transfer.last_psn > transfer.first_psn or not transfer.ended:
        return transfer.connection.path_mtu or transfer.bytes
    return transfer.bytes


def may_vanish(transfer: Transfer) -> bool:
    """Whether no response came yet of packets that a link may be too small for."""
    if transfer.is_read and transfer.response_next > transfer.first_psn:
        return False
    return largest_packet(transfer) > _FITS_EVERYWHERE
