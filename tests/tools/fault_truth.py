"""One fault in one seeded run of soft endpoints: what it did, by their own record, and what the findings say.

A program is drawn from the seed and run twice, without and with the fault. The endpoints' record tells which
repeats, refusals and failures the fault brought about; that much must be named, with its rule and PSN, and
nothing else. RNR NAKs, refusals and exhausted retries are held against the record of the faulty run itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from rocekit import wire
from rocekit.analysis import Analysis, analyze
from rocekit.capture import open_capture
from rocekit.decode import Decoder
from rocekit.files.pcapng_write import PcapngWriter
from rocekit.packets import Packets
from rocekit.soft.engine.prng import Prng
from rocekit.soft.engine.record import TransferTruth
from rocekit.soft.testbed import ProgramRun, run
from rocekit.soft.testbed.program import Program, Receive, random_program
from rocekit.soft.wires.faults import Fault, at_random
from rocekit.wire import OPCODES
from rocekit.wire.psn import MASK

ANSWERED = frozenset({"READ", "FETCH_ADD", "CMP_SWAP", "FLUSH", "ATOMIC_WRITE"})
LOSSES = frozenset({"loss", "tail-loss"})
GIVEN_UP = frozenset({"retry-exceeded", "peer-silent"})
#: Info that is held to the record as well.
TOLD = frozenset({"duplicate", "capture-gap"})


@dataclass(frozen=True)
class Expected:
    """What must be named.

    Attributes:
        rule: as it is counted; rules: those that may name it; psns: any of these.
    """

    rule: str
    rules: frozenset[str]
    psns: frozenset[int]


@dataclass
class Outcome:
    """What a run should have said and what it said.

    Attributes:
        expected: what must be named; named: (rule, PSN) of what was.
        allowed: rules with PSNs (None: any) that may be named besides, for the record explains them.
    """

    seed: int
    expected: list[Expected] = field(default_factory=list)
    named: list[tuple[str, frozenset[int]]] = field(default_factory=list)
    allowed: dict[str, frozenset[int] | None] = field(default_factory=dict)

    def found(self, wanted: Expected) -> bool:
        return any(rule in wanted.rules and psns & wanted.psns for rule, psns in self.named)

    @property
    def missed(self) -> list[Expected]:
        return [e for e in self.expected if not self.found(e)]

    @property
    def strange(self) -> list[tuple[str, frozenset[int]]]:
        """What was named and is not so."""
        return [
            (rule, psns)
            for rule, psns in self.named
            if not any(rule in e.rules and psns & e.psns for e in self.expected)
            and not self._may_be(rule, psns)
        ]

    def _may_be(self, rule: str, psns: frozenset[int]) -> bool:
        if rule not in self.allowed:
            return False
        of = self.allowed[rule]
        return of is None or psns <= of


@dataclass(frozen=True)
class Kind:
    """A kind of fault and where the capture is taken: of what was ``sent`` (before the fault) or
    ``delivered``.
    """

    name: str
    tap: str
    judge: Callable[[int, str], Outcome | None]

    def __str__(self) -> str:
        return f"{self.name}, {self.tap}"


# ---------------------------------------------------------------------- runs and their record


def go(seed: int, program: Program, faults: tuple[Fault, ...], tap: str) -> tuple[ProgramRun, Analysis]:
    with TemporaryDirectory() as folder:
        capture, journal = Path(folder) / "x.pcapng", Path(folder) / "x.journal.jsonl"
        result = run(program, faults, seed, capture=capture, journal=journal, tap=tap)
        return result, analyze(capture)


def causes(result: ProgramRun) -> Counter[str]:
    """Why requesters sent again."""
    return Counter(s.cause for t in result.transfers() for s in t.request.requests if s.cause)


def statuses(result: ProgramRun) -> Counter[str]:
    return Counter(wc.status for wcs in result.completions.values() for wc in wcs)


def rnr_psns(result: ProgramRun) -> frozenset[int]:
    """PSNs that were refused with RNR."""
    return frozenset(
        r.psn & MASK
        for flows in result.recorder.replies.values()
        for flow in flows
        for r in flow.replies
        if r.syndrome is not None and wire.syndrome_kind(r.syndrome) == wire.RNR_NAK
    )


def named(analysis: Analysis) -> list[tuple[str, frozenset[int]]]:
    """What was named above info (and the info in ``TOLD``), a pair a case."""
    out = []
    for finding in analysis.findings:
        if finding.severity == "info" and finding.rule not in TOLD:
            continue
        psns = finding.evidence.get("psns", ())
        flat = [p for p in psns if isinstance(p, int)]
        flat += [p for pair in psns if not isinstance(pair, int) for p in range(pair[0], pair[1] + 1)]
        out += [(finding.rule, frozenset({p})) for p in flat] or [(finding.rule, frozenset())]
    return out


def outcome(seed: int, result: ProgramRun, analysis: Analysis, quiet: Analysis) -> Outcome:
    """What was said of a faulty run, and what of it the record explains by itself."""
    allowed: dict[str, frozenset[int] | None] = {"rnr": rnr_psns(result)}
    ended = statuses(result)
    if ended["RETRY_EXC_ERR"] or ended["RNR_RETRY_EXC_ERR"]:
        # Whose peer's QP is in error asks in vain.
        allowed |= dict.fromkeys((*GIVEN_UP, "dead-qp"))
    before = Counter(named(quiet))
    after = named(analysis)
    more = []
    for case in after:
        if before[case]:
            before[case] -= 1
        else:
            more.append(case)
    return Outcome(seed, [], more, allowed)


# ---------------------------------------------------------------------- one packet hit


def target(seed: int, result: ProgramRun, of: str) -> TransferTruth | None:
    """A transfer of the first queue pair on a's side that has what is to be hit."""
    qp, _ = result.pairs[0]
    ip = result.hosts[0].device.addresses[0]
    own = [t for t in result.transfers() if tuple(t.request.requester) == (ip, qp.qpn)]
    if of == "response":
        own = [t for t in own if t.request.operation in ANSWERED]
    return own[Prng(seed, "target").below(len(own))] if own else None


