"""What a soft device sends again, written into a journal as it is sent, each packet with its reason."""

from __future__ import annotations

from typing import Any

from rocekit.journal import JournalWriter
from rocekit.soft.engine.record import (
    FlowEnd,
    ReplyFlow,
    RequestFlow,
    TransferRecord,
    TruthRecorder,
)
from rocekit.wire.psn import MASK


class RepeatLog(TruthRecorder):
    """A recorder that keeps nothing and writes ``packet_repeated`` events.

    Args:
        device: the device's name in the journal.
    """

    def __init__(self, journal: JournalWriter, device: str) -> None:
        super().__init__()
        self._journal = journal
        self._device = device

    def cnp(self, time_ns: int, source: FlowEnd, destination: FlowEnd) -> None:
        """The capture has it."""

    def request_flow(self, local: FlowEnd, remote: FlowEnd, first_psn: int, path_mtu: int) -> RequestFlow:
        return _LoggedRequests(self, local.qpn, first_psn, path_mtu)

    def reply_flow(self, local: FlowEnd, remote: FlowEnd) -> ReplyFlow:
        return _LoggedReplies(self, local.qpn)

    def write(self, qpn: int, time_ns: int, psn: int, reason: str, **fields: Any) -> None:
        self._journal.write(
            "packet_repeated",
            time_ns=time_ns,
            qp=(self._device, qpn),
            psn=psn & MASK,
            reason=reason,
            **fields,
        )


class _Forgotten(list[TransferRecord]):
    """A list that keeps nothing."""

    def append(self, transfer: TransferRecord) -> None:
        """Forget it."""


class _LoggedRequests(RequestFlow):
    __slots__ = ("_log", "_qpn")

    def __init__(self, log: RepeatLog, qpn: int, first_psn: int, path_mtu: int) -> None:
        super().__init__(first_psn, path_mtu)
        self.transfers = _Forgotten()
        self._log = log
        self._qpn = qpn

    def sent(self, transfer: TransferRecord, psn: int, covers: int, time_ns: int, cause: str | None) -> None:
        if psn >= self._high:
            self._high = psn + covers
            return
        rounds = self._again[psn] = self._again.get(psn, 0) + 1
        self._log.write(self._qpn, time_ns, psn, cause or "unknown", round=rounds)


class _LoggedReplies(ReplyFlow):
    __slots__ = ("_log", "_next", "_qpn")

    def __init__(self, log: RepeatLog, qpn: int) -> None:
        super().__init__()
        self._log = log
        self._qpn = qpn
        self._next: int | None = None

    def sent(self, kind: str, psn: int, time_ns: int, syndrome: int | None, msn: int | None) -> None:
        if kind == "ACK":  # not part of a message
            return
        if self._next is None or psn >= self._next:
            self._next = psn + 1
            return
        self._log.write(self._qpn, time_ns, psn, "duplicate", opcode=kind)
