"""One fault in one seeded run of soft endpoints: its effects by their own record, compared with the findings.

A program is drawn from the seed and run twice, without and with the fault. The endpoints' record has the
repeats, NAKs and failures that the fault caused. These must be found, with rule and PSN, and nothing else.
RNR NAKs, fatal NAKs and exhausted retries are compared with the record of the faulty run itself.
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
from rocekit.wire import OPCODES, OWN_RESPONSE
from rocekit.wire.psn import MASK

LOSSES = frozenset({"loss", "tail-loss"})
GIVEN_UP = frozenset({"retry-exceeded", "peer-silent"})
#: Info findings that are compared with the record too.
CHECKED_INFO = frozenset({"duplicate", "capture-gap"})
#: Figures of other findings' losses, and no fault of their own.
FIGURES = frozenset({"retries-nearly-exhausted", "go-back-n-cost"})


@dataclass(frozen=True)
class Expected:
    """What must be found.

    Attributes:
        rule: under which it is counted.
        rules: any of these may find it.
        psns: the finding must have any of these.
    """

    rule: str
    rules: frozenset[str]
    psns: frozenset[int]


@dataclass
class Outcome:
    """What the findings of a run should be, and what they are.

    Attributes:
        expected: what must be found.
        named: (rule, PSN) of what was found.
        allowed: rules with PSNs (None: any) that may be found too, because the record explains them.
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
        """What was found and is wrong."""
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
    """A kind of fault, and the capture point: packets as ``sent`` (before the fault) or as ``delivered``."""

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
    """PSNs that got an RNR NAK."""
    return frozenset(
        r.psn & MASK
        for flows in result.recorder.replies.values()
        for flow in flows
        for r in flow.replies
        if r.syndrome is not None and wire.syndrome_kind(r.syndrome) == wire.RNR_NAK
    )


def named(analysis: Analysis) -> list[tuple[str, frozenset[int]]]:
    """(rule, PSN) of each case found above info, and of the info in ``CHECKED_INFO``."""
    out = []
    for finding in analysis.findings:
        if finding.rule in FIGURES or (finding.severity == "info" and finding.rule not in CHECKED_INFO):
            continue
        psns = finding.evidence.get("psns", ())
        flat = [p for p in psns if isinstance(p, int)]
        flat += [p for pair in psns if not isinstance(pair, int) for p in range(pair[0], pair[1] + 1)]
        out += [(finding.rule, frozenset({p})) for p in flat] or [(finding.rule, frozenset())]
    return out


def outcome(seed: int, result: ProgramRun, analysis: Analysis, quiet: Analysis) -> Outcome:
    """The findings of a faulty run that the quiet run does not have, and what the record allows."""
    allowed: dict[str, frozenset[int] | None] = {"rnr": rnr_psns(result)}
    ended = statuses(result)
    if ended["RETRY_EXC_ERR"] or ended["RNR_RETRY_EXC_ERR"]:
        # The peer's QP is in error and does not answer.
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
    """A transfer of a's first QP that has a packet of the kind to be hit."""
    qp, _ = result.pairs[0]
    ip = result.hosts[0].device.addresses[0]
    own = [t for t in result.transfers() if tuple(t.request.requester) == (ip, qp.qpn)]
    if of == "response":
        own = [t for t in own if t.request.operation in OWN_RESPONSE]
    return own[Prng(seed, "target").below(len(own))] if own else None


def hit_psn(seed: int, of: str, transfer: TransferTruth) -> int:
    request = transfer.request
    if of == "ack":
        return request.last_psn
    if request.operation == "READ" and of == "request":
        return request.first_psn
    return request.first_psn + Prng(seed, "packet").below(request.packets)


