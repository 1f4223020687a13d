"""The lab: what it needs, how its two sides talk, and that it ends in time and leaves nothing behind.

The tests that boot it carry the marker ``lab``; the others put a small program where the VM would be.
"""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from lab_boot import Boot, Booted, Part
from lab_parts import RETURNCODE
from places import INSIDE

from rocekit import lab
from rocekit.lab import agent, checks, front, jobs, link, vm
from rocekit.lab.net import LabError

# What is missing


def kernel_files(root: Path, version: str, module: str | None = "rdma_rxe.ko") -> None:
    (root / "boot").mkdir(exist_ok=True)
    (root / "boot" / f"vmlinuz-{version}").write_bytes(b"kernel")
    folder = root / "modules" / version / "kernel/drivers/infiniband/sw/rxe"
    folder.mkdir(parents=True)
    if module is not None:
        (folder / module).write_bytes(b"module")


def newest(root: Path) -> str | None:
    kernel = vm.newest_kernel(root / "boot", root / "modules")
    return None if kernel is None else kernel.version


def test_the_newest_kernel_is_the_highest_version_not_the_last_name(tmp_path: Path) -> None:
    for version in ("6.1.0-9-amd64", "6.1.0-56-amd64", "5.10.0-100-amd64"):
        kernel_files(tmp_path, version)
    assert newest(tmp_path) == "6.1.0-56-amd64"
    kernel_files(tmp_path, "6.12.3-amd64", "rdma_rxe.ko.xz")
    assert newest(tmp_path) == "6.12.3-amd64"


def test_a_kernel_without_rxe_is_passed_over(tmp_path: Path) -> None:
    kernel_files(tmp_path, "6.1.0-56-cloud-amd64", None)
    assert newest(tmp_path) is None
    kernel_files(tmp_path, "6.1.0-9-amd64")
    assert newest(tmp_path) == "6.1.0-9-amd64"


def test_a_kernel_whose_modules_are_gone_is_passed_over(tmp_path: Path) -> None:
    kernel_files(tmp_path, "6.1.0-9-amd64")
    (tmp_path / "boot" / "vmlinuz-6.9.0-amd64").write_bytes(b"kernel")
    assert newest(tmp_path) == "6.1.0-9-amd64"


def test_the_module_index_is_believed_where_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "modules.dep").write_text(
        "kernel/drivers/rxe/rdma_rxe.ko.zst: kernel/net/udp_tunnel.ko.zst\n"
    )
    assert vm.has_module(tmp_path, "rdma_rxe")
    assert not vm.has_module(tmp_path, "rdma_rx")
    assert not vm.has_module(tmp_path, "udp_tunnel")


def test_a_module_that_is_built_into_the_kernel_is_there(tmp_path: Path) -> None:
    (tmp_path / "modules.dep").write_text("kernel/net/udp_tunnel.ko:\n")
    (tmp_path / "modules.builtin").write_text("kernel/drivers/rxe/rdma_rxe.ko\n")
    assert vm.has_module(tmp_path, "rdma_rxe")
    assert not vm.has_module(tmp_path, "ib_core")


