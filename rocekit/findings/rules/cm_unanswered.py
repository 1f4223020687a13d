"""``cm-unanswered``: a message of the connection manager that got no answer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from rocekit.findings.finding import ERROR, INFO, WARNING, Finding, Rule
from rocekit.findings.witnesses import silence_evidence, silence_words
from rocekit.wire.cm import ip_service
from rocekit.wire.words import duration, plural

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.track.cm_exchanges import CmRecord, Exchange

_ANSWERS: Final = frozenset({"REP", "REJ", "MRA"})
#: What a client sends only after it got a REP.
_AFTER_REP: Final = frozenset({"RTU", "DREQ"})
_Ways = set[tuple[str, str]]
#: Who asks whom, the request's ID, and its scope (a tunnel or VLAN may have the same addresses).
_Question = tuple[str, str, int, int]
#: What comes again sooner than this share of the response timeout may have crossed its answer.
_CROSSING: Final = 1 / 8
#: No CM repeats so soon; copies that a mirror or a network makes come so.
_AT_ONCE_NS: Final = 10_000_000
#: With what a client answers a REP.
_ANSWER_REP: Final = frozenset({"RTU", "MRA", "REJ", "DREQ"})
_ONE_DIRECTION: Final = (
    " Open: whether the peer answered or refused. The capture has no packet from it to the sender: capture "
    "both directions, or look at what the program was told (RDMA_CM_EVENT_UNREACHABLE or _REJECTED)."
)
_LATE_RTU: Final = (
    "The REP or an RTU was lost, or the program that sent the REQ answered late. The CM repeats only after "
    "seconds. Look for drops of QP 1's packets between the two hosts."
)
_LATE_DATAGRAM: Final = (
    "A SIDR_REQ or its answer was lost, or the peer's program answered late. Look for drops of QP 1's "
    "packets between the two hosts."
)


def service(request: CmRecord | None) -> str:
    """The service that a REQ names, in words."""
    if request is None:
        return "the service"
    number = request.cm.number("service_id")
    if number is None:
        return "the service"
    ip = ip_service(number)
    # Without addresses it is another service; where the message is cut before them, nobody can see that.
    if ip is None or (request.cm.ip_cm is None and not request.cm.lacks_addresses):
        return f"service ID {number:#x}"
    return f"port {ip[1]}"


def is_unanswered(evidence: Evidence, exchange: Exchange) -> bool:
    """Whether the REQ, the REP or the RTU of an exchange did not arrive, as far as the packets prove it."""
    lone = _lone_request(evidence, exchange) or _lone_replies(evidence, exchange)
    return bool(lone) or (bool(_unheard(exchange)) and _is_rejected_by_server(exchange))


def _is_rejected_by_server(exchange: Exchange) -> bool:
    return any(not exchange.is_client(r) for r in exchange.sent("REJ"))


def _unheard(exchange: Exchange) -> list[CmRecord]:
    """The RTUs after which the REP came again: the server had not got them."""
    replies = [r.time_ns for r in exchange.sent("REP")]
    soon_ns = _CROSSING * exchange.response_timeout_ns("REP")
    return [r for r in exchange.sent("RTU") if replies and replies[-1] > r.time_ns + soon_ns]


def _answers(exchange: Exchange) -> list[CmRecord]:
    """The server's answers to the REQ."""
    if len(exchange.records) == 1:  # the REQ
        return []
    return [r for r in exchange.records if r.message in _ANSWERS and not exchange.is_client(r)]


def _got_reply(exchange: Exchange) -> bool:
    """Whether the client's own messages prove that it got a REP, though the capture may not have it."""
    return len(exchange.records) > 1 and any(
        r.message in _AFTER_REP or r.cm.number("message_rejected") == 1
        for r in exchange.records
        if exchange.is_client(r)
    )


def _end_ns(evidence: Evidence, exchange: Exchange) -> int:
    """Until when an answer could have come: the REJ that ends the exchange, else the capture's end."""
    if len(exchange.records) == 1 or _has_reply_only(exchange):
        return evidence.last_ns
    return min([r.time_ns for r in exchange.sent("REJ")], default=evidence.last_ns)


def _has_reply_only(exchange: Exchange) -> bool:
    """Whether there is nothing but the REQ and the REP, once each."""
    return len(exchange.records) == 2 and exchange.reply is exchange.records[1]