def hit_psn(seed: int, of: str, transfer: TransferTruth) -> int:
    request = transfer.request
    if of == "ack":
        return request.last_psn
    if request.operation == "READ" and of == "request":
        return request.first_psn
    return request.first_psn + Prng(seed, "packet").below(request.packets)


def one_fault(of: str, kind: str, rules: frozenset[str] = frozenset(), *, every: bool = False) -> Kind_:
    """Hit one packet (``every``: all its transmissions): a repeat that it brought about must be named."""

    def judge(seed: int, tap: str) -> Outcome | None:
        program = random_program(seed)
        quiet, before = go(seed, program, (), tap)
        transfer = target(seed, quiet, of)
        if transfer is None:
            return None
        psn = hit_psn(seed, of, transfer)
        relative = (psn - program.connections[0].a_psn & MASK) + 1
        fault = Fault(kind, 1, relative, 0 if every else 1, of)
        loud, after = go(seed, program, (fault,), tap)
        told = outcome(seed, loud, after, before)
        hit = psn & MASK
        told.allowed |= dict.fromkeys(rules, frozenset({hit}))
        if kind in ("reorder", "delay"):
            told.allowed["duplicate"] = frozenset({hit})  # the original, behind its repeat
        asked_again = [psn & MASK for psn, why in went_back(loud, transfer).items() if "implied" in why]
        told.allowed["implied-nak"] = frozenset(asked_again) | (
            told.allowed.get("implied-nak") or frozenset()
        )
        if not loud.faults_done[kind] or hit in rnr_psns(loud):
            return told  # nothing was hit, or it was an RNR NAK, or what drew one
        if statuses(loud)["RETRY_EXC_ERR"]:
            rules_here = rules | GIVEN_UP  # the peer's QP had gone meanwhile, for reasons of its own
        else:
            rules_here = rules
        again, otherwise = went_back(loud, transfer), went_back(quiet, transfer)
        why = again[psn] - otherwise[psn]
        if every:
            failed = statuses(loud)["RETRY_EXC_ERR"] > statuses(quiet)["RETRY_EXC_ERR"]
            if failed:
                told.expected.append(Expected("retry-exceeded", GIVEN_UP, frozenset({hit})))
        elif kind == "bit-error" or (rules and why):
            told.expected.append(Expected(_primary(rules, why), rules_here, frozenset({hit})))
        return told

    return judge


Kind_ = Callable[[int, str], "Outcome | None"]


def went_back(result: ProgramRun, transfer: TransferTruth) -> dict[int, set[str]]:
    """Where the transfer's requester began to send again, to why; what RNR NAKs brought about left out."""
    request = transfer.request
    flow = result.recorder.requests[request.requester, request.responder][0]
    sent = sorted((s for t in flow.transfers for s in t.requests), key=lambda s: s.time_ns)
    found: dict[int, set[str]] = defaultdict(set)
    for before, packet in pairwise([None, *sent]):
        if packet is not None and packet.cause in ("nak", "timeout", "implied"):
            goes_on = before is not None and before.cause == packet.cause and before.psn < packet.psn
            if not goes_on:
                found[packet.psn].add(packet.cause)
    return found


def _primary(rules: frozenset[str], why: set[str]) -> str:
    if rules == LOSSES:
        return "loss" if "nak" in why else "tail-loss"
    return min(rules)


