"""Every command that reads what others wrote, run in this process on one input; and what it must keep to.

A command ends with status 0, 1 or 2, in one line where it fails; what it prints as JSON is JSON, and what it
prints as text moves no cursor.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from hostile_inputs import HostileInput

from rocekit.cli import rocekit as cli
from rocekit.conform.language import parse_drill
from rocekit.conform.soft_bench import SoftBench
from rocekit.decode import Decoder
from rocekit.errors import RocekitError
from rocekit.files.reader import open_capture
from rocekit.files.yaml import parse_yaml
from rocekit.journal.records import parse_event
from rocekit.live.watch import Watch
from rocekit.packets.filters import Filter, FilterError

#: No input of these sizes takes so long; it would be a loop.
ENOUGH_S = 120
_BAD_TEXT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]")

#: The commands on a capture: FILE, OUT (a new path) stand for paths; # is a name for the report.
CAPTURE: tuple[str, ...] = (
    "analyze FILE",
    "analyze FILE --format json",
    "analyze FILE --all",
    "explain FILE",
    "explain FILE --all --steps --format json",
    "stats FILE --format json",
    "stats FILE",
    "topology FILE --format json",
    "topology FILE --qps",
    "topology FILE --format dot",
    "decode FILE",
    "decode FILE -V",
    "decode FILE --format json",
    "decode FILE -Y RC&&psn>=1||truncated",
    "check FILE -o OUT.sarif",
    "check FILE -o OUT.xml --format json",
    "report FILE -o OUT.html",
    "annotate FILE OUT.pcapng --sidecar OUT.jsonl",
    "slice FILE OUT.pcapng --redact",
    "slice FILE OUT.pcap --headers-only",
    "slice FILE OUT.pcapng --transfer 0",
    "slice FILE OUT.pcapng --connection 0 --redact",
    "replay FILE -w OUT.pcap --ip 10.0.0.1=10.0.0.9 --psn +5 --va +16 --rkey 7=8",
    "replay FILE -w OUT.pcapng",
    "export FILE --to csv -o OUT",
    "export FILE --to parquet -o OUT",
    "export FILE --to jsonl -o OUT",
    "export FILE --to perfetto -o OUT.trace",
    "export FILE --to qlog -o OUT.qlog",
    "plot FILE -o OUT.svg",
)
#: With a capture that a good conversation is in.
JOURNAL: tuple[str, ...] = (
    "analyze GOOD --journal FILE --format json",
    "analyze GOOD --journal FILE --all",
    "explain GOOD --journal FILE --all",
    "stats GOOD --journal FILE",
    "report GOOD --journal FILE -o OUT.html",
    "annotate GOOD OUT.pcapng --journal FILE",
    "slice GOOD OUT.pcapng --journal FILE --redact",
    "export GOOD --journal FILE --to jsonl -o OUT",
    "export GOOD --journal FILE --to perfetto -o OUT.trace",
    "export GOOD --journal FILE --to qlog -o OUT.qlog",
    "check GOOD --journal FILE --format json",
    "topology GOOD --journal FILE --format json",
    "counters --since FILE",
)
PACKETS: tuple[str, ...] = ("craft FILE -w OUT.pcap", "craft FILE -c 3 -w OUT.pcapng")
DRILLS: tuple[str, ...] = ("drill FILE -v", "drill FILE --keep OUT")


class HostileFailure(AssertionError):
    """A command that did not keep to what is said above."""


@contextmanager
def bounded(seconds: int = ENOUGH_S) -> Iterator[None]:
    def late(_number: int, _frame: object) -> None:
        raise HostileFailure(f"not done after {seconds} s of processor time")

    before = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def run_command(line: str, file: Path, good: Path, folder: Path) -> None:
    """Run a command on a file.

    Raises:
        HostileFailure: it did not end as it should.
    """
    names = {"FILE": str(file), "GOOD": str(good)}
    words = [names.get(word, word.replace("OUT", str(folder / "out"))) for word in line.split()]
    with bounded():
        result = CliRunner().invoke(cli, words)
    said = result.output
    if "a defect of rocekit" in said:
        raise HostileFailure(f"{line}: {said[said.index('a defect of rocekit') :][:300]}")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise HostileFailure(f"{line}: {result.exception!r}") from result.exception
    if result.exit_code not in (0, 1, 2):
        raise HostileFailure(f"{line}: exit {result.exit_code}")
    if found := _BAD_TEXT.search(result.output):
        raise HostileFailure(f"{line}: prints {found[0]!r}")
    if "--format json" in line and result.stdout.strip().startswith(("{", "[")):
        for document in _documents(line, result.stdout):
            json.loads(document, parse_constant=_no_constant)


def _documents(line: str, text: str) -> list[str]:
    return text.splitlines() if line.startswith("decode") else [text]


def _no_constant(word: str) -> Any:
    raise HostileFailure(f"prints {word}, which is not JSON")


# ---------------------------------------------------------------------- without the command line


def decoded(file: Path) -> None:
    """The frames decoded, without and with a filter, and as `top` sees them."""
    try:
        reader, decoder, watch = open_capture(file), Decoder(), Watch()
        for batch in reader:
            decoder.decode(batch)
            watch.feed(batch)
        watch.snapshot(1.0)
    except RocekitError:
        pass


def parsed_line(data: bytes) -> None:
    for line in data.splitlines():
        try:
            parse_event(json.loads(line))
        except (ValueError, RecursionError):
            pass


def parsed_yaml(data: bytes) -> None:
    try:
        parse_yaml(data.decode("utf-8", "replace"), "x.yaml")
    except RocekitError:
        pass


def played(data: bytes) -> None:
    try:
        drill = parse_drill(data.decode("utf-8", "replace"), "x.yaml")
    except RocekitError:
        return
    SoftBench().play(drill)


def filtered(data: bytes) -> None:
    try:
        Filter(data.decode("utf-8", "replace"))
    except FilterError:
        pass


CHEAP: dict[str, Callable[[bytes], None]] = {
    "journal": parsed_line,
    "packets": parsed_yaml,
    "drill": played,
    "expression": filtered,
}
COMMANDS: dict[str, tuple[str, ...]] = {
    "capture": CAPTURE,
    "journal": JOURNAL,
    "packets": PACKETS,
    "drill": DRILLS,
    "expression": (),
}
__all__ = ["CHEAP", "COMMANDS", "HostileFailure", "HostileInput", "decoded", "run_command"]


def check_input(given: HostileInput, lines: tuple[str, ...], folder: Path, good: Path) -> None:
    """Run an input through the parsers of its kind and these commands.

    Raises:
        Exception: whatever is wrong, a HostileFailure or what a parser let out.
    """
    for left in folder.glob("x.*"):  # a journal of before would be read with a capture, as it is beside it
        left.unlink()
    file = folder / f"x{given.suffix}"
    file.write_bytes(given.data)
    with bounded():
        if given.kind == "capture":
            decoded(file)
        else:
            CHEAP[given.kind](given.data)
    for line in lines:
        run_command(line, file, good, folder)
