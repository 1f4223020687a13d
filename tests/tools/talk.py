"""Conversations of two QPs, written packet by packet as they stand in a capture, and their findings.

Times are nanoseconds; each packet comes one microsecond after the one before unless ``wait`` adds to it. A
packet that is left out was lost before the capture point; one that is there without an answer was lost
behind it.
"""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Iterable
from typing import Any

from capture_bytes import Frame, pcap

from rocekit import wire
from rocekit.capture import open_capture
from rocekit.decode import Decoder
from rocekit.findings import Evidence, Finding
from rocekit.findings.rules import find
from rocekit.findings.stories.build import build_stories
from rocekit.flows.observer import Observer
from rocekit.track.connections import Negotiated
from rocekit.track.pairs.known_pairs import Pair
from rocekit.track.tracker import Tracker
from rocekit.wire.build import build_frame, build_ip_cm, build_mad

A, B = "10.9.0.1", "10.9.0.2"
START_NS = 1_700_000_000_000_000_000
US = 1_000
MS = 1_000_000


class Talk:
    """Frames of a conversation between QP ``qa`` at ``a`` and ``qb`` at ``b``; ``a`` requests unless ``by``
    says b.
    """

    def __init__(
        self,
        *,
        a: str = A,
        b: str = B,
        qa: int = 0x11,
        qb: int = 0x12,
        mtu: int = 1024,
        transport: str = "RC",
    ) -> None:
        self.hosts = {"a": (a, b, qb), "b": (b, a, qa)}
        self.mtu = mtu
        self.transport = transport
        self.now = START_NS
        self.frames: list[Frame] = []
        self.ident = 0
        self.common: dict[str, Any] = {}

    # ------------------------------------------------------------------ single packets

    def packet(self, opcode: str, psn: int, payload: bytes = b"", *, by: str = "a", **fields: Any) -> int:
        """Append a packet and return its frame number."""
        src, dst, qpn = self.hosts[by]
        self.ident += 1
        v6 = ":" in src
        rest: dict[str, Any] = {"src": src, "dst": dst, "dest_qpn": qpn} | self.common | fields
        if not v6:
            rest.setdefault("identification", self.ident & 0xFFFF)
        data = build_frame(opcode, payload=payload, psn=psn & 0xFFFFFF, **rest)
        return self.raw(data)

    def raw(self, data: bytes, wirelen: int | None = None) -> int:
        self.now += US
        self.frames.append(Frame(data, self.now, wirelen))
        return len(self.frames)

    def wait(self, ns: int) -> None:
        self.now += ns

    def again(self, number: int) -> int:
        """The same datagram once more, as a network duplicates it."""
        return self.raw(self.frames[number - 1].data)

    def corrupted(self, number: int, at: int = -20) -> None:
        """Flip bits of an existing frame."""
        frame = self.frames[number - 1]
        data = bytearray(frame.data)
        data[at] ^= 0x55
        self.frames[number - 1] = Frame(bytes(data), frame.time_ns)

    # ------------------------------------------------------------------ messages

    def send(
        self,
        first: int,
        packets: int = 1,
        *,
        lost: Collection[int] = (),
        only: Iterable[int] | None = None,
        by: str = "a",
        operation: str = "SEND",
        **fields: Any,
    ) -> dict[int, int]:
        """A SEND (or RDMA_WRITE) of full packets from PSN ``first`` on, ``lost`` PSNs left out.

        ``only`` sends those of its PSNs, as a repeat does. Returns PSN → frame.
        """
        frames = {}
        for psn in range(first, first + packets) if only is None else only:
            if psn in lost:
                continue
            place = psn - first
            if packets == 1:
                position = "ONLY"
            else:
                position = "FIRST" if place == 0 else "LAST" if place == packets - 1 else "MIDDLE"
            extra = dict(fields)
            if operation == "RDMA_WRITE" and position in ("FIRST", "ONLY"):
                extra |= {"rkey": 0x1A2B, "remote_va": 0x7F0000001000, "dma_length": packets * self.mtu}
            if position in ("LAST", "ONLY"):
                extra.setdefault("ackreq", 1)
            name = f"{self.transport}_{operation}_{position}"
            frames[psn] = self.packet(name, psn, bytes(self.mtu), by=by, **extra)
        return frames

    def write(self, first: int, packets: int = 1, **rest: Any) -> dict[int, int]:
        return self.send(first, packets, operation="RDMA_WRITE", **rest)

    def ack(self, psn: int, *, by: str = "b", msn: int = 0) -> int:
        return self.aeth(psn, wire.ACK, wire.NO_CREDITS, by=by, msn=msn)

    def nak(self, psn: int, code: int = wire.NAK_SEQUENCE_ERROR, *, by: str = "b") -> int:
        return self.aeth(psn, wire.NAK, code, by=by)

    def rnr(self, psn: int, timer: int = 12, *, by: str = "b") -> int:
        return self.aeth(psn, wire.RNR_NAK, timer, by=by)

    def aeth(self, psn: int, kind: int, value: int, *, by: str, msn: int = 0) -> int:
        return self.packet("RC_ACKNOWLEDGE", psn, by=by, syndrome=wire.make_syndrome(kind, value), msn=msn)

    def read(self, psn: int, packets: int, *, by: str = "a", skip: int = 0) -> int:
        """A READ request for ``packets`` full packets; with ``skip`` the rest of one, from its PSN ``psn +
        skip`` on.
        """
        return self.packet(
            "RC_RDMA_READ_REQUEST",
            psn + skip,
            by=by,
            rkey=0x1A2B,
            remote_va=0x7F0000001000 + skip * self.mtu,
            dma_length=(packets - skip) * self.mtu,
            ackreq=1,
        )

    def responses(
        self, psn: int, packets: int, *, lost: Collection[int] = (), skip: int = 0, by: str = "b"
    ) -> dict[int, int]:
        """The responses to a READ, ``lost`` PSNs left out."""
        frames = {}
        for p in range(psn + skip, psn + packets):
            if p in lost:
                continue
            first, last = p == psn + skip, p == psn + packets - 1
            position = "ONLY" if first and last else "FIRST" if first else "LAST" if last else "MIDDLE"
            fields = {} if position == "MIDDLE" else {"syndrome": wire.make_syndrome(wire.ACK)}
            frames[p] = self.packet(f"RC_RDMA_READ_RESPONSE_{position}", p, bytes(self.mtu), by=by, **fields)
        return frames

    def atomic(self, psn: int, *, by: str = "a") -> int:
        return self.packet("RC_FETCH_ADD", psn, by=by, rkey=0x1A2B, remote_va=0x7F0000001000, swap_add=1)

    def atomic_answer(self, psn: int, *, by: str = "b") -> int:
        return self.packet(
            "RC_ATOMIC_ACKNOWLEDGE", psn, by=by, syndrome=wire.make_syndrome(wire.ACK), original=41
        )

    def cm(
        self, message: str, *, by: str = "a", transaction_id: int = 7, ip_id: int = 0, **fields: Any
    ) -> int:
        src, dst, _ = self.hosts[by]
        mad = build_mad(message, transaction_id, **fields)
        return self.raw(
            build_frame(
                "UD_SEND_ONLY",
                src=src,
                dst=dst,
                payload=mad,
                dest_qpn=1,
                src_qpn=1,
                qkey=0x80010000,
                psn=len(self.frames),
                identification=ip_id,
            )
        )

    def request(self, **fields: Any) -> int:
        """A's REQ, as rdma_cm makes it."""
        private = build_ip_cm(self.hosts["a"][0], self.hosts["b"][0], 40000)
        own: dict[str, Any] = {
            "local_comm_id": 1,
            "service_id": 0x0106_4853,
            "local_qpn": self.hosts["b"][2],
            "starting_psn": 0,
            "responder_resources": 4,
            "initiator_depth": 4,
            "retry_count": 5,
            "rnr_retry_count": 5,
            "remote_cm_response_timeout": 20,
            "local_cm_response_timeout": 20,
            "max_cm_retries": 15,
            "path_mtu_code": wire.PATH_MTU_CODES[self.mtu],
            "primary_local_ack_timeout": 14,
            "private_data": private,
        }
        return self.cm("REQ", **(own | fields))

    def reply(self, **fields: Any) -> int:
        own: dict[str, Any] = {
            "local_comm_id": 2,
            "remote_comm_id": 1,
            "local_qpn": self.hosts["a"][2],
            "starting_psn": 0,
            "responder_resources": 4,
            "initiator_depth": 4,
            "rnr_retry_count": 5,
        }
        return self.cm("REP", by="b", **(own | fields))

    def connect(self, **request: Any) -> None:
        """REQ, REP, RTU."""
        self.request(**request)
        self.reply()
        self.cm("RTU", local_comm_id=1, remote_comm_id=2)

    # ------------------------------------------------------------------ evidence and findings

    def evidence(self, *, pairs: Iterable[Pair] = (), snaplen: int | None = None, **rest: Any) -> Evidence:
        return evidence_of(self.frames, pairs=pairs, snaplen=snaplen, **rest)

    def findings(self, **rest: Any) -> list[Finding]:
        found = find(self.evidence(**rest))
        json.dumps([f.to_dict() for f in found])  # every finding can be printed
        return found


