"""Packets as people describe them: an opcode and whatever differs from what a good sender would put there.

    for packet in craft([{"op": "RC_RDMA_WRITE_FIRST"}, {"op": "RC_RDMA_WRITE_LAST", "icrc": "bad"}]):
        packet.frame, packet.at_ns

or, in a YAML file::

    src: 10.9.0.1            # for all packets
    dest_qpn: 0x11
    psn: 100                 # where each flow begins
    packets:
      - op: RC_RDMA_WRITE_FIRST
      - {op: RC_RDMA_WRITE_LAST, payload: 100, rkey: 0x1234}
      - {op: RC_ACKNOWLEDGE, src: 10.9.0.2, dst: 10.9.0.1, dest_qpn: 0x12, wait_us: 3}

Every field of the opcode's headers goes by ``wire``'s name. A request without a PSN takes the next one of its
flow (source, destination, destination QPN); an answer takes that of the last request that came from its
destination. ``CM_REQ``, ``CM_REP``, … are the connection manager's messages, with their fields.
"""

from __future__ import annotations

import ipaddress
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from rocekit import wire
from rocekit.craft.keys import (
    BITS,
    CM_DEFAULTS,
    CM_HEADERS,
    COMMON,
    FIELD_DEFAULTS,
    FIELDS,
    IP_CM_PORT,
    IPV6_ADDRESSES,
    KEYS,
    MAC_ADDRESS,
    NETWORK,
    PACKET,
    TEXTS,
    fields_of,
)
from rocekit.craft.pace import Outgoing, Rate
from rocekit.wire import FIRST, MIDDLE, Opcode
from rocekit.wire import cm as wire_cm
from rocekit.wire.build import build_frame, build_ip_cm, build_mad, gid, opcode_value
from rocekit.wire.psn import MASK

CM_PREFIX: Final = "CM_"
_MAD_OPCODE: Final = "UD_SEND_ONLY"
_ATOMIC_WRITE: Final = "ATOMIC_WRITE"
_NEITHER: Final = frozenset({"CNP", "RESYNC"})


class Wrong(ValueError):
    """A description that cannot be made into a packet.

    Attributes:
        place: which of the packets, from 0.
        key: the key that is wrong, None where it is the packet as a whole.
    """

    def __init__(self, message: str, place: int, key: str | None = None) -> None:
        super().__init__(message)
        self.place = place
        self.key = key


@dataclass(slots=True)
class _Flows:
    """What the packets so far mean for those to come.

    Attributes:
        next_psn: by (source, destination, destination QPN) and whether answers are meant: they have the PSNs
            of the other side's requests.
        asked: the PSN of the last request, by (source, destination).
        ended: messages that were ended, by (source, destination): what an AETH's MSN counts.
    """

    next_psn: dict[tuple[str, str, int, bool], int] = field(default_factory=dict)
    asked: dict[tuple[str, str], int] = field(default_factory=dict)
    ended: defaultdict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))


def craft(
    packets: Sequence[Mapping[str, Any]],
    common: Mapping[str, Any] = MappingProxyType({}),
    *,
    count: int = 1,
    rate: Rate | None = None,
) -> Iterator[Outgoing]:
    """Make the packets of a description, one after the other.

    Args:
        packets: one mapping a packet, with keys of :mod:`rocekit.craft.keys`.
        common: keys for all of them; ``psn`` is where each flow begins.
        count: how often the whole is made; PSNs run on.
        rate: how fast they follow each other; None: a microsecond apart.

    Raises:
        Wrong: a description that makes no packet; the packets before it were made.
    """
    specs = [_Spec(place, packet, common) for place, packet in enumerate(packets)]
    flows = _Flows()
    at_ns = 0
    for _ in range(count):
        for place, spec in enumerate(specs):
            for number in range(spec.count):
                at_ns += spec.wait_ns
                frame = spec.build(number, flows, specs[place + 1 :])
                yield Outgoing(frame, at_ns, spec.network["dst"])
                at_ns += 1_000 if rate is None else rate.gap_ns(len(frame))


def how_many(packets: Sequence[Mapping[str, Any]], common: Mapping[str, Any]) -> int:
    """How many packets a description makes.

    Raises:
        Wrong: it makes none.
    """
    return sum(_Spec(place, packet, common).count for place, packet in enumerate(packets))


def destinations(packets: Iterable[Mapping[str, Any]], common: Mapping[str, Any]) -> list[str]:
    """Every address that the packets of a description go to."""
    return list(dict.fromkeys(str({**NETWORK, **common, **packet}["dst"]) for packet in packets))


