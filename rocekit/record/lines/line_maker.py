"""The parts that journal lines of one process have in common."""

from __future__ import annotations

import json
from functools import lru_cache

from rocekit.machine.gid_text import address_of, ipv6_text
from rocekit.record.process import Process, RecordedQp
from rocekit.record.verbs_names import ACCESS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    from rocekit.journal.redaction import Redaction
    from rocekit.record.ring import Record


TIME_BITS: Final = 62
"""Of a time in nanoseconds, as the journal takes it: differences of two fit 63 bits."""
QPN_BITS: Final = 24
_encoded = lru_cache(1024)(json.JSONEncoder(separators=(",", ":")).encode)
"""``json.dumps`` would make such an encoder for each line."""
_encoded_anew = json.JSONEncoder(separators=(",", ":")).encode


class Written:
    """A value that is JSON already."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


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
        line = f'{self._head(r)},"event":"{event}"'
        for key, value in fields.items():
            if value is None:
                continue
            # Numbers, words and places of QPs, which most values are, need no encoder.
            kind = type(value)
            if kind is int:
                line += f',"{key}":{value}'
            elif kind is bool:
                line += f',"{key}":true' if value else f',"{key}":false'
            elif kind is str:
                line += f',"{key}":{_encoded(value)}'
            elif kind is Written:
                line += f',"{key}":{value.text}'
            else:
                line += f',"{key}":{_encoded_anew(value)}'
        return line + "}"

    def _name(self, device: int) -> str:
        return self.process.device(device)

    def _place(self, r: Record) -> Written | None:
        """A record's QP, in JSON."""
        if not r.number:
            return None
        return Written(f'{{"device":{_encoded(self._name(r.device))},"qpn":{self._qpn(r)}}}')

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
            f',"qp":{{"device":{_encoded(self._name(r.device))},"qpn":{self._qpn(r)}}}', "", False
        )

    def _device_is(self, number: int, name: str) -> None:
        """A device was opened: its number was another one's before, perhaps."""
        process = self.process
        process.devices[number] = name
        for key in [key for key in process.qps if key[0] == number]:
            del process.qps[key]

    def _key(self, key: int) -> int:
        return key if self._redact is None else self._redact.key(key)

    def _address(self, address: int) -> int:
        return address if self._redact is None else self._redact.address(address)


@lru_cache(64)
def access_names(flags: int) -> Written:
    """The access rights in an ``ibv_access_flags``, in JSON."""
    names = [name for bit, name in ACCESS.items() if flags & bit]
    rest = flags & ~sum(ACCESS)
    return Written(_encoded_anew([*names, hex(rest)] if rest else names))


@lru_cache(1024)
def ip_of_gid(gid: bytes) -> str | None:
    """A GID as the address in packets: an IPv4-mapped one as IPv4 (A17.4.1.1)."""
    return address_of(gid) if any(gid) else None


@lru_cache(1024)
def gid_text(gid: bytes) -> str:
    """A GID as an IPv6 address."""
    return ipv6_text(gid)
