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

from rocekit.files.pcapng_write import PcapngWriter
from rocekit.wire.build import build_frame

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
status = traced.wait(100)
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


OTHERS = f"""
import os, pty, threading
sys.path.insert(0, {str(ROOT / "tests/tools")!r})
from processes import status_of

environment = {{**os.environ, "SUDO_UID": "{UID}", "SUDO_GID": "{GID}", "TERM": "xterm"}}
screen, terminal = pty.openpty()
import fcntl, struct, termios
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
threading.Thread(target=lambda: [None for _ in iter(lambda: os.read(screen, 4096), b"")], daemon=True).start()
os.mkfifo("fifo", 0o666)
os.chmod("fifo", 0o666)
to = ["--src", "127.0.0.1", "--dst", "127.0.0.1", "--set", "dst_mac=02:00:00:00:00:01"]
commands = {{
    "top": ["top", "va"],
    "extcap": ["extcap", "--capture", "--extcap-interface", "rocekit-va", "--fifo", "fifo"],
    "craft": ["craft", "--op", "RC_SEND_ONLY", *to, "--count", "1000", "--rate", "10", "-i", "vb"],
    "replay": ["replay", "loop.pcapng", "--speed", "0.001", "--send", "lo"],
}}
told = {{}}
running = {{}}
for name, words in commands.items():
    how = dict(stdin=terminal, stdout=terminal) if name == "top" else dict(stdout=subprocess.DEVNULL)
    running[name] = subprocess.Popen(
        [sys.executable, "-m", "rocekit.cli", *words], env=environment, stderr=open(name + ".err", "w"), **how
    )

def given_up(process):
    # NoNewPrivs is the first thing to be set; a busy machine may let it wait there.
    return process.poll() is not None or any(
        s["Uid"].split() == ["{UID}"] * 4 and not int(s["CapPrm"], 16) for s in status_of(process.pid)
    )

for name, process in running.items():
    until(lambda: given_up(process))
    time.sleep(0.1)
    told[name] = status_of(process.pid) if process.poll() is None else open(name + ".err").read()
for process in running.values():
    process.kill()
    process.wait()
print(json.dumps(told))
"""


def test_no_thread_of_another_live_command_keeps_a_right(folder: Path) -> None:
    frame = build_frame("RC_SEND_ONLY", src="127.0.0.1", dst="127.0.0.1", dest_qpn=7, psn=1)
    with PcapngWriter(folder / "loop.pcapng") as writer:
        for second in (1, 2):
            writer.write(frame, second * 10**9)
    told = live(folder, OTHERS)
    assert told.keys() == {"top", "extcap", "craft", "replay"}
    for command, threads in told.items():
        assert isinstance(threads, list), (command, threads)
        for thread in threads:
            assert thread["Uid"].split() == [str(UID)] * 4, command
            assert {thread[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}, (
                command
            )
            assert thread["NoNewPrivs"] == "1", command
