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
from rocekit.machine.limits import YAML_BYTES, YAML_VALUES, how_to_raise, limit

_MERGE = "tag:yaml.org,2002:merge"
_INTEGER = "tag:yaml.org,2002:int"
#: libyaml's loader, where PyYAML was built with it: it takes a tenth of the time.
FAST: type[yaml.SafeLoader] | None = getattr(yaml, "CSafeLoader", None)
_MOST_DIGITS = 1_000
"""Of a whole number: reading 1:59:59:… takes the square of them, and Python writes no number of many more."""


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
    return parse_yaml(read_yaml_text(path), str(path))


def read_yaml_text(path: str | Path) -> str:
    """The text of a file, which may be a pipe; errors as for :func:`read_yaml`."""
    most = limit(YAML_BYTES)
    try:
        with Path(path).open("rb") as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise ScenarioError(f"{path}: more than {most:,} bytes; {how_to_raise(YAML_BYTES)}")
        return data.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{path}: this is no text, so no YAML: byte {error.start} is not UTF-8") from None


def parse_yaml(text: str, name: str) -> Value | None:
    """The document in a text; errors as for :func:`read_yaml`."""
    if FAST is not None:
        try:
            return _parsed(text, name, FAST)
        except ScenarioError:
            pass  # PyYAML's own words are those that are known
    return _parsed(text, name, yaml.SafeLoader)


def _parsed(text: str, name: str, make: type[yaml.SafeLoader]) -> Value | None:
    loader: yaml.SafeLoader | None = None
    try:
        loader = make(text)  # refuses characters that YAML does not allow
        node = loader.get_single_node()
        return None if node is None else _Values(loader, name).of(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = "" if mark is None else f" line {mark.line + 1}:"
        raise ScenarioError(f"{name}:{where} no YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ScenarioError(f"{name}: no YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ScenarioError(f"{name}: no YAML: it is nested too deeply, or contains itself") from None
    finally:
        if loader is not None:
            loader.dispose()


class _Values:
    """Makes values of nodes, and counts them: an alias makes all that it stands for once more."""

    def __init__(self, loader: yaml.SafeLoader, name: str) -> None:
        self._loader, self._name = loader, name
        self._left = limit(YAML_VALUES)

    def of(self, node: yaml.Node) -> Value:
        line = node.start_mark.line + 1
        self._take(1, line)
        if isinstance(node, yaml.MappingNode):
            _refuse_twice(node, self._name)
            # What stands behind << is filled in; the mapping's own keys come last and win.
            if any(key.tag == _MERGE for key, _ in node.value):
                self._take(_merged(node, {}), line)
            self._loader.flatten_mapping(node)
            content: dict[str, Value] = {}
            for key, value in node.value:
                content[str(self._plain(key))] = self.of(value)
            return Value(content, self._name, line)
        if isinstance(node, yaml.SequenceNode):
            return Value([self.of(item) for item in node.value], self._name, line)
        return Value(self._plain(node), self._name, line)

    def _plain(self, node: yaml.Node) -> object:
        """A number, text or another plain value."""
        if node.tag == _INTEGER and len(node.value) > _MOST_DIGITS:
            raise Value(None, self._name, node.start_mark.line + 1).wrong(
                f"a whole number of more than {_MOST_DIGITS:,} digits"
            )
        try:
            return self._loader.construct_object(node, deep=True)
        except (ValueError, OverflowError, AttributeError, KeyError, TypeError, IndexError) as error:
            # 2026-99-99; !!int of what is no number; !!timestamp of what is none
            why = str(error) if isinstance(error, ValueError) and str(error) else "the tag does not fit"
            raise Value(None, self._name, node.start_mark.line + 1).wrong(why) from None

    def _take(self, count: int, line: int) -> None:
        self._left -= count
        if self._left < 0:
            words = f"more than {limit(YAML_VALUES):,} values, with those of aliases"
            raise Value(None, self._name, line).wrong(f"{words}; {how_to_raise(YAML_VALUES)}")


def _merged(node: yaml.Node, known: dict[int, int]) -> int:
    """How many keys a mapping has, or a list of mappings, with those that ``<<`` fills in."""
    if id(node) in known:
        return known[id(node)]
    if isinstance(node, yaml.MappingNode):
        parts = [_merged(value, known) if key.tag == _MERGE else 1 for key, value in node.value]
    else:
        parts = [_merged(item, known) for item in node.value] if isinstance(node, yaml.SequenceNode) else [1]
    known[id(node)] = sum(parts)
    return known[id(node)]


def _refuse_twice(node: yaml.MappingNode, name: str) -> None:
    seen = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise Value(None, name, key.start_mark.line + 1).wrong("a key is one word")
        if key.value in seen and key.value != "<<":
            raise Value(None, name, key.start_mark.line + 1).wrong(f"{key.value} is there twice")
        seen.add(key.value)
