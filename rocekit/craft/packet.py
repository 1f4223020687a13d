"""One packet of a description, and its frame."""

from __future__ import annotations

import difflib
import struct
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rocekit import wire
from rocekit.craft.keys import (
    CM_DEFAULTS,
    CM_HEADERS,
    COMMON,
    FIELD_DEFAULTS,
    FIELDS,
    IP_CM_PORT,
    IPV6_ADDRESSES,
    KEYS,
    NETWORK,
    PACKET,
    fields_of,
)
from rocekit.craft.values import CM_PREFIX, ValueReader, Wrong, pattern
from rocekit.wire import FIRST, MIDDLE, Opcode
from rocekit.wire import cm as wire_cm
from rocekit.wire.build import build_frame, build_ip_cm, build_mad, gid
from rocekit.wire.psn import MASK

_MAD_OPCODE: Final = "UD_SEND_ONLY"
_ATOMIC_WRITE: Final = "ATOMIC_WRITE"
_NEITHER: Final = frozenset({"CNP", "RESYNC"})


@dataclass(slots=True)
class Flows:
    """PSNs and MSNs of the packets so far, from which those of the next packets follow.

    Attributes:
        next_psn: by (source, destination, destination QPN, whether it is a response): responses have the PSNs
            of the other side's requests.
        asked: the PSN of the last request, by (source, destination).
        ended: messages that ended, by (source, destination): an AETH's MSN counts them.
    """

    next_psn: dict[tuple[str, str, int, bool], int] = field(default_factory=dict)
    asked: dict[tuple[str, str], int] = field(default_factory=dict)
    ended: defaultdict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))