def test_the_pieces_of_the_lab_are_those_of_its_two_ways_each_once() -> None:
    assert set(checks.check()) == {*checks.native(), *checks.vm()}
    assert len(checks.check()) == len(set(checks.check()))


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which nothing of the lab is installed."""
    monkeypatch.setattr(checks, "_which", lambda program: None)
    monkeypatch.setattr(checks, "newest_kernel", lambda: None)
    monkeypatch.setattr(checks, "virtme_run", lambda: None)
    monkeypatch.setattr(checks, "qemu", lambda: None)
    monkeypatch.setattr(checks, "has_module", lambda folder, name: False)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


@pytest.mark.usefixtures("bare_machine")
def test_each_missing_piece_is_named_with_the_command_that_adds_it() -> None:
    lines = lab.missing()
    for command in (
        "apt-get install qemu-system",
        "apt-get install linux-image",
        "pip install virtme-ng",
        "apt-get install busybox-static",
        "apt-get install iproute2",
        "apt-get install kmod",
    ):
        assert any(command in line for line in lines), command
    assert all("\n" not in line for line in lines)


@pytest.mark.usefixtures("bare_machine")
def test_a_lab_that_cannot_start_says_why_in_one_line() -> None:
    with pytest.raises(LabError) as caught:
        lab.run(["true"])
    assert "apt-get install qemu-system" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("bare_machine")
def test_in_place_without_root_says_so() -> None:
    with pytest.raises(LabError, match="root"):
        lab.run(["true"], mode="native")


def test_the_lab_is_not_missing_anything_where_one_of_its_two_ways_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checks, "native_obstacle", lambda: None)
    monkeypatch.setattr(checks, "vm_obstacle", lambda: "no QEMU")
    assert lab.missing() == []
    assert lab.pick_mode() in ("native", "vm")


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ([], {}),
        (["true"], {"timeout_s": 0}),
        (["true"], {"boot_timeout_s": -1}),
        (["true"], {"mode": "cloud"}),
        (["true"], {"netem": "loss '2%"}),
        (["true"], {"mode": "native", "counted": True}),
    ],
)
def test_a_wrong_call_is_a_value_error(command: list[str], options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        lab.run(command, **options)


# The agent's side: a command is run, watched and ended

SERVE = """
import contextlib, sys
from rocekit.lab import agent
agent.wired = lambda **netem: contextlib.nullcontext()   # no devices: the rest is what is tested
agent.GRACE_S = 0.3
sys.exit(agent.main(sys.argv[1:]))
"""


@dataclass
class Ran:
    session: link.Session
    stdout: str
    stderr: str

    @property
    def returncode(self) -> int:
        return int(self.session.said["ended"]["returncode"])


class Agent:
    """An agent in a process of its own, and the starter's end of its channel."""

    def __init__(self, folder: Path, command: Sequence[str], timeout_s: float = 30.0) -> None:
        self.timeout_s = timeout_s
        self.out = folder / "out"
        self.out.mkdir()
        order = agent.Order(
            tuple(command),
            str(folder),
            dict(os.environ),
            timeout_s,
            None,
            None,
            str(self.out),
            str(folder / "tmp"),
        )
        (folder / "order.json").write_text(order.to_json())
        self.control, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SERVE, str(folder), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    def follow(self) -> Ran:
        stdout, stderr = io.BytesIO(), io.BytesIO()
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        session = link.follow(
            control=self.control.fileno(),
            streams=(self.process.stdout.fileno(), self.process.stderr.fileno()),
            sinks=(stdout, stderr),
            alive=lambda: self.process.poll() is None,
            hello_limit_s=30.0,
            up_limit_s=30.0,
            timeout_s=self.timeout_s,
        )
        return Ran(session, stdout.getvalue().decode(), stderr.getvalue().decode())

    def close(self) -> None:
        self.control.close()
        self.process.communicate(timeout=30)


def run_agent(folder: Path, command: Sequence[str], timeout_s: float = 30.0) -> Ran:
    started = Agent(folder, command, timeout_s)
    try:
        return started.follow()
    finally:
        started.close()