def evidence_of(
    frames: list[Frame], *, pairs: Iterable[Pair] = (), snaplen: int | None = None, **rest: Any
) -> Evidence:
    """The evidence of frames, through decoder, tracker and observer."""
    if snaplen is not None:
        frames = [Frame(f.data[:snaplen], f.time_ns, f.on_wire) for f in frames]
    decoder, tracker, observer = Decoder(), Tracker(pairs=pairs), Observer()
    with open_capture(io.BytesIO(pcap(frames, unit="ns"))) as reader:
        for batch in reader:
            packets = decoder.decode(batch)
            observer.feed(packets)
            tracker.feed(packets)
    tracker.finish()
    return Evidence(
        connections=tracker.connections,
        transfers=tracker.transfers,
        exchanges=tracker.cm.exchanges,
        counts=decoder.counts,
        build_stories=build_stories,
        malformed=tracker.malformed,
        bad_icrc=tracker.bad_icrc,
        icrc_ignored=tracker.icrc_ignored,
        observer=observer,
        cm=tracker.cm.records,
        pauses=decoder.pauses,
        witnesses=decoder.witnesses,
        **rest,
    )


def named(findings: Iterable[Finding]) -> list[str]:
    """The rules found, without info."""
    return [f.rule for f in findings if f.severity != "info"]


def of_rule(findings: Iterable[Finding], rule: str) -> list[Finding]:
    """The findings of one rule."""
    return [f for f in findings if f.rule == rule]


TIMEOUT = 67 * MS  # local ACK timeout code 14


def only(findings: list[Finding], rule: str) -> Finding:
    """The one finding above info, which must be of ``rule``."""
    assert named(findings) == [rule], [str(f) for f in findings]
    return next(f for f in findings if f.rule == rule)


def settled(talk: Talk, upto: int) -> Talk:
    """A message before, so that both halves of the connection are known."""
    talk.send(upto)
    talk.ack(upto)
    return talk


def agreed(a: Negotiated | None = None, b: Negotiated | None = None) -> list[Pair]:
    """The pair as journals of both ends have it."""
    return [Pair("RC", (A, B), (0x11, 0x12), (a or Negotiated(), b or Negotiated()))]
