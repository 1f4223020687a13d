"""Synthetic traffic, made fast: whole RC messages of many QP pairs as packet columns, a round at a time.

    for round_ in rounds(Traffic(packets=1_000_000, loss=0.01)):
        round_.messages.retransmitted      # what an analysis must find
    generate("big.pcap", Traffic(operations=("READ",)))

Every side of every QP pair sends one message after the other and waits for each one's last acknowledgement.
A lost packet is made good as the specification has it: a sequence-error NAK and a go-back (IBA Vol. 1,
9.7.5.2.8) where a later packet shows the hole, a timeout where none does, a READ asked again from the lost
response on. The capture stands between the two losses that this needs: a request of several packets is lost
before it, everything else behind it. :mod:`rocekit.craft.generate_frames` makes the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from rocekit import wire
from rocekit.wire import FIRST, LAST, MIDDLE, ONLY, time_code_ns
from rocekit.wire.network import ECN_CAPABLE, ECN_CE
from rocekit.wire.psn import MASK, MODULO

if TYPE_CHECKING:
    from collections.abc import Callable

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

OPERATIONS: Final = ("WRITE", "SEND", "READ")
START_NS: Final = 1_700_000_000_000_000_000
#: Packets made at once, about.
ROUND_PACKETS: Final = 1 << 17

_ANSWER_NS: Final = 2_000  # from a request to its answer, and from a NAK to the go-back
_TIMEOUT_NS: Final = time_code_ns(8)  # 1.05 ms
_FIRST_QPN: Final = 0x11
_REMOTE_VA: Final = 0x7F00_0000_0000
_MOST_PAIRS: Final = 1 << 20
_POSITIONS: Final = (FIRST, MIDDLE, LAST, ONLY)
_FIRST, _MIDDLE, _LAST, _ONLY = range(4)


def _opcode_table(operation: str) -> Ints:
    """The plain opcodes of an RC operation by position, no immediate, nothing to invalidate."""
    names = {"WRITE": "RDMA_WRITE", "SEND": "SEND", "READ_RESPONSE": "RDMA_READ_RESPONSE"}
    return np.array([wire.OPCODE_NAMES[f"RC_{names[operation]}_{p}"] for p in _POSITIONS], np.int64)


_REQUEST_OPCODES: Final = np.stack([_opcode_table("WRITE"), _opcode_table("SEND")])
_RESPONSE_OPCODES: Final = _opcode_table("READ_RESPONSE")
_READ_REQUEST: Final = wire.OPCODE_NAMES["RC_RDMA_READ_REQUEST"]
_ACK: Final = wire.OPCODE_NAMES["RC_ACKNOWLEDGE"]
_HAS_RETH: Final = np.array([v in wire.OPCODES and wire.RETH in wire.OPCODES[v].headers for v in range(256)])


@dataclass(frozen=True, slots=True)
class Traffic:
    """What to make.

    Attributes:
        packets: about how many; the last message is whole.
        operations: of ``WRITE``, ``SEND``, ``READ``, taken at random.
        sizes: payload bytes of a message, taken at random; mtu: the path MTU.
        pairs: QP pairs; both_directions: whether both sides send requests.
        hosts: an even number; the pairs are spread over pairs of hosts.
        ip_version: 4 or 6; vlan: a tag's VLAN ID, or None for untagged frames.
        loss: the share of packets that get lost, at most one of a message.
        ecn: the share of packets with payload that are marked; 0 is traffic that is not ECN-capable.
        gbps: the speed of the link that all share.
        seed: of every choice above.

    Raises:
        ValueError: a value that makes no sense.
    """

    packets: int = 1_000_000
    operations: tuple[str, ...] = ("WRITE",)
    sizes: tuple[int, ...] = (16_384,)
    mtu: int = 1024
    pairs: int = 64
    both_directions: bool = True
    hosts: int = 2
    ip_version: int = 4
    vlan: int | None = None
    loss: float = 0.0
    ecn: float = 0.0
    gbps: float = 100.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.packets < 1:
            raise ValueError("packets must be at least 1")
        if not self.operations or not set(self.operations) <= set(OPERATIONS):
            raise ValueError(f"operations are of {', '.join(OPERATIONS)}")
        if not self.sizes or min(self.sizes) < 0 or max(self.sizes) > wire.MAX_MESSAGE_BYTES:
            raise ValueError(f"sizes are 0 to {wire.MAX_MESSAGE_BYTES:,} bytes")
        if self.mtu not in wire.PATH_MTU_CODES:
            raise ValueError(f"a path MTU is one of {', '.join(map(str, wire.PATH_MTU_CODES))}")
        if not 1 <= self.pairs <= _MOST_PAIRS:
            raise ValueError(f"pairs are 1 to {_MOST_PAIRS:,}")
        if self.hosts < 2 or self.hosts % 2 or self.hosts > 1 << 16:
            raise ValueError("hosts is an even number from 2 to 65,536")
        if self.ip_version not in (4, 6):
            raise ValueError("ip_version is 4 or 6")
        if self.vlan is not None and not 0 <= self.vlan < 4096:
            raise ValueError("a VLAN ID is 0 to 4095")
        if not 0 <= self.loss < 1 or not 0 <= self.ecn <= 1:
            raise ValueError("loss and ecn are shares, from 0 to 1")
        if not 0 < self.gbps < float("inf"):
            raise ValueError("gbps must be above 0")
        if self.seed < 0:
            raise ValueError("a seed is 0 or more")

    @property
    def streams(self) -> int:
        """Sides that send requests; side ``s`` of pair ``p`` is stream ``p * 2 + s``, or ``p`` one way."""
        return self.pairs * (1 + self.both_directions)


@dataclass(slots=True)
class Messages:
    """What a round's messages are, and what an analysis must find: one value a message in each array.

    Attributes:
        stream: which side of which pair asks (see ``Traffic.streams``).
        operation: its place in ``OPERATIONS``.
        size: payload bytes; span: its PSNs; first_psn: 24 bits.
        lost: the place in the message of the packet that got lost, −1 for none.
        retransmitted, naks, timeouts: what the loss brings about.
    """

    stream: Ints
    operation: Ints
    size: Ints
    span: Ints
    first_psn: Ints
    lost: Ints

    def __len__(self) -> int:
        return len(self.stream)

    def take(self, rows: Ints | slice) -> Messages:
        return Messages(*(getattr(self, name)[rows] for name in Messages.__slots__))

    @property
    def is_read(self) -> Bools:
        return self.operation == OPERATIONS.index("READ")

    @property
    def naks(self) -> Ints:
        return ((self.lost >= 0) & ~self.is_read & (self.span > 1)).astype(np.int64)

    @property
    def timeouts(self) -> Ints:
        """Losses that only a timer shows: of the last packet, which is a READ's last response too."""
        return ((self.lost >= 0) & (self.lost == self.span - 1)).astype(np.int64)

    @property
    def repeated(self) -> Ints:
        """Packets of the message sent again: all from the lost one on."""
        return np.where(self.lost >= 0, self.span - self.lost, 0)

    @property
    def retransmitted(self) -> Ints:
        """Packets sent again, a READ's request among them."""
        return self.repeated + (self.is_read & (self.lost >= 0))


