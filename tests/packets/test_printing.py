"""Lines that the loop writes are those that ``str.format`` makes, whatever the numbers and words."""

from __future__ import annotations

import random
from itertools import cycle, islice

import numpy as np
import pytest

from rocekit.packets.printing.lines import Printed, Words, fields_of, literal, pieces, texts
from rocekit.packets.rows import COMPILED

ROWS = 600
SIGNED = (0, 1, 9, 10, 99, 100, -1, -10, 10**18, (1 << 63) - 1, -(1 << 62))
UNSIGNED = (0, 9, 15, 16, 1 << 24, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
TIMES = (0, 1, 999_999_999, 10**9, -1, -(10**9) - 5, (1 << 62) - 1, 1 - (1 << 62))
TEMPLATES = (
    "{signed}",
    "{{{signed}}}: {signed:>22}, {signed:>3}",
    "{unsigned} {unsigned:#x} {unsigned:>#20x} {unsigned:#3x}",
    "{time:>30}|{time}|{time:>4}",
    "{word:<9}|{word}|{other}",
    "no column, → only {{text}}",
    "",
    "{signed}   ",
)


def columns(seed: int) -> dict[str, Printed]:
    draw = random.Random(seed)
    words = Words(["", "a", "→ é", "long words of a column"], str)
    others = Words([None, 1], lambda value: f"<{value}>")
    for one in (words, others):
        one.update()

    def values(least: int, most: int, special: tuple[int, ...]) -> list[int]:
        return [draw.choice((*special, draw.randint(least, most))) for _ in range(ROWS)]

    return {
        "signed": Printed(np.array(values(-1000, 1000, SIGNED), np.int64)),
        "unsigned": Printed(np.array(values(0, 1 << 64, UNSIGNED), np.uint64)),
        "time": Printed(np.array(values(0, 10**12, TIMES), np.int64), is_time=True),
        "word": Printed(np.array(values(0, 3, ()), np.uint8), words),
        "other": Printed(np.array(values(0, 1, ()), np.int64), others),
    }


@pytest.mark.parametrize("strip", [False, True])
def test_the_loop_writes_what_format_writes(strip: bool) -> None:
    kinds = np.array(list(islice(cycle(range(len(TEMPLATES))), ROWS)), np.int64)
    whole = b"".join(bytes(piece) for piece in pieces(TEMPLATES, kinds, columns(1), strip=strip))
    lines = [line.rstrip(" ") if strip else line for line in texts(TEMPLATES, kinds, columns(1))]
    assert whole.decode().split("\n") == [*lines, ""]


def test_many_long_lines_come_in_several_pieces() -> None:
    kinds = np.zeros(ROWS, np.int64)
    template = "x" * 20_000 + "{signed}"
    found = [bytes(piece) for piece in pieces([template], kinds, columns(2))]
    assert b"".join(found).decode().splitlines() == list(texts([template], kinds, columns(2)))
    assert len(found) > 1 or not COMPILED


def test_words_that_come_later_are_spelled_too() -> None:
    values = ["one"]
    words = Words(values, str.upper)
    words.update()
    assert words.encoded() == [b"ONE"]
    values.append("two")
    words.update()
    assert words.encoded() == [b"ONE", b"TWO"]


def test_a_template_names_its_columns_and_keeps_literal_braces() -> None:
    assert fields_of("{a:>3} {{no}} {b:#x}") == ["a", "b"]
    assert literal("{a}").format() == "{a}"
