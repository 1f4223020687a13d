"""The parts that journal lines of one process have in common."""

from __future__ import annotations

import ipaddress
import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from rocekit.record.process import Process, RecordedQp
from rocekit.record.ring import Record
from rocekit.record.verbs_names import ACCESS

if TYPE_CHECKING:
    from rocekit.journal.redaction import Redaction


TIME_BITS: Final = 62
"""Of a time in nanoseconds, as the journal takes it: differences of two fit 63 bits."""
QPN_BITS: Final = 24
_encoded = json.JSONEncoder(separators=(",", ":")).encode
"""``json.dumps`` would make such an encoder for each line."""


class LineMaker:
    """The parts that journal lines of one process have in common.

    Args:
        process: its state; kept up to date.
        redaction: replaces keys and addresses.
        gids: gives a device's GIDs by its name, for the line of its opening.
    """

    def __init__(self, process: Process, redaction: Redaction | None = None, *, gids: Any = None) -> None:
        self.process = process
        self._redact = redaction
        self._gids = gids
        self._opened: dict[tuple[str, bool | None], str] = {}
        """What lines of a device's opening say after their heads."""
        self._tail = f',"clock":"realtime","host":{json.dumps(process.host)},"pid":{process.pid}'

    def _head(self, r: Record) -> str:
        if r.real_ns >> TIME_BITS or r.mono_ns >> TIME_BITS:
            raise ValueError("no record has such a time: something wrote over it")
        thread = f',"thread":{r.thread}' if r.thread else ""
        return f'{{"time_ns":{r.real_ns},"mono_ns":{r.mono_ns}{self._tail}{thread}'

    def event(self, r: Record, event: str, **fields: Any) -> str:
        """A line of any event; a field that is None is left out."""
        values = {key: value for key, value in fields.items() if value is not None}
        more = _encoded(values)[1:-1]
        return f'{self._head(r)},"event":"{event}"{"," if more else ""}{more}}}'

    def _name(self, device: int) -> str:
        return self.process.device(device)

    def _place(self, r: Record) -> dict[str, Any] | None:
        return {"device": self._name(r.device), "qpn": self._qpn(r)} if r.number else None

    @staticmethod
    def _qpn(r: Record) -> int:
        if r.number >> QPN_BITS:
            raise ValueError("no QP has such a number: something wrote over the record")
        return r.number

    def _qp(self, r: Record) -> RecordedQp:
        qp = self.process.qp(r.device, r.number)
        if qp is None:  # it was made before the recording
            qp = self.process.qps[r.device, r.number] = self._new_qp(r)
        return qp

    def _new_qp(self, r: Record) -> RecordedQp:
        return RecordedQp(
            f',"qp":{{"device":{json.dumps(self._name(r.device))},"qpn":{self._qpn(r)}}}', "", False
        )

    def _key(self, key: int) -> int:
        return key if self._redact is None else self._redact.key(key)

    def _address(self, address: int) -> int:
        return address if self._redact is None else self._redact.address(address)


def access_names(flags: int) -> list[str]:
    """The access rights in an ``ibv_access_flags``."""
    names = [name for bit, name in ACCESS.items() if flags & bit]
    rest = flags & ~sum(ACCESS)
    return [*names, hex(rest)] if rest else names


@lru_cache(1024)
def ip_of_gid(gid: bytes) -> str | None:
    """A GID as the address in packets: an IPv4-mapped one as IPv4 (A17.4.5)."""
    if not any(gid):
        return None
    address = ipaddress.IPv6Address(gid)
    return str(address.ipv4_mapped or address)


@lru_cache(1024)
def gid_text(gid: bytes) -> str:
    """A GID as an IPv6 address."""
    return str(ipaddress.IPv6Address(gid))
