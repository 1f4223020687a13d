"""`rocekit top` on a screen: the rows that can be seen, sorted, filtered, opened, frozen."""

from __future__ import annotations

import asyncio
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from places import PCAPS, ROOT

pytest.importorskip("textual")

from textual.pilot import Pilot
from textual.widgets import Static

from rocekit.capture import open_capture
from rocekit.cli import rocekit
from rocekit.errors import CaptureError
from rocekit.files.frames import FrameBatch, empty_batch
from rocekit.live.top import Top
from rocekit.live.top_connection import ConnectionScreen
from rocekit.live.top_table import ConnectionTable
from rocekit.live.watch import Watch


class Captured:
    """A capture of this project as if an interface carried it, and then silence, or an error."""

    def __init__(self, *names: str, problem: CaptureError | None = None) -> None:
        self.dropped = 0
        self._names = names
        self._problem = problem
        self._on = True

    def __iter__(self) -> Iterator[FrameBatch]:
        for name in self._names:
            with open_capture(PCAPS / name) as capture:
                yield from capture
        if self._problem is not None:
            raise self._problem
        while self._on:
            time.sleep(0.02)
            yield empty_batch()

    def stop(self) -> None:
        self._on = False


LOSSY, REFUSED = "ping-write-loss-behind.pcap", "blast-sr-rnr.pcap"


def drive(
    capture: Captured, do: Callable[[Top, Pilot[Any]], Coroutine[Any, Any, None]], width: int = 140
) -> CaptureError | None:
    """Run the application without a terminal, do something in it, and give what it ended with."""

    async def whole() -> CaptureError | None:
        app = Top("eth0", capture, Watch(), interval_s=0.1)
        async with app.run_test(size=(width, 24)) as pilot:
            await do(app, pilot)
        return app.return_value

    return asyncio.run(asyncio.wait_for(whole(), 240))


async def until(pilot: Pilot[Any], condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        await pilot.pause(0.02)


def seen(app: Top) -> str:
    """What stands in the table now."""
    table = app.screen_stack[0].query_one(ConnectionTable)
    return "\n".join(table.render_line(y).text for y in range(table.size.height))


async def shown(app: Top, pilot: Pilot[Any], connections: int) -> ConnectionTable:
    table = app.query_one(ConnectionTable)
    await until(pilot, lambda: len(table.rows) == connections)
    return table


def test_a_row_is_a_connection_with_its_troubles() -> None:
    async def look(app: Top, pilot: Pilot[Any]) -> None:
        await shown(app, pilot, 2)
        title, first, second, *rest = seen(app).splitlines()
        assert "bit/s▼" in title
        both = first + second
        assert "loss tail-loss" in both
        assert "rnr" in both
        assert "10.9.0.1 QP 0x14 ⇄ 10.9.0.2 QP 0x14" in both
        assert not "".join(rest).strip()
        assert not app.screen_stack[0].query_one("#nothing", Static).has_class("shown")

    drive(Captured(LOSSY, REFUSED), look)


def test_without_packets_it_says_that_there_is_nothing_to_judge() -> None:
    async def look(app: Top, pilot: Pilot[Any]) -> None:
        notice = app.query_one("#nothing", Static)
        await until(pilot, lambda: notice.has_class("shown"))
        first, second, third = str(notice.render()).splitlines()
        assert first == "No RoCE v2 packets: nothing to judge."
        assert second == "No frame came that may be RoCE."
        assert "these packets bypass the kernel" in third

    drive(Captured(), look)


def test_the_column_and_the_order_of_sorting_are_chosen_with_keys() -> None:
    async def look(app: Top, pilot: Pilot[Any]) -> None:
        table = await shown(app, pilot, 2)
        await pilot.press("left")
        assert [line.id for line in table.rows] == [0, 1]
        await pilot.press("r")
        assert [line.id for line in table.rows] == [1, 0]
        while table.column.title != "rnr":
            await pilot.press("right")
        assert table.rows[0].rnr_naks > table.rows[1].rnr_naks

    drive(Captured(LOSSY, REFUSED), look)


def test_the_filter_keeps_rows_that_have_all_its_words() -> None:
    async def look(app: Top, pilot: Pilot[Any]) -> None:
        table = await shown(app, pilot, 2)
        await pilot.press("slash", *"rnr", "space", *"0x16", "enter")
        assert [line.rules for line in table.rows] == [("rnr",)]
        await pilot.press("slash", "escape")
        assert len(table.rows) == 2

    drive(Captured(LOSSY, REFUSED), look)


def test_the_chosen_connection_opens() -> None:
    async def look(app: Top, pilot: Pilot[Any]) -> None:
        table = await shown(app, pilot, 2)
        await pilot.press("left", "down")
        assert table.chosen == 1
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ConnectionScreen))
        story = str(app.screen.query_one("#story").render())
        assert "warning rnr: No receive was posted" in story
        assert "RNR NAK, wait" in story
        await pilot.press("escape")
        assert not isinstance(app.screen, ConnectionScreen)

    drive(Captured(LOSSY, REFUSED), look)


