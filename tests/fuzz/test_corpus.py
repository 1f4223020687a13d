"""Every input that once failed, and new ones from fixed seeds, through the commands that read their kind."""

from __future__ import annotations

from pathlib import Path

import pytest
from amount import MORE
from fuzzing import CORPUS, good_capture
from hostile_inputs import MAKERS, HostileInput, hostile_input
from reading_commands import COMMANDS, check_input

KEPT = sorted(path for path in CORPUS.iterdir() if path.is_file() and path.suffix != ".md")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return good_capture(tmp_path_factory.mktemp("good"))


def usual(kind: str) -> tuple[str, ...]:
    """The commands, without those that load large libraries."""
    return tuple(c for c in COMMANDS[kind] if MORE or not c.startswith(("plot", "decode FILE -V")))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.name)
def test_what_once_failed_is_taken_by_every_command(path: Path, tmp_path: Path, good: Path) -> None:
    kind, _, rest = path.name.partition("-")
    check_input(HostileInput(kind, rest[rest.index(".") :], path.read_bytes()), usual(kind), tmp_path, good)


@pytest.mark.parametrize("kind", MAKERS)
def test_new_inputs_of_each_kind_are_taken(kind: str, tmp_path: Path, good: Path) -> None:
    for seed in range(2000 if MORE else 60):
        check_input(hostile_input(kind, seed), (), tmp_path, good)


@pytest.mark.parametrize("kind", MAKERS)
def test_a_seed_repeats_its_input(kind: str) -> None:
    assert hostile_input(kind, 7) == hostile_input(kind, 7)
    assert len({hostile_input(kind, seed).data for seed in range(20)}) > 10
