"""Text of others does nothing on a terminal: no line of ours is forged, no escape sequence obeyed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from capture_bytes import block, enhanced, option, section
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from places import PCAPS

from rocekit import cli
from rocekit.files.reader import open_capture
from rocekit.journal.records import parse_event
from rocekit.wire.text_table import safe

EVIL = "ev\x1b[2Jil\u202e\nFORGED\r\x07\x9b31m<script>alert(1)<\u2215script>\u2028\u200b\x7f"
KEYS = ("device", "program", "process", "text", "what", "reason", "status", "opcode", "state", "transport")
NAME = "blast-sr-loss"


def spoilt(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: spoilt(part, name) for name, part in value.items()}
    if isinstance(value, list):
        return [spoilt(part, key) for part in value]
    return value + EVIL if isinstance(value, str) and key in KEYS else value


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[str]]:
    """Captures, and the options for a journal: every text that somebody else can choose is evil."""
    folder = tmp_path_factory.mktemp("hostile")
    journal = folder / f"j{EVIL}.jsonl"
    lines = []
    for source in sorted(PCAPS.glob(f"{NAME}*.journal.jsonl")):
        events = [json.loads(line) for line in source.read_text().splitlines()]
        lines += [json.dumps(spoilt(event) | {"host": event["host"] + EVIL}) for event in events]
    lines.append(json.dumps({"event": EVIL}))
    lines.append(json.dumps({"time_ns": 1, "host": EVIL, "pid": 1, "event": "not_recorded", "what": EVIL}))
    journal.write_text("\n".join(lines))
    plain = folder / f"a{EVIL}.pcap"
    shutil.copy(PCAPS / f"{NAME}.pcap", plain)
    texts = option(1, EVIL.encode()) + option(0, b"")
    parts = [section(), block(1, bytes([1, 0, 0, 0, 0, 0, 0, 0]) + option(2, EVIL.encode()) + option(0, b""))]
    with open_capture(plain) as reader:
        for batch in reader:
            for i in range(len(batch)):
                stamp, length = int(batch.time_ns[i]) // 1000, int(batch.wirelen[i])
                parts.append(enhanced(batch.frame(i), stamp, wirelen=length, options=texts))
    commented = folder / f"b{EVIL}.pcapng"
    commented.write_bytes(b"".join(parts) + b"damage" * 4)
    return [str(plain), str(commented)], ["--journal", str(journal)]


@pytest.mark.parametrize(
    "command",
    ["analyze", "analyze --all", "stats", "topology", "decode", "decode -V", "explain 0", "report -o -"],
)
def test_text_of_others_forges_no_line_and_no_terminal_obeys_it(
    hostile: tuple[list[str], list[str]], command: str
) -> None:
    files, journal = hostile
    name, *rest = command.split()
    arguments = [] if name == "decode" else journal
    for file in files:
        result = CliRunner().invoke(cli.rocekit, [name, file, *rest, *arguments])
        for line in result.output.split("\n"):
            assert not line.startswith("FORGED")
            assert line.isprintable(), repr(line)[:500]


@pytest.mark.parametrize(
    "command",
    [
        "analyze --format json",
        "decode --format json",
        "check -o JUNIT.xml",
        "check -o SARIF.sarif",
        "plot -o x.svg",
        "export --to qlog -o x.sqlog",
        "export --to csv --table findings -o findings.csv",
        "export --to csv --table transfers -o transfers.csv",
        "annotate x.pcapng",
    ],
)
def test_text_of_others_is_escaped_in_files_and_json(
    hostile: tuple[list[str], list[str]], command: str, tmp_path: Path
) -> None:
    files, journal = hostile
    name, *rest = command.split()
    rest = [str(tmp_path / word) if "." in word else word for word in rest]
    arguments = [] if name in ("decode", "plot") else journal
    result = CliRunner().invoke(cli.rocekit, [name, files[0], *rest, *arguments])
    written = list(tmp_path.iterdir())
    assert written or result.output.startswith("{"), result.output
    text = result.stdout + "".join(path.read_bytes().decode(errors="replace") for path in written)
    if name == "annotate":  # its packets are bytes: only what it says of them counts
        with open_capture(tmp_path / "x.pcapng") as reader:
            for _ in reader:
                pass
            text = "".join(words for of_frame in reader.comments.values() for words in of_frame)
            assert text
    evils = ["\x1b[2J", "\x07", "\nFORGED"]
    if not ({"json", "SARIF.sarif", "qlog"} & set(command.split())):  # JSON has others as they are
        evils += ["\x9b31m", "\u202e"]
    for evil in evils:
        assert evil not in text, (evil, text[:2000])
    for path in written:
        if path.suffix in (".xml", ".svg"):
            assert "<script>alert" not in path.read_text(errors="replace")
            ElementTree.parse(path)


@given(text=st.text())
def test_safe_text_can_be_printed_and_what_could_be_is_as_it_was(text: str) -> None:
    assert safe(text).isprintable()
    assert text.isprintable() <= (safe(text) == text)


def test_a_journal_is_made_safe_where_it_is_read() -> None:
    qp = {"device": EVIL, "qpn": 1}
    event = parse_event(
        {"time_ns": 1, "host": EVIL, "pid": 1, "event": "qp_destroyed", "qp": qp, "new": [EVIL]}
    )
    assert (event.host, event.qp, event["new"]) == (safe(EVIL), (safe(EVIL), 1), [safe(EVIL)])
