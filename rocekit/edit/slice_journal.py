"""The part of a journal that belongs to a part of its capture."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from rocekit.journal.counters import EVENT as COUNTERS
from rocekit.wire.psn import MASK

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rocekit.correlate import Correlation
    from rocekit.explanation.packets import PacketStories
    from rocekit.journal import JournalEvent
    from rocekit.journal.work_requests import JournalQp
    from rocekit.track.transfers import Transfer

_WORK: Final = frozenset({"wr_posted", "recv_posted", "wc_polled"})


def slice_journal(
    stories: PacketStories, selected: NDArray[np.bool_], *, everything: bool, whole: bool
) -> list[JournalEvent]:
    """The events of the chosen packets, in order.

    Args:
        selected: which packets.
        everything: whether all of the capture was chosen; then every event stays.
        whole: whether the chosen connections are complete: then all their work requests stay. Else only those
            of the chosen transfers stay, and each gets its PSN, which can no longer be counted.
    """
    analysis = stories.analysis
    correlation = analysis.journal
    if correlation is None or correlation.journal is None:
        return []
    if everything:
        return list(correlation.journal)
    connections = set(stories.connection[selected].tolist()) - {-1}
    chosen = [
        qp
        for qp in correlation.programs.qps
        if (place := correlation.place(qp)) is not None and place[0].id in connections
    ]
    if whole:
        work = {id(event) for qp in chosen for event in _work_of(qp)}
        psns: dict[int, int] = {}
    else:
        numbers = np.unique(stories.transfer[selected]).tolist()
        transfers = [analysis.transfers[n] for n in numbers if n >= 0]
        work = {id(event) for transfer in transfers for event in _work_of_transfer(transfer)}
        psns = {id(t.wr.event): t.first_psn & MASK for t in transfers if t.wr is not None}
    return [
        event if id(event) not in psns else replace(event, fields={**event.fields, "psn": psns[id(event)]})
        for event in _belonging(correlation, chosen, connections, work, whole)
    ]


def _work_of(qp: JournalQp) -> list[JournalEvent]:
    """All work requests and completions of a QP."""
    events = [wr.event for wr in (*qp.sends, *qp.receives)]
    events += [wr.wc.event for wr in (*qp.sends, *qp.receives) if wr.wc is not None]
    events += [wc.event for wc in (*qp.receive_completions, *qp.stray_completions)]
    return events


def _work_of_transfer(transfer: Transfer) -> list[JournalEvent]:
    requests = [wr for wr in (transfer.wr, transfer.recv_wr) if wr is not None]
    completions = [wc for wc in (transfer.wc, transfer.recv_wc) if wc is not None]
    return [*(wr.event for wr in requests), *(wc.event for wc in completions)]


def _belonging(
    correlation: Correlation, chosen: list[JournalQp], connections: set[int], work: set[int], whole: bool
) -> list[JournalEvent]:
    journal = correlation.journal
    assert journal is not None
    places = {(qp.host, qp.device, qp.qpn) for qp in chosen}
    processes = {(e.host, e.pid) for e in journal if e.qp is not None and (e.host, *e.qp) in places}
    elsewhere = {
        id(placed.event)
        for placed in correlation.cm_events
        if placed.connection is not None and placed.connection.id not in connections
    }
    events = []
    for event in journal:
        if event.event == COUNTERS:
            keep = False  # a part of the packets does not make the counters rise so much
        elif event.event in _WORK and event.qp is not None:
            keep = id(event) in work
        elif event.event in _WORK:  # a shared receive queue's
            keep = id(event) in work or (whole and (event.host, event.pid) in processes)
        elif event.qp is not None:
            keep = (event.host, *event.qp) in places
        else:
            keep = (event.host, event.pid) in processes and id(event) not in elsewhere
        if keep:
            events.append(event)
    return events
