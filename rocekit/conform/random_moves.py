"""Moves of random drills: what the packet side and the device's program may do, and how they are drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from rocekit.errors import needs_extra

#: Kinds of requests.
REQUESTS: Final = (
    *("SEND_ONLY", "SEND_FIRST", "SEND_MIDDLE", "SEND_LAST", "SEND_ONLY_WITH_IMMEDIATE"),
    *("SEND_LAST_WITH_IMMEDIATE", "RDMA_WRITE_LAST_WITH_IMMEDIATE"),
    *("RDMA_WRITE_ONLY", "RDMA_WRITE_FIRST", "RDMA_WRITE_MIDDLE", "RDMA_WRITE_LAST"),
    *("RDMA_WRITE_ONLY_WITH_IMMEDIATE", "RDMA_READ_REQUEST", "FETCH_ADD", "COMPARE_SWAP"),
)
#: What is not usual of a request, and how often: most requests are what a right requester sends.
_TWISTS: Final[tuple[tuple[int, dict[str, Any]], ...]] = (
    (26, {}),
    (3, {"ahead": -1}),
    (2, {"ahead": -2}),
    (1, {"ahead": 1}),
    (1, {"ahead": 3}),
    (2, {"bad_icrc": True}),
    (1, {"bad_key": True}),
    (1, {"astray": True}),
)
_SPANS: Final = tuple((size, place) for size in (64, 1, 7, 256, 300, 513) for place in (0, 8, 128, 250))
_OPERATIONS: Final = (
    *("SEND", "SEND", "RDMA_WRITE", "RDMA_WRITE", "RDMA_READ", "RDMA_READ"),
    *("SEND_WITH_IMM", "ATOMIC_FETCH_AND_ADD", "ATOMIC_CMP_AND_SWP"),
)
_ANSWERS: Final = (
    *("ack",) * 12,
    *("held", "held", "twice", "sequence", "sequence", "rnr", "rnr_last", "NAK remote_access_error"),
)
_MOST_PARTS: Final = 6
_MOST_IN_PART: Final = 10


@dataclass(frozen=True, slots=True)
class RequestMove:
    """The packet side sends a request.

    Attributes:
        name: one of :data:`REQUESTS`; where a right requester could not send it now, what it could takes its
            place: MIDDLE or LAST within a message, FIRST or ONLY outside of one.
        ahead: its PSN, relative to the one that the responder expects; one before it: what was sent with it.
        size: of the payload of an ONLY or LAST packet, of all behind a FIRST, or what a READ asks for.
        place: offset in memory; ``bad_key``: with a key that nothing has.
        astray: it is sent as it is, right or not.
    """

    name: str
    ahead: int = 0
    size: int = 64
    place: int = 0
    bad_key: bool = False
    bad_icrc: bool = False
    astray: bool = False


@dataclass(frozen=True, slots=True)
class ReceiveMove:
    """The program posts a receive."""

    size: int = 1024


@dataclass(frozen=True, slots=True)
class PostMove:
    """The program posts a request, and the packet side answers its last packet.

    Attributes:
        op: as libibverbs names it.
        answer: ``ack`` (the response, where it has one), ``twice`` (two of them), ``held`` (none: the answer
            to the next acknowledges it too), ``sequence`` (a NAK of its last packet, and then the ACK),
            ``rnr`` and ``rnr_last`` (an RNR NAK of its first or last packet, and then the ACK), or a fatal
            NAK. Of these only ``ack`` and fatal NAKs answer READs and atomics; another is ``ack`` there.
    """

    op: str
    size: int = 64
    answer: str = "ack"


Move = RequestMove | ReceiveMove | PostMove


def sequences() -> Any:
    """What hypothesis draws: lists of moves.

    Raises:
        RocekitError: hypothesis is missing.
    """
    try:
        from hypothesis import strategies as st
    except ImportError:
        raise needs_extra("random drills need", "hypothesis", "conform") from None

    # Few draws a move: under emulation, drawing takes longer than playing.
    twists = [twist for times, twist in _TWISTS for _ in range(times)]
    request = st.builds(
        lambda name, twist, span: RequestMove(name, size=span[0], place=span[1], **twist),
        st.sampled_from(REQUESTS),
        st.sampled_from(twists),
        st.sampled_from(_SPANS),
    )
    sizes = st.sampled_from((64, 1, 256, 257, 700))
    post = st.builds(PostMove, st.sampled_from(_OPERATIONS), sizes, st.sampled_from(_ANSWERS))
    receive = st.sampled_from([ReceiveMove(size) for size in (1024, 1024, 1024, 1024, 1024, 64, 8)])
    move = st.one_of(request, request, request, receive, receive, post, post)
    # Lists of lists: hypothesis puts few moves into one list.
    part = st.lists(move, min_size=1, max_size=_MOST_IN_PART)
    parts = st.lists(part, min_size=1, max_size=_MOST_PARTS)
    return parts.map(lambda drawn: [one for part in drawn for one in part])
