"""Claims that hold for every run, whatever the faults: data intact and once, completions in order, no PSN
skipped.

Each check yields the violations of its claim, in words.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from rocekit.soft.engine import qp_state
from rocekit.soft.engine.memory import HOST_ORDER, AddressSpace
from rocekit.soft.engine.packet import GRH_AREA_BYTES
from rocekit.soft.engine.work import VERBS, WC
from rocekit.soft.testbed.result import Posted, ProgramRun, Received
from rocekit.wire import ATOMIC_BYTES


def check_run(run: ProgramRun) -> list[str]:
    """The violations in a run; empty when there are none."""
    return [
        *_check_sent(run),
        *_check_atomics(run),
        *_check_received(run),
        *_check_completions(run),
        *_check_psns(run),
    ]


def _check_completions(run: ProgramRun) -> Iterator[str]:
    """Completions come in the order of the requests, each once; each signaled request has one at the end."""
    for (device, qpn), wcs in run.completions.items():
        ids = {p.wr_id for p in run.posted if p.qp.device.name == device and p.qp.qpn == qpn}
        for kind in (True, False):
            mine = [wc.wr_id for wc in wcs if (wc.wr_id in ids) == kind]
            if any(b <= a for a, b in pairwise(mine)):
                yield f"completions of {device} QP {qpn:#x} out of order: {mine}"
        failed = [wc.status != "SUCCESS" for wc in wcs if wc.wr_id in ids]
        if any(bad and not later for bad, later in pairwise(failed)) and _is_rc(run, device, qpn):
            yield f"a request of {device} QP {qpn:#x} succeeded after one that failed"
    for posted in run.posted:
        alive = posted.qp.state in (qp_state.RTS, qp_state.ERR)
        if run.finished and alive and posted.wc is None and posted.post.signaled:
            yield f"{posted.post.opcode} {posted.wr_id} was never completed"


def _is_rc(run: ProgramRun, device: str, qpn: int) -> bool:
    return any(
        qp.transport == "RC" for pair in run.pairs for qp in pair if (qp.device.name, qp.qpn) == (device, qpn)
    )


def _check_psns(run: ProgramRun) -> Iterator[str]:
    """The PSNs of messages have no gaps, and all packets of a message that succeeded were sent."""
    for flows in run.recorder.requests.values():
        for flow in flows:
            for a, b in pairwise(flow.transfers):
                if a.transport != "UD" and b.first_psn != a.last_psn + 1:
                    yield f"PSN {b.first_psn} follows {a.last_psn}"
            for t in flow.transfers:
                sent = {s.psn for s in t.requests}
                whole = t.operation == "READ" or sent >= set(range(t.first_psn, t.last_psn + 1))
                if t.wc_status == "SUCCESS" and not whole:
                    yield f"{t.operation} at PSN {t.first_psn} succeeded without all of its packets"
                for psn in sent:
                    rounds = [s.round for s in t.requests if s.psn == psn]
                    if t.operation != "READ" and rounds != list(range(len(rounds))):
                        yield f"PSN {psn} was sent in rounds {rounds}"


def _check_sent(result: ProgramRun) -> Iterator[str]:
    """The bytes of a request that succeeded are at their destination."""
    for entry in result.posted:
        post = entry.post
        verb = VERBS[post.opcode]
        if entry.wc is None or entry.wc.status != "SUCCESS":
            continue
        own = result.hosts["ab".index(post.side)].device.memory
        peer = result.hosts[1 - "ab".index(post.side)].device.memory
        if verb.operation in ("READ", "FETCH_ADD", "CMP_SWAP"):
            got = own.read(entry.local, post.length)
        elif verb.operation in ("WRITE", "ATOMIC_WRITE") and entry.qp.transport == "RC":
            got = peer.read(entry.remote, post.length)
        else:
            continue
        if got != entry.content:
            yield f"{post.opcode} {entry.wr_id} succeeded, but its data did not arrive intact"


def _check_atomics(run: ProgramRun) -> Iterator[str]:
    """An atomic that succeeded was done once; any other at most once."""
    for entry in run.posted:
        post = entry.post
        if VERBS[post.opcode].operation not in ("FETCH_ADD", "CMP_SWAP") or post.wrong:
            continue
        before = int.from_bytes(entry.content, HOST_ORDER)
        if post.opcode == "ATOMIC_CMP_AND_SWP":
            after = post.swap_add if before == post.compare else before
        else:
            after = (before + post.swap_add) % (1 << 64)
        peer = run.hosts[1 - "ab".index(post.side)].device.memory
        found = int.from_bytes(peer.read(entry.remote, ATOMIC_BYTES), HOST_ORDER)
        done = entry.wc is not None and entry.wc.status == "SUCCESS"
        if found != after and (done or found != before):
            yield f"{post.opcode} {entry.wr_id} left {found:#x}, not {after:#x}"


def _check_received(result: ProgramRun) -> Iterator[str]:
    """Messages arrive in order, once and intact: the n-th one received is the n-th one sent."""
    for number, pair in enumerate(result.pairs):
        for i, qp in enumerate(pair):
            sender = "ab"[1 - i]
            sent = [
                e
                for e in result.posted
                if e.post.connection == number
                and e.post.side == sender
                and (VERBS[e.post.opcode].operation == "SEND" or VERBS[e.post.opcode].immediate)
            ]
            by_id = {r.wr_id: r for r in result.received if r.qp is qp}
            got = [
                wc
                for wc in result.completions[qp.device.name, qp.qpn]
                if wc.opcode.startswith("RECV") and wc.status == "SUCCESS"
            ]
            memory = result.hosts[i].device.memory
            if qp.transport != "RC":
                yield from _check_unreliable(sent, [(wc, by_id[wc.wr_id]) for wc in got], memory)
                continue
            for message, wc in zip(sent, got, strict=False):
                entry = by_id[wc.wr_id]
                yield from _check_message(message, wc, entry, memory)
            if len(got) > len(sent):
                yield f"{len(got)} messages received of {len(sent)} sent"
            acked = sum(e.wc is not None and e.wc.status == "SUCCESS" for e in sent)
            if acked > len(got):
                yield f"{acked} messages acknowledged, but only {len(got)} received"


def _check_message(message: Posted, wc: WC, entry: Received, memory: AddressSpace) -> Iterator[str]:
    """A message on RC arrived with its immediate, length and bytes."""
    verb = VERBS[message.post.opcode]
    imm = message.post.imm if verb.immediate else None
    if wc.imm != imm:
        yield f"{message.post.opcode} {message.wr_id}: immediate {wc.imm}, not {imm}"
    if wc.byte_len != message.post.length:
        yield f"{message.post.opcode} {message.wr_id}: {wc.byte_len} bytes, not {message.post.length}"
    where = entry.address if verb.operation == "SEND" else message.remote
    if memory.read(where, message.post.length or 1)[: message.post.length] != message.content:
        yield f"{message.post.opcode} {message.wr_id} was received with other data"


def _check_unreliable(
    sent: list[Posted], got: list[tuple[WC, Received]], memory: AddressSpace
) -> Iterator[str]:
    """A message on UC or UD may be lost or come twice, but its bytes are those of one that was sent."""
    for wc, entry in got:
        # The bytes of a WRITE are not in the receive buffer.
        if wc.opcode != "RECV":
            continue
        offset = GRH_AREA_BYTES if wc.grh else 0
        data = memory.read(entry.address + offset, max(1, wc.byte_len - offset))
        data = data[: wc.byte_len - offset]
        if not any(m.content == data and (wc.imm is None or wc.imm == m.post.imm) for m in sent):
            yield f"receive {entry.wr_id} got {len(data)} bytes that were not sent"
