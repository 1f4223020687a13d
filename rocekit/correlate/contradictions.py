"""Contradictions: what in a transfer's packets shows that a work request cannot have become it.

Compared is only what both sides know: packets may be cut or missing, and a journal may have less.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rocekit import wire

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocekit.journal.work_requests import WorkRequest
    from rocekit.track.transfers import Transfer

_NO_LENGTH: Final = wire.ATOMICS | {"FLUSH"}
"""Operations whose length is no payload (a FLUSH's is the range to flush, A19.4)."""
_IMMEDIATE: Final = frozenset({"SEND_WITH_IMM", "RDMA_WRITE_WITH_IMM"})
_INVALIDATING: Final = "SEND_WITH_INV"


@dataclass(frozen=True, slots=True)
class Judge:
    """Compares work requests with transfers.

    Attributes:
        redacted: whether the journal's keys and addresses are not those of the packets.
        datagrams: whether each work request names its destination.
    """

    redacted: bool = False
    datagrams: bool = False

    def contradiction(self, wr: WorkRequest, transfer: Transfer) -> str | None:
        """What contradicts a match, in words that follow "the message has"; None if nothing does."""
        if wr.operation != transfer.operation:
            return f"another operation ({transfer.operation})"
        fields = wr.event.fields
        if self._whole(transfer) and wr.operation not in _NO_LENGTH and wr.length != transfer.bytes:
            return f"another length ({transfer.bytes:,} bytes)"
        if transfer.started and not self.redacted:
            for name, words in (("remote_va", "address"), ("rkey", "key")):
                seen, asked = getattr(transfer, name), fields.get(name)
                if _differ(seen, asked):
                    return f"another {words} ({seen:#x})"
        if (
            transfer.started
            and wr.operation in wire.ATOMICS
            and _differ(transfer.swap_add, fields.get("swap_add"))
        ):
            return f"another operand ({transfer.swap_add:#x})"
        if self.datagrams:
            there = transfer.responder
            for key, name in (("dest_qpn", "qpn"), ("dest_ip", "ip")):
                if _differ(there[name], fields.get(key)):
                    return f"another destination ({there[name]})"
        return self._at_its_end(wr, transfer)

    def _at_its_end(self, wr: WorkRequest, transfer: Transfer) -> str | None:
        """What its last packet has: an immediate, a key to invalidate."""
        if not self._whole(transfer):
            return None
        fields = wr.event.fields
        wants = wr.opcode in _IMMEDIATE
        if transfer.with_immediate is not None and bool(transfer.with_immediate) != wants:
            return "no immediate" if wants else "an immediate"
        if wants and _differ(transfer.immediate, fields.get("imm")):
            return f"another immediate ({transfer.immediate:#x})"
        wants = wr.opcode == _INVALIDATING
        if transfer.with_invalidate is not None and bool(transfer.with_invalidate) != wants:
            return "no key to invalidate" if wants else "a key to invalidate"
        if wants and not self.redacted and _differ(transfer.invalidate_rkey, fields.get("invalidate_rkey")):
            return f"another key to invalidate ({transfer.invalidate_rkey:#x})"
        return None

    @staticmethod
    def _whole(transfer: Transfer) -> bool:
        """Whether its length is known and its last packet was seen."""
        return transfer.ended and transfer.status != "incomplete" and not transfer.maybe_several


#: Pairs of kinds whose verdict is remembered.
_MOST_KNOWN: Final = 1 << 16


class Verdicts:
    """Which work requests contradict which transfers: those that are alike are compared once."""

    def __init__(self, judge: Judge, wrs: Sequence[WorkRequest], transfers: Sequence[Transfer]) -> None:
        self.judge, self._wrs, self._transfers = judge, wrs, transfers
        numbers: dict[tuple[object, ...], int] = {}
        self.wr_kinds = [numbers.setdefault(_wr_kind(wr), len(numbers)) for wr in wrs]
        self._numbers: dict[tuple[object, ...], int] = {}
        self._transfer_kinds: dict[int, int] = {}  # of those that were looked at: few work requests see few
        self._known: dict[int, bool] = {}

    def fits(self, wr: int, transfer: int) -> bool:
        """Whether nothing contradicts that one became the other; both by their places."""
        kind = self._transfer_kinds.get(transfer)
        if kind is None:
            values = _transfer_kind(self._transfers[transfer], self.judge.datagrams)
            kind = self._transfer_kinds[transfer] = self._numbers.setdefault(values, len(self._numbers))
        pair = self.wr_kinds[wr] << 32 | kind
        found = self._known.get(pair)
        if found is None:
            found = self.judge.contradiction(self._wrs[wr], self._transfers[transfer]) is None
            if len(self._known) < _MOST_KNOWN:
                self._known[pair] = found
        return found


#: What is compared of a work request's event.
_COMPARED: Final = ("remote_va", "rkey", "swap_add", "dest_qpn", "dest_ip", "imm", "invalidate_rkey")


def _wr_kind(wr: WorkRequest) -> tuple[object, ...]:
    get = wr.event.fields.get
    return wr.operation, wr.opcode, wr.length, *map(get, _COMPARED)


def _transfer_kind(t: Transfer, datagrams: bool) -> tuple[object, ...]:
    there = t.responder if datagrams else {}
    return (
        *(t.operation, t.bytes, t.started, t.ended, t.status == "incomplete", t.maybe_several),
        *(t.remote_va, t.rkey, t.swap_add, t.with_immediate, t.immediate, t.with_invalidate),
        *(t.invalidate_rkey, there.get("qpn"), there.get("ip")),
    )


def _differ(seen: object, asked: object) -> bool:
    """Whether two values are known and not the same."""
    return seen is not None and asked is not None and seen != asked
