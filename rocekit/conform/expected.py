"""Packets that must come from the device: what a drill says of them, and whether a packet fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rocekit.conform.seen import SeenPacket
from rocekit.conform.values import (
    Names,
    UnknownName,
    Wanted,
    field_words,
    read_bytes,
    read_wanted,
    wanted_syndrome,
)
from rocekit.craft.keys import fields_of
from rocekit.craft.values import ValueReader, Wrong
from rocekit.files.yaml import Value
from rocekit.wire import BTH, GSI_QPN, OPCODES
from rocekit.wire import cm as wire_cm
from rocekit.wire import psn as serial

_READER: Final = ValueReader(0)
_NETWORK: Final = ("ecn", "dscp", "ttl", "sport")
_OWN: Final = ("op", "psn", "payload", "length")


@dataclass(frozen=True, slots=True)
class ExpectedPacket:
    """What a packet must be.

    Attributes:
        opcodes: it has one of these; empty for a CM message.
        psn: relative to the start.
        fields: what the drill says of fields; others may have any value.
    """

    opcodes: frozenset[int]
    cm: str
    psn: Wanted | None
    fields: Mapping[str, Wanted]
    payload: bytes | None
    length: Wanted | None

    @property
    def names(self) -> frozenset[str]:
        """The fields that it says something of."""
        return frozenset(self.fields)

    def differs(self, seen: SeenPacket, names: Names) -> str | None:
        """In words, the first thing in which a packet differs from this; None if it fits."""
        if seen.faults:
            return seen.faults[0]
        if self.cm != seen.cm or (not self.cm and seen.fields["opcode"] not in self.opcodes):
            return f"it is {seen.name}"
        if self.cm and (fault := self._mad_differs(seen, names)):
            return fault
        qpn = seen.fields["dest_qpn"]
        if not self.cm and "dest_qpn" not in self.fields and qpn != names["peer_qpn"]:
            return f"its dest_qpn is {qpn:#x}, the peer's is {names['peer_qpn']:#x}"
        if self.psn is not None:
            start = names["rq" if seen.response else "sq"]
            found = serial.diff(seen.fields["psn"], start & serial.MASK)
            if not self.psn.test(found, names):
                return f"its psn is {found}, not {self.psn.text}"
        for name, wanted in self.fields.items():
            value = seen.cm_fields.get(name, seen.fields.get(name))
            if value is None:
                return f"it has no {name}"
            if not wanted.test(value, names):
                return f"its {name} is {field_words(name, value)}, not {_meaning(wanted, names)}"
        if self.length is not None and not self.length.test(len(seen.payload), names):
            return f"it has {len(seen.payload)} bytes of payload, not {self.length.text}"
        if self.payload is not None and seen.payload != self.payload:
            return payload_difference(seen.payload, self.payload)
        return None

    def _mad_differs(self, seen: SeenPacket, names: Names) -> str | None:
        """What every CM message must have (13.2.3, 12.6)."""
        wanted = {"dest_qpn": GSI_QPN, "src_qpn": GSI_QPN, "qkey": wire_cm.GSI_QKEY}
        if "remote_comm_id" in seen.cm_fields:
            wanted["remote_comm_id"] = names["peer_comm_id"]
        has = {**seen.fields, **seen.cm_fields}
        for key, value in wanted.items():
            if key not in self.fields and has.get(key) != value:
                return f"its {key} is {has.get(key, 0):#x}, not {value:#x}"
        return None


def _meaning(wanted: Wanted, names: Names) -> str:
    """What was wanted, with the number that an expression stands for."""
    if "$" not in wanted.text or " or " in wanted.text or ".." in wanted.text:
        return wanted.text
    from rocekit.conform.values import read_sum

    try:
        return f"{wanted.text} ({read_sum(Value(wanted.text, '', 0), '').value(names):#x})"
    except UnknownName:
        return wanted.text


def payload_difference(found: bytes, wanted: bytes) -> str:
    """How two payloads differ, in words."""
    if len(found) != len(wanted):
        return f"it has {len(found)} bytes of payload, not {len(wanted)}"
    at = next(i for i, (a, b) in enumerate(zip(found, wanted, strict=True)) if a != b)
    return f"byte {at} of its payload is {found[at]:#04x}, not {wanted[at]:#04x}"


def read_expected(value: Value) -> ExpectedPacket:
    """The packet that a mapping describes.

    Raises:
        ScenarioError: with file and line.
    """
    content = value.content
    if not isinstance(content, dict) or "op" not in content:
        raise value.wrong("a packet is written as {op: RC_ACKNOWLEDGE, psn: 0, …}")
    at = content["op"]
    asked = at.content if isinstance(at.content, list) else [at]
    opcodes, cm = set(), ""
    headers: tuple[Any, ...] = (BTH,)
    for item in asked:
        try:
            cm = _READER.cm_message(item.content)
            opcode = _READER.opcode("UD_SEND_ONLY" if cm else item.content)
        except Wrong as error:
            raise item.wrong(str(error)) from None
        opcodes.add(opcode)
        known = OPCODES.get(opcode)
        headers += known.headers if known is not None else ()
        if cm:
            headers += (wire_cm.MAD, wire_cm.CM_MESSAGES[cm])
    names = (*_OWN, *_NETWORK, *(name for name in fields_of(headers) if name != "psn"))
    value.mapping(names, f"{at.content if isinstance(at.content, str) else 'a packet'}")
    fields = {
        key: wanted_syndrome(item) if key == "syndrome" else read_wanted(item, key)
        for key, item in content.items()
        if key not in _OWN and item.content != "any"
    }
    psn, length, payload = content.get("psn"), content.get("length"), content.get("payload")
    return ExpectedPacket(
        frozenset() if cm else frozenset(opcodes),
        cm,
        None if psn is None or psn.content == "any" else read_wanted(psn, "psn"),
        fields,
        None if payload is None else read_bytes(payload, "payload"),
        None if length is None else read_wanted(length, "length"),
    )
