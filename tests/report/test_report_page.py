"""A report in a real browser: it draws, is moved through by mouse and keys, and asks no one for anything."""

from __future__ import annotations

import functools
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from alike import many_connections
from browser_pages import Pages
from capture_bytes import pcap
from click.testing import CliRunner
from flushed import dead_with_flushed
from places import TOOLS

import rocekit
from rocekit.cli import rocekit as cli
from rocekit.report.collector import Collector
from rocekit.report.document import document
from rocekit.report.lane_columns import build_lanes
from rocekit.report.page import page as built

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# Each process that runs some of them starts a Chromium.
pytestmark = pytest.mark.xdist_group("browser")

Open = Callable[..., "Page"]

PROBES = (TOOLS / "report_page.js").read_text()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The distribution's Chromium."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright (pip install playwright)")
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("no Chromium (apt-get install chromium)")
    with sync_api.sync_playwright() as playwright:
        # As root, Chromium has no sandbox of its own to put the page in; the page is ours.
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"], timeout=120_000)
        yield started
        started.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def pages(browser: Browser) -> Pages:
    return Pages(browser)


@pytest.fixture
def show(pages: Pages, folder: Path, pcaps: Path) -> Iterator[Open]:
    """Opens a capture's report; at the end, nothing was said on its console and nothing was asked for."""
    # Without motion, the page is at once where a link leads.
    with pages.of_a_test(reduced_motion="reduce") as empty:

        def show(capture: str | Path, fragment: str = "", **media: Any) -> Page:
            page = empty(**media)
            page.goto(report(pcaps / capture, folder).as_uri() + fragment)
            page.wait_for_selector("html[data-ready]")
            page.evaluate(PROBES)
            return page

        yield show


@functools.cache
def report(capture: Path, folder: Path) -> Path:
    out = folder / f"{capture.name}.html"
    result = CliRunner().invoke(cli, ["report", str(capture), "-o", str(out)])
    assert result.exit_code == 0, result.output
    return out


@functools.cache
def generated(folder: Path, *arguments: str) -> Path:
    path = folder / f"{abs(hash(arguments))}.pcap"
    assert CliRunner().invoke(cli, ["generate", str(path), "--snaplen", "128", *arguments]).exit_code == 0
    return path


def view(page: Page) -> tuple[float, float]:
    first, last = page.evaluate("rocekit.page.timeline.view")
    return first, last


def settled(page: Page) -> None:
    """Wait for the drawing that was asked for."""
    page.evaluate("probe.drawn()")


@pytest.mark.parametrize(
    "capture",
    [
        "ping-write-loss-behind.pcap",
        "blast-sr-rnr.pcap",
        "ping-read-response-loss.pcap",
        "ib_send_bw-ud-clean.pcap",
    ],
)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_graph_is_drawn(show: Open, capture: str, scheme: str) -> None:
    page = show(capture, color_scheme=scheme)
    charts = page.locator(".chart canvas")
    assert charts.count() >= (2 if "ud" in capture else 4)
    for k in range(charts.count()):
        assert charts.nth(k).evaluate("canvas => probe.colours(canvas)") > 3
    assert page.locator("html").get_attribute("data-theme") == scheme
    assert page.locator("#loading").count() == 0


def test_findings_come_first_with_their_cost_and_lead_to_their_place(show: Open) -> None:
    page = show("ping-write-loss-behind.pcap")
    order = page.evaluate("[...document.querySelectorAll('main section')].map(s => s.id)")
    assert order == ["findings", "graph", "connections", "transfer", "transfers"]
    second = page.locator("#finding-1")
    assert "tail-loss" in second.inner_text()
    assert "329.5 ms of delay" in second.locator(".cost").inner_text()
    whole = view(page)
    second.get_by_role("link", name="Show in the graph").click()
    settled(page)
    shown = view(page)
    assert shown[1] - shown[0] < whole[1] - whole[0]
    at = page.evaluate("rocekit.model.findings[1].place.at")
    assert any(shown[0] <= time <= shown[1] for time, _ in at)
    assert "Transfer 14" in page.locator("#transfer-title").inner_text()


