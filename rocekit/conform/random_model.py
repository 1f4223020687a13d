"""The drill that a sequence of moves is: the soft device, as the model, says what must come."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from rocekit.conform.bench import Playing
from rocekit.conform.device import setup_document
from rocekit.conform.drill import DeviceSetup, Drill, DrillStep, SendPackets
from rocekit.conform.language import read_step
from rocekit.conform.orders import AwaitPacket, Call, Transmit
from rocekit.conform.random_moves import Move, PostMove, ReceiveMove, RequestMove
from rocekit.conform.seen import SeenPacket, read_packet
from rocekit.conform.soft_bench import SoftBench
from rocekit.conform.values import SYNDROMES
from rocekit.conform.verdict import PASS, Verdict
from rocekit.files.yaml import Value
from rocekit.soft.engine.segment import position
from rocekit.wire import ACK, NAK, RNR_NAK, psns_of, syndrome_kind, syndrome_value
from rocekit.wire import psn as serial

MTU: Final = 256
_SETTLE_NS: Final = 15_000_000
#: How long nothing more may come at the end. Within a drill, what comes without being wanted is seen in place
#: of the next packet.
_QUIET: Final = "30 ms"
#: How long a device may take for what the model does at once.
_PATIENCE: Final = "800 ms"
_RECEIVES: Final = 32_768
_RESULTS: Final = 49_152
_SEEN_BYTES: Final = 1024
_SYNDROME_TEXTS: Final = {value: name for name, value in SYNDROMES.items()}
_BODY: Final = ("FIRST", "MIDDLE")
#: No timeout of the device comes within a drill: 2^21 times 4.096 µs.
_SETUP: Final = DeviceSetup(path_mtu=MTU, timeout=21)
_HEAD: Final = (
    "claim: A sequence of random moves ends as with the soft device.\n"
    "clause: IBA 9.7\n"
    f"device: {{path_mtu: {MTU}, timeout: 21}}\n"
    "steps:\n"
)
_CLAIM: Final = _HEAD.partition("\n")[0].removeprefix("claim: ")


@dataclass(slots=True)
class DrillExchange:
    """A request, of the packet side or of the device's program, with all that answers it.

    Attributes:
        line: of the drill where it begins.
        words: what it is, without its numbers.
        silent: whether nothing answers it.
        wr_id: of the request that the program posts in it, or 0.
    """

    line: int
    words: str
    silent: bool = True
    wr_id: int = 0


@dataclass(frozen=True, slots=True)
class RandomDrill:
    """A drill made of moves.

    Attributes:
        broken: what of the model itself breaks the specification.
        exchanges: one request each, with all that answers it.
    """

    drill: Drill
    broken: tuple[str, ...]
    exchanges: tuple[DrillExchange, ...]

    def played(self, verdict: Verdict) -> int:
        """How many exchanges were played until a verdict."""
        if verdict.outcome == PASS:
            return len(self.exchanges)
        return sum(exchange.line <= verdict.line for exchange in self.exchanges)

    def at(self, verdict: Verdict) -> tuple[str, bool]:
        """The exchange in which a device differs, in words, and whether it was to be silent.

        What a device sends though nothing was to come is seen in place of the next packet.
        """
        begun = [exchange for exchange in self.exchanges if exchange.line <= verdict.line]
        at_end = verdict.line >= self._end
        # Right opcode and PSN: it belongs to this exchange, unless it is the NAK of a packet ahead.
        own = re.search(": its (syndrome|msn) is", verdict.came) and "sequence_error" not in verdict.came
        if verdict.came.startswith("RC_") and not own:
            # The exchange that the packet may belong to: the last one, or a silent one right before it.
            suspects = begun if at_end else begun[:-1]
            if suspects and suspects[-1].silent:
                return suspects[-1].words, True
        if at_end:
            # A completion belongs to the exchange that it completes.
            named = re.search(r"\bwr_id: (\d+)", verdict.step)
            of = [one.words for one in begun if named and one.wr_id == int(named[1])]
            return f"end: {of[0]}" if of else "end", False
        return begun[-1].words if begun else "start", False

    @property
    def _end(self) -> int:
        """The line behind the last exchange: what the program sees."""
        return next(step.line for step in self.drill.steps if step.text == f"nothing: {_QUIET}")


class ModelRun:
    """Plays moves with a soft device, and writes the drill that they are.

    Attributes:
        steps, texts: of the drill.
        exchanges, broken: as of :class:`RandomDrill`.
    """

    def __init__(self) -> None:
        self.steps: list[DrillStep] = []
        self.texts: list[str] = []
        self.exchanges: list[DrillExchange] = []
        self.broken: list[str] = []
        self._line = _HEAD.count("\n") + 1
        self._bench = SoftBench()
        self._playing = Playing(Drill("model", "", "", ()))
        opened = self._call("open", setup=setup_document(_SETUP), peer_ip=self._bench.peer_ip)
        self._names = {**opened, "rq": _SETUP.rq_psn, "sq": _SETUP.sq_psn, "msn": 0, "i": 0}
        self._names |= {"peer_qpn": _SETUP.peer_qpn, "qkey": _SETUP.qkey}
        self._expected = self._sent_high = self._device_psn = 0
        self._msn = 0
        self._wr_id = 0
        self._messages = 0
        #: The message that is in progress, SEND or RDMA_WRITE, and what is left of a WRITE.
        self._within, self._left = "", 0
        self._sent: dict[int, dict[str, Any]] = {}
        #: What the responder refused and still waits for.
        self._refused = ""

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
            receive = {"wr_id": self._wr_id, "length": move.size, "at": _RECEIVES}
            self._call("recv", **receive)
            self._write({"recv": receive})
        elif isinstance(move, RequestMove):
            self._request(move)
        else:
            self._post(move)

    # -- what the drill says

    def _write(self, line: dict[str, Any], within: str = "") -> DrillStep:
        """Add a step."""
        if within:
            line["within"] = within
        (kind, content), *beside = line.items()
        text = f"  - {kind}: {_flow(content)}\n" + "".join(f"    {key}: {value}\n" for key, value in beside)
        step = read_step(_value(line, self._line), _SETUP)
        self._line += text.count("\n")
        self.texts.append(text)
        self.steps.append(step)
        return step

    def _sends(self, packet: dict[str, Any]) -> list[SeenPacket]:
        """Send a packet to the model; a line for it and for each packet that came."""
        step = self._write({"send": packet})
        assert isinstance(step, SendPackets)
        data = step.packets[0].build(self._names, self._bench.peer_ip, self._bench.device.ip)
        self._bench.do(Transmit((data,)), self._playing)
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
            self.exchanges[-1].silent = False
            self._write({"expect": self._as_expected(seen)}, _PATIENCE)
        return found

    def _as_expected(self, seen: SeenPacket) -> dict[str, Any]:
        start = self._names["rq" if seen.response else "sq"]
        psn = serial.diff(seen.fields["psn"], start & serial.MASK)
        parts: dict[str, Any] = {"op": seen.name, "psn": psn if psn >= 0 else f"0 - {-psn}"}
        if "syndrome" in seen.fields:
            kind, value = syndrome_kind(seen.fields["syndrome"]), syndrome_value(seen.fields["syndrome"])
            refusal = _SYNDROME_TEXTS.get(seen.fields["syndrome"], "NAK")
            parts["syndrome"] = {ACK: "ACK", RNR_NAK: f"RNR {value}", NAK: refusal}[kind]
            parts["msn"] = seen.fields["msn"]
        if "original" in seen.fields:
            parts["original"] = seen.fields["original"]
        if seen.payload:
            parts["payload"] = f"hex:{seen.payload.hex()}"
        return parts

    # -- the packet side's requests

    def _request(self, move: RequestMove) -> None:
        # What comes from before the start has a drill of its own: responder/duplicates/before_first.
        psn = max(0, self._expected + move.ahead)
        packet = self._again(psn) if psn < self._expected and not move.astray else None
        if packet is None:
            packet = self._packet(move, psn)
        if move.bad_icrc:
            packet = packet | {"icrc": "bad"}
        name = packet["op"].removeprefix("RC_")
        self.exchanges.append(DrillExchange(self._line, self._words(move, name, psn)))
        came = self._sends(packet)
        if not move.bad_icrc:
            self._sent[psn] = packet
            self._sent_high = max(self._sent_high, psn + _takes(packet))
            self._messages += not name.endswith(_BODY)
        refusals = [seen for seen in came if _refuses(seen)]
        if psn == self._expected and len(came) > len(refusals) and not move.bad_icrc:
            self._accepted(packet, name)
        if refusals and not move.bad_icrc:
            self._refused = "RNR" if syndrome_kind(refusals[-1].fields["syndrome"]) == RNR_NAK else "sequence"
        for seen in came:
            self._judge(seen)

    def _again(self, psn: int) -> dict[str, Any] | None:
        """What was sent with a PSN, or with those of a READ of which it is one."""
        first = max((sent for sent in self._sent if sent <= psn), default=None)
        return None if first is None else self._sent[first]

    def _accepted(self, packet: dict[str, Any], name: str) -> None:
        """A packet in order was accepted."""
        self._expected += _takes(packet)
        self._refused = ""
        operation = "SEND" if name.startswith("SEND") else "RDMA_WRITE"
        if name.endswith("FIRST"):
            self._within, self._left = operation, packet.get("dma_length", 0) - MTU
        elif name.endswith("MIDDLE"):
            self._left -= MTU
        else:
            self._within = ""

    def _fitting(self, move: RequestMove) -> str:
        """The opcode that a right requester sends now in place of a move's."""
        name, within = move.name, self._within
        immediate = "_WITH_IMMEDIATE" if name.endswith("_WITH_IMMEDIATE") else ""
        if within == "RDMA_WRITE":
            return "RDMA_WRITE_MIDDLE" if self._left > MTU else f"RDMA_WRITE_LAST{immediate}"
        if within == "SEND":
            return "SEND_MIDDLE" if name.endswith(_BODY) else f"SEND_LAST{immediate}"
        return name.replace("MIDDLE", "FIRST").replace("LAST", "ONLY")

    def _packet(self, move: RequestMove, psn: int) -> dict[str, Any]:
        """A new request."""
        name = move.name if move.astray else self._fitting(move)
        short = min(move.size, MTU)
        packet: dict[str, Any] = {"op": f"RC_{name}", "psn": psn}
        atomic = "SWAP" in name or "ADD" in name
        if name == "RDMA_READ_REQUEST":
            packet["dma_length"] = move.size
        elif name.endswith(_BODY):
            packet["payload"] = MTU
        elif name.startswith("RDMA_WRITE_LAST") and self._within == "RDMA_WRITE" and not move.astray:
            packet["payload"] = self._left
        elif not atomic:
            packet["payload"] = short
        if name == "RDMA_WRITE_FIRST":
            packet["dma_length"] = MTU + move.size
        if atomic or (name.startswith("RDMA") and "MIDDLE" not in name and "LAST" not in name):
            packet["remote_va"] = f"$addr + {move.place & ~7 if atomic else move.place}"
            if move.bad_key:
                packet["rkey"] = "$rkey + 0x300000"
        if name.endswith(_BODY):
            packet["ackreq"] = 1
        return packet

    def _words(self, move: RequestMove, name: str, psn: int) -> str:
        """What an exchange is, without its numbers."""
        for position_ in ("_FIRST", "_MIDDLE", "_LAST", "_ONLY"):
            name = name.replace(position_, "")
        said = [name]
        if psn != self._expected:
            said.append("again" if psn < self._expected else "ahead")
        said += ["bad key"] * (move.bad_key and psn >= self._expected)
        said += ["bad ICRC"] * move.bad_icrc + ["astray"] * move.astray
        said += [f"within {self._within}"] * bool(self._within and move.astray)
        said += [f"behind {self._refused}"] * bool(self._refused)
        return " ".join(said)

    def _judge(self, seen: SeenPacket) -> None:
        """What the specification demands of every response, whatever the model says."""
        self.broken += [f"{seen.name}: {fault}" for fault in seen.faults]
        psn = serial.diff(seen.fields["psn"], self._names["rq"] & serial.MASK)
        if not _refuses(seen) and psn >= self._sent_high:
            self.broken.append(f"{seen.name} acknowledges psn {psn}, which was not sent")
        msn = seen.fields.get("msn")
        if msn is not None and msn < self._msn:
            self.broken.append(f"the MSN went from {self._msn} back to {msn}")
        if msn is not None:
            self._msn = max(self._msn, msn)
            if msn > self._messages:
                self.broken.append(f"the MSN is {msn} after {self._messages} messages")

    # -- the program's requests

    def _post(self, move: PostMove) -> None:
        self._wr_id += 1
        atomic, read = move.op.startswith("ATOMIC"), move.op == "RDMA_READ"
        answer = move.answer
        if (read or atomic) and not answer.startswith("NAK"):
            answer = "ack"
        size = 8 if atomic else move.size
        order: dict[str, Any] = {"op": move.op, "wr_id": self._wr_id, "length": size}
        order |= {"at": _RESULTS} if read or atomic else {}
        order |= {"compare": 1, "swap_add": 2} if atomic else {}
        self.exchanges.append(DrillExchange(self._line, f"post {move.op} {answer}", wr_id=self._wr_id))
        self._call("post", **order)
        self._write({"post": order})
        came = self._comes()
        if not came:
            return
        first, count = self._device_psn, 1 if atomic else psns_of(size, MTU)
        last = first + count - 1
        self._device_psn = last + 1
        acknowledge: dict[str, Any] = {"op": "RC_ACKNOWLEDGE", "psn": last}
        if answer == "held":
            return
        if answer in ("sequence", "rnr", "rnr_last"):
            word = "NAK psn_sequence_error" if answer == "sequence" else "RNR 1"
            self._sends(acknowledge | {"psn": first if answer == "rnr" else last, "syndrome": word})
        if answer.startswith("NAK"):
            self._sends(acknowledge | {"syndrome": answer})
        elif atomic:
            self._sends({"op": "RC_ATOMIC_ACKNOWLEDGE", "psn": last, "original": 77})
        elif read:
            for i in range(count):
                op = f"RC_RDMA_READ_RESPONSE_{position(i, count)}"
                self._sends({"op": op, "psn": first + i, "payload": min(MTU, size - i * MTU)})
        else:
            for _ in range(2 if answer == "twice" else 1):
                self._sends(acknowledge)

    def end(self) -> None:
        """Write what the program sees at the end: completions, state and memory."""
        self._write({"nothing": _QUIET})
        for completion in self._call("poll"):
            known = {k: v for k, v in completion.items() if v is not None and k in ("wr_id", "status")}
            if completion["status"] == "SUCCESS" and str(completion["opcode"]).startswith("RECV"):
                known["byte_len"] = completion["byte_len"]
            self._write({"completion": known}, _PATIENCE)
        self._write({"state": self._call("state")})
        for offset in (0, _RECEIVES, _RESULTS):
            content = self._call("read", region="main", offset=offset, length=_SEEN_BYTES)
            self._write({"memory": {"at": offset, "is": f"hex:{content}"}})


