"""Events of PSNs that no transfer holds yet wait for one, in the order in which they happened."""

from __future__ import annotations

import random

import pytest

from rocekit.track.connections import Connection
from rocekit.track.events import Event, happened
from rocekit.track.ledger import Ledger, Sink
from rocekit.track.progress import Progress
from rocekit.track.transfers import Transfer


def ledger() -> Ledger:
    made = Ledger()
    made.set_up(Connection(0, "RC", ["10.0.0.1", "10.0.0.2"], [17, 18], None), 0, Sink(), Progress(True))
    return made


@pytest.mark.parametrize("seed", range(20))
def test_what_is_due_goes_astray_in_its_order_and_the_rest_waits(seed: int) -> None:
    rng = random.Random(seed)
    mine, number = ledger(), 0
    waiting: list[Event] = []
    strays: list[Event] = []
    for _ in range(rng.choice((1, 3, 40))):
        for _ in range(rng.randrange(12)):
            number += 1
            psn = rng.randrange(-5, 60)
            waiting.append(mine.attribute(happened("late", number, number, psn, psn, 1)))
        end = rng.randrange(60)
        mine.progress.expected = end
        mine.give_pending()
        strays += [event for event in waiting if event.psn < end]
        waiting = [event for event in waiting if event.psn >= end]
        assert [event.frame for event in mine.connection.stray_events] == [event.frame for event in strays]
        assert all(event.waits >= 0 for event in waiting)
        assert all(event.waits < 0 for event in strays)
    mine.give_up_pending()
    assert [event.frame for event in mine.connection.stray_events] == [
        event.frame for event in strays + waiting
    ]


def test_a_transfer_takes_what_waited_for_it() -> None:
    mine = ledger()
    for frame, psn in enumerate((9, 4, 7, 4, 5), 1):
        mine.attribute(happened("late", frame, frame, psn, psn, 1))
    transfer = Transfer(1, mine.connection, 0, "SEND", 4, 100, 100)
    transfer.last_psn = 7
    mine.window.append(transfer)
    mine.sink = Listener()
    mine.give_pending()
    assert [event.frame for event in transfer.events] == [2, 3, 4, 5]
    assert [event.waits >= 0 for event in (mine.pending or ())] == [True]


def test_psns_that_begin_anew_leave_nothing_that_waits() -> None:
    mine = ledger()
    event = mine.attribute(happened("duplicate", 1, 1, 9, 9, 1))
    assert event.waits == 0
    mine.clear()
    assert event.waits < 0
    assert not mine.pending


class Listener(Sink):
    """Takes no notice of what changes."""

    def changed(self, transfer: object) -> None:
        pass
