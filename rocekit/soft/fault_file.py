"""Faults as people write them: a YAML file as Lumina's, or words on a command line.

::

    # the fourth packet is lost, and lost again when it is repeated
    - {qpn: 1, psn: 4, type: drop, iter: 1}
    - qpn: 1
      psn: 4
      type: drop
      iter: 2
    - {type: reorder, rate: 1%}

and ``qpn=1,psn=4,type=drop`` or ``drop=2%``. The part of YAML that is read is just this: a list of flat
mappings.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rocekit.errors import ScenarioError
from rocekit.soft.faults import TYPES, Fault

#: Key in a file to attribute of :class:`Fault`.
KEYS: Final = {
    "qpn": "qpn",
    "psn": "psn",
    "type": "type",
    "iter": "iter",
    "of": "of",
    "from": "sender",
    "rate": "rate",
    "delay_us": "delay_us",
}
_INTEGERS: Final = frozenset({"qpn", "psn", "iter"})
_NUMBERS: Final = frozenset({"rate", "delay_us"})


def read_faults(path: str | Path) -> tuple[Fault, ...]:
    """The faults in a file.

    Raises:
        ScenarioError: the file cannot be read, or a line is not a fault: file, line, and what was expected.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return parse_faults(text, str(path))


def parse_faults(text: str, name: str = "faults") -> tuple[Fault, ...]:
    """The faults in a YAML text; errors as for :func:`read_faults`."""
    faults: list[Fault] = []
    pending: dict[str, object] = {}
    began = 0

    def finish() -> None:
        if pending:
            faults.append(_fault(pending, f"{name}: line {began}"))
            pending.clear()

    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.split("#", 1)[0].rstrip()
        if not line.strip() or line.strip() in ("---", "..."):
            continue
        where = f"{name}: line {number}"
        body = line.strip()
        if body.startswith("- ") or body == "-":
            finish()
            began = number
            body = body[1:].strip()
            if body.startswith("{"):
                if not body.endswith("}"):
                    raise ScenarioError(f"{where}: a fault in braces ends with }} on the same line")
                for pair in body[1:-1].split(","):
                    if pair.strip():
                        _take(pair, ":", pending, where)
                finish()
                continue
            if not body:
                continue
        elif not (line[0].isspace() and began):
            raise ScenarioError(f"{where}: expected a list of faults, as - {{qpn: 1, psn: 4, type: drop}}")
        _take(body, ":", pending, where)
    finish()
    return tuple(faults)


def fault_from_words(words: str) -> Fault:
    """A fault from a command line: ``qpn=1,psn=4,type=drop`` or, at random, ``drop=2%``.

    Raises:
        ScenarioError: it is none.
    """
    values: dict[str, object] = {}
    where = f"fault {words!r}"
    for pair in words.split(","):
        key, equals, value = (part.strip() for part in pair.partition("="))
        if key in TYPES and equals:
            values |= {"type": key, "rate": _number(value, "rate", where)}
        else:
            _take(pair, "=", values, where)
    return _fault(values, where)


def _take(pair: str, separator: str, into: dict[str, object], where: str) -> None:
    key, found, value = (part.strip() for part in pair.partition(separator))
    if not found or not value:
        raise ScenarioError(f"{where}: expected key{separator} value, not {pair.strip()!r}")
    if key not in KEYS:
        raise ScenarioError(f"{where}: no key {key!r}; a fault has {', '.join(KEYS)}")
    if key in into:
        raise ScenarioError(f"{where}: {key} is there twice")
    value = value.strip("'\"")
    if key in _INTEGERS:
        try:
            into[key] = int(value, 0)
        except ValueError:
            raise ScenarioError(f"{where}: {key} is a whole number, not {value!r}") from None
    elif key in _NUMBERS:
        into[key] = _number(value, key, where)
    else:
        into[key] = value


def _number(value: str, key: str, where: str) -> float:
    try:
        return float(value[:-1]) / 100 if value.endswith("%") else float(value)
    except ValueError:
        raise ScenarioError(f"{where}: {key} is a number or a percentage, not {value!r}") from None


def _fault(values: dict[str, object], where: str) -> Fault:
    if "type" not in values:
        raise ScenarioError(f"{where}: a fault has a type: {', '.join(TYPES)}")
    if "rate" in values:
        # Random faults hit everything that is not excluded.
        values = {"qpn": None, "of": None} | values
    try:
        return Fault(**{KEYS[key]: value for key, value in values.items()})  # type: ignore[arg-type]
    except ValueError as error:
        raise ScenarioError(f"{where}: {error}") from None
