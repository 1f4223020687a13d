"""Stories: a capture as a few lines of text, and the connections and transfers that come of it.

A line says who sends what::

    a RC_SEND_FIRST 5 1024        A sends a packet with PSN 5 and 1024 bytes of payload
    a RC_SEND_LAST 6 100 ackreq=1
    b ACK 6                       B acknowledges up to PSN 6
    +300us                        300 µs pass without a packet
    b NAK 7                       a PSN sequence error; NAK 7 remote_access_error is another
    b RNR 7 timer=3
    again                         the last frame once more, as if duplicated; ``again 2``: frame 2

Numbers are decimal or hexadecimal. ``name=value`` is a field of ``wire`` or an argument of ``build_frame``.
``#`` starts a comment. ``RC_RDMA_READ_REQUEST 5 4096`` requests 4096 bytes. The first packet of a WRITE
announces the length in ``of=``. A packet that is not in the story was lost before the capture point.

Capital letters are the programs at the two ends; a journal line takes no time::

    A created                     a QP; ``A modified sq_psn=5`` sets attributes
    A wr 7 RDMA_WRITE 4096        posted; ``unsignaled`` at the end; ``errno=12``: the post failed
    B recv 3 4096                 a receive posted
    A wc 7 SUCCESS                polled; ``B wc 3 SUCCESS opcode=RECV byte_len=64``

The results are lines, too::

    a SEND 5..6 1124 bytes in 2 packets: acked
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rocekit import wire
from rocekit.correlate import Correlation, correlate
from rocekit.correlate.pairs import journal_pairs
from rocekit.decode import Decoder
from rocekit.files.frames import LINKTYPE_ETHERNET, FrameBatch
from rocekit.files.pcapng_write import PcapngWriter
from rocekit.journal import Journal, JournalEvent
from rocekit.journal.records import in_order
from rocekit.journal.work_requests import read_programs
from rocekit.track.pairs.known_pairs import Pair
from rocekit.track.tracker import Tracker
from rocekit.wire.build import build_frame, build_ip_cm, build_mad
from rocekit.wire.cm import CM_MESSAGES
from rocekit.wire.psn import MASK

if TYPE_CHECKING:
    from rocekit.analysis import Analysis
    from rocekit.track.connections import Connection
    from rocekit.track.events import Event
    from rocekit.track.transfers import Transfer

START_NS = 1_700_000_000_000_000_000
STEP_NS = 1_000
UNITS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
RKEY, REMOTE_VA = 0x1A2B, 0x7F0000001000
_CODES = {name: code for code, name in wire.NAK_CODES.items()}
_ACKS = {
    "ACK": (wire.ACK, wire.NO_CREDITS),
    "NAK": (wire.NAK, wire.NAK_SEQUENCE_ERROR),
    "RNR": (wire.RNR_NAK, 12),
}


_EVENTS = {
    "created": "qp_created",
    "modified": "qp_modified",
    "wr": "wr_posted",
    "recv": "recv_posted",
    "wc": "wc_polled",
}
_WORDS: dict[str, tuple[str, ...]] = {
    "created": (),
    "modified": (),
    "wr": ("wr_id", "opcode", "length"),
    "recv": ("wr_id", "length"),
    "wc": ("wr_id", "status"),
}


@dataclass(frozen=True)
class End:
    """One end: a letter of the story."""

    ip: str
    qpn: int
    peer: str


@dataclass(frozen=True)
class Shot:
    """A frame and when it was captured."""

    data: bytes
    time_ns: int
    comment: str | None = None


class Story:
    """A capture that is written packet by packet.

    Args:
        a, b: addresses of the two ends ``a`` and ``b``.
        qpns: their QPNs.
        others: more pairs of ends: two letters to the (address, QPN) of each, ``{"cd": (("10.0.0.1", 3),
            ("10.0.0.2", 4))}``.
        transport: of ``ACK``, ``NAK`` and ``RNR``.
        ip_ids: whether every host counts its datagrams in the IP identification; else it is 0.
        clocks: how many ns the clock of a letter's program is ahead of the capture's.
        common: arguments of ``build_frame`` for every packet (``vlan=7``, ``roce_version=1``).
    """

    def __init__(
        self,
        text: str = "",
        *,
        a: str = "10.0.0.1",
        b: str = "10.0.0.2",
        qpns: tuple[int, int] = (0x11, 0x12),
        others: dict[str, tuple[tuple[str, int], tuple[str, int]]] | None = None,
        transport: str = "RC",
        ip_ids: bool = True,
        start_ns: int = START_NS,
        clocks: dict[str, int] | None = None,
        **common: Any,
    ) -> None:
        self.ends = {"a": End(a, qpns[0], "b"), "b": End(b, qpns[1], "a")}
        for letters, (here, there) in (others or {}).items():
            one, two = letters[0], letters[1]
            self.ends |= {one: End(*here, two), two: End(*there, one)}
        self.shots: list[Shot] = []
        self.now = start_ns
        self.clocks = clocks or {}
        self.entries: list[JournalEvent] = []
        self.common = common
        self.transport = transport
        self.ip_ids = ip_ids
        self._sent: dict[str, int] = {}
        self.lines(text)

    # ------------------------------------------------------------------ writing

    def a(self, what: str, psn: int = 0, payload: int = 0, **fields: Any) -> Story:
        return self.packet("a", what, psn, payload, **fields)

    def b(self, what: str, psn: int = 0, payload: int = 0, **fields: Any) -> Story:
        return self.packet("b", what, psn, payload, **fields)

    def packet(self, who: str, what: str, psn: int, payload: int = 0, **fields: Any) -> Story:
        """Append a packet; ``what`` is an opcode's name, ``ACK``, ``NAK``, ``RNR`` or a CM message."""
        end = self.ends[who]
        if what in CM_MESSAGES:
            return self._management(end, what, **fields)
        data = b""
        if what in _ACKS:
            kind, value = _ACKS[what]
            value = _CODES[fields.pop("code")] if "code" in fields else fields.pop("timer", value)
            fields.setdefault("syndrome", wire.make_syndrome(kind, value))
            what = f"{self.transport}_ACKNOWLEDGE"
        opcode = wire.OPCODES[wire.OPCODE_NAMES[what]]
        if wire.RETH in opcode.headers:
            fields = {"rkey": RKEY, "remote_va": REMOTE_VA, "dma_length": fields.pop("of", payload)} | fields
        if wire.DETH in opcode.headers:
            fields.setdefault("src_qpn", end.qpn)
        if opcode.payload:
            data = bytes((psn + i) & 0xFF for i in range(4)) * (payload // 4 + 1)
            data = data[:payload]
        fields = {"dest_qpn": self.ends[end.peer].qpn} | self._network(end) | fields
        return self.frame(build_frame(what, payload=data, psn=psn & MASK, **fields))

    def _network(self, end: End) -> dict[str, Any]:
        fields: dict[str, Any] = {"src": end.ip, "dst": self.ends[end.peer].ip} | self.common
        if self.ip_ids and ":" not in end.ip and fields.get("roce_version") != 1:
            self._sent[end.ip] = self._sent.get(end.ip, 0) + 1
            fields["identification"] = self._sent[end.ip] & 0xFFFF or 1
        return fields

    def _management(self, end: End, message: str, **fields: Any) -> Story:
        transaction = fields.pop("tid", fields.get("local_comm_id", 1))
        if message == "REQ":
            fields = {
                "path_mtu_code": wire.PATH_MTU_CODES[1024],
                "service_id": 0x0106_1234,
                "retry_count": 7,
                "rnr_retry_count": 7,
                "primary_local_ack_timeout": 14,
                "private_data": build_ip_cm(end.ip, self.ends[end.peer].ip, 40_000),
            } | fields
        if message in ("REQ", "REP"):
            fields.setdefault("local_qpn", end.qpn)
        return self.frame(
            build_frame(
                "UD_SEND_ONLY",
                payload=build_mad(message, transaction, **fields),
                dest_qpn=1,
                src_qpn=1,
                qkey=0x8001_0000,
                psn=len(self.shots),
                **self._network(end),
            )
        )

    def connect(self, a_psn: int, b_psn: int, who: str = "a", comm_id: int = 1, **request: Any) -> Story:
        """REQ, REP and RTU: ``who`` sends the REQ. It sends from ``a_psn`` on, its peer from ``b_psn`` on.

        A message contains the PSN from which its receiver sends (12.6.5).
        """
        peer = self.ends[who].peer
        own, other = comm_id, comm_id + 1000
        self.packet(who, "REQ", 0, local_comm_id=own, starting_psn=b_psn, **request)
        self.packet(peer, "REP", 0, local_comm_id=other, remote_comm_id=own, starting_psn=a_psn, tid=own)
        return self.packet(who, "RTU", 0, local_comm_id=own, remote_comm_id=other)

    def frame(self, data: bytes, comment: str | None = None) -> Story:
        """Append any frame."""
        self.shots.append(Shot(data, self.now, comment))
        self.now += STEP_NS
        return self

    def again(self, number: int = 0) -> Story:
        """A frame once more, bit for bit: the last one, or frame ``number``."""
        return self.frame(self.shots[number - 1].data)

    def corrupt(self, number: int = 0) -> Story:
        """Flip a bit at the end of the payload of a frame already appended."""
        shot = self.shots[number - 1]
        data = bytearray(shot.data)
        data[-wire.ICRC_BYTES - 1] ^= 1
        self.shots[number - 1] = Shot(bytes(data), shot.time_ns)
        return self

    def wait(self, **how_long: int) -> Story:
        """``wait(us=300)``."""
        self.now += sum(UNITS[unit] * n for unit, n in how_long.items())
        return self

    def lines(self, text: str) -> Story:
        """Append the lines of a story."""
        for line in text.splitlines():
            words = line.partition("#")[0].split()
            if words:
                self._line(words)
        return self

    def _line(self, words: list[str]) -> None:
        first = words[0]
        if first.lower() in self.ends and first.isupper():
            self._program(first.lower(), words[1], words[2:])
            return
        delay = re.fullmatch(r"\+(\d+)(ns|us|ms|s)", first)
        if delay is not None:
            self.now += int(delay[1]) * UNITS[delay[2]]
        elif first in ("again", "corrupt"):
            getattr(self, first)(*(int(w) for w in words[1:]))
        else:
            named = dict(w.split("=") for w in words[2:] if "=" in w)
            plain = [w for w in words[2:] if "=" not in w]
            fields: dict[str, Any] = {k: int(v, 0) for k, v in named.items()}
            if plain and plain[-1] in _CODES:
                fields["code"] = plain.pop()
            self.packet(first, words[1], *([int(w, 0) for w in plain] or [0]), **fields)

    # ------------------------------------------------------------------ programs

    def _program(self, who: str, event: str, words: list[str]) -> None:
        fields: dict[str, Any] = {}
        if event == "wr":
            fields["signaled"] = "unsignaled" not in words
        named = [w for w in words if "=" in w]
        plain = [w for w in words if "=" not in w and w != "unsignaled"]
        for name, word in zip(_WORDS[event], plain, strict=True):
            fields[name] = _value(word)
        fields |= {name: _value(word) for name, _, word in (w.partition("=") for w in named)}
        self.entry(who, _EVENTS[event], **fields)

    def entry(self, who: str, event: str, **fields: Any) -> Story:
        """Append a journal line of the program at an end, about its QP, now."""
        end = self.ends[who]
        if event == "qp_created":
            fields.setdefault("transport", self.transport)
        time_ns = self.now + self.clocks.get(who, 0)
        self.entries.append(JournalEvent(time_ns, event, f"host-{who}", 1, (f"rxe_{who}", end.qpn), fields))
        return self

    def journal(self) -> Journal:
        """The journal that the programs wrote."""
        return Journal(in_order(self.entries))

    def write_journal(self, path: Path) -> Path:
        """As JSON Lines."""
        path.write_text("".join(json.dumps(e.to_dict()) + "\n" for e in self.entries))
        return path

    # ------------------------------------------------------------------ results

    def batches(self, cuts: Iterable[int] = ()) -> list[FrameBatch]:
        """The frames as a reader gives them, with a new batch at every place in ``cuts``."""
        places = [0, *sorted({c for c in cuts if 0 < c < len(self.shots)}), len(self.shots)]
        return [batch_of(self.shots[low:high], low + 1) for low, high in pairwise(places)]

    def track(self, *, cuts: Iterable[int] = (), pairs: Iterable[Pair] = (), **callbacks: Any) -> Tracked:
        """Through decoder and tracker."""
        decoder, tracker = Decoder(), Tracker(pairs=pairs, **callbacks)
        for batch in self.batches(cuts):
            tracker.feed(decoder.decode(batch))
        tracker.finish()
        return Tracked(tracker, self.ends)

    def correlated(self, **how: Any) -> tuple[Tracked, Correlation]:
        """Tracked with the QP pairs of its journal, and correlated with the journal."""
        journal = self.journal()
        tracked = self.track(pairs=journal_pairs(read_programs(journal)), **how)
        return tracked, correlate(journal, tracked.tracker.connections, tracked.tracker.transfers)

    def write(self, path: Path) -> Path:
        """As a pcapng file."""
        with PcapngWriter(path) as writer:
            for shot in self.shots:
                writer.write(shot.data, shot.time_ns, comment=shot.comment)
        return path

    def analyze(self, folder: Path, **rest: Any) -> Analysis:
        """Through the whole analysis, by files in ``folder``."""
        import rocekit

        if self.entries:
            self.write_journal(folder / "story.journal.jsonl")
        return rocekit.analyze(self.write(folder / "story.pcapng"), **rest)


def _value(word: str) -> int | str:
    try:
        return int(word, 0)
    except ValueError:
        return word


def batch_of(shots: Sequence[Shot], first_number: int = 1) -> FrameBatch:
    """Frames as a batch."""
    caplen = np.array([len(s.data) for s in shots], np.int64)
    ends = np.cumsum(caplen)
    n = len(shots)
    return FrameBatch(
        file=0,
        buffer=np.frombuffer(b"".join(s.data for s in shots), np.uint8),
        offset=ends - caplen,
        caplen=caplen,
        wirelen=caplen,
        time_ns=np.array([s.time_ns for s in shots], np.int64),
        number=np.arange(first_number, first_number + n, dtype=np.int64),
        linktype=np.full(n, LINKTYPE_ETHERNET, np.uint16),
    )


class Tracked:
    """The results of tracking a story, as lines to compare and as objects."""

    def __init__(self, tracker: Tracker, ends: dict[str, End]) -> None:
        self.tracker = tracker
        self.ends = ends

    @property
    def transfers(self) -> list[str]:
        """A line for each transfer, in the order they began."""
        return [self.line(t) for t in self.tracker.transfers]

    @property
    def connections(self) -> list[str]:
        """A line for each connection: ``RC a=b by psn``; an end with an unknown QPN shows ``?``."""
        return [self._connection(c) for c in self.tracker.connections]

    @property
    def events(self) -> list[str]:
        """A line for each event of a transfer: ``0 repeat 5..7 by nak``."""
        return [f"{t.id} {event_line(e)}" for t in self.tracker.transfers for e in t.events]

    @property
    def missed(self) -> list[str]:
        """Acknowledged PSNs that are not in the capture: ``5..7``."""
        return [_span(e.psn, e.last_psn) for c in self.tracker.connections for e in c.missed]

    def __getitem__(self, number: int) -> Transfer:
        return self.tracker.transfers[number]

    def _end(self, ip: str | None, qpn: int | None, other: int | None) -> str:
        for letter, end in self.ends.items():
            if end.ip == ip and (end.qpn == qpn or (qpn is None and self.ends[end.peer].qpn == other)):
                return letter if qpn is not None else f"{letter}?"
        return f"{ip}/{qpn}"

    def _connection(self, c: Connection) -> str:
        a = self._end(c.ips[0], c.qpns[0], c.qpns[1])
        b = self._end(c.ips[1], c.qpns[1], c.qpns[0])
        return f"{c.transport} {a}={b}" + (f" by {c.paired_by}" if c.paired_by else "")

    def line(self, t: Transfer) -> str:
        """``a SEND 5..6 1124 bytes in 2 packets: acked, 1 again``."""
        side, c = t.side, t.connection
        who = self._end(c.ips[side], c.qpns[side], c.qpns[1 - side]).removesuffix("?")
        words = f"{who} {t.operation} {_span(t.first_psn, t.last_psn)} {t.bytes} bytes"
        words += "" if t.packets == 1 else f" in {t.packets} packets"
        if t.immediate is not None:
            words += f" imm {t.immediate:#x}"
        if t.invalidate_rkey is not None:
            words += f" inv {t.invalidate_rkey:#x}"
        counts: list[tuple[int, str]] = [
            (t.retransmitted_packets, "again"),
            (t.naks, "nak"),
            (t.rnr_naks, "rnr"),
            (t.timeouts, "timeout"),
            (t.duplicates, "doubled"),
        ]
        return ", ".join([f"{words}: {t.status}", *(f"{n} {word}" for n, word in counts if n)])


def _span(first: int, last: int) -> str:
    return f"{first & MASK}" if first == last else f"{first & MASK}..{last & MASK}"


def event_line(event: Event) -> str:
    """``repeat 5..7 by nak``."""
    return f"{event.kind} {_span(event.psn, event.last_psn)}" + (f" by {event.cause}" if event.cause else "")


def track(text: str, **how: Any) -> Tracked:
    """A story through the tracker."""
    return Story(text, **how).track()
