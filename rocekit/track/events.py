"""What happens to a transfer besides its plain course: NAKs, repeats, holes, duplicates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class Event:
    """Something out of the ordinary that happened to a transfer.

    ``kind`` is one of

    * ``nak``, ``rnr_nak``: the responder sent a NAK or RNR NAK for ``psn``, with ``syndrome``.
    * ``repeat``: the requester sent ``psn`` … ``last_psn`` again; ``cause`` is ``nak``, ``rnr``,
      ``timeout`` or ``implied_nak``, and ``doubt`` is another of them that fits the time nearly as well,
      with a wait of ``doubt_waited_ns``; ``waited_ns`` is the silence before it; ``after_ack`` says that
      the capture had already shown their acknowledgement; ``first_sight`` counts packets among them that
      were not in the capture before. ``run`` numbers the go-back, which may cover several transfers and
      ``opens`` in the first of them. In the one that opens, ``sent_psn`` is the highest PSN sent before;
      ``answer_psn`` is the PSN of the first ACK or NAK after it (None: there is none yet), ``answer_frame``
      its frame, ``answer_ns`` its time (and ``turnaround_ns`` the shortest turnaround of the two hosts by
      then, 0 if unknown), ``same_answers`` how many ACKs have that PSN until the next go-back (the
      network's copies aside; several prove that the originals had arrived), and ``reached_psn`` the highest
      PSN repeated by then; ``mid_message`` says that only packets of a message whose last one was not sent
      yet were unacknowledged, so that no ACK may have been due.
    * ``response_repeat``: the responder sent these responses again.
    * ``hole``: PSNs skipped at this frame: lost before the capture point, late, or missed by the capture.
    * ``response_hole``: the same among a READ's responses.
    * ``response_late``: a response that filled such a hole and was sent before those that overtook it.
    * ``late``: packets that filled a hole without anything being sent again: reordered.
    * ``duplicate``: the same datagram seen twice.
    * ``missed``: acknowledged PSNs that are not in the capture.

    ``of_pass`` is the pass (``passes``) that drew a ``nak``, or that ended with the ``repeat``. A ``nak``
    says in ``copy`` where that pass's copy of ``psn`` was lost: ``before`` or ``behind`` the capture point,
    ``not lost``, or empty if unknown; and in ``ignored``, whether the requester did not obey it. In a
    READ's ``repeat``, ``response_seen`` says whether the capture has the response with ``psn`` since the
    request before (1: yes, 0: no, −1: unknown), and ``response_next`` is the first response not seen yet.

    IPv4 identifications tell transmissions apart: ``resent`` counts packets whose identification is another
    one than that of the packet last sent with their PSN, so that their sender sent them again; ``copied``
    those that have the same one, and alone have it, so that they were sent once. Of the others neither is
    known. ``ip_id`` is the first packet's identification, 0 where it tells nothing (none, or one that other
    PSNs have too). In a ``duplicate``, ``sent_psn`` is the highest PSN sent before it.

    ``side`` is the requester's side, set where no transfer holds the event. Until that is known, the event
    waits, and ``waits`` is its number among those that do; −1: it does not. Times are ns since the epoch,
    frames are frame references, PSNs are unwrapped.
    """

    kind: str
    time_ns: int
    frame: int
    psn: int
    last_psn: int
    count: int = 1
    bytes: int = 0
    last_ns: int = 0
    last_frame: int = 0
    cause: str | None = None
    syndrome: int | None = None
    waited_ns: int = 0
    first_sight: int = 0
    after_ack: bool = False
    run: int = 0
    opens: bool = False
    sent_psn: int = -1
    answer_psn: int | None = None
    answer_frame: int = 0
    reached_psn: int = -1
    mid_message: bool = False
    side: int = 0
    doubt: str | None = None
    doubt_waited_ns: int = 0
    of_pass: Any = None
    copy: str = ""
    ignored: bool = False
    response_seen: int = -1
    response_next: int = -1
    resent: int = 0
    copied: int = 0
    ip_id: int = 0
    same_answers: int = 0
    answer_ns: int = 0
    turnaround_ns: int = 0
    waits: int = -1


def happened(kind: str, time_ns: int, frame: int, psn: int, last_psn: int, count: int) -> Event:
    """``Event(…)`` without the time that its many arguments take."""
    event: Event = Event.__new__(Event)
    event.kind, event.time_ns, event.frame = kind, time_ns, frame
    event.psn, event.last_psn, event.count = psn, last_psn, count
    event.last_frame = frame
    # What does not start as zero or None.
    event.sent_psn = event.reached_psn = event.response_seen = event.response_next = event.waits = -1
    event.copy = ""
    return event
