"""``cm-rejected``: a connection that a REJ ended before it was established.

Either side may send a REJ. The server rejects a REQ; the client gives up its own REQ, or rejects the REP. The
Linux kernel sends one by itself, without private data, when a program ends or closes a connection that is not
established yet: reason 4 while its REQ has no reply, else reason 28 (``cm_destroy_id`` of ib_cm), the reason
that rdma_reject has. So reason 28 alone does not prove that a program called it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from rocekit.findings.finding import ERROR, INFO, Finding, Rule
from rocekit.findings.rules.cm_unanswered import is_unanswered, service
from rocekit.wire.cm import CM_ANSWERED, REJ_CONSUMER

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.track.cm_exchanges import CmRecord

_REJ_TIMEOUT: Final = 4
_REJ_NO_LISTENER: Final = 8
_REJ_STALE: Final = 10
CLIENT: Final = "client"
SERVER: Final = "server"


def _look(evidence: Evidence) -> Iterator[Finding]:
    """One finding for all attempts that went alike: a rejected client may try again for minutes."""
    attempts: set[object] = set()
    alike: dict[tuple[object, ...], list[CmRecord]] = {}
    for record in evidence.cm_records:
        if record.message != "REJ":
            continue
        # Where both sides send one, the second only crosses the first or follows from it.
        attempt = record.exchange or (record.src, record.dst, record.transaction_id)
        if attempt not in attempts:
            attempts.add(attempt)
            alike.setdefault(_way(evidence, record), []).append(record)
    for records in alike.values():
        yield _finding(evidence, records)


def _way(evidence: Evidence, record: CmRecord) -> tuple[object, ...]:
    """What is the same of attempts that went alike."""
    exchange, sender = record.exchange, _sender(record)
    failed = exchange is not None and is_unanswered(evidence, exchange)
    reason, private = record.cm.number("reason"), _private_data(record)
    return record.connection, record.src, record.dst, _what(record, sender), reason, private, failed


def _finding(evidence: Evidence, records: list[CmRecord]) -> Finding:
    record = records[0]
    exchange, sender = record.exchange, _sender(record)
    code, rejected = record.cm.number("reason"), record.cm.number("message_rejected")
    found: dict[str, Any] = {
        "attempts": len(records),
        "reason": code,
        "reason_text": record.cm.reason,
        "private_data": _private_data(record).hex(),
        "sent_by": sender,
        "message_rejected": None if rejected is None else CM_ANSWERED.get(rejected, "other"),
    }
    words = record.cm.private_words(record.port)
    if words is not None:
        found["private_data_text"] = words
    failed = False
    if exchange is not None:
        request = exchange.request
        found["after_ns"] = record.time_ns - request.time_ns
        if (number := request.cm.number("service_id")) is not None:
            found["service_id"] = number
        failed = is_unanswered(evidence, exchange)
        found["unanswered_before"] = failed
    often = f", {len(records)} times" if len(records) > 1 else ""
    return RULE.finding(
        f"{_what(record, sender)}{often}: {record.cm.reason} (reason {code}){f'; {words}' if words else ''}",
        connection=record.connection,
        frames=[frame for each in records for frame in _frames(each)],
        evidence=found,
        advice=_FAILED if failed else _advice(record, sender),
        severity=INFO if failed else ERROR,
    )


def _frames(record: CmRecord) -> list[int]:
    """The messages of its attempt that a REJ ended."""
    if record.exchange is None:
        return [record.frame]
    return [r.frame for r in record.exchange.records if r.time_ns <= record.time_ns and not r.duplicated]


def _private_data(record: CmRecord) -> bytes:
    return record.cm.private_data.rstrip(b"\0")


def _sender(record: CmRecord) -> str | None:
    """Which side sent a REJ, ``client`` (it sent the REQ) or ``server``; None if unknown."""
    if record.exchange is not None:
        return CLIENT if record.exchange.is_client(record) else SERVER
    rejected = record.cm.number("message_rejected")
    return {0: SERVER, 1: CLIENT}.get(-1 if rejected is None else rejected)


def _what(record: CmRecord, sender: str | None) -> str:
    """What the REJ did, in words."""
    exchange = record.exchange
    target = service(None if exchange is None else exchange.request)
    if sender is None:
        return f"{record.src} sent a REJ to {record.dst}"
    if sender == SERVER:
        replied = exchange is not None and any(r.time_ns < record.time_ns for r in exchange.sent("REP"))
        after = ", after its REP" if replied else ""
        return f"{record.src} rejected {record.dst}'s connection to {target}{after}"
    if record.cm.number("message_rejected") == 1:
        return f"{record.src} rejected {record.dst}'s REP for its own connection to {target}"
    return f"{record.src} gave up its own connection to {target} at {record.dst}"


def _advice(record: CmRecord, sender: str | None) -> str:
    code, host = record.cm.number("reason"), record.src
    target = service(None if record.exchange is None else record.exchange.request)
    if code == _REJ_NO_LISTENER:
        return (
            f"No program listens on {target} at {host}. Start the server first. Check its port, its port "
            "space (TCP or UDP), and that it listens on the RDMA address (`rdma resource show cm_id` there)."
        )
    if code == REJ_CONSUMER and _private_data(record):
        return (
            f"The private data is from the program (or kernel service) at {host}: its own reason. Look into "
            "its log."
        )
    if code == REJ_CONSUMER:
        failed = "its QP could not be set up" if sender == CLIENT else "rdma_accept failed"
        return (
            f"Look into the log of the program at {host}, and whether it still runs. Open: the program "
            f"called rdma_reject, {failed}, or the program ended or closed the connection (the kernel then "
            "sends the same REJ)."
        )
    if code == _REJ_TIMEOUT and sender == CLIENT:
        return (
            f"{host} ended its request before a reply came: its program stopped waiting, or was ended. Find "
            f"out what the program at {record.dst} did with the REQ, and whether the REQ arrived there."
        )
    if code == _REJ_STALE:
        return (
            f"{host} still has a connection with this QPN or these communication IDs: wait until its "
            "timewait ends, or use a new QP. This happens to a client that was killed and started again."
        )
    return RULE.what_to_do


_FAILED: Final = (
    "The cause is the message that got no answer: see cm-unanswered. This REJ only ended the attempt."
)

RULE = Rule(
    "cm-rejected",
    ERROR,
    "the connection was rejected",
    "A REJ ended the connection before it was established. Its reason says why: 4, its sender got no reply "
    "in time, or was ended while it waited; 8, no program listens on that service ID; 10, an old connection "
    "is in the way; 28, the program rejected it, or ended. Info if the REJ only followed a REQ or REP that "
    "got no answer.",
    "A CM REJ message with its reason and private data. The programs get RDMA_CM_EVENT_REJECTED. Either side "
    "may send it: `sent_by` says which. Attempts that went alike are told once: `attempts` says how many.",
    "cm-unanswered: a REJ that follows a REQ or REP without an answer is an effect of that. A program that "
    "ends before the connection is established: its kernel sends a REJ with reason 4 (a client without a "
    "reply) or 28, as rdma_reject does, but never with private data.",
    "Read the reason and the private data. The REQ before it says what was requested. `rdma resource show "
    "cm_id` on the rejecting host lists what listens there.",
    _look,
)