def test_many_alike_findings_are_one_card(show: Open, folder: Path) -> None:
    path = folder / "alike.pcap"
    path.write_bytes(pcap(many_connections(20).frames, unit="ns"))
    page = show(path)
    cards = page.locator("#finding-list > li.finding")
    assert cards.count() == 2
    assert "loss on 20 connections between 10.9.0.1 and 10.9.0.2" in cards.nth(0).inner_text()
    page.get_by_text("19 more like this").click()
    others = cards.nth(0).locator("ul.alike li")
    others.nth(18).wait_for()  # the list is made when the browser says that it was opened
    assert others.count() == 19
    assert cards.count() == 2
    others.nth(3).get_by_role("link").click()
    settled(page)
    link = others.nth(3).get_by_role("link").get_attribute("href") or ""
    place = page.evaluate(f"rocekit.model.findings[{link.partition('=')[2]}].place.lane")
    assert page.evaluate("rocekit.page.timeline.lane") == place


def test_hovering_tells_of_the_packet(show: Open) -> None:
    page = show("ping-write-loss-behind.pcap", "#t=16")
    page.get_by_role("button", name="Show in the graph").click()
    settled(page)
    x, y = page.evaluate("probe.place(200)")
    page.mouse.move(x - 30, y)
    page.mouse.move(x, y)
    words = page.locator(".tip").inner_text()
    assert "frame 200 · RC_RDMA_WRITE_MIDDLE" in words
    assert "PSN 16688370 · 1,024 bytes" in words
    assert "sent again (2nd time)" in words
    assert "transfer 16: WR 8 WRITE" in words


def test_work_requests_that_sent_nothing_are_seen_and_told_of(
    show: Open, pcaps: Path, tmp_path: Path
) -> None:
    page = show("failures-each.pcap")
    page.evaluate("rocekit.page.openLane(18)")
    page.locator(".chart").first.scroll_into_view_if_needed()
    settled(page)
    assert "WR without packets" in page.locator(".legend").inner_text()
    x, y = page.evaluate("probe.sign('unsent')")
    page.mouse.move(x - 30, y)
    page.mouse.move(x, y)
    words = page.locator(".tip").inner_text()
    assert "WR without packets: WR 2 SEND 64 bytes, WR_FLUSH_ERR" in words
    assert "after the post, no packet in the capture" in words
    # A deep queue that was flushed: as many as fit stand above, the packets keep their room.
    page = show(dead_with_flushed(pcaps, tmp_path, 100))
    assert page.evaluate("rocekit.page.timeline.charts[0].y[1]") < 2256527 + 12
    chart = "rocekit.page.timeline.charts[0]"
    assert page.evaluate(f"{chart}.drawn.every(([x, y]) => y > {chart}.geometry.y0)")
    page = show(dead_with_flushed(pcaps, tmp_path, 300))
    assert page.evaluate("rocekit.page.timeline.charts[0].rugs") == ["unsent"]


def test_hovering_below_tells_of_the_moment(show: Open) -> None:
    page = show("ping-write-loss-behind.pcap")
    over = page.locator(".u-over").nth(2)
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 20)
    page.mouse.move(box["x"] + box["width"] * 0.75 + 2, box["y"] + 20)
    words = page.locator(".tip").inner_text()
    # A WRITE of eight packets waits for the requester's timer.
    assert "8 PSNs outstanding" in words
    assert "8,192 B outstanding" in words


def test_dragging_wheel_and_double_click_zoom(show: Open) -> None:
    page = show("blast-sr-rnr.pcap")
    over = page.locator(".u-over").first
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    assert box is not None
    whole = view(page)
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 120, steps=4)
    page.mouse.up()
    settled(page)
    half = view(page)
    assert (half[1] - half[0]) / (whole[1] - whole[0]) == pytest.approx(0.5, abs=0.02)
    page.mouse.wheel(0, -200)
    settled(page)
    nearer = view(page)
    assert nearer[1] - nearer[0] < half[1] - half[0]
    page.mouse.dblclick(box["x"] + 200, box["y"] + 100)
    settled(page)
    assert view(page) == pytest.approx(whole)


def test_all_graphs_share_one_time_axis(show: Open) -> None:
    page = show("blast-sr-rnr.pcap")
    page.evaluate("rocekit.page.timeline.zoom(.3)")
    settled(page)
    scales = page.evaluate(
        "rocekit.page.timeline.charts.map(c => [c.plot.scales.x.min, c.plot.scales.x.max])"
    )
    assert len(scales) == 4
    assert all(tuple(s) == view(page) for s in scales)
    lefts = page.evaluate("rocekit.page.timeline.charts.map(c => [c.plot.bbox.left, c.plot.bbox.width])")
    assert all(one == lefts[0] for one in lefts)


