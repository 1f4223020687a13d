"""The command line takes what fingers type that know tshark, and refuses what it would misunderstand."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from places import ROOT

from rocekit import cli
from rocekit.commands.numbers import Number, parse

CLEAN = ROOT / "pcaps" / "rping-clean.pcap"
LOSS = ROOT / "pcaps" / "ping-write-loss-behind.pcap"


def run(*arguments: object, status: int = 0) -> Result:
    result = CliRunner().invoke(cli.rocekit, [str(one) for one in arguments])
    assert result.exit_code == status, result.output
    assert "Traceback" not in result.output
    return result


def test_r_names_the_capture_of_every_command_that_reads_one(tmp_path: Path) -> None:
    for command in ("analyze", "decode", "stats", "topology", "explain"):
        assert run(command, "-r", LOSS).stdout == run(command, LOSS).stdout
    run("slice", "-r", LOSS, "-w", tmp_path / "a.pcapng", "--transfer", 3)
    run("slice", LOSS, tmp_path / "b.pcapng", "--transfer", 3)
    assert (tmp_path / "a.pcapng").read_bytes() == (tmp_path / "b.pcapng").read_bytes()


def test_a_file_alone_is_analyzed() -> None:
    assert run(CLEAN).stdout == run("analyze", CLEAN).stdout
    assert run("-r", CLEAN).stdout == run("analyze", CLEAN).stdout
    for option in ("--debug", "--no-pager", "--no-sandbox"):
        assert run(option, CLEAN).stdout == run("analyze", CLEAN).stdout


def test_tsharks_command_line_prints_the_packets_of_a_filter() -> None:
    ours = run("decode", CLEAN, "--filter", "src == 10.9.0.1 and opcode == RC_SEND_ONLY", "--count", 2).stdout
    assert run("-r", CLEAN, "-Y", "ip.src == 10.9.0.1 && opcode == rc_send_only", "-c", 2).stdout == ours


def test_a_capture_that_is_not_there_is_said_and_is_no_command() -> None:
    assert "there is no file no-such.pcap" in run("no-such.pcap", status=2).stderr


def test_a_folder_is_said_to_be_one_and_is_no_command(tmp_path: Path) -> None:
    assert f"{tmp_path} is a folder: name captures, or `rocekit fleet" in run(tmp_path, status=2).stderr


def test_help_is_a_word_too() -> None:
    assert run("help").stdout == run("--help").stdout
    assert run("help", "decode").stdout == run("decode", "--help").stdout


def test_an_output_goes_by_o_and_w_in_every_command_that_has_one(tmp_path: Path) -> None:
    for command in (
        *("annotate", "counters", "craft", "export", "generate", "lab", "plot", "replay", "report", "slice"),
        "trace",
    ):
        said = run(command, "--help").stdout
        assert "-o" in said, command
        assert "-w" in said, command
    for option in ("-o", "-w", "--output", "--write"):
        run("report", LOSS, option, tmp_path / "x.html")
        run("replay", LOSS, option, tmp_path / "x.pcap")


@pytest.mark.parametrize(
    "command",
    [
        ("report", LOSS, "-o", "x.pdf"),
        ("annotate", LOSS, "x.pcap"),
        ("slice", LOSS, "x.json", "--transfer", "0"),
        ("replay", LOSS, "-w", "x.html"),
        ("generate", "x.json"),
        ("craft", "--op", "CNP", "-w", "x.pcap.gz"),
        ("trace", "lo", "-w", "x.pcap"),
        ("counters", "lo", "-o", "x.csv"),
    ],
)
def test_a_suffix_that_says_something_else_is_refused_and_nothing_written(
    command: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = run(*command, status=2).stderr.splitlines()[-1]
    assert "the name must end in ." in said or "does not compress" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("count", "1k", 1_000),
        ("count", "2.5M", 2_500_000),
        ("count", "0x10", 16),
        ("count", "1,000", 1_000),
        ("count", "1e3", 1_000),
        ("size", "64k", 65_536),
        ("size", "1MiB", 1 << 20),
        ("size", "1000", 1_000),
        ("seconds", "1s", 1.0),
        ("seconds", "250ms", 0.25),
        ("seconds", "5m", 300.0),
        ("seconds", "10", 10.0),
        ("share", "2%", 0.02),
        ("share", "0.02", 0.02),
        ("number", "2.5", 2.5),
    ],
)
def test_numbers_take_units(kind: str, text: str, value: float) -> None:
    assert parse(text, kind) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("count", "1.5"),
        ("count", "nan"),
        ("count", "1e999"),
        ("count", "2%"),
        ("count", "1s"),
        ("count", ""),
        ("size", "1kB"),  # 1,000 or 1,024
        ("seconds", "inf"),
        ("seconds", "10x"),
        ("share", "2k"),
    ],
)
def test_what_is_no_such_number_is_refused(kind: str, text: str) -> None:
    with pytest.raises(ValueError, match="is not"):
        parse(text, kind)


def test_a_number_out_of_range_is_told_the_range() -> None:
    said = run("decode", CLEAN, "--count", "0", status=2).stderr
    assert "0 is out of range: at least 1" in said
    assert Number("share", 0, 1).convert("100%", None, None) == 1.0
    assert "at most 1" in run("generate", "x.pcap", "--loss", "200%", status=2).stderr


def test_counts_and_sizes_with_units_are_those_without(tmp_path: Path) -> None:
    one, other = tmp_path / "a.pcap", tmp_path / "b.pcap"
    run("generate", one, "--packets", "2k", "--size", "64k,1k", "--loss", "1%", "--snaplen", "128")
    run("generate", "-w", other, "-c", "2000", "--size", "65536,1024", "--loss", "0.01", "--snaplen", "128")
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize(
    "command",
    [
        ("replay", LOSS, "--speed", "2x", "--rate", "1k"),
        ("replay", LOSS, "--allow-remote", "192.0.2.1"),
        ("explain", LOSS, "--all", "--transfer", "3"),
        ("decode", LOSS, "--fields", "psn", "-V"),
        ("decode", LOSS, "-V", "--format", "json"),
        ("plot", LOSS, "--graph", "ladder", "--from", "1ms", "-o", "x.png"),
        ("generate", "x.pcap", "-w", "y.pcap"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    command: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(*command, status=2)
    assert not list(tmp_path.iterdir())


def test_fields_help_lists_each_field_with_its_meaning() -> None:
    lines = run("decode", "--fields", "help").stdout.splitlines()
    assert lines[0].split() == ["field", "headers", "tshark", "meaning"]
    rkey = next(line for line in lines if line.startswith("rkey"))
    assert "RETH" in rkey
    assert "infiniband.reth.r_key" in rkey
    assert "Key of the responder" in rkey


def test_an_unknown_field_is_told_the_nearest() -> None:
    assert "Did you mean dest_qpn?" in run("decode", CLEAN, "--fields", "dest_qp", status=2).stderr
    by_tshark = run("decode", CLEAN, "--fields", "frame.number,infiniband.bth.psn").stdout
    assert by_tshark == run("decode", CLEAN, "--fields", "frame,psn").stdout


def test_verbose_lines_have_every_field_of_every_header() -> None:
    said = run("decode", LOSS, "-Y", "RETH", "-c", 1, "-V").stdout
    for word in ("BTH", "RETH", "remote_va", "dma_length", "psn", "icrc_state        valid"):
        assert word in said


def test_decode_does_not_write_and_says_what_does() -> None:
    assert "rocekit replay FILE --filter" in run("decode", CLEAN, "-w", "x.pcap", status=2).stderr


def invoke(arguments: list[str]) -> Result:
    return CliRunner().invoke(cli.rocekit, arguments)


def test_an_exports_name_says_the_format_and_a_contradicting_one_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("polars")
    capture = str(CLEAN)
    table = tmp_path / "t.csv"
    done = invoke(["export", capture, "--table", "transfers", "-o", str(table)])
    assert (done.exit_code, table.read_text().count("\n")) == (0, 31)
    events = tmp_path / "x.sqlog"
    assert invoke(["export", capture, "-o", str(events)]).exit_code == 0
    assert events.read_bytes().startswith(b"\x1e")
    for wrong, words in (
        ([], "--to says what to write"),
        (["-o", str(tmp_path / "x.csv")], "a file has one table"),
        (["--to", "parquet", "--table", "transfers", "-o", str(tmp_path / "x.csv")], "writes no .csv"),
        (["--to", "qlog", "-o", str(tmp_path / "x.html")], "must end in .sqlog"),
    ):
        refused = invoke(["export", capture, *wrong])
        assert refused.exit_code == 2
        assert words in refused.output
    folder = tmp_path / "tables.csv"
    folder.mkdir()
    assert invoke(["export", capture, "--to", "jsonl", "-o", str(folder)]).exit_code == 0
    assert (folder / "packets.jsonl").exists()


def test_the_networks_options_take_units_and_bare_numbers_mean_what_their_names_say(tmp_path: Path) -> None:
    base = ["generate", "--pattern", "incast", "--hosts", "2", "--seed", "1", "--size", "64k"]
    outs = []
    for number, options in enumerate(
        (
            ["--duration-ms", "0.2", "--rate", "50", "--kmin", "4096", "--pmax", "0.02", "--delay-us", "2"],
            ["--duration-ms", "200us", "--rate", "50%", "--kmin", "4k", "--pmax", "2%", "--delay-us", "2us"],
        )
    ):
        out = tmp_path / f"{number}.pcapng"
        done = invoke([*base, *options, "-w", str(out)])
        assert done.exit_code == 0, done.output
        outs.append([line for line in done.output.splitlines() if line.startswith("host")])
    assert outs[0] == outs[1] != []
    for wrong in (["--duration-ms", "5x"], ["--rate", "101%"], ["--pmax", "3"], ["--gap-us", "-1"]):
        assert invoke([*base, *wrong, "-w", str(tmp_path / "x.pcapng")]).exit_code == 2


def test_crafts_opcodes_are_completed_in_any_case() -> None:
    from click.shell_completion import ShellComplete

    complete = ShellComplete(cli.rocekit, {}, "rocekit", "_ROCEKIT_COMPLETE")
    found = {item.value for item in complete.get_completions(["craft", "--op"], "rc_rdma_write_o")}
    assert found == {"RC_RDMA_WRITE_ONLY", "RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE"}
    assert invoke(["craft", "--op", "rc_rdma_write_only"]).exit_code == 0
