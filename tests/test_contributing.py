"""CONTRIBUTING.md names only what is there: paths, modules, and names in the files that it names."""

from __future__ import annotations

import importlib
import re

import pytest
from places import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
#: Modules that the page's examples make.
MADE = frozenset({"rocekit/findings/rules/many_packets.py", "rocekit/scenarios/hello.py"})
#: A path in the repository, in backquotes, in a command or in a sentence.
PATH = re.compile(r"(?<![\w./-])((?:rocekit|tests|scripts|docs|pcaps)/[\w./-]*\w/?|README\.md|setup\.py)")
PATHS = sorted({*PATH.findall(TEXT)} - MADE)
MODULES = sorted({*re.findall(r"`(rocekit(?:\.\w+)+)`", TEXT)})
#: `NAME` of or in `PATH`: a name that the file must have.
NAMES = sorted({*re.findall(r"`(\w+)` (?:of|in) `?((?:rocekit|tests|scripts)/[\w./-]*\w)", TEXT)})


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, or what a module has."""
    for depth in range(len(name.split(".")), 0, -1):
        parts = name.split(".")
        try:
            found = importlib.import_module(".".join(parts[:depth]))
        except ModuleNotFoundError:
            continue
        for part in parts[depth:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


@pytest.mark.parametrize("path", PATHS)
def test_a_path_that_is_named_is_there(path: str) -> None:
    assert (ROOT / path).exists()


def test_the_modules_that_are_named_are_there() -> None:
    assert [name for name in MODULES if not resolves(name)] == []
    assert not resolves("rocekit.wire.nothing")


@pytest.mark.parametrize(("name", "path"), NAMES)
def test_a_name_is_in_the_file_that_is_said_to_have_it(name: str, path: str) -> None:
    assert re.search(rf"\b{name}\b", (ROOT / path).read_text(encoding="utf-8"))


def test_the_page_is_short_and_names_many_paths() -> None:
    assert TEXT.count("\n") <= 200
    assert len(PATHS) > 50
    assert len(NAMES) > 5