def test_keys_move_zoom_and_go_from_event_to_event(show: Open) -> None:
    page = show("ping-write-loss-behind.pcap")
    graph = page.get_by_role("application")
    graph.focus()
    whole = view(page)

    def press(key: str) -> tuple[float, float]:
        page.keyboard.press(key)
        settled(page)
        return view(page)

    near = press("+")
    assert near[1] - near[0] == pytest.approx((whole[1] - whole[0]) / 2)
    later = press("ArrowRight")
    assert later[0] > near[0]
    assert press("ArrowLeft") == pytest.approx(near)
    assert press("-") == pytest.approx(whole)
    press("n")
    said = page.get_by_role("status").inner_text()
    assert re.match(r"Event 1 of \d+: 0 ns CM REQ", said)
    press("n")
    assert page.get_by_role("status").inner_text().startswith("Event 2 of")
    press("p")
    assert page.get_by_role("status").inner_text() == said
    assert press("Home") == pytest.approx(whole)


def test_tab_reaches_everything_beginning_with_the_skip_links(show: Open) -> None:
    page = show("blast-sr-rnr.pcap")
    names = []
    for _ in range(60):
        page.keyboard.press("Tab")
        names.append(page.evaluate("probe.focus()"))
        if names[-1].startswith("WC"):
            break
    assert names[:5] == ["Findings", "Graphs", "Connections", "Transfer", "Transfers"]
    for wanted in ("Theme", "Show in the graph", "Transport", "◀", "Ladder", "Bytes"):
        assert any(name.startswith(wanted) for name in names), (wanted, names)
    page.locator(".skip a").nth(1).focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "graph"


def test_transfers_are_sorted_filtered_and_chosen(show: Open, pcaps: Path) -> None:
    page = show("ping-write-loss-behind.pcap")
    section = page.locator("#transfers")
    rows = section.locator("tbody tr[data-row]")
    assert rows.count() == 20
    section.get_by_role("button", name="Duration").click()
    took = rows.first.locator("td").nth(9).inner_text()
    assert took == "227.3 ms"
    assert section.locator("th[aria-sort]").get_attribute("aria-sort") == "descending"
    section.get_by_role("checkbox").check()
    assert rows.count() == 9
    assert "9 of 20" in section.locator("#transfer-count").inner_text()
    section.get_by_role("searchbox").fill("timeout")
    waited = [t.id for t in rocekit.analyze(pcaps / "ping-write-loss-behind.pcap").transfers if t.timeouts]
    assert rows.count() == len(waited) > 0
    rows.nth(0).click()
    title = page.locator("#transfer-title").inner_text()
    assert any(title.startswith(f"Transfer {number}") for number in waited)
    section.get_by_role("searchbox").fill("nothing like it")
    assert "No transfer matches the filter." in section.inner_text()


def test_a_ladder_shows_what_was_lost_and_what_came_again(show: Open) -> None:
    page = show("ping-write-loss-behind.pcap", "#t=16")
    words = page.locator(".ladder").inner_text()
    assert "frame 196 · did not arrive" in words
    assert "NAK PSN sequence error" in words
    assert "2nd time" in words
    assert "WC polled" in words
    story = page.locator(".story").inner_text()
    assert "WR 8 posted" in story
    assert "900.1 µs after the last ACK" in story


def test_the_theme_can_be_chosen(show: Open) -> None:
    page = show("rping-clean.pcap", color_scheme="light")
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    button = page.get_by_role("button", name="Theme")
    button.click()
    button.click()
    assert button.inner_text() == "Theme: dark"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    assert page.locator(".chart canvas").first.evaluate("canvas => probe.colours(canvas)") > 3


def test_thousands_of_transfers_are_only_drawn_where_they_are_seen(show: Open, folder: Path) -> None:
    page = show(generated(folder, "--packets", "20000", "--size", "64", "--pairs", "2"))
    rows = page.locator("#transfers tbody tr[data-row]")
    assert page.evaluate("rocekit.model.transferCount") > 9000
    assert rows.count() < 100
    page.locator("#transfers .scroll").evaluate("one => { one.scrollTop = one.scrollHeight; }")
    settled(page)
    assert rows.count() < 100
    last = page.evaluate("rocekit.model.columns.t_id[rocekit.model.transferCount - 1]")
    assert str(last) in rows.last.inner_text()


def test_a_large_capture_is_drawn_whole_and_its_losses_stay_visible(show: Open, folder: Path) -> None:
    """More packets than points: what was sent again is drawn over what was not."""
    page = show(generated(folder, "--packets", "120000", "--loss", "0.0002", "--pairs", "1", "--one-way"))
    assert page.evaluate("rocekit.page.timeline.high - rocekit.page.timeline.low") > 100_000
    again = page.locator(".chart canvas").first.evaluate("canvas => probe.repeats(canvas)")
    assert again[0] > 20
    assert again[1] == again[0]


