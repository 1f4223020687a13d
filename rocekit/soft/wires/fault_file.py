"""Faults as users write them: a YAML file like Lumina's, or words on a command line.

::

    # the fourth packet is lost, and lost again when it is sent again
    - {qpn: 1, psn: 4, type: drop, iter: 1}
    - qpn: 1
      psn: 4
      type: drop
      iter: 2
    - {type: reorder, rate: 1%}

and ``qpn=1,psn=4,type=drop`` or ``drop=2%``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rocekit.errors import ScenarioError
from rocekit.files.yaml import Value, parse_yaml, read_yaml
from rocekit.soft.wires.faults import TYPES, Fault

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
        ScenarioError: the file cannot be read, or an entry is not a fault; names file and line.
    """
    return _faults(read_yaml(path))


def parse_faults(text: str, name: str = "faults") -> tuple[Fault, ...]:
    """The faults in a YAML text; errors as for :func:`read_faults`."""
    return _faults(parse_yaml(text, name))


def _faults(document: Value | None) -> tuple[Fault, ...]:
    if document is None:
        return ()
    if not isinstance(document.content, list):
        raise document.wrong("expected a list of faults, as - {qpn: 1, psn: 4, type: drop}")
    faults = []
    for entry in document.content:
        values: dict[str, object] = {}
        for key, value in entry.mapping(KEYS, "a fault").items():
            _take(
                key,
                "" if value.content is None else str(value.content),
                values,
                f"{value.file}: line {value.line}",
            )
        faults.append(_fault(values, f"{entry.file}: line {entry.line}"))
    return tuple(faults)


def fault_from_words(words: str) -> Fault:
    """A fault from a command line: ``qpn=1,psn=4,type=drop`` or, at random, ``drop=2%``.

    Raises:
        ScenarioError: it is not a fault.
    """
    values: dict[str, object] = {}
    where = f"fault {words!r}"
    for pair in words.split(","):
        key, equals, value = (part.strip() for part in pair.partition("="))
        if key in TYPES and equals:
            values |= {"type": key, "rate": _number(value, "rate", where)}
        else:
            if not equals or not value:
                raise ScenarioError(f"{where}: expected key=value, not {pair.strip()!r}")
            if key not in KEYS:
                raise ScenarioError(f"{where}: no key {key!r}; a fault has {', '.join(KEYS)}")
            if key in values:
                raise ScenarioError(f"{where}: {key} occurs twice")
            _take(key, value, values, where)
    return _fault(values, where)


def _take(key: str, value: str, into: dict[str, object], where: str) -> None:
    if not value:
        raise ScenarioError(f"{where}: {key} has no value")
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
        # Without other keys, a random fault hits all packets.
        values = {"qpn": None, "of": None} | values
    try:
        return Fault(**{KEYS[key]: value for key, value in values.items()})  # type: ignore[arg-type]
    except ValueError as error:
        raise ScenarioError(f"{where}: {error}") from None