def exists(pid: int) -> bool:
    """Whether a process runs; one that is dead but not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def eventually(claim: Any) -> bool:
    end = time.monotonic() + 20
    while not claim():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize(("script", "status"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137)])
def test_the_exit_status_is_the_command_s(tmp_path: Path, script: str, status: int) -> None:
    assert run_agent(tmp_path, ["sh", "-c", script]).returncode == status


def test_a_command_that_is_not_there_ends_with_127_and_says_so(tmp_path: Path) -> None:
    ran = run_agent(tmp_path, ["no-such-program-here"])
    assert ran.returncode == 127
    assert "no-such-program-here" in ran.stderr


def test_the_two_streams_arrive_whole_and_apart(tmp_path: Path) -> None:
    ran = run_agent(tmp_path, ["sh", "-c", "seq 100000; echo trouble >&2"])
    assert ran.stdout == "".join(f"{n}\n" for n in range(1, 100001))
    assert ran.stderr == "trouble\n"


def test_what_the_command_leaves_in_its_output_folder_is_handed_over(tmp_path: Path) -> None:
    script = 'cd "$ROCEKIT_LAB_OUT"; echo $ROCEKIT_LAB > a; mkdir b; echo c > b/c; ln -s a link'
    assert run_agent(tmp_path, ["sh", "-c", script]).returncode == 0
    out = tmp_path / "out"
    assert (out / "a").read_text() == "1\n"
    assert (out / "b/c").read_text() == "c\n"
    assert (out / "link").readlink() == Path("a")


def test_a_command_whose_time_is_over_ends_with_124_and_its_output_still_comes(tmp_path: Path) -> None:
    script = 'trap "" TERM; echo early > "$ROCEKIT_LAB_OUT/x"; while :; do sleep 1; done'
    ran = run_agent(tmp_path, ["sh", "-c", script], timeout_s=0.5)
    assert ran.returncode == 124
    assert ran.session.said["ended"]["timed_out"] is True
    assert (tmp_path / "out/x").read_text() == "early\n"


def test_processes_that_the_command_leaves_are_ended(tmp_path: Path) -> None:
    """One in its own group with the pipes open, one that became a daemon."""
    script = "sleep 1000 & echo $!; setsid sleep 1001 </dev/null >/dev/null 2>&1 & echo $!"
    ran = run_agent(tmp_path, ["sh", "-c", script])
    pids = [int(line) for line in ran.stdout.split()]
    assert len(pids) == 2
    assert all(eventually(lambda pid=pid: not exists(pid)) for pid in pids)


def test_a_starter_that_is_gone_ends_command_and_agent(tmp_path: Path) -> None:
    started = Agent(
        tmp_path, ["sh", "-c", 'trap "" TERM; echo $$ > "$ROCEKIT_LAB_OUT/pid"; sleep 1000; sleep 1000']
    )
    pid = tmp_path / "tmp/pid"
    assert eventually(lambda: pid.exists() and pid.read_text().strip())
    started.close()
    assert started.process.returncode == 0
    assert not exists(int(pid.read_text()))


def test_ctrl_c_reaches_the_command_which_may_sum_up(tmp_path: Path) -> None:
    script = 'trap "echo summed up; exit 5" INT; touch "$ROCEKIT_LAB_OUT/ready"; while :; do sleep 0.1; done'
    started = Agent(tmp_path, ["bash", "-c", script])
    ready = tmp_path / "tmp/ready"

    def interrupt() -> None:
        eventually(ready.exists)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        ran = started.follow()
    finally:
        thread.join()
        started.close()
    assert (ran.returncode, ran.stdout) == (5, "summed up\n")


def test_a_directory_that_the_agent_cannot_see_is_named(tmp_path: Path) -> None:
    order = agent.Order(("true",), str(tmp_path / "gone"), {}, 1.0, None, None, str(tmp_path))
    with pytest.raises(LabError, match="gone"):
        agent.run_command(order, 0, (1, 2))


# The starter's side, with a small program where QEMU would be

GUEST = """
import json, socket, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
ports = []
for name in ("control", "stdout", "stderr"):
    port = socket.socket(socket.AF_UNIX)
    port.connect(str(folder / name))
    ports.append(port)
control, stdout, stderr = ports
def say(**message):
    control.sendall(json.dumps(message).encode() + b"\\n")