def drill_of(moves: Sequence[Move], name: str = "random") -> RandomDrill:
    """The drill that moves make, up to the one that ends the QP."""
    run = ModelRun()
    for move in moves:
        run.play(move)
        if run.over:
            break
    run.end()
    text = _HEAD + "".join(run.texts)
    drill = Drill(
        name, _CLAIM, "IBA 9.7", tuple(run.steps), _SETUP, needs=frozenset({_SETUP.transport}), text=text
    )
    return RandomDrill(drill, tuple(run.broken), tuple(run.exchanges))


def _refuses(seen: SeenPacket) -> bool:
    return "syndrome" in seen.fields and syndrome_kind(seen.fields["syndrome"]) != ACK


def _takes(packet: dict[str, Any]) -> int:
    """How many PSNs a request takes."""
    return psns_of(packet["dma_length"], MTU) if packet["op"] == "RC_RDMA_READ_REQUEST" else 1


def _flow(content: Any) -> str:
    """A value as it stands in the file."""
    if isinstance(content, dict):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in content.items()) + "}"
    return f"'{content}'" if isinstance(content, str) and ":" in content else str(content)


def _value(content: Any, line: int) -> Value:
    """A value as the reader of drills takes it. Writing it and reading that took ten times as long."""
    if isinstance(content, dict):
        return Value({key: _value(item, line) for key, item in content.items()}, "random", line)
    return Value(content, "random", line)
