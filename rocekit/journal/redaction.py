"""Redaction: keys and memory addresses of a recording replaced by others, each always by the same one.

What the analysis needs stays: equal keys stay equal, and an address keeps its distance from the start of its
region. Addresses move by windows of 2^40 bytes, each window as a whole (heap, stack and mappings lie in
different windows); 0 stays 0. The connection manager's private data is replaced as a whole, because programs
exchange keys and addresses in it. IP addresses, QP numbers and PSNs stay: they are in the packets anyway.
"""

from __future__ import annotations

import hashlib
import secrets

_WINDOW = 40
_MASK = (1 << _WINDOW) - 1


class Redaction:
    """The replacements that one secret gives. Two recordings have the same ones only with the same secret."""

    def __init__(self, secret: bytes | None = None) -> None:
        self._secret = secrets.token_bytes(32) if secret is None else secret
        self._keys: dict[int, int] = {}
        self._windows: dict[int, int] = {}

    def _hash(self, what: bytes, number: int, size: int) -> int:
        digest = hashlib.blake2b(
            number.to_bytes(8, "little"), key=self._secret, person=what, digest_size=size
        )
        return int.from_bytes(digest.digest(), "little")

    def key(self, key: int) -> int:
        """The replacement of a 32-bit key."""
        if not key:
            return 0
        found = self._keys.get(key)
        if found is None:
            found = self._keys[key] = self._hash(b"key", key, 4) or 1
        return found

    def address(self, address: int) -> int:
        """The replacement of a 64-bit address."""
        if not address:
            return 0
        window = address >> _WINDOW
        move = self._windows.get(window)
        if move is None:
            # Whole pages; the mask keeps a moved window below the end of the 64-bit range.
            move = self._windows[window] = self._hash(b"window", window, 8) & 0x7FFF_FFFF_FFFF_F000
        return (address + move) & 0xFFFF_FFFF_FFFF_FFFF

    def data(self, data: bytes) -> bytes:
        """The replacement of data, equally long: equal data stays equal, zeros at its end stay zeros."""
        own = data.rstrip(b"\0")
        return hashlib.shake_256(self._secret + own).digest(len(own)).ljust(len(data), b"\0")