"""


@pytest.fixture
def order(tmp_path: Path) -> agent.Order:
    return agent.Order(("true",), str(tmp_path), {}, 5.0, None, None, str(tmp_path))


@dataclass
class FakeVm:
    """Starts a script where virtme-run would be started; remembers the folder it was given."""

    monkeypatch: pytest.MonkeyPatch
    script: str = ""
    folder: Path | None = None
    counted: bool = False

    def command(self, folder: Path, share: Path, kernel: vm.Kernel, guest: vm.Guest, how: str) -> list[str]:
        self.folder = folder
        return [sys.executable, "-c", GUEST + textwrap.dedent(self.script), str(folder), how]

    def boot(self, order: agent.Order, out: Path, limit_s: float = 20.0) -> tuple[vm.Ended, bytes, bytes]:
        sinks = (io.BytesIO(), io.BytesIO())
        guest = vm.Guest(boot_timeout_s=limit_s, counted=self.counted)
        ended = vm.run_in_vm(order, guest, sinks, out)
        return ended, sinks[0].getvalue(), sinks[1].getvalue()

    def left_nothing(self) -> bool:
        assert self.folder is not None
        inside = str(self.folder).encode()
        running = [
            process.name
            for process in Path("/proc").glob("[0-9]*")
            if exists(int(process.name)) and inside in _command_line(process)
        ]
        return not self.folder.exists() and not running


def _command_line(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeVm:
    fake = FakeVm(monkeypatch)
    monkeypatch.setattr(vm, "_command", fake.command)
    monkeypatch.setattr(vm, "newest_kernel", lambda: vm.Kernel("6.1.0", Path("/boot/vmlinuz-6.1.0")))
    monkeypatch.setattr(vm, "kvm_promising", lambda: False)
    return fake


WELL = """
say(say="hello", kernel="6.1.0")
say(say="up")
(folder / "share/out/x.pcap").write_bytes(b"packets")
stdout.sendall(b"out")
stderr.sendall(b"err")
say(say="ended", returncode=9, timed_out=False, streams=[3, 7])
say(say="bye")
time.sleep(0.5)
stderr.sendall(b"late")
print("boot noise")
print("kernel noise", file=sys.stderr, flush=True)
time.sleep(1000)
"""


def test_status_streams_and_output_folder_come_back(fake: FakeVm, order: agent.Order, tmp_path: Path) -> None:
    fake.script = WELL
    ended, stdout, stderr = fake.boot(order, tmp_path / "out")
    assert ended.session.said["ended"]["returncode"] == 9
    assert (tmp_path / "out/x.pcap").read_bytes() == b"packets"
    assert (stdout, stderr) == (b"out", b"errlate")
    assert fake.left_nothing()


def test_a_guest_that_never_speaks_is_ended_in_time(fake: FakeVm, order: agent.Order, tmp_path: Path) -> None:
    fake.script = "print('Kernel panic - not syncing', flush=True); time.sleep(1000)"
    with pytest.raises(LabError, match=r"did not start.*Kernel panic"):
        fake.boot(order, tmp_path, limit_s=1.0)
    assert fake.left_nothing()


def test_a_vm_that_ends_at_once_is_reported_with_its_last_words(
    fake: FakeVm, order: agent.Order, tmp_path: Path
) -> None:
    fake.script = "sys.exit('qemu: no such machine')"
    with pytest.raises(LabError, match="no such machine"):
        fake.boot(order, tmp_path)
    assert fake.left_nothing()


def test_a_guest_that_dies_while_the_command_runs_is_noticed(
    fake: FakeVm, order: agent.Order, tmp_path: Path
) -> None:
    fake.script = 'say(say="hello", kernel="x"); say(say="up"); stdout.sendall(b"half")'
    with pytest.raises(LabError, match="died while the command ran"):
        fake.boot(order, tmp_path)
    assert fake.left_nothing()


def test_a_guest_that_ignores_its_time_limit_is_ended(
    fake: FakeVm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "SETTLE_S", 0.2)
    fake.script = 'say(say="hello", kernel="x"); say(say="up"); time.sleep(1000)'
    order = agent.Order(("true",), str(tmp_path), {}, 0.2, None, None, str(tmp_path))
    with pytest.raises(LabError, match=r"limit of 0\.2 s"):
        fake.boot(order, tmp_path / "out")
    assert fake.left_nothing()


def test_a_set_up_that_fails_says_why(fake: FakeVm, order: agent.Order, tmp_path: Path) -> None:
    fake.script = (
        'say(say="hello", kernel="x"); say(say="failed", message="netem: what is lossy?"); time.sleep(1000)'
    )
    with pytest.raises(LabError, match=r"^netem: what is lossy\?$"):
        fake.boot(order, tmp_path)
    assert fake.left_nothing()


def test_without_working_kvm_emulation_takes_over(
    fake: FakeVm, order: agent.Order, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vm, "kvm_promising", lambda: True)
    monkeypatch.setattr(vm, "KVM_HELLO_S", 1.0)
    fake.script = "if sys.argv[2] == 'kvm': time.sleep(1000)\n" + WELL
    assert fake.boot(order, tmp_path / "out")[0].accelerator == "tcg"
    fake.script = "if sys.argv[2] == 'kvm': sys.exit('assertion failed')\n" + WELL
    assert fake.boot(order, tmp_path / "out")[0].accelerator == "tcg"
    fake.script = WELL
    assert fake.boot(order, tmp_path / "out")[0].accelerator == "kvm"
    assert fake.left_nothing()


def test_instructions_are_counted_under_emulation_only(
    fake: FakeVm, order: agent.Order, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vm, "kvm_promising", lambda: True)
    fake.script, fake.counted = WELL, True
    assert fake.boot(order, tmp_path / "out")[0].accelerator == "tcg"


def test_a_guest_that_fails_under_kvm_is_not_tried_again(
    fake: FakeVm, order: agent.Order, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the set-up says is true under emulation too."""
    monkeypatch.setattr(vm, "kvm_promising", lambda: True)
    fake.script = (
        'say(say="hello", kernel="x"); say(say="failed", message="no " + sys.argv[2]); time.sleep(1000)'
    )
    with pytest.raises(LabError, match="no kvm"):
        fake.boot(order, tmp_path)


