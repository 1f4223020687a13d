"""``local-error``: a device ended its own program's work request with an error, and no packet shows why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from rocekit.findings.finding import ERROR, Finding, Rule
from rocekit.wire.words import plural

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.journal.work_requests import JournalQp, WorkRequest

#: What ends a send because of its own side (IBA Vol. 1, 11.6.2, Completion Return Status), in words.
_WORDS: Final = {
    "LOC_LEN_ERR": "its length is more than the QP, or the path, allows",
    "LOC_QP_OP_ERR": "its device could not carry it out",
    "LOC_PROT_ERR": "its memory is not registered for this use: a wrong L_Key, range or protection domain",
    "MW_BIND_ERR": "the memory window cannot be bound so",
    "GENERAL_ERR": "the device could not say why",
    "FATAL_ERR": "the device failed",
}
_FLUSHED: Final = "WR_FLUSH_ERR"


def _look(evidence: Evidence) -> Iterator[Finding]:
    for qp in evidence.journal.programs.qps if evidence.journal is not None else ():
        failed = [wr for wr in qp.sends if wr.wc is not None and wr.wc.status in _WORDS]
        if failed:
            yield _finding(evidence, qp, failed)


def _finding(evidence: Evidence, qp: JournalQp, failed: list[WorkRequest]) -> Finding:
    wr = failed[0]
    assert wr.wc is not None
    status = wr.wc.status
    flushed = sum(w.wc is not None and w.wc.status == _FLUSHED for w in qp.sends)
    bound = evidence.journal.bound.get(id(qp))
    transfer = evidence.journal.carried.get(wr)
    found: dict[str, Any] = {
        "host": qp.host,
        "device": qp.device,
        "qpn": qp.qpn,
        "status": status,
        "wr_id": wr.wr_id,
        "opcode": wr.opcode,
        "count": len(failed),
        "flushed": flushed,
    }
    so = f"; {plural(flushed, 'other WR')} of the queue flushed" if flushed else ""
    return RULE.finding(
        f"{qp.device} on {qp.host} ended WR {wr.wr_id} ({wr.opcode}) of QP {qp.qpn:#x} with {status}: "
        f"{_WORDS[status]}{so}",
        connection=None if bound is None else bound[0],
        transfer=transfer,
        evidence=found,
    )


RULE = Rule(
    "local-error",
    ERROR,
    "a device ended its own program's work request with an error",
    "A work request of the send queue ended with an error of its own side, such as LOC_PROT_ERR: what it "
    "asks for is wrong, and its device found that out itself. An RC QP is in the error state then, and what "
    "else is in its queues is flushed (IBA Vol. 1, 10.3.1). Its packets are not sent, or not all.",
    "The completion's status in a journal. The packets alone do not show it.",
    "remote-access-error, invalid-request: the other side refused the request, with a NAK. Completions with "
    "WR_FLUSH_ERR only follow another error.",
    "Look at the work request that is named, and not at the network: its L_Key and range (LOC_PROT_ERR), its "
    "length (LOC_LEN_ERR), its opcode, the QP's state and capabilities (LOC_QP_OP_ERR). rdma_rxe says "
    "LOC_QP_OP_ERR of memory under a wrong L_Key too.",
    _look,
)
