"""A trace that root starts is its caller's as soon as its socket is open, and goes on as before."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from places import ROOT
from test_trace import live, shots

UID = GID = 54321

TRACE = f"""
import os, urllib.request
sys.path.insert(0, {str(ROOT / "tests/tools")!r})
from processes import status_of

os.environ.update(SUDO_UID="{UID}", SUDO_GID="{GID}")
traced = trace("--write", "files/x.pcapng", "--rotate", "100ms", "--keep", "2", "--metrics", ":0", "--quiet")
until(lambda: "metrics on port" in open("err").read())
threads = status_of(traced.pid)
port = int(open("err").read().split("metrics on port ")[1].split()[0])
send(pause_s=0.15)
until(lambda: any("_00005_" in name for name in os.listdir("files")))
address = f"http://127.0.0.1:{{port}}/metrics"
scraped = urllib.request.urlopen(address).read().decode()
threads += status_of(traced.pid)
traced.send_signal(signal.SIGINT)
status = traced.wait(30)
owners = [[s.st_uid, s.st_gid] for s in (os.stat(f"files/{{name}}") for name in os.listdir("files"))]
err = open("err").read()
print(json.dumps({{"threads": threads, "status": status, "owners": owners, "scraped": scraped, "err": err}}))
"""


@pytest.fixture
def folder(root: None) -> Iterator[Path]:
    if not all(part.stat().st_mode & 1 for part in (ROOT, *ROOT.parents)):
        pytest.skip(f"{ROOT} is not for all users: their rights are not enough to run rocekit")
    # pytest's own folders are closed to other users.
    folder = Path(tempfile.mkdtemp(prefix="rocekit-test-", dir="/tmp"))
    folder.chmod(0o755)
    (folder / "files").mkdir()
    os.chown(folder / "files", UID, GID)
    yield folder
    shutil.rmtree(folder)


def test_a_trace_that_sudo_runs_is_its_callers_and_still_rotates_and_answers(folder: Path) -> None:
    told = live(folder, TRACE, shots("".join(f"a RC_SEND_ONLY {p}\n b ACK {p}\n" for p in range(5, 8))))
    assert told["status"] == 0, told["err"]
    for thread in told["threads"]:
        assert thread["Uid"].split() == [str(UID)] * 4
        assert {int(thread[f"Cap{kind}"], 16) for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {0}
        assert thread["NoNewPrivs"] == "1"
    assert told["owners"] == [[UID, GID]] * 2
    assert "rocekit_kernel_dropped_frames" in told["scraped"] or "dropped" in told["scraped"]
