"""``cm-rejected`` and ``cm-unanswered``: connections that were rejected or never established."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rocekit.findings.finding import ERROR, INFO, WARNING, Finding, Rule
from rocekit.wire import time_code_ns
from rocekit.wire.cm import REJ_CONSUMER
from rocekit.wire.words import duration, plural

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.track.cm_exchanges import CmRecord, Exchange

_REJ_STALE = 10
_REJ_NO_LISTENER = 8
_ANSWERS = frozenset({"REP", "REJ", "MRA"})


def _service(request: CmRecord | None) -> str:
    """The service that a REQ names, in words."""
    if request is None:
        return "the service"
    ip = request.cm.ip_cm
    if ip is not None:
        return f"port {ip['destination_port']}"
    service = request.cm.number("service_id")
    return "the service" if service is None else f"service ID {service:#x}"


def _look_rejected(evidence: Evidence) -> Iterator[Finding]:
    seen: set[tuple[str, str, int, int | None]] = set()
    for record in evidence.cm_records:
        if record.message != "REJ":
            continue
        identity = (record.src, record.dst, record.transaction_id, record.cm.number("remote_comm_id"))
        if identity in seen:
            continue
        seen.add(identity)
        exchange = record.exchange
        request = None if exchange is None else exchange.request
        code = record.cm.number("reason")
        data = record.cm.private_data.rstrip(b"\0")
        found: dict[str, Any] = {"reason": code, "reason_text": record.cm.reason, "private_data": data.hex()}
        frames = [record.frame]
        if request is not None:
            frames = [r.frame for r in (exchange.records if exchange else []) if r.time_ns <= record.time_ns]
            found["after_ns"] = record.time_ns - request.time_ns
            if (service := request.cm.number("service_id")) is not None:
                found["service_id"] = service
        yield REJECTED.finding(
            f"{record.src} rejected {record.dst}'s connection to {_service(request)}: {record.cm.reason} "
            f"(reason {code})",
            connection=record.connection,
            frames=frames,
            evidence=found,
            advice=_rejected_advice(code, record.src, _service(request)),
        )


def _rejected_advice(code: int | None, host: str, service: str) -> str:
    if code == _REJ_NO_LISTENER:
        return (
            f"No program listens on {service} at {host}. Start the server first. Check its port, its port "
            "space (TCP or UDP), and that it listens on the RDMA address (`rdma resource show cm_id` there)."
        )
    if code == REJ_CONSUMER:
        return (
            f"The program at {host} called rdma_reject. The private data is its own reason; look into its "
            "log."
        )
    if code == _REJ_STALE:
        return (
            f"{host} still has a connection with this QPN or these communication IDs: wait until its "
            "timewait ends, or use a new QP. This happens to a client that was killed and started again."
        )
    return REJECTED.what_to_do


def _look_unanswered(evidence: Evidence) -> Iterator[Finding]:
    for exchange in evidence.exchanges:
        yield from _requests(evidence, exchange)
        yield from _replies(evidence, exchange)
        yield from _disconnects(evidence, exchange)


def _requests(evidence: Evidence, exchange: Exchange) -> Iterator[Finding]:
    requests = [r for r in exchange.records if r.message == "REQ"]
    answers = [r for r in exchange.records if r.message in _ANSWERS and r.src == exchange.dst]
    first, last = requests[0], requests[-1]
    wait_ns = time_code_ns(first.cm.number("remote_cm_response_timeout") or 0)
    silence = evidence.last_ns - last.time_ns
    found = {
        "times_sent": len(requests),
        "response_timeout_ns": wait_ns,
        "intervals_ns": [b.time_ns - a.time_ns for a, b in itertools.pairwise(requests)],
        "max_retries": first.cm.number("max_cm_retries"),
    }
    frames = [r.frame for r in requests]
    if not answers and (len(requests) > 1 or silence > wait_ns > 0):
        yield UNANSWERED.finding(
            f"{exchange.dst} did not answer {exchange.src}'s REQ for {_service(first)}: sent "
            f"{plural(len(requests), 'time')} in {duration(evidence.last_ns - first.time_ns)}",
            frames=frames,
            evidence=found | {"silent_for_ns": silence},
        )
    elif answers and len(requests) > 1 and answers[0].time_ns > requests[1].time_ns:
        added = answers[0].time_ns - first.time_ns
        yield UNANSWERED.finding(
            f"{exchange.dst} answered {exchange.src}'s REQ only after it was sent "
            f"{plural(len(requests), 'time')}: {duration(added)} of delay",
            connection=exchange.connection,
            frames=[*frames, answers[0].frame],
            evidence=found | {"added_ns": added},
            advice="A REQ or its answer was lost, or the peer's program accepted late. The CM repeats only "
            "after seconds. Look for drops of UDP 4791 (or of QP 1's traffic class) between the two hosts.",
            severity=WARNING,
        )


def _replies(evidence: Evidence, exchange: Exchange) -> Iterator[Finding]:
    replies = [r for r in exchange.records if r.message == "REP"]
    if not replies or exchange.last("RTU") or exchange.last("REJ") or exchange.last("DREQ"):
        return
    connection = exchange.connection
    used = connection is not None and connection.progress[0] is not None and connection.progress[0].started
    sent = connection is not None and any(
        t.side == 0 for t in evidence.transfers_of.get((connection.id, 0), ())
    )
    if used and sent:
        return  # the client's first packet counts as an RTU (12.9.7)
    silence = evidence.last_ns - replies[-1].time_ns
    wait_ns = time_code_ns(exchange.request.cm.number("local_cm_response_timeout") or 0)
    if len(replies) > 1 or silence > wait_ns > 0:
        yield UNANSWERED.finding(
            f"No RTU from {exchange.src} for {exchange.dst}'s REP: REP sent {plural(len(replies), 'time')}",
            connection=connection,
            frames=[exchange.request.frame, *(r.frame for r in replies)],
            evidence={"times_sent": len(replies), "silent_for_ns": silence, "response_timeout_ns": wait_ns},
            advice=f"The REP or the RTU was lost, or the program at {exchange.src} died in between: look at "
            "its log, and for drops of QP 1's packets between the two hosts.",
        )


def _disconnects(evidence: Evidence, exchange: Exchange) -> Iterator[Finding]:
    for host in (exchange.src, exchange.dst):
        dreqs = [r for r in exchange.records if r.message == "DREQ" and r.src == host]
        answered = any(r.message in ("DREP", "DREQ") and r.src != host for r in exchange.records)
        if len(dreqs) > 1 and not answered:
            yield UNANSWERED.finding(
                f"No answer to {host}'s DREQ: DREQ sent {plural(len(dreqs), 'time')}",
                connection=exchange.connection,
                frames=[r.frame for r in dreqs],
                evidence={"times_sent": len(dreqs)},
                advice="The peer was probably gone before the connection was closed, because it did not "
                "answer. If that was not intended, find out why it ended.",
                severity=INFO,
            )


REJECTED = Rule(
    "cm-rejected",
    ERROR,
    "the connection was rejected",
    "The connection was rejected with a REJ. Its reason says why: 8, no program listens on that service "
    "ID; 10, an old connection is in the way; 28, the program itself rejected it.",
    "A CM REJ message with its reason and private data. The programs get RDMA_CM_EVENT_REJECTED.",
    "A REJ with reason 4 (timeout) after a REP means that no RTU arrived: the network is at fault, not the "
    "program.",
    "Read the reason and the private data. The REQ before it says what was requested. `rdma resource show "
    "cm_id` on the rejecting host lists what listens there.",
    _look_rejected,
)
UNANSWERED = Rule(
    "cm-unanswered",
    ERROR,
    "a REQ or REP got no answer",
    "A message of the connection manager got no answer: a REQ that is repeated, or a REP without RTU. "
    "Warning if the answer came after repeats; info for a DREQ to a peer that was gone.",
    "CM messages of one exchange: the same REQ again after its timeout without an answer, or a REP again. "
    "The programs get RDMA_CM_EVENT_UNREACHABLE.",
    "A capture that ends before the answer. A REP without RTU is normal if the client's data follows: data "
    "counts as an RTU.",
    "Check whether the REQ reaches the other host (capture there). If not, it is dropped on the way "
    "(routing, firewall on UDP 4791, wrong VLAN). If it does, its RDMA device does not own that GID, or "
    "ib_cm is not loaded (otherwise a REJ would come).",
    _look_unanswered,
)
RULES = (REJECTED, UNANSWERED)
