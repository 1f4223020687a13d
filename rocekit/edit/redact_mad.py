"""Redaction of MADs, and of the texts with which programs connect their QPs over TCP."""

from __future__ import annotations

import re
from typing import Final

from rocekit.edit.redact import Redactor
from rocekit.track.pairs.handshake import PERFTEST, PINGPONG
from rocekit.wire import Header
from rocekit.wire.cm import (
    CM_ATTRIBUTES,
    CM_CLASS_VERSION,
    IP_CM,
    MAD,
    MGMT_CLASS_CM,
    ip_service,
)

_QKEYS: Final = frozenset({"local_qkey", "qkey"})
_DATA: Final = frozenset({"private_data", "additional_info"})


def redact_mad(payload: bytes, redactor: Redactor) -> bytes:
    """A redacted MAD of the same length. If it is no CM message, only the common header is kept."""
    if len(payload) < MAD.length:
        return bytes(len(payload))
    head = MAD.unpack(payload)
    layout = CM_ATTRIBUTES.get(_number(head, "attribute_id"))
    is_cm = head["mgmt_class"] == MGMT_CLASS_CM and head["class_version"] == CM_CLASS_VERSION
    if not is_cm or layout is None or head["base_version"] != 1:
        return payload[: MAD.length].ljust(len(payload), b"\0")
    body = payload[MAD.length :]
    # A truncated message is redacted as if it were complete, then truncated again.
    whole = _redact_cm(layout, body.ljust(layout.length, b"\0"), redactor)
    return (payload[: MAD.length] + _cut(layout, whole, len(body))).ljust(len(payload), b"\0")


def _number(values: dict[str, int | bytes], name: str) -> int:
    value = values[name]
    return value if isinstance(value, int) else 0


def _cut(layout: Header, whole: bytes, length: int) -> bytes:
    """A message truncated as before, without the field that is incomplete."""
    for field in layout.fields:
        end = (field.offset + field.bits + 7) // 8
        if end > length and field.name not in _DATA:
            return whole[: field.offset // 8]
    return whole[:length]


def _redact_cm(layout: Header, body: bytes, redactor: Redactor) -> bytes:
    values = layout.unpack(body)
    for name, value in values.items():
        if isinstance(value, bytes):
            if layout.by_name[name].bits == 128:
                values[name] = redactor.gid(value)
            else:
                values[name] = _private(values, name, value, redactor)
        elif name in _QKEYS:
            values[name] = redactor.qkey(value)
        elif name == "partition_key":
            values[name] = redactor.pkey(value)
        elif name == "local_ca_guid":
            values[name] = redactor.guid(value)
    return layout.pack(**values)


def _private(values: dict[str, int | bytes], name: str, value: bytes, redactor: Redactor) -> bytes:
    """Private data; the addresses of the IP CM service before it, if any, are redacted as addresses."""
    service = values.get("service_id")
    if name != "private_data" or not isinstance(service, int) or ip_service(service) is None:
        return redactor.data(value)
    head = IP_CM.unpack(value)
    version = head["ip_version"]
    if version not in (4, 6):
        return redactor.data(value)
    for address in ("source_address", "destination_address"):
        old = head[address]
        assert isinstance(old, bytes)
        if version == 4:
            head[address] = bytes(12) + redactor.gid(bytes(10) + b"\xff\xff" + old[12:])[12:]
        else:
            head[address] = redactor.gid(old)
    return IP_CM.pack(**head) + redactor.data(value[IP_CM.length :])


def redact_offer(payload: bytes, redactor: Redactor) -> bytes:
    """The payload of a TCP segment: zeros except for the QPs in it, whose keys are replaced."""
    out = bytearray(len(payload))
    for pattern in (PERFTEST, PINGPONG):
        for match in pattern.finditer(payload):
            if any(out[match.start() : match.end()]):
                continue
            out[match.start() : match.end()] = _offer(match, redactor)
    return bytes(out)


def _offer(match: re.Match[bytes], redactor: Redactor) -> bytes:
    text, begin = bytearray(match.group(0)), match.start()

    def put(group: int, new: bytes) -> None:
        text[match.start(group) - begin : match.end(group) - begin] = new

    groups = match.groups()
    gid = redactor.gid(bytes.fromhex(groups[-1].replace(b":", b"").decode())).hex()
    if len(groups) == 3:
        put(3, gid.encode())
        return bytes(text)
    put(3, f"{redactor.key(int(groups[2], 16)):08x}".encode())
    put(4, f"{redactor.address(int(groups[3], 16)):016x}".encode())
    put(5, "".join(f"{gid[i : i + 2]}:" for i in range(0, 32, 2)).encode())
    return bytes(text)
