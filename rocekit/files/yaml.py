"""YAML with the line of every value, so that errors can name it.

document = read_yaml("packets.yaml")
document["packets"].items()[0]["psn"].whole()
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rocekit.errors import ScenarioError


@dataclass(frozen=True, slots=True)
class Value:
    """A value and its place.

    Attributes:
        content: a number, text, True, False or None; a dict of text to Value; or a list of Values.
        file, line: where it starts, the line counted from 1.
    """

    content: Any
    file: str
    line: int

    def wrong(self, message: str) -> ScenarioError:
        """An error at this place."""
        return ScenarioError(f"{self.file}: line {self.line}: {message}")

    def mapping(self, known: Iterable[str], what: str) -> Mapping[str, Value]:
        """The values by key.

        Args:
            known: the keys that there may be.
            what: whose keys they are, for people: "a packet".

        Raises:
            ScenarioError: it is no mapping, or has a key that is not known.
        """
        known = list(known)
        if not isinstance(self.content, dict):
            raise self.wrong(f"{what} is written as key: value, with {', '.join(known)}")
        for key, value in self.content.items():
            if key not in known:
                raise value.wrong(f"no key {key!r}; {what} has {', '.join(known)}")
        return self.content

    def plain(self) -> Any:
        """The content without places."""
        if isinstance(self.content, dict):
            return {key: value.plain() for key, value in self.content.items()}
        if isinstance(self.content, list):
            return [value.plain() for value in self.content]
        return self.content


def read_yaml(path: str | Path) -> Value | None:
    """The document in a file; None where it is empty.

    Raises:
        ScenarioError: the file cannot be read or is no YAML: file, line, and what is wrong.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{path}: this is no text, so no YAML: byte {error.start} is not UTF-8") from None
    return parse_yaml(text, str(path))


def parse_yaml(text: str, name: str) -> Value | None:
    """The document in a text; errors as for :func:`read_yaml`."""
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        return None if node is None else _value(loader, node, name)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = "" if mark is None else f" line {mark.line + 1}:"
        raise ScenarioError(f"{name}:{where} no YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:  # characters that YAML does not allow
        raise ScenarioError(f"{name}: no YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ScenarioError(f"{name}: no YAML: it contains itself") from None
    finally:
        loader.dispose()


def _value(loader: yaml.SafeLoader, node: yaml.Node, name: str) -> Value:
    line = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        _refuse_twice(node, name)
        # What stands behind << is filled in; the mapping's own keys come last and win.
        loader.flatten_mapping(node)
        content: dict[str, Value] = {}
        for key, value in node.value:
            content[str(loader.construct_object(key, deep=True))] = _value(loader, value, name)
        return Value(content, name, line)
    if isinstance(node, yaml.SequenceNode):
        return Value([_value(loader, item, name) for item in node.value], name, line)
    try:
        return Value(loader.construct_object(node), name, line)
    except ValueError as error:  # 2026-99-99
        raise Value(None, name, line).wrong(str(error)) from None


def _refuse_twice(node: yaml.MappingNode, name: str) -> None:
    seen = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise Value(None, name, key.start_mark.line + 1).wrong("a key is one word")
        if key.value in seen and key.value != "<<":
            raise Value(None, name, key.start_mark.line + 1).wrong(f"{key.value} is there twice")
        seen.add(key.value)
