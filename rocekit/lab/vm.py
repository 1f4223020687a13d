"""The lab in a small QEMU VM, for machines whose own kernel has no rxe or whose user is not root.

virtme-ng's ``virtme-run`` boots an installed distribution kernel on the machine's own files, read-only over
9p: the guest sees the same /usr, virtual environment and source tree. The command's output and the control
channel have virtio-serial ports of their own, so nothing that the boot prints gets into them.
"""

from __future__ import annotations

import os
import platform
import re
import select
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rocekit.errors import installing
from rocekit.lab.agent import Order
from rocekit.lab.kernels import Kernel, kernel_named, newest_kernel, versions
from rocekit.lab.link import UP_LIMIT_S, DiedError, NoHelloError, Session, end_group, follow
from rocekit.lab.net import LabError

PORTS = ("control", "stdout", "stderr")
SHARE = "/run/rocekit/share"
"""Where the guest sees the shared folder, which it can write."""
ROOT_TAG = "rocekit.root"
CACHED_ROOT = """
mkdir -p /run/rocekit/root /run/rocekit/upper /run/rocekit/work
if mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=512000,cache=loose {tag} /run/rocekit/root; then
  for d in /run/rocekit/root/*; do
    n=/${{d##*/}}
    case $n in /proc|/sys|/dev|/run|/tmp|/var|/lost+found) continue;; esac
    [ -d "$d" ] && [ ! -L "$d" ] && mount --bind "$d" "$n"
  done
fi
mount -t overlay -o lowerdir=/tmp,upperdir=/run/rocekit/upper,workdir=/run/rocekit/work lab-tmp /tmp
udevadm control --exit
"""
"""virtme mounts the machine's files without a cache: every program start reads them again, which takes
most of the time under emulation. So the machine's root is mounted over it once more, with a cache.
/tmp is writable, in memory. udev has found the machine's devices by now: each interface of the lab would have
it start a dozen programs, and the kernel makes the files of RDMA devices without it.
"""
UNNEEDED = (
    "kvm_amd,kvm_intel,ccp,psmouse,sg,sr_mod,ahci,iTCO_wdt,i2c_i801,lpc_ich,pcspkr,serio_raw,i6300esb,"
    "aesni_intel,sha512_ssse3,sha256_ssse3,sha1_ssse3,ghash_clmulni_intel,crct10dif_pclmul,powernow_k8,"
    "evdev,qemu_fw_cfg"
)
"""Modules that udev would load and the lab does not need: they double the boot time under emulation."""
EMULATED = {"x86_64": ("tsc=reliable", "clocksource=tsc")}
"""Kernel parameters under emulation. QEMU gives all its processors one time stamp counter; Linux takes it for
several that differ, and chooses the HPET, which costs microseconds each time a program reads the clock.
"""
CARELESS = ("mitigations=off", "init_on_alloc=0")
"""No precautions against the flaws of real processors, and no memory wiped before use: under emulation they
only cost time. Where instructions are counted they stay, since they are part of what a program costs.
"""
CPU = {"x86_64": "max,la57=off"}
"""QEMU's name of the processor that it emulates: all that it can, but page tables of five levels, of which
each miss of the emulated TLB would walk one more.
"""
WITHOUT = {"x86_64": "erms=off,fsrm=off"}
"""Features that programs and the kernel then do without: a string instruction that moves bytes is emulated
byte by byte, so without it memory is copied two times faster. Not where instructions are counted.
"""
COUNTED = "-icount shift=0,sleep=off"
"""QEMU's options for a clock that counts instructions: one is 2^0 ns, and an idle guest's clock jumps to the
next event that it waits for.
"""
KVM_HELLO_S = 30.0
"""With working KVM the first message comes within seconds; else KVM is broken (nested virtualisation)."""
QEMU_PACKAGE = {"x86_64": "qemu-system-x86", "aarch64": "qemu-system-arm"}


def virtme_run() -> str | None:
    """virtme-ng's program: beside this Python, else on PATH."""
    beside = Path(sys.executable).parent / "virtme-run"
    if os.access(beside, os.X_OK):
        return str(beside)
    return shutil.which("virtme-run")


def qemu() -> str | None:
    """QEMU's emulator of this machine's own architecture, or None."""
    return shutil.which(f"qemu-system-{platform.machine()}")