def _lone_request(evidence: Evidence, exchange: Exchange) -> list[CmRecord]:
    """The transmissions of a REQ that got no answer; empty if it got one, or could still get it."""
    requests = exchange.records  # the REQ alone
    if len(requests) > 1:
        if _answers(exchange) or _got_reply(exchange):
            return []
        requests = exchange.sent("REQ")
    silence = _end_ns(evidence, exchange) - requests[-1].time_ns
    return requests if len(requests) > 1 or silence > exchange.response_timeout_ns("REQ") > 0 else []


def _lone_replies(evidence: Evidence, exchange: Exchange) -> list[CmRecord]:
    """The transmissions of a REP that got no answer; empty if it got one, or could still get it."""
    reply_only = _has_reply_only(exchange)
    replies = exchange.sent("REP")
    if not replies or (not reply_only and _ends_otherwise(exchange, replies)):
        return []
    connection = exchange.connection
    used = connection is not None and connection.progress[0] is not None and connection.progress[0].started
    if used and evidence.transfers_of.get((connection.id, 0)):  # type: ignore[union-attr]
        return []  # the client's first packet counts as an RTU (12.9.7)
    silence = (evidence.last_ns if reply_only else _end_ns(evidence, exchange)) - replies[-1].time_ns
    return replies if len(replies) > 1 or silence > exchange.response_timeout_ns("REP") > 0 else []


def _ends_otherwise(exchange: Exchange, replies: list[CmRecord]) -> bool:
    """Whether the client answered, or the exchange was ended."""
    answered = any(
        r.message in ("RTU", "DREQ", "MRA") or (r.message == "REJ" and r.cm.number("message_rejected") == 1)
        for r in exchange.records
        if exchange.is_client(r)
    )
    return answered or (len(replies) == 1 and exchange.last("REJ") is not None) or bool(exchange.last("DREQ"))


def _look(evidence: Evidence) -> Iterator[Finding]:
    heard = _heard(evidence)
    for exchange in evidence.exchanges:
        if not _has_reply_only(exchange):
            yield from _requests(evidence, exchange, heard)
        if exchange.reply is not None:
            yield from _replies(evidence, exchange)
        if len(exchange.records) > 2:  # a DREQ that comes again
            yield from _disconnects(exchange)
    yield from _datagram_requests(evidence, heard)


def _heard(evidence: Evidence) -> set[tuple[str, str]]:
    """From whom to whom the capture has a packet: of one direction it has no answers."""
    return {(r.src, r.dst) for r in evidence.cm} | set(
        {} if evidence.observer is None else evidence.observer.heard
    )


def _unanswered(heard: _Ways, dst: str, src: str) -> str:
    """That one host's message got no answer, as far as the capture can know it: ``… 10.9.0.1's``."""
    if (dst, src) in heard:
        return f"{dst} did not answer {src}'s"
    return f"The capture has no answer from {dst} to {src}'s"


def _one_direction(heard: _Ways, dst: str, src: str) -> str:
    """What is open then, for the advice; empty if nothing is."""
    return "" if (dst, src) in heard else _ONE_DIRECTION


def _requests(evidence: Evidence, exchange: Exchange, heard: _Ways) -> Iterator[Finding]:
    answers = _answers(exchange)
    lone = [] if answers else _lone_request(evidence, exchange)
    if not lone and not answers:
        return
    requests = lone or exchange.sent("REQ")
    if not lone and not (len(requests) > 1 and answers[0].time_ns > requests[1].time_ns):
        return
    first, last = requests[0], requests[-1]
    end_ns = _end_ns(evidence, exchange)
    found = {
        "times_sent": len(requests),
        "response_timeout_ns": exchange.response_timeout_ns("REQ"),
        "intervals_ns": [b.time_ns - a.time_ns for a, b in itertools.pairwise(requests)],
        "max_retries": first.cm.number("max_cm_retries"),
    }
    frames = [r.frame for r in requests]
    if lone:
        other = silence_evidence(evidence, (exchange.src, exchange.dst), first.time_ns, end_ns)
        yield RULE.finding(
            f"{_unanswered(heard, exchange.dst, exchange.src)} REQ for {service(first)}: sent "
            f"{plural(len(requests), 'time')} in {duration(end_ns - first.time_ns)}",
            frames=frames,
            evidence=found | {"silent_for_ns": end_ns - last.time_ns} | other,
            advice=silence_words(other) + RULE.what_to_do + _one_direction(heard, exchange.dst, exchange.src),
        )
    else:
        added = answers[0].time_ns - first.time_ns
        yield RULE.finding(
            f"{exchange.dst}'s answer to {exchange.src}'s REQ came only after it was sent "
            f"{plural(len(requests), 'time')}: {duration(added)} of delay",
            connection=exchange.connection,
            frames=[*frames, answers[0].frame],
            evidence=found | {"added_ns": added},
            advice="A REQ or its answer was lost, or the peer's program accepted late. The CM repeats only "
            "after seconds. Look for drops of UDP 4791 (or of QP 1's traffic class) between the two hosts.",
            severity=WARNING,
        )


