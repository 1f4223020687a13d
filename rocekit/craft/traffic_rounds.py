"""Synthetic traffic, made fast: whole RC messages of many QP pairs as packet columns, a round at a time.

    for round_ in rounds(Traffic(packets=1_000_000, loss=0.01)):
        round_.messages.retransmitted      # what an analysis must find

Every side of every QP pair sends one message after the other and waits for each one's last acknowledgement.
A lost packet is sent again as the specification says: after a sequence-error NAK (IBA Vol. 1, 9.7.5.2.2) if a
later packet shows the hole, else after a timeout; a READ asks again from the lost response on. The capture
point is between the two losses that this needs: the lost packet of a request of several packets is lost
before it, all others behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from rocekit import wire
from rocekit.craft.traffic import OPERATIONS, Traffic
from rocekit.craft.traffic_columns import CE, ECT, Columns, Ints, Messages, Round
from rocekit.wire import FIRST, LAST, MIDDLE, ONLY
from rocekit.wire.psn import MASK, MODULO

START_NS: Final = 1_700_000_000_000_000_000
#: About how many packets are made at once.
ROUND_PACKETS: Final = 1 << 17

_ANSWER_NS: Final = 2_000  # from a request to its response, and from a NAK to the go-back
_TIMEOUT_NS: Final = 1_048_576  # 4.096 µs × 2^8 (9.7.6.1.3)
_REMOTE_VA: Final = 0x7F00_0000_0000
_POSITIONS: Final = (FIRST, MIDDLE, LAST, ONLY)
_FIRST, _MIDDLE, _LAST, _ONLY = range(4)


def _opcode_table(operation: str) -> Ints:
    """The opcodes of an RC operation by position, without immediate and invalidate."""
    names = {"WRITE": "RDMA_WRITE", "SEND": "SEND", "READ_RESPONSE": "RDMA_READ_RESPONSE"}
    return np.array([wire.OPCODE_NAMES[f"RC_{names[operation]}_{p}"] for p in _POSITIONS], np.int64)


_REQUEST_OPCODES: Final = np.stack([_opcode_table("WRITE"), _opcode_table("SEND")])
_RESPONSE_OPCODES: Final = _opcode_table("READ_RESPONSE")
_READ_REQUEST: Final = wire.OPCODE_NAMES["RC_RDMA_READ_REQUEST"]
_ACK: Final = wire.OPCODE_NAMES["RC_ACKNOWLEDGE"]
_HAS_RETH: Final = np.array([v in wire.OPCODES and wire.RETH in wire.OPCODES[v].headers for v in range(256)])


def rounds(traffic: Traffic) -> Iterator[Round]:
    """The traffic, round after round; each starts when the one before has ended."""
    rng = np.random.default_rng(traffic.seed)
    psn = rng.integers(0, MODULO, traffic.streams)
    msn = np.zeros(traffic.streams, np.int64)
    now, left = START_NS, traffic.packets
    while left > 0:
        messages = _messages(traffic, rng, psn)
        counts = _packet_counts(messages)
        marked = _marked_messages(traffic, rng, messages)
        total = np.cumsum(counts + marked)
        enough = int(np.searchsorted(total, left)) + 1
        if enough < len(messages):
            messages, counts, marked = messages.take(slice(enough)), counts[:enough], marked[:enough]
        packets = _packets(traffic, rng, messages, counts, marked, msn, now)
        np.add.at(psn, messages.stream, messages.span)
        np.add.at(msn, messages.stream, 1)
        now = int(packets.time_ns[-1]) + _ANSWER_NS
        left -= len(packets)
        yield Round(messages, packets)


def _messages(traffic: Traffic, rng: np.random.Generator, psn: Ints) -> Messages:
    """A round of messages: first the first of every stream, then the second, and so on."""
    spans = [wire.psns_of(size, traffic.mtu) for size in traffic.sizes]
    each = sum(spans) / len(spans) + 1
    rows = max(1, int(ROUND_PACKETS / (each * traffic.streams)))
    n = rows * traffic.streams
    stream = np.tile(np.arange(traffic.streams), rows)
    known = np.array([OPERATIONS.index(o) for o in traffic.operations])
    operation = known[rng.integers(0, len(known), n)]
    which = rng.integers(0, len(spans), n)
    size, span = np.array(traffic.sizes, np.int64)[which], np.array(spans, np.int64)[which]
    table = span.reshape(rows, traffic.streams)
    first = (psn + np.cumsum(table, axis=0) - table).ravel() & MASK
    lost = np.full(n, -1, np.int64)
    # At most one packet of a message: with a probability of about span × loss, always under 1.
    hit = np.flatnonzero(rng.random(n) < 1 - (1 - traffic.loss) ** span)
    # The last packet of a request is lost only if it is also the first: no later packet would show the hole.
    room = np.where(operation[hit] == OPERATIONS.index("READ"), span[hit], np.maximum(span[hit] - 1, 1))
    lost[hit] = (rng.random(len(hit)) * room).astype(np.int64)
    return Messages(stream, operation, size, span, first, lost)


def _packet_counts(m: Messages) -> Ints:
    """Packets in the capture of each message: its own, its repeats, a NAK, its acknowledgement.

    A READ has its request instead of the acknowledgement, and the repeated request instead of the NAK. A
    request's lost packet is not in the capture.
    """
    turn = np.where(m.is_read, m.lost >= 0, m.naks)
    return m.span - m.before_capture + turn + m.repeated + 1


def _marked_messages(traffic: Traffic, rng: np.random.Generator, m: Messages) -> Ints:
    """Whether a packet of the message is marked (CE): then its sender gets one CNP."""
    if not traffic.ecn:
        return np.zeros(len(m), np.int64)
    hit: Ints = ((rng.random(len(m)) < 1 - (1 - traffic.ecn) ** m.span) & (m.size > 0)).astype(np.int64)
    return hit


def _packets(
    traffic: Traffic,
    rng: np.random.Generator,
    m: Messages,
    counts: Ints,
    marked: Ints,
    msn: Ints,
    now: int,
) -> Columns:
    """The messages' packets, in order of time."""
    counts = counts + marked
    of = np.repeat(np.arange(len(m)), counts)
    step = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
    span, lost, is_read = m.span[of], m.lost[of], m.is_read[of]
    first_flight = (span - m.naks[of]) + is_read  # with a READ's request
    has_turn = np.where(is_read, lost >= 0, m.naks[of] > 0)
    behind = step - first_flight  # index after the first flight: the turn, what is sent again, the end
    is_cnp = (marked[of] > 0) & (step == counts[of] - 1)
    is_ack = ~is_read & (step == counts[of] - 1 - marked[of])
    is_turn = has_turn & (behind == 0)
    again = (behind >= 0) & ~is_turn & ~is_ack & ~is_cnp
    is_request = is_read & ((step == 0) | is_turn)
    is_nak = ~is_read & is_turn

    place = step - is_read
    place += (m.naks[of] > 0) & (place >= lost)
    place = np.where(again, lost + behind - has_turn, place)
    place = np.where(is_turn, lost, place)
    place = np.where(is_ack | is_cnp, span - 1, place)
    place = np.where(is_request & (step == 0), 0, place)

    begin = np.where(again & is_read, lost, 0)  # a repeated READ request has a first response of its own
    position = np.where(place == span - 1, _LAST, np.where(place == begin, _FIRST, _MIDDLE))
    position[(place == span - 1) & (place == begin)] = _ONLY
    opcode = np.where(
        is_read, _RESPONSE_OPCODES[position], _REQUEST_OPCODES[np.minimum(m.operation[of], 1), position]
    )
    opcode[is_ack | is_nak] = _ACK
    opcode[is_request] = _READ_REQUEST
    opcode[is_cnp] = wire.CNP_OPCODE

    carries = ~(is_ack | is_nak | is_request | is_cnp)
    size = m.size[of]
    payload = np.where(carries, np.minimum(traffic.mtu, size - place * traffic.mtu), 0)
    skipped = np.where(is_request, place * traffic.mtu, 0)
    reth = _HAS_RETH[opcode]
    # A message's index among its stream's in this round: they are one row of streams apart.
    nth = np.arange(len(m)) // traffic.streams
    syndrome = np.full(len(of), wire.make_syndrome(wire.ACK))
    syndrome[is_nak] = wire.make_syndrome(wire.NAK, wire.NAK_SEQUENCE_ERROR)

    ecn = np.zeros(len(of), np.int64)
    if traffic.ecn:
        ecn[payload > 0] = ECT
        could = (marked[of] > 0) & (payload > 0)
        ecn[could & (rng.random(len(of)) < traffic.ecn)] = CE
        ecn[could & (place == span - 1) & ~again] = CE  # at least one, because there is a CNP

    gap = (payload + 100) * 8 / traffic.gbps * traffic.streams * (0.5 + rng.random(len(of)))
    quick = is_ack | is_nak | is_cnp | (is_read & (behind == 1) & has_turn) | (is_read & (step == 1))
    gap[quick] = _ANSWER_NS * (0.5 + rng.random(int(quick.sum())))
    waits = again & (behind == 0)  # no NAK: a timeout made it go back
    gap[waits | (is_request & is_turn)] += _TIMEOUT_NS
    time_ns = _times(m.stream[of], gap.astype(np.int64) + 1, now)

    pair, side = (m.stream[of] >> 1, m.stream[of] & 1) if traffic.both_directions else (m.stream[of], 0 * of)
    answers = is_ack | is_nak | (is_cnp & ~is_read) | (is_read & ~is_request & ~is_cnp)
    columns = Columns(
        time_ns=time_ns,
        pair=pair,
        from_b=(side != 0) ^ answers,
        opcode=opcode,
        psn=np.where(is_cnp, 0, (m.first_psn[of] + place) & MASK),
        payload=payload,
        remote_va=np.where(reth, _REMOTE_VA + (m.stream[of] << 24) + skipped, 0),
        dma_length=np.where(reth, size - skipped, 0),
        syndrome=syndrome,
        msn=(msn[m.stream] + nth)[of] + is_ack & MASK,
        ecn=ecn,
        ip_id=rng.integers(0, 1 << 16, len(of)),
        message=of,
        again=again | (is_request & is_turn),
    )
    return columns.take(np.argsort(time_ns, kind="stable"))


def _times(stream: Ints, gap: Ints, now: int) -> Ints:
    """Each packet's time: ``now`` and the gaps of its stream's packets up to it."""
    order = np.argsort(stream, kind="stable")
    ordered = stream[order]
    total = np.cumsum(gap[order])
    begins = np.flatnonzero(np.diff(ordered, prepend=-1))
    before = (total - gap[order])[begins]
    time = np.empty(len(stream), np.int64)
    time[order] = now + total - np.repeat(before, np.diff(begins, append=len(ordered)))
    return time
