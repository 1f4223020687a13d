"""The command line: what its exit status and its one line of error promise, and that it starts at once."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from rocekit import cli
from rocekit.craft.generate import Traffic, generate
from rocekit.errors import CaptureError, RocekitError, VerbsError

PCAPS = Path(__file__).parents[2] / "pcaps"

HEAVY = {"scapy", "numpy", "pyshark", "pyverbs", "isal", "zstandard", "rocekit.lab", "rocekit.verbs"}


def python(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    return subprocess.run(
        [sys.executable, "-c", code, *args],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment,
        check=False,
    )


@pytest.fixture
def failing() -> Callable[[BaseException], Result]:
    """Runs ``rocekit`` with a command that raises."""

    def run(error: BaseException) -> Result:
        @click.command()
        def command() -> None:
            raise error

        group = cli.Commands("rocekit")
        group.get_command = lambda ctx, cmd_name: command  # type: ignore[method-assign]
        return CliRunner().invoke(group, ["fail"])

    return run


def test_help_names_every_command() -> None:
    result = CliRunner().invoke(cli.rocekit, ["--help"])
    assert result.exit_code == 0
    for name in cli.COMMANDS:
        assert re.search(rf"^  {name} +\S", result.output, re.MULTILINE), name


def test_every_command_is_in_one_group_of_the_help() -> None:
    grouped = [name for names in cli.GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(cli.COMMANDS)
    said = CliRunner().invoke(cli.rocekit, ["--help"]).output
    assert "..." not in said.partition("Read captures")[2]
    assert said.index("Read captures") < said.index("Live") < said.index("Make traffic")


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rocekit", "--version"],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    assert done.stdout.startswith("rocekit, version ")


def test_help_loads_nothing_heavy() -> None:
    """Start-up counts: Scapy alone costs over a second, and --help loads every command's module."""
    done = python(
        "import atexit, sys; sys.argv = ['rocekit', '--help']\n"
        "from rocekit.cli import main\n"
        "atexit.register(lambda: print('LOADED', *sys.modules, file=sys.stderr))\n"
        "main()"
    )
    loaded = set(done.stderr.split("LOADED")[1].split())
    assert "rocekit.commands.doctor" in loaded
    assert not loaded & HEAVY


def test_an_analysis_loads_no_rules_of_what_is_not_in_the_capture() -> None:
    capture = PCAPS / "ib_write_bw-clean.pcap"
    done = python(
        f"import atexit, sys; sys.argv = ['rocekit', 'analyze', {str(capture)!r}]\n"
        "from rocekit.cli import main\n"
        "atexit.register(lambda: print('LOADED', *sys.modules, file=sys.stderr))\n"
        "main()"
    )
    loaded = set(done.stderr.split("LOADED")[1].split())
    rules = {name.rpartition(".")[2] for name in loaded if name.startswith("rocekit.findings.rules.")}
    assert "dscp_mismatch" in rules
    assert not rules & {"loss", "rnr", "icmp", "vendor_opcode"}
    assert "rocekit.findings.stories.build" not in loaded


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_a_command_help_shows_an_example_of_itself(name: str) -> None:
    result = CliRunner().invoke(cli.rocekit, [name, "--help"])
    assert result.exit_code == 0
    examples = result.output.partition("Example")[2]
    assert f"rocekit {name}" in examples


@pytest.mark.parametrize("arguments", [["doctr"], ["--no-such-option"], ["doctor", "--format", "xml"]])
def test_a_wrong_command_line_exits_2_and_shows_the_usage(arguments: list[str]) -> None:
    result = CliRunner().invoke(cli.rocekit, arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("Usage: ")
    assert not result.stdout


def test_a_misspelt_command_is_told_the_nearest() -> None:
    assert "'doctor'" in CliRunner().invoke(cli.rocekit, ["docter"]).stderr


@pytest.mark.parametrize(
    "error",
    [
        RocekitError("no device"),
        CaptureError("no capture", file="x.pcap", offset=24),
        VerbsError("refused", errno=errno.EPERM),
        RocekitError("two\nlines"),
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "out.pcapng"),
        MemoryError(),
    ],
)
def test_an_error_is_one_line_and_exit_1(
    failing: Callable[[BaseException], Result], error: BaseException
) -> None:
    result = failing(error)
    assert result.exit_code == 1
    assert result.stderr.startswith("rocekit: error: ")
    assert result.stderr.count("\n") == 1
    assert not result.stdout


def test_an_error_says_where(failing: Callable[[BaseException], Result]) -> None:
    stderr = failing(CaptureError("no capture", file="x.pcap", offset=24)).stderr
    assert "x.pcap" in stderr
    assert "24" in stderr
    assert "out.pcapng" in failing(OSError(errno.ENOSPC, "No space", "out.pcapng")).stderr


def test_a_file_cannot_send_escapes_to_the_terminal(failing: Callable[[BaseException], Result]) -> None:
    assert "\x1b" not in failing(RocekitError("interface \x1b[2Jeth0")).stderr


def test_an_interrupt_exits_130_without_a_traceback(failing: Callable[[BaseException], Result]) -> None:
    result = failing(KeyboardInterrupt())
    assert result.exit_code == 130
    assert "Traceback" not in result.stderr


def test_a_reader_that_goes_away_is_no_error() -> None:
    """`rocekit … | head` ends quietly, with the status of a program that SIGPIPE ended."""
    code = "import sys, os; sys.argv = ['rocekit', 'doctor']; from rocekit.cli import main; main()"
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as output:
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            timeout=240,
            check=False,
        )
    assert done.returncode == 141
    assert not done.stderr


def test_an_encoding_without_our_signs_still_gets_text() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    code = "import sys; sys.argv = ['rocekit', 'doctor']; from rocekit.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment,
        check=False,
    )
    assert done.returncode == 0
    assert "yes" in done.stdout


def test_colour_is_for_terminals_only() -> None:
    assert "\x1b" not in CliRunner().invoke(cli.rocekit, ["doctor"]).output
    coloured = CliRunner().invoke(cli.rocekit, ["doctor"], color=True).output
    plain = CliRunner(env={"NO_COLOR": "1"}).invoke(cli.rocekit, ["doctor"], color=True).output
    assert "\x1b" in coloured
    assert "\x1b" not in plain


def test_json_output_is_one_document() -> None:
    document = json.loads(CliRunner().invoke(cli.rocekit, ["doctor", "--format", "json"]).output)
    assert document["schema"] == "rocekit/1"


def test_an_analysis_without_a_journal_loads_nothing_of_journals(tmp_path: Path) -> None:
    capture = tmp_path / "x.pcap"
    generate(capture, Traffic(packets=20))
    needless = "{'rocekit.journal', 'rocekit.correlate', 'tempfile', 'shutil', 'socket', 'polars', 'scapy'}"
    for command in ("analyze", "decode"):
        code = (
            f"import sys, atexit; sys.argv = ['rocekit', {command!r}, {str(capture)!r}]\n"
            f"atexit.register(lambda: print({needless} & set(sys.modules), file=sys.stderr))\n"
            "from rocekit.cli import main; main()"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True
        )
        assert done.stderr == "set()\n", command
