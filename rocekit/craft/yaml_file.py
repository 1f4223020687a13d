"""Descriptions of packets in YAML files; :mod:`rocekit.craft` lists what they may contain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rocekit.craft import Wrong
from rocekit.craft.keys import COMMON, KEYS
from rocekit.errors import ScenarioError
from rocekit.files.yaml import Value, parse_yaml, read_yaml

_PACKETS: Final = "packets"


@dataclass(frozen=True, slots=True)
class Description:
    """Packets and the keys for all of them, as ``craft`` takes them, and their lines in the file."""

    packets: tuple[dict[str, Any], ...]
    common: Mapping[str, Any]
    places: tuple[Value, ...]
    common_place: Mapping[str, Value]

    def error(self, wrong: Wrong) -> ScenarioError:
        """What is wrong, with its file and line."""
        place = self.places[wrong.place]
        keys: Mapping[str, Value] = place.content
        if wrong.key is not None:
            place = keys.get(wrong.key) or self.common_place.get(wrong.key) or place
        return place.wrong(str(wrong))


def read_packets(path: str | Path) -> Description:
    """The description in a file.

    Raises:
        ScenarioError: it cannot be read, or is none: file, line, and what was expected.
    """
    return _description(read_yaml(path), str(path))


def parse_packets(text: str, name: str = "packets") -> Description:
    """The description in a text; errors as for :func:`read_packets`."""
    return _description(parse_yaml(text, name), name)


def _description(document: Value | None, name: str) -> Description:
    if document is None:
        raise ScenarioError(f"{name}: no packets; one is - {{op: RC_SEND_ONLY, dest_qpn: 0x11}}")
    common: dict[str, Value] = {}
    packets = document
    if isinstance(document.content, dict) and "op" not in document.content:
        for key, value in document.content.items():
            if key != _PACKETS and key not in KEYS:
                raise value.wrong(
                    f"no key {key!r}; there is {_PACKETS}, and for all of them {', '.join(COMMON)}"
                )
        common = {key: value for key, value in document.content.items() if key != _PACKETS}
        if _PACKETS not in document.content:
            raise document.wrong(f"there is no {_PACKETS}: a list of packets")
        packets = document.content[_PACKETS]
    places = packets.content if isinstance(packets.content, list) else [packets]
    for place in places:
        if not isinstance(place.content, dict):
            raise place.wrong("a packet is written as {op: RC_SEND_ONLY, dest_qpn: 0x11, …}")
    if not places:
        raise packets.wrong("there are no packets")
    return Description(
        tuple(place.plain() for place in places),
        {key: value.plain() for key, value in common.items()},
        tuple(places),
        common,
    )
