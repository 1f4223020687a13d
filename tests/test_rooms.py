"""The package's order: no import circles, one direction, small modules and folders, one name a class."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from places import ROOT

#: All modules are parsed once for all tests.
pytestmark = pytest.mark.xdist_group("rooms")

PACKAGE = ROOT / "rocekit"

#: The packages and modules directly in rocekit, in the order in which data passes through them. Each imports
#: only from itself and those before it.
ORDER = (
    *("errors", "leaving", "dropped_signals", "ending", "standard_output"),
    *("wire", "machine", "files", "packets", "journal", "track", "flows", "correlate", "points"),
    "counters",
    *(
        "findings",
        "explanation",
        "report",
        "verify",
        "feeding",
        "analysis",
        "live",
        "craft",
        "edit",
        "endpoint",
        "verbs",
    ),
    *("soft", "scenarios", "conform", "record", "fleet", "lab", "commands", "cli"),
)
#: For users only: they import what they show, and no module imports them.
FACES = frozenset({"capture", "decode", "layers", "inject", "pytest_plugin"})
#: What every module may import: whether the package runs compiled, the stand-in for Cython, the version.
FOR_ALL = frozenset({"_compiled", "_cython", "_version"})
#: The package itself and ``python -m rocekit`` import from anywhere.
ENTRANCES = frozenset({"", "__main__"})

MOST_LINES = 500
MOST_MODULES = 25
#: Folders of many modules of one kind: a command, a scenario, a rule each.
LONG_FOLDERS = frozenset({"commands", "scenarios", "findings/rules"})

#: Class names that occur twice for a reason.
TWICE: Mapping[str, str] = {
    "Connection": "the field's term for a QP pair, in a capture and between two programs of a scenario",
    "Sge": "the verbs' name, for what a scenario posts and for what the soft engine executes",
}


def name_of(path: Path) -> str:
    """A module's name within rocekit, such as ``files.pcap``; a package has its folder's, rocekit ``""``."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports_of(name: str, tree: ast.Module) -> Iterator[str]:
    """The modules that a module imports, inside functions and under TYPE_CHECKING too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = ["rocekit", *name.split(".")]
                depth = len(parts) - node.level + (MODULES[name].name == "__init__.py")
                base = ".".join([*parts[:depth], *([base] if base else [])])
            if base.split(".")[0] != "rocekit":
                continue
            base = base.removeprefix("rocekit").removeprefix(".")
            for alias in node.names:
                inner = f"{base}.{alias.name}".removeprefix(".")
                yield inner if inner in MODULES else base
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "rocekit":
                    yield alias.name.removeprefix("rocekit").removeprefix(".")


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


@pytest.fixture(scope="module")
def imports(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    found = {name: set(imports_of(name, tree)) for name, tree in trees.items()}
    unknown = {other for others in found.values() for other in others} - MODULES.keys()
    assert not unknown, f"imported, and not there: {', '.join(sorted(unknown))}"
    return found


def circles(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """Import circles, the shortest first, each as its modules in order; removing their imports ends all."""
    found: list[list[str]] = []
    left = {name: set(others) - {name} for name, others in imports.items()}
    while True:
        best: list[str] = []
        for start in left:
            before: dict[str, str] = {}
            queue = [start]
            while queue and start not in before:
                following = []
                for name in queue:
                    for other in sorted(left[name]):
                        if other not in before:
                            before[other] = name
                            following.append(other)
                queue = following
            if start in before:
                way = [start]
                while before[way[-1]] != start:
                    way.append(before[way[-1]])
                if not best or len(way) < len(best):
                    best = way[:1] + way[:0:-1]
        if not best:
            return found
        found.append(best)
        for name, other in zip(best, best[1:] + best[:1], strict=True):
            left[name].discard(other)


def test_no_modules_import_one_another(imports: dict[str, set[str]]) -> None:
    """Inside functions and under TYPE_CHECKING too: a reader of one module must not need the other first."""
    inner = {name: others - {""} for name, others in imports.items() if name not in ENTRANCES}
    words = [" imports ".join([*circle, circle[0]]) for circle in circles(inner)]
    assert not words, "import circles:\n" + "\n".join(words)


def package(name: str) -> str:
    """The package directly in rocekit that a module belongs to; or the module itself."""
    return name.split(".")[0]


def test_every_package_has_a_place_in_the_order() -> None:
    packages = {package(name) for name in MODULES} - FACES - FOR_ALL - ENTRANCES
    assert packages <= set(ORDER), f"without a place: {', '.join(sorted(packages - set(ORDER)))}"


def test_nothing_imports_what_comes_after_it(imports: dict[str, set[str]]) -> None:
    place = {name: i for i, name in enumerate(ORDER)}
    wrong = [
        f"{name} imports {other}: {package(other)} comes after {package(name)}"
        for name, others in sorted(imports.items())
        for other in sorted(others)
        if package(name) in place and package(other) in place and place[package(other)] > place[package(name)]
    ]
    assert not wrong, "\n".join(wrong)


def test_nothing_imports_a_face(imports: dict[str, set[str]]) -> None:
    wrong = [
        f"{name} imports {other}, which is for users"
        for name, others in sorted(imports.items())
        for other in sorted(others)
        if other in FACES
    ]
    assert not wrong, "\n".join(wrong)


def test_no_folder_has_too_many_modules() -> None:
    sizes = Counter(path.parent for path in MODULES.values() if path.name != "__init__.py")
    long = {str(folder.relative_to(PACKAGE)): n for folder, n in sizes.items() if n > MOST_MODULES}
    wrong = [f"{folder} has {n} modules" for folder, n in sorted(long.items()) if folder not in LONG_FOLDERS]
    assert not wrong, "\n".join(wrong)


def test_no_module_is_too_long() -> None:
    lines = {name: path.read_text(encoding="utf-8").count("\n") for name, path in MODULES.items()}
    wrong = [f"{name or 'rocekit'} has {n} lines" for name, n in sorted(lines.items()) if n > MOST_LINES]
    assert not wrong, "\n".join(wrong)


def test_no_two_classes_have_one_name(trees: dict[str, ast.Module]) -> None:
    homes = defaultdict(list)
    for name, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(name)
    wrong = [
        f"{cls}: {', '.join(names)}"
        for cls, names in sorted(homes.items())
        if len(names) > 1 and cls not in TWICE
    ]
    assert not wrong, "classes of one name:\n" + "\n".join(wrong)
    once = [cls for cls in TWICE if len(homes[cls]) < 2]
    assert not once, f"no longer twice, so take it from the list: {', '.join(once)}"


def test_circles_are_found() -> None:
    imports = {"a": {"b"}, "b": {"c", "a"}, "c": {"a"}, "d": {"a", "d"}}
    assert circles(imports) == [["a", "b"]]
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == [["a", "b", "c"]]
    assert circles({"a": {"b"}, "b": set()}) == []
