"""Numbers on the command line, with units: ``1k`` packets, ``64k`` bytes, ``250ms``, ``2%``.

In a count k, M and G are thousands, as people count; in a size they are powers of 1,024, as memory is.
"""

from __future__ import annotations

import math
import re
from types import MappingProxyType
from typing import Final, NamedTuple

import click

_THOUSANDS: Final = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
_BINARY: Final = {"": 1.0, "b": 1.0} | {
    letter + tail: 1024.0**power
    for power, letter in enumerate("kmg", 1)
    for tail in ("", "i", "ib")  # kB is 1,000 for some and 1,024 for others: not taken
}
TIME_UNITS: Final = MappingProxyType(
    {"": 1.0, "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
)
"""Seconds by unit."""
_NUMBER: Final = re.compile(r"([+-]?(?:\d[\d,_]*(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?)\s*([^\d\s]*)", re.IGNORECASE)
_EXACT_INTEGERS: Final = 2**53


class _Kind(NamedTuple):
    """A kind of numbers: its units, whether they are whole, what stands for one in help, and examples."""

    units: dict[str, float]
    whole: bool
    metavar: str
    what: str


_KINDS: Final = {
    "count": _Kind(_THOUSANDS, True, "N", "a number such as 100, 1k or 2M"),
    "size": _Kind(_BINARY, True, "BYTES", "a number of bytes such as 1000, 64k or 1M"),
    "seconds": _Kind(dict(TIME_UNITS), False, "SECONDS", "a time such as 10, 250ms, 1.5s or 5m"),
    "share": _Kind({"": 1.0, "%": 0.01}, False, "SHARE", "a share such as 0.02 or 2%"),
    "number": _Kind(_THOUSANDS, False, "N", "a number such as 100 or 2.5"),
}


def parse(text: str, kind: str) -> float | int:
    """A number with a unit, or in hexadecimal.

    Args:
        kind: ``count``, ``size``, ``seconds``, ``share`` or ``number``.

    Raises:
        ValueError: it is no such number; the message shows what is.
    """
    about = _KINDS[kind]
    wrong = ValueError(f"{text!r} is not {about.what}")
    text = text.strip()
    try:
        if about.whole:
            return int(text.replace(",", ""), 0)
    except ValueError:
        pass
    found = _NUMBER.fullmatch(text)
    factor = None if found is None else about.units.get(found[2].lower())
    if found is None or factor is None:
        raise wrong
    value = float(found[1].replace(",", "").replace("_", "")) * factor
    if not math.isfinite(value):
        raise wrong
    if not about.whole:
        # 2% is 0.02 and not 0.02 with an error in the last bit.
        return float(f"{value:.15g}")
    if value != round(value) or abs(value) > _EXACT_INTEGERS:
        raise wrong
    return round(value)


class Number(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.5 on
    """The one type of numeric options: a kind of :func:`parse`, and its limits.

    Args:
        kind: ``count``, ``size`` (both int), ``seconds``, ``share`` or ``number`` (float).
        least, most: limits that are allowed themselves; above: a limit that is not.
    """

    name = "number"

    def __init__(
        self,
        kind: str,
        least: float | None = None,
        most: float | None = None,
        *,
        above: float | None = None,
    ) -> None:
        self.kind = kind
        self.least, self.most, self.above = least, most, above

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return _KINDS[self.kind].metavar

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float | int:
        if isinstance(value, str):
            try:
                number = parse(value, self.kind)
            except ValueError as error:
                self.fail(f"{error}.", param, ctx)
        else:
            assert isinstance(value, int | float)
            number = value
        if (
            (self.least is not None and number < self.least)
            or (self.most is not None and number > self.most)
            or (self.above is not None and number <= self.above)
        ):
            self.fail(f"{value} is out of range: {self._limits()}.", param, ctx)
        return number

    def _limits(self) -> str:
        low = f"at least {self.least:,.15g}" if self.least is not None else ""
        low = f"more than {self.above:,.15g}" if self.above is not None else low
        high = f"at most {self.most:,.15g}" if self.most is not None else ""
        return ", ".join(filter(None, (low, high)))


COUNT: Final = Number("count", 1)
"""One or more."""
INDEX: Final = Number("count", 0)
"""A number from 0, such as that of a transfer."""
BYTES: Final = Number("size", 0)
SECONDS: Final = Number("seconds", above=0)
SNAPLEN: Final = Number("size", 64, 262144)
"""Bytes to keep of a frame."""
COUNT_OF_BYTES: Final = Number("size", 1)
SHARE: Final = Number("share", 0, 1)


class TimeIn(Number):
    """A time in a unit that an option's name has: ``--gap-us 100``, and also ``--gap-us 1ms``.

    Args:
        unit: of a number without one, and of the value: ``us`` or ``ms``.
    """

    def __init__(self, unit: str, least: float | None = None, *, above: float | None = None) -> None:
        super().__init__("number", least, above=above)
        self.unit = unit

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return f"{self.unit.upper()}|TIME"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float | int:
        if isinstance(value, str):
            text = value.strip()
            try:
                seconds = parse(
                    text + self.unit if text[-1:].isdigit() or text[-1:] == "." else text, "seconds"
                )
            except ValueError:
                self.fail(f"{value!r} is not a time such as 10, 1.5, 250us or 5ms.", param, ctx)
            value = float(f"{seconds / TIME_UNITS[self.unit]:.15g}")
        return super().convert(value, param, ctx)


class Percent(Number):
    """A percentage: ``50`` and ``50%`` are the same."""

    def __init__(self, most: float) -> None:
        super().__init__("number", most=most, above=0)

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return "PERCENT"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float | int:
        return super().convert(
            value.strip().removesuffix("%") if isinstance(value, str) else value, param, ctx
        )