def test_a_process_group_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    script = (
        f'trap "" TERM; (trap "" TERM; echo $BASHPID > {tmp_path}/child; while :; do sleep 1; done) & wait'
    )
    process = subprocess.Popen(["bash", "-c", script], start_new_session=True)
    child = tmp_path / "child"
    assert eventually(lambda: child.exists() and child.read_text().strip())

    def reap(seconds: float) -> bool:
        try:
            process.wait(min(seconds, 0.3) if seconds == 2.0 else seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    link.end_group(process.pid, reap)
    assert process.returncode == -signal.SIGKILL
    assert eventually(lambda: not exists(int(child.read_text())))


def test_an_output_folder_never_lands_in_an_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    landing = tmp_path / "landing"
    landing.mkdir()
    assert front._keep(landing, None) is None
    (landing / "x").write_text("x")
    kept = [front._keep(landing, None) for _ in range(3)]
    assert [folder and folder.name for folder in kept] == ["lab-out", "lab-out-2", "lab-out-3"]


# Jobs


@pytest.mark.parametrize("names", [["a", "a"], ["../a"], ["a b"], [""]])
def test_jobs_have_names_of_their_own_that_can_be_file_names(names: list[str], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="names"):
        jobs.run_jobs([jobs.Job(name, "true") for name in names], tmp_path)


def test_a_client_waits_until_its_server_listens() -> None:
    script = """import socket, time; time.sleep(0.4); s = socket.socket(); s.bind(('127.0.0.1', 0));
s.listen(); time.sleep(1000)"""
    server = subprocess.Popen(["sh", "-c", f'{sys.executable} -c "{script}"; true'], start_new_session=True)
    try:
        jobs._wait_until_listening(server, 20.0)
        assert jobs._listens_tcp(jobs._group(server.pid))
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.communicate()


def test_a_program_that_outlives_its_limit_is_ended_and_noted() -> None:
    endless = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    assert jobs._finish(endless, 0.1) == {"returncode": -signal.SIGINT, "killed": True}
    short = subprocess.Popen(["sh", "-c", "exit 4"], start_new_session=True)
    assert jobs._finish(short, 20.0) == {"returncode": 4, "killed": False}


# The lab itself

PART = Part("machine", (str(INSIDE / "lab_inside.py"),), timeout_s=400, first=True)


def _leftovers(temporary: Path) -> list[str]:
    """Processes and files by which a lab that used this temporary folder would show that it is not over."""
    inside = str(temporary).encode()
    processes = [
        f"process {process.name}"
        for process in Path("/proc").glob("[0-9]*")
        if inside in _command_line(process) and exists(int(process.name))
    ]
    return [str(path) for path in temporary.iterdir()] + processes


@pytest.fixture(scope="module")
def facts(boot: Boot) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((boot.of(PART) / "facts.json").read_text())
    return found


@pytest.fixture(scope="module")
def booted(boot: Boot) -> Booted:
    found = boot.booted(PART)
    assert found.result is not None, found.error
    return found


@pytest.mark.lab(PART)
class TestBooted:
    def test_the_exit_status_is_the_command_s(self, booted: Booted) -> None:
        assert booted.result is not None
        assert booted.result.returncode == RETURNCODE, booted.stderr
        assert not booted.result.timed_out

    def test_the_command_s_output_is_free_of_the_boot_s(self, booted: Booted) -> None:
        assert booted.stdout == "to standard output\n"
        assert booted.stderr == "to standard error\n"

    def test_it_runs_in_the_caller_s_directory_with_the_caller_s_python(self, facts: dict[str, Any]) -> None:
        assert facts["directory"] == str(Path.cwd())
        assert facts["python"] == sys.executable
        assert facts["first_on_path"] == str(Path(sys.executable).parent)
        assert facts["marked"] == "1"

    def test_both_devices_are_there_with_their_addresses(self, facts: dict[str, Any]) -> None:
        assert facts["gids"] == {
            "rxe0": ["::ffff:10.9.0.1", "fd00:9::1"],
            "rxe1": ["::ffff:10.9.0.2", "fd00:9::2"],
        }
        assert facts["device_files"] >= 3

    @pytest.mark.parametrize("name", ["pingpong", "rping", "rping6", "perftest"])
    def test_every_packet_crosses_the_wire_and_is_captured(self, facts: dict[str, Any], name: str) -> None:
        """rxe's own counters say how many packets each device sent; tcpdump saw that many."""
        job = facts["jobs"][name]
        assert job["server_result"] == job["client_result"] == {"returncode": 0, "killed": False}
        assert job["dropped_by_kernel"] == 0
        sent = [device["sent_pkts"] for device in job["counters"].values()]
        assert len(sent) == 2
        assert job["captured"] == sum(sent) > 0

    def test_netem_loses_what_it_is_told_to(self, facts: dict[str, Any]) -> None:
        job = facts["jobs"]["lossy"]
        counters = job["counters"]
        assert job["captured"] < sum(device["sent_pkts"] for device in counters.values())
        assert counters["rxe1"]["rcvd_pkts"] < counters["rxe0"]["sent_pkts"]

    @pytest.mark.parametrize(("name", "tried"), [("second-try", 2), ("no-rnr", 2), ("rping", 1)])
    def test_a_job_is_run_again_until_it_came_out_as_meant(
        self, facts: dict[str, Any], name: str, tried: int
    ) -> None:
        """Up to its tries: nothing here makes a receiver late, so that one never does."""
        job = facts["jobs"][name]
        assert (job["tried"], job["client_result"]["returncode"]) == (tried, 0)

    def test_words_that_tc_does_not_know_are_refused(self, facts: dict[str, Any]) -> None:
        assert "lossy 2%" in facts["bad_netem"]

    def test_in_place_it_works_as_in_a_vm(self, facts: dict[str, Any]) -> None:
        """Tried inside the VM, whose own wire was taken down for it."""
        in_place = facts["in_place"]
        assert in_place["returncode"] == 3
        assert in_place["mode"] == "native"
        assert in_place["stdout"].split() == ["rxe0", "rxe1"]
        assert in_place["out"] == ["left"]

    @pytest.mark.parametrize("end", ["in_place", "killed", "refused"])
    def test_in_place_everything_is_put_back(self, facts: dict[str, Any], end: str) -> None:
        """After an orderly end, after the starter was killed with SIGKILL, and after a refused set-up."""
        assert facts[end]["after"] == facts["untouched"]

    def test_in_place_it_refuses_what_is_in_use(self, facts: dict[str, Any]) -> None:
        assert "an interface named vb exists" in facts["refused"]["error"]

    def test_nothing_is_left_on_this_machine(self, booted: Booted) -> None:
        assert eventually(lambda: not _leftovers(booted.temporary))
