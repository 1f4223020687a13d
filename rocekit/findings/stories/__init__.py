"""Stories: each cause that made a requester send again, from its first sign to the end of the repeats.

``story`` is the record of one, ``build`` puts its events together, and ``causes`` names its rule: one of
those here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocekit.wire import NAK_SEQUENCE_ERROR, SYNDROME_VALUE

if TYPE_CHECKING:
    from rocekit.track.events import Event

LOSS: Final = "loss"
TAIL_LOSS: Final = "tail-loss"
ACK_LOSS: Final = "ack-loss"
#: The response that may have been the NAK or RNR NAK is cut: there is no finding.
UNDECIDED: Final = "undecided"
#: A QP with the same number, or everything sent again: the packets do not tell.
USED_AGAIN: Final = "qpn-used-again"
IMPLIED_NAK: Final = "implied-nak"
REORDERING: Final = "reordering"
RNR: Final = "rnr"
RETRY_EXCEEDED: Final = "retry-exceeded"
PEER_SILENT: Final = "peer-silent"
ICRC_BAD: Final = "icrc-bad"
DEAD_QP: Final = "dead-qp"
MTU_MISMATCH: Final = "mtu-mismatch"
NEEDLESS: Final = "needless-repeat"
DUPLICATE: Final = "duplicate"
PAUSE_STALL: Final = "pause-stall"
TIMEOUT_TOO_SHORT: Final = "timeout-too-short"


def is_nak(event: Event, code: int) -> bool:
    """Whether an event is a NAK with ``code``."""
    return event.kind == "nak" and SYNDROME_VALUE[event.syndrome or 0] == code


def is_sequence_nak(event: Event) -> bool:
    """Whether a ``nak`` event requests a PSN again (any other NAK is fatal)."""
    return SYNDROME_VALUE[event.syndrome or 0] == NAK_SEQUENCE_ERROR
