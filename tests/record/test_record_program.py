"""Claims about the program that is recorded: it is none the wiser, whatever becomes of its journal."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from recorded import record, recorder, run

from rocekit.journal import read_journal
from rocekit.record import ProgramRecorder
from rocekit.record.build import compiler, interposer
from rocekit.record.start import _folder, pid_namespace


def test_output_input_and_status_are_the_program_s(tmp_path: Path) -> None:
    ran = record(tmp_path / "x", ["sh", "-c", "cat; echo said >&2; exit 7"], "--quiet", input="given")
    assert (ran.returncode, ran.stdout, ran.stderr) == (7, "given", "said\n")
    assert ran.of("recording")[-1]["status"] == 7


def test_a_signal_goes_to_the_program_and_ends_both_alike(program: Path, tmp_path: Path) -> None:
    journal = tmp_path / "x"
    with subprocess.Popen(
        [*recorder(journal, "--quiet"), str(program), "waits_for_a_signal"], stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "waiting\n"
        running.send_signal(signal.SIGTERM)
        assert running.wait(120) == -signal.SIGTERM
    assert read_journal(journal).of("recording")[-1]["signal"] == "SIGTERM"


def test_a_program_that_takes_a_signal_goes_on(tmp_path: Path) -> None:
    script = "trap 'echo got; exit 4' USR1; echo ready; while :; do sleep 0.05; done"
    with subprocess.Popen(
        [*recorder(tmp_path / "x", "--quiet"), "sh", "-c", script], stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        running.send_signal(signal.SIGUSR1)
        assert running.stdout.readline() == "got\n"
        assert running.wait(120) == 4


def test_a_closed_pipe_ends_the_program_as_it_would(tmp_path: Path) -> None:
    command = " ".join(recorder(tmp_path / "x", "--quiet")) + " yes | head -1; echo ${PIPESTATUS[0]}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout == f"y\n{128 + signal.SIGPIPE}\n"


@pytest.fixture
def small(tmp_path: Path, root: None) -> Iterator[Path]:
    """A disk of 64 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("no tmpfs may be mounted here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_ends_the_journal_and_not_the_program(program: Path, small: Path) -> None:
    journal = small / "x.journal.jsonl"
    ran = record(journal, ["sh", "-c", f"{program} paced 3000 >/dev/null && echo done; exit 5"], "--quiet")
    assert (ran.returncode, ran.stdout) == (5, "done\n")
    assert "No space left on device" in ran.stderr
    assert 0 < len(ran.of("wr_posted")) < 4000
    # It may end in the middle of a line; that is said, and nothing else is wrong.
    assert [problem.expected.split(":")[0] for problem in ran.journal.problems] in (
        [],
        ["the last line is cut off"],
    )


def test_a_full_disk_ends_the_packets_and_not_the_program(program: Path, small: Path, root: None) -> None:
    script = (
        "import socket\n"
        "with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:\n"
        "    for _ in range(300): s.sendto(bytes(1000), ('127.0.0.1', 4791))\n"
        "exit(5)"
    )
    options = ("-i", "lo", "-w", str(small / "x.pcapng"))
    done = subprocess.run(
        [*recorder(small.parent / "x", *options), sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 5
    assert "No space left on device" in done.stderr
    assert read_journal(small.parent / "x").of("recording")[-1]["status"] == 5


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_a_closed_stream_is_nothing_to_the_recorder(tmp_path: Path, closed: str) -> None:
    command = " ".join([*recorder(tmp_path / "x"), "sh", "-c", "'exit 3'", closed])
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert read_journal(tmp_path / "x").of("recording")[-1]["status"] == 3


def test_the_program_is_not_written_over(program: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copy(program, copy)
    done = subprocess.run(
        [*recorder(copy), str(copy), "never_polls"], capture_output=True, text=True, timeout=240, check=False
    )
    assert (done.returncode, done.stderr) == (
        1,
        f"rocekit: error: {copy}: this is the program: name another file\n",
    )
    assert copy.read_bytes() == program.read_bytes()


def test_a_missing_program_is_said_in_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [*recorder(tmp_path / "x"), "no-such-program"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 127
    assert done.stderr == "rocekit: error: no-such-program: no such program\n"


def test_a_preload_of_the_user_s_own_is_kept(program: Path, tmp_path: Path) -> None:
    ran = record(
        tmp_path / "x",
        ["sh", "-c", "echo $LD_PRELOAD"],
        env={"LD_PRELOAD": str(program.parent / "libibverbs.so.1")},
    )
    assert ran.stdout.strip() == f"{interposer()}:{program.parent / 'libibverbs.so.1'}"


def test_nothing_is_left_in_memory(program: Path, tmp_path: Path) -> None:
    run(program, tmp_path, "killed")
    left = [path.name for path in Path("/dev/shm").glob("rocekit-record-*")]
    assert not [name for name in left if not Path("/proc", name.split("-")[2]).exists()]


def test_lines_are_journal_lines_in_order(program: Path, tmp_path: Path) -> None:
    ran = run(program, tmp_path, "threads")
    for line in ran.path.read_text().splitlines():
        assert json.loads(line)["host"] == os.uname().nodename
    assert ran.journal.problems == []


def test_packets_are_kept_and_explained_beside_the_program_s_own_output(
    program: Path, tmp_path: Path, root: None
) -> None:
    script = f"echo mine; {program} never_polls"
    kept = tmp_path / "x.pcapng"
    done = subprocess.run(
        [
            *recorder(tmp_path / "x.journal.jsonl", "-i", "lo", "-w", str(kept), "--redact"),
            "sh",
            "-c",
            script,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "mine\n")
    assert done.stderr.count("No RoCE v2 packets: nothing to judge.") == 1
    assert "100 work requests" in done.stderr
    assert "--redact changes only the journal, not the packets" in done.stderr
    assert kept.stat().st_size > 0


def test_a_capture_without_an_interface_is_a_wrong_command_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [*recorder(tmp_path / "x", "-w", "y"), "true"], capture_output=True, timeout=240, check=False
    )
    assert done.returncode == 2


def test_a_static_program_is_said_to_be_out_of_reach(program: Path, tmp_path: Path) -> None:
    source = tmp_path / "static.c"
    source.write_text("int main(void) { return 6; }\n")
    made = subprocess.run(
        [str(compiler()), "-static", "-o", str(tmp_path / "static"), str(source)],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("this compiler links nothing statically")
    ran = record(tmp_path / "x", [str(tmp_path / "static")])
    assert ran.returncode == 6
    assert "linked statically" in ran.one("not_recorded")["what"]
    assert "linked statically" in ran.stderr


def test_a_ring_must_be_a_power_of_two(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="power of two"):
        ProgramRecorder(["true"], tmp_path / "x", Path("/nowhere"), slots=100)


def test_the_counters_of_a_captured_interface_are_in_the_journal(
    program: Path, tmp_path: Path, root: None
) -> None:
    for option in ("--counters", "--no-counters"):
        journal = tmp_path / f"x{option}.journal.jsonl"
        words = [
            *recorder(journal, "-i", "lo", "-w", str(tmp_path / "x.pcapng"), option),
            "sh",
            "-c",
            "exit 9",
        ]
        assert subprocess.run(words, capture_output=True, timeout=120, check=False).returncode == 9
        found = [(e["interface"], e["captured_to"]) for e in read_journal(journal).of("counters")]
        assert found == [("lo", "x.pcapng")] * (2 if option == "--counters" else 0)


ORPHAN = """
import os, sys, time
told, tell = os.pipe()
if not os.fork():
    if not (orphan := os.fork()):
        time.sleep(0.2)
        os._exit(0)
    os.write(tell, b"%d" % orphan)
    os._exit(0)
os.wait()
orphan = int(os.read(told, 20))
until = time.monotonic() + 120
while os.path.exists(f"/proc/{orphan}") and time.monotonic() < until:
    time.sleep(0.02)
print("stays" if os.path.exists(f"/proc/{orphan}") else "gone")
sys.exit(7)
"""
"""Its child's child is left behind, and ends."""


def test_as_a_container_s_first_process_the_recorder_keeps_no_dead_ones(root: None, tmp_path: Path) -> None:
    """All whose parents have ended become its children, and count against its limit if they stay."""
    command = [*recorder(tmp_path / "x", "--quiet"), sys.executable, "-I", "-S", "-c", ORPHAN]
    first = ["unshare", "--fork", "--pid", "--mount-proc"]
    if subprocess.run([*first, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no process namespace can be made here")
    done = subprocess.run([*first, *command], capture_output=True, text=True, check=False, timeout=240)
    assert (done.stdout, done.returncode) == ("gone\n", 7), done.stderr
    assert read_journal(tmp_path / "x").of("recording")[-1]["status"] == 7


def test_the_rings_of_a_recorder_in_another_container_are_left_alone(tmp_path: Path) -> None:
    """Containers may share /dev/shm; who runs is known only of those whose numbers are the same."""
    dead = subprocess.Popen(["true"])
    dead.wait()
    here = pid_namespace()
    names = {f"x-{dead.pid}-{here}-5": False, f"x-{dead.pid}-{here + 1}-5": True}
    names |= {f"x-{os.getpid()}-{here}-5": True, f"x-{dead.pid}-5": True}
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.0.ring").touch()
    made = Path(_folder(str(tmp_path), "x-"))
    assert {name: (tmp_path / name / "1.0.ring").exists() for name in names} == names
    assert made.name.startswith(f"x-{os.getpid()}-{here}-")
    made.rmdir()


def test_a_recorder_in_a_container_takes_no_rings_from_one_outside(root: None, tmp_path: Path) -> None:
    first = ["unshare", "--fork", "--pid", "--mount-proc"]
    if subprocess.run([*first, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no process namespace can be made here")
    inside = f"{shlex.join([*first, *recorder(tmp_path / 'inner', '--quiet'), 'true'])}"
    ran = record(tmp_path / "outer", ["sh", "-c", f"{inside} && cd $ROCEKIT_RECORD_FOLDER"], "--quiet")
    assert ran.returncode == 0, ran.stderr