def doubled(of: str) -> Kind_:
    """The network doubles one packet: nothing above info, and ``duplicate`` where the capture shows both."""

    def judge(seed: int, tap: str) -> Outcome | None:
        program = random_program(seed)
        quiet, before = go(seed, program, (), tap)
        transfer = target(seed, quiet, of)
        if transfer is None:
            return None
        psn = hit_psn(seed, of, transfer)
        relative = (psn - program.connections[0].a_psn & MASK) + 1
        loud, after = go(seed, program, (Fault("duplicate", 1, relative, 1, of),), tap)
        told = outcome(seed, loud, after, before)
        request = transfer.request
        told.allowed["duplicate"] = frozenset(
            p & MASK for p in range(request.first_psn, request.last_psn + 1)
        )
        if loud.faults_done["duplicate"] and of != "ack" and tap == "delivered":
            told.expected.append(Expected("duplicate", frozenset({"duplicate"}), frozenset({psn & MASK})))
        return told

    return judge


def drops(seed: int, tap: str) -> Outcome | None:
    """Three packets in a hundred are lost, whatever they are: each time that a requester goes back because of
    a NAK is named at its PSN, and nothing is named but losses.
    """
    program = replace(random_program(seed), receives=_in_time(random_program(seed)))
    result, analysis = go(seed, program, at_random({"drop": 0.03}), tap)
    told = Outcome(seed, [], named(analysis), {"rnr": rnr_psns(result)})
    told.allowed |= dict.fromkeys((*LOSSES, "ack-loss", "implied-nak"))
    if statuses(result)["RETRY_EXC_ERR"]:
        told.allowed |= dict.fromkeys((*GIVEN_UP, "dead-qp", "mtu-mismatch"))
    done = set()
    for transfer in result.transfers():
        ends = transfer.request.requester, transfer.request.responder
        if ends not in done:
            done.add(ends)
            for psn, why in went_back(result, transfer).items():
                if "nak" in why:
                    rules = frozenset({*LOSSES, *GIVEN_UP, "rnr"})
                    told.expected.append(Expected("loss", rules, frozenset({psn & MASK})))
    return told


def refused(seed: int, tap: str) -> Outcome | None:
    """A work request with a wrong rkey or out of bounds."""
    program = random_program(seed)
    _, before = go(seed, program, (), tap)
    draw = Prng(seed, "wrong")
    reaching = [
        i
        for i, p in enumerate(program.posts)
        if p.length and (p.opcode.startswith("RDMA") or "ATOMIC" in p.opcode)
    ]
    if not reaching:
        return None
    chosen = reaching[draw.below(len(reaching))]
    posts = list(program.posts)
    posts[chosen] = replace(posts[chosen], wrong=draw.choice(("rkey", "bounds")))
    loud, after = go(seed, replace(program, posts=tuple(posts)), (), tap)
    told = outcome(seed, loud, after, before)
    return _refusals(told, loud, "remote-access-error", wire.NAK_REMOTE_ACCESS)


def too_long(seed: int, tap: str) -> Outcome | None:
    """A SEND longer than the receive that it takes."""
    program = random_program(seed)
    sends = [p for p in program.posts if p.opcode.startswith("SEND") and p.length > 1]
    if not sends:
        return None
    _, before = go(seed, program, (), tap)
    longest = max(sends, key=lambda p: p.length)
    receives = tuple(
        replace(r, length=longest.length - 1)
        if (r.connection, r.side) == (longest.connection, "b" if longest.side == "a" else "a")
        else r
        for r in program.receives
    )
    loud, after = go(seed, replace(program, receives=receives), (), tap)
    told = outcome(seed, loud, after, before)
    return _refusals(told, loud, "invalid-request", wire.NAK_INVALID_REQUEST)


def _refusals(told: Outcome, loud: ProgramRun, rule: str, code: int) -> Outcome:
    """Expect the rule for each PSN that the record says was refused so."""
    for flows in loud.recorder.replies.values():
        for flow in flows:
            for reply in flow.replies:
                syndrome = reply.syndrome
                if (
                    syndrome is not None
                    and wire.syndrome_kind(syndrome) == wire.NAK
                    and wire.syndrome_value(syndrome) == code
                ):
                    told.expected.append(Expected(rule, frozenset({rule}), frozenset({reply.psn & MASK})))
    return told


def without_receives(seed: int, tap: str) -> Outcome | None:
    """Receives come late: every PSN refused with RNR is named, and no other."""
    program = random_program(seed)
    late = tuple(replace(r, at_ns=r.at_ns + 30_000) for r in program.receives)
    result, analysis = go(seed, replace(program, receives=late), (), tap)
    told = Outcome(seed, [], named(analysis))
    ended = statuses(result)
    if ended["RETRY_EXC_ERR"] or ended["RNR_RETRY_EXC_ERR"]:
        told.allowed = dict.fromkeys((*GIVEN_UP, "dead-qp"))
    told.expected = [Expected("rnr", frozenset({"rnr"}), frozenset({p})) for p in sorted(rnr_psns(result))]
    return told


