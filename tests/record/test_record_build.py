"""Claims about the interposer's library: it is found, built, or missed with a reason; only ours is run."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from recorded import record

from rocekit.record.build import HEADERS, InterposerError, cached, fallback, interposer, look


def test_what_is_missing_for_the_interposer_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("rocekit.record.build.packaged", lambda: None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    found = look()
    assert found.path is None
    assert found.obstacle == "no C compiler"
    assert set(HEADERS.values()) < set(found.packages)


def test_missing_headers_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("rocekit.record.build.packaged", lambda: None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fake = tmp_path / "cc"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("CC", str(fake))
    found = look()
    assert found.obstacle == "no infiniband/verbs.h and no rdma/rdma_cma.h"
    assert found.packages == ("libibverbs-dev", "librdmacm-dev")


def test_a_library_in_a_folder_of_somebody_else_is_not_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("rocekit.record.build.packaged", lambda: None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for path in (cached(), fallback()):
        path.parent.mkdir()
        path.write_bytes(b"not to be trusted")
        if os.geteuid() == 0:
            os.chown(path, 4711, 4711)
            os.chown(path.parent, 4711, 4711)
    if os.geteuid():
        monkeypatch.setattr("os.geteuid", lambda: 4711)
    assert look().path is None
    with pytest.raises(InterposerError, match=r"belongs to somebody else.*set XDG_CACHE_HOME"):
        interposer()


def test_a_library_of_root_s_in_a_folder_of_somebody_else_is_not_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, root: None
) -> None:
    """Whoever owns the folder can put another library in its place."""
    monkeypatch.setattr("rocekit.record.build.packaged", lambda: None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    fallback().parent.mkdir()
    fallback().symlink_to(shutil.which("true") or "/bin/true")
    assert look().path is None
    fallback().unlink()
    fallback().write_bytes(b"root's, and not for this")
    os.chown(fallback().parent, 4711, 4711)
    assert look().path is None


def test_a_program_that_is_no_longer_root_is_recorded(program: Path, root: None) -> None:
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("no setpriv (apt-get install util-linux)")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        for name in ("program", "libibverbs.so.1"):
            shutil.copy(program.parent / name, folder)
        ran = record(
            Path(folder) / "x",
            [setpriv, "--reuid=65534", "--regid=65534", "--clear-groups", f"{folder}/program", "never_polls"],
            env={"LD_LIBRARY_PATH": folder},
        )
    assert ran.returncode == 0
    assert len(ran.of("wr_posted")) == 100
    assert "ld.so" not in ran.stderr


def test_a_cache_that_cannot_be_written_is_done_without(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("rocekit.record.build.packaged", lambda: None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    built = interposer()
    assert built.parent.parent == tmp_path
    assert interposer() == look().path == built
