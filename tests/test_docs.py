"""docs/ says what the program does: pages written from its sources are fresh, every JSON key has its row."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from places import ROOT

import rocekit

MADE: dict[Path, str] = runpy.run_path(str(ROOT / "scripts" / "make-docs"))["made"]()
PCAPS = sorted((ROOT / "pcaps").glob("*.pcap*"))


@pytest.mark.parametrize("path", MADE, ids=lambda path: path.name)
def test_a_page_is_what_the_program_says_now(path: Path) -> None:
    assert path.read_text() == MADE[path], "run scripts/make-docs"


def rows(heading: str) -> set[str]:
    """The keys in the first column of the table under a heading of docs/formats.md."""
    page = (ROOT / "docs" / "formats.md").read_text()
    section = re.split(r"^### ", page, flags=re.MULTILINE)
    [text] = [part for part in section if part.startswith(f"{heading}\n")]
    return {
        key for row in re.findall(r"^\|(.*?)\|", text, re.MULTILINE) for key in re.findall(r"`(\w+)`", row)
    }


@pytest.fixture(scope="module")
def documents() -> list[dict[str, Any]]:
    return [rocekit.analyze(path).to_dict() for path in PCAPS]


def objects(documents: list[dict[str, Any]], heading: str) -> Iterator[dict[str, Any]]:
    for document in documents:
        found = document[heading]
        yield from found if isinstance(found, list) else [] if found is None else [found]


@pytest.mark.parametrize("heading", ["capture", "connections", "transfers", "findings", "journal"])
def test_every_key_of_the_json_has_its_row(documents: list[dict[str, Any]], heading: str) -> None:
    found = list(objects(documents, heading))
    assert found
    for one in found:
        assert set(one) == rows(heading)


def test_the_document_has_no_part_without_a_heading(documents: list[dict[str, Any]]) -> None:
    page = (ROOT / "docs" / "formats.md").read_text()
    for part in set().union(*documents) - {"schema"}:
        assert f"\n### {part}\n" in page, part


@pytest.mark.skipif(shutil.which("groff") is None, reason="no groff (apt-get install groff-base)")
def test_the_manual_page_is_good_troff() -> None:
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-Kutf8", "docs/rocekit.1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    assert "rocekit analyze" in done.stdout