def test_a_broken_clock_breaks_no_page(show: Open, folder: Path, pcaps: Path) -> None:
    """The last packet comes decades after the others."""
    data = bytearray((pcaps / "rping-clean.pcap").read_bytes())
    at, last = 24, 24
    while at < len(data):
        last, at = at, at + 16 + int.from_bytes(data[at + 8 : at + 12], "little")
    data[last : last + 4] = (0xF000_0000).to_bytes(4, "little")
    broken = folder / "broken.pcap"
    broken.write_bytes(data)
    page = show(broken)
    assert page.locator(".chart canvas").first.evaluate("canvas => probe.colours(canvas)") > 3
    page.get_by_role("application").focus()
    for key in ("+", "ArrowRight", "Home", "n", "n"):
        page.keyboard.press(key)
    assert page.get_by_role("status").inner_text().startswith("Event 2 of")


def test_an_empty_capture_says_so(show: Open, folder: Path, pcaps: Path) -> None:
    empty = folder / "empty.pcap"
    empty.write_bytes((pcaps / "rping-clean.pcap").read_bytes()[:24])
    page = show(empty)
    words = page.locator("main").inner_text()
    assert words.startswith("No RoCE v2 packets: nothing to judge. The capture has no frames.")
    assert page.locator("#finding-list").inner_text() == "No RoCE v2 packets: nothing to judge."
    assert page.locator("#tiles").inner_text().split() == ["RoCE", "packets", "0"]
    assert "No connections." in words
    assert "Nothing to draw." in words
    assert "No transfers." in words


def test_names_of_a_hostile_capture_are_text(show: Open, folder: Path, pcaps: Path) -> None:
    hostile = folder / "<img src=x onerror=alert(1)>.pcap"
    hostile.write_bytes((pcaps / "rping-clean.pcap").read_bytes())
    page = show(hostile)
    assert page.locator("#files").inner_text() == hostile.name
    assert page.locator("img").count() == 0


def test_the_page_forbids_itself_the_network(browser: Browser, folder: Path, pcaps: Path) -> None:
    page = browser.new_page()
    page.goto(report(pcaps / "rping-clean.pcap", folder).as_uri())
    page.wait_for_selector("html[data-ready]")
    refused = page.evaluate("fetch('http://127.0.0.1:9/').then(() => '', error => error.message)")
    assert "Failed to fetch" in refused
    page.evaluate(PROBES)
    assert page.evaluate("probe.forbidden()") == "img-src"
    page.close()


def test_on_paper_it_is_light_and_whole(show: Open) -> None:
    page = show("ping-write-loss-behind.pcap", color_scheme="dark")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.locator("html").get_attribute("data-theme") == "light"
    page.emulate_media(media="print")
    assert not page.get_by_role("button", name="Theme").is_visible()
    assert page.locator("#transfers tbody tr[data-row]").count() == 20
    page.set_viewport_size({"width": 794, "height": 1123})  # A4 at 96 dots an inch
    # The graphs follow a frame later. The page's policy forbids it to evaluate text, so ask from here.
    for _ in range(200):
        if page.evaluate("document.documentElement.scrollWidth") <= 794:
            break
        page.wait_for_timeout(50)
    assert page.evaluate("document.documentElement.scrollWidth") <= 794
    pdf = page.pdf()
    assert pdf.startswith(b"%PDF")
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.locator("html").get_attribute("data-theme") == "dark"


def test_hosts_and_qps_are_chosen_in_the_topology(show: Open) -> None:
    page = show("ib_write_bw-4qp-loss.pcap")
    lines = page.locator("#topology [role=button]")
    assert lines.count() == 4
    lines.nth(2).focus()
    page.keyboard.press("Enter")
    wanted = page.evaluate("rocekit.model.topology.links[0].qps[2].connections[0]")
    assert page.locator("#graph-title").inner_text().startswith(f"Connection {wanted}")


def test_a_page_of_what_was_read_until_ctrl_c_says_so(browser: Browser, folder: Path, pcaps: Path) -> None:
    collector = Collector()
    analysis = rocekit.analyze(pcaps / "ping-write-clean.pcap", watch=collector, stop=lambda: True)
    assert analysis.capture.interrupted
    out = folder / "part.html"
    out.write_text(built("part", *document(analysis, build_lanes(collector, analysis))))
    page = browser.new_page()
    page.goto(out.as_uri())
    page.wait_for_selector("html[data-ready]")
    assert page.inner_text("#damage").startswith("Interrupted: only the part of the capture read until then")
    page.close()
