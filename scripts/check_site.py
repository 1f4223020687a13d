#!/usr/bin/env python3
"""Check a built site: each link inside it leads to a page and an anchor; nothing is fetched from a network.

python scripts/check_site.py site
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: What a browser fetches by itself, by element: the attribute that names it.
FETCHED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
#: `link` elements that only say something about the page.
TOLD = ("canonical", "next", "prev", "alternate")


class Page(HTMLParser):
    """A page's anchors, the links in it, and what it makes a browser fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value is not None}
        self.anchors.update(given[name] for name in ("id", "name") if name in given)
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        attribute = FETCHED.get(tag)
        if attribute in given and given.get("rel") not in TOLD:
            self.fetched.append(given[attribute])


def problems(site: Path) -> Iterator[str]:
    """What is wrong with the site in this folder, a line each."""
    pages = {path: Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    if not pages:
        yield f"{site}: no pages"
    for path, page in pages.items():
        where = path.relative_to(site)
        if where.name == "404.html":  # its links begin at the server's root
            continue
        for link in page.fetched:
            if urlsplit(link).netloc:
                yield f"{where}: fetches {link}"
        for link in (*page.links, *page.fetched):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.exists():
                yield f"{where}: {link}: there is no such file"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{where}: {link}: there is no such anchor"


if __name__ == "__main__":
    found = list(problems(Path(sys.argv[1]).resolve()))
    print("\n".join(found) or "links: all lead somewhere; nothing is fetched from a network")
    sys.exit(bool(found))
