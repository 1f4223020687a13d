"""Keys and memory addresses replaced by others, the same by the same everywhere in a recording.

What the analysis works with is kept: equal keys stay equal, an address stays as far from the start of its
region as it was. Of addresses a window of 2^40 bytes is moved as a whole (heap, stack and mappings lie in
different ones); 0 stays 0. The connection manager's private data, in which programs tell each other keys and
addresses, is replaced as a whole. IP addresses, QP numbers and PSNs are in the packets anyway and stay.
"""

from __future__ import annotations

import hashlib
import secrets

_WINDOW = 40
_MASK = (1 << _WINDOW) - 1


class Redaction:
    """One secret's replacements. Two recordings have the same ones only with the same secret."""

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
        """A 32-bit key's replacement."""
        if not key:
            return 0
        found = self._keys.get(key)
        if found is None:
            found = self._keys[key] = self._hash(b"key", key, 4) or 1
        return found

    def address(self, address: int) -> int:
        """A 64-bit address's replacement."""
        if not address:
            return 0
        window = address >> _WINDOW
        move = self._windows.get(window)
        if move is None:
            # Whole pages, and not so far that what lies in one window could reach over its end.
            move = self._windows[window] = self._hash(b"window", window, 8) & 0x7FFF_FFFF_FFFF_F000
        return (address + move) & 0xFFFF_FFFF_FFFF_FFFF

    def data(self, data: bytes) -> bytes:
        """As many bytes of no meaning: equal data stays equal, zeros at its end stay zeros."""
        own = data.rstrip(b"\0")
        return hashlib.shake_256(self._secret + own).digest(len(own)).ljust(len(data), b"\0")
