"""The numbers of addresses, by their text."""

from __future__ import annotations

from collections.abc import Sequence


class AddressNumbers:
    """Finds an address in a list that grows, without a search: a flood has as many as packets."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._known = 0

    def of(self, addresses: Sequence[str], text: str | None) -> int:
        """The first place of an address in a list that begins as it was last time; −1: it is not there."""
        for number in range(self._known, len(addresses)):
            self._numbers.setdefault(addresses[number], number)
        self._known = len(addresses)
        return self._numbers.get(text or "", -1)