class _Spec:
    """One packet of a description, repeated ``count`` times."""

    def __init__(self, place: int, own: Mapping[str, Any], common: Mapping[str, Any]) -> None:
        self._place = place
        given = {**common, **own}
        if "op" not in given:
            raise Wrong("a packet has op: an opcode such as RC_SEND_ONLY, or CM_REQ", place)
        self.cm = self._message(given["op"])
        self.opcode = self._opcode(_MAD_OPCODE if self.cm else given["op"])
        self._known: Opcode | None = wire.OPCODES.get(self.opcode)
        self._names = self._own_fields()
        self._refuse_strange(own, common)
        self.count = self._whole("count", given.get("count", 1), least=1)
        self.mtu = self._whole("mtu", given.get("mtu", 1024), least=1)
        self.wait_ns = round(self._number("wait_us", given.get("wait_us", 0)) * 1000)
        self.network: dict[str, Any] = {
            key: self._network(key, given.get(key, default)) for key, default in NETWORK.items()
        }
        for key, other in (("src", "dst"), ("dst", "src")):
            if key not in given and ":" in self.network[other]:
                self.network[key] = IPV6_ADDRESSES[key]
        self._icrc = given.get("icrc", "good")
        self._own_psn = "psn" in own
        self._psn = self._whole("psn", given.get("psn", 0))
        if self._psn > MASK:
            raise Wrong(f"psn takes values under {MASK + 1:#x}, got {self._psn}", place, "psn")
        # Where a CM message goes does not follow from where the others go.
        mine = own if self.cm else given
        self._fields = {
            key: self._value(key, value)
            for key, value in given.items()
            if key in self._names and key != "psn" and (key in mine or key not in FIELDS)
        }
        self.step = self._steps(given.get("step", {}))
        self._payload = self._bytes("payload", given["payload"]) if "payload" in given else None
        if self.cm and "payload" in own:
            raise Wrong("the payload of a CM message is its MAD: say its fields", place, "payload")

    def _refuse_strange(self, own: Mapping[str, Any], common: Mapping[str, Any]) -> None:
        """What stands at this packet must be of this opcode; what stands for all, of any."""
        name = CM_PREFIX + self.cm if self.cm else self._known.name if self._known else f"{self.opcode:#04x}"
        for key in own:
            if key not in self._names and key not in NETWORK and key not in PACKET:
                keys = (*PACKET, *NETWORK, *self._names)
                near = "" if key in KEYS else _near_key(key, keys)  # that of another opcode is no misspelling
                raise Wrong(f"{name} has no key {key!r}; it has {', '.join(keys)}{near}", self._place, key)
        for key in common:
            if key not in KEYS:
                there = ", ".join(COMMON) + _near_key(key, COMMON)
                raise Wrong(f"no key {key!r}; there is {there}", self._place, key)

    # ------------------------------------------------------------------ what was written

    def _message(self, op: Any) -> str:
        if not isinstance(op, str) or not op.upper().startswith(CM_PREFIX):
            return ""
        name = op.upper().removeprefix(CM_PREFIX)
        if name not in wire_cm.CM_MESSAGES:
            names = ", ".join(CM_PREFIX + m for m in wire_cm.CM_MESSAGES)
            raise Wrong(f"no CM message is called {op}; there is {names}", self._place, "op")
        return name

    def _opcode(self, op: Any) -> int:
        try:
            return opcode_value(op if isinstance(op, int) else str(op).upper())
        except ValueError as error:
            raise Wrong(f"{error}{_near(str(op))}", self._place, "op") from None

    def _own_fields(self) -> tuple[str, ...]:
        headers = (wire.BTH, *(self._known.headers if self._known else ()))
        if self.cm:
            headers = (*headers, wire_cm.MAD, wire_cm.CM_MESSAGES[self.cm])
        return fields_of(headers)

    def _network(self, key: str, value: Any) -> Any:
        if key in ("src", "dst"):
            try:
                return str(ipaddress.ip_address(str(value)))
            except ValueError:
                raise Wrong(f"{key} is an IP address, not {value!r}", self._place, key) from None
        if key in TEXTS:
            if not MAC_ADDRESS.fullmatch(str(value)):
                raise Wrong(f"{key} is a MAC address, not {value!r}", self._place, key)
            return str(value)
        if key == "vlan" and value is None:
            return None
        if key == "vlan" and isinstance(value, list):
            return tuple(self._limited(key, tag) for tag in value)
        return self._limited(key, value)

    def _limited(self, key: str, value: Any) -> int:
        number = self._whole(key, value)
        if number >> BITS[key]:
            raise Wrong(f"{key} takes values under {1 << BITS[key]:,}, got {number}", self._place, key)
        if key == "roce_version" and number not in (1, 2):
            raise Wrong(f"roce_version is 1 or 2, not {number}", self._place, key)
        return number

    def _value(self, key: str, value: Any) -> int | bytes:
        wide = next((f for h in CM_HEADERS for f in h.fields if f.name == key and f.is_bytes), None)
        if self.cm and wide is not None:
            try:
                return gid(str(value)) if key.endswith("gid") else self._bytes(key, value)
            except ValueError:
                raise Wrong(f"{key} is an address, not {value!r}", self._place, key) from None
        return self._whole(key, value)

    def _whole(self, key: str, value: Any, least: int = 0) -> int:
        if isinstance(value, str):
            try:
                value = int(value, 0)
            except ValueError:
                pass
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise Wrong(f"{key} is a whole number from {least} on, not {value!r}", self._place, key)
        return value

    def _number(self, key: str, value: Any) -> float:
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = -1.0
        if number < 0:
            raise Wrong(f"{key} is a number from 0 on, not {value!r}", self._place, key)
        return number

    def _steps(self, value: Any) -> dict[str, int]:
        if not isinstance(value, Mapping):
            raise Wrong("step is written as {field: by how much}", self._place, "step")
        for key in value:
            if key not in self._names or self.cm:
                raise Wrong(f"{key} cannot be stepped here", self._place, "step")
        return {key: self._whole("step", amount) for key, amount in value.items()}

    def _bytes(self, key: str, value: Any) -> bytes:
        if isinstance(value, str) and value.startswith("text:"):
            return value.removeprefix("text:").encode()
        if isinstance(value, str) and value.startswith("hex:"):
            try:
                return bytes.fromhex(value.removeprefix("hex:"))
            except ValueError:
                raise Wrong(f"{key}: no bytes in hexadecimal: {value!r}", self._place, key) from None
        try:
            size = self._whole(key, value)
        except Wrong:
            size = -1
        if not 0 <= size <= 0xFFFF:
            raise Wrong(
                f"{key} is so many bytes (to 65535), text:… or hex:…, not {value!r}", self._place, key
            ) from None
        return _pattern(size)

    # ------------------------------------------------------------------ what is made of it

    def build(self, number: int, flows: _Flows, following: Sequence[_Spec]) -> bytes:
        """The frame of the ``number``-th repetition."""
        fields: dict[str, Any] = {k: v for k, v in FIELD_DEFAULTS.items() if k in self._names}
        payload = self.payload
        if self.cm:
            fields |= {"dest_qpn": wire.GSI_QPN, "src_qpn": wire.GSI_QPN, "qkey": wire_cm.GSI_QKEY}
            fields |= {k: v for k, v in self._fields.items() if k in FIELDS and k not in self._mad_fields()}
            payload = self._mad()
        else:
            fields |= self._implied(payload, flows, following) | self._fields
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
        """What was asked for, or so much as the opcode needs."""
        known = self._known
        if self._payload is not None:
            return self._payload
        if known is None or not known.payload or known.value == wire.CNP_OPCODE:
            return b""
        if known.operation == _ATOMIC_WRITE:
            return _pattern(wire.ATOMIC_BYTES)
        return _pattern(self.mtu if known.position in (FIRST, MIDDLE) else 64)

    def _number_icrc(self) -> int | None:
        return None if self._icrc in ("good", "bad") else self._whole("icrc", self._icrc)

    def _implied(self, payload: bytes, flows: _Flows, following: Sequence[_Spec]) -> dict[str, int]:
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
            found["dma_length"] = self._dma_length(payload, following)
        return found

    def _dma_length(self, payload: bytes, following: Sequence[_Spec]) -> int:
        """What an RETH announces: the payload of the message's packets, or what a READ asks for."""
        assert self._known is not None
        if self._known.operation in ("READ", "FLUSH"):
            return self.mtu
        total = len(payload)
        if self._known.ends:
            return total
        for spec in following:
            known = spec._known
            if known is None or known.operation != self._known.operation or known.starts:
                continue
            total += len(spec.payload) * spec.count
            if known.ends:
                return total
        return 2 * total

    def _next(self, number: int, dest_qpn: int, fields: Mapping[str, Any], flows: _Flows) -> int:
        """The PSN, and what it means for the packets to come."""
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


def _pattern(size: int) -> bytes:
    """Bytes that count up, so that a place in them can be told."""
    return (bytes(range(256)) * (size // 256 + 1))[:size]


def _bits(known: Opcode | None, name: str) -> int:
    headers = (wire.BTH, *(known.headers if known else ()))
    return next(h.by_name[name].bits for h in headers if name in h.by_name)


def _near_key(key: str, keys: Sequence[str]) -> str:
    import difflib

    found = difflib.get_close_matches(key.lower(), keys, n=1)
    return f"; do you mean {found[0]}?" if found else ""


def _near(name: str) -> str:
    import difflib

    found = difflib.get_close_matches(name.upper(), wire.OPCODE_NAMES, n=3)
    return f"; do you mean {', '.join(found)}?" if found else "; such as RC_SEND_ONLY"
