"""``rocekit trace --rotate``: a live trace into files, of which the newest stay."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from test_trace import frames, live, root_only, shots

from rocekit import cli
from rocekit.files.joined import joined_files


@root_only
def test_a_trace_rotates_its_files_and_keeps_the_newest(tmp_path: Path) -> None:
    sent = shots("\n".join(f"a RC_SEND_ONLY {psn} 64\n b ACK {psn}" for psn in range(5, 45)))
    told = live(
        tmp_path,
        """
        traced = trace("--write", "x.pcapng", "--rotate", "2k", "--keep", "3")
        send(0, 0.002)
        until(lambda: printed().count("acked") >= 40)
        traced.send_signal(signal.SIGINT)
        tell(traced)
        """,
        sent,
    )
    assert told["status"] == 0
    said = told["err"].strip()
    assert said.startswith("written: rotated:x_")
    assert f"{len(sent)} frames received, 0 dropped" in told["out"]
    name = said.removeprefix("written: ").replace("rotated:", f"rotated:{tmp_path}/")
    files = [Path(file) for file in joined_files(name)]
    assert sorted(tmp_path.glob("x_*.pcapng")) == files
    assert len(files) == 3
    kept = [frame for file in files for frame in frames(file)]
    assert kept == sent[-len(kept) :]
    assert all(file.stat().st_size <= 2048 for file in files[:-1])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--rotate", "1M"], "--rotate is for --write"),
        (["--keep", "3"], "--keep is for --rotate"),
        (["--write", "x.pcapng", "--rotate", "5m"], "5min for minutes, or 5M for MiB"),
        (["--write", "x.pcapng", "--rotate", "100"], "neither a size such as 100M nor a time"),
        (["--write", "x.pcapng", "--rotate", "1M", "--keep", "0"], "at least 1 file stays"),
        (["--write", "x.pcapng", "--rotate", "1M", "--counters"], "leave out --rotate"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: list[str], said: str) -> None:
    result = CliRunner().invoke(cli.rocekit, ["trace", "lo", *options])
    assert result.exit_code == 2
    assert said in result.output
