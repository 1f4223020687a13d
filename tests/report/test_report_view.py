"""The view of a report: its address, its files, its findings framed, and all of it by keyboard."""

from __future__ import annotations

import csv
import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from places import PCAPS
from test_report_page import browser, folder, pages, settled, show, view

import rocekit
from rocekit.report.measured_waits import measured_waits, wait_words

if TYPE_CHECKING:
    from playwright.sync_api import Page

# Each process that runs some of them starts a Chromium.
pytestmark = pytest.mark.xdist_group("browser")

Open = Callable[..., "Page"]
__all__ = ["browser", "folder", "pages", "show"]  # fixtures

LOSS = "ping-write-loss-behind.pcap"


def address(page: Page, shown: tuple[float, float]) -> str:
    """The page's address, once it names this view: it follows a moment later."""
    for _ in range(400):
        found = re.search(r"#view=0:(-?\d+):(-?\d+)", page.url)
        if found and (float(found[1]), float(found[2])) == pytest.approx(shown, abs=1):
            break
        page.wait_for_timeout(50)
    return str(page.url)


def saved(page: Page, kind: str) -> bytes:
    with page.expect_download() as download:
        page.get_by_role("button", name=f"as {kind}").click()
    return Path(download.value.path()).read_bytes()


def test_the_address_is_that_of_the_view_and_opens_it_again(show: Open) -> None:
    page = show(LOSS, "#finding=1")
    page.evaluate("rocekit.page.timeline.zoom(.5)")
    settled(page)
    shown = view(page)
    url = address(page, shown)
    assert url.endswith("&t=14&finding=1")
    again = show(LOSS, "#" + url.partition("#")[2])
    settled(again)
    assert view(again) == pytest.approx(shown, abs=1)
    assert again.locator("#transfer-title").inner_text().startswith("Transfer 14")
    assert again.evaluate("rocekit.page.timeline.finding.rule") == "tail-loss"


@pytest.mark.parametrize(
    "fragment", ["#view=9:0:5", "#view=0:5:1", "#view=x", "#view=0:0:1000&t=99&finding=7"]
)
def test_an_address_of_another_capture_opens_the_page_all_the_same(show: Open, fragment: str) -> None:
    page = show(LOSS, fragment)
    assert page.locator(".chart canvas").first.evaluate("canvas => probe.colours(canvas)") > 3


def test_the_link_of_a_tail_loss_frames_its_whole_silence(show: Open) -> None:
    page = show(LOSS, "#finding=1")
    settled(page)
    shown = view(page)
    waits = [e for t in rocekit.analyze(PCAPS / LOSS).transfers for e in t.events if e.cause == "timeout"]
    longest = max(waits, key=lambda e: e.waited_ns)
    first = page.evaluate("rocekit.model.findings[1].place.span[0]")
    assert page.evaluate("rocekit.model.findings[1].place.span[1]") - first >= longest.waited_ns
    assert shown[0] < first
    assert shown[1] > first + longest.waited_ns


def test_all_losses_of_a_finding_are_stepped_through(show: Open) -> None:
    page = show(LOSS, "#finding=0")
    page.get_by_role("application").focus()
    naks = rocekit.analyze(PCAPS / LOSS).packets.where("AETH and syndrome >= 0x60")
    origin = rocekit.analyze(PCAPS / LOSS).capture.first_ns or 0
    for number, time in enumerate(naks.time_ns.tolist()):
        page.keyboard.press("Shift+N")
        settled(page)
        assert page.get_by_role("status").inner_text().startswith(f"loss: case {number + 1} of 7")
        low, high = view(page)
        assert low < time - origin < high
    page.keyboard.press("Shift+P")
    assert "case 6 of 7" in page.get_by_role("status").inner_text()
    page.get_by_role("button", name="All cases of this finding").click()
    settled(page)
    low, high = view(page)
    assert all(low < time - origin < high for time in naks.time_ns.tolist())


