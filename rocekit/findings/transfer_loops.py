"""What all transfers are asked at once: a flood has many, so these loops are compiled."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from rocekit.track.transfers import EventSurvey

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rocekit.track.transfers import Transfer


def survey_events(transfers: Iterable[Transfer]) -> EventSurvey:
    """The survey of transfers."""
    survey = EventSurvey()
    for transfer in transfers:
        if transfer.events:
            survey.take(transfer)
    return survey


def by_requester(transfers: Iterable[Transfer]) -> dict[tuple[int, int], list[Transfer]]:
    """Transfers by (connection id, requester's side); a key that is not there has none."""
    found: dict[tuple[int, int], list[Transfer]] = defaultdict(list)
    before: Transfer | None = None
    own: list[Transfer] = []
    for transfer in transfers:
        if before is None or transfer.connection is not before.connection or transfer.side != before.side:
            own = found[transfer.connection.id, transfer.side]
            before = transfer
        own.append(transfer)
    return found


def responded(transfers: Iterable[Transfer]) -> set[tuple[int, int]]:
    """The (connection id, requester's side) of the transfers that have any response."""
    found = set()
    before: Transfer | None = None
    for transfer in transfers:
        if before is not None and transfer.connection is before.connection and transfer.side == before.side:
            continue  # known already
        if (
            transfer.acked_ns is not None
            or transfer.naks > 0
            or transfer.rnr_naks > 0
            or (transfer.is_read and transfer.response_next > transfer.first_psn)
        ):
            found.add((transfer.connection.id, transfer.side))
            before = transfer
    return found
