"""Values of a drill: times, numbers that may name captured values, bytes, and what a field must be.

Every reader takes a :class:`~rocekit.files.yaml.Value`, and raises its error with file and line.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rocekit.craft.values import pattern
from rocekit.files.yaml import Value
from rocekit.wire import ACK, NAK, NAK_CODES, NO_CREDITS, RNR_NAK, make_syndrome, syndrome_kind, syndrome_name

#: The tolerance of times, as packetdrill's: the larger of 4 ms and 12.5 % of the time.
TOLERANCE_NS: Final = 4_000_000
TOLERANCE_SHARE: Final = 8

_UNITS_NS: Final = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_TIME = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ns|us|µs|ms|s)\s*")
_TERM = re.compile(r"\s*([+-]?)\s*(\$[a-z_][\w.]*|0x[0-9a-f]+|\d+)", re.IGNORECASE)
_FROM = re.compile(r"(\d+) from (\d+)")
_ZEROS = re.compile(r"(\d+) zeros")
_MOST_BYTES: Final = 1 << 24
#: Longer numbers have no meaning anywhere in a drill, and Python refuses to read the longest.
_MOST_DIGITS: Final = 30

Names = Mapping[str, int]
"""The values that expressions may name, without the dollar sign."""


class UnknownName(Exception):
    """An expression names a value that nothing has given yet; the argument is the name."""


@dataclass(frozen=True, slots=True)
class Sum:
    """A number: a sum of constants and named values, such as ``$addr + 8``."""

    terms: tuple[tuple[int, int | str], ...]

    def value(self, names: Names) -> int:
        """Raises :class:`UnknownName` for a name that is not given."""
        total = 0
        for sign, term in self.terms:
            if isinstance(term, str):
                if term not in names:
                    raise UnknownName(term)
                term = names[term]
            total += sign * term
        return total


def constant(number: int) -> Sum:
    """The expression of one number."""
    return Sum(((1, number),))


def read_sum(value: Value, key: str) -> Sum:
    """A number in any notation, or a sum with names."""
    content = value.content
    if isinstance(content, int):  # True and False are 1 and 0
        return constant(int(content))
    if isinstance(content, str):
        terms: list[tuple[int, int | str]] = []
        at, end = 0, len(content.rstrip())
        while at < end:
            found = _TERM.match(content, at)
            if found is None or (terms and not found[1]) or len(found[2]) > _MOST_DIGITS:
                break
            word = found[2]
            terms.append((-1 if found[1] == "-" else 1, word[1:] if word[0] == "$" else int(word, 0)))
            at = found.end()
        else:
            if terms:
                return Sum(tuple(terms))
    raise value.wrong(f"{key} is a number, a name such as $rkey, or a sum of them, not {content!r}")


def read_time(value: Value, key: str) -> int:
    """Nanoseconds of a time with its unit, such as ``5 ms``."""
    found = _TIME.fullmatch(str(value.content))
    if found is None or len(found[1]) > _MOST_DIGITS:
        raise value.wrong(
            f"{key} is a time with its unit (ns, us, ms, s), such as 5 ms, not {value.content!r}"
        )
    return round(float(found[1]) * _UNITS_NS[found[2]])


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """When something must happen, from the event before on: not before ``low_ns``, not after ``high_ns``.

    The tolerance is not in it.
    """

    low_ns: int
    high_ns: int

    @property
    def earliest_ns(self) -> int:
        return self.low_ns - tolerance_ns(self.low_ns)

    @property
    def latest_ns(self) -> int:
        return self.high_ns + tolerance_ns(self.high_ns)

    def missed(self, waited_ns: int) -> dict[str, int]:
        """By how much something came too late, ``slack_ns``, or too early, ``early_ns``."""
        late, early = waited_ns - self.latest_ns, self.earliest_ns - waited_ns
        return {"slack_ns": max(0, late), "early_ns": max(0, early)}


def tolerance_ns(time_ns: int) -> int:
    """How far a time may be off."""
    return max(TOLERANCE_NS, time_ns // TOLERANCE_SHARE)


def read_span(value: Value, key: str) -> TimeSpan:
    """A time (``5 ms``) or two (``4 ms .. 16 ms``)."""
    low, dots, high = str(value.content).partition("..")
    first = read_time(Value(low, value.file, value.line), key)
    last = read_time(Value(high, value.file, value.line), key) if dots else first
    if last < first:
        raise value.wrong(f"{key}: {high.strip()} is before {low.strip()}")
    return TimeSpan(first, last)


def read_bytes(value: Value, key: str) -> bytes:
    """Bytes: how many, of a pattern that counts up; ``64 from 1024`` of it; ``8 zeros``; text:… or hex:…."""
    content = value.content
    if isinstance(content, int) and not isinstance(content, bool) and 0 <= content <= _MOST_BYTES:
        return pattern(content)
    if isinstance(content, str):
        if content.startswith("text:"):
            return content.removeprefix("text:").encode()
        if content.startswith("hex:"):
            try:
                return bytes.fromhex(content.removeprefix("hex:"))
            except ValueError:
                raise value.wrong(f"{key}: no bytes in hexadecimal: {content!r}") from None
        if found := _FROM.fullmatch(content):
            size, start = _count(found[1], value, key), _count(found[2], value, key)
            return pattern(start + size)[start:]
        if found := _ZEROS.fullmatch(content):
            return bytes(_count(found[1], value, key))
    raise value.wrong(
        f"{key} is how many bytes, '64 from 1024' of the pattern, '8 zeros', text:… or hex:…, not {content!r}"
    )


def _count(digits: str, value: Value, key: str) -> int:
    """A number of bytes."""
    if len(digits) > _MOST_DIGITS or int(digits) > _MOST_BYTES:
        raise value.wrong(f"{key}: more than {_MOST_BYTES:,} bytes")
    return int(digits)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a field must be: ``test`` says whether a value fits, given the names."""

    text: str
    test: Callable[[int, Names], bool]


