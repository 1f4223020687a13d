"""A running program that is to be attached to: whether it can be, its threads, its memory."""

from __future__ import annotations

import os
import platform
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocekit.errors import RocekitError
from rocekit.record.program import has_own_privileges, is_static

_MACHINES: Final = {62: "x86_64", 183: "aarch64", 3: "i386", 243: "riscv64", 21: "ppc64le"}
"""e_machine of an ELF header (elf(5))."""
_SIGTRAP: Final = 5
_YAMA: Final = Path("/proc/sys/kernel/yama/ptrace_scope")


class AttachError(RocekitError):
    """A program that cannot be attached to."""


@dataclass(frozen=True, slots=True)
class Mapping:
    """A part of a process's memory, as /proc/PID/maps has it."""

    start: int
    end: int
    rights: str
    path: str

    @property
    def code(self) -> bool:
        return "x" in self.rights and self.path.startswith("/")

    @property
    def data(self) -> bool:
        """Whether it may have what the program allocated."""
        return self.rights.startswith("rw-p") and (
            self.path in ("", "[heap]") or self.path.startswith("[anon")
        )


class RunningProgram:
    """A running process, checked.

    Args:
        pid: its number.

    Attributes:
        own_pid: its number as it sees it itself. exe: the program's file.
        memory, pidfd: descriptors of its memory and of it.

    Raises:
        AttachError: it cannot be attached to, and why.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._folder = Path(f"/proc/{pid}")
        try:
            self.pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            raise AttachError(f"there is no process {pid}") from None
        except OSError:
            # A thread that does not lead its process has no such descriptor.
            raise AttachError(self._thread_or_none()) from None
        try:
            self._check_kind()
            self.exe = self._check_program()
            self._check_place()
            self.memory = self._open_memory()
        except (FileNotFoundError, ProcessLookupError):
            self.close()
            raise AttachError(f"process {pid} ended before it was attached to") from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        os.close(self.pidfd)
        if hasattr(self, "memory"):
            os.close(self.memory)

    # ------------------------------------------------------------------ whether it can be

    def _thread_or_none(self) -> str:
        try:
            leader = self.status()["Tgid"]
        except OSError:
            return f"there is no process {self.pid}"
        return f"{self.pid} is a thread of process {leader}: name that"

    def status(self, thread: int | None = None) -> dict[str, str]:
        """The lines of /proc/PID/status, or of a thread's."""
        path = self._folder / "status" if thread is None else self._folder / "task" / str(thread) / "status"
        lines = path.read_text(errors="replace").splitlines()
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}

    def _check_kind(self) -> None:
        if platform.machine() != "x86_64":
            raise AttachError(
                "attaching is built for x86-64 only: start the program with rocekit record -- PROGRAM"
            )
        if self.pid == os.getpid():
            raise AttachError(f"process {self.pid} is rocekit itself")
        status = self.status()
        self.own_pid = int(status.get("NSpid", str(self.pid)).split()[-1])
        if status["State"][0] in "ZX":
            raise AttachError(f"process {self.pid} has ended")
        if (tracer := status["TracerPid"]) != "0":
            raise AttachError(f"process {self.pid} is traced by process {tracer}: end that debugger first")
        if status["State"][0] in "Tt":
            raise AttachError(f"process {self.pid} is stopped: let it go on first (kill -CONT {self.pid})")
        if "VmSize" not in status:
            raise AttachError(f"process {self.pid} is a thread of the kernel")
        if int(status["SigIgn"], 16) >> (_SIGTRAP - 1) & 1:
            raise AttachError(f"process {self.pid} ignores SIGTRAP, by which a thread of it would be stopped")

    def _check_program(self) -> str:
        path = str(self._folder / "exe")
        try:
            name = os.readlink(path)  # noqa: PTH115
            with Path(path).open("rb") as file:
                head = file.read(20)
            mode = os.stat(path).st_mode  # noqa: PTH116
        except PermissionError:
            raise AttachError(self._no_rights()) from None
        if head[:4] == b"\x7fELF" and head[4] == 1:
            raise AttachError(f"process {self.pid} ({name}) is a program of 32 bits")
        machine = struct.unpack_from("<H", head, 18)[0]
        if _MACHINES.get(machine) != platform.machine():
            other = _MACHINES.get(machine, f"machine number {machine}")
            raise AttachError(
                f"process {self.pid} ({name}) is a program for {other}, not {platform.machine()}"
            )
        if os.geteuid() != 0 and (mode & (stat.S_ISUID | stat.S_ISGID) or has_own_privileges(path)):
            raise AttachError(
                f"process {self.pid} ({name}) has privileges of its own (setuid or capabilities); use sudo"
            )
        if is_static(path):
            raise AttachError(
                f"process {self.pid} ({name}) is linked statically: no library can be loaded into it"
            )
        return name

    def _check_place(self) -> None:
        try:
            same = all(
                os.stat(self._folder / part).st_ino == os.stat(f"/proc/self/{part}").st_ino  # noqa: PTH116
                for part in ("ns/mnt", "root")
            )
        except PermissionError:
            raise AttachError(self._no_rights()) from None
        if not same:
            raise AttachError(
                f"process {self.pid} sees other files (a container or chroot): run rocekit record inside"
            )

    def _open_memory(self) -> int:
        try:
            return os.open(self._folder / "mem", os.O_RDWR | os.O_CLOEXEC)
        except PermissionError:
            raise AttachError(self._no_rights()) from None

    def _no_rights(self) -> str:
        words = f"process {self.pid}: no right to attach"
        try:
            owner = int(self.status()["Uid"].split()[0])
            scope = int(_YAMA.read_text()) if _YAMA.exists() else 0
        except OSError:
            return words
        if os.geteuid() == 0:
            return f"{words}: it has a capability that root here lacks, or a security module forbids it"
        if owner != os.geteuid():
            return f"{words}: it belongs to user {owner}; use sudo"
        if scope:
            return f"{words}: {_YAMA} is {scope}; use sudo, or allow it (sysctl kernel.yama.ptrace_scope=0)"
        return f"{words}: it has made itself unreadable, or has more rights than you; use sudo"

    # ------------------------------------------------------------------ what it is now

    def alive(self) -> bool:
        """Whether it runs still, and is still the same program."""
        try:
            return self.status()["State"][0] not in "ZX" and os.readlink(self._folder / "exe") == self.exe  # noqa: PTH115
        except (OSError, KeyError):
            return False

    def threads(self) -> list[int]:
        try:
            return sorted(int(name) for name in os.listdir(self._folder / "task"))  # noqa: PTH208
        except OSError:
            return []

    def system_call(self, thread: int) -> str:
        """What /proc/PID/task/TID/syscall says: ``running``, or the call and its arguments."""
        try:
            return (self._folder / "task" / str(thread) / "syscall").read_text().strip()
        except OSError:
            return ""

    def mappings(self) -> list[Mapping]:
        try:
            text = (self._folder / "maps").read_text(errors="surrogateescape")
        except OSError:
            return []
        found = []
        for line in text.splitlines():
            parts = line.split(None, 5)
            start, _, end = parts[0].partition("-")
            found.append(Mapping(int(start, 16), int(end, 16), parts[1], parts[5] if len(parts) > 5 else ""))
        return found

    def library(self, name: str) -> Mapping | None:
        """The first mapping of a library (``libc`` as libc.so.6 or libc-2.31.so)."""
        for mapping in self.mappings():
            base = mapping.path.rpartition("/")[2]
            if (
                mapping.path.startswith("/")
                and (base.startswith((f"{name}.so", f"{name}-")))
                and ".so" in base
            ):
                return mapping
        return None

    def variable(self, name: str) -> str | None:
        """A variable of the environment that it was started with."""
        try:
            raw = (self._folder / "environ").read_bytes()
        except OSError:
            return None
        start = f"{name}=".encode()
        return next(
            (v[len(start) :].decode(errors="replace") for v in raw.split(b"\0") if v.startswith(start)), None
        )

    # ------------------------------------------------------------------ memory

    def read(self, address: int, size: int) -> bytes:
        """Its memory; shorter, or empty, where nothing is mapped."""
        try:
            return os.pread(self.memory, size, address)
        except (OSError, OverflowError):
            return b""

    def word(self, address: int) -> int:
        """A word of 8 bytes; 0 where nothing is mapped."""
        return int.from_bytes(self.read(address, 8), "little")

    def write(self, address: int, data: bytes) -> None:
        try:
            done = os.pwrite(self.memory, data, address)
        except OSError as error:
            raise AttachError(f"process {self.pid}: its memory cannot be written: {error.strerror}") from None
        if done != len(data):
            raise AttachError(f"process {self.pid}: its memory cannot be written")

    def text(self, address: int) -> str:
        """A string that ends with a null byte."""
        return self.read(address, 512).split(b"\0", 1)[0].decode(errors="replace") if address else ""
