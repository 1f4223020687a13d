"""NCCL's collectives in words: what a transfer belongs to, and what became of a collective."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocekit.wire.text_table import Style, columns, plain
from rocekit.wire.words import duration, plural, size

if TYPE_CHECKING:
    from rocekit.correlate.collectives import Collectives, NcclOperation, NcclRequest, ProxyOperation
    from rocekit.explanation.results import Results
    from rocekit.track.transfers import Transfer

#: Collectives that a summary lists, those first whose transfers took longest.
SHOWN: Final = 5
_MATCHED: Final = {"journal": "recorder's work request", "order": "order and length"}
#: What a step waits for, by the state that NCCL told last (see plugins/profiler of NCCL).
_WAITS: Final = {
    "gpu_wait": "waits for data from the GPU",
    "credit_wait": "waits until the peer has room",
    "send_wait": "is with the network",
    "receive_wait": "waits for data from the network",
    "flush_wait": "waits for the flush to the GPU",
    "consumer_wait": "waits until the GPU has taken the data",
}


def collective_of(transfer: Transfer, analysis: Results) -> str | None:
    """The collective that a transfer carries; None if nothing tells of one."""
    found = None if analysis.journal is None else analysis.journal.collectives
    request = None if found is None else found.of(transfer)
    if request is None:
        return None
    proxy = request.proxy_op
    whose = (
        "an operation of another process, or one not in the journals"
        if proxy.operation is None
        else f"{proxy.operation.name()} (--collective {proxy.operation.id})"
    )
    how = _MATCHED[request.matched_by or "order"]
    return f"collective: {whose}: {proxy.words()}, step {request.step}; matched by {how}"


def collective_lines(found: Collectives, style: Style = plain) -> list[str]:
    """What NCCL told, in a summary of an analysis."""
    requests = found.requests
    sends = [request for request in requests if request.proxy_op.sends]
    matched = sum(bool(request.transfers) for request in sends)
    lines = [
        style("NCCL", "title")
        + f": {plural(len(found.communicators), 'rank')}, {plural(len(found.operations), 'operation')}, "
        f"{plural(len(found.proxy_ops), 'proxy operation')}, {plural(len(sends), 'send work request')}, "
        f"{matched:,} of them matched with transfers"
    ]
    if not requests and found.proxy_ops:
        words = "NCCL named no QP: it was built without NCCL_ENABLE_NET_PROFILING, so no packet is matched"
        lines.append(style(f"  {words}", "dim"))
    if found.alone:
        words = f"{plural(len(found.alone), 'proxy operation')} of operations that the journals do not have"
        lines.append(style(f"  {words}", "dim"))
    carried = sorted((o for o in found.operations if o.transfers), key=_took, reverse=True)
    lines += [f"  {line}" for line in columns([_row(o) for o in carried[:SHOWN]], right=frozenset({0, 3}))]
    if len(carried) > SHOWN:
        lines.append(style(f"  … and {len(carried) - SHOWN:,} more with transfers", "dim"))
    going = [o for o in found.operations if o.proxy_ops and o.ended_ns is None]
    lines += [style(f"  not ended: {o.name()}; {_hangs(o)}", "warning") for o in going[:SHOWN]]
    return lines


def _took(operation: NcclOperation) -> int:
    transfers = operation.transfers
    return max(t.last_ns for t in transfers) - min(t.first_ns for t in transfers)


def _row(operation: NcclOperation) -> tuple[str, ...]:
    transfers = operation.transfers
    again = sum(t.retransmitted_packets for t in transfers)
    return (
        str(operation.id),
        operation.name(),
        f"{plural(len(transfers), 'transfer')} of {size(sum(t.bytes for t in transfers))}",
        duration(_took(operation)),
        f"{plural(again, 'packet')} sent again" if again else "",
    )


def _hangs(operation: NcclOperation) -> str:
    """What the proxy operations that go on wait for, as far as told."""
    words = []
    for proxy in operation.proxy_ops:
        if proxy.ended_ns is None:
            last = _last_states(proxy)
            step, state = max(last.items()) if last else (None, "")
            at = "" if step is None else f": step {step} {_WAITS.get(state, state)}"
            words.append(f"{proxy.words()}{at}")
    more = f" and {len(words) - 2} more" if len(words) > 2 else ""
    return "; ".join(words[:2]) + more


def _last_states(proxy: ProxyOperation) -> dict[int, str]:
    """The latest state of each step that goes on."""
    last: dict[int, str] = {}
    for _, step, state in proxy.states:
        last[step] = state
    return {step: state for step, state in last.items() if state != "ended"}


def collective_story(operation: NcclOperation, style: Style = plain) -> str:
    """A collective down to its transfers, in text."""
    about = [
        f"{key.replace('_', ' ')} {operation.event[key]}"
        for key in ("algorithm", "protocol", "datatype", "count", "channels", "root", "peer")
        if operation.event.get(key) is not None
    ]
    lines = [style(operation.name(), "title"), f"  {', '.join(about)}"]
    ended = operation.ended_ns
    if ended is not None:
        took = duration(ended - operation.event.time_ns)
        lines.append(f"  the last proxy operation ended {took} after it was enqueued")
    elif operation.proxy_ops:
        lines.append(style(f"  not ended: {_hangs(operation)}", "warning"))
    else:
        lines.append("  no proxy operation: it used no network, or NCCL told of none")
    for proxy in operation.proxy_ops:
        lines.append(f"  {proxy.words()}{_waited(proxy)}")
        rows = [_transfer_row(request, t) for request in proxy.requests for t in request.transfers]
        lines += [f"    {line}" for line in columns(rows, right=frozenset({0, 1, 4}))]
        without = sum(not request.transfers for request in proxy.requests)
        if without and proxy.sends:
            words = f"{plural(without, 'work request')} without a transfer in the capture"
            lines.append(style(f"    {words}", "dim"))
    transfers = operation.transfers
    if transfers:
        worst = max(transfers, key=lambda t: (len(t.events), t.duration_ns))
        lines.append(style(f"  most troubled: transfer {worst.id} (explain --transfer {worst.id})", "dim"))
    return "\n".join(lines)


def _transfer_row(request: NcclRequest, transfer: Transfer) -> tuple[str, ...]:
    again = transfer.retransmitted_packets
    return (
        f"step {request.step}",
        f"transfer {transfer.id}",
        size(transfer.bytes),
        transfer.status,
        duration(transfer.duration_ns),
        f"{plural(again, 'packet')} sent again" if again else "",
    )


def _waited(proxy: ProxyOperation) -> str:
    """How long its steps were in each state, added up over the steps."""
    total: dict[str, int] = {}
    since: dict[int, tuple[int, str]] = {}
    for at_ns, step, state in proxy.states:
        if step in since:
            began, before = since[step]
            total[before] = total.get(before, 0) + at_ns - began
        since[step] = (at_ns, state)
    words = {
        "gpu_wait": "GPU",
        "credit_wait": "credit of the peer",
        "send_wait": "network",
        "receive_wait": "network",
        "flush_wait": "flush",
        "consumer_wait": "GPU",
    }
    parts = [f"{words[state]} {duration(ns)}" for state, ns in total.items() if state in words and ns > 0]
    return f"; its steps waited for: {', '.join(parts)}" if parts else ""
