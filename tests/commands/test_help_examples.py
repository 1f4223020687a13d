"""Every example in a command's help runs as it stands, where it needs nothing but files.

`x.pcapng` and the other names that help uses are captures of this project with their journals.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import click
import pytest
from command_lines import run_line
from places import PCAPS, ROOT

from rocekit.cli import COMMANDS, rocekit

#: What the names in the examples stand for: stems in pcaps/.
FILES = {
    "x.pcapng": "ping-write-loss.pcapng",
    "host1.pcap": "ping-write-loss-behind.pcap",
    "host2.pcap": "ping-write-loss-behind.pcap",
}
#: An example with one of these needs an interface, rights, a device, a VM, or never ends.
NEEDS = ("eth0", "--send", "| dot", "lab ", "record ", "rocekit top", ":9464", "rxe0", "10000000")


def examples() -> dict[str, list[str]]:
    """The lines below "Example:" in each command's help; a line that ends in a backslash goes on."""
    found = {}
    for name in sorted(COMMANDS):
        command = rocekit.get_command(click.Context(rocekit), name)
        assert command is not None
        _, _, shown = (command.help or "").partition("Example:\n")
        block = shown.split("\n\n")[0].replace("\\\n", " ")
        found[name] = [line.strip() for line in block.splitlines() if line.strip()]
    return found


EXAMPLES = examples()
RUN = {
    name: [line for line in lines if not any(word in line for word in NEEDS)]
    for name, lines in EXAMPLES.items()
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "tests/soft/otg.yaml", tmp_path / "config.yaml")
    for name, source in FILES.items():
        shutil.copy(PCAPS / source, tmp_path / name)
        stem = source.partition(".")[0]
        for journal in PCAPS.glob(f"{stem}.*journal.jsonl"):
            middle = journal.name.removeprefix(stem)
            shutil.copy(journal, tmp_path / (name.partition(".")[0] + middle))
    shutil.copy(ROOT / "contrib/ci/my_rules.py", tmp_path)
    (tmp_path / "captures").mkdir()
    shutil.copy(PCAPS / FILES["host1.pcap"], tmp_path / "captures" / "host1.pcap")
    return tmp_path


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_command_has_one(name: str) -> None:
    assert any(f"rocekit {name}" in line for line in EXAMPLES[name])


#: Numbers that help gives for a user's sake: these show as well that the line runs.
_FEWER = {" -n 200 ": " -n 10 ", " --runs 20": " --runs 2"}


def _shorter(line: str) -> str:
    """Without a pattern, `generate` makes a million packets: a gigabyte of disk."""
    whole = line.startswith("rocekit generate x") and not {"--pattern", "--otg"} & set(line.split())
    for many, few in _FEWER.items():
        line = line.replace(many, few)
    return f"{line} --packets 2000" if whole else line


@pytest.mark.parametrize("name", [name for name, lines in RUN.items() if lines])
def test_they_run_one_after_the_other(name: str, folder: Path) -> None:
    if name == "verify" and shutil.which("tshark") is None:
        pytest.skip("no tshark (apt-get install tshark)")
    for line in RUN[name]:
        if line.startswith("tshark ") and shutil.which("tshark") is None:
            continue
        done = run_line(_shorter(line), folder)
        # `doctor` and `devices` say with 1 that something is missing here, `check` that it found something.
        allowed = {0, 1} if name in ("doctor", "devices", "check") else {0}
        assert done.status in allowed, f"{line}\n{done.errors}"
        assert "Traceback" not in done.errors