def test_the_filter_is_asked_for_from_an_opened_connection_too() -> None:
    async def look(app: Top, pilot: Pilot[Any]) -> None:
        table = await shown(app, pilot, 2)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ConnectionScreen))
        await pilot.press("slash", *"rnr", "space", *"0x16", "enter")
        assert not isinstance(app.screen, ConnectionScreen)
        assert [line.rules for line in table.rows] == [("rnr",)]

    drive(Captured(LOSSY, REFUSED), look)


def test_a_frozen_screen_stays_and_the_watch_goes_on() -> None:
    async def look(app: Top, pilot: Pilot[Any]) -> None:
        table = await shown(app, pilot, 2)
        await until(pilot, lambda: not table.rows[0].packets_per_s)
        await pilot.press("space")
        before, latest = seen(app), app._latest
        await until(pilot, lambda: app._latest is not latest)
        assert seen(app) == before
        assert "FROZEN" in str(app.query_one("#state").render())

    drive(Captured(LOSSY, REFUSED), look)


def test_dropped_frames_are_said() -> None:
    async def look(app: Top, pilot: Pilot[Any]) -> None:
        capture.dropped = 1234
        await until(pilot, lambda: "1,234 frames dropped" in str(app.query_one("#state").render()))

    capture = Captured(LOSSY)
    drive(capture, look)


def test_a_narrow_terminal_has_fewer_columns_and_all_of_the_ends() -> None:
    async def look(app: Top, pilot: Pilot[Any]) -> None:
        table = await shown(app, pilot, 2)
        assert len(table.columns) < 12
        assert "10.9.0.1 QP 0x14 ⇄ 10.9.0.2 QP 0x14" in seen(app)

    drive(Captured(LOSSY, REFUSED), look, width=84)


def test_what_ends_the_capture_ends_it() -> None:
    problem = CaptureError("eth0 is gone")

    async def look(app: Top, pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: app.return_value is not None or not app.is_running)

    assert drive(Captured(LOSSY, problem=problem), look) is problem


def test_without_a_terminal_it_says_what_to_use() -> None:
    result = CliRunner().invoke(rocekit, ["top", "lo"])
    assert result.exit_code == 1
    assert "rocekit trace" in result.stderr


def on_terminal(columns: int, rows: int, keys: bytes) -> tuple[int, str]:
    """(exit status, output) of `rocekit top lo` on a terminal of its own, and the keys to press there."""
    leader, follower = pty.openpty()
    size = {"COLUMNS": str(columns), "LINES": str(rows), "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-m", "rocekit.cli", "top", "lo"],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env=os.environ | size,
        start_new_session=True,
    )
    os.close(follower)
    output, pressed, deadline = b"", False, time.monotonic() + 240
    try:
        while time.monotonic() < deadline:
            if leader in select.select([leader], [], [], 0.2)[0]:
                try:
                    output += os.read(leader, 65536)
                except OSError:  # the other end is closed
                    break
            if not pressed and b"waiting for packets" in output:
                os.write(leader, keys)
                pressed = True
        return process.wait(120), output.decode(errors="replace")
    finally:
        process.kill()
        process.wait()
        os.close(leader)


@pytest.mark.skipif(os.geteuid() != 0, reason="capturing needs root")
def test_on_a_real_terminal_q_ends_it() -> None:
    status, output = on_terminal(120, 30, b"q")
    assert status == 0, output


def test_a_terminal_too_small_is_told_what_it_needs() -> None:
    status, output = on_terminal(40, 5, b"")
    assert status == 1
    assert "40 columns and 5 rows; top needs 80 columns and 10 rows" in " ".join(output.split())
