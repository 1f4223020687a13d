"""Fatal NAKs: ``remote-access-error``, ``invalid-request``, ``remote-operational-error``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from rocekit import wire
from rocekit.findings.evidence import status_of
from rocekit.findings.finding import ERROR, MAX_LISTED, Finding, Rule
from rocekit.findings.rules.mtu import invalid_by_size
from rocekit.findings.rules.read_depth import invalid_by_depth
from rocekit.findings.stories import is_nak
from rocekit.track.transfers import UNACKNOWLEDGED
from rocekit.wire.psn import wire_psn

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.track.connections import Connection
    from rocekit.track.events import Event
    from rocekit.track.transfers import Transfer

_FLUSHED = "WR_FLUSH_ERR"


def _naks(
    evidence: Evidence, code: int
) -> Iterator[tuple[Connection, int, list[tuple[Event, Transfer | None]]]]:
    """The NAKs with ``code``, by connection and requester's side."""
    found: dict[tuple[int, int], tuple[Connection, int, list[tuple[Event, Transfer | None]]]] = {}
    for transfer, event in evidence.fatal_naks:
        if is_nak(event, code):
            connection, side = transfer.connection, transfer.side
            found.setdefault((connection.id, side), (connection, side, []))[2].append((event, transfer))
    for connection, event in evidence.stray_naks:
        if is_nak(event, code):
            key = (connection.id, event.side)
            found.setdefault(key, (connection, event.side, []))[2].append((event, None))
    yield from found.values()


def _looker(code: int, what: str) -> Callable[[Evidence], Iterator[Finding]]:
    """The ``look`` of the rule for NAKs with ``code``; ``what`` says in its titles what the responder did."""

    def look(evidence: Evidence) -> Iterator[Finding]:
        rule = next(r for r in RULES if r.look is look)
        for connection, side, naks in _naks(evidence, code):
            if code == wire.NAK_INVALID_REQUEST and (
                invalid_by_size(evidence, connection, side)
                or invalid_by_depth(evidence, connection, side, [t for _, t in naks])
            ):
                continue
            event, transfer = naks[0]
            found: dict[str, Any] = {
                "count": len(naks),
                "psns": [wire_psn(e.psn) for e, _ in naks[:MAX_LISTED]],
                "syndrome": event.syndrome,
            }
            title = f"{connection.named(1 - side)} {what} at PSN {wire_psn(event.psn)}"
            if transfer is not None:
                title = f"{connection.named(1 - side)} {what}: {_request_words(transfer)}"
                found |= _request(transfer)
                found["flushed"] = _flushed(evidence, transfer)
                if code == wire.NAK_REMOTE_ACCESS:
                    found |= (region := evidence.known_region(connection, side, transfer))
                    title += f" ({region['region']})" if region else ""
            first = 0 if transfer is None else transfer.first_frame
            yield rule.finding(
                title,
                connection=connection,
                transfer=transfer,
                frames=[first, *(e.frame for e, _ in naks)],
                evidence=found,
            )

    return look


def _request_words(transfer: Transfer) -> str:
    """The request in words."""
    length = transfer.bytes if transfer.length is None else transfer.length
    words = f"{transfer.operation} of {length:,} bytes"
    if transfer.rkey is not None:
        words += f" at {transfer.remote_va or 0:#x} with rkey {transfer.rkey:#x}"
    return f"{words}, PSN {wire_psn(transfer.first_psn)}"


def _request(transfer: Transfer) -> dict[str, Any]:
    """The request as evidence."""
    found: dict[str, Any] = {"operation": transfer.operation, "bytes": transfer.length or transfer.bytes}
    if transfer.rkey is not None:
        found |= {"rkey": transfer.rkey, "remote_va": transfer.remote_va}
    if (status := status_of(transfer)) is not None:
        found["wc_status"] = status
    return found


def _flushed(evidence: Evidence, transfer: Transfer) -> int:
    """How many later transfers of the same requester were not executed."""
    others = evidence.transfers_of.get((transfer.connection.id, transfer.side), ())
    return sum(
        t.first_psn > transfer.first_psn and (status_of(t) == _FLUSHED or t.status == UNACKNOWLEDGED)
        for t in others
    )


ACCESS = Rule(
    "remote-access-error",
    ERROR,
    "bad rkey, out of bounds, or no permission",
    "The responder denied access to its memory: a wrong or outdated rkey, an address or length outside the "
    "region, or a permission that was not given when the region was registered. Its QP goes to error. The "
    "requester gets WC 10 (REM_ACCESS_ERR), and WRs posted after it are flushed (WC 5).",
    "A NAK with syndrome 0x62 for a WRITE, READ or atomic. With a journal: a RETH outside every region "
    "that the peer registered.",
    "invalid-request: the opcode or length was not acceptable, or the address of an atomic is no multiple of "
    "8 (IBA Vol. 1, 9.4.5.1).",
    "Compare rkey, remote_va and length with what the peer registered (its mr_registered events, or print "
    "addr, length and rkey there). Is the rkey that of this region, in the same protection domain? Is "
    "address + length inside it? Do the region (REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC) and the QP "
    "(qp_access_flags) permit it? Was the region deregistered before the requester knew?",
    _looker(wire.NAK_REMOTE_ACCESS, "denied access to its memory"),
)
INVALID = Rule(
    "invalid-request",
    ERROR,
    "the responder did not accept the opcode or length",
    "The responder did not accept the request: an opcode that it does not support or that its QP does not "
    "permit (qp_access_flags), more READs or atomics than agreed, a message longer than the receive buffer "
    "posted for it, a length that does not match its packets, or an atomic at an address that is no multiple "
    "of 8. The requester gets WC 9 (REM_INV_REQ_ERR).",
    "A NAK with syndrome 0x61.",
    "mtu-mismatch: the packet sizes are wrong. read-depth: more READs or atomics were outstanding than "
    "agreed.",
    "Compare the length of the message with the receive posted for it. Check that the peer's QP permits "
    "the operation (qp_access_flags), and that both ends agree on max_rd_atomic and max_dest_rd_atomic.",
    _looker(wire.NAK_INVALID_REQUEST, "rejected the request as invalid"),
)
OPERATIONAL = Rule(
    "remote-operational-error",
    ERROR,
    "the responder failed to execute the request",
    "The responder had an error of its own while it executed the request, such as a local protection error "
    "at a receive buffer or a memory error. The requester gets WC 11 (REM_OP_ERR).",
    "A NAK with syndrome 0x63.",
    "remote-access-error: there the request was wrong, here the responder is at fault. But Linux's rdma_rxe "
    "also sends this NAK for a SEND that is longer than its receive (others: invalid-request).",
    "Look at the responder: its completion for the receive (LOC_PROT_ERR and similar), its async events, "
    "dmesg. The usual cause is a receive with a wrong lkey or address.",
    _looker(wire.NAK_REMOTE_OPERATIONAL, "failed to execute the request"),
)
RULES = (ACCESS, INVALID, OPERATIONAL)
