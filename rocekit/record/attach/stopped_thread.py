"""A thread of another process, stopped for a moment to run single instructions: ptrace(2) on x86-64.

Only one thread stops, and only where nothing notices. In user mode that is anywhere: single instructions
that use no stack, take no lock and call nothing are run, and then all registers are as before. In the
kernel a stop interrupts the system call: it is used only for calls that the kernel then begins anew by
itself (signal(7)), and for an epoll_wait without end, which is begun anew here. Signals are held back
meanwhile and come after.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import time
from types import TracebackType
from typing import Any, Final

from rocekit.record.attach.target import AttachError, RunningProgram

_CONT, _SINGLESTEP, _GETREGS, _SETREGS, _DETACH = 7, 9, 12, 13, 17
_SEIZE, _INTERRUPT, _GETSIGMASK, _SETSIGMASK, _GET_RSEQ = 0x4206, 0x4207, 0x420A, 0x420B, 0x420F
_EVENT_STOP: Final = 128
_WALL: Final = 0x40000000
_REGISTERS: Final = (
    *("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi"),
    *("orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs"),
)
"""struct user_regs_struct (sys/user.h)."""
_WORDS: Final = struct.Struct(f"<{len(_REGISTERS)}Q")
_NONE: Final = (1 << 64) - 1
_ALL_BUT_SIGTRAP: Final = _NONE & ~(1 << (signal.SIGTRAP - 1))
"""SIGTRAP ends a step; the kernel would take away its handler if it were blocked."""
_EINTR: Final = (-4) & _NONE
_RESTARTED: Final = {
    *(0, 1, 7, 17, 18, 19, 20, 23, 34, 35, 42, 43, 44, 45, 46, 47, 61, 202, 230, 247, 270, 271, 288),
}
"""read, write, poll, pread64, pwrite64, readv, writev, select, pause, nanosleep, connect, accept, sendto,
recvfrom, sendmsg, recvmsg, wait4, futex, clock_nanosleep, waitid, pselect6, ppoll, accept4."""
_EPOLL: Final = {232, 281}
"""epoll_wait and epoll_pwait: the kernel ends them with EINTR. The fourth argument is how long they wait."""
_FOR_EVER: Final = 0xFFFFFFFF

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)


class _NotNow(Exception):
    """The thread is where it must not be stopped."""


def _ptrace(request: int, thread: int, address: int = 0, data: Any = None) -> int:
    ctypes.set_errno(0)
    result = int(_libc.ptrace(request, thread, address, data))
    if result == -1 and (number := ctypes.get_errno()):
        raise OSError(number, os.strerror(number))
    return result


def may_stop(system_call: str) -> bool:
    """Whether a thread may be stopped there, by what /proc/PID/task/TID/syscall says."""
    if system_call == "running":
        return True
    words = system_call.split()
    if len(words) < 7 or not words[0].isdigit():
        return False  # -1: in the kernel, and in no call
    number = int(words[0])
    if number in _EPOLL:
        return int(words[4], 16) & _FOR_EVER == _FOR_EVER
    return number in _RESTARTED


class StoppedThread:
    """A thread of a process, stopped as long as the context lasts.

    Args:
        target: the process.
        wait_s: how long to wait until one of its threads may be stopped.

    Raises:
        AttachError: none may, or it ended.
    """

    def __init__(self, target: RunningProgram, wait_s: float = 10.0) -> None:
        self._target = target
        self._wait_s = wait_s
        self._thread = 0
        self._registers: dict[str, int] = {}
        self._mask = ctypes.c_uint64()

    def __enter__(self) -> StoppedThread:
        until = time.monotonic() + self._wait_s
        while True:
            threads = [(self._target.system_call(thread), thread) for thread in self._target.threads()]
            if not threads:
                raise AttachError(f"process {self._target.pid} ended before it was attached to")
            # In user mode first: then no system call is interrupted.
            for call, thread in sorted(threads, key=lambda found: found[0] != "running"):
                if may_stop(call) and self._traps(thread) and self._stop(thread):
                    return self
            if time.monotonic() > until:
                raise AttachError(
                    f"process {self._target.pid}: for {self._wait_s:g} s each of its threads was in a system "
                    "call that a stop would interrupt; try again when it does something"
                )
            time.sleep(0.002)

    def _traps(self, thread: int) -> bool:
        """Whether it does not block SIGTRAP."""
        try:
            return not int(self._target.status(thread)["SigBlk"], 16) >> (signal.SIGTRAP - 1) & 1
        except (OSError, KeyError):
            return False

    def _stop(self, thread: int) -> bool:
        """Stop it, unless it is by then where it must not be; whether it is stopped."""
        try:
            _ptrace(_SEIZE, thread)
        except ProcessLookupError:
            return False
        except PermissionError:
            raise AttachError(
                f"process {self._target.pid}: no right to stop a thread of it (ptrace); use sudo"
            ) from None
        try:
            _ptrace(_INTERRUPT, thread)
            self._wait_for_stop(thread)
            self._registers = dict(zip(_REGISTERS, self._get(thread), strict=True))
            self._check(thread)
        except _NotNow:
            _ptrace(_DETACH, thread)
            return False
        except (ProcessLookupError, ChildProcessError):
            return False
        self._thread = thread
        _ptrace(_GETSIGMASK, thread, 8, ctypes.byref(self._mask))
        _ptrace(_SETSIGMASK, thread, 8, ctypes.byref(ctypes.c_uint64(_ALL_BUT_SIGTRAP)))
        return True

    def _wait_for_stop(self, thread: int) -> None:
        while True:
            _, status = os.waitpid(thread, _WALL)
            if not os.WIFSTOPPED(status):
                raise ProcessLookupError
            if status >> 16 == _EVENT_STOP:
                if os.WSTOPSIG(status) != signal.SIGTRAP:
                    raise _NotNow  # the whole process is being stopped
                return
            # A signal of the program's own came first: it gets it now.
            _ptrace(_CONT, thread, 0, os.WSTOPSIG(status))

    def _check(self, thread: int) -> None:
        """Whether nothing notices a stop here."""
        registers = self._registers
        if registers["cs"] != 0x33:
            raise _NotNow  # not 64 bits
        if registers["orig_rax"] != _NONE and registers["rax"] == _EINTR:
            # The call was interrupted by this stop, unless a signal waits to be handled.
            call = registers["orig_rax"]
            if call not in _RESTARTED | _EPOLL or self._signalled(thread):
                raise _NotNow
            registers |= {"rax": call, "rip": registers["rip"] - 2}  # the instruction syscall again
            registers["orig_rax"] = _NONE
        if self._in_restartable_sequence(thread):
            raise _NotNow

    def _signalled(self, thread: int) -> bool:
        status = self._target.status(thread)
        pending = int(status["SigPnd"], 16) | int(status["ShdPnd"], 16)
        return bool(pending & ~int(status["SigBlk"], 16))

    def _in_restartable_sequence(self, thread: int) -> bool:
        """Whether it is in a sequence that the kernel would have to abort (rseq(2))."""
        found = (ctypes.c_uint64 * 3)()
        try:
            _ptrace(_GET_RSEQ, thread, ctypes.sizeof(found), found)
        except OSError:
            return False  # a kernel before 5.13; or it uses none
        sequence = self._target.word(found[0] + 8) if found[0] else 0
        if not sequence:
            return False
        start, length = self._target.word(sequence + 8), self._target.word(sequence + 16)
        return start <= self._registers["rip"] < start + length

    # ------------------------------------------------------------------ while it is stopped

    def _get(self, thread: int) -> tuple[int, ...]:
        raw = ctypes.create_string_buffer(_WORDS.size)
        _ptrace(_GETREGS, thread, 0, raw)
        return _WORDS.unpack(raw.raw)

    def _set(self, registers: dict[str, int]) -> None:
        raw = ctypes.create_string_buffer(_WORDS.pack(*(registers[name] for name in _REGISTERS)), _WORDS.size)
        _ptrace(_SETREGS, self._thread, 0, raw)

    def step(self, instruction: int, **registers: int) -> int:
        """Run the one instruction at an address, with these registers; what is in rax then."""
        self._set(self._registers | {"orig_rax": _NONE, "rip": instruction} | registers)
        _ptrace(_SINGLESTEP, self._thread)
        while True:
            try:
                _, status = os.waitpid(self._thread, _WALL)
            except ChildProcessError:
                status = 0
            if not os.WIFSTOPPED(status):
                self._thread = 0
                raise AttachError(f"process {self._target.pid} ended while it was attached to")
            if os.WSTOPSIG(status) == signal.SIGTRAP and status >> 16 == 0:
                break
            _ptrace(_SINGLESTEP, self._thread)  # the process is being stopped: that comes after
        after = dict(zip(_REGISTERS, self._get(self._thread), strict=True))
        if after["rip"] == instruction:
            raise AttachError(f"process {self._target.pid}: an instruction did not run in it")
        return after["rax"]

    def call_kernel(self, instruction: int, number: int, *arguments: int) -> int:
        """Make a system call; ``instruction`` is the address of one that does."""
        names = ("rdi", "rsi", "rdx", "r10", "r8", "r9")
        result = self.step(instruction, rax=number, **dict(zip(names, arguments, strict=False)))
        if result > _NONE - 4096:
            reason = os.strerror(_NONE + 1 - result)
            raise AttachError(f"process {self._target.pid}: a system call in it failed: {reason}")
        return result

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._thread:
            return
        try:
            self._set(self._registers)
            _ptrace(_SETSIGMASK, self._thread, 8, ctypes.byref(self._mask))
            _ptrace(_DETACH, self._thread)
        except ProcessLookupError:
            pass
