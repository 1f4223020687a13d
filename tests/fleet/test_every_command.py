"""Every command that reads a capture reads it at a URL, too, and says and writes the same."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from places import PCAPS

from rocekit.cli import rocekit as cli

pytest.importorskip("fsspec", reason="no fsspec (pip install 'rocekit[fleet]')")
NAME = "ping-write-loss-behind"
OUT = "OUT"  # stands for the file that a command writes

#: By command, what follows its FILE.
MORE: dict[str, tuple[str, ...]] = {
    "analyze": (),
    "annotate": (f"{OUT}.pcapng",),
    "check": (),
    "decode": ("--count", "3"),
    "explain": (),
    "export": ("--to", "csv", "--table", "transfers", "-o", OUT),
    "plot": ("-o", f"{OUT}.svg"),
    "replay": ("-o", f"{OUT}.pcap"),
    "report": ("-o", f"{OUT}.html"),
    "slice": (f"{OUT}.pcapng", "--transfer", "2"),
    "stats": (),
    "topology": (),
    "verify": (),
}
#: Commands whose output has its own time or the file's name in packed data.
PICTURES = frozenset({"plot", "report"})
#: Commands that need more than the package.
NEEDS = {"plot": "matplotlib", "verify": "tshark"}


def readers(group: click.Group) -> Iterator[str]:
    """The commands that have ``-r FILE``, as all that read captures do."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if any(parameter.name == "read" for parameter in command.params):
            yield name


@pytest.fixture(scope="module")
def folder() -> str:
    """The captures' folder at a URL; what is at others is read in the same way (see ``test_urls``)."""
    return f"file://{PCAPS}"


def run(command: str, file: str, out: Path) -> Result:
    more = [word.replace(OUT, str(out / "out")) for word in MORE[command]]
    return CliRunner().invoke(cli, [command, file, *more])


def test_the_table_has_every_command_that_reads_captures() -> None:
    assert set(MORE) == set(readers(cli))


@pytest.mark.parametrize("command", MORE)
def test_a_command_says_and_writes_of_a_url_what_it_does_of_the_file(
    command: str, folder: str, tmp_path: Path
) -> None:
    if command in NEEDS and shutil.which(NEEDS[command]) is None:
        pytest.importorskip(NEEDS[command], reason=f"no {NEEDS[command]}")
    results, written = [], []
    for place, name in ((folder, "remote"), (str(PCAPS), "local")):
        out = tmp_path / name
        out.mkdir()
        result = run(command, f"{place}/{NAME}.pcap", out)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.output
        results.append((result.exit_code, plain(result.output, place, out)))
        files = sorted(path for path in out.rglob("*") if path.is_file())
        written.append({path.name: plain(path.read_bytes().decode("latin-1"), place, out) for path in files})
    assert results[0] == results[1]
    assert results[0][0] == (1 if command == "check" else 0), results[0][1]
    assert written[0].keys() == written[1].keys()
    assert bool(written[0]) == (OUT in " ".join(MORE[command]))
    for name, text in written[0].items():
        assert text
        if command not in PICTURES:
            assert text == written[1][name], name


def plain(text: str, place: str, out: Path) -> str:
    """Text without where the file was, and how long a name it had."""
    text = text.replace(place, "PLACE").replace(str(out), "OUT")
    return re.sub(r"[\d,]+ bytes", "N bytes", text)


@pytest.mark.parametrize("command", MORE)
def test_a_url_where_nothing_is_is_one_line(command: str, folder: str, tmp_path: Path) -> None:
    url = f"{folder}/none.pcap"
    result = run(command, url, tmp_path)
    assert result.exit_code in (1, 2), result.output
    assert url in result.output
    assert result.output.count("\n") == 1, result.output
    assert not list(tmp_path.iterdir())
