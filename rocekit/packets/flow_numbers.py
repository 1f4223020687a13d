# cython: boundscheck=False, wraparound=False, initializedcheck=False
"""Small numbers for addresses and one-way flows, in the order in which they are first seen.

Both are hash tables with open addressing: compiled, a packet costs some nanoseconds, whatever the table's
size. The hash has secret factors: whoever makes a capture could otherwise choose addresses that all start
at one place of the table, so that each packet looks at all before it. The numbers do not depend on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import urandom
from typing import Any, Final, overload

import numpy as np

from rocekit.packets.rows import COMPILED, column
from rocekit.wire import QPN_BITS
from rocekit.wire.network import MAPPED, OCTETS, address_text

try:
    import cython
except ImportError:
    from rocekit import _cython as cython

#: Bits for the number of an address where it is part of a key.
ADDRESS_BITS: Final = 20
_ADDRESS_BITS: Final = ADDRESS_BITS
_QPN_BITS: Final = QPN_BITS
_LEAST: Final = 1024  # places; always a power of two
MIXER: Final = 0x9E37_79B9_7F4A_7C15  # 2^64 over the golden ratio: spreads near keys
_FIRST: Final = int.from_bytes(urandom(8), "little") | 1
_SECOND: Final = int.from_bytes(urandom(8), "little") | 1
_WORD: Final = 0xFFFF_FFFF_FFFF_FFFF
_SHIFT: Final = 32
_OCTETS: Final = OCTETS
#: The words of IPv6 addresses as text, made as they come; empty before the first.
_hexes: list[str] = []


class PairNumbers:
    """The numbers of pairs of 64-bit numbers.

    Attributes:
        count: pairs so far.
        high, low: their halves, by number; of those that are not known yet, 0.
    """

    def __init__(self) -> None:
        self.count = 0
        self.high: Any = None
        self.low: Any = None
        self._numbers: Any = None
        self._places(_LEAST)

    @property
    def known(self) -> Pairs:
        """The pairs, by number; more come to them."""
        return Pairs(self)

    def _places(self, size: int) -> None:
        count = self.count
        high, low = np.zeros(size // 2, np.uint64), np.zeros(size // 2, np.uint64)
        if count:
            high[:count], low[:count] = self.high[:count], self.low[:count]
        numbers = np.full(size, -1, np.int64)
        self._size = size
        self.high, self.low, self._numbers = (
            (high, low, numbers) if COMPILED else (high.tolist(), low.tolist(), numbers.tolist())
        )
        self._insert()

    def of(self, high: Any, low: Any) -> Any:
        """Each pair's number (int64), from two columns."""
        found = np.empty(len(high), np.int64)
        if not COMPILED:
            high, low = high.tolist(), low.tolist()
        start = 0
        while start < len(found):
            start = self._look_up(high, low, found, start)
            if start < len(found):
                self._places(2 * self._size)
        return found

    def _look_up(self, high: Any, low: Any, found: Any, start: int) -> int:
        """Fill ``found`` from ``start`` on, until the table is half full. Returns where it stopped."""
        other = -1
        with cython.nogil:
            for i in range(start, len(found)):
                # Most are as the one before, or as the last one that was another: two hosts take turns.
                if i > start and low[i] == low[i - 1] and high[i] == high[i - 1]:
                    found[i] = found[i - 1]
                    continue
                turn, other = other, i - 1
                if turn >= start and low[i] == low[turn] and high[i] == high[turn]:
                    found[i] = found[turn]
                    continue
                at = self._find(high[i], low[i])
                if self._numbers[at] < 0:
                    if self.count * 2 >= self._size:
                        return i
                    self.high[self.count], self.low[self.count] = high[i], low[i]
                    self._numbers[at] = self.count
                    self.count += 1
                found[i] = self._numbers[at]
        return len(found)

    def _find(self, high: int, low: int) -> int:
        """The place of an address in the table, or the free place for it."""
        last = self._size - 1
        at = _mixed(high ^ _mixed(low)) & last
        number = self._numbers[at]
        while number >= 0 and (self.low[number] != low or self.high[number] != high):
            at = at + 1 & last
            number = self._numbers[at]
        return at

    def _insert(self) -> None:
        """Find a place for all pairs so far."""
        last = self._size - 1
        for number in range(self.count):
            at = _mixed(self.high[number] ^ _mixed(self.low[number])) & last
            while self._numbers[at] >= 0:
                at = at + 1 & last
            self._numbers[at] = number


class Pairs(Sequence[tuple[int, int]]):
    """Pairs of 64-bit numbers that have numbers."""

    def __init__(self, numbers: PairNumbers) -> None:
        self._numbers = numbers

    def __len__(self) -> int:
        return self._numbers.count

    @overload
    def __getitem__(self, number: int) -> tuple[int, int]: ...
    @overload
    def __getitem__(self, number: slice) -> list[tuple[int, int]]: ...
    def __getitem__(self, number: int | slice) -> tuple[int, int] | list[tuple[int, int]]:
        if isinstance(number, slice):
            return [self[n] for n in range(*number.indices(len(self)))]
        return int(self._numbers.high[number]), int(self._numbers.low[number])