def test_the_graph_is_on_the_first_screen(show: Open) -> None:
    page = show(LOSS)
    box = page.locator(".chart canvas").first.bounding_box()
    finding = page.locator("#finding-list li").first.bounding_box()
    assert box is not None
    assert finding is not None
    assert box["y"] < 600
    assert finding["y"] < 400
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_what_is_shown_is_saved_as_a_picture(show: Open) -> None:
    page = show(LOSS, "#finding=1")
    settled(page)
    assert saved(page, "PNG").startswith(b"\x89PNG")
    drawing = ET.fromstring(saved(page, "SVG"))
    words = " ".join(drawing.itertext())
    assert "silence 225.8 ms" in words
    assert "connection 0, requests of 10.9.0.1 QP 0x14" in words
    names = [node.tag.rpartition("}")[2] for node in drawing.iter()]
    assert names.count("rect") > 20
    assert names.count("image") == page.locator(".chart canvas").count() - 1


def test_the_words_above_a_saved_picture_tell_a_short_span_too(show: Open) -> None:
    page = show(LOSS, "#view=0:183465717:183560453")
    settled(page)
    words = " ".join(ET.fromstring(saved(page, "SVG")).itertext())
    assert "183.466 ms to 183.560 ms since its first packet" in words


def test_what_is_shown_is_saved_as_a_table(show: Open) -> None:
    page = show(LOSS, "#t=16")
    page.get_by_role("button", name="Show in the graph").click()
    settled(page)
    low, high = view(page)
    rows = list(csv.DictReader(io.StringIO(saved(page, "CSV").decode())))
    packets = rocekit.analyze(PCAPS / LOSS).packets
    origin = rocekit.analyze(PCAPS / LOSS).capture.first_ns or 0
    shown = (packets.time_ns - origin >= low) & (packets.time_ns - origin < high) & (packets.dest_qpn > 1)
    assert [int(row["frame"]) for row in rows] == packets.frame[shown].tolist()
    assert [int(row["psn"]) for row in rows] == packets.psn[shown].tolist()
    assert [row["frame"] for row in rows if row["did_not_arrive"] == "1"] == ["196"]
    assert {row["from"] for row in rows} == {"10.9.0.1 QP 0x14", "10.9.0.2 QP 0x14"}


def test_a_view_is_told_to_those_who_hear_it(show: Open) -> None:
    page = show(LOSS)
    page.get_by_role("application").focus()
    page.keyboard.press("Home")
    told = page.get_by_role("status").inner_text()
    assert told.startswith("In view: ")
    assert "231 packets" not in told  # one direction's own and their responses
    assert "30 sent again" in told
    page.keyboard.press("Shift+N")
    assert page.get_by_role("status").inner_text().startswith("No finding is chosen")


def test_the_keyboard_alone_goes_from_a_finding_to_its_graph_and_a_file(show: Open) -> None:
    page = show(LOSS)
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("probe.focus()").startswith("Show in the graph"):
            break
    page.keyboard.press("Enter")
    settled(page)
    assert page.evaluate("document.activeElement.id") == "graph"
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("probe.focus()") == "CSV":
            break
    with page.expect_download() as download:
        page.keyboard.press("Enter")
    assert download.value.suggested_filename == "ping-write-loss-behind-connection-0a.csv"


def test_measured_waits_stand_beside_the_configured_timeout(show: Open) -> None:
    page = show(LOSS)
    words = page.locator("#timeouts").inner_text()
    assert "measured: silence of" in words
    assert "Configured: 4.096 µs × 2^16 = 268.4 ms" in words


def test_what_was_not_measured_is_not_explained() -> None:
    analysis = rocekit.analyze(PCAPS / "rping-clean.pcap")
    assert measured_waits([]) == {}
    assert wait_words(analysis.connections[0], 0, ()) == ""


def test_a_link_leads_where_it_says_though_the_address_is_written_anew_meanwhile(show: Open) -> None:
    page = show(LOSS, "#t=16")
    page.evaluate("location.hash = '#t=3'; history.replaceState(null, '', '#view=0:0:1')")
    page.get_by_role("heading", name="Transfer 3 ").wait_for()