class PacketSpec:
    """One packet of a description, repeated ``count`` times."""

    def __init__(self, place: int, own: Mapping[str, Any], common: Mapping[str, Any]) -> None:
        self._place = place
        self._read = ValueReader(place)
        given = {**common, **own}
        if "op" not in given:
            raise Wrong("a packet has op: an opcode such as RC_SEND_ONLY, or CM_REQ", place)
        self.cm = self._read.cm_message(given["op"])
        self.opcode = self._read.opcode(_MAD_OPCODE if self.cm else given["op"])
        self._known: Opcode | None = wire.OPCODES.get(self.opcode)
        self._names = self._own_fields()
        self._refuse_strange(own, common)
        self.count = self._read.whole("count", given.get("count", 1), least=1)
        self.mtu = self._read.whole("mtu", given.get("mtu", 1024), least=1)
        self.wait_ns = round(self._read.number("wait_us", given.get("wait_us", 0)) * 1000)
        self.network: dict[str, Any] = {
            key: self._read.network(key, given.get(key, default)) for key, default in NETWORK.items()
        }
        for key, other in (("src", "dst"), ("dst", "src")):
            if key not in given and ":" in self.network[other]:
                self.network[key] = IPV6_ADDRESSES[key]
        self._icrc = given.get("icrc", "good")
        self._own_psn = "psn" in own
        self._psn = self._read.whole("psn", given.get("psn", 0))
        if self._psn > MASK:
            raise Wrong(f"psn takes values under {MASK + 1:#x}, got {self._psn}", place, "psn")
        # The fields for all packets say nothing of a CM message's.
        mine = own if self.cm else given
        self._fields = {
            key: self._value(key, value)
            for key, value in given.items()
            if key in self._names and key != "psn" and (key in mine or key not in FIELDS)
        }
        self.step = self._steps(given.get("step", {}))
        self._payload = self._read.octets("payload", given["payload"]) if "payload" in given else None
        if self.cm and "payload" in own:
            raise Wrong("the payload of a CM message is its MAD: give its fields", place, "payload")

    def _refuse_strange(self, own: Mapping[str, Any], common: Mapping[str, Any]) -> None:
        """Refuse keys that this opcode does not have; those for all packets may be of any opcode."""
        name = CM_PREFIX + self.cm if self.cm else self._known.name if self._known else f"{self.opcode:#04x}"
        for key in own:
            if key not in self._names and key not in NETWORK and key not in PACKET:
                keys = (*PACKET, *NETWORK, *self._names)
                near = "" if key in KEYS else _near_key(key, keys)  # another opcode's key is not misspelled
                raise Wrong(f"{name} has no key {key!r}; it has {', '.join(keys)}{near}", self._place, key)
        for key in common:
            if key not in KEYS:
                there = ", ".join(COMMON) + _near_key(key, COMMON)
                raise Wrong(f"no key {key!r}; there is {there}", self._place, key)

    def _own_fields(self) -> tuple[str, ...]:
        headers = (wire.BTH, *(self._known.headers if self._known else ()))
        if self.cm:
            headers = (*headers, wire_cm.MAD, wire_cm.CM_MESSAGES[self.cm])
        return fields_of(headers)

    def _value(self, key: str, value: Any) -> int | bytes:
        wide = next((f for h in CM_HEADERS for f in h.fields if f.name == key and f.is_bytes), None)
        if self.cm and wide is not None:
            try:
                return gid(str(value)) if key.endswith("gid") else self._read.octets(key, value)
            except ValueError:
                raise Wrong(f"{key} is an address, not {value!r}", self._place, key) from None
        return self._read.whole(key, value)

    def _steps(self, value: Any) -> dict[str, int]:
        if not isinstance(value, Mapping):
            raise Wrong("step is written as {field: increment}", self._place, "step")
        for key in value:
            if key not in self._names or self.cm:
                raise Wrong(f"{key} cannot be stepped here", self._place, "step")
        return {key: self._read.whole("step", amount) for key, amount in value.items()}

    # ------------------------------------------------------------------ the frame

    def build(self, number: int, flows: Flows, length: int) -> bytes:
        """The frame of the ``number``-th repetition; ``length`` is what its RETH announces."""
        fields: dict[str, Any] = {k: v for k, v in FIELD_DEFAULTS.items() if k in self._names}
        payload = self.payload
        if self.cm:
            fields |= {"dest_qpn": 1, "src_qpn": 1, "qkey": wire_cm.GSI_QKEY}
            fields |= {k: v for k, v in self._fields.items() if k in FIELDS and k not in self._mad_fields()}
            payload = self._mad()
        else:
            fields |= self._implied(flows, length) | self._fields
        fields["psn"] = self._next(number, int(fields["dest_qpn"]), fields, flows)
        for key, amount in self.step.items():
            if key != "psn":
                bits = _bits(self._known, key)
                fields[key] = (int(fields.get(key, 0)) + number * amount) & ((1 << bits) - 1)
        try:
            frame = build_frame(
                self.opcode, payload=payload, **self.network, **fields, icrc=self._number_icrc()
            )
        except (ValueError, OverflowError, struct.error) as error:
            raise Wrong(str(error), self._place) from None
        if self._icrc == "bad":
            frame = frame[:-1] + bytes([frame[-1] ^ 0xFF])
        return frame

    @property
    def payload(self) -> bytes:
        """The payload of the description, or as many bytes as the opcode needs."""
        known = self._known
        if self._payload is not None:
            return self._payload
        if known is None or not known.payload or known.value == wire.CNP_OPCODE:
            return b""
        if known.operation == _ATOMIC_WRITE:
            return pattern(wire.ATOMIC_BYTES)
        return pattern(self.mtu if known.position in (FIRST, MIDDLE) else 64)

    def _number_icrc(self) -> int | None:
        return None if self._icrc in ("good", "bad") else self._read.whole("icrc", self._icrc)

    def _implied(self, flows: Flows, length: int) -> dict[str, int]:
        """Fields that follow from the rest of the description."""
        known = self._known
        if known is None:
            return {}
        found: dict[str, int] = {}
        names = self._names
        if known.transport in ("RC", "RD", "XRC") and known.ends and not known.response:
            found["ackreq"] = 1
        if "msn" in names:
            there = flows.ended[self.network["dst"], self.network["src"]]
            found["msn"] = there & MASK
        if "dma_length" in names:
            found["dma_length"] = length
        return found

    def _next(self, number: int, dest_qpn: int, fields: Mapping[str, Any], flows: Flows) -> int:
        """The PSN; the flows take note of it."""
        known, takes = self._known, self._psns(fields)
        src, dst = self.network["src"], self.network["dst"]
        response = known is not None and known.response
        flow = (src, dst, dest_qpn, response)
        step = self.step.get("psn", takes)
        if self._own_psn:
            psn = self._psn + number * step
        elif known is not None and response and known.starts:
            psn = flows.asked.get((dst, src), self._psn) + number * step
        else:
            psn = flows.next_psn.get(flow, self._psn) + (step - takes if number else 0)
        psn &= MASK
        flows.next_psn[flow] = psn + takes & MASK
        if known is not None and not response and known.operation not in _NEITHER:
            flows.asked[src, dst] = psn
            flows.ended[src, dst] += known.ends
        return psn

    def _psns(self, fields: Mapping[str, Any]) -> int:
        """How many PSNs the packet takes: a READ request as many as its responses."""
        if self._known is not None and self._known.operation == "READ":
            return wire.psns_of(int(fields.get("dma_length", 0)), self.mtu)
        return 1

    # ------------------------------------------------------------------ CM messages

    def _mad_fields(self) -> set[str]:
        headers = (wire_cm.MAD, wire_cm.CM_MESSAGES[self.cm])
        return {f.name for header in headers for f in header.fields}

    def _mad(self) -> bytes:
        names = wire_cm.CM_MESSAGES[self.cm].by_name
        fields: dict[str, Any] = {k: v for k, v in CM_DEFAULTS.items() if k in names}
        src, dst = self.network["src"], self.network["dst"]
        if self.cm == "REQ":
            fields |= {
                "path_mtu_code": wire.PATH_MTU_CODES.get(self.mtu, 0),
                "primary_local_port_gid": gid(src),
                "primary_remote_port_gid": gid(dst),
                "private_data": build_ip_cm(src, dst, IP_CM_PORT),
            }
        mine = self._mad_fields()
        fields |= {k: v for k, v in self._fields.items() if k in mine}
        try:
            return build_mad(self.cm, fields.pop("transaction_id", 1), **fields)
        except ValueError as error:
            raise Wrong(str(error), self._place) from None


def announced_lengths(specs: Sequence[PacketSpec]) -> list[int]:
    """What the RETH of each packet announces: the payload of its message's packets, or what a READ requests.

    A message that does not end announces twice what is there of it.
    """
    lengths: list[int] = []
    rest: dict[str, tuple[int, int]] = {}  # by operation: bytes up to the next end, and 2 where there is none
    for spec in reversed(specs):
        known = spec._known
        if known is None:
            lengths.append(0)
            continue
        size, (behind, times) = len(spec.payload), rest.get(known.operation, (0, 2))
        if known.operation in ("READ", "FLUSH"):
            lengths.append(spec.mtu)
        else:
            lengths.append(size if known.ends else times * (size + behind))
        if not known.starts:
            all_of_it = size * spec.count
            rest[known.operation] = (all_of_it, 1) if known.ends else (behind + all_of_it, times)
    return lengths[::-1]


def _bits(known: Opcode | None, name: str) -> int:
    headers = (wire.BTH, *(known.headers if known else ()))
    return next(h.by_name[name].bits for h in headers if name in h.by_name)


def _near_key(key: str, keys: Sequence[str]) -> str:
    found = difflib.get_close_matches(key.lower(), keys, n=1)
    return f"; do you mean {found[0]}?" if found else ""
