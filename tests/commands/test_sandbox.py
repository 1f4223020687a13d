"""Root only as long as needed: what the kernel says of a command's process while it runs."""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from amount import MORE
from click.testing import CliRunner
from places import PCAPS, ROOT
from processes import status_of

from rocekit.cli import COMMANDS, rocekit
from rocekit.commands.sandbox import FILES, KEEPS
from rocekit.machine import landlock

CAPTURE = PCAPS / "ping-write-loss-behind.pcap"
#: A user of no name, as in a container.
UID = GID = 54321
MAIN = "import sys; sys.argv[0] = 'rocekit'; from rocekit.cli import main; main()"
INSTALL = ROOT / "docs/install.md"
needs_more = pytest.mark.skipif(not MORE, reason="scripts/test --more runs it for every command")
#: Reading commands, {} being the capture and {out} a folder to write in.
COMMAND_LINES = {
    "analyze": "analyze {}",
    "annotate": "annotate {} {out}/x.pcapng",
    "check": "check {} -o {out}/x.xml",
    "decode": "decode {} -Y psn>3",
    "explain": "explain {} --transfer 0",
    "export": "export {} --to csv --table transfers -o {out}/x.csv",
    "plot": "plot {} -o {out}/x.png",
    "report": "report {} -o {out}/x.html",
    "slice": "slice {} {out}/x.pcapng --connection 0",
    "stats": "stats {}",
    "topology": "topology {}",
    "replay": "replay {} -w {out}/x.pcapng",
}
READ_TWICE = {"annotate", "slice", "replay", "check"}
#: These read a file, and not a pipe, or read none.
OTHERS = {
    "verify": "verify {}",
    "rules": "rules loss",
    "craft": "craft --op RC_SEND_ONLY -c 3 -w {out}/x.pcap",
    "generate": "generate {out}/x.pcapng --packets 100",
}


@dataclass(frozen=True, slots=True)
class Place:
    """A folder of a user, with a capture of that user's."""

    folder: Path
    capture: Path

    def command_line(self, text: str) -> list[str]:
        return [word.format(self.capture, out=self.folder) for word in text.split()]


@pytest.fixture
def place() -> Iterator[Place]:
    if os.geteuid() != 0:
        pytest.skip("giving up root needs root")
    if not all(part.stat().st_mode & 1 for part in (ROOT, *ROOT.parents)):
        pytest.skip(f"{ROOT} is not for all users: their rights are not enough to run rocekit")
    # pytest's own folders are closed to other users.
    folder = Path(tempfile.mkdtemp(prefix="rocekit-test-", dir="/tmp"))
    folder.chmod(0o755)
    capture = folder / "capture.pcap"
    shutil.copyfile(CAPTURE, capture)
    for path in (folder, capture):
        os.chown(path, UID, GID)
    yield Place(folder, capture)
    shutil.rmtree(folder)


def ran(
    arguments: Sequence[str],
    *,
    sudo: bool = True,
    before: Callable[[], None] | None = None,
    folder: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", MAIN, *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment(sudo=sudo),
        preexec_fn=before,
        check=False,
        cwd=folder,
    )


def environment(*, sudo: bool) -> dict[str, str]:
    by_sudo = {"SUDO_UID": str(UID), "SUDO_GID": str(GID)} if sudo else {}
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("SUDO_")}
    return {**inherited, **by_sudo, "PYTHONPATH": str(ROOT), "MPLCONFIGDIR": "/tmp"}


def as_user() -> None:
    os.setgroups([GID])
    os.setresgid(GID, GID, GID)
    os.setresuid(UID, UID, UID)


