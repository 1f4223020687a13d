"""A report for those who do not see it, or have no mouse: judged by axe-core, by names, and by keys."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from accessible import contrast, violations
from alike import many_connections
from amount import needs_more
from capture_bytes import pcap
from places import ROOT
from test_report_page import browser, folder, pages, settled, show

import rocekit

if TYPE_CHECKING:
    from playwright.sync_api import Page

# Each process that runs some of them starts a Chromium.
pytestmark = pytest.mark.xdist_group("browser")

Open = Callable[..., "Page"]
__all__ = ["browser", "folder", "pages", "show"]  # fixtures

LOSS = "ping-write-loss-behind.pcap"
SCHEMES = ("light", "dark")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_axe_finds_nothing_in_a_report(show: Open, scheme: str) -> None:
    assert violations(show(LOSS, color_scheme=scheme)) == []


@pytest.mark.parametrize("capture", ["failures-each.pcap", "ib_write_bw-4qp-loss.pcap", "blast-sr-rnr.pcap"])
def test_axe_finds_nothing_in_reports_of_other_troubles(show: Open, capture: str) -> None:
    needs_more()
    assert violations(show(capture, color_scheme="dark")) == []


def test_axe_finds_nothing_in_what_appears_when_a_report_is_used(show: Open, folder: Path) -> None:
    path = folder / "accessible.pcap"
    path.write_bytes(pcap(many_connections(20).frames, unit="ns"))
    page = show(path, "#finding=0", color_scheme="dark")
    page.get_by_text("19 more like this").click()
    page.get_by_role("application").focus()
    page.keyboard.press("n")
    page.locator("#connections").get_by_role("button", name="Trouble").click()
    page.locator("#connections tbody tr[data-row]").nth(2).hover()
    page.get_by_role("searchbox").fill("nothing like it")
    settled(page)
    assert violations(page) == []


def test_axe_finds_nothing_in_the_report_of_a_capture_without_roce(
    show: Open, folder: Path, pcaps: Path
) -> None:
    empty = folder / "nothing.pcap"
    empty.write_bytes((pcaps / "rping-clean.pcap").read_bytes()[:24])
    assert violations(show(empty)) == []


@pytest.mark.parametrize("theme", SCHEMES)
def test_colours_stand_out_from_what_is_behind_them(theme: str) -> None:
    """WCAG 2.2: 1.4.3 asks for 4.5 of text, 1.4.11 for 3 of what a graph has to show."""
    rule = (ROOT / "rocekit/report/web/page.css").read_text().split("}")[SCHEMES.index(theme)]
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", rule))
    for name in ["text", "dim", "error", "warning", "info", "accent", "good"]:
        for behind in ["page", "card", "hover", "chosen"]:
            assert contrast(colours[name], colours[behind]) >= 4.5, (name, behind)
    for name in [
        "round1",
        "round2",
        "round3",
        "round4",
        "ack",
        "nak",
        "ce",
        "cnp",
        "wr",
        "good-line",
        "soft",
        "focus",
    ]:
        assert contrast(colours[name], colours["card"]) >= 3, name


def test_everything_that_takes_the_focus_has_a_name_of_its_own(show: Open) -> None:
    page = show("ib_write_bw-4qp-loss.pcap")
    snapshot = page.locator("body").aria_snapshot()
    controls = re.findall(
        r"- '?(?:button|link|application|searchbox|checkbox|grid|combobox)\b[^\n]*", snapshot
    )
    assert len(controls) > 30
    assert [one for one in controls if not re.search(r'"[^"]+"', one)] == []
    links = [one for one in controls if "Show in the graph: " in one]
    assert len(links) == len(set(links)) == page.locator("#finding-list > li.finding").count()


def test_a_screen_reader_hears_the_row_that_the_keys_choose(show: Open) -> None:
    page = show(LOSS)
    table = page.get_by_role("grid", name="Transfers")
    table.focus()
    assert table.get_attribute("aria-description") == "Arrow keys choose a row, Enter goes to it"
    page.keyboard.press("Home")
    for wanted in ("0", "1", "2"):
        row = page.locator("#" + (table.get_attribute("aria-activedescendant") or "nothing"))
        assert row.get_attribute("aria-selected") == "true"
        assert row.locator("td").first.inner_text() == wanted
        page.keyboard.press("ArrowDown")
    page.keyboard.press("End")
    assert page.locator("#transfer-title").inner_text().startswith("Transfer 19")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "transfer"


def test_a_ladder_is_read_step_by_step(show: Open) -> None:
    page = show(LOSS, "#t=16")
    read = page.locator(".ladder").aria_snapshot()
    assert "img" not in read
    steps = ["WR posted", "did not arrive", "NAK PSN sequence error", "2nd time", "WC polled"]
    places = [read.find(step) for step in steps]
    assert places == sorted(places)
    assert places[0] >= 0


def test_keys_alone_go_through_the_whole_report(show: Open, pcaps: Path) -> None:
    """From the capture's name to each part, and from each to what it leads to, with Tab and Enter."""
    page = show(LOSS)

    def tab_to(name: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate("probe.focus()").startswith(name):
                return
        raise AssertionError(f"Tab never reached {name}")

    def focus() -> str:
        return str(page.evaluate("document.activeElement.id"))

    costliest = max(rocekit.analyze(pcaps / LOSS).findings, key=lambda f: f.evidence.get("added_ns", 0))
    assert costliest.transfer is not None
    tab_to(f"Transfer {costliest.transfer.id}")
    page.keyboard.press("Enter")
    page.wait_for_selector("#transfer:focus")  # wait_for_function would need eval, which the page forbids
    tab_to("Show in the graph")
    page.keyboard.press("Enter")
    assert focus() == "graph"
    tab_to("PSN over time")  # the graphs themselves
    before = page.evaluate("rocekit.page.timeline.view")
    page.keyboard.press("+")
    settled(page)
    assert page.evaluate("rocekit.page.timeline.view") != before
    tab_to("QP 0x14")  # a line of the topology
    page.keyboard.press("Enter")
    assert focus() == "graph"
    page.get_by_role("grid", name="Connections").focus()
    page.keyboard.press("Enter")
    assert focus() == "graph"
    tab_to("Duration")
    page.keyboard.press("Enter")
    assert page.locator("#transfers th[aria-sort]").get_attribute("aria-sort") == "descending"
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.tagName") == "BUTTON"


def test_the_number_of_transfers_that_a_filter_leaves_is_said(show: Open) -> None:
    page = show(LOSS)
    said = page.locator("#transfer-count")
    assert said.get_attribute("aria-live") == "polite"
    page.get_by_role("searchbox").fill("#12")
    assert said.inner_text() == "1 of 20"


def test_a_narrow_window_needs_no_sideways_scrolling(show: Open) -> None:
    """WCAG 2.2, 1.4.10: 320 CSS pixels, a window of 1,280 at 400 %; tables may scroll by themselves."""
    page = show(LOSS)
    page.set_viewport_size({"width": 320, "height": 640})
    for _ in range(200):
        if page.evaluate("document.documentElement.scrollWidth") <= 320:
            break
        page.wait_for_timeout(20)
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
