"""What is known of a recorded process, and how a journal line of it is put together."""

from __future__ import annotations

import ipaddress
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rocekit.record.names import ACCESS
from rocekit.record.ring import Record

if TYPE_CHECKING:
    from rocekit.journal.redaction import Redaction


@dataclass(slots=True)
class Qp:
    """What is known of a QP: the part of its lines that names it, and what its work requests depend on."""

    prefix: str
    transport: str
    signals_all: bool
    local_ip: str | None = None
    sq_psn: int | None = None


@dataclass(slots=True)
class Process:
    """What is known of a process from its records so far.

    Attributes:
        devices: names by number. qps: by (device, QPN). handles: (local, remote) address by address handle.
        parent: the process it was forked from, whose devices and QPs it may go on with.
    """

    host: str
    pid: int
    devices: dict[int, str] = field(default_factory=dict)
    qps: dict[tuple[int, int], Qp] = field(default_factory=dict)
    handles: dict[int, tuple[str | None, str | None]] = field(default_factory=dict)
    parent: Process | None = None

    def device(self, number: int) -> str:
        """A device's name, ``?`` when it was opened before the recording."""
        name = self.devices.get(number)
        if name is None:
            return "?" if self.parent is None else self.parent.device(number)
        return name

    def qp(self, device: int, number: int) -> Qp | None:
        found = self.qps.get((device, number))
        if found is None and self.parent is not None:
            return self.parent.qp(device, number)
        return found

    def addresses(self, handle: int) -> tuple[str | None, str | None]:
        """The local and the remote address of an address handle."""
        found = self.handles.get(handle)
        if found is None:
            return (None, None) if self.parent is None else self.parent.addresses(handle)
        return found


class LineMaker:
    """Lines of one process, of what records hold.

    Args:
        process: what is known of it; kept up to date.
        redaction: what becomes of keys and addresses.
        gids: a device's GIDs by its name, told when it is opened.
    """

    def __init__(self, process: Process, redaction: Redaction | None = None, *, gids: Any = None) -> None:
        self.process = process
        self._redact = redaction
        self._gids = gids
        self._tail = f',"clock":"realtime","host":{json.dumps(process.host)},"pid":{process.pid}'

    def _head(self, r: Record) -> str:
        thread = f',"thread":{r.thread}' if r.thread else ""
        return f'{{"time_ns":{r.real_ns},"mono_ns":{r.mono_ns}{self._tail}{thread}'

    def event(self, r: Record, event: str, **fields: Any) -> str:
        """A line of any event; a field that is None is left out."""
        values = {key: value for key, value in fields.items() if value is not None}
        more = json.dumps(values, separators=(",", ":"))[1:-1]
        return f'{self._head(r)},"event":"{event}"{"," if more else ""}{more}}}'

    def _name(self, device: int) -> str:
        return self.process.device(device)

    def _place(self, r: Record) -> dict[str, Any] | None:
        return {"device": self._name(r.device), "qpn": r.number} if r.number else None

    def _qp(self, r: Record) -> Qp:
        qp = self.process.qp(r.device, r.number)
        if qp is None:  # it was there before the recording
            qp = self.process.qps[r.device, r.number] = self._new_qp(r)
        return qp

    def _new_qp(self, r: Record) -> Qp:
        return Qp(f',"qp":{{"device":{json.dumps(self._name(r.device))},"qpn":{r.number}}}', "", False)

    def _key(self, key: int) -> int:
        return key if self._redact is None else self._redact.key(key)

    def _address(self, address: int) -> int:
        return address if self._redact is None else self._redact.address(address)


def access_names(flags: int) -> list[str]:
    """The access rights in an ``ibv_access_flags``."""
    names = [name for bit, name in ACCESS.items() if flags & bit]
    rest = flags & ~sum(ACCESS)
    return [*names, hex(rest)] if rest else names


def ip_of_gid(gid: bytes) -> str | None:
    """A GID as an address, as packets carry it: an IPv4-mapped one as IPv4 (A17.4.5)."""
    if not any(gid):
        return None
    address = ipaddress.IPv6Address(gid)
    return str(address.ipv4_mapped or address)
