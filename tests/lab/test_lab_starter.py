"""The starter boots, waits within limits and leaves nothing behind; a small program stands in for QEMU."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest
from processes import command_line, eventually, exists

from rocekit.lab import agent, front, kernels, link, vm
from rocekit.lab.net import LabError

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

    def command(
        self, folder: Path, share: Path, kernel: kernels.Kernel, guest: vm.Guest, how: str
    ) -> list[str]:
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
            if exists(int(process.name)) and inside in command_line(process)
        ]
        return not self.folder.exists() and not running


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeVm:
    fake = FakeVm(monkeypatch)
    monkeypatch.setattr(vm, "_command", fake.command)
    monkeypatch.setattr(vm, "newest_kernel", lambda: kernels.Kernel("6.1.0", Path("/boot/vmlinuz-6.1.0")))
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


def test_a_folder_that_comes_back_slowly_is_waited_for_and_one_that_stops_coming_is_not(
    fake: FakeVm, order: agent.Order, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "HAND_OVER_S", 3.0)
    ends = """
        say(say="hello", kernel="x"); say(say="up")
        say(say="ended", returncode=0, timed_out=False, streams=[0, 0])
        for _ in range(8): time.sleep(0.5); say(say="handing over")
    """
    fake.script = (
        ends
        + """
        say(say="bye"); time.sleep(1000)
    """
    )
    assert fake.boot(order, tmp_path / "out")[0].session.said["bye"]
    fake.script = (
        ends
        + """
        time.sleep(1000)
    """
    )
    with pytest.raises(LabError, match="nothing of the output folder came back for 3 s"):
        fake.boot(order, tmp_path / "out")
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
