"""Work requests and their completions, read from a journal and put together by QP.

A send queue completes in order (IBA Vol. 1, 10.8.3.3). So the completion of a signaled work request implies
that the unsignaled ones before it are done, and after an error completion the rest is flushed (10.3.1).
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rocekit.journal.gaps import (
    Gap,
    MissingFiles,
    Unfinished,
    files_missing,
    filters_in,
    gaps_in,
    since_ns,
    unfinished_in,
)

if TYPE_CHECKING:
    from rocekit.journal.records import Journal, JournalEvent

#: ``ibv_wr_opcode`` names to the operations of transfers.
OPERATIONS: Final = {
    "SEND": "SEND",
    "SEND_WITH_IMM": "SEND",
    "SEND_WITH_INV": "SEND",
    "RDMA_WRITE": "WRITE",
    "RDMA_WRITE_WITH_IMM": "WRITE",
    "RDMA_READ": "READ",
    "ATOMIC_FETCH_AND_ADD": "FETCH_ADD",
    "ATOMIC_CMP_AND_SWP": "CMP_SWAP",
    "FLUSH": "FLUSH",
    "ATOMIC_WRITE": "ATOMIC_WRITE",
}
LOCAL_OPCODES: Final = frozenset({"LOCAL_INV", "BIND_MW"})
RECEIVE_OPCODES: Final = frozenset({"RECV", "RECV_RDMA_WITH_IMM"})
_ABOUT_RECORDS: Final = frozenset({"records_lost", "records_filtered", "qp_totals"})
_NEVER: Final = 1 << 63
FLUSHED: Final = "WR_FLUSH_ERR"
SUCCESS: Final = "SUCCESS"
ATTACHED: Final = "attached"
"""The state of a ``recording`` that began in a program that ran already."""


@dataclass(slots=True, eq=False)
class WorkCompletion:
    """A WC as the program polled it.

    Attributes:
        clock_offset_ns: how far its host's clock is ahead of the capture's; None where that is not known.
    """

    event: JournalEvent
    clock_offset_ns: int | None = None

    def __repr__(self) -> str:
        return f"<WC {self.wr_id}: {self.status}>"

    @property
    def status(self) -> str:
        return str(self.event.fields["status"])

    @property
    def wr_id(self) -> int:
        return int(self.event.fields["wr_id"])

    @property
    def polled_ns(self) -> int:
        return self.event.time_ns

    def to_dict(self) -> dict[str, Any]:
        """For JSON: wr_id, status, polled_ns, host, polled_capture_ns, and the event's other keys."""
        fields = {k: v for k, v in self.event.fields.items() if k not in ("wr_id", "status")}
        return {
            "wr_id": self.wr_id,
            "status": self.status,
            "polled_ns": self.polled_ns,
            "host": self.event.host,
            "polled_capture_ns": _by_the_capture(self.polled_ns, self.clock_offset_ns),
            **fields,
        }


def _by_the_capture(time_ns: int, offset_ns: int | None) -> int | None:
    """A host's time by the capture's clock."""
    return None if offset_ns is None else time_ns - offset_ns