def one_fault(of: str, kind: str, rules: frozenset[str] = frozenset(), *, every: bool = False) -> Kind_:
    """Hit one packet (``every``: all its transmissions). A repeat caused by this must be found."""

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
        judged = outcome(seed, loud, after, before)
        hit = psn & MASK
        judged.allowed |= dict.fromkeys(rules, frozenset({hit}))
        if kind in ("reorder", "delay"):
            judged.allowed["duplicate"] = frozenset({hit})  # the original, behind its repeat
        requested_again = [
            psn & MASK for psn, why in went_back(loud, transfer).items() if "implied_nak" in why
        ]
        judged.allowed["implied-nak"] = frozenset(requested_again) | (
            judged.allowed.get("implied-nak") or frozenset()
        )
        if not loud.faults_done[kind] or hit in rnr_psns(loud):
            return judged  # nothing was hit, or an RNR NAK, or a packet that drew one
        if statuses(loud)["RETRY_EXC_ERR"]:
            rules_here = rules | GIVEN_UP  # the peer's QP was gone by then, for another reason
        else:
            rules_here = rules
        again, otherwise = went_back(loud, transfer), went_back(quiet, transfer)
        why = again[psn] - otherwise[psn]
        if every:
            failed = statuses(loud)["RETRY_EXC_ERR"] > statuses(quiet)["RETRY_EXC_ERR"]
            if failed:
                judged.expected.append(Expected("retry-exceeded", GIVEN_UP, frozenset({hit})))
        elif kind == "bit-error" or (rules and why):
            judged.expected.append(Expected(_primary(rules, why), rules_here, frozenset({hit})))
        return judged

    return judge


Kind_ = Callable[[int, str], "Outcome | None"]


def went_back(result: ProgramRun, transfer: TransferTruth) -> dict[int, set[str]]:
    """The PSNs from which the transfer's requester went back, and why; without effects of RNR NAKs."""
    request = transfer.request
    flow = result.recorder.requests[request.requester, request.responder][0]
    sent = sorted((s for t in flow.transfers for s in t.requests), key=lambda s: s.time_ns)
    found: dict[int, set[str]] = defaultdict(set)
    for before, packet in pairwise([None, *sent]):
        if packet is not None and packet.cause in ("nak", "timeout", "implied_nak"):
            goes_on = before is not None and before.cause == packet.cause and before.psn < packet.psn
            if not goes_on:
                found[packet.psn].add(packet.cause)
    return found


def _primary(rules: frozenset[str], why: set[str]) -> str:
    if rules == LOSSES:
        return "loss" if "nak" in why else "tail-loss"
    return min(rules)


def duplicated(of: str) -> Kind_:
    """The network duplicates one packet: nothing above info, and ``duplicate`` if the capture has both."""

    def judge(seed: int, tap: str) -> Outcome | None:
        program = random_program(seed)
        quiet, before = go(seed, program, (), tap)
        transfer = target(seed, quiet, of)
        if transfer is None:
            return None
        psn = hit_psn(seed, of, transfer)
        relative = (psn - program.connections[0].a_psn & MASK) + 1
        loud, after = go(seed, program, (Fault("duplicate", 1, relative, 1, of),), tap)
        judged = outcome(seed, loud, after, before)
        request = transfer.request
        judged.allowed["duplicate"] = frozenset(
            p & MASK for p in range(request.first_psn, request.last_psn + 1)
        )
        if loud.faults_done["duplicate"] and of != "ack" and tap == "delivered":
            judged.expected.append(Expected("duplicate", frozenset({"duplicate"}), frozenset({psn & MASK})))
        return judged

    return judge


def drops(seed: int, tap: str) -> Outcome | None:
    """Three packets of any kind in a hundred are lost: each go-back after a NAK is found with its PSN, and
    only losses are found.
    """
    program = replace(random_program(seed), receives=_in_time(random_program(seed)))
    result, analysis = go(seed, program, at_random({"drop": 0.03}), tap)
    judged = Outcome(seed, [], named(analysis), {"rnr": rnr_psns(result)})
    judged.allowed |= dict.fromkeys((*LOSSES, "ack-loss", "implied-nak"))
    if statuses(result)["RETRY_EXC_ERR"]:
        judged.allowed |= dict.fromkeys((*GIVEN_UP, "dead-qp", "mtu-mismatch"))
    done = set()
    for transfer in result.transfers():
        ends = transfer.request.requester, transfer.request.responder
        if ends not in done:
            done.add(ends)
            for psn, why in went_back(result, transfer).items():
                if "nak" in why:
                    rules = frozenset({*LOSSES, *GIVEN_UP, "rnr"})
                    judged.expected.append(Expected("loss", rules, frozenset({psn & MASK})))
    return judged