def _replies(evidence: Evidence, exchange: Exchange) -> Iterator[Finding]:
    replies = _lone_replies(evidence, exchange)
    if not replies:
        yield from _lost_rtus(exchange)
        yield from _late_rtu(exchange)
        return
    again, retries = False, exchange.request.cm.number("max_cm_retries")
    end_ns = evidence.last_ns
    if not _has_reply_only(exchange):
        end_ns = _end_ns(evidence, exchange)
        soon_ns = _CROSSING * exchange.response_timeout_ns("REQ")
        again = any(r.time_ns > replies[0].time_ns + soon_ns for r in exchange.sent("REQ"))
    came_again = len(replies) > 1 or retries == 0  # of a cut REQ they are not known
    yield RULE.finding(
        f"No RTU from {exchange.src} for {exchange.dst}'s REP: REP sent {plural(len(replies), 'time')}",
        connection=exchange.connection,
        frames=[exchange.request.frame, *(r.frame for r in replies)],
        evidence={
            "times_sent": len(replies),
            "silent_for_ns": end_ns - replies[-1].time_ns,
            "response_timeout_ns": exchange.response_timeout_ns("REP"),
            "max_retries": retries,
            "req_again_after_rep": again,
        },
        advice=_advice(again, came_again=came_again),
        severity=ERROR if again or came_again else WARNING,
    )


def _advice(req_again: bool, *, came_again: bool) -> str:
    """Without addresses, so that many alike ones are summed up.

    Args:
        came_again: whether the REP did, or would not have: a server sends it again until it has the RTU.
    """
    if req_again:
        return (
            "The REQ came again after the REP, so the REP did not arrive at the REQ's sender: look for "
            "drops of QP 1's packets on the way there."
        )
    if came_again:
        return (
            "The REP or the RTU was lost, or the program that sent the REQ died in between: look at its log, "
            "and for drops of QP 1's packets between the two hosts."
        )
    return (
        "The REP did not come again, although its response timeout passed: a server sends it until it has "
        "the RTU, as often as the REQ allows. So the RTU may have arrived, and the capture missed it, as it "
        "may have missed REPs that came again; or the program that sent the REP ended. Look whether both "
        "programs have the connection."
    )


def _lost_rtus(exchange: Exchange) -> Iterator[Finding]:
    """A REP that came again although the client had sent its RTU."""
    unheard, replies = _unheard(exchange), exchange.sent("REP")
    if not unheard:
        return
    yield RULE.finding(
        f"{exchange.dst} had not got {exchange.src}'s RTU when it sent its REP again",
        connection=exchange.connection,
        frames=[exchange.request.frame, *sorted(r.frame for r in (*replies, *unheard))],
        evidence={
            "times_sent": len(replies),
            "lost_rtus": len(unheard),
            "response_timeout_ns": exchange.response_timeout_ns("REP"),
        },
        advice=f"The RTU was lost behind the capture point, or came late. Look for drops of QP 1's packets "
        f"on the way to {exchange.dst}.",
        severity=ERROR if _is_rejected_by_server(exchange) else WARNING,
    )