@dataclass(slots=True, eq=False)
class WorkRequest:
    """A WR as the program posted it.

    Attributes:
        wc: its own completion; None where it has none (unsignaled) or none was polled.
        implied_by: the later completion that implies that this unsignaled WR is done.
        matched_by: ``psn`` (its PSNs follow by arithmetic), ``contents`` (of work requests posted at the same
            time, the only one that fits), ``order`` (operation, length and order agree), or None.
        first_psn: its first PSN, unwrapped.
        unmatched_because: why it has no transfer though its QP has packets in the capture; None: none of its
            packets is there.
        clock_offset_ns: how far its host's clock is ahead of the capture's; None where that is not known.
    """

    event: JournalEvent
    qp: JournalQp
    index: int
    wc: WorkCompletion | None = None
    implied_by: WorkCompletion | None = None
    matched_by: str | None = None
    first_psn: int | None = None
    unmatched_because: str | None = None
    clock_offset_ns: int | None = None

    def __repr__(self) -> str:
        return f"<WR {self.wr_id}: {self.opcode} {self.length:,} bytes, {self.qp}>"

    @property
    def wr_id(self) -> int:
        return int(self.event.fields["wr_id"])

    @property
    def posted_ns(self) -> int:
        return self.event.time_ns

    @property
    def opcode(self) -> str:
        return str(self.event.fields.get("opcode", "RECV"))

    @property
    def operation(self) -> str:
        return OPERATIONS.get(self.opcode, self.opcode)

    @property
    def length(self) -> int:
        length = self.event.fields.get("length")
        if length is None:
            length = sum(sge["length"] for sge in self.event.fields.get("sges", ()))
        return int(length)

    @property
    def refused(self) -> bool:
        """Whether the call that posted it failed: the WR never reached the queue."""
        return bool(self.event.fields.get("errno"))

    @property
    def local(self) -> bool:
        """Whether the device does it alone, without a packet."""
        return self.opcode in LOCAL_OPCODES

    @property
    def recorded_psn(self) -> int | None:
        """Its first PSN as the recorder wrote it; None where the journal does not have it."""
        recorded = self.event.fields.get("psn")
        return None if recorded is None else int(recorded)

    @property
    def queue_index(self) -> int:
        """Its place among the work requests that its queue took, of a filtered journal; else -1."""
        return int(self.event.fields.get("queue_index", -1))

    @property
    def overlapped(self) -> bool:
        """Whether another thread posted on its QP during its call, so that its PSN is not certain."""
        return bool(self.event.fields.get("overlapped"))

    @property
    def signaled(self) -> bool:
        return bool(self.event.fields.get("signaled", True))

    @property
    def completion(self) -> WorkCompletion | None:
        """The completion that ends it: its own, or the one that implies it."""
        return self.wc or self.implied_by

    def to_dict(self) -> dict[str, Any]:
        """For JSON: wr_id, opcode, length, posted_ns, host, posted_capture_ns, matched_by, and other keys."""
        skip = ("wr_id", "opcode", "length")
        fields = {k: v for k, v in self.event.fields.items() if k not in skip}
        return {
            "wr_id": self.wr_id,
            "opcode": self.opcode,
            "length": self.length,
            "posted_ns": self.posted_ns,
            "host": self.event.host,
            "posted_capture_ns": _by_the_capture(self.posted_ns, self.clock_offset_ns),
            "matched_by": self.matched_by,
            **fields,
        }


