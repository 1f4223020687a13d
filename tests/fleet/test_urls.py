"""Captures at URLs: in every command, and as sources of a fleet, from a real S3 server on this machine."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from fleet_lake import made
from places import PCAPS

from rocekit.cli import rocekit as cli
from rocekit.errors import RocekitError
from rocekit.files.remote import RemotePath, listed
from rocekit.fleet.lake import Lake
from rocekit.fleet.query import connect, dicts
from rocekit.fleet.streams import find_streams

pytestmark = pytest.mark.xdist_group("fleet")
NAMES = ("ping-write-loss-behind.pcap", "ping-write-loss-behind.client.journal.jsonl", "rping-clean.pcap")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """A folder in an S3 server with captures and a journal."""
    server = pytest.importorskip("moto.server", reason="no moto (pip install 'moto[s3]' flask flask-cors)")
    pytest.importorskip("s3fs", reason="no s3fs (pip install 'rocekit[fleet]')")
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        import s3fs

        s3fs.S3FileSystem.clear_instance_cache()
        fs = s3fs.S3FileSystem()
        fs.mkdir("incident")
        for path in [*PCAPS.glob("ping-write-loss-behind.*"), *PCAPS.glob("rping-clean.*")]:
            fs.put_file(str(path), f"incident/day1/{path.name}")
        yield "s3://incident/day1"
        s3fs.S3FileSystem.clear_instance_cache()
    running.stop()


def test_a_command_says_of_a_url_what_it_says_of_the_file(bucket: str) -> None:
    name = NAMES[0]
    for command in (["analyze"], ["decode", "--count", "3"]):
        remote = run(*command, f"{bucket}/{name}")
        local = run(*command, str(PCAPS / name))
        assert remote.exit_code == local.exit_code == 0, remote.output
        assert remote.output.replace(bucket, str(PCAPS)) == local.output


def test_a_fleet_is_read_from_a_bucket_with_the_journals_beside(bucket: str, tmp_path: Path) -> None:
    lake = made(tmp_path / "lake", bucket)
    rows = dicts(connect(Lake(lake)), "SELECT point, source, journals, error FROM captures ORDER BY point")
    assert [(row["point"], row["source"], row["error"]) for row in rows] == [
        ("ping-write-loss-behind", f"{bucket}/{NAMES[0]}", None),
        ("rping-clean", f"{bucket}/{NAMES[2]}", None),
    ]
    assert NAMES[1] in rows[0]["journals"]
    matched = dicts(connect(Lake(lake)), "SELECT count(*) AS n FROM transfers WHERE wr_id IS NOT NULL")
    assert matched[0]["n"] > 0
    assert [s.point for s in find_streams([f"{bucket}/*clean*"])] == ["rping-clean"]


def test_what_is_wrong_with_a_url_is_one_line(bucket: str) -> None:
    for url in (
        f"{bucket}/none.pcap",
        "s3://nobucket/x.pcap",
        "nothing://x/y.pcap",
        f"{bucket}",
        "file:///tmp",
    ):
        result = run("analyze", url)
        assert result.exit_code == 1, url
        assert result.output.startswith(f"rocekit: error: {url}: "), result.output
        assert result.output.count("\n") == 1
    with pytest.raises(RocekitError, match="no such file"):
        listed(f"{bucket}/none/")


def test_without_fsspec_one_line_says_how_to_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    result = run("analyze", "s3://bucket/x.pcap")
    assert result.exit_code == 1
    assert "pip install 'rocekit[fleet]'" in result.output
    assert result.output.count("\n") == 1


def test_a_url_stays_as_it_is_in_a_path() -> None:
    url = "http://example/a//b.pcap?x=1"
    path = RemotePath(url)
    assert (str(path), path.name, path.is_file()) == (url, "b.pcap?x=1", False)


def test_a_file_whose_name_looks_like_a_url_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "s3:" / "x"
    folder.mkdir(parents=True)
    shutil.copy(PCAPS / NAMES[2], folder)
    result = run("analyze", f"s3://x/{NAMES[2]}")
    assert result.exit_code == 0, result.output
