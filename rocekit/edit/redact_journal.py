"""Journal events redacted with the same replacements as the packets beside them.

How a value is replaced depends on its key in the journal's schema. Left out are keys that are not in the
schema, and free text (command lines, process names, the kernel's own lines).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from rocekit.journal.schema import SCHEMA

if TYPE_CHECKING:
    from rocekit.edit.redact import Redactor
    from rocekit.journal import JournalEvent

_ADDRESSES: Final = frozenset({"addr", "host_addr", "remote_va", "cm_id", "listen_id"})
_KEYS: Final = frozenset({"lkey", "rkey", "invalidate_rkey", "old_rkey", "mr_rkey", "mr_lkey", "imm"})
_IPS: Final = frozenset({"local_ip", "remote_ip", "dest_ip", "dest_gid"})
_VALUES: Final = frozenset({"compare", "swap_add"})
_TEXTS: Final = frozenset({"program", "arguments", "process", "text"})
_PLAIN: Final = re.compile(r"[A-Za-z0-9_+ ()-]*")
"""Characters of names of statuses, opcodes, states, devices; no address and no path has only these."""

_COUNTER: Final = re.compile(r"[A-Za-z0-9_+ ():-]*")
"""Characters of names of counters; tc's have the handle of the queue, such as 8001:."""


def redact_event(event: JournalEvent, redactor: Redactor) -> JournalEvent:
    """The event with all confidential values replaced."""
    schema = SCHEMA[event.event]
    fields = {}
    for key, value in event.fields.items():
        if schema.kind(key) is not None and key not in _TEXTS:
            new = _redact(key, value, redactor)
            if new is not None:
                fields[key] = new
    if event.event == "recording":
        fields["redacted"] = True
    qp = None if event.qp is None else (_device(event.qp[0], redactor), event.qp[1])
    return replace(event, host=redactor.host(event.host), qp=qp, fields=fields)


def _redact(key: str, value: Any, redactor: Redactor) -> Any:
    """The value's replacement; None: leave it out."""
    if key in _IPS:
        return redactor.ip(value)
    if key == "device":
        return _device(str(value), redactor)
    if key in ("gids", "addresses"):
        return [redactor.ip(gid) for gid in value]
    if key == "sges":
        return [_sge(sge, redactor) for sge in value]
    if key == "private_data":
        return redactor.data(bytes.fromhex(value)).hex()
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return _number_way(key, redactor)(value)
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) else None
    if isinstance(value, list):
        return [name for name in value if isinstance(name, str) and _PLAIN.fullmatch(name)]
    if isinstance(value, dict):
        return {name: n for name, n in value.items() if _COUNTER.fullmatch(name)}
    return None


def _device(name: str, redactor: Redactor) -> str:
    """A device's name; that of a soft device contains its address."""
    kind, at, address = name.partition("@")
    if not _PLAIN.fullmatch(kind):
        return "device"
    return f"{kind}@{redactor.ip(address)}" if at else kind


def _number_way(key: str, redactor: Redactor) -> Callable[[int], int]:
    if key in _ADDRESSES:
        return redactor.address
    if key in _KEYS:
        return redactor.key
    if key in _VALUES:
        return redactor.value
    if key == "qkey":
        return redactor.qkey
    return redactor.name if key == "wr_id" else int


def _sge(sge: Mapping[str, Any], redactor: Redactor) -> dict[str, int]:
    return {
        "addr": redactor.address(int(sge["addr"])),
        "length": int(sge["length"]),
        "lkey": redactor.key(int(sge["lkey"])),
    }