@dataclass(slots=True)
class Columns:
    """Packets in the order of the capture, a value a packet in each array; what ``generate_frames`` needs.

    Attributes:
        pair, from_b: which QP pair, and whether its side ``b`` sends.
    """

    time_ns: Ints
    pair: Ints
    from_b: Bools
    opcode: Ints
    psn: Ints
    payload: Ints
    remote_va: Ints
    dma_length: Ints
    syndrome: Ints
    msn: Ints
    ecn: Ints
    ip_id: Ints

    def __len__(self) -> int:
        return len(self.time_ns)

    def take(self, rows: Ints | slice) -> Columns:
        return Columns(*(getattr(self, name)[rows] for name in Columns.__slots__))


@dataclass(slots=True)
class Round:
    """Some messages of every stream, and their packets."""

    messages: Messages
    packets: Columns


@dataclass(slots=True)
class Generated:
    """What was written."""

    packets: int = 0
    messages: int = 0
    lost: int = 0
    marked: int = 0
    cnps: int = 0
    bytes: int = 0


def qpn(pair: Ints, b: Bools, pairs: int) -> Ints:
    """The QPN of a side of a pair: ``a``'s from 0x11 on, ``b``'s behind all of ``a``'s."""
    return _FIRST_QPN + pair + np.where(b, pairs, 0)


