"""Packets and bytes of each flow in each second, and a sample of packets' fingerprints."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from rocekit import wire
from rocekit.packets import ICRC_INVALID
from rocekit.packets.flow_numbers import MIXER
from rocekit.wire import CNP_OPCODE
from rocekit.wire.network import ECN_CE

if TYPE_CHECKING:
    from rocekit.packets import Packets

#: Fingerprints kept of a capture, at most: above, only every second one is, again and again.
MOST_FINGERPRINTS: Final = 8192
_SECOND_NS: Final = 1_000_000_000
_IS_NAK: Final = np.array([wire.syndrome_kind(v) in (wire.NAK, wire.RNR_NAK) for v in range(256)])
#: What no switch changes; as ``packets.identity``, but with addresses by their text.
_IDENTITY: Final = ("dest_qpn", "opcode", "psn", "ip_id", "payload_length")

#: (src, dst, destination QPN, second) → packets, bytes, CE, CNPs, NAKs.
Rates = dict[tuple[str, str, int, int], NDArray[np.int64]]

#: Fingerprints, times, and numbers of source and destination.
_Prints = tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


class Meter:
    """Counts by flow and second: ``analyze(…, watch=meter)``.

    Attributes:
        rates: by flow and second. level: of 2^level packets one has its fingerprint kept.
    """

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget all packets: they come again, in another order."""
        self.rates: Rates = {}
        self.level = 0
        self.packets = 0
        self._hashes: list[np.uint64] = []
        self._prints: list[_Prints] = []
        self._kept = 0
        self.addresses: list[str] = []

    def __call__(self, packets: Packets) -> None:
        self.packets += len(packets)
        sound = (packets.malformed == 0) & (packets.opcode >= 0)
        if not sound.all():
            packets = packets.where(sound)
        if not len(packets):
            return
        self._count(packets)
        self._print(packets)

    def _count(self, packets: Packets) -> None:
        second = packets.time_ns // _SECOND_NS
        first = int(second.min())
        span = int(second.max()) - first + 1
        # One number a flow and second; a QPN has 24 bits, so that 64 are enough for hours of a batch.
        flow = packets.flow.astype(np.int64)
        key = flow * span + (second - first)
        _, at, place = np.unique(key, return_index=True, return_inverse=True)
        n = len(at)
        naks = _IS_NAK[packets.syndromes()]
        values = (
            np.bincount(place, minlength=n),
            np.bincount(place, packets.payload_length, n).astype(np.int64),
            np.bincount(place, packets.ecn == ECN_CE, n).astype(np.int64),
            np.bincount(place, packets.opcode == CNP_OPCODE, n).astype(np.int64),
            np.bincount(place, naks, n).astype(np.int64),
        )
        table = np.stack(values, axis=1).astype(np.int64)
        names = packets.addresses
        columns = (packets.src[at], packets.dst[at], packets.dest_qpn[at], second[at])
        for row, (src, dst, qpn, when) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
            own = names[src], names[dst], qpn, when
            before = self.rates.get(own)
            self.rates[own] = table[row] if before is None else before + table[row]

    def _print(self, packets: Packets) -> None:
        self.addresses = packets.addresses
        for name in self.addresses[len(self._hashes) :]:
            digest = blake2b(name.encode(), digest_size=8).digest()
            self._hashes.append(np.uint64(int.from_bytes(digest, "little")))
        hashes = np.array(self._hashes, np.uint64)
        value = hashes[packets.src] * np.uint64(3) ^ hashes[packets.dst]
        for name in _IDENTITY:
            value = (value ^ packets[name].astype(np.int64).view(np.uint64)) * np.uint64(MIXER)
            value ^= value >> np.uint64(29)
        value = (value ^ packets.syndromes().astype(np.int64).view(np.uint64)) * np.uint64(MIXER)
        value ^= value >> np.uint64(32)
        kept = (value & self._mask() == 0) & (packets.icrc_state != ICRC_INVALID)
        if kept.any():
            src, dst = packets.src[kept].astype(np.int64), packets.dst[kept].astype(np.int64)
            self._prints.append((value[kept], packets.time_ns[kept].copy(), src, dst))
            self._kept += int(kept.sum())
        while self._kept > MOST_FINGERPRINTS:
            self.level += 1
            mask = self._mask()
            self._prints = [tuple(c[own[0] & mask == 0] for c in own) for own in self._prints]
            self._kept = sum(len(own[0]) for own in self._prints)

    def _mask(self) -> Any:
        return np.uint64((1 << self.level) - 1)

    def fingerprints(self) -> dict[str, Any]:
        """The kept fingerprints as columns, in their order."""
        if not self._prints:
            return {"fingerprint": [], "time_ns": [], "src": [], "dst": [], "level": []}
        value, time_ns, src, dst = (np.concatenate(c) for c in zip(*self._prints, strict=True))
        order = np.lexsort((time_ns, value))
        names = self.addresses
        return {
            "fingerprint": value[order],
            "time_ns": time_ns[order],
            "src": [names[i] for i in src[order].tolist()],
            "dst": [names[i] for i in dst[order].tolist()],
            "level": np.full(len(order), self.level, np.int64),
        }
