"""Moves of random drills, and a drill made of them: the soft device, as the model, says what must come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from rocekit.conform.bench import Playing
from rocekit.conform.device import setup_document
from rocekit.conform.drill import DeviceSetup, Drill
from rocekit.conform.language import parse_drill
from rocekit.conform.orders import AwaitPacket, Call, Transmit
from rocekit.conform.outgoing import read_outgoing
from rocekit.conform.seen import SeenPacket, read_packet
from rocekit.conform.soft_bench import SoftBench
from rocekit.conform.values import SYNDROMES
from rocekit.files.yaml import parse_yaml
from rocekit.soft.engine.segment import position
from rocekit.wire import ACK, NAK, RNR_NAK, psns_of, syndrome_kind, syndrome_value
from rocekit.wire import psn as serial

MTU: Final = 256
_SETTLE_NS: Final = 15_000_000
_QUIET: Final = "15 ms"
#: How long a device may take for what the model does at once.
_PATIENCE: Final = "400 ms"
_SYNDROME_TEXTS: Final = {value: name for name, value in SYNDROMES.items()}
#: Kinds of requests: opcode, whether it takes a payload, whether it ends a message.
REQUESTS: Final = (
    *("SEND_ONLY", "SEND_FIRST", "SEND_MIDDLE", "SEND_LAST", "SEND_ONLY_WITH_IMMEDIATE"),
    *("RDMA_WRITE_ONLY", "RDMA_WRITE_FIRST", "RDMA_WRITE_MIDDLE", "RDMA_WRITE_LAST"),
    *("RDMA_WRITE_ONLY_WITH_IMMEDIATE", "RDMA_READ_REQUEST", "FETCH_ADD", "COMPARE_SWAP"),
)
_BODY: Final = ("FIRST", "MIDDLE")


@dataclass(frozen=True, slots=True)
class RequestMove:
    """The packet side sends a request.

    Attributes:
        name: one of :data:`REQUESTS`.
        ahead: its PSN, relative to the one that the responder expects.
        size: of the payload of the last packet of a message, or what a READ asks for.
        place: offset in memory; ``bad_key``: with a key that nothing has.
    """

    name: str
    ahead: int = 0
    size: int = 64
    place: int = 0
    bad_key: bool = False
    bad_icrc: bool = False


@dataclass(frozen=True, slots=True)
class ReceiveMove:
    """The program posts a receive."""

    size: int = 1024


@dataclass(frozen=True, slots=True)
class PostMove:
    """The program posts a SEND, WRITE or READ, and the packet side answers its last packet.

    Attributes:
        answer: ``ack``, ``sequence`` (a NAK of its last packet, and then the ACK), ``rnr`` and ``rnr_last``
            (an RNR NAK of its first or last packet, and then the ACK), or a fatal NAK.
    """

    op: str
    size: int = 64
    answer: str = "ack"


Move = RequestMove | ReceiveMove | PostMove


class ModelRun:
    """Plays moves with a soft device, and writes the drill that they are."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.broken: list[str] = []
        self._bench = SoftBench()
        self._playing = Playing(parse_drill("claim: A.\nclause: B\nsteps:\n  - nothing: 1 ms\n"))
        self._setup = DeviceSetup(path_mtu=MTU)
        opened = self._call("open", setup=setup_document(self._setup), peer_ip=self._bench.peer_ip)
        self._names = {**opened, "rq": self._setup.rq_psn, "sq": self._setup.sq_psn, "msn": 0, "i": 0}
        self._names |= {"peer_qpn": self._setup.peer_qpn, "qkey": self._setup.qkey}
        self._expected = self._sent_high = self._device_psn = 0
        self._msn = 0
        self._wr_id = 0
        self._messages = 0

    def _call(self, name: str, **arguments: Any) -> Any:
        return self._bench.do(Call(name, arguments), self._playing).result

    @property
    def over(self) -> bool:
        """Whether the QP has left RTS."""
        return bool(self._call("state") != "RTS")

    def play(self, move: Move) -> None:
        """Do a move, and write what came of it."""
        if isinstance(move, ReceiveMove):
            self._wr_id += 1
            self._call("recv", wr_id=self._wr_id, length=move.size, at=32_768)
            self.lines.append(f"recv: {{wr_id: {self._wr_id}, length: {move.size}, at: 32768}}")
        elif isinstance(move, RequestMove):
            self._request(move)
        else:
            self._post(move)

    def _request(self, move: RequestMove) -> None:
        # What comes from before the start has a drill of its own: responder/duplicates/before_first.
        psn = max(0, self._expected + move.ahead)
        parts = [f"op: RC_{move.name}", f"psn: {psn}" if psn >= 0 else f"psn: 0 - {-psn}"]
        takes = 1
        if move.name == "RDMA_READ_REQUEST":
            parts.append(f"dma_length: {move.size}")
            takes = psns_of(move.size, MTU)
        elif move.name.endswith(_BODY):
            parts.append(f"payload: {MTU}")
        elif "SWAP" not in move.name and "ADD" not in move.name:
            parts.append(f"payload: {max(1, move.size % (MTU + 1))}")
        if move.name == "RDMA_WRITE_FIRST":
            parts.append(f"dma_length: {MTU + max(1, move.size % (MTU + 1))}")
        if move.name.startswith("RDMA") and not move.name.endswith(("MIDDLE", "LAST")):
            parts.append(f"remote_va: $addr + {move.place}")
        elif "SWAP" in move.name or "ADD" in move.name:
            parts.append(f"remote_va: $addr + {move.place & ~7}")
        if move.bad_key and any(part.startswith("remote_va") for part in parts):
            parts.append("rkey: $rkey + 0x300000")
        parts += ["ackreq: 1"] if move.name.endswith(_BODY) else []
        parts += ["icrc: bad"] if move.bad_icrc else []
        came = self._sends("{" + ", ".join(parts) + "}")
        ends = not move.name.endswith(_BODY)
        if not move.bad_icrc:
            self._sent_high = max(self._sent_high, psn + takes)
            self._messages += ends
        good = [seen for seen in came if not self._refuses(seen)]
        if psn == self._expected and good and not move.bad_icrc:
            self._expected += takes
        for seen in came:
            self._judge(seen)

    def _refuses(self, seen: SeenPacket) -> bool:
        return "syndrome" in seen.fields and syndrome_kind(seen.fields["syndrome"]) != ACK

    def _sends(self, packet: str) -> list[SeenPacket]:
        """Send a packet to the model; the line, and a line for each packet that came."""
        value = parse_yaml(packet, "move")
        assert value is not None
        data = read_outgoing(value).build(self._names, self._bench.peer_ip, self._bench.device.ip)
        self._bench.do(Transmit((data,)), self._playing)
        self.lines.append(f"send: {packet}")
        return self._comes()

    def _comes(self) -> list[SeenPacket]:
        found = []
        until = self._bench.now + _SETTLE_NS
        while (got := self._bench.do(AwaitPacket(until), self._playing).result) is not None:
            seen = read_packet(got[1], got[0])
            if seen is None:
                self.broken.append("a packet that is none")
                continue
            found.append(seen)
            self.lines.append(f"expect: {self._as_expected(seen)}\n    within: {_PATIENCE}")
        self.lines.append(f"nothing: {_QUIET}")
        return found

    def _as_expected(self, seen: SeenPacket) -> str:
        start = self._names["rq" if seen.response else "sq"]
        psn = serial.diff(seen.fields["psn"], start & serial.MASK)
        parts = [f"op: {seen.name}", f"psn: {psn}" if psn >= 0 else f"psn: 0 - {-psn}"]
        if "syndrome" in seen.fields:
            kind, value = syndrome_kind(seen.fields["syndrome"]), syndrome_value(seen.fields["syndrome"])
            refusal = _SYNDROME_TEXTS.get(seen.fields["syndrome"], "NAK")
            text = {ACK: "ACK", RNR_NAK: f"RNR {value}", NAK: refusal}
            parts += [f"syndrome: {text[kind]}", f"msn: {seen.fields['msn']}"]
        if "original" in seen.fields:
            parts.append(f"original: {seen.fields['original']:#x}")
        if seen.payload:
            parts.append(f"payload: 'hex:{seen.payload.hex()}'")
        return "{" + ", ".join(parts) + "}"

    def _judge(self, seen: SeenPacket) -> None:
        """What the specification demands of every response, whatever the model says."""
        self.broken += [f"{seen.name}: {fault}" for fault in seen.faults]
        psn = serial.diff(seen.fields["psn"], self._names["rq"] & serial.MASK)
        if not self._refuses(seen) and psn >= self._sent_high:
            self.broken.append(f"{seen.name} acknowledges psn {psn}, which was not sent")
        msn = seen.fields.get("msn")
        if msn is not None and msn < self._msn and seen.name == "RC_ACKNOWLEDGE":
            self.broken.append(f"the MSN went from {self._msn} back to {msn}")
        if msn is not None:
            self._msn = max(self._msn, msn)
            if msn > self._messages:
                self.broken.append(f"the MSN is {msn} after {self._messages} messages")

    def _post(self, move: PostMove) -> None:
        self._wr_id += 1
        where = {"at": 49_152} if move.op == "RDMA_READ" else {}
        self._call("post", op=move.op, wr_id=self._wr_id, length=move.size, **where)
        at = ", at: 49152" if where else ""
        self.lines.append(f"post: {{op: {move.op}, wr_id: {self._wr_id}, length: {move.size}{at}}}")
        came = self._comes()
        if not came:
            return
        first, count = self._device_psn, psns_of(move.size, MTU)
        last = first + count - 1
        if move.op != "RDMA_READ" and move.answer in ("sequence", "rnr", "rnr_last"):
            word = "NAK psn_sequence_error" if move.answer == "sequence" else "RNR 1"
            refused = first if move.answer == "rnr" else last
            self._sends(f"{{op: RC_ACKNOWLEDGE, psn: {refused}, syndrome: {word}}}")
        if move.answer.startswith("NAK"):
            self._sends(f"{{op: RC_ACKNOWLEDGE, psn: {last}, syndrome: {move.answer}}}")
        elif move.op == "RDMA_READ":
            for i in range(count):
                size = min(MTU, move.size - i * MTU)
                op = f"RC_RDMA_READ_RESPONSE_{position(i, count)}"
                self._sends(f"{{op: {op}, psn: {first + i}, payload: {size}}}")
        else:
            self._sends(f"{{op: RC_ACKNOWLEDGE, psn: {last}}}")
        self._device_psn = last + 1

    def end(self) -> None:
        """Write what the program sees at the end: completions, state and memory."""
        for completion in self._call("poll"):
            known = {k: v for k, v in completion.items() if v is not None and k in ("wr_id", "status")}
            if completion["status"] == "SUCCESS" and str(completion["opcode"]).startswith("RECV"):
                known["byte_len"] = completion["byte_len"]
            self.lines.append("completion: {" + ", ".join(f"{k}: {v}" for k, v in known.items()) + "}")
            self.lines[-1] += f"\n    within: {_PATIENCE}"
        self.lines.append(f"state: {self._call('state')}")
        for offset in (0, 32_768, 49_152):
            content = self._call("read", region="main", offset=offset, length=512)
            self.lines.append(f"memory: {{at: {offset}, is: 'hex:{content}'}}")


def drill_of(moves: Sequence[Move], name: str = "random") -> tuple[Drill, list[str]]:
    """The drill that moves make, and what of the model itself breaks the specification."""
    run = ModelRun()
    for move in moves:
        run.play(move)
        if run.over:
            break
    run.end()
    text = (
        "claim: A sequence of random moves ends as with the soft device.\n"
        "clause: IBA 9.7\n"
        f"device: {{path_mtu: {MTU}}}\n"
        "steps:\n" + "".join(f"  - {line}\n" for line in run.lines)
    )
    return parse_drill(text, name), run.broken