def _late_rtu(exchange: Exchange) -> Iterator[Finding]:
    """A REP that came again before the client answered it: it or the RTU was lost, or the client slow."""
    replies = [r for r in exchange.sent("REP") if not r.duplicated]
    if len(replies) < 2:
        return
    soon_ns = max(_AT_ONCE_NS, _CROSSING * exchange.response_timeout_ns("REP"))
    answered_ns = min(
        (r.time_ns for r in exchange.records if r.message in _ANSWER_REP and exchange.is_client(r)), default=0
    )
    sent = [r for r in replies if r.time_ns < answered_ns]
    if len(sent) < 2 or sent[-1].time_ns - sent[0].time_ns <= soon_ns:
        return
    again = any(r.time_ns > sent[0].time_ns + soon_ns for r in exchange.sent("REQ"))
    added = answered_ns - sent[0].time_ns
    yield RULE.finding(
        f"{exchange.src}'s answer to {exchange.dst}'s REP came only after it was sent "
        f"{plural(len(sent), 'time')}: {duration(added)} of delay",
        connection=exchange.connection,
        frames=[exchange.request.frame, *(r.frame for r in sent)],
        evidence={
            "times_sent": len(sent),
            "response_timeout_ns": exchange.response_timeout_ns("REP"),
            "req_again_after_rep": again,
            "added_ns": added,
        },
        advice=_advice(again, came_again=True) if again else _LATE_RTU,
        severity=WARNING,
    )


def _datagram_requests(evidence: Evidence, heard: _Ways) -> Iterator[Finding]:
    """SIDR_REQs that came again (12.11.1): nobody answered the first one, or its answer was lost."""
    asked: dict[_Question, list[CmRecord]] = {}
    answered: dict[_Question, int] = {}
    for record in evidence.cm:
        number, scope = record.cm.number("request_id") or 0, record.around.scope
        if record.message == "SIDR_REQ" and not record.duplicated:
            asked.setdefault((record.src, record.dst, number, scope), []).append(record)
        elif record.message == "SIDR_REP":
            answered.setdefault((record.dst, record.src, number, scope), record.time_ns)
    elsewhere = {question[:3] for question in answered}
    for question, requests in asked.items():
        src, dst, number, _ = question
        until_ns = answered.get(question)
        if until_ns is None and (src, dst, number) in elsewhere:
            continue  # each direction may have a tunnel of its own
        sent = [r for r in requests if until_ns is None or r.time_ns < until_ns]
        if len(sent) < 2 or sent[-1].time_ns - sent[0].time_ns <= _AT_ONCE_NS:
            continue
        found: dict[str, Any] = {
            "times_sent": len(sent),
            "intervals_ns": [b.time_ns - a.time_ns for a, b in itertools.pairwise(sent)],
        }
        times, took = plural(len(sent), "time"), (until_ns or evidence.last_ns) - sent[0].time_ns
        if until_ns is None:
            what = f"{_unanswered(heard, dst, src)} SIDR_REQ: sent {times} in {duration(took)}"
        else:
            what = f"{dst}'s answer to {src}'s SIDR_REQ came only after it was sent {times}"
            what += f": {duration(took)} of delay"
            found["added_ns"] = took
        yield RULE.finding(
            what,
            frames=[r.frame for r in sent],
            evidence=found,
            severity=ERROR if until_ns is None else WARNING,
            advice=RULE.what_to_do + _one_direction(heard, dst, src) if until_ns is None else _LATE_DATAGRAM,
        )


def _disconnects(exchange: Exchange) -> Iterator[Finding]:
    for host in (exchange.src, exchange.dst):
        dreqs = [r for r in exchange.sent("DREQ") if r.src == host]
        answered = any(r.message in ("DREP", "DREQ") and r.src != host for r in exchange.records)
        if len(dreqs) > 1 and not answered:
            yield RULE.finding(
                f"No answer to {host}'s DREQ: DREQ sent {plural(len(dreqs), 'time')}",
                connection=exchange.connection,
                frames=[r.frame for r in dreqs],
                evidence={"times_sent": len(dreqs)},
                advice="The peer was probably gone before the connection was closed, because it did not "
                "answer. If that was not intended, find out why it ended.",
                severity=INFO,
            )


RULE = Rule(
    "cm-unanswered",
    ERROR,
    "a REQ or REP got no answer",
    "A message of the connection manager got no answer: a REQ or SIDR_REQ that is repeated, or a REP without "
    "RTU. Warning if the answer came after repeats; info for a DREQ to a peer that was gone.",
    "CM messages of one exchange: the same REQ again after its timeout without an answer, or a REP again. "
    "The programs get RDMA_CM_EVENT_UNREACHABLE.",
    "A capture that ends before the answer. A REP without RTU is normal if the client's data follows: data "
    "counts as an RTU.",
    "Check whether the REQ reaches the other host (capture there). If not, it is dropped on the way "
    "(routing, firewall on UDP 4791, wrong VLAN). If it does, its RDMA device does not own that GID, or "
    "ib_cm is not loaded (otherwise a REJ would come).",
    _look,
)
