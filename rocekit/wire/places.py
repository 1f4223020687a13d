# cython: boundscheck=False, wraparound=False
"""Numbers in bytes by their places (see ``Header.numbers``); compiled, since a flood has many to read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rocekit.wire.headers import NumberPlace

#: A number of more bytes may not fit a machine's word.
_WORD_BYTES: Final = 8


def number_at(place: NumberPlace, data: bytes) -> int | None:
    """The number at a place; None if the bytes end before its end."""
    first, last, shift, mask = place
    if last > len(data):
        return None
    if last - first > _WORD_BYTES:
        return int.from_bytes(data[first:last], "big") >> shift & mask
    value, low = 0, mask
    for at in range(first, last):
        value = value << 8 | data[at]
    return value >> shift & low


def numbers_of(places: dict[str, NumberPlace], names: tuple[str, ...], data: bytes) -> list[int | None]:
    """The numbers with some names; None where there is no such place, or not in these bytes."""
    found: list[int | None] = []
    for name in names:
        place = places.get(name)
        found.append(None if place is None else number_at(place, data))
    return found
