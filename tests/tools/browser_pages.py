"""Pages of a browser for tests: a module's tests have one page after the other.

To make a page, with a process of its own, takes as long as to load a report in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SIZE = {"width": 1300, "height": 900}


class Pages:
    """The pages of a browser that tests look at. What a test did to one does not reach the next."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._kept: Page | None = None

    @contextmanager
    def of_a_test(self, **always: Any) -> Iterator[Callable[..., Page]]:
        """Gives an empty page, the first time the one that the test before had; ``always`` and the function's
        arguments are media features that the pages have.

        At the end nothing was said on their consoles, and each asked for its own file and nothing else.
        """
        said: list[str] = []
        asked: list[str] = []
        heard: dict[Any, Callable[[Any], None]] = {
            "console": lambda message: said.append(message.text),
            "pageerror": lambda error: said.append(str(error)),
            "request": lambda request: asked.append(request.url),
        }
        opened: list[Page] = []

        def empty(**media: Any) -> Page:
            page = None if opened else self._kept
            self._kept = self._kept if opened else None
            if page is None:
                page = self._browser.new_page(viewport=SIZE)  # type: ignore[arg-type]
                page.set_default_timeout(60_000)
            page.emulate_media(**{"color_scheme": "light", **always, **media})
            for event, hear in heard.items():
                page.on(event, hear)
            opened.append(page)
            return page

        yield empty
        # After a failure none is kept, whatever state it is in.
        for number, page in enumerate(opened):
            for event, hear in heard.items():
                page.remove_listener(event, hear)
            if number:
                page.close()
            else:
                self._kept = _emptied(page)
        assert said == []
        assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
        assert len([url for url in asked if url.startswith("file:")]) == len(opened)


def _emptied(page: Page) -> Page:
    """A page as it was when it was made."""
    page.evaluate("() => { try { localStorage.clear(); } catch { /* there is none */ } }")
    page.goto("about:blank")
    page.emulate_media(media="null", color_scheme="null", reduced_motion="null")
    page.set_viewport_size(SIZE)  # type: ignore[arg-type]
    page.mouse.move(0, 0)
    return page
