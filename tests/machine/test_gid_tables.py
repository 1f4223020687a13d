"""A port's GID table: entries that hold a GID, whatever is between them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocekit.machine.gid_tables import filled_entries

EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000\n"
LOCAL = "fe80:0000:0000:0000:0000:00ff:fe00:0001"
MAPPED = "0000:0000:0000:0000:0000:ffff:0a09:0001"


def table(folder: Path, entries: dict[int, str]) -> Path:
    folder.mkdir()
    for index, text in entries.items():
        (folder / str(index)).write_text(text)
    return folder


def test_an_entry_behind_empty_ones_is_found_and_the_order_is_that_of_the_numbers(tmp_path: Path) -> None:
    entries = dict.fromkeys(range(20), EMPTY) | {10: MAPPED + "\n", 9: LOCAL + "\n"}
    assert filled_entries(table(tmp_path / "gids", entries)) == [(9, LOCAL), (10, MAPPED)]


def test_an_entry_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    gids = table(tmp_path / "gids", {0: LOCAL, 2: MAPPED})
    (gids / "1").mkdir()  # opens, and cannot be read: as an unused entry of some drivers
    (gids / "3").symlink_to("nowhere")  # as one that has just gone
    assert filled_entries(gids) == [(0, LOCAL), (2, MAPPED)]


def test_without_a_table_there_is_an_error_and_no_empty_table(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        filled_entries(tmp_path / "gids")