@dataclass(slots=True, eq=False)
class JournalQp:
    """A QP from its creation on, as the journal has it.

    Attributes:
        addresses: those of its device, where the journal has them.
        begun: whether the journal has it from its beginning, so that its first work request is the first one.
        found: whether it was made before the recorder was attached; then its earlier records are missing.
        filtered: whether only some of its work requests are in the journal, because that was asked for.
        lossy_ns: since when records of it are missing; None where none is. From then on a completion
            belongs to the work request with its wr_id, and only if no other work request has the same.
        ends: whether the recording that it is of came to its end.
        span_ns: the times of its first and last event.
    """

    host: str
    device: str
    qpn: int
    transport: str | None = None
    attributes: dict[str, Any] = field(default_factory=dict)
    sends: list[WorkRequest] = field(default_factory=list)
    receives: list[WorkRequest] = field(default_factory=list)
    receive_completions: list[WorkCompletion] = field(default_factory=list)
    stray_completions: list[WorkCompletion] = field(default_factory=list)
    events: list[JournalEvent] = field(default_factory=list)
    addresses: tuple[str, ...] = ()
    begun: bool = False
    found: bool = False
    filtered: bool = False
    lossy_ns: int | None = None
    ends: bool = True
    span_ns: tuple[int, int] | None = None
    _open_sends: deque[WorkRequest] = field(default_factory=deque)
    _open_ids: Counter[int] = field(default_factory=Counter)  # how many of them have each wr_id
    _open_receives: dict[int, deque[WorkRequest]] = field(default_factory=dict)
    _by_wr_id: dict[int, WorkRequest | None] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<JournalQp {self}: {self.transport}>"

    def __str__(self) -> str:
        return f"{self.device} QP {self.qpn:#x} on {self.host}"

    @property
    def is_whole(self) -> bool:
        """Whether what the journal does not have of it did not happen."""
        return self.ends and not self.filtered and self.lossy_ns is None

    def complete(self, event: JournalEvent) -> None:
        """Assign a polled completion to its work request."""
        wc = WorkCompletion(event)
        index = event.fields.get("queue_index")
        if index is not None:
            self._complete_by_index(wc, int(index))
            return
        if self.lossy_ns is not None:
            self._complete_by_unique_id(wc)
            return
        opcode = event.fields.get("opcode")
        if self.filtered and opcode not in RECEIVE_OPCODES and wc.wr_id not in self._open_receives:
            self.stray_completions.append(wc)  # of a work request that was left out, perhaps
        elif opcode in RECEIVE_OPCODES or (opcode is None and not self._has_open_send(wc.wr_id)):
            self._complete_receive(wc)
        else:
            self._complete_send(wc)

    def _complete_by_index(self, wc: WorkCompletion, index: int) -> None:
        """The recorder knew which work request it ends, and that those before it are done, too."""
        while self._open_sends and self._open_sends[0].queue_index <= index:
            wr = self._open_sends.popleft()
            self._open_ids[wr.wr_id] -= 1
            if wr.queue_index == index:
                wr.wc = wc
            elif wr.queue_index >= 0:
                wr.implied_by = wc

    def _complete_by_unique_id(self, wc: WorkCompletion) -> None:
        """Where records are missing, a wr_id identifies a request only if no other has the same."""
        wr = self._by_wr_id.get(wc.wr_id)
        if wr is not None and wr.wc is None:
            wr.wc = wc
        else:
            self.stray_completions.append(wc)

    def _post(self, wr: WorkRequest) -> None:
        """Remember it by its wr_id, unless another has the same."""
        self._by_wr_id[wr.wr_id] = None if wr.wr_id in self._by_wr_id else wr

    def _has_open_send(self, wr_id: int) -> bool:
        """Whether a send with this id is open. (An error completion's opcode means nothing, 11.4.2.1.)"""
        return self._open_ids[wr_id] > 0

    def _complete_send(self, wc: WorkCompletion) -> None:
        if not self._has_open_send(wc.wr_id):
            if wc.wr_id in self._open_receives:
                self._complete_receive(wc)
            else:
                self.stray_completions.append(wc)
            return
        while self._open_sends:
            wr = self._open_sends.popleft()
            self._open_ids[wr.wr_id] -= 1
            if wr.wr_id == wc.wr_id and (
                wr.signaled or wc.status != SUCCESS or not self._has_open_send(wc.wr_id)
            ):
                wr.wc = wc
                return
            wr.implied_by = wc

    def _complete_receive(self, wc: WorkCompletion) -> None:
        self.receive_completions.append(wc)
        waiting = self._open_receives.get(wc.wr_id)
        if waiting:
            wr = waiting.popleft()
            wr.wc = wc
            if not waiting:
                del self._open_receives[wc.wr_id]


@dataclass(slots=True)
class Programs:
    """Every QP of a journal, and the events that belong to no QP.

    Attributes:
        qps: in order of first mention.
        cm_events: rdma_cm events.
        filters: what was left out as was asked for, by process, in the recorder's options.
        gaps: what the journal lacks; files_missing: the same of whole files; unfinished: of ends.
        regions: memory registrations.
        asynchronous: asynchronous events.
    """

    qps: list[JournalQp] = field(default_factory=list)
    cm_events: list[JournalEvent] = field(default_factory=list)
    filters: dict[tuple[str, int], str] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    files_missing: list[MissingFiles] = field(default_factory=list)
    unfinished: list[Unfinished] = field(default_factory=list)
    regions: list[JournalEvent] = field(default_factory=list)
    asynchronous: list[JournalEvent] = field(default_factory=list)

    @property
    def work_requests(self) -> list[WorkRequest]:
        """All sends of all QPs, sorted by the time of posting."""
        return sorted((wr for qp in self.qps for wr in qp.sends), key=lambda wr: wr.posted_ns)