def while_reading(
    place: Place, text: str, *, sudo: bool = True, start: Sequence[str] = (), suffix: str = ".pcap"
) -> tuple[list[dict[str, str]], int]:
    """What the kernel says of each thread of a command that waits for its capture, and how it ended."""
    pipe = place.folder / f"pipe{suffix}"
    os.mkfifo(pipe)
    os.chown(pipe, UID, GID)
    process = subprocess.Popen(
        [*start, sys.executable, "-c", MAIN, *[w.format(pipe, out=place.folder) for w in text.split()]],
        env=environment(sudo=sudo),
        stdout=subprocess.DEVNULL,
    )
    # The command opens the pipe to read before this returns: it has begun.
    with pipe.open("wb") as writer:
        threads = status_of(process.pid)
        writer.write(CAPTURE.read_bytes() if suffix == ".pcap" else b"")
    return threads, process.wait(60)


def test_every_command_gives_up_root_or_says_why_not() -> None:
    assert FILES.keys() | KEEPS.keys() == COMMANDS.keys()
    assert not FILES.keys() & KEEPS.keys()
    documented = INSTALL.read_text(encoding="utf-8")
    assert all(f"| `{name}` | {why} |" in documented for name, why in KEEPS.items())
    live = {name for name, files in FILES.items() if files.live}
    assert live == {"trace", "top", "extcap", "craft", "replay"}
    assert {*COMMAND_LINES, *OTHERS} | {"trace", "top", "extcap"} == FILES.keys()


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(name, marks=() if name in ("analyze", "report") else needs_more)
        for name in sorted(
            COMMAND_LINES.keys() - {"annotate", "slice", "replay", "check"}
        )  # these read twice
    ],
)
def test_a_command_that_sudo_runs_is_its_caller_without_capabilities_while_it_reads(
    place: Place, command: str
) -> None:
    threads, status = while_reading(place, COMMAND_LINES[command])
    assert status == 0
    for thread in threads:
        assert thread["Uid"].split() == [str(UID)] * 4
        assert thread["Gid"].split() == [str(GID)] * 4
        assert thread["Groups"].split() == [str(GID)]
        assert {int(thread[f"Cap{kind}"], 16) for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {0}
        assert thread["NoNewPrivs"] == "1"


def test_root_without_sudo_stays_root_and_has_no_capability_in_any_thread(place: Place) -> None:
    threads, status = while_reading(place, COMMAND_LINES["decode"], sudo=False)
    assert status == 0
    for thread in threads:
        assert thread["Uid"].split() == ["0"] * 4
        assert {int(thread[f"Cap{kind}"], 16) for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {0}
        assert thread["NoNewPrivs"] == "1"


def test_a_named_user_takes_the_place_of_the_caller_of_sudo(place: Place) -> None:
    threads, status = while_reading(place, "--user 65534 stats {}")
    assert status == 0
    assert {thread["Uid"] for thread in threads} == {"\t".join(["65534"] * 4)}


def test_a_user_whose_interpreter_has_a_capability_gives_it_up(place: Place) -> None:
    if shutil.which("setpriv") is None:
        pytest.skip("no setpriv")
    words = "setpriv --reuid {0} --regid {0} --clear-groups --inh-caps +net_raw --ambient-caps +net_raw"
    start = words.format(UID).split()
    kept, _ = while_reading(place, "stats {} --no-sandbox", sudo=False, start=start)
    assert {int(thread["CapEff"], 16) for thread in kept} == {1 << 13}
    (place.folder / "pipe.pcap").unlink()
    threads, status = while_reading(place, "stats {}", sudo=False, start=start)
    assert status == 0
    assert {thread[f"Cap{kind}"] for thread in threads for kind in ("Inh", "Prm", "Eff", "Amb")} == {"0" * 16}
    assert {thread["NoNewPrivs"] for thread in threads} == {"1"}


def test_counters_of_journals_are_compared_without_root(place: Place) -> None:
    (place.folder / "x.jsonl").write_text("")
    threads, status = while_reading(place, "counters {} {out}/x.jsonl", suffix=".jsonl")
    assert status == 1  # there are no snapshots
    assert {thread["Uid"].split()[1] for thread in threads} == {str(UID)}
    assert {thread["CapEff"] for thread in threads} == {"0" * 16}


def test_record_gives_up_root_before_it_explains_packets(place: Place) -> None:
    main = MAIN.replace(
        "from rocekit.cli",
        "import rocekit.commands.record as r; "
        "r.explain = lambda *_: print(open('/proc/self/status').read(), flush=True); from rocekit.cli",
    )
    script = 'ip link set lo up && exec "$@"'
    for kept in ([], ["--write", str(place.folder / "x.pcapng")]):
        line = ["record", "-i", "lo", *kept, "-o", str(place.folder / "x.journal.jsonl"), "--", "true"]
        done = subprocess.run(
            ["unshare", "--net", "sh", "-c", script, "sh", sys.executable, "-c", main, *line],
            capture_output=True,
            text=True,
            timeout=240,
            # The user takes the packets away at the end, which not every machine's /tmp allows.
            env={**environment(sudo=True), "TMPDIR": str(place.folder)},
            check=False,
        )
        assert done.returncode == 0, done.stderr
        status = dict(line.split(":", 1) for line in done.stdout.splitlines() if ":" in line)
        assert int(status["CapPrm"], 16) == 0, kept
        assert status["Uid"].split()[1] == str(UID)


#: A command, and the function of which it says who it is when it comes there.
STARTING = {
    "fleet analyze": ("fleet analyze {} -o {out}/lake", "rocekit.fleet.run.cluster"),
    "inject": (
        "inject ping-write --both --backend soft -n 2 --journal {out}/x.jsonl",
        "rocekit.scenarios.both_sides.both",
    ),
    "inject mesh": ("inject mesh --hosts 2 --backend soft", "rocekit.commands.inject_group.run"),
}


def status_at(place: Place, text: str, function: str) -> tuple[dict[str, str], str]:
    """/proc/self/status of a command when it calls a function, and its standard error."""
    module, _, attribute = function.rpartition(".")
    main = MAIN.replace(
        "from rocekit.cli",
        f"import {module} as m; m.{attribute} = lambda *_, **__: print(open('/proc/self/status').read(), "
        "flush=True) or sys.exit(0); from rocekit.cli",
    )
    done = subprocess.run(
        [sys.executable, "-c", main, *place.command_line(text)],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment(sudo=True),
        check=False,
    )
    return dict(line.split(":", 1) for line in done.stdout.splitlines() if ":" in line), done.stderr


@pytest.mark.parametrize("name", STARTING)
def test_sudo_is_given_up_before_workers_and_devices_are_started(place: Place, name: str) -> None:
    if name.startswith("fleet"):
        pytest.importorskip("distributed")
    status, said = status_at(place, *STARTING[name])
    assert status["Uid"].split() == [str(UID)] * 4, said
    assert {int(status[f"Cap{kind}"], 16) for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {0}
    assert int(status["NoNewPrivs"]) == 1


def test_traffic_of_soft_devices_is_made_by_the_caller_of_sudo(place: Place) -> None:
    line = "inject ping-write --both --backend soft -n 2 --capture {out}/x.pcapng --journal {out}/x.jsonl"
    done = ran(place.command_line(line))
    assert (done.returncode, done.stderr) == (0, "")
    for name in ("x.pcapng", "x.jsonl"):
        assert (place.folder / name).stat().st_uid == UID


def test_a_fleet_of_captures_that_the_caller_may_not_read_is_analyzed_by_root(place: Place) -> None:
    os.chown(place.capture, 65534, 65534)
    place.capture.chmod(0o600)
    pytest.importorskip("distributed")
    status, said = status_at(place, *STARTING["fleet analyze"])
    assert status["Uid"].split() == ["0"] * 4, said


def test_no_sandbox_keeps_what_the_caller_has(place: Place) -> None:
    threads, status = while_reading(place, "--no-sandbox stats {}")
    assert status == 0
    assert {thread["CapEff"] for thread in threads} == {status_of(os.getpid())[0]["CapEff"]}
    assert {thread["NoNewPrivs"] for thread in threads} == {"0"}


def test_only_root_may_name_a_user(place: Place) -> None:
    done = ran(["stats", "--user", "nobody", str(place.capture)], sudo=False, before=as_user)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--user is for root" in done.stderr
    done = ran(["stats", "--user", "no such user", str(place.capture)])
    assert done.returncode == 2
    assert "there is no user 'no such user'" in done.stderr


def made(
    place: Place, command_line: Sequence[str], **how: Any
) -> tuple[tuple[int, str, str], dict[str, bytes]]:
    """What a command prints, and the files that it makes, which are taken away."""
    done = ran(command_line, **how)
    files = {}
    for path in sorted(place.folder.rglob("*")):
        if path != place.capture and path.is_file():
            assert (path.stat().st_uid, path.stat().st_gid) == (UID, GID), path
            files[path.name] = path.read_bytes()
            path.unlink()
    return (done.returncode, done.stdout, done.stderr), files


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(name, marks=() if name in ("decode", "report", "slice", "verify") else needs_more)
        for name in sorted({*COMMAND_LINES, *OTHERS})
    ],
)
def test_a_command_prints_and_makes_for_sudo_what_it_does_for_the_user(place: Place, command: str) -> None:
    if command == "verify" and shutil.which("tshark") is None:
        pytest.skip("no tshark")
    command_line = place.command_line({**COMMAND_LINES, **OTHERS}[command])
    by_sudo, files = made(place, command_line)
    by_user, same_files = made(place, command_line, sudo=False, before=as_user)
    assert by_sudo == by_user
    assert files.keys() == same_files.keys()
    assert (len(files) > 0) == ("{out}" in {**COMMAND_LINES, **OTHERS}[command])
    if command not in ("plot", "report", "check", "craft", "generate"):  # these have the time in them
        assert files == same_files


#: Runs inside of the command, as whoever took it over would, and says what it can do.
INTRUDER = """
import socket, sys
from pathlib import Path

def tried(what):
    try:
        what()
    except OSError as error:
        return type(error).__name__
    return "done"

elsewhere = Path({elsewhere!r})
print("other", tried(lambda: (elsewhere / "new").write_text("x")), file=sys.stderr)
print("old", tried(lambda: (elsewhere / "old").write_text("x")), file=sys.stderr)
print("remove", tried((elsewhere / "old").unlink), file=sys.stderr)
print("connect", tried(lambda: socket.create_connection(("127.0.0.1", {port}))), file=sys.stderr)
print("own", tried(lambda: (Path({out!r}) / "own").write_text("x")), file=sys.stderr)
RULES = []
"""


@pytest.mark.parametrize("sudo", [True, False])
def test_who_takes_a_command_over_can_write_only_where_its_outputs_are(place: Place, sudo: bool) -> None:
    if landlock.version() < 4:
        pytest.skip("this kernel has no Landlock, or an old one")
    elsewhere = place.folder / "elsewhere"
    out = place.folder / "out"
    for path in (elsewhere, out, elsewhere / "old"):
        path.write_text("whole") if path.name == "old" else path.mkdir()
        os.chown(path, UID, GID) if sudo else None
    rules = place.folder / "intruder.py"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        rules.write_text(INTRUDER.format(elsewhere=str(elsewhere), out=str(out), port=port))
        line = ["check", "--rules", str(rules), "-o", str(out / "x.xml"), str(place.capture)]
        done = ran(line, sudo=sudo)
        freely = ran(["--no-sandbox", *line], sudo=sudo)
    said = dict(line.split() for line in done.stderr.splitlines() if len(line.split()) == 2)
    assert said == {
        "other": "PermissionError",
        "old": "PermissionError",
        "remove": "PermissionError",
        "connect": "PermissionError",
        "own": "done",
    }, done.stderr
    assert freely.stderr.count("done") == 5, freely.stderr


def test_a_user_is_confined_where_that_is_asked_for(place: Place) -> None:
    if not landlock.version():
        pytest.skip("this kernel has no Landlock")
    rules = place.folder / "intruder.py"
    rules.write_text(f"open({str(place.folder / 'new')!r}, 'w').close()\nRULES = []\n")
    line = ["check", "--rules", str(rules), str(place.capture)]
    assert "Permission" not in ran(line, sudo=False, before=as_user).stderr
    assert "Permission" in ran(["--sandbox", *line], sudo=False, before=as_user).stderr


def test_a_capture_that_only_root_may_read_is_read_by_root_without_capabilities(place: Place) -> None:
    os.chown(place.capture, 0, 0)
    place.capture.chmod(0o600)
    done = ran(["stats", str(place.capture)])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ran(["stats", str(place.capture)], sudo=False).stdout


def test_the_files_of_a_rotation_and_parts_of_a_capture_are_read(place: Place) -> None:
    for number in (1, 2):
        capture = place.folder / f"x_0000{number}_2026112016085{number}.pcap"
        shutil.copyfile(CAPTURE, capture)
        os.chown(capture, UID, GID)
        capture.chmod(0o600)
    first, last = sorted(place.folder.glob("x_*"))
    for name in (f"rotated:{first}..{last.name}", f"part:1/2:{first}"):
        done = ran(["decode", "--count", "1", name])
        assert (done.returncode, done.stderr) == (0, ""), name


@pytest.mark.parametrize("kind", ["csv", "qlog"])
def test_an_export_without_a_name_goes_into_the_current_folder(place: Place, kind: str) -> None:
    here, there = place.folder / "here", place.folder / "there"
    here.mkdir()
    there.mkdir()
    capture = str(shutil.copy(place.capture, there))
    for sudo in (False, True):
        os.chown(here, *(UID, GID) if sudo else (0, 0))
        done = ran(["export", capture, "--to", kind], sudo=sudo, folder=here)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("capture-tables/" if kind == "csv" else "capture.sqlog: ")
        for made in here.iterdir():
            shutil.rmtree(made) if made.is_dir() else made.unlink()


def test_a_page_goes_where_only_root_may_write(place: Place) -> None:
    folder = place.folder / "of root"
    folder.mkdir()
    done = ran(["report", str(place.capture), "-o", str(folder / "x.html")])
    assert (done.returncode, done.stderr) == (0, "")
    assert (folder / "x.html").stat().st_uid == 0


def test_files_of_several_users_are_used_as_before(place: Place) -> None:
    """A capture that only another user may read, and an output that only the caller may replace."""
    os.chown(place.capture, 65534, 65534)
    place.capture.chmod(0o600)
    page = place.folder / "x.html"
    done = ran(["report", str(place.capture), "-o", str(page)])
    assert (done.returncode, done.stderr) == (0, "")
    assert page.exists()
    place.folder.chmod(0o700)
    assert ran(["report", str(place.capture), "-o", str(page)]).returncode == 0


def test_where_no_other_user_may_be_become_the_rest_is_given_up(place: Place) -> None:
    def without_setuid() -> None:  # as in many containers
        for number in (6, 7):  # CAP_SETGID, CAP_SETUID
            ctypes.CDLL(None).prctl(24, number, 0, 0, 0)  # PR_CAPBSET_DROP

    done = ran(["stats", str(place.capture)], before=without_setuid)
    assert (done.returncode, done.stderr) == (0, "")
    done = ran(["--user", "nobody", "stats", str(place.capture)], before=without_setuid)
    assert done.returncode == 1
    assert "may not become that user" in done.stderr


def test_a_process_that_is_not_the_commands_own_keeps_its_rights(place: Place) -> None:
    before = status_of(os.getpid())
    done = CliRunner().invoke(rocekit, ["stats", str(place.capture)], env=environment(sudo=True))
    assert done.exit_code == 0
    for name in ("Uid", "CapEff", "NoNewPrivs"):
        assert status_of(os.getpid())[0][name] == before[0][name]