def nothing(seed: int, tap: str) -> Outcome | None:
    """No fault at all."""
    result, analysis = go(seed, random_program(seed), (), tap)
    told = outcome(seed, result, analysis, analysis)
    told.named = named(analysis)
    return told


def missed_by_capture(seed: int, tap: str) -> Outcome | None:
    """The capture lacks a packet that was on the wire: never a loss."""
    program = replace(random_program(seed), receives=_in_time(random_program(seed)))
    with TemporaryDirectory() as folder:
        capture, journal = Path(folder) / "x.pcapng", Path(folder) / "x.journal.jsonl"
        result = run(program, (), seed, capture=capture, journal=journal, tap=tap)
        before = analyze(capture)
        psn, dst = _thin_out(seed, capture)
        after = analyze(capture)
    told = outcome(seed, result, after, before)
    told.allowed["capture-gap"] = None
    if psn is not None and _covered(result, dst, psn):
        told.expected.append(Expected("capture-gap", frozenset({"capture-gap"}), frozenset({psn})))
    return told


def _in_time(program: Program) -> tuple[Receive, ...]:
    return tuple(replace(r, at_ns=0) for r in program.receives)


def _thin_out(seed: int, capture: Path) -> tuple[int | None, str]:
    """Take one SEND or WRITE packet out of a capture: its PSN and receiver."""
    with open_capture(capture) as reader:
        decoder = Decoder()
        batches = [(list(b.frames()), b.time_ns.tolist(), decoder.decode(b)) for b in reader if len(b)]
    packets = Packets.concat([p for _, _, p in batches])
    frames = [f for fs, _, _ in batches for f in fs]
    times = [t for _, ts, _ in batches for t in ts]
    operations = [OPCODES[int(o)] for o in packets.opcode]
    rows = [i for i, o in enumerate(operations) if o.operation in ("SEND", "WRITE") and o.transport == "RC"]
    if not rows:
        return None, ""
    chosen = rows[Prng(seed, "missed").below(len(rows))]
    with PcapngWriter(capture) as writer:
        for i, (frame, time_ns) in enumerate(zip(frames, times, strict=True)):
            if i != chosen:
                writer.write(frame, time_ns)
    return int(packets.psn[chosen]), packets.addresses[packets.dst[chosen]]


def _covered(result: ProgramRun, dst: str, psn: int) -> bool:
    """Whether the packet was neither the first nor the last of its flow, so that others show the gap."""
    for ends, flows in result.recorder.requests.items():
        for flow in flows if ends[1].ip == dst else ():
            psns = [s.psn for t in flow.transfers for s in t.requests]
            if psns and any(p & MASK == psn for p in psns):
                return min(psns) & MASK != psn != max(psns) & MASK
    return False


KINDS = (
    Kind("no fault", "sent", nothing),
    Kind("request dropped", "sent", one_fault("request", "drop", LOSSES)),
    Kind("request dropped", "delivered", one_fault("request", "drop", LOSSES)),
    Kind("acknowledgement dropped", "sent", one_fault("ack", "drop", frozenset({"ack-loss"}))),
    Kind("response dropped", "sent", one_fault("response", "drop", frozenset({"implied-nak"}))),
    Kind("request corrupted", "delivered", one_fault("request", "bit-error", frozenset({"icrc-bad"}))),
    Kind("response corrupted", "delivered", one_fault("response", "bit-error", frozenset({"icrc-bad"}))),
    Kind("request doubled", "delivered", doubled("request")),
    Kind("request doubled", "sent", doubled("request")),
    Kind("response doubled", "delivered", doubled("response")),
    Kind("acknowledgement doubled", "delivered", doubled("ack")),
    Kind("request held up 20 µs", "delivered", one_fault("request", "reorder", frozenset({"reordering"}))),
    Kind("request marked", "delivered", one_fault("request", "ecn")),
    Kind("request never arrives", "sent", one_fault("request", "drop", GIVEN_UP, every=True)),
    Kind("three in a hundred dropped", "sent", drops),
    Kind("three in a hundred dropped", "delivered", drops),
    Kind("receives late", "sent", without_receives),
    Kind("wrong rkey or bounds", "sent", refused),
    Kind("receive too short", "sent", too_long),
    Kind("packet missed by the capture", "sent", missed_by_capture),
)


def outcomes(kind: Kind, seeds: Iterable[int]) -> Iterator[Outcome]:
    """The runs of a kind that had something to hit."""
    for seed in seeds:
        told = kind.judge(seed, kind.tap)
        if told is not None:
            yield told
