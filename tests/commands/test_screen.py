"""What commands print, as they print it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rocekit.commands.screen import show_all


def test_many_texts_are_printed_while_the_next_ones_are_made(capsys: pytest.CaptureFixture[str]) -> None:
    printed = ""

    def texts() -> Iterator[str]:
        nonlocal printed
        for number in range(1000):
            if number == 999:
                printed = capsys.readouterr().out
            yield f"text {number}\nof two lines"

    show_all(texts())
    assert printed.startswith("text 0\nof two lines\ntext 1\n")
    assert printed.count("\n") > 1000
    printed += capsys.readouterr().out
    assert printed == "".join(f"text {number}\nof two lines\n" for number in range(1000))
