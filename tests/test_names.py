"""``import rocekit`` offers what a user needs, each name with its documentation, and loads none of it."""

from __future__ import annotations

import importlib
import subprocess
import sys
from types import ModuleType

import pytest

import rocekit


@pytest.mark.parametrize("name", rocekit.__all__)
def test_every_name_is_there_and_says_what_it_is(name: str) -> None:
    found = getattr(rocekit, name)
    assert callable(found)
    assert not isinstance(found, ModuleType)
    assert (found.__doc__ or "").strip().partition("\n")[0].rstrip().endswith((".", ":"))


def test_dir_lists_the_names() -> None:
    names = {name for name in dir(rocekit) if not name.startswith("_")}
    assert names == {*rocekit.__all__, "capture", "decode", "inject", "layers"}
    assert rocekit.layers is importlib.import_module("rocekit.layers")


def test_explain_is_the_function_whatever_is_imported() -> None:
    importlib.import_module("rocekit.explanation.transfer")
    importlib.import_module("rocekit.commands.explain")
    assert rocekit.explain is importlib.import_module("rocekit.explanation.transfer").explain


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'explode'"):
        rocekit.explode  # noqa: B018


def test_the_import_alone_loads_nothing_heavy() -> None:
    script = (
        "import sys, rocekit; dir(rocekit); print(sorted({'numpy', 'click', 'scapy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
