"""A fleet's report in a real browser, and that each command in it shows what its row says."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from accessible import violations
from browser_pages import Pages
from click.testing import CliRunner
from fleet_lake import FLEET, made
from places import PCAPS

from rocekit.cli import rocekit as cli
from rocekit.fleet.lake import Lake
from rocekit.fleet.page import Span, _shown, comparison, document

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

Open = Callable[..., "Page"]
# Each process that runs some of them starts a Chromium.
pytestmark = pytest.mark.xdist_group("browser")

FAULTY = FLEET.addresses[7]


def report(lake: Path, out: Path, *more: str) -> Path:
    result = CliRunner().invoke(cli, ["fleet", "report", str(lake), "-o", str(out), *more])
    assert result.exit_code == 0, result.output
    return out


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The distribution's Chromium."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright (pip install playwright)")
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("no Chromium (apt-get install chromium)")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"], timeout=120_000)
        yield started
        started.close()


@pytest.fixture(scope="module")
def pages(browser: Browser) -> Pages:
    return Pages(browser)


@pytest.fixture
def show(pages: Pages) -> Iterator[Open]:
    """Opens a page; at the end, nothing was said on its console and nothing was asked for."""
    with pages.of_a_test() as empty:

        def show(path: Path, **media: Any) -> Page:
            page = empty(**media)
            page.goto(path.as_uri())
            page.wait_for_selector("html[data-ready]")
            return page

        yield show


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_faulty_host_stands_first_and_a_click_shows_the_command(
    show: Open, lake: Path, tmp_path: Path, scheme: str
) -> None:
    page = show(report(lake, tmp_path / "f.html"), color_scheme=scheme)
    assert page.locator("html").get_attribute("data-theme") == scheme
    cards = page.locator("#host-list .finding")
    assert cards.count() == 1
    assert FAULTY in cards.first.inner_text()
    assert "1 unreadable" in page.locator("#tiles").inner_text()
    assert page.locator("#timeline-body svg rect").count() > 4
    assert page.locator("#matrix-body svg rect").count() == 2 * len(FLEET.links)
    page.locator("#ways-table tbody tr[data-row]").first.click()
    command = page.locator("#command code").inner_text()
    assert command.startswith("rocekit explain ")
    page.locator("#matrix-body .link").first.press("Enter")
    assert page.locator("#command code").inner_text().startswith("rocekit ")
    assert "broken" in page.locator("#captures-table tbody").inner_text()


def test_every_command_runs_and_shows_what_its_row_says(lake: Path) -> None:
    shown = document(Lake(lake))
    rows = [
        *shown["ways"][:3],
        *shown["first"][:3],
        *shown["hosts"],
        *shown["together"][:1],
        *shown["paths"][:1],
    ]
    assert len(rows) > 8
    for command in {row["command"] for row in rows}:
        result = CliRunner().invoke(cli, shlex.split(command)[1:])
        assert result.exit_code == 0, command
    first = shown["first"][0]
    words = shlex.split(first["command"])[1:]
    told = json.loads(CliRunner().invoke(cli, [*words, "--format", "json"]).output)
    text = json.dumps(told)
    assert first["src"] in text
    assert str(first["frame"]) in text


def test_every_row_of_the_page_has_a_command(lake: Path) -> None:
    shown = document(Lake(lake))
    tables = ("hosts", "ways", "addresses", "points", "first", "rules", "together", "paths", "clocks")
    rows = [row for name in tables for row in shown[name]] + shown["timeline"]["pairs"]
    assert all(row["command"].startswith("rocekit ") for row in rows)
    assert all(cell[-1].startswith("rocekit ") for cell in shown["matrix"]["cells"])
    for pair in shown["timeline"]["pairs"]:
        assert all(command.startswith("rocekit explain ") for _, _, command in pair["cells"])


@pytest.mark.parametrize("since", [None, "2023-11-14T22:13:20.000200"])
def test_a_number_that_is_a_sum_shows_the_command_that_lists_what_it_is_made_of(
    show: Open, lake: Path, tmp_path: Path, since: str | None
) -> None:
    page = show(report(lake, tmp_path / "f.html", *([] if since is None else ["--since", since])))
    numbers = page.locator("#tiles button.number, #damage button.number")
    said = {}
    for place in range(numbers.count()):
        one = numbers.nth(place)
        one.click()
        command = page.locator("#command code").inner_text()
        result = CliRunner().invoke(cli, [*shlex.split(command)[1:], "--format", "json"])
        assert result.exit_code == 0, command
        rows = json.loads(result.output)
        columns = {"lost", "roce_packets"} & set(rows[0] if rows else {})
        number = sum(row[name] or 0 for row in rows for name in columns) if columns else len(rows)
        words = one.inner_text().split()[0].replace(",", "").replace("\N{NO-BREAK SPACE}", "")
        assert int(words) == number, command
        said[command] = number
    tiles = page.locator("#tiles > div").count()
    assert len(said) == tiles + 2  # two tiles have two numbers
    assert page.locator("#tiles").inner_text().count("?") == 0


def test_a_cell_of_the_timeline_shows_a_trouble_of_its_time(show: Open, lake: Path, tmp_path: Path) -> None:
    page = show(report(lake, tmp_path / "f.html"))
    timeline = document(Lake(lake))["timeline"]
    cells = timeline["pairs"][0]["cells"]
    rects = page.locator("#timeline-body svg g").first.locator("rect")
    assert rects.count() == len(cells) + 1  # and the row itself
    for number in (0, len(cells) - 1):
        rects.nth(number + 1).click()
        assert page.locator("#command code").inner_text() == cells[number][2]


def test_numbers_of_the_page_are_those_of_the_lake(lake: Path) -> None:
    shown = document(Lake(lake))
    assert shown["lost"] == sum(way["lost_packets"] for way in shown["ways"])
    assert {way["dst"] for way in shown["ways"] if way["lost_packets"]} == {FAULTY}
    assert shown["matrix"]["of"] == FLEET.hosts
    assert sum(cell[2] for cell in shown["matrix"]["cells"]) == shown["lost"]
    assert shown["first"][0]["time_ns"] == min(row["time_ns"] for row in shown["first"])
    assert sum(n for pair in shown["timeline"]["pairs"] for _, n, _ in pair["cells"]) >= shown["lost"]


def test_a_span_shows_what_was_in_it_and_a_split_compares(show: Open, lake: Path, tmp_path: Path) -> None:
    whole = document(Lake(lake))
    begin, end = whole["first"][0]["time_ns"], whole["total"]["last_ns"]
    assert document(Lake(lake), Span(end + 1, None))["first"] == []
    middle = (begin + end) // 2
    parts = [document(Lake(lake), span) for span in (Span(None, middle), Span(middle, None))]
    troubles = [sum(way["troubles"] for way in part["ways"]) for part in parts]
    assert all(troubles)
    page = show(report(lake, tmp_path / "s.html", "--split", "2023-11-14T22:13:20.0002"))
    assert "before and after" in page.locator("#comparison-title").inner_text()
    assert page.locator("#comparison-table tbody tr[data-row]").count() > 0


def test_two_lakes_are_compared(lake: Path, tmp_path: Path) -> None:
    other = Lake(made(tmp_path / "clean", PCAPS / "rping-clean.pcap"))
    found = comparison(Lake(lake), Span(), other, Span(), "x", "y")
    assert found["totals"][0]["lost"] > 0
    assert found["totals"][1]["lost"] == 0
    assert found["rows"][0]["b_packets"] is None
    report(lake, tmp_path / "c.html", "--compare", str(other.folder))


def test_a_lake_without_troubles_has_a_page(show: Open, tmp_path: Path) -> None:
    lake = made(tmp_path / "lake", PCAPS / "rping-clean.pcap")
    page = show(report(lake, tmp_path / "f.html"))
    assert "No losses" in page.locator("#host-list").inner_text()
    assert "No trouble" in page.locator("#timeline-body").inner_text()


def test_a_lake_whose_run_was_stopped_is_not_judged(show: Open, lake: Path, tmp_path: Path) -> None:
    stopped = Path(shutil.copytree(lake, tmp_path / "stopped"))
    assert document(Lake(stopped))["judged"]
    Lake(stopped).unjudge()
    assert not document(Lake(stopped))["judged"]
    page = show(report(stopped, tmp_path / "f.html"))
    assert "a run was stopped before its end" in page.locator("#host-list").inner_text()
    assert "No host" not in page.locator("#host-list").inner_text()


def test_a_point_and_a_path_cannot_become_markup(show: Open, tmp_path: Path) -> None:
    folder = tmp_path / "<img src=x onerror=alert(1)>"
    folder.mkdir()
    shutil.copy(PCAPS / "ping-write-loss-behind.pcap", folder / "a'b.pcap")
    lake = made(tmp_path / "lake", tmp_path)
    page = show(report(lake, tmp_path / "f.html"))
    assert page.locator("img").count() == 0
    assert "<img" in page.locator("#captures-table").inner_text()
    page.locator("#first-table tbody tr[data-row]").first.click()
    command = page.locator("#command code").inner_text()
    assert CliRunner().invoke(cli, shlex.split(command)[1:]).exit_code == 0


@pytest.mark.parametrize(
    ("more", "status"),
    [(["--since", "soon"], 2), (["--split", "2023-11-14", "--compare", "x"], 2), (["--compare", "/none"], 1)],
)
def test_what_is_wrong_is_said(lake: Path, tmp_path: Path, more: list[str], status: int) -> None:
    result = CliRunner().invoke(cli, ["fleet", "report", str(lake), "-o", str(tmp_path / "x.html"), *more])
    assert result.exit_code == status
    assert not (tmp_path / "x.html").exists()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_a_fleets_page(show: Open, lake: Path, tmp_path: Path, scheme: str) -> None:
    assert violations(show(report(lake, tmp_path / "f.html"), color_scheme=scheme)) == []


def test_a_command_never_has_the_capture_of_one_row_and_the_transfer_of_another() -> None:
    rows = "(VALUES ('a', 5, NULL), ('b', 3, 14), ('c', 1, NULL)) rows(capture, n, transfer)"
    for which, wanted in (("max", ("a", None)), ("min", ("c", None))):
        assert duckdb.connect().execute(f"SELECT {_shown(which, 'n')} FROM {rows}").fetchall() == [wanted]
    assert duckdb.connect().execute(f"SELECT {_shown('max', 'n')} FROM {rows} WHERE n < 4").fetchall() == [
        ("b", 14)
    ]
