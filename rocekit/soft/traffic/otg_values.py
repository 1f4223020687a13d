"""Reading values of an Open Traffic Generator configuration; what is wrong is one line with its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rocekit.files.yaml import Value

#: RFC 3168, by OTG's names.
ECN: Final = {"non_ect": 0, "ect_1": 1, "ect_0": 2, "ce": 3}


def sequence(value: Value | None) -> Sequence[Value]:
    """The items of a list; none where there is no list."""
    if value is None or value.content is None:
        return ()
    if not isinstance(value.content, list):
        raise value.wrong("a list is expected here: - …")
    return value.content


def named(value: Value, known: Sequence[str], what: str) -> Mapping[str, Value]:
    """The keys of an object that must have a name."""
    keys = value.mapping(known, what)
    if "name" not in keys:
        raise value.wrong(f"{what} has a name")
    return keys


def text(value: Value) -> str:
    if not isinstance(value.content, str | int) or isinstance(value.content, bool):
        raise value.wrong(f"a text is expected, not {value.plain()!r}")
    return str(value.content)


def number(value: Value, what: str, least: int, most: int) -> int:
    content = value.content
    if not isinstance(content, int) or isinstance(content, bool) or not least <= content <= most:
        raise value.wrong(f"{what} is a whole number from {least} to {most}, not {value.plain()!r}")
    return content


def percent(value: Value, what: str) -> float:
    content = value.content
    if not isinstance(content, int | float) or isinstance(content, bool) or not 0 <= content <= 100:
        raise value.wrong(f"{what} is a percentage from 0 to 100, not {value.plain()!r}")
    return float(content)


def flag(value: Value, what: str) -> bool:
    if not isinstance(value.content, bool):
        raise value.wrong(f"{what} is true or false, not {value.plain()!r}")
    return value.content


def choice(value: Value, names: Sequence[str], what: str) -> str:
    if value.content not in names:
        raise value.wrong(f"{what} is one of {', '.join(names)}, not {value.plain()!r}")
    return str(value.content)


def hexadecimal(value: Value, what: str, digits: int) -> int:
    """A number in hexadecimal digits; YAML takes "00001234" without quotation marks as a number."""
    digits_given = str(value.content).removeprefix("0x")
    try:
        if isinstance(value.content, bool) or len(digits_given) > digits:
            raise ValueError
        return int(digits_given, 16)
    except ValueError:
        raise value.wrong(
            f"{what} is up to {digits} hexadecimal digits in quotation marks, not {value.plain()!r}"
        ) from None