#: The names of syndromes that a drill may use, and the byte of each.
SYNDROMES: Final = {
    "ACK": make_syndrome(ACK, NO_CREDITS),
    **{f"NAK {name}": make_syndrome(NAK, code) for code, name in NAK_CODES.items()},
}


def read_syndrome(value: Value) -> Sum:
    """The syndrome of a packet to send: ``ACK``, ``NAK remote_access_error``, ``RNR 12`` (a timer's code)."""
    content = value.content
    if isinstance(content, str):
        if content in SYNDROMES:
            return constant(SYNDROMES[content])
        kind, _, number = content.partition(" ")
        if kind in ("RNR", "ACK") and re.fullmatch(r"[0-9]{1,2}", number) and int(number) < 32:
            return constant(make_syndrome(RNR_NAK if kind == "RNR" else ACK, int(number)))
        if not content.startswith(("$", "0x")):
            raise value.wrong(_no_syndrome(content))
    return read_sum(value, "syndrome")


def _no_syndrome(content: str) -> str:
    names = (*SYNDROMES, "RNR 0 … RNR 31", "ACK 0 … ACK 31")
    near = difflib.get_close_matches(content, names, n=1)
    return f"no syndrome {content!r}; there is {', '.join(names)}" + (
        f"; do you mean {near[0]}?" if near else ""
    )


def wanted_syndrome(value: Value) -> Wanted:
    """What a syndrome must be; ``ACK`` fits every credit count, ``RNR`` every timer, ``NAK`` every code."""
    content = value.content
    kinds = {"ACK": ACK, "RNR": RNR_NAK, "NAK": NAK}
    if isinstance(content, list):
        parts = [wanted_syndrome(item) for item in content]
        return Wanted(_or(parts), lambda seen, names: any(part.test(seen, names) for part in parts))
    if isinstance(content, str) and content in kinds:
        kind = kinds[content]
        return Wanted(str(content), lambda seen, _names: syndrome_kind(seen) == kind)
    number = read_syndrome(value)
    return Wanted(str(content), lambda seen, names: seen == number.value(names))


def read_wanted(value: Value, key: str) -> Wanted:
    """What a field must be: a number, ``low..high``, or a list of which one must fit."""
    content = value.content
    if isinstance(content, list):
        parts = [read_wanted(item, key) for item in content]
        return Wanted(_or(parts), lambda seen, names: any(part.test(seen, names) for part in parts))
    if isinstance(content, str) and ".." in content:
        texts = content.split("..", 1)
        low, high = (read_sum(Value(text, value.file, value.line), key) for text in texts)
        return Wanted(content, lambda seen, names: low.value(names) <= seen <= high.value(names))
    number = read_sum(value, key)
    return Wanted(str(content), lambda seen, names: seen == number.value(names))


def _or(parts: list[Wanted]) -> str:
    return " or ".join(part.text for part in parts)


def field_words(name: str, value: int) -> str:
    """A field's value as a drill's line has it."""
    if name == "syndrome":
        return f"{syndrome_name(value)} ({value:#04x})"
    if name in ("rkey", "remote_va", "dest_qpn", "src_qpn", "qkey", "invalidate_rkey", "immediate"):
        return f"{value:#x}"
    return f"{value}"


def plain_text(content: Any) -> str:
    """A value of a drill as it could stand in the file."""
    if isinstance(content, dict):
        return "{" + ", ".join(f"{key}: {plain_text(item)}" for key, item in content.items()) + "}"
    if isinstance(content, list):
        return "[" + ", ".join(plain_text(item) for item in content) + "]"
    return str(content)