def read_programs(journal: Journal) -> Programs:
    """Sort a journal's events by QP."""
    programs = Programs(
        filters=filters_in(journal),
        gaps=gaps_in(journal),
        files_missing=files_missing(journal),
        unfinished=unfinished_in(journal),
    )
    without_end = {recording.host for recording in programs.unfinished}
    current: dict[tuple[str, str, int], JournalQp] = {}
    lossy = _losses(journal)
    holed = {missing.host for missing in programs.files_missing if missing.between}
    late = {missing.host for missing in programs.files_missing}
    attached = {(e.host, e.pid) for e in journal.of("recording") if e["state"] == ATTACHED}
    addresses: dict[tuple[str, str], tuple[str, ...]] = {}
    for event in journal:
        name = event.event
        if name == "cm_event":
            programs.cm_events.append(event)
        elif name == "mr_registered":
            programs.regions.append(event)
        elif name == "async_event":
            programs.asynchronous.append(event)
        elif name == "device_opened":
            addresses[event.host, str(event["device"])] = tuple(event.get("gids", ()))
        if event.qp is None or name in _ABOUT_RECORDS:
            continue
        key = (event.host, *event.qp)
        qp = current.get(key)
        if qp is None or name == "qp_created":
            qp = current[key] = JournalQp(event.host, *event.qp)
            qp.addresses = addresses.get((event.host, qp.device), ())
            qp.ends = event.host not in without_end
            qp.begun = _is_beginning(event)
            if event.host in holed or (event.host in late and (event.restated or name != "qp_created")):
                qp.lossy_ns = event.time_ns  # it may have posted what is in files that are not here
            if (event.host, event.pid) in attached and name != "qp_created":
                qp.found, qp.lossy_ns = True, event.time_ns
            programs.qps.append(qp)
        qp.filtered = qp.filtered or (event.host, event.pid) in programs.filters
        qp.span_ns = (event.time_ns if qp.span_ns is None else qp.span_ns[0], event.time_ns)
        if lossy and qp.lossy_ns is None:
            since = min(lossy.get(process, _NEVER) for process in (key, (event.host, event.pid)))
            qp.lossy_ns = since if event.time_ns >= since else None
        _apply(qp, event)
    return programs


def _is_beginning(event: JournalEvent) -> bool:
    """Whether a QP can have posted nothing before its first event: it was made, or is set up (10.3.1)."""
    set_up = event.event == "qp_modified" and event.get("state") in ("INIT", "RTR", "RTS")
    return not event.restated and (event.event == "qp_created" or set_up)


def _losses(journal: Journal) -> dict[tuple[str | int, ...], int]:
    """Since when records are missing, by QP (host, device, QPN), or by process (host, pid)."""
    since: dict[tuple[str | int, ...], int] = {}
    for event in journal.of("records_lost"):
        if "srq" in event.fields:
            continue  # a receive of a shared queue is no QP's
        key = (event.host, event.pid) if event.qp is None else (event.host, *event.qp)
        since[key] = min(since.get(key, _NEVER), since_ns(event))
    return since


def _apply(qp: JournalQp, event: JournalEvent) -> None:
    name = event.event
    if name in ("qp_created", "qp_found"):
        qp.transport = event.get("transport")
        qp.attributes.update(event.fields)
    elif name == "qp_modified":
        qp.attributes.update(event.fields)
        qp.events.append(event)
    elif name == "wr_posted":
        wr = WorkRequest(event, qp, len(qp.sends))
        qp.sends.append(wr)
        if not wr.refused:
            qp._open_sends.append(wr)
            qp._open_ids[wr.wr_id] += 1
            qp._post(wr)
    elif name == "recv_posted":
        wr = WorkRequest(event, qp, len(qp.receives))
        qp.receives.append(wr)
        if not wr.refused:
            qp._open_receives.setdefault(wr.wr_id, deque()).append(wr)
            qp._post(wr)
    elif name == "wc_polled":
        qp.complete(event)
    else:
        qp.events.append(event)