def kvm_promising() -> bool:
    """Whether KVM is worth trying: accessible, and the processor offers virtualisation."""
    return os.access("/dev/kvm", os.R_OK | os.W_OK) and virtualises()


def virtualises(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the processor offers virtualisation.

    If it lacks the flag, /dev/kvm was passed through by a hypervisor, and QEMU asserts or hangs.
    """
    if platform.machine() != "x86_64":
        return True
    try:
        flags = cpuinfo.read_text()
    except OSError:
        return False
    return re.search(r"^flags\s*:.*\b(vmx|svm)\b", flags, re.MULTILINE) is not None


@dataclass(frozen=True, slots=True)
class Guest:
    """How large the VM is, how long it may take to boot, and what its clock counts.

    ``counted``: its clock counts the instructions that it executes, one each nanosecond, whatever else this
    machine does. So the cost of programs can be measured on a busy machine. Always emulated.
    """

    memory: str = "2G"
    cpus: int = 2
    boot_timeout_s: float = 300.0
    counted: bool = False
    kernel: str | None = None
    """A version, or how it starts; None: the newest."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A VM whose command has ended."""

    session: Session
    kernel: str
    accelerator: str
    log: str


def run_in_vm(order: Order, guest: Guest, sinks: tuple[BinaryIO, BinaryIO], out: Path) -> Ended:
    """Boot, run the order, bring its output folder back into ``out``, and leave nothing behind.

    KVM is used if it works; if the guest sends no message in time under it, the guest is emulated.

    Raises:
        LabError: something is missing, or a limit passed; the message has the last line of the boot.
    """
    kernel = newest_kernel() if guest.kernel is None else kernel_named(guest.kernel)
    if kernel is None and guest.kernel is not None:
        raise LabError(
            f"no kernel {guest.kernel} with rdma_rxe is installed; there is {', '.join(versions()) or 'none'}"
        )
    if kernel is None:
        raise LabError("no installed kernel has rdma_rxe: apt-get install linux-image-amd64")
    if kvm_promising() and not guest.counted:
        limit = min(KVM_HELLO_S, guest.boot_timeout_s)
        try:
            return _boot(order, guest, kernel, "kvm", limit, sinks, out)
        except NoHelloError:
            pass
    return _boot(order, guest, kernel, "tcg", guest.boot_timeout_s, sinks, out)


def _boot(
    order: Order,
    guest: Guest,
    kernel: Kernel,
    accelerator: str,
    hello_limit_s: float,
    sinks: tuple[BinaryIO, BinaryIO],
    out: Path,
) -> Ended:
    with ExitStack() as stack:
        folder = _short_folder(stack)
        share = folder / "share"
        (share / "out").mkdir(parents=True)
        inside = Order(
            order.command,
            order.directory,
            order.environment,
            order.timeout_s,
            order.netem,
            order.netem_b,
            f"{SHARE}/out",
            "/run/rocekit/out",
            order.devices,
        )
        (share / "order.json").write_text(inside.to_json())
        listeners = [stack.enter_context(_listener(folder / name)) for name in PORTS]
        process = _start(_command(folder, share, kernel, guest, accelerator), folder)
        log = _Log(process)
        stack.callback(log.close)
        stack.callback(end_group, process.pid, lambda seconds: _gone(process, seconds))
        session: Session | None = None
        try:
            until = time.monotonic() + hello_limit_s
            connections = [stack.enter_context(_accept(one, process, until)) for one in listeners]
            session = follow(
                control=connections[0].fileno(),
                streams=(connections[1].fileno(), connections[2].fileno()),
                sinks=sinks,
                alive=lambda: process.poll() is None,
                hello_limit_s=hello_limit_s,
                up_limit_s=UP_LIMIT_S,
                timeout_s=order.timeout_s,
            )
        except DiedError as error:
            raise _with_log(error, log) from error
        finally:
            if session is not None or any((share / "out").iterdir()):
                shutil.copytree(share / "out", out, symlinks=True, dirs_exist_ok=True)
        return Ended(session, kernel.version, accelerator, log.text())


def _with_log(error: DiedError, log: _Log) -> DiedError:
    lines = [line.strip() for line in log.text().splitlines() if line.strip()]
    words = f" (the VM's last line: {lines[-1][:200]})" if lines else ""
    return type(error)(f"{error}{words}")


class _Log:
    """Collects what a VM prints apart from its command's output: the first 256 KB."""

    LIMIT = 1 << 18

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self._pipe = process.stdout
        self._data = bytearray()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while data := os.read(self._pipe.fileno(), 65536):
            self._data += data[: self.LIMIT - len(self._data)]

    def text(self) -> str:
        return self._data.decode(errors="replace")

    def close(self) -> None:
        """To be called after the processes have ended, and their end of the pipe."""
        self._thread.join(5.0)
        if not self._thread.is_alive():
            self._pipe.close()


def _short_folder(stack: ExitStack) -> Path:
    """A private folder that is removed afterwards; short, because a socket's path has at most 107 bytes."""
    base = tempfile.gettempdir()
    return Path(
        stack.enter_context(
            tempfile.TemporaryDirectory(
                prefix="rocekit-lab-", dir=base if len(base) < 60 else "/tmp", ignore_cleanup_errors=True
            )
        )
    )


@contextmanager
def _listener(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(1)
        yield listener


def _accept(listener: socket.socket, process: subprocess.Popen[bytes], until: float) -> socket.socket:
    """QEMU's connection to a port; it connects to all as it starts, before the guest runs."""
    while not select.select([listener], [], [], 0.2)[0]:
        if process.poll() is not None:
            raise NoHelloError(f"the VM did not start: virtme-run ended with status {process.returncode}")
        if time.monotonic() > until:
            raise NoHelloError("QEMU did not start in time; it was killed")
    return listener.accept()[0]


def _command(folder: Path, share: Path, kernel: Kernel, guest: Guest, accelerator: str) -> list[str]:
    starter = virtme_run()
    if starter is None or qemu() is None:
        package = QEMU_PACKAGE.get(platform.machine(), "qemu-system")
        raise LabError(
            f"QEMU is missing: apt-get install {package}"
            if starter
            else f"virtme-ng is missing: {installing('lab')}"
        )
    source = Path(__file__).resolve().parents[2]
    agent = ("env", f"PYTHONPATH={source}", sys.executable, "-m", "rocekit.lab.agent", SHARE)
    devices = [
        "-fsdev local,id=rk_root,path=/,security_model=none,readonly=on,multidevs=remap",
        f"-device virtio-9p-pci,fsdev=rk_root,mount_tag={ROOT_TAG}",
        f"-device virtio-serial-pci,id=rocekit,max_ports={len(PORTS) + 1}",
    ]
    for name in PORTS:
        # A comma in QEMU's options is written twice.
        path = str(folder / name).replace(",", ",,")
        devices.append(f"-chardev socket,id=rk_{name},path={shlex.quote(path)}")
        devices.append(f"-device virtserialport,bus=rocekit.0,chardev=rk_{name},name=rocekit.{name}")
    emulated: tuple[str, ...] = EMULATED.get(platform.machine(), ()) if accelerator == "tcg" else ()
    if accelerator == "tcg":
        without = None if guest.counted else WITHOUT.get(platform.machine())
        cpu = ",".join(filter(None, (CPU.get(platform.machine(), "max"), without)))
        devices.append(f"-cpu {cpu}")
        emulated = emulated if guest.counted else (*emulated, *CARELESS)
    if guest.counted:
        devices.append(COUNTED)
    return [
        starter,
        *("--kimg", str(kernel.image), "--mods", "auto", "--force-9p", "--disable-microvm"),
        *(("--disable-kvm",) if accelerator == "tcg" else ()),
        *("--memory", guest.memory, "--cpus", str(guest.cpus), "--user", "root"),
        *(
            f"--rwdir={SHARE}={share}",
            "--show-boot-console",
            "-a",
            "modprobe.blacklist=" + UNNEEDED,
        ),
        *(word for given in emulated for word in ("-a", given)),
        *("--script-sh", f"{CACHED_ROOT.format(tag=ROOT_TAG)}exec {shlex.join(agent)}"),
        *("--qemu-opts", *shlex.split(" ".join(devices))),
    ]


def _start(command: list[str], folder: Path) -> subprocess.Popen[bytes]:
    """Start QEMU in a session of its own, with its temporary files in ``folder``.

    Its output goes through a pipe: QEMU opens its console by name, and would truncate a file.
    """
    environment = {**os.environ, "TMPDIR": str(folder)}
    environment["PATH"] = os.pathsep.join(
        (str(Path(sys.executable).parent), environment.get("PATH", ""), "/usr/sbin", "/sbin")
    )
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _gone(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True