def generate(
    target: str | Path | BinaryIO,
    traffic: Traffic,
    *,
    snaplen: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Generated:
    """Write a capture of synthetic traffic.

    Args:
        target: a path (pcapng if it ends so, else pcap), ``-`` for standard output (pcap), or a binary file.
        snaplen: bytes kept of each frame; None for all.
        progress: called with the packets written so far.

    Raises:
        ValueError: ``snaplen`` below 64.
        CaptureError: the file cannot be written.
    """
    from rocekit.craft.generate_frames import FrameWriter

    done = Generated()
    with FrameWriter(target, traffic, snaplen) as writer:
        for made in rounds(traffic):
            writer.write(made.packets)
            done.packets += len(made.packets)
            done.messages += len(made.messages)
            done.lost += int((made.messages.lost >= 0).sum())
            done.marked += int((made.packets.ecn == ECN_CE).sum())
            done.cnps += int((made.packets.opcode == wire.CNP_OPCODE).sum())
            if progress is not None:
                progress(done.packets)
        done.bytes = writer.bytes
    return done


def rounds(traffic: Traffic) -> Iterator[Round]:
    """The traffic, round after round; each begins when the one before has ended."""
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
    """A round of messages: those of one place in all streams together, stream after stream."""
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
    # At most one packet of a message: with probability span × loss, but never for sure.
    hit = np.flatnonzero(rng.random(n) < 1 - (1 - traffic.loss) ** span)
    # The last packet of a request is only lost where it is the first as well: its hole would show nothing.
    room = np.where(operation[hit] == OPERATIONS.index("READ"), span[hit], np.maximum(span[hit] - 1, 1))
    lost[hit] = (rng.random(len(hit)) * room).astype(np.int64)
    return Messages(stream, operation, size, span, first, lost)


def _packet_counts(m: Messages) -> Ints:
    """Packets in the capture of each message: its own, its repeats, a NAK, its acknowledgement.

    A READ has its request where the others have their acknowledgement, and the request's repeat where they
    have the NAK. What the hole swallows is missing.
    """
    lost = m.lost >= 0
    swallowed = lost & ~m.is_read & (m.span > 1)
    turn = np.where(m.is_read, lost, m.naks)
    return m.span - swallowed + turn + m.repeated + 1


def _marked_messages(traffic: Traffic, rng: np.random.Generator, m: Messages) -> Ints:
    """Whether a packet of the message is marked: then its sender gets one CNP."""
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
    behind = step - first_flight  # place behind the first flight: the turn, what is repeated, the end
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

    begin = np.where(again & is_read, lost, 0)  # a READ asked again has a first response of its own
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
    # A message's place among its stream's, in this round: they stand a row of streams apart.
    nth = np.arange(len(m)) // traffic.streams
    syndrome = np.full(len(of), wire.make_syndrome(wire.ACK))
    syndrome[is_nak] = wire.make_syndrome(wire.NAK, wire.NAK_SEQUENCE_ERROR)

    ecn = np.zeros(len(of), np.int64)
    if traffic.ecn:
        ecn[payload > 0] = ECN_CAPABLE
        could = (marked[of] > 0) & (payload > 0)
        ecn[could & (rng.random(len(of)) < traffic.ecn)] = ECN_CE
        ecn[could & (place == span - 1) & ~again] = ECN_CE  # at least one, for there is a CNP

    gap = (payload + 100) * 8 / traffic.gbps * traffic.streams * (0.5 + rng.random(len(of)))
    quick = is_ack | is_nak | is_cnp | (is_read & (behind == 1) & has_turn) | (is_read & (step == 1))
    gap[quick] = _ANSWER_NS * (0.5 + rng.random(int(quick.sum())))
    waits = again & (behind == 0)  # nothing made it go back: a timer did
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