class Addresses:
    """The numbers of addresses.

    Attributes:
        texts: the addresses as text, by number.
    """

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._pairs = PairNumbers()

    def of(self, high: Any, low: Any) -> Any:
        """Each address's number (int64): columns of the 64-bit halves; IPv4 as IPv4-mapped."""
        found = self._pairs.of(high, low)
        _add_texts(self.texts, self._pairs)
        return found


def _add_texts(texts: list[str], known: PairNumbers) -> None:
    """Write the addresses that are not among the texts yet (see ``address_text``)."""
    for number in range(len(texts), known.count):
        high, low = known.high[number], known.low[number]
        if not high and low >> 32 == MAPPED:
            a, b, c, d = low >> 24 & 0xFF, low >> 16 & 0xFF, low >> 8 & 0xFF, low & 0xFF
            texts.append(f"{_OCTETS[a]}.{_OCTETS[b]}.{_OCTETS[c]}.{_OCTETS[d]}")
        elif high:
            texts.append(ipv6_of(high, low))
        else:
            texts.append(address_text(high, low))


def ipv6_of(high: int, low: int) -> str:
    """An IPv6 address as ``inet_ntop`` writes it, if its upper half is not zero.

    That prints it with a format in glibc, which takes six times as long: a flood has an address a packet.
    """
    global _hexes
    longest = begins = zeros = 0
    for n in range(8):
        word = (high if n < 4 else low) >> (48 - 16 * (n & 3)) & 0xFFFF
        zeros = 0 if word else zeros + 1
        if zeros > longest:
            longest, begins = zeros, n + 1 - zeros
    ends = begins + longest if longest > 1 else -1  # one zero alone is written
    if not _hexes:
        _hexes = [""] * 0x10000
    parts = []
    for n in range(8):
        word = (high if n < 4 else low) >> (48 - 16 * (n & 3)) & 0xFFFF
        if begins <= n < ends:
            # "::" is an empty part between two colons; at the first or the last word it has no other side.
            if n == begins:
                parts.append("")
            if n in (0, 7):
                parts.append("")
            continue
        text = _hexes[word]
        if not text:
            text = _hexes[word] = f"{word:x}"
        parts.append(text)
    return ":".join(parts)


def _mixed(key: int) -> int:
    """Where the search for a key starts: the lower bits, in which near keys are far apart."""
    key = key * _FIRST & _WORD
    key = (key ^ key >> _SHIFT) * _SECOND & _WORD
    return key >> _SHIFT


def numbers_of_keys(keys: Any, known: dict[int, int], count: int, found: Any) -> int:
    """Fill in the number of each key; those that are not ``known`` get the next ones, from ``count`` on.

    Returns the number that is next then.
    """
    for row in range(len(found)):
        key = int(keys[row])
        number = known.get(key)
        if number is None:
            number = known[key] = count
            count += 1
        found[row] = number
    return count


class FlowNumbers:
    """The numbers of one-way flows: source address, destination address, destination QPN, scope.

    Attributes:
        count: flows so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self._scoped = PairNumbers()
        self._places(_LEAST)

    def _places(self, size: int) -> None:
        self._size = size
        keys, numbers = np.zeros(size, np.uint64), np.full(size, -1, np.int64)
        self._keys: Any = keys if COMPILED else keys.tolist()
        self._numbers: Any = numbers if COMPILED else numbers.tolist()

    def of(self, src: Any, dst: Any, qpn: Any, scope: Any = None) -> Any:
        """Each packet's flow (int64): columns of address numbers and destination QPNs.

        Args:
            scope: the numbers of the packets' scopes (see ``wrappings``); None: all are 0.
        """
        if scope is not None:
            # Sources in scopes have numbers of their own, from the last one down.
            scoped = self._scoped.of(scope.astype(np.uint64), src.astype(np.uint64))
            src = np.where(scope == 0, src, (1 << ADDRESS_BITS) - 1 - scoped)
        src, dst, qpn = column(src), column(dst), column(qpn)
        found = np.empty(len(src), np.int64)
        start = 0
        while start < len(found):
            start = self._look_up(src, dst, qpn, found, start)
            if start < len(found):
                self._grow()
        return found

    def _look_up(self, src: Any, dst: Any, qpn: Any, found: Any, start: int) -> int:
        """Fill ``found`` from ``start`` on, until the table is half full. Returns where it stopped."""
        last = self._size - 1
        with cython.nogil:
            for i in range(start, len(found)):
                here, there, number = src[i], dst[i], qpn[i]  # scoped sources need all 64 bits
                key = ((here << _ADDRESS_BITS | there) << _QPN_BITS | number) & _WORD
                at = _mixed(key) & last
                while self._numbers[at] >= 0 and self._keys[at] != key:
                    at = at + 1 & last
                if self._numbers[at] < 0:
                    if self.count * 2 >= self._size:
                        return i
                    self._keys[at], self._numbers[at] = key, self.count
                    self.count += 1
                found[i] = self._numbers[at]
        return len(found)

    def _grow(self) -> None:
        keys, numbers = self._keys, self._numbers
        self._places(2 * self._size)
        self._insert(keys, numbers)

    def _insert(self, keys: Any, numbers: Any) -> None:
        last = self._size - 1
        for i in range(len(numbers)):
            if numbers[i] >= 0:
                at = _mixed(keys[i]) & last
                while self._numbers[at] >= 0:
                    at = at + 1 & last
                self._keys[at], self._numbers[at] = keys[i], numbers[i]