def wrong_memory(seed: int, tap: str) -> Outcome | None:
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
    judged = outcome(seed, loud, after, before)
    return _fatal_naks(judged, loud, "remote-access-error", wire.NAK_REMOTE_ACCESS)


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
    judged = outcome(seed, loud, after, before)
    return _fatal_naks(judged, loud, "invalid-request", wire.NAK_INVALID_REQUEST)


def _fatal_naks(judged: Outcome, loud: ProgramRun, rule: str, code: int) -> Outcome:
    """Expect the rule for each PSN that got such a NAK by the record."""
    for flows in loud.recorder.replies.values():
        for flow in flows:
            for reply in flow.replies:
                syndrome = reply.syndrome
                if (
                    syndrome is not None
                    and wire.syndrome_kind(syndrome) == wire.NAK
                    and wire.syndrome_value(syndrome) == code
                ):
                    judged.expected.append(Expected(rule, frozenset({rule}), frozenset({reply.psn & MASK})))
    return judged


def without_receives(seed: int, tap: str) -> Outcome | None:
    """Receives are posted late: every PSN that got an RNR NAK is found, and no other."""
    program = random_program(seed)
    late = tuple(replace(r, at_ns=r.at_ns + 30_000) for r in program.receives)
    result, analysis = go(seed, replace(program, receives=late), (), tap)
    judged = Outcome(seed, [], named(analysis))
    ended = statuses(result)
    if ended["RETRY_EXC_ERR"] or ended["RNR_RETRY_EXC_ERR"]:
        judged.allowed = dict.fromkeys((*GIVEN_UP, "dead-qp"))
    judged.expected = [Expected("rnr", frozenset({"rnr"}), frozenset({p})) for p in sorted(rnr_psns(result))]
    return judged


def nothing(seed: int, tap: str) -> Outcome | None:
    """No fault at all."""
    result, analysis = go(seed, random_program(seed), (), tap)
    judged = outcome(seed, result, analysis, analysis)
    judged.named = named(analysis)
    return judged


def missed_by_capture(seed: int, tap: str) -> Outcome | None:
    """The capture lacks a packet that was on the wire: no loss is found."""
    program = replace(random_program(seed), receives=_in_time(random_program(seed)))
    with TemporaryDirectory() as folder:
        capture, journal = Path(folder) / "x.pcapng", Path(folder) / "x.journal.jsonl"
        result = run(program, (), seed, capture=capture, journal=journal, tap=tap)
        before = analyze(capture)
        psn, dst = _thin_out(seed, capture)
        after = analyze(capture)
    judged = outcome(seed, result, after, before)
    judged.allowed["capture-gap"] = None
    if psn is not None and _covered(result, dst, psn):
        judged.expected.append(Expected("capture-gap", frozenset({"capture-gap"}), frozenset({psn})))
    return judged


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
    """Whether the packet is neither the first nor the last of its flow, so that the gap is visible."""
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
    Kind("request doubled", "delivered", duplicated("request")),
    Kind("request doubled", "sent", duplicated("request")),
    Kind("response doubled", "delivered", duplicated("response")),
    Kind("acknowledgement doubled", "delivered", duplicated("ack")),
    Kind("request held up 20 µs", "delivered", one_fault("request", "reorder", frozenset({"reordering"}))),
    Kind("request marked", "delivered", one_fault("request", "ecn")),
    Kind("request never arrives", "sent", one_fault("request", "drop", GIVEN_UP, every=True)),
    Kind("three in a hundred dropped", "sent", drops),
    Kind("three in a hundred dropped", "delivered", drops),
    Kind("receives late", "sent", without_receives),
    Kind("wrong rkey or bounds", "sent", wrong_memory),
    Kind("receive too short", "sent", too_long),
    Kind("packet missed by the capture", "sent", missed_by_capture),
)


def outcomes(kind: Kind, seeds: Iterable[int]) -> Iterator[Outcome]:
    """The runs of a kind that had something to hit."""
    for seed in seeds:
        judged = kind.judge(seed, kind.tap)
        if judged is not None:
            yield judged
