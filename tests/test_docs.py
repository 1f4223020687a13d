"""docs/ says what the program does: pages written from its sources are fresh, every JSON key and every column
has its row, and every link leads somewhere.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from places import ROOT

import rocekit
from rocekit.packets import COLUMNS, HAS
from rocekit.wire.cm import CM_MESSAGES

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
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
        timeout=240,
        check=True,
    )
    assert done.stderr == ""
    assert "rocekit analyze" in done.stdout


def test_every_extra_has_its_row() -> None:
    """Those of pyproject.toml, but for what only the tests need."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    page = (DOCS / "install.md").read_text()
    assert set(extras) - {"test", "mutate"} == set(re.findall(r"^\| `(\w+)` \| ", page, re.MULTILINE)) & set(
        extras
    )


def plain(page: Path) -> str:
    """A page's text without its code blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@functools.cache
def anchors(page: Path) -> set[str]:
    """The anchors that both GitHub and MkDocs give a page's headings."""
    found = set()
    for heading in re.findall(r"^#+ +(.*)$", plain(page), re.MULTILINE):
        words = re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip().lower()
        github = words.replace(" ", "-")
        ascii_only = unicodedata.normalize("NFKD", words).encode("ascii", "ignore").decode()
        if github == re.sub(r"[-\s]+", "-", ascii_only):
            found.add(github)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", plain(page)):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        # Outside of docs/ the site has nothing.
        assert DOCS not in page.parents or DOCS in target.parents, link
        assert not anchor or anchor in anchors(target), link


def test_every_page_is_in_the_sites_navigation() -> None:
    def named(item: Any) -> Iterator[str]:
        if isinstance(item, str):
            yield item
        else:
            for part in item.values() if isinstance(item, dict) else item:
                yield from named(part)

    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    pages = sorted(str(page.relative_to(DOCS)) for page in PAGES if DOCS in page.parents)
    assert sorted(named(site["nav"])) == pages


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    if importlib.util.find_spec("material") is None or importlib.util.find_spec("mkdocs") is None:
        pytest.skip("no MkDocs (pip install 'rocekit[docs]')")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mkdocs",
            "build",
            "--strict",
            "--quiet",
            "--site-dir",
            str(tmp_path / "site"),
        ],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    problems = runpy.run_path(str(ROOT / "scripts" / "check_site.py"))["problems"]
    assert list(problems(tmp_path / "site")) == []


def field_rows() -> dict[str, dict[str, str]]:
    """tshark's cell of docs/fields.md by section and name."""
    sections: dict[str, dict[str, str]] = {}
    _, _, tables = (DOCS / "fields.md").read_text().partition("<!-- fields")
    for part in re.split(r"^##+ ", tables, flags=re.MULTILINE):
        table = [
            [cell.strip() for cell in row.split("|")[1:-1]] for row in part.splitlines() if row[:3] == "| `"
        ]
        sections[part.partition("\n")[0]] = {row[0].strip("`"): row[-2] for row in table}
    return sections


def test_every_field_has_its_row() -> None:
    """Those of packets, in the section of each header that has them, and those of CM messages."""
    sections = field_rows()
    named = set(sections["The packet"]).union(*(sections[header] for header in HAS if header != "GRH"))
    assert set(COLUMNS) == named
    for name, message in CM_MESSAGES.items():
        assert set(sections[name]) == {field.name for field in message.fields if not field.reserved}


@pytest.mark.skipif(shutil.which("tshark") is None, reason="no tshark (apt-get install tshark)")
def test_tshark_has_the_fields_that_stand_beside_ours() -> None:
    done = subprocess.run(["tshark", "-G", "fields"], capture_output=True, text=True, timeout=300, check=True)
    known = {line.split("\t")[2] for line in done.stdout.splitlines() if line.startswith("F\t")}
    protocols = {line.split("\t")[2] for line in done.stdout.splitlines() if line.startswith("P\t")}
    for rows_of in field_rows().values():
        for cell in rows_of.values():
            for field in re.findall(r"`([\w.]+)(?: & 0x\w+)?`", cell):
                assert field in known | protocols, field
